"""Modelled drives in theory, compared with the timing core and closed forms, and in arrays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from drive.drive import Parameters
from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.bucket import Direction, Limits
from lab.md.theory.concurrent import TooLongError
from lab.md.theory.drive import random_read_rate
from lab.md.theory.load_prediction import DRIVE, LoadPrediction, predict_load
from lab.md.theory.mechanism import BITMAP_OFFSET, ModelledDrive, server_of
from lab.md.theory.paths import Load
from lab.md.theory.throttle import EventQueue
from lab.model.scenario.drive import HardDrive, SolidStateDrive, integers
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD
from tests.integration.test_drive_core import SECOND, Arrival, closed_loop, compiled, replayed

GIB, KIB, PAGE = 1 << 30, 1 << 10, 4096
READ, WRITE = Direction.READ, Direction.WRITE
PLAIN = replace(HDD["hdd_7200"], write_cache=0)
CACHED = replace(HDD["hdd_7200"], write_cache=512 * KIB)
PLANS = replace(
    CACHED,
    lead=2,
    oldest_share=0.1,
    write_places=40,
    write_choice=16,
    link_command=20e-6,
    wake=0.001,
    wake_after=0.0001,
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("replay"))


def closed(
    drive: HardDrive | SolidStateDrive,
    depth: int,
    reads: float,
    count: int,
    *,
    size: int = GIB,
    seed: int = 3,
) -> Iterator[tuple[float, float, str, int]]:
    """Yield arrival and end of random requests, each of which follows another's end."""
    events, dice = EventQueue(), random.Random(seed)
    server = server_of(ModelledDrive(drive=drive, size=size, seed=seed), events)

    def send() -> None:
        op, offset = "read" if dice.random() < reads else "write", dice.randrange(size // PAGE)
        what = (events.now, op, offset * PAGE)
        server.arrive(READ if op == "read" else WRITE, PAGE, what, offset * PAGE)

    for _ in range(depth):
        send()
    while count and events.next(float("inf")):
        while events.passed:
            begun, op, offset = events.passed.popleft()
            yield begun, events.now, op, offset
            count -= 1
            send()


def rate(drive: HardDrive | SolidStateDrive, depth: int, reads: float, count: int) -> float:
    ends = [end for _, end, _, _ in closed(drive, depth, reads, count)]
    return len(ends) / max(ends)


# --- one drive -----------------------------------------------------------------------------------

MIXES = [
    pytest.param(PLAIN, 1, 1.0, id="reads, one at a time"),
    pytest.param(PLAIN, 8, 0.5, id="reads and writes, without a cache"),
    pytest.param(CACHED, 8, 0.0, id="writes, with a cache that is full"),
    pytest.param(CACHED, 8, 0.5, id="reads and writes, with a cache"),
    pytest.param(CACHED, 1, 0.5, id="one at a time, so that the arm rests"),
    pytest.param(HDD["hdd_5400_usb"], 4, 0.5, id="a queue of one"),
    pytest.param(PLANS, 16, 1.0, id="plans ahead, and takes the oldest now and then"),
    pytest.param(PLANS, 4, 0.0, id="a cache of few pieces, the nearest first"),
    pytest.param(replace(PLANS, seek_only=1), 16, 1.0, id="knows no angle"),
    pytest.param(PLANS, 12, 0.5, id="all that measured drives do"),
]


def differences(
    program: Path, drive: HardDrive, depth: int, reads: float, core: Parameters
) -> list[float]:
    """Return seconds from the core's end to theory's, of each request that arrives in both."""
    said = sorted(closed(drive, depth, reads, 1500))
    arrivals = [Arrival(round(at * SECOND), op, offset, PAGE) for at, _, op, offset in said]
    lines = [line.split() for line in replayed(program, core, arrivals, size=GIB)]
    ends = {int(words[0]): int(words[7]) / SECOND for words in lines}
    return [end - ends[n] for n, (_, end, _, _) in enumerate(said)]


def core_of(drive: HardDrive) -> Parameters:
    return replace(integers(drive, ""), seed=3, read_ahead=0)


@pytest.mark.parametrize(("drive", "depth", "reads"), MIXES)
def test_each_request_ends_when_the_core_ends_it(
    replay: Path, drive: HardDrive, depth: int, reads: float
) -> None:
    """Requests in flight at theory's end are not in the replay, so the last ones are left out."""
    apart = differences(replay, drive, depth, reads, core_of(drive))
    assert max(map(abs, apart[: -8 * depth])) < 5e-6


@pytest.mark.parametrize("change", ["seed", "ageing", "overhead", "write_settle"])
def test_another_drive_is_told_apart(replay: Path, change: str) -> None:
    """Negative control of the test above."""
    core = core_of(PLAIN)
    other = replace(core, **{change: getattr(core, change) * 2})
    depth = 1 if change == "overhead" else 8  # in a queue it passes while the arm works
    apart = differences(replay, PLAIN, depth, 0.5, other)
    assert max(map(abs, apart[:-64])) > 1e-4


def test_a_drive_that_knows_no_angle_is_told_from_one_that_does(replay: Path) -> None:
    """Negative control of "knows no angle"."""
    drive = replace(PLANS, seek_only=1)
    apart = differences(replay, drive, 16, 1.0, replace(core_of(drive), seek_only=0))
    assert max(map(abs, apart[:-128])) > 1e-3


@pytest.mark.parametrize("depth", [1, 4, 32])
@pytest.mark.parametrize("drive", HDD.values(), ids=HDD)
def test_bare_reads_are_as_fast_as_the_core_says(
    replay: Path, drive: HardDrive, depth: int
) -> None:
    """Five seeds, 10,000 requests each."""
    core, size = integers(drive, ""), 500 * GIB
    rates = []
    for seed in range(1, 6):
        ends = closed_loop(replay, replace(core, seed=seed), depth, 10_000, seed=seed, size=size)
        rates.append(len(ends) / max(end for _, end in ends) * SECOND)
    assert random_read_rate(drive, depth) == pytest.approx(fmean(rates), rel=0.01)


def test_one_read_at_a_time_takes_command_seek_half_a_turn_and_transfer() -> None:
    assert rate(PLAIN, 1, 1.0, 6000) == pytest.approx(random_read_rate(PLAIN, 1), rel=0.01)


def test_a_cache_ends_writes_at_once_until_it_is_full() -> None:
    ends = [end for _, end, _, _ in closed(CACHED, 1, 0.0, 1000)]
    pages = CACHED.write_cache // PAGE
    quick = CACHED.overhead + PAGE / CACHED.link_rate
    assert ends[pages - 1] == pytest.approx(pages * quick, rel=1e-9)
    later = [after - before for before, after in pairwise(ends[500:])]
    # sorted by place, the seek to the next page is short, and half a revolution remains
    assert PLAIN.revolution / 4 < fmean(later) < PLAIN.access / 2


def test_a_bitmap_write_waits_for_what_is_in_the_cache() -> None:
    """A flush, then a write with FUA near the disk's start."""
    events = EventQueue()
    server = server_of(ModelledDrive(drive=CACHED, size=GIB), events)
    for n in range(20):
        server.arrive(WRITE, PAGE, n, n * (GIB // 20 // PAGE) * PAGE)
    while len(events.passed) < 20:
        assert events.next(1.0)
    begun = events.now
    events.passed.clear()
    server.arrive(WRITE, PAGE, "bitmap", -1)
    while not events.passed:
        assert events.next(10.0)
    assert events.passed == type(events.passed)(["bitmap"])
    assert events.now - begun > 15 * CACHED.track_to_track
    assert BITMAP_OFFSET == 16 * 512


def test_a_solid_state_disk_takes_controller_channel_and_cable() -> None:
    drive = SSD["ssd_sata"]
    alone = drive.overhead + drive.read_latency + PAGE / drive.link_rate
    assert rate(drive, 1, 1.0, 500) == pytest.approx(1 / alone)


# --- arrays --------------------------------------------------------------------------------------


def array(
    level: Level,
    drive: HardDrive | SolidStateDrive,
    *,
    members: int = 5,
    depth: int = 8,
    reads: float = 0.0,
    bitmap: Bitmap | None = None,
    layout: int = 2,
) -> LoadPrediction:
    geometry = Geometry(
        level=level, layout=layout, members=members, component_size=GIB, chunk=64 * KIB
    )
    drives = [ModelledDrive(drive=drive, size=2 * GIB, seed=n) for n in range(members)]
    load = Load(block=PAGE, read_share=reads, depth=depth, seconds=60.0)
    return predict_load(geometry, [Limits()] * members, load, drives=drives, bitmap=bitmap)


def test_a_load_of_too_many_requests_is_given_up() -> None:
    geometry = Geometry(level=Level.RAID0, layout=0, members=2, component_size=GIB, chunk=64 * KIB)
    drives = [ModelledDrive(drive=PLAIN, size=2 * GIB, seed=n) for n in range(2)]
    load = Load(block=GIB, read_share=1.0, depth=64, seconds=60.0)
    with pytest.raises(TooLongError):
        predict_load(geometry, [Limits()] * 2, load, drives=drives)


def test_ten_thousand_reads_of_a_bare_drive_are_followed_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bare(depth: int) -> float:
        geometry = Geometry(level=Level.RAID1, members=1, component_size=500 * GIB)
        drive = ModelledDrive(drive=HDD["hdd_7200"], size=500 * GIB, seed=1)
        load = Load(block=PAGE, read_share=1.0, depth=depth, total=40 << 20)
        return predict_load(geometry, [Limits()], load, drives=[drive]).iops

    found = {depth: bare(depth) for depth in (1, 4, 32)}
    monkeypatch.setattr("lab.md.theory.concurrent.FOLLOWED_PARTS", 1 << 20)
    assert {depth: bare(depth) for depth in found} == found
    monkeypatch.setattr("lab.md.theory.concurrent.FOLLOWED_PARTS", 1500)
    assert abs(bare(4) / found[4] - 1) > 0.02


def test_what_drives_have_in_their_caches_at_the_end_is_not_waited_for() -> None:
    """As in fio, which ends once its requests have ended: 64 pages remain in the caches."""
    drive = replace(PLAIN, write_cache=64 * PAGE)
    geometry = Geometry(level=Level.RAID1, members=1, component_size=GIB)
    load = Load(block=PAGE, read_share=0.0, depth=4, seconds=2.0)
    found = predict_load(geometry, [Limits()], load, drives=[ModelledDrive(drive=drive, size=GIB)])
    assert 2.0 <= found.seconds < 2.0 + 5 * PLAIN.access


def test_raid5_reads_and_writes_data_and_parity_for_each_write() -> None:
    found = array(Level.RAID5, PLAIN)
    assert sum(found.operations) == pytest.approx(4 * found.iops * found.seconds, rel=0.02)
    assert found.limit.limit == DRIVE
    # A page that was just read is under the head again after one revolution: read, then the rest.
    alone = array(Level.RAID5, PLAIN, depth=1)
    slowest_of_two = 1 / alone.iops
    once = PLAIN.overhead + PLAIN.average_seek / 2 + PLAIN.revolution / 2  # over half of the disk
    assert once + PLAIN.revolution < slowest_of_two < 1.5 * once + 2 * PLAIN.revolution


def test_raid0_at_depth_one_is_one_drive_and_deeper_it_is_more() -> None:
    one = array(Level.RAID0, PLAIN, depth=1, reads=1.0).iops
    assert one == pytest.approx(random_read_rate(PLAIN, 1), rel=0.25)  # half of each disk: nearer
    assert 3 < array(Level.RAID0, PLAIN, depth=16, reads=1.0).iops / one < 7


def test_a_cache_helps_until_it_is_full_and_a_bitmap_takes_it_away() -> None:
    plain, cached = array(Level.RAID5, PLAIN), array(Level.RAID5, CACHED)
    assert cached.iops > 1.2 * plain.iops
    marks = Bitmap(chunk=64 * KIB)
    assert array(Level.RAID5, CACHED, bitmap=marks).iops < 0.6 * cached.iops


def test_solid_state_drives_serve_arrays() -> None:
    found = array(Level.RAID6, SSD["ssd_sata"], members=6)
    assert found.iops > 1000
    assert found.limit.limit == DRIVE
