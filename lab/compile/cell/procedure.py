"""Compiles a cell to a procedure: every host and guest command, before any of them runs.

Paths, accelerator and keys are arguments, and no step depends on the result of another. Disks have
serials, so that their paths in the guest are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lab.compile.cell import samples
from lab.compile.cell.fault_times import cut_short, in_order
from lab.compile.cell.faults import FILE, fault_steps, scene_of
from lab.compile.cell.rest import SHORT_REST, drain, rest_before
from lab.compile.guest.disks import Plugged, disk_steps, report_steps, standing
from lab.compile.guest.seeds import of_trial
from lab.compile.guest.steps import KEPT_ENVIRONMENT
from lab.compile.guest.suite_steps import suite_steps, takes_all_disks
from lab.compile.guest.virtual_time import is_sealed
from lab.md.theory.drive import full_cache_seconds
from lab.model.execution.procedure import (
    READING,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    Pause,
    Procedure,
    Step,
    Timed,
    Verify,
    words,
)
from lab.model.plugin import MOUNT
from lab.model.scenario.document import Cell, Filesystem, Workload
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.disks._drives import guest_path


def cell_procedure(
    cell: Cell,
    guest_directory: str,
    expected_seconds: Mapping[str, float] | None = None,
    plugged: Plugged | None = None,
    erase: Sequence[str] = (),
    *,
    keep_spare: bool = False,
) -> Procedure:
    """Attach blank disks, create and verify the array, run every workload, undo everything.

    ``plugged`` are disks that an earlier cell left in the guest. ``keep_spare`` leaves those that
    this cell does not need. ``erase`` are serials of real disks that may be overwritten.

    In virtual time each trial has its own guest, and so all steps: a trial begins with
    :class:`lab.model.execution.procedure.SealDisks`.
    """
    expected = expected_seconds or {}
    if is_sealed(cell):
        found: list[Step] = []
        for trial in range(1, cell.trials + 1):
            own = of_trial(cell, trial)
            disks = disk_steps(own, guest_directory, None, seed=cell.seed_of(trial))
            steps = (*disks, *_on_disks(own, (trial,), guest_directory, expected))
            tags = tuple(f"{fault.name}.{trial}." for fault in own.faults)
            found += (_of_trial(step, trial, tags) for step in steps)
        return Procedure(name=cell.scenario, steps=tuple(found))
    own = of_trial(cell, 1)
    disks = disk_steps(own, guest_directory, plugged, erase, keep_spare=keep_spare)
    rest = _on_disks(own, range(1, cell.trials + 1), guest_directory, expected)
    return Procedure(name=cell.scenario, steps=(*disks, *rest))


def _of_trial(step: Step, trial: int, tags: tuple[str, ...]) -> Step:
    """Return the step with its own raw output: each trial of a sealed cell has all steps.

    The output of a fault has its trial already, in one of the ``tags``.
    """
    if trial == 1 or not isinstance(step, GuestCommand) or not step.capture:
        return step
    if step.capture.startswith(tags):
        return step
    return step.model_copy(update={"capture": f"{step.capture}.{trial}"})


def _on_disks(
    cell: Cell, trials: Sequence[int], guest_directory: str, expected: Mapping[str, float]
) -> Iterator[Step]:
    """Yield all steps after those of the disks: the array, and these trials of the workloads."""
    if is_sealed(cell):  # the guest runs only this cell, so its versions are read here
        label = "versions in the guest"
        yield GuestCommand(label=label, script=KEPT_ENVIRONMENT, capture="environment")
    target = target_of(cell)
    kind = catalog.array_kind(cell.array.kind) if cell.array else None
    if cell.array and kind:
        paths = [guest_path(disk, serial) for serial, disk in cell.each_disk]
        sizes = [d.size for _, d in cell.each_disk]
        yield from kind.assemble(cell.array, paths, sizes, cell.filesystem)
    if cell.filesystem is not None:
        if kind is None or kind.filesystem != cell.filesystem.type:
            yield from _filesystem(cell, target)
        target = FILE
    if cell.workloads:
        yield _programs(cell)
        if any(catalog.workload(w.tool).any_disks for w in cell.workloads):
            yield named_disks(cell)
        yield from suite_steps(cell)
    for trial in trials:
        for workload in cell.workloads:
            later = trial != trials[0] or workload is not cell.workloads[0]
            timed = _timed(cell, workload, trial, target, expected.get(workload.name), later=later)
            yield from _with_faults(cell, timed, guest_directory)
    if cell.array and kind:
        yield GuestCommand(
            label="the array's state at the end",
            script=f"{kind.state(cell.array)}; dmesg | tail -n 40",
            capture="end",
        )
    yield from report_steps(cell, guest_directory)


def _timed(
    cell: Cell,
    workload: Workload,
    trial: int,
    target: str,
    expected: float | None,
    *,
    later: bool,
) -> Timed:
    """Return one workload, with counters before and after it; ``later``: it is not the guest's
    first one."""
    tool = catalog.workload(workload.tool)
    rest = rest_before(cell, workload, target, later=later)
    longer = rest.seconds if rest.seconds > SHORT_REST else 0.0
    return Timed(
        workload=workload.name,
        trial=trial,
        before=f"{rest.script}\n{_counters(cell)}{rest.report}{_sampling(cell, workload)}",
        script=tool.script(catalog.parameters_of(workload), target),
        after=_counters(cell) + samples.end(workload),
        timeout=cell.timeout + longer,
        expected_seconds=None if expected is None else expected + rest.expected,
    )


def _sampling(cell: Cell, workload: Workload) -> str:
    lines = samples.begin(workload, target_of(cell).partition(" ")[0] or "/")
    return f"\n{lines}" if lines else ""


def _with_faults(cell: Cell, timed: Timed, guest_directory: str) -> Iterator[Step]:
    """Yield a workload, and the faults before, during and after it."""
    faults = [f for f in in_order(cell) if f.workload == timed.workload]
    device = target_of(cell) if cell.array is not None else ""
    mount = _mount(cell, target_of(cell)) if cell.filesystem is not None else ""
    disks = standing(cell, guest_directory)

    def of(fault: Fault) -> tuple[list[Step], list[Step]]:
        scene = scene_of(cell, fault, disks, device=device, trial=timed.trial, mount=mount)
        return fault_steps(cell, scene, timed.trial, _counters(cell))

    def around(moment: str) -> Iterator[Step]:
        for fault in faults:
            if fault.moment == moment:
                yield from (step for part in of(fault) for step in part)

    yield from around("before")
    during = [f for f in faults if f.moment == "during"]
    if not during:
        yield timed
    else:
        name, trial = timed.workload, timed.trial
        yield BeginWorkload(
            workload=name,
            trial=trial,
            before=timed.before,
            script=timed.script,
            before_timeout=READING + timed.timeout - cell.timeout,
        )
        later: list[Step] = []
        gone = 0.0
        for fault in during:
            yield Pause(seconds=fault.at - gone)
            gone = fault.at
            now, then = of(fault)
            yield from now
            later += then
        if name not in cut_short(cell):
            yield EndWorkload(workload=name, trial=trial, after=timed.after, timeout=timed.timeout)
        yield from later
    yield from around("after")


def target_of(cell: Cell) -> str:
    """Return the workloads' target without a file system; for suites, all disks."""
    if cell.array is not None:
        return catalog.array_kind(cell.array.kind).target(cell.array)
    paths = [guest_path(disk, serial) for serial, disk in cell.each_disk]
    return " ".join(paths if takes_all_disks(cell.workloads) else paths[:1])


def named_disks(cell: Cell) -> GuestCommand:
    """Return the step that names the disks ``/dev/lab/SERIAL`` and ``/dev/lab/diskN``, from 1, in
    both clocks."""
    links = {
        f"/dev/lab/{name}": guest_path(disk, serial)
        for number, (serial, disk) in enumerate(cell.each_disk, 1)
        for name in (serial, f"disk{number}")
    }
    lines = [words("ln", "-sfn", path, link) for link, path in links.items()]
    return GuestCommand(label="names of the disks", script="\n".join(("mkdir -p /dev/lab", *lines)))


def patience_of(cell: Cell) -> float:
    """Return the seconds without completed I/O after which disks count as stopped.

    The largest of: a minute; four times the slowest limit's time for a full bucket and its largest
    request; twice a modelled disk's time to write its full cache, because a flush waits for that.
    """
    drives = [catalog.disk_model(disk.model).drive(disk) for disk in cell.disks]
    return max(
        [
            60.0,
            *(4 * drain(disk.throttle) for disk in cell.disks),
            *(2 * full_cache_seconds(drive) for drive in drives if drive is not None),
        ]
    )


def _needs(workload: Workload) -> Sequence[str]:
    return catalog.workload(workload.tool).needs(catalog.parameters_of(workload))


def _programs(cell: Cell) -> Verify:
    """Verify that the workloads' programs are in the guest."""
    needed = sorted({p for w in cell.workloads for p in _needs(w)})
    script = "\n".join(
        f"command -v {p} >/dev/null && echo {p}=yes || echo {p}=missing" for p in needed
    )
    return Verify(name="programs", script=script, expect=dict.fromkeys(needed, "yes"))


def _counters(cell: Cell) -> str:
    """Return a script that prints each disk's device and the kernel's I/O counters.

    The kernel counts an empty flush as a flush and as a write, so it is counted apart: in a sealed
    guest by the disks' driver, else by a trigger of the kernel's tracing (``EMPTY_FLUSHES``). A
    sealed guest also prints CPU time: the first line of ``/proc/stat``, ``proc(5)``.
    """
    serials = " ".join(serial for serial, _ in cell.each_disk)
    paths = " ".join(guest_path(disk, serial) for serial, disk in cell.each_disk)
    sealed = is_sealed(cell)
    own = 'read -r line < /proc/stat; echo "$line"\n' if sealed else EMPTY_FLUSHES
    driver = (
        # A disk that was pulled has none.
        'r="/sys/block/$d/requests"; '
        '[ -e "$r" ] && read -r line < "$r" && echo "requests $d $line"; '
        if sealed
        else ""
    )
    return own + (
        f"set -- {serials}\n"
        f'for device in $(readlink -f {paths}); do d=${{device##*/}}; echo "disk $1 $d"; {driver}'
        "shift; done\n"
        "cat /proc/diskstats"
    )


EMPTY_FLUSHES: Final = """\
{
t=/sys/kernel/tracing
[ -d $t/events ] || mount -t tracefs tracefs $t
e=$t/events/block/block_getrq
grep -q keys=dev $e/trigger || echo 'hist:keys=dev if nr_sector == 0' > $e/trigger
cat $e/hist
} 2>/dev/null || :
"""
"""Shell lines that count requests without data by device, from their first run in a guest on, and
print the counts.

Such a request is an empty flush. Other counters of the kernel cannot tell it from a write: flushes
that wait together become one (``blk-flush.c: blk_kick_flush``), and a write with ``REQ_PREFLUSH``
or ``REQ_FUA`` has one or two flushes of its own. See ``Documentation/trace/histogram.rst``.
"""


def _leaves_tables(filesystem: Filesystem) -> bool:
    """Return whether inode tables stay as they are; a block is written with its first inode.

    mke2fs would write a block in each group, which takes minutes on a RAID 6 of 768 GiB.
    """
    return filesystem.type == "ext4" and not filesystem.lazy_init


def _mkfs_options(filesystem: Filesystem) -> list[str]:
    """Return the scenario's options and ``lazy_init``; mke2fs accepts only one ``-E``."""
    options = list(filesystem.options)
    if filesystem.type == "xfs":
        return options
    tables = int(filesystem.lazy_init or _leaves_tables(filesystem))
    extended = [f"lazy_itable_init={tables}", f"lazy_journal_init={int(filesystem.lazy_init)}"]
    kept = []
    while options:
        word = options.pop(0)
        if word == "-E":
            extended.insert(0, options.pop(0))
        else:
            kept.append(word)
    return ["-E", ",".join(extended), *kept]


_THREAD: Final = "pgrep -x ext4lazyinit"
"""Finds the thread that prefetches block bitmaps after a mount, 257 random reads of 4 KiB on a RAID
10 of 512 GiB, and then zeroes inode tables (``super.c: ext4_run_li_request``)."""


def _mount(cell: Cell, target: str) -> str:
    """Return the command that mounts the file system."""
    filesystem = cell.filesystem
    assert filesystem is not None
    own = ("noinit_itable",) if _leaves_tables(filesystem) else ()
    options = (*own, *filesystem.mount_options)
    given = ("-o", ",".join(options)) if options else ()
    return words("mount", "-t", filesystem.type, *given, target, MOUNT) + "\n"


def _filesystem(cell: Cell, target: str) -> tuple[Step, ...]:
    """Make the file system, mount it, wait for ext4's thread, verify both."""
    filesystem = cell.filesystem
    assert filesystem is not None
    force = "-f" if filesystem.type == "xfs" else "-F"
    make = words(f"mkfs.{filesystem.type}", "-q", force, *_mkfs_options(filesystem), target)
    mount = _mount(cell, target)
    waits = filesystem.type in ("ext3", "ext4") and not filesystem.lazy_init
    wait = f"while {_THREAD} >/dev/null; do sleep 0.5; done\n" if waits else ""
    return (
        GuestCommand(
            label=f"{filesystem.type} on the array",
            script=f"{make}\nmkdir -p {MOUNT}\n{mount}{wait}",
            timeout=cell.timeout,
            undo=f"umount {MOUNT}",
            waits=True,
        ),
        Verify(
            name="filesystem",
            script=f'echo "type=$(findmnt -n -o FSTYPE {MOUNT})"\n'
            f'echo "source=$(readlink -f "$(findmnt -n -o SOURCE {MOUNT})")"\n'
            f'[ "$(readlink -f {target})" = "$(readlink -f "$(findmnt -n -o SOURCE {MOUNT})")" ]'
            " && echo on_target=yes\n"
            + (f'echo "threads=$({_THREAD} | wc -l)"\n' if waits else ""),
            expect={"type": filesystem.type, "on_target": "yes"}
            | ({"threads": "0"} if waits else {}),
        ),
    )
