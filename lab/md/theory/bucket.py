"""QEMU's leaky buckets, request by request: what one throttled disk admits, and when.

Source of every rule: QEMU ``util/throttle.c`` (``throttle_leak_bucket``,
``throttle_compute_wait``, ``throttle_compute_wait_for``, ``throttle_account``) and
``block/throttle-groups.c`` (``throttle_group_co_io_limits_intercept``,
``schedule_next_request``). A bucket leaks at the average rate. A request waits until the level is
back at the bucket's size, and only then pours its whole size in: it is never split, and it pays
for those before it. So a disk that has rested gives away, once, a bucket (a tenth of a second's
worth where no maximum is set) and one request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from lab.model.scenario.document import Throttle

BURST_SECONDS = 0.1
"""Bucket size in seconds of the average where no maximum is set (``throttle_compute_wait``)."""


class Direction(StrEnum):
    """Which way data goes."""

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
    """Rate while a burst lasts; ``None``: not set, and the burst is a tenth of a second."""
    burst_seconds: int = 1
    """How long a burst at ``maximum`` may last."""

    @property
    def name(self) -> str:
        """The scenario's name of the limit: ``total_bytes_per_second``."""
        return f"{self.scope}_{self.unit}_per_second"

    @property
    def size(self) -> float:
        """Level up to which a request is admitted at once (``throttle_compute_wait``)."""
        if self.maximum is None:
            return self.average * BURST_SECONDS
        return self.maximum * self.burst_seconds

    def counts(self, direction: Direction) -> bool:
        """Whether a request of this direction pours into this bucket."""
        return self.scope is Scope.TOTAL or self.scope.value == direction.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits of one disk, or of the group of disks that share them."""

    limits: tuple[Limit, ...] = ()
    operation_size: int | None = None
    """Bytes; a larger request counts as ``size / operation_size`` operations, a fraction too."""

    @classmethod
    def from_throttle(cls, throttle: Throttle) -> Limits:
        """The limits that a scenario's ``disks.throttle`` sets."""
        found = []
        for unit in Unit:
            for scope in Scope:
                name = f"{scope}_{unit}_per_second"
                average = getattr(throttle, name)
                if average:
                    found.append(
                        Limit(
                            scope=scope,
                            unit=unit,
                            average=average,
                            maximum=getattr(throttle, f"{name}_max") or None,
                            burst_seconds=getattr(throttle, f"{name}_max_seconds") or 1,
                        )
                    )
        return cls(limits=tuple(found), operation_size=throttle.operation_size)

    def limited(self, direction: Direction) -> bool:
        """Whether any limit counts requests of this direction."""
        return any(limit.counts(direction) for limit in self.limits)

    def amount(self, limit: Limit, size: int) -> float:
        """What one request of ``size`` bytes pours into a bucket (``throttle_account``)."""
        if limit.unit is Unit.BYTES:
            return size
        if self.operation_size and size > self.operation_size:
            return size / self.operation_size
        return 1.0


class Meter:
    """The state of one disk's buckets; times are seconds from an origin of the caller's choice.

    Requests of both directions are admitted in order of arrival. QEMU keeps a queue for each
    direction, so a read may overtake a waiting write: the sum that leaks is the same.
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
        """When the last request was admitted; all levels are as of then."""
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
        """What has been poured into each bucket altogether."""
        self._of = {
            direction: [i for i, limit in enumerate(limits.limits) if limit.counts(direction)]
            for direction in Direction
        }

    def admit(self, now: float, direction: Direction, size: int) -> float:
        """Time at which a request that arrives ``now`` is let through; it then costs nothing."""
        start = now if now > self.last else self.last
        wait = self.wait(start, direction)
        if wait:
            start += wait
            self._leak(start)
        self.pour(direction, size)
        return start

    def wait(self, now: float, direction: Direction) -> float:
        """Seconds until the next request of a direction may pass (``throttle_compute_wait``)."""
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
        """Count a request that passes, as of the last ``wait`` (``throttle_account``)."""
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
        """The state as of ``now``, in millionths of each bucket: equal states behave equally.

        ``now`` lies at or after the last admission.
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
        """Move the clock on, through work that leaves the levels as they are."""
        self.last += seconds
        self.used = [before + more for before, more in zip(self.used, used, strict=True)]

    @property
    def idle_bound(self) -> tuple[float, Limit | None]:
        """Seconds that the work so far needs at the average rates, and the limit that says so.

        A bucketful is free; the request that came last is not taken off.
        """
        bound: tuple[float, Limit | None] = (0.0, None)
        for i, limit in enumerate(self.limits.limits):
            seconds = (self.used[i] - self._sizes[i]) / limit.average
            if seconds > bound[0]:
                bound = (seconds, limit)
        return bound


def elapsed(limits: Limits, direction: Direction, sizes: Iterable[int]) -> float:
    """Seconds from the first request to the last one's end, each sent when the one before ended."""
    meter = Meter(limits)
    now = 0.0
    for size in sizes:
        now = meter.admit(now, direction, size)
    return now
