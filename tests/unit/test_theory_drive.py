"""A drive as a guest sees it that takes time of its own: what adds up, and what passes beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.md.theory.drive import (
    LARGE,
    NO_TIME,
    Requesters,
    figures,
    flush_seconds,
    random_read_rate,
    revolution_rate,
    sequential_read_rate,
)
from lab.model.result.calibration import GuestTimes
from lab.model.scenario.drive import HardDrive
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD

DRIVE = HDD["hdd_7200"]
NOTHING = replace(
    DRIVE,
    rpm=0,
    overhead=0.0,
    track_to_track=0.0,
    average_seek=0.0,
    full_stroke=0.0,
    write_settle=0.0,
    outer_rate=10**12,
    inner_rate=10**12,
    link_rate=10**12,
)
GUEST = GuestTimes(
    random_read_1=0.0014,
    random_read_16=0.0009,
    sequential_1=0.0050,
    sequential=0.0040,
    flush=0.0028,
)


def test_a_drive_that_takes_no_time_gives_the_guests_own_back() -> None:
    assert random_read_rate(NOTHING, 1, guest=GUEST) == pytest.approx(1 / 0.0014, rel=0.01)
    assert random_read_rate(NOTHING, 16, guest=GUEST) == pytest.approx(1 / 0.0009, rel=0.01)
    for depth, each in ((1, 0.0050), (2, 0.0040)):
        rate = sequential_read_rate(NOTHING, 0.0, depth=depth, guest=GUEST)
        assert LARGE / rate == pytest.approx(each, rel=0.01)
    assert flush_seconds(NOTHING, GUEST) == pytest.approx(0.0028, rel=0.01)


def test_requesters_give_the_pace_of_one_and_of_many() -> None:
    who = Requesters.of(0.010, 0.003)
    assert [who.next(1.0), who.next(1.0), who.next(2.0)] == pytest.approx([1.01, 1.013, 2.01])
    assert Requesters.of(0.001, 0.002).beside == 0.0  # many at once cost more than one: all serial


@pytest.mark.parametrize("drive", HDD.values(), ids=HDD)
def test_alone_all_of_the_guests_time_adds_up(drive: HardDrive) -> None:
    own = 1 / random_read_rate(drive, 1)
    assert 1 / random_read_rate(drive, 1, guest=GUEST) == pytest.approx(own + 0.0014)


@pytest.mark.parametrize("drive", HDD.values(), ids=HDD)
def test_in_a_queue_it_passes_while_others_are_served(drive: HardDrive) -> None:
    """What is left is that the drive has fewer requests to choose from."""
    lost = random_read_rate(drive, 16) / random_read_rate(drive, 16, guest=GUEST) - 1
    assert -0.01 < lost < 0.04
    slow = GUEST.model_copy(update={"random_read_1": 0.020, "random_read_16": 0.020})
    assert random_read_rate(drive, 16, guest=slow) == pytest.approx(50, rel=0.02)  # the guest's own


def test_a_queue_without_a_guest_is_as_it_was() -> None:
    assert random_read_rate(DRIVE, 16) == pytest.approx(167.8, abs=0.1)


def test_reading_ahead_covers_the_gap_between_requests_as_far_as_it_goes() -> None:
    media, answer = LARGE / DRIVE.rate(0.0), DRIVE.overhead + LARGE / DRIVE.link_rate
    for gap in (0.0, 0.002, 0.0035, 0.005, 0.009):
        guest = NO_TIME.model_copy(update={"sequential_1": gap})
        each = LARGE / sequential_read_rate(DRIVE, 0.0, guest=guest)
        assert each == pytest.approx(max(media, answer + gap), rel=0.01)
    # Without it the platter has turned on, and the place must come round: whole revolutions.
    plain = replace(DRIVE, read_ahead=0)
    for gap, turns in ((0.0, 1), (0.005, 1), (0.009, 2)):
        guest = NO_TIME.model_copy(update={"sequential_1": gap})
        each = LARGE / sequential_read_rate(plain, 0.0, guest=guest)
        assert each == pytest.approx(media + turns * DRIVE.revolution, rel=0.001)
    # With too little of it, one revolution.
    short = replace(DRIVE, read_ahead=65536)
    guest = NO_TIME.model_copy(update={"sequential_1": 0.002})
    each = LARGE / sequential_read_rate(short, 0.0, guest=guest)
    assert each == pytest.approx(media + DRIVE.revolution, rel=0.001)


def test_two_requests_of_a_stream_hide_a_guest_that_is_faster_than_the_medium() -> None:
    guest = GUEST.model_copy(update={"sequential_1": 0.007, "sequential": 0.006})
    assert sequential_read_rate(DRIVE, 0.0, depth=2, guest=guest) == pytest.approx(142e6, rel=0.001)
    assert sequential_read_rate(DRIVE, 0.0, guest=guest) < 0.7 * 142e6
    slower = GUEST.model_copy(update={"sequential_1": 0.012, "sequential": 0.010})
    each = LARGE / sequential_read_rate(DRIVE, 0.0, depth=2, guest=slower)
    assert each == pytest.approx(0.010, rel=0.01)


def test_a_stream_that_begins_again_pays_a_seek_and_half_a_revolution() -> None:
    span = 64 * LARGE
    once = span / sequential_read_rate(DRIVE, 0.0)
    again = span / sequential_read_rate(DRIVE, 0.0, span=span)
    back = DRIVE.seek_curve(1 / DRIVE.zones) + DRIVE.revolution / 2
    assert again - once == pytest.approx(back)


@pytest.mark.parametrize("drive", HDD.values(), ids=HDD)
def test_half_of_a_flushs_time_passes_while_the_arm_is_on_its_way(drive: HardDrive) -> None:
    assert flush_seconds(drive, GUEST) - flush_seconds(drive) == pytest.approx(0.0014, abs=5e-5)
    late = GUEST.model_copy(update={"flush": 1.0})
    assert flush_seconds(drive, late) == pytest.approx(1.0, abs=0.001)  # the arm has long been done
    through = replace(drive, write_cache=0)
    assert flush_seconds(through, GUEST) - flush_seconds(through) == pytest.approx(0.0028)


def test_one_place_is_written_once_in_a_revolution_whatever_the_guest_takes() -> None:
    for flush in (0.0, 0.0028, 0.007):
        guest = NO_TIME.model_copy(update={"flush": flush})
        assert revolution_rate(DRIVE, guest) == pytest.approx(120)
    for flush, rate in ((0.012, 80), (0.1, 10)):  # slower than the platter: it comes round again
        guest = NO_TIME.model_copy(update={"flush": flush})
        assert revolution_rate(DRIVE, guest) == pytest.approx(rate, rel=0.05)
    assert revolution_rate(replace(DRIVE, write_cache=0), GUEST) == pytest.approx(120, rel=1e-3)
    assert revolution_rate(replace(DRIVE, rpm=5400)) == pytest.approx(90)
    assert revolution_rate(replace(DRIVE, rpm=0)) == 0.0


def test_a_flash_disk_is_lost_in_a_slow_guest() -> None:
    drive = SSD["ssd_sata"]
    assert figures(drive, GUEST).random_read_1 < 0.1 * figures(drive).random_read_1
    assert figures(drive, GUEST).random_read_16 < 0.1 * figures(drive).random_read_16
