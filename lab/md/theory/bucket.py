"""QEMU's leaky buckets, request by request: admission times of one throttled disk.

Source of every rule: QEMU ``util/throttle.c`` (``throttle_leak_bucket``,
``throttle_compute_wait``, ``throttle_compute_wait_for``, ``throttle_account``) and
``block/throttle-groups.c`` (``throttle_group_co_io_limits_intercept``,
``schedule_next_request``). A bucket leaks at the average rate. A request waits until the level is
at most the bucket's size, and then adds its whole size: it is never split, and it waits for earlier
requests' excess. So an idle disk has an initial burst, once: a bucket (0.1 s at the average rate if
no maximum is set) and one request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lab.model.scenario.document import Throttle

BURST_SECONDS = 0.1
"""Bucket size, in seconds at the average rate, if no maximum is set (``throttle_compute_wait``)."""


class Direction(StrEnum):
    """Direction of data."""

    READ = "read"
    WRITE = "write"


class Scope(StrEnum):
    """Which requests a limit counts."""

    TOTAL = "total"
    READ = "read"
    WRITE = "write"


class Unit(StrEnum):
    """What a limit counts."""

    BYTES = "bytes"
    OPERATIONS = "operations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One leaky bucket: QEMU's ``LeakyBucket`` without its state."""

    scope: Scope
    unit: Unit
    average: float
    """Bytes or operations per second that leak out."""
    maximum: float | None = None
    """Rate during a burst; ``None``: not set, and the bucket is 0.1 s at the average rate."""
    burst_seconds: int = 1
    """Longest burst at ``maximum``."""

    @property
    def name(self) -> str:
        """The scenario's name of the limit: ``total_bytes_per_second``."""
        return f"{self.scope}_{self.unit}_per_second"

    @property
    def size(self) -> float:
        """Highest level at which a request is admitted at once (``throttle_compute_wait``)."""
        if self.maximum is None:
            return self.average * BURST_SECONDS
        return self.maximum * self.burst_seconds

    def counts(self, direction: Direction) -> bool:
        """Return whether a request of this direction adds to this bucket."""
        return self.scope is Scope.TOTAL or self.scope.value == direction.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits of one disk, or of a group of disks that share them."""

    limits: tuple[Limit, ...] = ()
    operation_size: int | None = None
    """Bytes; a larger request counts as ``size / operation_size`` operations, including
    fractions."""

    @classmethod
    def from_throttle(cls, throttle: Throttle) -> Limits:
        """Return the limits that a scenario's ``disks.throttle`` sets."""
        found = (
            Limit(
                scope=Scope(limit.direction),
                unit=Unit(limit.unit),
                average=limit.average,
                maximum=limit.burst,
                burst_seconds=limit.seconds or 1,
            )
            for limit in throttle.limits()
        )
        return cls(limits=tuple(found), operation_size=throttle.operation_size)

    def drain(self, request: int, *, both: bool = True) -> float:
        """Return seconds in which the fullest possible buckets become empty.

        A request of ``request`` bytes is admitted while a bucket is at its size, and adds all of
        its own. Reads and writes wait in two queues (``block/throttle-groups.c``), so a total can
        be exceeded by one request of each, if ``both`` are made. The disks of a group have the same
        two queues. The second bucket of a long burst leaks faster, so it is empty by then.
        """
        return max(
            (
                (limit.size + (1 + (both and limit.scope is Scope.TOTAL)) * more) / limit.average
                for limit in self.limits
                for more in (self.amount(limit, request),)
            ),
            default=0.0,
        )

    def limited(self, direction: Direction) -> bool:
        """Return whether any limit counts requests of this direction."""
        return any(limit.counts(direction) for limit in self.limits)

    def amount(self, limit: Limit, size: int) -> float:
        """Return what one request of ``size`` bytes adds to a bucket (``throttle_account``)."""
        if limit.unit is Unit.BYTES:
            return size
        if self.operation_size and size > self.operation_size:
            return size / self.operation_size
        return 1.0


class Meter:
    """The state of one disk's buckets; times are seconds from an origin that the caller chooses.

    Requests of both directions are admitted in order of arrival. QEMU has a queue for each
    direction, so a read may overtake a waiting write. The sum that leaks is the same.
    """

    __slots__ = (
        "_average",
        "_burst_levels",
        "_burst_rates",
        "_levels",
        "_maximum",
        "_of",
        "_sizes",
        "last",
        "limits",
        "used",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.last = 0.0
        """Time of the last admission; all levels are as of then."""
        self._average = [limit.average for limit in limits.limits]
        self._sizes = [limit.size for limit in limits.limits]
        self._maximum = [limit.maximum or 0.0 for limit in limits.limits]
        self._burst_rates = [
            limit.maximum if limit.maximum and limit.burst_seconds > 1 else 0.0
            for limit in limits.limits
        ]
        self._levels = [0.0] * len(limits.limits)
        self._burst_levels = [0.0] * len(limits.limits)
        self.used = [0.0] * len(limits.limits)
        """Total amount added to each bucket."""
        self._of = {
            direction: [i for i, limit in enumerate(limits.limits) if limit.counts(direction)]
            for direction in Direction
        }

    def admit(self, now: float, direction: Direction, size: int) -> float:
        """Return the admission time of a request that arrives ``now``; service takes no time."""
        start = now if now > self.last else self.last
        wait = self.wait(start, direction)
        if wait:
            start += wait
            self._leak(start)
        self.pour(direction, size)
        return start

    def wait(self, now: float, direction: Direction) -> float:
        """Return seconds until the next request of a direction may pass
        (``throttle_compute_wait``)."""
        self._leak(now)
        wait = 0.0
        for i in self._of[direction]:
            extra = self._levels[i] - self._sizes[i]
            if extra > 0:
                wait = max(wait, extra / self._average[i])
            elif self._burst_rates[i]:
                extra = self._burst_levels[i] - self._maximum[i] * BURST_SECONDS
                if extra > 0:
                    wait = max(wait, extra / self._burst_rates[i])
        return wait

    def pour(self, direction: Direction, size: int) -> None:
        """Add a request that passes, at the time of the last ``wait`` (``throttle_account``)."""
        for i in self._of[direction]:
            amount = self.limits.amount(self.limits.limits[i], size)
            self.used[i] += amount
            self._levels[i] += amount
            if self._burst_rates[i]:
                self._burst_levels[i] += amount

    def _leak(self, now: float) -> None:
        passed = now - self.last
        if passed <= 0:
            return
        self.last = now
        for i, level in enumerate(self._levels):
            left = level - self._average[i] * passed
            self._levels[i] = left if left > 0 else 0.0
            if self._burst_rates[i]:
                self._burst_levels[i] = max(
                    self._burst_levels[i] - self._burst_rates[i] * passed, 0.0
                )

    def signature(self, now: float) -> tuple[int, ...]:
        """Return the state at ``now``, in millionths of each bucket: equal states behave equally.

        ``now`` is not before the last admission.
        """
        passed = now - self.last
        state = []
        for i, level in enumerate(self._levels):
            scale = 1e6 / self._average[i]
            state.append(round(max(level - self._average[i] * passed, 0.0) * scale))
            if self._burst_rates[i]:
                level = self._burst_levels[i] - self._burst_rates[i] * passed
                state.append(round(max(level, 0.0) * scale))
        return tuple(state)

    def skip(self, seconds: float, used: Iterable[float]) -> None:
        """Advance the clock over work that leaves the levels as they are."""
        self.last += seconds
        self.used = [before + more for before, more in zip(self.used, used, strict=True)]

    @property
    def bursts(self) -> list[float]:
        """How full the buckets of each burst that was set are: from 1 on, requests wait."""
        return [
            level / size
            for maximum, level, size in zip(self._maximum, self._levels, self._sizes, strict=True)
            if maximum
        ]

    @property
    def idle_bound(self) -> tuple[float, Limit | None]:
        """Return the seconds that the work so far needs at the average rates, and the deciding
        limit.

        The initial burst is free. The final request is included.
        """
        bound: tuple[float, Limit | None] = (0.0, None)
        for i, limit in enumerate(self.limits.limits):
            seconds = (self.used[i] - self._sizes[i]) / limit.average
            if seconds > bound[0]:
                bound = (seconds, limit)
        return bound


def elapsed(limits: Limits, direction: Direction, sizes: Iterable[int]) -> float:
    """Return seconds from the first request to the end of the last, sent one at a time."""
    meter = Meter(limits)
    now = 0.0
    for size in sizes:
        now = meter.admit(now, direction, size)
    return now
