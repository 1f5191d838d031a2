"""Random loads, followed to their end, against a simulation of its own and measured values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from statistics import fmean, stdev

import pytest

from lab.analysis.predict import predictions
from lab.compile.scenario.compiler import compile_scenario
from lab.md.facts.levels import Level
from lab.md.theory import concurrent
from lab.md.theory.bucket import Limit, Limits, Scope, Unit
from lab.md.theory.load_prediction import LoadPrediction, predict_load
from lab.md.theory.paths import Extent, Load, Reads
from lab.md.theory.placement import senders
from tests.geometries import geometry

KIB, MIB = 1024, 1024**2
CHUNK = 64 * KIB
SPAN = 100 * MIB
COMPONENT = 256 * MIB

Copies = Callable[[int], list[tuple[int, int]]]
"""The disks and places that have a byte of the array, in md's order."""


def striped(disks: int) -> Copies:
    return lambda at: [(at // CHUNK % disks, at // CHUNK // disks * CHUNK + at % CHUNK)]


def mirrored(disks: int) -> Copies:
    return lambda at: [(disk, at) for disk in range(disks)]


def near(disks: int, copies: int) -> Copies:
    def found(at: int) -> list[tuple[int, int]]:
        first = at // CHUNK * copies
        spots = [divmod(first + copy, disks) for copy in range(copies)]
        return [(disk, row * CHUNK + at % CHUNK) for row, disk in spots]

    return found


def far(disks: int) -> Copies:
    def found(at: int) -> list[tuple[int, int]]:
        row, disk = divmod(at // CHUNK, disks)
        place = row * CHUNK + at % CHUNK
        return [(disk, place), ((disk + 1) % disks, place + COMPONENT // 2)]

    return found


def parity_skipped(disks: int) -> Copies:
    """Left-symmetric: data begin after the parity."""

    def found(at: int) -> list[tuple[int, int]]:
        row, index = divmod(at // CHUNK, disks - 1)
        parity = disks - 1 - row % disks
        return [((parity + 1 + index) % disks, row * CHUNK + at % CHUNK)]

    return found


class Bucket:
    """A disk that admits so many requests per second, the first of each direction at its time."""

    def __init__(self, rate: float) -> None:
        self.rate, self.level, self.at = rate, 0.0, 0.0
        self.queues: dict[bool, deque[int]] = {True: deque(), False: deque()}
        self.armed = {True: False, False: False}

    def wait(self, now: float) -> float:
        self.level, self.at = max(self.level - (now - self.at) * self.rate, 0.0), now
        return max((self.level - self.rate / 10) / self.rate, 0.0)


def by_hand(
    copies: Copies,
    disks: int,
    rate: float,
    depth: int,
    seconds: float,
    requests: Iterator[tuple[bool, int]],
    *,
    lowest: bool = False,
    stays: bool = False,
) -> float:
    """Requests per second of a closed loop, one event after the other. As fio's, it counts the time
    until the last requests have ended.

    ``lowest``: mirrors are read at the lowest address. ``stays``: a read that continues another one
    stays with its disk.
    """
    buckets = [Bucket(rate) for _ in range(disks)]
    pending, heads, follows = [0] * disks, [0] * disks, [-1] * disks
    events: list[tuple[float, int, int, bool]] = []
    order, numbers = count(), count()
    parts: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    done: deque[tuple[int, int]] = deque()
    now, ended, free = 0.0, 0, depth

    def choose(spots: list[tuple[int, int]]) -> tuple[int, int]:
        if stays:
            for disk, at in spots:
                if at in (heads[disk], follows[disk]):
                    return disk, at
        if lowest:
            return min(spots, key=lambda spot: spot[1])
        return min(spots, key=lambda s: abs(s[1] - heads[s[0]]) if pending[s[0]] else 0)

    def arrive(disk: int, reads: bool, number: int) -> None:
        bucket = buckets[disk]
        if not bucket.armed[reads]:
            wait = bucket.wait(now)
            if wait <= 0:
                bucket.level += 1
                done.append((number, disk))
                return
            bucket.armed[reads] = True
            heappush(events, (now + wait, next(order), disk, reads))
        bucket.queues[reads].append(number)

    def send() -> None:
        nonlocal free
        while free and now < seconds:
            free -= 1
            reads, at = next(requests)
            spots, number = copies(at), next(numbers)
            if reads:
                spots = [choose(spots)]
                follows[spots[0][0]] = spots[0][1] + 4096
            parts[number] = len(spots), spots
            for disk, _ in spots:
                pending[disk] += 1
            for disk, _ in spots:
                arrive(disk, reads, number)

    def settle() -> None:
        nonlocal ended, free
        send()
        while done:
            number, disk = done.popleft()
            left, spots = parts[number]
            pending[disk] -= 1
            heads[disk] = next(at for where, at in spots if where == disk) + 4096
            parts[number] = left - 1, spots
            if left == 1:
                del parts[number]
                ended, free = ended + 1, free + 1
            if not done:
                send()

    settle()
    while events:
        now, _, disk, reads = heappop(events)
        bucket = buckets[disk]
        bucket.armed[reads] = False
        queue = bucket.queues[reads]
        bucket.wait(now)
        wait = 0.0
        while queue and wait <= 0:
            bucket.level += 1
            done.append((queue.popleft(), disk))
            wait = bucket.wait(now)
        if queue:
            bucket.armed[reads] = True
            heappush(events, (now + wait, next(order), disk, reads))
        settle()
    return ended / now


ARRAYS: dict[str, tuple[Level, int, str | None, Copies]] = {
    "RAID 0 of 6": (Level.RAID0, 6, None, striped(6)),
    "RAID 1 of 2": (Level.RAID1, 2, None, mirrored(2)),
    "RAID 1 of 4": (Level.RAID1, 4, None, mirrored(4)),
    "RAID 10 n2 of 4": (Level.RAID10, 4, "n2", near(4, 2)),
    "RAID 10 n3 of 4": (Level.RAID10, 4, "n3", near(4, 3)),
    "RAID 10 n2 of 3": (Level.RAID10, 3, "n2", near(3, 2)),
    "RAID 10 f2 of 5": (Level.RAID10, 5, "f2", far(5)),
    "RAID 5 of 5": (Level.RAID5, 5, "left-symmetric", parity_skipped(5)),
}


def limited(rate: float, disks: int, **more: float) -> list[Limits]:
    limit = Limit(scope=Scope.TOTAL, unit=Unit.OPERATIONS, average=rate, **more)  # type: ignore[arg-type]
    return [Limits(limits=(limit,))] * disks


def predicted(name: str, load: Load, rate: float = 100, **more: float) -> LoadPrediction:
    level, disks, layout, _ = ARRAYS[name]
    chunk = CHUNK if level.striped else 0
    array = geometry(level, disks, COMPONENT, layout=layout, chunk=chunk)
    return predict_load(array, limited(rate, disks, **more), load)


def simulated(name: str, load: Load, rate: float = 100) -> float:
    level, disks, layout, copies = ARRAYS[name]
    size = COMPONENT * disks
    [requests] = senders(load, size)
    return by_hand(
        *(copies, disks, rate, load.depth, load.seconds or 0.0, requests),
        lowest=layout is not None and layout.startswith("f"),
        stays=level is Level.RAID1,
    )


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("depth", [1, 8, 32])
def test_as_a_simulation_of_its_own(name: str, depth: int) -> None:
    """Every kind of array, depth and mix, each with another seed."""
    shares = (1.0,) if name.startswith("RAID 5") else (1.0, 0.7, 0.0)
    for share in shares:
        seed = depth + len(name) + round(10 * share)
        load = Load(block=4096, read_share=share, depth=depth, seconds=8, span=SPAN, seed=seed)
        found = predicted(name, load)
        near = simulated(name, load)
        assert found.iops == pytest.approx(near, rel=0.002 + found.doubt), share
        assert found.doubt < 0.03


def read_by_six(seconds: float) -> Load:
    return Load(block=4096, read_share=1, depth=8, seconds=seconds, span=SPAN)


@pytest.mark.parametrize(("seconds", "iops"), [(6, 850.7), (30, 848.0)])
def test_a_whole_run_is_followed_as_measured(seconds: float, iops: float) -> None:
    # measured in virtual time, Linux 6.1, fio 3.33
    found = predicted("RAID 0 of 6", read_by_six(seconds), rate=150)
    assert found.iops == pytest.approx(iops, rel=0.001)
    assert found.doubt == 0


def test_control_the_first_of_its_requests_miss_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "FOLLOWED", 1500)
    found = predicted("RAID 0 of 6", read_by_six(30), rate=150)
    assert abs(found.iops / 848 - 1) > 0.01
    assert abs(found.iops / 848 - 1) < found.doubt


def test_what_was_not_followed_lies_within_the_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [
        Load(block=4096, read_share=share, depth=depth, seconds=15, span=SPAN, seed=seed)
        for seed, share, depth in zip(range(3, 15), [1.0, 0.0] * 6, [4, 8, 16] * 4, strict=True)
    ]
    whole = [predicted("RAID 0 of 6", load).iops for load in loads]
    monkeypatch.setattr(concurrent, "FOLLOWED", 2500)
    cut = [predicted("RAID 0 of 6", load) for load in loads]
    off = [abs(c.iops / iops - 1) for c, iops in zip(cut, whole, strict=True)]
    assert sum(o <= c.doubt for o, c in zip(off, cut, strict=True)) >= 10
    assert max(off) > 0.005  # they do differ
    assert max(c.doubt for c in cut) < 0.1


def test_a_burst_that_is_not_over_is_not_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "FOLLOWED", 2500)
    load = Load(block=4096, read_share=1, depth=32, seconds=300, span=SPAN)
    with pytest.raises(concurrent.TooLongError):
        predicted("RAID 0 of 6", load, maximum=1000.0, burst_seconds=20)
    monkeypatch.setattr(concurrent, "FOLLOWED", 6000)
    over = predicted("RAID 0 of 6", load, maximum=200.0, burst_seconds=1)
    assert over.iops == pytest.approx(predicted("RAID 0 of 6", load).iops, rel=over.doubt + 0.02)


def test_places_that_nobody_knows_leave_a_doubt() -> None:
    loads = [
        Load(block=4096, read_share=1, depth=8, seconds=6, span=SPAN, seed=seed)
        for seed in range(1, 13)
    ]
    rates = [predicted("RAID 0 of 6", load).iops for load in loads]
    unknown = Load(block=4096, read_share=1, depth=8, seconds=6, span=SPAN, known=False)
    found = predicted("RAID 0 of 6", unknown)
    assert all(abs(rate / found.iops - 1) < found.doubt for rate in rates)
    assert found.doubt < 8 * stdev(rates) / fmean(rates)


# Measured in virtual time, 10 s, disks of 100 operations per second: fio's rwmixread, depth, IOPS.
MIXED = {
    "RAID 1 of 2": ((50, 8, 133.25), (80, 16, 166.65), (20, 2, 111.89)),
    "RAID 1 of 4": ((50, 8, 158.87), (80, 16, 248.1), (20, 2, 117.87)),
    "RAID 10 n2 of 4": ((50, 8, 259.54), (80, 16, 328.09), (20, 2, 211.37)),
    "RAID 10 n3 of 4": ((50, 8, 198.49), (80, 16, 284.44), (20, 2, 153.43)),
}


def mixed(name: str, percent: int, depth: int) -> LoadPrediction:
    load = Load(block=4096, read_share=percent / 100, depth=depth, seconds=10, span=SPAN)
    return predicted(name, load)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_loads_on_mirrors_as_measured(name: str) -> None:
    for percent, depth, iops in MIXED[name]:
        found = mixed(name, percent, depth)
        off = abs(found.iops / iops - 1)
        assert off < 0.007
        assert off <= found.doubt < 0.03
        assert all(member.read_bytes for member in found.members)


def test_control_reads_that_do_not_see_writes_miss_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(reads: Reads, extent: Extent) -> None:
        reads.heads[extent.member] = extent.start + extent.size
        reads.pending[extent.member] = max(reads.pending[extent.member] - 1, 0)

    monkeypatch.setattr(concurrent.Simulation, "_count_writes", lambda *_: None)
    monkeypatch.setattr(Reads, "ended", ended)
    off = [abs(mixed("RAID 1 of 4", p, d).iops / iops - 1) for p, d, iops in MIXED["RAID 1 of 4"]]
    assert max(off) > 0.03


SCENARIO = """\
title: t
question: q
guest: {{clock: {clock}}}
disks: {{count: 4, size: 1GiB, throttle: {{total_operations_per_second: 200}}}}
array: {{level: 10, chunk: 64KiB, component_size: 256MiB}}
workloads:
  - {{name: job, tool: fio, ioengine: libaio, direct: 1, bs: 4k, rw: randread, iodepth: 32,
     numjobs: 8, size: 100%, runtime: 20, time_based: 1, randrepeat: 0, norandommap: 1}}
"""


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_job_file_of_many_jobs_is_predicted(tmp_path: Path, clock: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(SCENARIO.format(clock=clock))
    found = {p.metric: p for p in predictions(compile_scenario(file).cells[0])}["iops"]
    # measured in virtual time: 786
    assert abs(found.value / 786 - 1) <= found.doubt + 0.001
    assert 0 < found.doubt < 0.05
