"""A drive's rates from its values: queues, streams, reading ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.md.theory.drive import LARGE, random_read_rate, sequential_read_rate
from lab.plugins.disks.hdd import PRESETS as HDD

DRIVE = HDD["hdd_7200"]


def test_a_queue_serves_the_nearest_first() -> None:
    assert random_read_rate(DRIVE, 16) == pytest.approx(167.8, abs=0.1)
    assert random_read_rate(DRIVE, 1) == pytest.approx(80.6, abs=0.1)


def test_reading_ahead_covers_the_time_between_requests_as_far_as_it_goes() -> None:
    media, answer = LARGE / DRIVE.rate(0.0), DRIVE.overhead + LARGE / DRIVE.link_rate
    each = LARGE / sequential_read_rate(DRIVE, 0.0)
    assert each == pytest.approx(max(media, answer), rel=0.01)
    # Without reading ahead the platter has turned, and the place must come under the head again.
    plain = replace(DRIVE, read_ahead=0)
    each = LARGE / sequential_read_rate(plain, 0.0)
    assert each == pytest.approx(media + DRIVE.revolution, rel=0.001)
    # Too little reading ahead has the same effect.
    short = replace(DRIVE, read_ahead=16384)
    each = LARGE / sequential_read_rate(short, 0.0)
    assert each == pytest.approx(media + DRIVE.revolution, rel=0.001)


def test_two_requests_of_a_stream_share_a_slow_cable() -> None:
    cable = replace(DRIVE, link_rate=42_000_000)
    assert sequential_read_rate(cable, 0.0, depth=2) == pytest.approx(42e6, rel=0.001)
    assert sequential_read_rate(cable, 0.0) < 0.995 * 42e6  # each command takes its overhead
    assert sequential_read_rate(DRIVE, 0.0, depth=2) == pytest.approx(142e6, rel=0.001)


def test_a_stream_that_begins_again_pays_a_seek_and_half_a_revolution() -> None:
    span = 64 * LARGE
    once = span / sequential_read_rate(DRIVE, 0.0)
    again = span / sequential_read_rate(DRIVE, 0.0, span=span)
    back = DRIVE.seek_curve(1 / DRIVE.zones) + DRIVE.revolution / 2
    assert again - once == pytest.approx(back)
