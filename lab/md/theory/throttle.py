"""Throttle admission: one throttled disk's queues and timers, as events.

Source: QEMU ``block/throttle-groups.c`` (``throttle_group_co_io_limits_intercept``,
``schedule_next_request``, ``timer_cb``). Reads and writes wait in separate queues,
each with a timer for its first request. When the timer fires, that request passes regardless of
what has passed in the meantime: a bucket may overflow by one request of each direction, and the
next requests wait longer.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any, Protocol

from lab.md.theory.bucket import Direction, Meter

Operation = Any
"""The caller's object, returned when it has passed."""


class Timed(Protocol):
    """An object that a timer calls."""

    def fire(self, what: Any) -> None:
        """Handle a due event."""


class EventQueue:
    """Timers in order of time, and the operations that have passed."""

    __slots__ = ("_number", "_timers", "now", "passed")

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since all buckets were empty."""
        self.passed: deque[Operation] = deque()
        """Finished operations; the host takes no time."""
        self._timers: list[tuple[float, int, Timed, Any]] = []
        self._number = 0

    def set(self, time: float, whose: Timed, what: Any) -> None:
        """Call ``whose.fire(what)`` at a time."""
        self._number += 1
        heappush(self._timers, (time, self._number, whose, what))

    def next(self, end: float) -> bool:
        """Fire the next timer; return ``False`` if there is none before ``end``."""
        if not self._timers or self._timers[0][0] >= end:
            if self._timers:
                self.now = end
            return False
        self.now, _, whose, what = heappop(self._timers)
        whose.fire(what)
        return True


class Throttle:
    """The throttle of one disk or of a group of disks."""

    __slots__ = ("_armed", "_events", "_waiting", "meter")

    def __init__(self, meter: Meter, events: EventQueue) -> None:
        self.meter = meter
        self._events = events
        self._waiting: dict[Direction, deque[tuple[int, Operation]]] = {
            direction: deque() for direction in Direction
        }
        self._armed = dict.fromkeys(Direction, False)

    def arrive(
        self,
        direction: Direction,
        size: int,
        operation: Operation,
        offset: int = 0,  # noqa: ARG002
    ) -> None:
        """Admit a request now, or queue it behind the others of its direction.

        Its ``offset`` does not matter here; a drive has the same method.
        """
        if self._armed[direction]:
            self._waiting[direction].append((size, operation))
            return
        wait = self.meter.wait(self._events.now, direction)
        if wait > 0:
            self._arm(direction, wait)
            self._waiting[direction].append((size, operation))
            return
        self.meter.pour(direction, size)
        self._events.passed.append(operation)

    def fire(self, what: Direction) -> None:
        """Admit the first request of a direction's queue, and later ones that may pass."""
        direction = what
        self._armed[direction] = False
        waiting, wait = self._waiting[direction], 0.0
        self.meter.wait(self._events.now, direction)
        while waiting and wait <= 0:
            size, operation = waiting.popleft()
            self.meter.pour(direction, size)
            self._events.passed.append(operation)
            wait = self.meter.wait(self._events.now, direction)
        if waiting:
            self._arm(direction, wait)

    def _arm(self, direction: Direction, wait: float) -> None:
        self._armed[direction] = True
        self._events.set(self._events.now + wait, self, direction)
