"""Published, tabulated and measured values of sequential streams, and invariants."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction, Limit, Limits, Meter, Scope, Unit
from lab.md.theory.paths import BIO_LIMIT, HUGE_BIO, Cutting, Path, Sender, SequentialLoad, path_of
from lab.md.theory.sequential import StreamClock
from lab.md.theory.sequential_prediction import StreamPrediction, predict_stream
from lab.md.theory.stripe import StripeRules
from tests.geometries import geometry as made
from tests.properties import examples
from tests.speed import reference, scale

KIB, MIB, GIB = 1024, 1024**2, 1024**3
READ, WRITE = Direction.READ, Direction.WRITE
PL, LS = "parity-last", "left-symmetric"


def rate(speed: float, **more: float) -> Limits:
    limit = Limit(scope=Scope.TOTAL, unit=Unit.BYTES, average=speed, maximum=more.get("maximum"))
    return Limits(limits=(limit,))


def array(
    level: Level = Level.RAID5,
    layout: str | None = LS,
    members: int = 5,
    chunk: int = 512 * KIB,
    failed: tuple[int, ...] = (),
) -> Geometry:
    return made(level, members, 64 * GIB, layout=layout, chunk=chunk, failed=failed)


def run(
    geometry: Geometry,
    direction: Direction = WRITE,
    block: int = MIB,
    total: int = 100 * MIB,
    *,
    speed: float = 5 * MIB,
    rules: StripeRules | None = None,
    offset: int = 0,
) -> StreamPrediction:
    stream = SequentialLoad(direction=direction, block=block, total=total, offset=offset)
    return predict_stream(geometry, [rate(speed)] * geometry.members, stream, rules=rules)


def megabytes(prediction: StreamPrediction) -> float:
    return prediction.throughput / 1e6


def mebibytes(prediction: StreamPrediction) -> float:
    return prediction.throughput / MIB


SEED = [
    # members, layout, direction, block, seconds of the closed form, MB/s
    (5, PL, WRITE, MIB, 9.8, 10.70),
    (5, LS, WRITE, MIB, 7.8, 13.44),
    (5, PL, READ, MIB, 4.8, 21.85),
    (5, LS, READ, MIB, 3.8, 27.59),
    (3, PL, WRITE, MIB, 9.8, 10.70),
    (3, PL, READ, MIB, 9.8, 10.70),
    (5, PL, WRITE, 2 * MIB, 4.8, 21.85),
    (5, LS, WRITE, 2 * MIB, 4.8, 21.85),
]


@pytest.mark.parametrize(("members", "layout", "direction", "block", "seconds", "speed"), SEED)
def test_parity_layouts_as_derived(
    members: int, layout: str, direction: Direction, block: int, seconds: float, speed: float
) -> None:
    found = run(array(layout=layout, members=members), direction, block)
    assert found.seconds == pytest.approx(seconds, rel=0.01)
    assert megabytes(found) == pytest.approx(speed, rel=0.01)


@pytest.mark.parametrize(
    ("members", "layout", "direction", "published"),
    [
        (5, LS, WRITE, 13.4),
        (5, PL, READ, 21.8),
        (5, LS, READ, 27.6),
        (3, PL, WRITE, 10.7),
        (3, PL, READ, 10.7),
    ],
)
def test_parity_layouts_as_published(
    members: int, layout: str, direction: Direction, published: float
) -> None:
    # Seed 004 gives three digits; its sixth value, "10" for parity-last writes, has only two.
    found = run(array(layout=layout, members=members), direction)
    assert megabytes(found) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("direction", "block", "measured"),
    [(WRITE, MIB, 9.833), (READ, MIB, 4.910), (WRITE, 2 * MIB, 4.838)],
)
def test_parity_last_as_measured(direction: Direction, block: int, measured: float) -> None:
    # real guests also need time for dd's start and for each request
    found = run(array(layout=PL), direction, block).seconds
    assert found <= measured
    assert found == pytest.approx(measured, abs=0.12)


@pytest.mark.parametrize(
    ("block", "parity_last", "left_symmetric"),
    [
        (64, 4.00, 4.57),
        (128, 4.00, 4.71),
        (256, 4.00, 5.0),
        (512, 4.00, 5.71),
        (1024, 10.0, 12.5),
        (2048, 20.0, 20.0),
        (4096, 20.0, 20.0),
    ],
)
def test_long_writes_by_block(block: int, parity_last: float, left_symmetric: float) -> None:
    for layout, expected in ((PL, parity_last), (LS, left_symmetric)):
        found = run(array(layout=layout), WRITE, block * KIB, 2 * GIB)
        assert mebibytes(found) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("chunk", "parity_last", "left_symmetric"),
    [(64, 20.0, 20.0), (256, 20.0, 20.0), (512, 10.0, 12.5), (1024, 4.0, 5.0)],
)
def test_long_writes_by_chunk(chunk: int, parity_last: float, left_symmetric: float) -> None:
    for layout, expected in ((PL, parity_last), (LS, left_symmetric)):
        found = run(array(layout=layout, chunk=chunk * KIB), WRITE, MIB, 4 * GIB)
        assert mebibytes(found) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("members", "parity_last", "left_symmetric"),
    [
        (3, 10.0, 10.0),
        (4, 7.5, 8.57),
        (5, 10.0, 12.5),
        # every second row begins within a block, so left-symmetric waits: 0.5 s for 5 MiB
        (6, 7.14, 10.0),
        (7, 7.5, 10.0),
        (9, 8.0, 11.43),
    ],
)
def test_long_writes_by_members(members: int, parity_last: float, left_symmetric: float) -> None:
    for layout, expected in ((PL, parity_last), (LS, left_symmetric)):
        found = run(array(layout=layout, members=members), WRITE, MIB, 4 * GIB)
        assert mebibytes(found) == pytest.approx(expected, rel=0.02)
        full = run(array(layout=layout, members=members), WRITE, (members - 1) * 512 * KIB, GIB)
        assert mebibytes(full) == pytest.approx(5 * (members - 1), rel=0.03)


@pytest.mark.parametrize(
    ("geometry", "direction", "members_worth"),
    [
        (array(Level.RAID0, None, 4), READ, 4),
        (array(Level.RAID0, None, 4), WRITE, 4),
        (array(Level.RAID1, None, 3), READ, 1),
        (array(Level.RAID1, None, 3), WRITE, 1),
        (array(Level.RAID4, None, 5), READ, 4),
        (array(Level.RAID6, LS, 6), READ, 6),
        (array(Level.RAID6, PL, 6), READ, 4),
        (array(Level.RAID10, "n2", 4), READ, 2),
        (array(Level.RAID10, "n2", 4), WRITE, 2),
        (array(Level.RAID10, "f2", 4), READ, 4),
        (array(Level.RAID10, "f2", 4), WRITE, 2),
        (array(Level.RAID1, None, 1), READ, 1),
        # degraded: missing data are computed from pages that a row's neighbours needed anyway
        (array(Level.RAID5, LS, 5, failed=(0,)), READ, 4),
        (array(Level.RAID6, LS, 6, failed=(0, 3)), READ, 4),
        (array(Level.RAID10, "n2", 4, failed=(0,)), READ, 2),
    ],
)
def test_long_streams_of_other_levels(
    geometry: Geometry, direction: Direction, members_worth: int
) -> None:
    found = run(geometry, direction, MIB, 2 * GIB)
    assert mebibytes(found) == pytest.approx(5 * members_worth, rel=0.02)


def test_near_copies_both_serve_a_block_that_goes_round_twice() -> None:
    narrow = run(array(Level.RAID10, "n2", 4), READ, MIB, GIB)
    wide = run(array(Level.RAID10, "n2", 4), READ, 2 * MIB, GIB)
    assert wide.throughput == pytest.approx(2 * narrow.throughput, rel=0.01)


BLOCKS = st.sampled_from([64 * KIB, 192 * KIB, 512 * KIB, MIB, 1000 * KIB, 2 * MIB, 3 * MIB])
ARRAYS = st.builds(
    array,
    level=st.sampled_from([Level.RAID5, Level.RAID6]),
    layout=st.sampled_from([PL, LS, "right-asymmetric"]),
    members=st.integers(4, 8),
    chunk=st.sampled_from([64 * KIB, 512 * KIB]),
)


@examples(60)
@given(geometry=ARRAYS, block=BLOCKS, rows=st.integers(1, 20))
def test_members_write_data_and_parity(geometry: Geometry, block: int, rows: int) -> None:
    width = geometry.data_members * geometry.chunk
    found = run(geometry, WRITE, block, rows * width)
    written = sum(member.written_bytes for member in found.members)
    checks = geometry.members - geometry.data_members
    # every block writes its data once; parity is written once for each block that touches it
    assert written >= rows * geometry.chunk * geometry.members
    if block % width == 0:
        assert written == rows * geometry.chunk * geometry.members
        assert sum(member.read_bytes for member in found.members) == 0
    assert (written - rows * width) % checks == 0


@examples(60)
@given(geometry=ARRAYS, block=BLOCKS, total=st.integers(1, 500))
def test_whole_arrays_read_each_byte_once(geometry: Geometry, block: int, total: int) -> None:
    found = run(geometry, READ, block, total * 64 * KIB)
    assert sum(member.read_bytes for member in found.members) == total * 64 * KIB
    assert all(member.written_bytes == 0 for member in found.members)


@pytest.mark.parametrize(
    ("geometry", "direction", "block"),
    [
        (array(layout=PL), WRITE, MIB),
        (array(layout=PL), READ, MIB),
        (array(layout=LS), READ, MIB),
        (array(layout=LS), WRITE, 2 * MIB),
        (array(Level.RAID1, None, 2), WRITE, MIB),
    ],
)
def test_half_the_speed_takes_twice_as_long_but_for_the_bonus(
    geometry: Geometry, direction: Direction, block: int
) -> None:
    fast = run(geometry, direction, block, speed=10 * MIB)
    slow = run(geometry, direction, block, speed=5 * MIB)
    # seconds = (volume - one request) / speed - 0.1
    assert slow.seconds == pytest.approx(2 * fast.seconds + 0.1, rel=1e-6)
    assert slow.members == fast.members


@examples(40)
@given(
    level=st.sampled_from([Level.RAID5, Level.RAID6]),
    layout=st.sampled_from([PL, LS, "right-asymmetric"]),
    members=st.integers(4, 8),
    block=st.sampled_from([64 * KIB, 192 * KIB, 256 * KIB, 500 * KIB]),
    direction=st.sampled_from([READ, WRITE]),
)
def test_everything_twice_as_large_takes_as_long(
    level: Level, layout: str, members: int, block: int, direction: Direction
) -> None:
    small = run(
        array(level, layout, members, 256 * KIB),
        direction,
        block,
        50 * MIB,
        speed=3 * MIB,
        rules=StripeRules(cache_size=256),
    )
    large = run(
        array(level, layout, members, 512 * KIB),
        direction,
        2 * block,
        100 * MIB,
        speed=6 * MIB,
        rules=StripeRules(cache_size=512),
    )
    assert large.seconds == pytest.approx(small.seconds, rel=1e-4)


@examples(40)
@given(geometry=ARRAYS, block=BLOCKS, direction=st.sampled_from([READ, WRITE]))
def test_slower_disks_never_make_a_faster_array(
    geometry: Geometry, block: int, direction: Direction
) -> None:
    fast = run(geometry, direction, block, speed=8 * MIB)
    slow = run(geometry, direction, block, speed=4 * MIB)
    assert slow.seconds > 1.5 * fast.seconds
    assert slow.members == fast.members


@examples(40)
@given(geometry=ARRAYS, block=BLOCKS, direction=st.sampled_from([READ, WRITE]))
def test_repetitions_counted_are_as_repetitions_followed(
    geometry: Geometry, block: int, direction: Direction
) -> None:
    stream = SequentialLoad(direction=direction, block=block, total=150 * MIB)
    counted = StreamClock(
        geometry,
        path_of(geometry, direction, StripeRules()),
        [Meter(rate(5 * MIB)) for _ in range(geometry.members)],
    )
    followed = StreamClock(
        geometry,
        path_of(geometry, direction, StripeRules()),
        [Meter(rate(5 * MIB)) for _ in range(geometry.members)],
        repeats=False,
    )
    quick, slow = counted.run(stream), followed.run(stream)
    assert quick.seconds == pytest.approx(slow.seconds, rel=1e-4)
    assert quick.members == slow.members
    assert quick.followed <= slow.followed


def test_more_members_never_slow_a_full_row_down() -> None:
    speeds = [
        run(array(members=n), WRITE, (n - 1) * 512 * KIB, 2 * GIB).throughput for n in range(3, 12)
    ]
    assert speeds == sorted(speeds)


def test_no_read_is_faster_than_all_members_together() -> None:
    for members in (3, 5, 8):
        found = run(array(members=members), READ, 16 * MIB, GIB)
        assert found.throughput <= 5 * MIB * members * 1.01


def test_the_slowest_member_sets_the_pace() -> None:
    limits = [rate(50 * MIB), rate(50 * MIB), rate(5 * MIB), rate(50 * MIB)]
    stream = SequentialLoad(direction=READ, block=MIB, total=GIB)
    found = predict_stream(array(Level.RAID0, None, 4), limits, stream)
    assert found.throughput == pytest.approx(20 * MIB, rel=0.01)
    assert (found.limit.member, found.limit.alike) == (2, 1)
    assert found.limit.limit == "total_bytes_per_second"
    assert "member 3" in found.reason


def test_members_of_a_group_share_a_cable() -> None:
    stream = SequentialLoad(direction=READ, block=MIB, total=GIB)
    found = predict_stream(
        array(Level.RAID0, None, 4), [rate(5 * MIB)] * 4, stream, groups=("usb",) * 4
    )
    assert found.throughput == pytest.approx(5 * MIB, rel=0.01)


def test_what_waits_is_told_from_what_is_held() -> None:
    assert "all the time" in run(array(layout=PL)).reason
    waiting = run(array(layout=LS), WRITE, 64 * KIB)
    assert waiting.limit.busy < 0.7
    assert "waiting" in waiting.reason


def test_large_runs_and_operations_leave_doubt() -> None:
    assert run(array()).doubt == 0
    assert run(array(chunk=MIB)).doubt > 0.03
    limit = Limit(scope=Scope.TOTAL, unit=Unit.OPERATIONS, average=20)
    stream = SequentialLoad(direction=WRITE, block=MIB, total=100 * MIB)
    found = predict_stream(array(), [Limits(limits=(limit,))] * 5, stream)
    assert found.doubt > 0.03


def test_a_stream_beyond_the_array_is_refused() -> None:
    small = made(Level.RAID5, 3, 10 * MIB)
    with pytest.raises(ValueError, match="beyond"):
        run(small, READ, MIB, 10 * MIB, offset=15 * MIB)


def test_control_without_a_cached_row_the_figure_is_missed() -> None:
    # with space for 17 stripe heads the second half of each row reads the first
    found = run(array(layout=LS), rules=StripeRules(cache_size=17))
    assert megabytes(found) < 13.44 * 0.95


def test_control_a_tie_that_modifies_misses_the_table() -> None:
    found = run(array(layout=PL, members=6), total=4 * GIB, rules=StripeRules(rmw_level=2))
    assert mebibytes(found) != pytest.approx(7.14, rel=0.02)


def test_control_layouts_swapped_miss_the_figures() -> None:
    assert megabytes(run(array(layout=LS))) != pytest.approx(10.70, rel=0.05)
    assert megabytes(run(array(layout=PL), READ)) != pytest.approx(27.59, rel=0.05)


def test_control_a_parity_that_is_read_misses_the_figure() -> None:
    # a degraded array without its parity member reads through the cache, but no parity
    gone = run(array(layout=PL, failed=(4,)), READ)
    assert megabytes(gone) == pytest.approx(21.85, rel=0.01)
    assert megabytes(run(array(layout=LS), READ)) > megabytes(gone) * 1.2


def test_control_pages_sent_one_by_one_miss_the_figures() -> None:
    geometry = array(layout=LS)
    clock = StreamClock(
        geometry,
        path_of(geometry, WRITE, StripeRules()),
        [Meter(rate(5 * MIB)) for _ in range(5)],
        cutting=Cutting(limit=4096, joins=False),
    )
    outcome = clock.run(SequentialLoad(direction=WRITE, block=MIB, total=100 * MIB))
    assert outcome.seconds > 7.8 * 1.03


@pytest.mark.parametrize(
    ("block", "total", "budget"),
    [(MIB, 100 * MIB, 0.02), (64 * KIB, 10 * GIB, 0.3), (4 * KIB, 10 * GIB, 1.0)],
)
def test_theory_is_quick(block: int, total: int, budget: float) -> None:
    best = min(_seconds_for(block, total) for _ in range(3))
    assert best < budget


def _seconds_for(block: int, total: int) -> float:
    start = time.process_time()
    run(array(), WRITE, block, total)
    return (time.process_time() - start) * scale(reference())


# --- the block layer: order, merging, and requests that have ended ------------------------------


def issued(
    path: Path, offset: int, size: int, *, free: bool = True, cutting: Cutting | None = None
) -> list[tuple[int, int]]:
    """Return member and KiB of each request; ``free``: the throttles delay none."""
    sent: list[tuple[int, int]] = []

    def admit(member: int, amount: int) -> float:
        sent.append((member, amount // KIB))
        return 0.0 if free else 1.0

    assert path.issue(0.0, offset, size, cutting or path.cutting, admit) is not None
    return sent


def test_a_plugged_write_merges_what_touches_on_a_member() -> None:
    """As traced in a guest with Linux 6.1: RAID 0, two disks, 32 KiB chunks, 256 KiB."""
    geometry = made(Level.RAID0, 2, GIB, chunk=32 * KIB)
    plugged = path_of(geometry, WRITE, StripeRules(), Sender(plugs_writes=True))
    assert issued(plugged, 0, 256 * KIB) == [(0, 128), (1, 128)]
    alone = path_of(geometry, WRITE, StripeRules(), Sender(plugs_writes=False))
    assert issued(alone, 0, 256 * KIB) == [(0, 32), (1, 32)] * 4


def test_a_large_read_is_sent_as_raid5_cuts_it() -> None:
    """As traced: RAID 4, five disks, 64 KiB chunks, one bio of 2 MiB; the second MiB goes first."""
    geometry = made(Level.RAID4, 5, GIB, chunk=64 * KIB)
    path = path_of(geometry, READ, StripeRules(), Sender(at_once=True))
    huge = Cutting(limit=BIO_LIMIT, joins=False, bio=HUGE_BIO)
    sent = issued(path, 0, 2 * MIB, cutting=huge)
    assert sorted(sent[:5]) == [(0, 64), (0, 256), (1, 256), (2, 256), (3, 256)]
    assert sorted(sent[5:]) == [(0, 192), (1, 256), (2, 256), (3, 256)]


def test_near_copies_share_a_stream_as_far_as_requests_end_at_once() -> None:
    """Five disks: a disk that no throttle delays is idle again for the next part.

    Otherwise all parts of a request are in flight together, and disks 2 and 4 are second choices.
    """
    geometry = array(Level.RAID10, "n2", 5, chunk=32 * KIB)
    stream = SequentialLoad(direction=READ, block=256 * KIB, total=60 * MIB)
    found = {}
    for at_once in (True, False):
        sender = Sender(at_once=at_once)
        found[at_once] = predict_stream(geometry, [rate(4 * MIB)] * 5, stream, sender=sender)
    loads = [m.read_bytes for m in found[True].members]
    assert max(loads) < 1.02 * min(loads)
    assert found[True].throughput > 1.3 * found[False].throughput
    # On a ring of copies microseconds decide which serves the last part; pairs leave no choice.
    assert found[True].doubt * found[True].seconds == pytest.approx(32 * KIB / (4 * MIB))
    pairs = array(Level.RAID10, "n2", 6, chunk=32 * KIB)
    even = predict_stream(pairs, [rate(4 * MIB)] * 6, stream, sender=Sender(at_once=True))
    assert even.doubt == 0
    apart = [m.read_bytes for m in found[False].members]
    assert max(apart) > 2 * min(apart)


def test_the_buffers_pages_decide_how_large_requests_are_cut() -> None:
    """Above 1 MiB there are several bios, and theory cannot know their boundaries."""
    geometry, limits = array(Level.RAID6, LS, 6, chunk=256 * KIB), [rate(3 * MIB)] * 6
    sender = Sender(at_once=True)
    doubts = {}
    for block in (512 * KIB, 2 * MIB):
        stream = SequentialLoad(direction=READ, block=block, total=42 * MIB)
        doubts[block] = predict_stream(geometry, limits, stream, sender=sender).doubt
    assert doubts[512 * KIB] == 0
    assert doubts[2 * MIB] > 0.005


def test_the_processor_delays_the_first_request_and_hides_behind_a_full_bucket() -> None:
    stream = SequentialLoad(direction=WRITE, block=MIB, total=100 * MIB)
    one = made(Level.RAID0, 2, GIB, chunk=512 * KIB)
    own = predict_stream(one, [rate(5 * MIB)] * 2, stream).seconds
    busy = predict_stream(one, [rate(5 * MIB)] * 2, stream, processor=0.004).seconds
    assert 0.004 <= busy - own + 1e-9 < 0.02
    slow = predict_stream(one, [rate(5 * MIB)] * 2, stream, processor=0.2).seconds
    assert slow == pytest.approx(100 * 0.2, rel=0.01)
