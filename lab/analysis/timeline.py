"""What happened to an array in a cell with faults, from raw output. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from lab.compile.cell.fault_times import in_order
from lab.model.result.timeline import DiskSpan, DiskState, FaultAt, Timeline, Work
from lab.model.scenario.document import Cell
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.faults._shared import pairs

_LINE: Final = re.compile(r"^\[ *(\d+\.\d+)\] (.*)$", re.MULTILINE)
_BEGUN: Final = re.compile(r"md: ([a-z-]+) of RAID array")
_ENDED: Final = re.compile(r"md: \S+: ([a-z-]+) (done|interrupted)")
_FAILED: Final = re.compile(r"Disk failure on (\w+)")
"""``md.c: md_do_sync``, and the ``error_handler`` of each personality."""
_ACTIONS: Final = {"data-check": "check", "requested-resync": "repair"}
_WRITES: Final = ("recovery", "reshape")
"""Work that brings a disk in sync."""
_MEMBER: Final = re.compile(r"^member (\S+) (\S+) \d+ (\S*)$", re.MULTILINE)
_DISK: Final = re.compile(r"^disk (\S+) (\S+)$", re.MULTILINE)
_SLOT: Final = re.compile(r"([^\s,=]+)\.slot=(\w+)")
LEAD: Final = 0.05
"""Share of the time shown that lies before the first fault."""


class _Seen(NamedTuple):
    """A fault, the boot that it ended in, and what md told after it."""

    at: FaultAt
    boot: int
    began: float
    """Where the guest's part began: after a power cut, in the new boot."""
    cuts: bool
    after: dict[str, DiskState]
    names: dict[str, str]
    """The kernel's name of a disk to its serial."""


def timeline(cell: Cell, raw: Mapping[str, str], made: str) -> Timeline | None:
    """Return what happened in the first trial; ``made``: detail of the check of the new array.

    ``None``: no fault after which md told the state of its members. A power cut of an earlier
    version has no time of its own, and is where the last known time is.
    """
    seen, boots, logs, checks = _read(in_order(cell), raw)
    if not any(state is not DiskState.OFF for one in seen for state in one.after.values()):
        return None
    last = max((t for log in logs for t in log), default=0.0)
    end = max([last, *(one.at.idle for one in seen), *(work.end for work in checks)])
    works = [*_works(logs, [*boots[1:], end])]
    works += [c for c in checks if not any(w.action == c.action and _meet(w, c) for w in works)]
    slots = {disk: slot.isdecimal() for disk, slot in _SLOT.findall(made)}
    disks = tuple(dict.fromkeys([*slots, *(d for one in seen for d in one.after)]))
    states = {
        d: DiskState.GONE if d not in slots else _STATES["in_sync" if slots[d] else "spare"]
        for d in disks
    }
    first = seen[0].at.at - in_order(cell)[0].at
    begin = max(0.0, first - LEAD * (end - first))
    changes = [(begin, disk, state) for disk, state in states.items()]
    for one in seen:
        changes += _changes(one, states, works, logs[one.boot])
        states |= one.after
    return Timeline(
        disks=disks,
        spans=tuple(span for disk in disks for span in _spans(disk, changes, end)),
        works=tuple(sorted(works, key=lambda work: work.begin)),
        faults=tuple(one.at for one in seen),
        boots=tuple(boots),
        begin=begin,
        end=end,
    )


def _read(
    order: Sequence[Fault], raw: Mapping[str, str]
) -> tuple[list[_Seen], list[float], list[dict[float, str]], list[Work]]:
    """Return faults, the beginning of each boot, its kernel messages by time, and md's checks."""
    seen: list[_Seen] = []
    boots, logs, checks = [0.0], [dict[float, str]()], list[Work]()
    serials: dict[str, None] = {}
    for fault in order:
        own = {w: raw.get(f"{fault.name}.1.{w}.txt", "") for w in _FILES}
        said = pairs(own["stdout"])
        if not {"began", "ended"} <= set(said):
            break
        at = None
        if catalog.fault_kind(fault.fault).cuts:
            known = [boots[-1], *logs[-1], *(one.at.idle for one in seen), *(c.end for c in checks)]
            clock = own["at"].split()
            at = boots[-1] + float(clock[0]) if clock else max(known)
            boots.append(at)
            logs.append({})
        start = boots[-1]
        lines = _lines(own["state"], start)
        logs[-1] |= lines
        began, idle = start + float(said["began"]), start + float(said["ended"])
        marks = [t for t, words in lines.items() if words == f"lab: fault {fault.name}.1"]
        if (check := pairs(own["check"])).get("ended"):
            span = {key: start + float(check[key]) for key in ("began", "ended")}
            checks.append(Work(action="check", begin=span["began"], end=span["ended"]))
        names = {name: serial for serial, name in _DISK.findall(own["before"] + own["after"])}
        serials |= dict.fromkeys(names.values())
        members = {
            names.get(name, name): DiskState.REBUILDING
            if state == "spare" and slot.isdecimal()
            else _state(state)
            for name, slot, state in _MEMBER.findall(own["state"])
        }
        missing = DiskState.GONE if members else DiskState.OFF
        seen.append(
            _Seen(
                at=FaultAt(
                    name=fault.name,
                    fault=fault.fault,
                    at=min([began, *marks]) if at is None else at,
                    idle=idle,
                ),
                boot=len(boots) - 1,
                began=began,
                cuts=at is not None,
                after=dict.fromkeys(serials, missing) | members,
                names=names,
            )
        )
    if seen:
        begun = min(logs[-1], default=seen[-1].at.at)
        logs[-1] |= {
            t: w for t, w in _lines(raw.get("end.txt", ""), boots[-1]).items() if t >= begun
        }
    return seen, boots, logs, checks


_FILES: Final = ("stdout", "state", "check", "at", "before", "after")
_STATES: Final = {
    "faulty": DiskState.FAULTY,
    "in_sync": DiskState.IN_SYNC,
    "journal": DiskState.IN_SYNC,
    "spare": DiskState.SPARE,
}


def _state(words: str) -> DiskState:
    """Return a member's state from ``md/dev-*/state``, of which the gravest word counts."""
    return next((s for word, s in _STATES.items() if word in words.split(",")), DiskState.SPARE)


def _lines(text: str, start: float) -> dict[float, str]:
    return {start + float(t): words for t, words in _LINE.findall(text)}


def _works(logs: Sequence[Mapping[float, str]], ends: Sequence[float]) -> Iterator[Work]:
    """Yield what md did in each boot; what has no end was cut off with the boot."""
    for log, last in zip(logs, ends, strict=True):
        open_: dict[str, float] = {}
        for at, words in sorted(log.items()):
            if begun := _BEGUN.match(words):
                open_[begun[1]] = at
            elif (ended := _ENDED.match(words)) and ended[1] in open_:
                begin = open_.pop(ended[1])
                yield Work(
                    action=_ACTIONS.get(ended[1], ended[1]),
                    begin=begin,
                    end=at,
                    ended=ended[2] == "done",
                )
        for action, begin in open_.items():
            yield Work(action=_ACTIONS.get(action, action), begin=begin, end=last, ended=False)


def _meet(one: Work, other: Work) -> bool:
    return one.begin <= other.end and other.begin <= one.end


def _changes(
    one: _Seen,
    states: Mapping[str, DiskState],
    works: Sequence[Work],
    log: Mapping[float, str],
) -> Iterator[tuple[float, str, DiskState]]:
    """Yield when each disk changed its state, between two that md told."""
    at, start = one.at.at, one.began if one.cuts else one.at.at
    own = [w for w in works if w.action in _WRITES and at <= w.begin <= one.at.idle]
    for disk, after in one.after.items():
        before = states.get(disk, DiskState.GONE)
        if one.cuts:
            yield at, disk, DiskState.OFF
        failed = [
            t
            for t, words in sorted(log.items())
            if (m := _FAILED.search(words))
            and one.names.get(m[1]) == disk
            and at <= t <= one.at.idle
        ]
        if failed:
            yield failed[0], disk, DiskState.FAULTY
        if after is DiskState.IN_SYNC and own and (failed or before is not after):
            yield start, disk, DiskState.SPARE if one.cuts else before
            yield own[0].begin, disk, DiskState.REBUILDING
            yield own[-1].end, disk, after
        elif after is DiskState.FAULTY and not failed and own and before is not after:
            yield start, disk, before
            yield own[-1].end, disk, after  # md fails a disk when its replacement is in sync
        elif one.cuts or before is not after:
            yield max([start, *failed]), disk, after


def _spans(
    disk: str, changes: Sequence[tuple[float, str, DiskState]], end: float
) -> Iterator[DiskSpan]:
    own = sorted(((t, state) for t, name, state in changes if name == disk), key=lambda c: c[0])
    merged: list[tuple[float, DiskState]] = []
    for t, state in own:
        if not merged or merged[-1][1] is not state:
            merged.append((t, state))
    for (begin, state), (until, _) in pairwise([*merged, (end, DiskState.OFF)]):
        if until > begin:
            yield DiskSpan(disk=disk, state=state, begin=begin, end=until)
