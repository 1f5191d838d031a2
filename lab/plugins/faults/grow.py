"""The array's shape changes while it runs, ``mdadm --grow``: members, level, layout or chunk.

md moves every stripe to its new place, and stores how far it is in the superblocks. mdadm moves the
start of the members' data, so no backup file is needed (``mdadm(8)``, ``--backup-file``;
``Grow.c: reshape_array``). The members need room for that before or after their data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from pydantic import Field, model_validator
from typing_extensions import override

from lab.core.base import KEPT, Size
from lab.core.stable import Stable, named
from lab.core.units import KIB
from lab.md.facts.grow import Change, Log, RefusedError, changed
from lab.md.facts.grow import shape_of as shape_before
from lab.md.facts.option_rules import journal_disk
from lab.md.facts.sizes import disks_aside, geometry_of, without_disks_aside
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.claim import Share
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import RESHAPED, array_problems, find, reshaped

_UNTIL: Final = """\
reached=
while read -r action < $md/sync_action && [ $action = reshape ]; do
  set -- $(sed -n 's/.* reshape =.*(\\([0-9]*\\)\\/\\([0-9]*\\)).*/\\1 \\2/p' /proc/mdstat)
  [ $((1000 * ${1:-0})) -lt $((PER_MILLE * ${2:-1})) ] || { reached=1; break; }
  sleep 0.2
done
read -r place < $md/reshape_position
[ -n "$reached" ] || [ $place = none ] ||
  { echo "md stopped the reshape at sector $place of the array" >&2; exit 1; }
"""
"""Waits for a share as ``md.c: status_resync`` prints it, ``reshape = 12.5% (4096/32768)``. The
place in sysfs is that of the superblocks, which is older."""
_LEVEL: Final = """\
looks=0
until read -r level < $md/level && [ $level = WANTED ]; do
  action=
  [ ! -e $md/sync_action ] || read -r action < $md/sync_action || action=
  [ "$action" = idle ] && looks=$((looks + 1)) || looks=0
  [ -e $md/level ] || { echo "DEVICE is gone: it was to become WANTED" >&2; exit 1; }
  [ $looks -lt LOOKS ] ||
    { echo "md is idle, and DEVICE is still $level: mdadm did not make it WANTED" >&2; exit 1; }
  sleep 0.1
done
"""
"""Waits for the level, which mdadm may change when the reshape is complete: ``Grow.c:
reshape_array``, in the process that watches it. Until then md is idle for a moment."""
_LOOKS: Final = 300
"""Consecutive readings that must find md idle at another level before mdadm counts as failed."""


class GrowParameters(Stable):
    """The new shape; what is not given stays."""

    ALWAYS: ClassVar[frozenset[str]] = named("raid_devices level layout chunk wait until")

    raid_devices: int | None = Field(default=None, ge=2, le=64)
    """Number of members; new ones are the array's spares."""
    level: int | None = Field(default=None, ge=0, le=10)
    """RAID level."""
    layout: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*$")
    """Layout, by mdadm's name."""
    chunk: Size | None = None
    """Bytes of a chunk, a multiple of 4096."""
    wait: bool = True
    """Wait until md has moved everything. Otherwise the reshape goes on during what follows."""
    until: Share | None = Field(default=None, gt=0, lt=1)
    """Wait only until md has moved this fraction (``5%``); the rest goes on during what follows."""

    @model_validator(mode="after")
    def _something(self) -> GrowParameters:
        if (self.raid_devices, self.level, self.layout, self.chunk) == (None,) * 4:
            raise ValueError(
                "nothing changes: give one or more of raid_devices, level, layout and chunk"
            )
        if self.chunk is not None and (not self.chunk or self.chunk % 4096):
            raise ValueError(f"chunk is {self.chunk}, not a multiple of 4096: write 64KiB")
        if self.until is not None and not self.wait:
            raise ValueError("until waits for a share, and wait is false: remove one of them")
        return self


class Grow(FaultKind):
    """``mdadm --grow``."""

    parameters = GrowParameters
    metrics = RESHAPED

    @override
    def waits(self, p: GrowParameters) -> bool:
        return p.wait and p.until is None

    @override
    def problems(self, p: GrowParameters, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        disks = len(scene.disks) - len(disks_aside(scene.array))
        if p.raid_devices is not None and p.raid_devices > disks:
            yield Problem(
                key="raid_devices",
                message=f"{p.raid_devices} members need as many disks, and the cell has {disks}:"
                " raise disks.count, and set array.spares to the new disks",
            )
        if scene.array.bitmap == "external":
            yield Problem(
                key="fault",
                message="mdadm does not reshape an array whose bitmap is a file: set array.bitmap"
                " to internal or none",
            )
        if p.raid_devices is None or p.raid_devices <= disks:
            yield from _refused(p, scene)
        if scene.fault.check and p.level == 0:
            yield Problem(
                key="check",
                message="a RAID 0 has no redundancy that md could compare: remove check, or level",
            )
        elif scene.fault.check and not self.waits(p):
            key = "wait: false" if p.until is None else "until"
            yield Problem(
                key="check",
                message=f"md cannot check an array that it reshapes: remove check, or {key}",
            )

    @override
    def script(self, p: GrowParameters, scene: Scene) -> str:
        options = []
        if p.level is not None:
            options.append(f"--level={p.level}")
        if p.raid_devices is not None:
            options.append(f"--raid-devices={p.raid_devices}")
        if p.layout is not None:
            options.append(f"--layout={p.layout}")
        if p.chunk is not None:
            options.append(f"--chunk={p.chunk // KIB}")
        # Without systemd's unit mdadm watches the reshape in a process of its own: one path for
        # guests with and without systemd (Grow.c: continue_via_systemd).
        command = words("mdadm", "--grow", scene.device, *options)
        script = f"MDADM_NO_SYSTEMCTL=1 {command} </dev/null 2>&1\n"
        if p.until is not None:
            script += find(scene.device) + _UNTIL.replace("PER_MILLE", str(round(1000 * p.until)))
        elif p.wait and p.level is not None:
            script += find(scene.device) + _LEVEL.replace("WANTED", f"raid{p.level}").replace(
                "DEVICE", scene.device
            ).replace("LOOKS", str(_LOOKS))
        return script

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        return reshaped(outputs)


def _refused(parameters: GrowParameters, scene: Scene) -> Iterable[Problem]:
    """Yield why mdadm or md refuses the change of the shape that earlier changes have left."""
    if scene.array.kind != "md":
        return
    used = without_disks_aside(scene.array, [one.disk.size for one in scene.disks])
    try:
        geometry = geometry_of(scene.array, used)
    except (ValueError, LookupError):
        return  # the array's own problems are reported
    tail = min(used) - geometry.data_offset - geometry.component_size
    log = Log.PARTIAL_PARITY if scene.array.consistency_policy == "ppl" else None
    if journal_disk(scene.array) is not None:
        log = Log.JOURNAL
    shape = shape_before(geometry, before=geometry.data_offset, after=max(tail, 0), log=log)
    try:
        for fault in scene.earlier:
            if fault.fault == "grow":
                known = GrowParameters.model_validate(fault.parameters, context=KEPT)
                shape = changed(shape, _change(known))
    except RefusedError:
        return  # reported at that fault
    try:
        changed(shape, _change(parameters))
    except RefusedError as refused:
        others = any(fault.fault != "grow" for fault in scene.earlier)
        if others and refused.key == "members":
            return  # they may have removed or added members
        key = "raid_devices" if refused.key == "members" else refused.key
        yield Problem(key=key, message=refused.message)


def _change(parameters: GrowParameters) -> Change:
    return Change(
        level=parameters.level,
        members=parameters.raid_devices,
        layout=parameters.layout,
        chunk=parameters.chunk,
    )


FAULT: FaultKind = Grow()
