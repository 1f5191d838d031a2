"""The time that a guest got: wall-clock time without what its QEMU waited for a CPU of the host.

A limit in this time means the same on an idle and on a busy host. A guest that hangs is found after
the limit's seconds, since it waits for no CPU. A QEMU that gets no CPU at all is found at
:data:`CEILING` times the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lab.host.system import clock, load

CEILING: Final = 8.0
"""Most wall-clock time for a limit, as a multiple of it: the time that a guest got advances at
least so slowly. A guest beside eight busy processes of one session gets a fifth of two CPUs."""
TELLS: Final = 30.0
"""Seconds after which a guest that waits for the host's CPU is first told."""
AGAIN: Final = 60.0
"""Seconds between two such messages."""
STARVED: Final = 0.25
"""Share of these seconds, spent waiting for a CPU, that is worth a message. A guest beside eight
busy sessions that waited for 40 % needed 108 s to boot instead of 27."""


class FairTime:
    """Seconds on a clock that stands still while the guest's QEMU waits for a CPU."""

    def __init__(
        self, pid: Callable[[], int], tell: Callable[[str], object] = lambda _text: None
    ) -> None:
        self._pid, self._tell = pid, tell
        self._of = 0
        self._waits: dict[int, float] = {}
        self._looked = self._told = clock.now()
        self._owed = self._waited = 0.0
        self._tells, self._ran = TELLS, 0.0
        self._now = self._looked

    def now(self) -> float:
        """Return the time; call it at least every second or so while a limit is watched."""
        moment = clock.now()
        passed, self._looked = moment - self._looked, moment
        # The kernel adds a wait at its end, so it may be longer than the time since the last look.
        self._owed += self._waited_since()
        stands = min(self._owed, passed * (1 - 1 / CEILING))
        self._owed -= stands
        self._waited += stands
        self._now += passed - stands
        if moment - self._told >= self._tells:
            ran = load.processor(self._pid())
            if self._waited > STARVED * (moment - self._told):
                self._tell(self._sentence(moment - self._told, ran - self._ran))
                self._tells = AGAIN
            self._told, self._waited, self._ran = moment, 0.0, ran
        return self._now

    def _waited_since(self) -> float:
        """Return the longest wait of a thread since the last call."""
        pid = self._pid()
        waits = load.waits(pid) if pid else {}
        known, self._waits = self._waits, waits
        if pid != self._of:
            self._of, self._ran = pid, load.processor(pid)
            return 0.0
        return max((wait - known.get(task, 0.0) for task, wait in waits.items()), default=0.0)

    def _sentence(self, seconds: float, ran: float) -> str:
        return (
            f"waiting for the host's CPU: in the last {seconds:.0f} s this guest got {ran:.0f} s of"
            f" CPU, and waited for {self._waited:.0f} s. {load.demand()}; the guest's limits count"
            " the time that it got"
        )
