"""Code for several faults: shell lines about md, positions of disks, common checks and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from lab.core.base import Model
from lab.core.errors import ToolError
from lab.core.units import KIB
from lab.md.facts.geometry import PAGE, Extent, Geometry
from lab.md.facts.levels import NAMES, Level
from lab.md.facts.option_rules import BITMAP_MOUNT, bitmap_path, journal_disk
from lab.md.facts.sizes import disks_aside, geometry_of, present, without_disks_aside
from lab.md.steps.create import bitmap_mount_command
from lab.md.steps.verify import SUPERBLOCKS
from lab.model.execution.procedure import LimitDisk, words
from lab.model.plugin import FaultKind, Problem, Scene, Standing
from lab.model.result.measurement import SHAPE, Metric, MetricKind
from lab.model.scenario.document import SERVED
from lab.model.scenario.fault import Fault
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog

Position = Annotated[int, Field(ge=1, le=64)]
"""A disk's position in the cell, from 1: ``disks`` in order, the array's spares last."""


def counted(name: str, unit: str = "1", better: str = "lower") -> Metric:
    """Return a metric that the host's speed does not affect."""
    return Metric(name=name, unit=unit, better=better, kind=MetricKind.COUNTED)


COMMON: Final = (
    Metric(name="seconds", unit="s", better="lower"),
    Metric(name="sync_seconds", unit="s", better="lower"),
    counted("synced", better="higher"),
    counted("degraded"),
    counted("degraded_most"),
    counted("in_sync", better="higher"),
    counted("faulty"),
    counted("missing"),
    counted("errors"),
    counted("bad_sectors", "sectors"),
    counted("mismatch_cnt", "sectors"),
    counted("read_bytes", "B"),
    counted("written_bytes", "B"),
    counted("acknowledged", better="higher"),
    counted("lost"),
    counted("intact", better="higher"),
)
"""Metrics of every fault.

``seconds``: from the fault until md was idle. ``synced``: number of resyncs and recoveries, and
``sync_seconds`` their duration, both from the kernel's log. ``degraded``: members missing at the
end, and ``degraded_most`` at any time. ``in_sync``, ``faulty``, ``missing``: members. ``errors``:
sectors that md has corrected on its members after read errors. ``bad_sectors``: in the members'
lists of bad blocks. ``mismatch_cnt``: of the check.
``read_bytes``, ``written_bytes``: of all disks in those seconds. ``acknowledged``: blocks
acknowledged as durable before the fault; ``lost``: those of them missing after it; ``intact``:
whether none is missing.
"""

RESHAPED: Final = (counted("reshaped"), *SHAPE)
"""Metrics of faults that change the array's shape, or meet it changing.

``reshaped``: reshapes that md began or continued, from the kernel's log. The others are the array's
at the end.
"""

POLL: Final = 0.1
"""Seconds between two readings of md's state."""
QUIET: Final = 5
"""Consecutive readings that must find md idle: its thread starts a recovery shortly after the
cause (``md.c: md_check_recovery``)."""

FIND: Final = "d=$(readlink -f {device})\nmd=/sys/block/${{d##*/}}/md\n"


def find(device: str) -> str:
    """Return shell lines that set ``$md`` to the array's directory in sysfs, whatever its
    number."""
    return FIND.format(device=device)


def mark(tag: str) -> str:
    """Return the shell line that marks the fault's beginning in the kernel's log."""
    return f"lab: fault {tag}"


BEGAN: Final = "read -r began idle < /proc/uptime\n"
"""Shell line that stores the time of the fault, by the guest's clock."""


def settle(device: str, limit: float) -> str:
    """Return shell lines that wait until md is idle, at most ``limit`` seconds, and print how long
    md was busy.

    ``sync_action`` shows whether md is busy, ``md.rst``. An array without redundancy has no such
    file: an array that became one is idle (``md.c: level_store``). Under emulation each process
    costs 0.01 s, so the shell uses builtins if possible.
    """
    return (
        f"{find(device)}"
        "most=0 quiet=0 looks=0 found=0\n"
        "read -r now idle < /proc/uptime\n"
        f"while [ $quiet -lt {QUIET} ]; do\n"
        "  action= degraded=0\n"
        "  if [ -e $md/sync_action ]; then\n"
        "    read -r action < $md/sync_action || action=\n"
        "    read -r degraded < $md/degraded || degraded=0\n"
        "  elif [ -e $md/array_state ]; then action=idle\n"
        "  elif [ $found = 0 ]; then break\n"
        f'  else echo "{device} is gone: md stopped it while the lab waited" >&2; exit 1; fi\n'
        "  found=1\n"
        "  [ $degraded -le $most ] || most=$degraded\n"
        '  if [ "$action" = idle ]; then\n'
        "    [ $quiet -gt 0 ] || read -r now idle < /proc/uptime\n"
        "    quiet=$((quiet + 1))\n"
        "  else quiet=0; fi\n"
        "  looks=$((looks + 1))\n"
        f"  [ $looks -le {int(limit / POLL)} ] ||\n"
        '  { echo "md was still busy with $action: $md" >&2; exit 1; }\n'
        f"  sleep {POLL}\n"
        "done\n"
        'echo "began=$began"\necho "ended=$now"\n'
        'echo "degraded_most=$most"\n'
    )


def glance(device: str) -> str:
    """Return shell lines that print what :func:`settle` prints, without waiting for md.

    An array without redundancy has no file ``degraded``.
    """
    return (
        f"{find(device)}read -r now idle < /proc/uptime\ndegraded=0\n"
        "[ ! -e $md/degraded ] || read -r degraded < $md/degraded\n"
        'echo "began=$began"\necho "ended=$now"\necho "degraded_most=$degraded"\n'
    )


def state(device: str, tag: str) -> str:
    """Return shell lines that print md's state of array and members, and the kernel's log of the
    fault.

    If there is no array, they print the superblocks.
    """
    return (
        f"{find(device)}"
        "if [ -e $md/array_state ]; then\n"
        "  for key in array_state raid_disks degraded sync_action mismatch_cnt component_size; do\n"
        '    v=; [ ! -e $md/$key ] || read -r v < $md/$key; echo "$key=$v"\n'
        "  done\n"
        "  for m in $md/dev-*; do\n"
        '    [ -e "$m/state" ] || continue\n'
        "    state= slot=none errors=0\n"
        "    read -r state < $m/state || true\n"
        "    read -r slot < $m/slot || true\n"
        "    read -r errors < $m/errors || true\n"
        '    echo "member ${m##*/dev-} $slot $errors $state"\n'
        '    while read -r sector length; do echo "bad ${m##*/dev-} $sector $length"\n'
        "    done < $m/bad_blocks || true\n"
        "  done\n"
        f"{'' if device == '/dev/null' else f'else{chr(10)}{SUPERBLOCKS}'}fi\n"
        "cat /proc/mdstat\n"
        f"dmesg > /run/lab-dmesg\nmark=$(grep -nF '{mark(tag)}' /run/lab-dmesg | tail -n 1)\n"
        'tail -n "+${mark%%:*}" /run/lab-dmesg 2>/dev/null || cat /run/lab-dmesg\n'
    )


def check(device: str, limit: float) -> str:
    """Return shell lines that make md compare all members, and print the number of mismatches, and
    when the check began and ended by the guest's clock.

    Nothing is printed by an array that was not started, or has no redundancy. :func:`mismatches`
    says whether md had members to compare.
    """
    return (
        f"{find(device)}"
        "if [ -e $md/sync_action ]; then\n"
        '  read -r now idle < /proc/uptime\n  echo "began=$now"\n'
        "  echo check > $md/sync_action\n"
        "  looks=0\n"
        "  until read -r action < $md/sync_action && [ $action = idle ]; do\n"
        "    [ -e $md/sync_action ] ||\n"
        f'    {{ echo "{device} is gone during its check" >&2; exit 1; }}\n'
        "    looks=$((looks + 1))\n"
        f"    [ $looks -le {int(limit / POLL)} ] || {{ echo 'it does not end' >&2; exit 1; }}\n"
        f"    sleep {POLL}\n"
        "  done\n"
        '  read -r now idle < /proc/uptime\n  echo "ended=$now"\n'
        '  read -r count < $md/mismatch_cnt\n  echo "mismatch_cnt=$count"\n'
        "fi\n"
    )


def assemble(scene: Scene, gone: Iterable[int] = ()) -> str:
    """Return one list of commands that assembles the array from its members and its journal,
    without udev.

    Debian starts arrays as ``auto-read-only`` (``md_mod.start_ro``), which delays a resync until
    the first write. So the commands make it writable.
    """
    log = journal_disk(scene.array)
    numbers = [*members(scene), *([] if log is None else [log])]
    left = [disk(scene, n).path for n in numbers if n not in set(gone)]
    file = bitmap_path(scene.array)
    bitmap = (f"--bitmap={file}",) if file else ()
    command = words("mdadm", "--assemble", scene.device, *bitmap, *left)
    writable = words("mdadm", "--readwrite", scene.device)
    return (
        f"{bitmap_mounted(scene)}MDADM_NO_UDEV=1 {command} </dev/null 2>&1 && {{\n"
        f"{find(scene.device)}read -r was < $md/array_state\n"
        f"[ $was != read-auto ] || {writable} 2>&1; }}"
    )


def bitmap_mounted(scene: Scene) -> str:
    """Return the commands that mount the bitmap's file system, as after a boot."""
    number = scene.array.bitmap_disk
    if number is None or bitmap_path(scene.array) is None:
        return ""
    mount = bitmap_mount_command(disk(scene, number).path)
    return f"{{ mountpoint -q {BITMAP_MOUNT} || {mount}; }} && "


def settings(scene: Scene) -> str:
    """Return shell lines that set the scenario's sysfs values, which a new assembly resets."""
    lines = [f"  printf '%s\\n' {words(v)} > $md/{k}" for k, v in scene.array.sysfs.items()]
    if not lines:
        return ""
    return "\n".join([f"{find(scene.device)}if [ -d $md ]; then", *lines, "fi"]) + "\n"


def geometry(scene: Scene) -> Geometry:
    """Return the array's geometry, with the members' data offsets."""
    sizes = [d.disk.size for d in scene.disks]
    return geometry_of(scene.array, without_disks_aside(scene.array, sizes))


def members(scene: Scene) -> tuple[int, ...]:
    """Return disks of the array, from 1: without those of bitmap and journal, and without a missing
    member unless an earlier fault added it."""
    numbers = range(1, len(scene.disks) + 1)
    found = present(scene.array, without_disks_aside(scene.array, numbers))
    added = {f.parameters["disk"] for f in scene.earlier if _kind(f).plugs}
    return tuple(sorted({*found, *added}))


def data_offset(scene: Scene) -> int:
    """Return the first byte of a member's data; 0 on a bare disk."""
    return geometry(scene).data_offset if scene.device else 0


def unplugged(scene: Scene) -> frozenset[int]:
    """Return the disks that earlier faults unplugged, and none plugged in again."""
    gone: set[int] = set()
    for fault in scene.earlier:
        if _kind(fault).unplugs:
            gone.add(fault.parameters["disk"])
        elif _kind(fault).plugs:
            gone.discard(fault.parameters["disk"])
    return frozenset(gone)


def _kind(fault: Fault) -> FaultKind:
    return catalog.fault_kind(fault.fault)


def _parameters(fault: Fault) -> Model:
    return _kind(fault).parameters.model_validate(fault.parameters)


def disk(scene: Scene, position: int) -> Standing:
    """Return the disk at a position, from 1."""
    return scene.disks[position - 1]


def disk_problems(
    scene: Scene,
    position: int,
    key: str = "disk",
    *,
    member: bool = True,
    unplugged_too: bool = False,
) -> Iterable[Problem]:
    """Yield a problem unless the disk exists and is plugged in.

    ``member``: it must belong to the array. ``unplugged_too``: it may be unplugged, or missing in
    the array.
    """
    if position > len(scene.disks):
        yield Problem(
            key=key, message=f"there is no disk {position}: the cell has {len(scene.disks)}"
        )
    elif position in unplugged(scene) and not unplugged_too:
        yield Problem(
            key=key, message=f"disk {position} is unplugged by an earlier fault: re_add it first"
        )
    elif member and position in (aside := disks_aside(scene.array)):
        message = f"disk {position} is for {aside[position]}: give a member"
        yield Problem(key=key, message=message)
    elif member and not unplugged_too and _is_absent(scene, position):
        yield Problem(
            key=key, message=f"disk {position} is not a member of the array: give a member"
        )


def _is_absent(scene: Scene, position: int) -> bool:
    return bool(scene.device) and scene.array.kind == "md" and position not in members(scene)


def array_problems(scene: Scene) -> Iterable[Problem]:
    """Yield a problem unless the cell has a redundant md array."""
    kinds = ("0", "linear", "raid0", "stripe", "-1")
    if not scene.device or scene.array.kind != "md" or scene.array.level in kinds:
        yield Problem(
            key="fault",
            message=f"{scene.fault.fault} needs an md array with redundancy: add one (array.level),"
            " or remove the fault",
        )
        return
    levels = [
        f for f in scene.earlier if f.fault == "grow" and f.parameters.get("level") is not None
    ]
    if levels and levels[-1].parameters["level"] == 0:
        yield Problem(
            key="fault",
            message=f"{scene.fault.fault} needs an array with redundancy, and '{levels[-1].name}'"
            " made it a RAID 0: let this fault come before it",
        )


def limits_of(parameters: Mapping[str, object]) -> dict[str, int]:
    """Return a fault's limits, by libvirt's names (``<iotune>``)."""
    return {
        k.replace("_operations_per_second", "_iops_sec").replace("_per_second", "_sec"): v
        for k, v in parameters.items()
        if k.endswith("_per_second") and isinstance(v, int)
    }


def slowed(scene: Scene, position: int) -> dict[str, int]:
    """Return the limits that an earlier fault gave a disk; empty: none did."""
    found: dict[str, int] = {}
    for fault in scene.earlier:
        if fault.fault == "slow" and fault.parameters["disk"] == position:
            found = limits_of(_parameters(fault).model_dump(exclude_none=True)) or found
    return found


def limits_step(scene: Scene, position: int, limits: Mapping[str, int]) -> LimitDisk:
    """Return the step that gives a disk other limits.

    What counts as one operation stays, as with the driver of virtual time.
    """
    one = disk(scene, position)
    size = one.disk.throttle.operation_size
    more = {"size_iops_sec": size} if size and any("iops" in name for name in limits) else {}
    return LimitDisk(serial=one.serial, limits={**limits, **more})


def served(standing: Standing) -> bool:
    """Return whether the disk has a disk server, which accepts commands."""
    return standing.disk.model in SERVED


def pairs(text: str) -> dict[str, str]:
    """Parse ``key=value`` lines."""
    found = (line.partition("=") for line in text.splitlines())
    return {key: value.strip() for key, equals, value in found if equals and key.isidentifier()}


def number(text: str, key: str) -> float:
    """Return a number that a script must have printed; ``ToolError``: it is missing.

    During a reshape the old value follows in parentheses (``md.c: raid_disks_show``).
    """
    try:
        return float(re.sub(r" \(\d+\)$", "", pairs(text)[key]))
    except (KeyError, ValueError):
        raise ToolError(f"the output has no '{key}': {text.strip()[-300:]!r}") from None


_BEGUN: Final = re.compile(
    r"^\[ *([\d.]+)\] md: (?:resync|recovery|requested-resync) of RAID array", re.MULTILINE
)
_DONE: Final = re.compile(
    r"^\[ *([\d.]+)\] md: \S+: (?:resync|recovery|requested-resync) done", re.MULTILINE
)
"""Message of ``md.c: md_do_sync``, in every kernel since 2.6; a check is called ``data-check``."""
_RESHAPED: Final = re.compile(r"^\[ *[\d.]+\] md: reshape of RAID array", re.MULTILINE)
_MDSTAT: Final = re.compile(
    r"(?:^\S+ : active (?:\(\S+\) )?(?P<personality>\w++)(?P<disks>.*+)\n)?"
    r"^ +(?P<blocks>\d+) blocks(?P<status>(?: super \S+)?"
    r"(?: level (?P<level>\d+), (?P<chunk>\d+)k chunk, algorithm (?P<layout>\d+))?"
    r"[^\[\n]*)(?:\[\d+/\d+\] \[(?P<members>[^\]]+)\])?",
    re.MULTILINE,
)
"""``md.c: md_seq_show``, ``raid5.c: raid5_status``, ``raid10.c: raid10_status``; ``members`` has a
``U`` for each member in sync."""
_COPIES: Final = re.compile(r"(?<!\d)(\d{1,12}) (near|far|offset)-copies")
_CHUNKS: Final = re.compile(r"(?<!\d)(\d{1,12})[kK] chunk")
_MEMBER: Final = re.compile(r"member (\S+) (\S+) (\d+) (\S*)")
_SLOTS: Final = re.compile(r" [^\s\[]++\[\d++\](?!\(S\))")
_BAD: Final = re.compile(r"^bad \S+ \d+ (\d+)$", re.MULTILINE)


def common(stdout: str, files: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of every fault on an array, except bytes and acknowledged writes."""
    found: dict[str, float] = {}
    found["seconds"] = round(number(stdout, "ended") - number(stdout, "began"), 3)
    found["degraded_most"] = number(stdout, "degraded_most")
    after = files.get("state.txt", "")
    begun = [float(t) for t in _BEGUN.findall(after)]
    done = [float(t) for t in _DONE.findall(after)]
    found["synced"] = float(len(begun))
    if begun and len(begun) == len(done):
        found["sync_seconds"] = round(sum(done) - sum(begun), 6)
    if pairs(after).get("degraded", ""):
        members = _members(after)
        found["degraded"] = number(after, "degraded")
        found["in_sync"] = float(sum("in_sync" in m for m in members))
        found["faulty"] = float(sum("faulty" in m for m in members))
        found["missing"] = number(after, "raid_disks") - found["in_sync"]
        found["errors"] = float(sum(int(m[2]) for m in _MEMBER.findall(after)))
        found["bad_sectors"] = float(sum(int(length) for length in _BAD.findall(after)))
    if "mismatch_cnt" in pairs(checked := files.get("check.txt", "")):
        found |= mismatches(after, number(checked, "mismatch_cnt"))
    return found


def mismatches(state: str, counted: float) -> dict[str, float]:
    """Return md's count of a check as ``mismatch_cnt``; empty: md has not compared all members.

    ``state``: the output of :func:`state`. What md skips has no mismatches, which says nothing. A
    count above 0 is of what md has compared.
    """
    extent = _compared(state)
    known = extent is Extent.ALL or (extent is Extent.PART and counted > 0)
    return {"mismatch_cnt": counted} if known else {}


def _compared(state: str) -> Extent:
    """Return how much of the array md compares in a check."""
    found = _array_in(state)
    level = NAMES.get(found["personality"] or "") if found else None
    if found is None or level is None or not found["members"]:
        return Extent.ALL if pairs(state).get("degraded") == "0" else Extent.NONE
    marks = found["members"]
    layout = _layout10(found["status"]) if level is Level.RAID10 else 2
    chunks = _CHUNKS.search(found["status"])
    chunk = int(chunks[1]) * KIB if chunks else PAGE
    try:
        shape = Geometry(
            level=level,
            layout=layout,
            members=len(marks),
            chunk=chunk,
            component_size=chunk * len(marks) ** 2,
            failed=frozenset(n for n, mark in enumerate(marks) if mark != "U"),
        )
    except ValueError:  # md does not run an array that has lost so many
        return Extent.NONE
    return shape.compared


def _array_in(state: str) -> re.Match[str] | None:
    """Return the array of the fault in ``/proc/mdstat``, which may list others."""
    arrays = list(_MDSTAT.finditer(state))
    names = {f"{member[0]}[" for member in _MEMBER.findall(state)}
    own = [a for a in arrays if any(f" {name}" in (a["disks"] or "") for name in names)]
    return next(iter(own or arrays), None)


def reshaped(outputs: Outputs) -> dict[str, float]:
    """Return the metrics of ``RESHAPED``, of an array that runs."""
    after = outputs.files.get("state.txt", "")
    found = {"reshaped": float(len(_RESHAPED.findall(after)))}
    return found | (shape_in(after) if pairs(after).get("raid_disks", "") else {})


def shape_in(text: str) -> dict[str, float]:
    """Return the metrics of ``SHAPE`` in ``/proc/mdstat`` and the values of :func:`state`; empty:
    no array runs."""
    shown = _array_in(text)
    if shown is None:
        return {}
    found = {"array_bytes": float(shown["blocks"]) * KIB}
    read = pairs(text)
    if read.get("raid_disks", ""):
        found["raid_disks"] = number(text, "raid_disks")
    elif shown["members"]:
        found["raid_disks"] = float(len(shown["members"]))
    elif shown["disks"]:
        found["raid_disks"] = float(len(_SLOTS.findall(shown["disks"])))
    if read.get("component_size", "0") != "0":
        found["array_component_bytes"] = number(text, "component_size") * KIB
    if shown["level"]:
        found["array_level"] = float(shown["level"])
        found["array_chunk_bytes"] = float(shown["chunk"]) * KIB
        found["array_layout"] = float(shown["layout"])
        return found
    level = NAMES.get(shown["personality"] or "")
    if level is not None:
        found["array_level"] = float(level.value)
    if chunks := _CHUNKS.search(shown["status"]):
        found["array_chunk_bytes"] = float(chunks[1]) * KIB
    if level is Level.RAID10:
        found["array_layout"] = float(_layout10(shown["status"]))
    return found


def _layout10(status: str) -> int:
    """Return the kernel's number of a RAID 10's layout (``raid10.c: setup_geo``)."""
    copies = {kind: int(count) for count, kind in _COPIES.findall(status)}
    far = copies.get("offset", copies.get("far", 1))
    return copies.get("near", 1) | far << 8 | ("offset" in copies) << 16


def is_reshaping(scene: Scene) -> bool:
    """Return whether an earlier fault began a reshape that nothing waits for."""
    return any(not _kind(f).waits(_parameters(f)) for f in scene.earlier)


def moved_problems(scene: Scene) -> Iterable[Problem]:
    """Yield a problem after a fault that moves the members' data, whose place is then unknown."""
    moved = [f.name for f in scene.earlier if f.fault == "grow"]
    if moved:
        yield Problem(
            key="offset",
            message=f"offset counts from the start of a member's data, which '{moved[0]}' has moved"
            ": let this fault come before it",
        )


def _members(text: str) -> Sequence[Sequence[str]]:
    return [m[3].split(",") for m in _MEMBER.findall(text)]
