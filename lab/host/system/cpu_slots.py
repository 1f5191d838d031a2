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
import os
import resource
from pathlib import Path
from typing import IO, Final

from lab.host.system import accelerator, clock, paths

PATIENCE: Final = 60.0
"""Seconds after which a guest goes on without a turn."""
LOW: Final = 15
"""Niceness of a guest that computes: it weighs 36 against the 1024 of one that measures
(``kernel/sched/core.c: sched_prio_to_weight``)."""
_GLANCE: Final = 0.05


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
    directory = paths.host() / "cpu-slots"
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
