"""Turns at the host's processors: few guests compute at a time, so that those that measure can.

Those that measure wait for each other too: a timed step begins when what it takes of the processors
fits beside what others take at that moment. Until then its guest rests, and takes none.

A guest that is restored, gets its disks or builds its array takes all of a processor for seconds;
a throttled guest in a timed step needs a tenth of one, but at once. So computing goes in turns, one
for each processor of the host but one. A turn is a locked file: it is given back when its holder
ends, however it ends. It is a courtesy: who has waited too long goes ahead without one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import IO, Final, TypedDict

from lab.host.system import accelerator, clock, locks, paths
from lab.host.system.pids import is_stopped, started_ticks

PATIENCE: Final = 60.0
"""Seconds after which a guest goes on without a turn."""
LOW: Final = 15
"""Niceness of a guest that computes: it weighs 36 against the 1024 of one that measures
(``kernel/sched/core.c: sched_prio_to_weight``)."""
SMALL: Final = 0.5
"""Of what the step takes that has waited longest: one that takes no more may pass it, since what it
leaves will seldom be what the other one lacks."""
OVERTAKEN: Final = 20.0
"""Seconds after which a step that waits is passed by no other."""
LONGEST: Final = 3600.0
"""Seconds after which a step begins though there is no room for it: its figures may be contended,
which is found and has the cell repeated."""
LEDGER: Final = 5.0
"""Seconds for which another process may hold the list of steps, which takes it a millisecond."""
_GLANCE: Final = 0.02


def at_once() -> int:
    """How many guests may compute side by side."""
    return max(1, accelerator.cpus() - (0 if _may_raise() else 1))


class CpuSlot:
    """One guest's turn, taken and given back again and again."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._covered = 0

    def take(self, pid: int = 0) -> None:
        """Wait for a turn, if it is not had already. ``pid``: the guest's QEMU, if it runs."""
        if self._file is not None:
            self.cover(pid)
            return
        self._covered = pid
        _prefer(pid, LOW)
        countdown = clock.Countdown(clock.limit(PATIENCE))
        while countdown.left() > 0:
            self._file = _free()
            if self._file is not None:
                break
            clock.pause(_GLANCE)

    def cover(self, pid: int) -> None:
        """A QEMU that was started during the turn, by its number as soon as that is known.

        It has begun a session of its own, and so a group that weighs as much as any other.
        """
        if pid and pid != self._covered:
            self._covered = pid
            _prefer(pid, LOW)

    def give(self, pid: int = 0) -> None:
        """Let the next one have it, and be served before those that compute."""
        if self._file is not None:
            self._file.close()
            self._file = None
        _prefer(pid, 0)


class _Entry(TypedDict):
    """A step that is under way, or waits until it may be; in the order in which they came."""

    token: str
    pid: int
    started: int
    """Start of that process, in clock ticks: one that has gone left its entry behind."""
    came: float
    """When, by the clock that all processes of a host share."""
    cores: float
    under_way: bool


class CpuShare:
    """What a timed step takes of the processors, for as long as it lasts."""

    def __init__(self) -> None:
        self._token = ""

    def take(self, cores: float, room: float, waits: Callable[[], object] = lambda: None) -> None:
        """Wait until ``cores`` processors fit into ``room`` beside those that others have taken.

        First come, first served, but that a small step passes a large one for a while; alone, any
        step may begin, and so may one that has waited for :data:`LONGEST`. ``room`` 0: there is no
        limit. ``waits`` is called once if it has to wait.
        """
        if not room or self._token:
            return
        self._token = token_hex(8)
        if _admitted(self._token, cores, room):
            return
        waits()
        countdown = clock.Countdown(clock.limit(LONGEST))
        while not _admitted(self._token, cores, room) and countdown.left() > 0:
            clock.pause(_GLANCE)

    def give(self) -> None:
        """The step is over."""
        if self._token:
            with _ledger() as entries:
                entries[:] = [e for e in entries if e["token"] != self._token]
            self._token = ""


def _admitted(token: str, cores: float, room: float) -> bool:
    with _ledger() as entries:
        if all(e["token"] != token for e in entries):
            pid = os.getpid()
            entry = _Entry(
                token=token,
                pid=pid,
                started=started_ticks(pid),
                came=clock.now(),
                cores=cores,
                under_way=False,
            )
            entries.append(entry)
        own = next(e for e in entries if e["token"] == token)
        first = next(e for e in entries if not e["under_way"])
        taken = [e["cores"] for e in entries if e["under_way"]]
        if taken and sum(taken) + cores > room:
            return False
        if first is not own and (
            cores > SMALL * first["cores"] or clock.now() - first["came"] > OVERTAKEN
        ):
            return False
        own["under_way"] = True
        return True


@contextlib.contextmanager
def _ledger() -> Iterator[list[_Entry]]:
    """The steps of this user's labs on this host, locked, without those whose process has gone.

    What cannot be read is no reason to wait, and neither is what cannot be written or locked.
    Steps of stopped processes are left out too: nobody knows when they go on.
    """
    entries: list[_Entry] = []
    try:
        path = paths.host() / "turns" / "timed.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError:
        yield entries
        return
    with file:
        try:
            locks.take(file.fileno(), path, seconds=LEDGER, what="the CPU slots", glance=0.002)
        except locks.LockedError:
            yield entries
            return
        file.seek(0)
        text = file.read()
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entries = [e for e in json.loads(text) if _runs(e)]
        yield entries
        if (now := json.dumps(entries)) != text:
            with contextlib.suppress(OSError):
                file.truncate(0)
                file.write(now)
                file.flush()


def _runs(entry: _Entry) -> bool:
    pid = entry["pid"]
    return started_ticks(pid) == entry["started"] and not is_stopped(pid)


def never(pid: int) -> None:
    """A process that was started during a turn, and whose own work is not computing: a disk."""
    _prefer_tasks(pid, 0)


def _may_raise() -> bool:
    """Whether a process of this user may become more urgent again (``setpriority(2)``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return os.geteuid() == 0 or soft >= 20


def _prefer(pid: int, niceness: int) -> None:
    """Set the niceness of this process and of the guest's QEMU."""
    own = os.getpid()
    for process in {own, pid or own}:
        _prefer_session(process, niceness)
        _prefer_tasks(process, niceness)


def _prefer_tasks(pid: int, niceness: int) -> None:
    if _may_raise():
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)


def _prefer_session(pid: int, niceness: int) -> None:
    """Set the niceness of a process' autogroup, where the kernel has such groups (``sched(7)``).

    There each session weighs as much as any other, and a thread's niceness counts within its own
    alone. A worker has a session of its own, and so has QEMU; whoever started the lab shares his.
    Users other than root may do it ten times a second, all of them together.
    """
    with contextlib.suppress(OSError):
        if os.getsid(pid) == os.getsid(os.getppid()):
            return
        for _ in range(10):
            try:
                Path(f"/proc/{pid}/autogroup").write_text(f"{niceness}\n", encoding="ascii")
            except BlockingIOError:
                clock.pause(_GLANCE)
            else:
                return


def _free() -> IO[bytes] | None:
    """A locked file, if one is free; also where none can be made, so that nobody waits in vain."""
    directory = paths.host() / "turns"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(at_once()):
            file = (directory / str(number)).open("ab")
            os.set_inheritable(file.fileno(), False)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return file
    except OSError:
        return Path(os.devnull).open("ab")
    return None
