"""CPU slots limit how many guests compute at a time, so that timed steps of others get CPU at once.

A guest that is restored, gets its disks or builds its array uses a whole CPU for seconds. A
throttled guest in a timed step needs a tenth of a CPU, but without delay. So guests are set up in
slots, one for each CPU but one, and at low priority. A guest that a person waits for is not: on a
busy host low priority starves it (3 s of CPU in 226 s beside eight busy processes). A slot is a
locked file, and the kernel releases the lock when its holder ends. After :data:`PATIENCE` a guest
continues without a slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from pathlib import Path
from typing import IO, Final

from typing_extensions import override

from lab.host.system import accelerator, clock, paths

PATIENCE: Final = 60.0
"""Seconds after which a guest continues without a slot."""
LOW: Final = 15
"""Niceness of a guest in a slot. Its scheduling weight is 36; a guest in a timed step has 1024
(``kernel/sched/core.c: sched_prio_to_weight``)."""
_NORMAL: Final = os.getpriority(os.PRIO_PROCESS, 0)
"""Niceness that this process was started with."""
_GLANCE: Final = 0.05


def at_once() -> int:
    """Return the number of slots."""
    return max(1, accelerator.cpus() - (0 if _may_raise() else 1))


class CpuSlot:
    """One guest's slot, acquired and released repeatedly."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._covered = 0

    def acquire(self, pid: int = 0) -> None:
        """Wait for a slot, unless it has one. ``pid``: the guest's QEMU, if it runs."""
        if self._file is not None:
            self.cover(pid)
            return
        self._covered = pid
        _prefer(pid, low=True)
        countdown = clock.Countdown(clock.limit(PATIENCE))
        while countdown.left() > 0:
            self._file = _free()
            if self._file is not None:
                break
            clock.pause(_GLANCE)

    def cover(self, pid: int) -> None:
        """Lower the priority of a QEMU that was started later; 0: its id is not known yet.

        QEMU has its own session, and so a scheduling group with full weight.
        """
        if pid and pid != self._covered:
            self._covered = pid
            _prefer(pid, low=True)

    def release(self, pid: int = 0) -> None:
        """Release the slot, and run at the priority again that the process was started with."""
        if self._file is not None:
            self._file.close()
            self._file = None
        _prefer(pid, low=False)


class Foreground(CpuSlot):
    """For a guest that a person waits for: it waits for no slot and has normal priority."""

    @override
    def acquire(self, pid: int = 0) -> None:
        pass

    @override
    def cover(self, pid: int) -> None:
        pass


def never(pid: int) -> None:
    """Restore the priority of a disk's server that was started while a slot was held."""
    _prefer_tasks(pid, _NORMAL)


def _may_raise() -> bool:
    """Return whether this user may lower a niceness again (``setpriority(2)``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return os.geteuid() == 0 or soft >= 20


def _prefer(pid: int, *, low: bool) -> None:
    """Set the niceness of this process and of the guest's QEMU, and of their sessions.

    A session begins with niceness 0, whatever its first process has (``sched(7)``).
    """
    own = os.getpid()
    for process in {own, pid or own}:
        _prefer_session(process, LOW if low else 0)
        _prefer_tasks(process, max(LOW, _NORMAL) if low else _NORMAL)


def _prefer_tasks(pid: int, niceness: int) -> None:
    if _may_raise():
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)


def _prefer_session(pid: int, niceness: int) -> None:
    """Set the niceness of a process's autogroup, if the kernel has autogroups (``sched(7)``).

    With autogroups each session has the same weight, and a thread's niceness counts within its
    session only. A worker and QEMU have their own sessions; the user's session is not changed.
    Users other than root may do this ten times a second in total.
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
    """Return a locked file; ``None``: all are held. If no file can be created, no guest waits."""
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
