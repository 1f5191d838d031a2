"""QEMU's bucket: the initial burst, and its upper limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.md.theory.bucket import Direction, Limit, Limits, Meter, Scope, Unit, elapsed
from lab.model.scenario.document import Throttle

MIB = 1024**2
READ, WRITE = Direction.READ, Direction.WRITE


def bytes_per_second(
    rate: float, *, maximum: float | None = None, burst_seconds: int = 1
) -> Limits:
    limit = Limit(
        scope=Scope.TOTAL,
        unit=Unit.BYTES,
        average=rate,
        maximum=maximum,
        burst_seconds=burst_seconds,
    )
    return Limits(limits=(limit,))


def test_a_bucket_and_one_request_are_free() -> None:
    # 50 MiB in requests of 512 KiB at 5 MiB/s: (50 - 0.5 - 0.5) / 5
    assert elapsed(bytes_per_second(5 * MIB), WRITE, [MIB // 2] * 100) == pytest.approx(9.8)


@given(
    rate=st.integers(100_000, 10**9),
    sizes=st.lists(st.integers(512, 4 * MIB), min_size=1, max_size=60),
)
def test_elapsed_is_volume_less_bucket_less_last_request(rate: int, sizes: list[int]) -> None:
    seconds = elapsed(bytes_per_second(rate), READ, sizes)
    # each request waits for earlier ones, and a disk that is never idle wastes nothing
    expected = max(0.0, (sum(sizes[:-1]) - rate / 10) / rate)
    assert seconds == pytest.approx(expected, abs=1e-9)


def test_a_rested_bucket_is_empty_and_not_emptier() -> None:
    meter = Meter(bytes_per_second(5 * MIB))
    for _ in range(4):
        meter.admit(0.0, READ, MIB)
    late = meter.admit(100.0, READ, MIB)
    assert late == 100.0
    # one MiB over a bucket of half a MiB: a wait of 0.1 s, however long the disk was idle
    assert meter.admit(late, READ, MIB) == pytest.approx(100.1)


def test_reads_and_writes_share_a_total_and_not_their_own_limits() -> None:
    shared = Meter(bytes_per_second(MIB))
    shared.admit(0.0, WRITE, MIB)
    assert shared.admit(0.0, READ, MIB) == pytest.approx(0.9)
    apart = Meter(
        Limits.from_throttle(Throttle(read_bytes_per_second=MIB, write_bytes_per_second=MIB))
    )
    apart.admit(0.0, WRITE, MIB)
    assert apart.admit(0.0, READ, MIB) == 0.0


def test_the_longest_wait_wins() -> None:
    both = Limits.from_throttle(
        Throttle(total_bytes_per_second=100 * MIB, total_operations_per_second=10)
    )
    assert elapsed(both, READ, [4096] * 21) == pytest.approx((20 - 1) / 10)


def test_a_large_request_is_several_operations_and_fractions_count() -> None:
    limits = Limits.from_throttle(Throttle(total_operations_per_second=10, operation_size=4096))
    assert elapsed(limits, READ, [6144] * 11) == pytest.approx((15 - 1) / 10)


def test_with_a_maximum_the_bucket_holds_the_whole_burst() -> None:
    limits = bytes_per_second(MIB, maximum=4 * MIB)
    assert elapsed(limits, READ, [MIB] * 6) == pytest.approx(1.0)


def test_a_long_burst_is_held_to_the_maximum() -> None:
    limits = bytes_per_second(MIB, maximum=10 * MIB, burst_seconds=3)
    # 20 MiB at 10 MiB/s, minus the initial burst of 0.1 s and one request
    assert elapsed(limits, READ, [MIB] * 20) == pytest.approx((20 - 1 - 1) / 10)
    # in the end the average limits all: (100 - 30 - 1) / 1
    assert elapsed(limits, READ, [MIB] * 100) == pytest.approx(69.0)


def test_without_limits_nothing_waits() -> None:
    assert elapsed(Limits(), READ, [MIB] * 1000) == 0.0
    assert not Limits().limited(READ)


def test_limits_carry_the_names_of_the_scenario() -> None:
    throttle = Throttle(write_operations_per_second=7, write_operations_per_second_max=70)
    (limit,) = Limits.from_throttle(throttle).limits
    assert limit.name == "write_operations_per_second"
    assert (limit.average, limit.maximum, limit.burst_seconds) == (7, 70, 1)
    assert limit.counts(WRITE)
    assert not limit.counts(READ)


def test_control_a_bucket_of_a_whole_second_misses_the_published_time() -> None:
    wrong = bytes_per_second(5 * MIB, maximum=5 * MIB)
    assert elapsed(wrong, WRITE, [MIB // 2] * 100) < 9.8 * 0.97
