"""One throttled disk among many requests: QEMU's two queues and their timers, as events.

Source: QEMU ``block/throttle-groups.c`` (``throttle_group_co_io_limits_intercept``,
``schedule_next_request``, ``timer_cb``). Reads and writes wait in queues of their own, each with a
timer that is set to when its first may pass. When it fires, that request passes whatever has
been let through meanwhile: a bucket may be over full by one request of each direction, which those
behind it pay for.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any

from lab.md.theory.bucket import Direction, Meter

Operation = Any
"""Whatever the caller wants back when it has passed."""


class EventQueue:
    """What happens when: timers in order of time, and the operations that passed."""

    __slots__ = ("_number", "_timers", "now", "passed")

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since all buckets were empty."""
        self.passed: deque[Operation] = deque()
        """Operations that are done; the host is taken to be infinitely fast."""
        self._timers: list[tuple[float, int, Throttle, Direction]] = []
        self._number = 0

    def set(self, time: float, gate: Throttle, direction: Direction) -> None:
        """Set a gate's timer."""
        self._number += 1
        heappush(self._timers, (time, self._number, gate, direction))

    def next(self, end: float) -> bool:
        """Let the next timer fire; ``False`` where there is none before the end."""
        if not self._timers or self._timers[0][0] >= end:
            if self._timers:
                self.now = end
            return False
        self.now, _, gate, direction = heappop(self._timers)
        gate.fire(direction)
        return True


class Throttle:
    """A disk's throttle, or that of several disks in one group."""

    __slots__ = ("_agenda", "_armed", "_waiting", "meter")

    def __init__(self, meter: Meter, agenda: EventQueue) -> None:
        self.meter = meter
        self._agenda = agenda
        self._waiting: dict[Direction, deque[tuple[int, Operation]]] = {
            direction: deque() for direction in Direction
        }
        self._armed = dict.fromkeys(Direction, False)

    def arrive(self, direction: Direction, size: int, operation: Operation) -> None:
        """A request comes; it passes at once, or waits behind the others of its direction."""
        if self._armed[direction]:
            self._waiting[direction].append((size, operation))
            return
        wait = self.meter.wait(self._agenda.now, direction)
        if wait > 0:
            self._arm(direction, wait)
            self._waiting[direction].append((size, operation))
            return
        self.meter.pour(direction, size)
        self._agenda.passed.append(operation)

    def fire(self, direction: Direction) -> None:
        """The first in the queue passes, and all behind it that may."""
        self._armed[direction] = False
        waiting, wait = self._waiting[direction], 0.0
        self.meter.wait(self._agenda.now, direction)
        while waiting and wait <= 0:
            size, operation = waiting.popleft()
            self.meter.pour(direction, size)
            self._agenda.passed.append(operation)
            wait = self.meter.wait(self._agenda.now, direction)
        if waiting:
            self._arm(direction, wait)

    def _arm(self, direction: Direction, wait: float) -> None:
        self._armed[direction] = True
        self._agenda.set(self._agenda.now + wait, self, direction)
