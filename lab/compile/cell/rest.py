"""Shell lines before a workload: it begins with empty buckets, caches and backlogs, and md idle.

What cannot be brought to rest is reported in the output of these lines, and the workload's values
are marked (:func:`lab.analysis.measure.at_rest`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from lab.compile.cell.fault_times import before
from lab.core.units import MIB
from lab.md.steps.rest import LIMIT
from lab.md.theory.bucket import Limits
from lab.model.execution.procedure import UNREST
from lab.model.scenario.array import InitialSync
from lab.model.scenario.document import SERVED, Cell, Throttle, Workload
from lab.model.scenario.guest import Clock
from lab.plugins import catalog
from lab.plugins.disks._drives import guest_path

LONGEST_REST: Final = 900.0
"""Longest pause in real time, in seconds; a pause in virtual time has no limit."""
SHORT_REST: Final = 60.0
"""Pauses up to this many seconds are part of the workload's own time limit."""
LARGEST: Final = 4 * MIB
"""Bytes of Linux's largest request: ``BLK_DEF_MAX_SECTORS_CAP``, 1.25 MiB before Linux 6.16."""
AT_CREATION: Final = MIB
"""Bytes of the largest request while an array is created."""
SHORTEST: Final = 0.2
_COUNTED: Final = "/run/lab-counted"
"""Beginning of the names of files with disks' counters at the last pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What comes before a workload."""

    script: str
    """Shell lines before its counters are read."""
    report: str = ""
    """Shell lines after that: they print what was not at rest."""
    pause: float
    """Seconds of the pause for the throttles."""
    seconds: float
    """Most seconds that it takes, apart from writing dirty pages."""

    @property
    def expected(self) -> float:
        """Seconds beyond those that every workload has; for progress."""
        return self.pause if self.pause > SHORT_REST else 0.0


def rest_before(cell: Cell, workload: Workload, target: str, *, later: bool) -> Rest:
    """Write dirty pages, drop cached ones unless the workload keeps them, bring the array to rest,
    wait until throttles are idle; ``later``: other workloads have used the array.

    Without a file system only the target's pages are dropped, not those of programs
    (``BLKFLSBUF``, ``block/ioctl.c``); 2 shrinks the kernel's other caches, such as a grown stripe
    cache (``raid5.c: raid5_cache_scan``).
    """
    drop = "echo 3 > /proc/sys/vm/drop_caches"
    if cell.filesystem is None and target:
        drop = f"blockdev --flushbufs {target}; echo 2 > /proc/sys/vm/drop_caches"
    kind = catalog.array_kind(cell.array.kind) if cell.array else None
    own = kind.fresh(cell.array) if cell.array and kind else ""
    script = "sync; " + ("" if workload.keep_cache else f"{own and own + '; '}{drop}; ")
    needed = ceil(100 * max(_pause(cell, workload, later=later), SHORTEST) - 1e-6) / 100
    pause = needed if cell.guest.clock is Clock.VIRTUAL else min(needed, LONGEST_REST)
    undisturbed = not before(cell, workload)
    lines, seconds, sleep = "", pause, f"sleep {pause:.2f}"
    if later and cell.array and kind:
        waits = undisturbed and cell.array.initial_sync is not InitialSync.NONE
        lines = kind.rest(cell.array, waits=waits)
        seconds += LIMIT if lines else 0.0
        lines += "why=\n" if lines and not waits else ""  # a fault's consequences are measured
    if later and any(disk.model in SERVED for disk in cell.disks):
        lines = f"{_flush(cell, target)}{lines}"
    if needed > SHORT_REST and undisturbed:
        sleep = _as_needed(cell, needed, pause, later=later)
    elif pause < needed:
        lines += f"unrest 'the throttles were idle for {pause:.0f} of {needed:.0f} seconds'\n"
    if not lines and sleep.startswith("sleep"):
        return Rest(script=script + sleep, pause=pause, seconds=pause)
    report = 'why=\nunrest() { why="${why:+$why; }$*"; }\n'
    return Rest(
        script=f"{script}:\n{report}{lines}{sleep}",
        report=f'\n[ -z "$why" ] || echo "{UNREST} $why"',
        pause=pause if later else min(pause, SHORT_REST),
        seconds=seconds,
    )


def pauses_of(cell: Cell) -> float:
    """Return the expected seconds of all long pauses of one trial; 0 in virtual time, where they
    cost the host nothing."""
    if cell.guest.clock is Clock.VIRTUAL:
        return 0.0
    rests = (rest_before(cell, w, "", later=n > 0) for n, w in enumerate(cell.workloads))
    return sum(rest.expected for rest in rests)


_MOVED: Final = f"""\
rest={SHORTEST * 1000:.0f}
moved() {{ # disks: adds up what they did since the last pause
  reads=0 writes=0 read_bytes=0 write_bytes=0
  for disk in $(readlink -f "$@"); do
    disk=${{disk##*/}} r0=0 rs0=0 w0=0 ws0=0
    read -r r _ rs _ w _ ws _ < /sys/class/block/$disk/stat
    [ ! -e {_COUNTED}.$disk ] || read -r r0 rs0 w0 ws0 < {_COUNTED}.$disk
    reads=$((reads + r - r0)) read_bytes=$((read_bytes + 512 * (rs - rs0)))
    writes=$((writes + w - w0)) write_bytes=$((write_bytes + 512 * (ws - ws0)))
    echo "$r $rs $w $ws" > {_COUNTED}.$disk
  done
}}
need() {{ # units per second, units
  [ $(($2 * 1000 / $1)) -lt $rest ] || rest=$(($2 * 1000 / $1 + 1))
}}
"""
"""Shell functions that find the milliseconds in which what disks did leaks out of their buckets."""


def _as_needed(cell: Cell, needed: float, most: float, *, later: bool) -> str:
    """Return shell lines that wait as long as what the disks did needs; ``needed``: with the
    fullest possible buckets, ``most``: the longest pause.

    A bucket holds at most what was added to it. ``stat`` of a disk counts that. What it was at the
    last pause is in a file, which an earlier cell in the guest may have left too.
    """
    buckets: dict[tuple[str, Throttle], list[str]] = {}
    for serial, disk in cell.each_disk:
        key = (disk.throttle.group or serial, disk.throttle)
        buckets.setdefault(key, []).append(guest_path(disk, serial))
    lines = ["" if later else f"rm -f {_COUNTED}.*\n", _MOVED]
    for (_, throttle), paths in buckets.items():
        if throttle.limits():
            lines.append(f"moved {' '.join(paths)}\n")
        for limit in throttle.limits():
            ways = ("read", "write") if limit.direction == "total" else (limit.direction,)
            units = [f"{way}_bytes" for way in ways]
            if limit.unit == "operations":
                more = [f"{one} / {throttle.operation_size}" for one in units]
                units = [f"{way}s" for way in ways] + (more if throttle.operation_size else [])
            lines.append(f"need {limit.average} $(({' + '.join(units)}))\n")
    lines.append(f"[ $rest -le {needed * 1000:.0f} ] || rest={needed * 1000:.0f}\n")
    if most < needed:
        lines.append(
            f"if [ $rest -gt {most * 1000:.0f} ]; then\n"
            f'  unrest "the throttles were idle for {most:.0f} of $((rest / 1000)) seconds"\n'
            f"  rest={most * 1000:.0f}\n"
            "fi\n"
        )
    lines.append("sleep $((rest / 1000)).$(printf %03d $((rest % 1000)))")
    return "".join(lines)


def _flush(cell: Cell, target: str) -> str:
    """Return a shell line that empties the drives' volatile caches, through the array."""
    if cell.filesystem is not None or not target:
        return ""  # `sync` has flushed them
    return f"sync {target} || true\n"


def _pause(cell: Cell, workload: Workload, *, later: bool) -> float:
    """Return seconds until the fullest possible buckets of all disks are empty."""
    throttles = {disk.throttle for disk in cell.disks}
    for fault in before(cell, workload):
        kind = catalog.fault_kind(fault.fault)
        parameters = kind.parameters.model_validate(fault.parameters)
        throttles |= {kind.throttle(parameters, given) for given in throttles}
    return max((drain(throttle, later=later) for throttle in throttles), default=0.0)


def drain(throttle: Throttle, *, later: bool = True) -> float:
    """Return seconds until the fullest possible buckets of a throttle are empty."""
    request = LARGEST if later else AT_CREATION
    return Limits.from_throttle(throttle).drain(request, both=later)
