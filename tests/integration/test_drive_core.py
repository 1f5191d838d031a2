"""The timing core ``drive.h``, compiled here and replayed with a simulated clock."""

from __future__ import annotations

import itertools
import math
import random
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drive.drive import LIMIT_ONE, PARAMETERS, Kind, Parameters
from lab.host.guest import servers
from lab.model.scenario.drive import HardDrive, SolidStateDrive, integers
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD
from tests.nbd import FLUSH, FUA, READ, WRITE, DiskServer, running

DRIVE = Path(__file__).parents[2] / "drive"
SIZE = 4 << 30
PAGE, SECTOR = 4096, 512
DISK = integers(HDD["hdd_7200"], "disk1")
SECOND = 1_000_000_000
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")


def compiled(directory: Path, old: str = "", new: str = "") -> Path:
    """Compile ``replay_drive``, with a text of the core replaced: a negative control."""
    for name in ("drive.h", "throttle.h", "tests/replay_drive.c"):
        text = (DRIVE / name).read_text()
        if old and name == "drive.h":
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    program = directory / "replay"
    source = directory / "tests" / "replay_drive.c"
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    flags = ("-O0",) if old else checks
    subprocess.run(["gcc", *STRICT, *flags, "-o", program, source], check=True, timeout=120)
    return program


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("replay"))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One input line: ``op`` read, write, flush, stall (until ``offset``) or lose."""

    time: int
    op: str
    offset: int = 0
    length: int = 0
    fua: bool = False

    def line(self, number: int) -> str:
        if self.op == "stall":
            return f"{number} {self.time} stall {self.offset}\n"
        if self.op == "lose":
            return f"{number} {self.time} lose\n"
        return f"{number} {self.time} {self.op} {int(self.fua)} {self.offset} {self.length}\n"


def head(drive: Parameters, size: int = SIZE, start: int = 0) -> str:
    return f"drive {size} {start} {' '.join(drive.words())}\n"


def run(program: Path, text: str, *options: str) -> list[str]:
    done = subprocess.run(
        [program, *options], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def replayed(
    program: Path, drive: Parameters, arrivals: Sequence[Arrival], *options: str, size: int = SIZE
) -> list[str]:
    text = head(drive, size) + "".join(a.line(n) for n, a in enumerate(arrivals))
    return run(program, text, *options)[1:]


def closed_loop(
    program: Path, drive: Parameters, depth: int, count: int, *, seed: int = 1, size: int = SIZE
) -> list[tuple[int, int]]:
    """Return arrival and completion of random reads of 4 KiB."""
    lines = run(program, head(drive, size) + f"closed {depth} {count} {PAGE} {seed}\n")[1:]
    words = [line.split() for line in lines]
    return [(int(w[1]), int(w[7])) for w in words]


def one_at_a_time(
    program: Path, drive: Parameters, requests: Sequence[Arrival], *, size: int = SIZE
) -> list[int]:
    """Return the nanoseconds of each request; the drive is idle between them."""
    gap = 10 * SECOND
    spread = [replace(r, time=(n + 1) * gap) for n, r in enumerate(requests)]
    lines = [line.split() for line in replayed(program, drive, spread, size=size)]
    return [int(w[7]) - int(w[1]) for w in lines]


# --- every case -----------------------------------------------------------------------------------


@dataclass
class Watch:
    """Checks conditions that the events of every replay must satisfy."""

    drive: Parameters
    arrivals: Sequence[Arrival]
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Page and dirty sectors by slot."""
    born: dict[int, int] = field(default_factory=dict)
    """By slot: a number for each time that it became dirty."""
    acknowledged: int = 0
    lost: set[int] = field(default_factory=set)
    flushes_waited: int = 0

    def check(self, lines: Sequence[str]) -> None:
        ended: dict[int, int] = {}
        before = arrived = 0
        pending: dict[int, set[int]] = defaultdict(set)
        numbers = [n for n, a in enumerate(self.arrivals) if a.op == "flush"]
        for line in lines:
            words = line.split()
            if words[1] in ("dirty", "clean"):
                when = int(words[0])
            elif words[2] in ("stall", "lose"):
                when = int(words[1])
            else:
                when = int(words[7])
            assert when >= before, "events are in order of time"
            # A flush must wait for all sectors that were dirty when it arrived.
            while arrived < len(numbers) and self.arrivals[numbers[arrived]].time < when:
                pending[numbers[arrived]] = set(self.born.values())
                arrived += 1
            before = when
            if words[1] == "dirty":
                self._dirty(words)
            elif words[1] == "clean":
                self._clean(words)
            elif words[2] == "lose":
                self._lose(int(words[4]))
            elif words[2] != "stall":
                number = int(words[0])
                arrival = self.arrivals[number]
                assert number not in ended
                ended[number] = when
                assert when >= arrival.time + self.drive.overhead
                failed = words[-1] == "failed"
                assert not failed or arrival.op == "flush"
                if arrival.op == "flush":
                    waits = pending.pop(number, set())
                    assert not waits & set(self.born.values()), "a flush did not wait"
                    assert failed or not waits & self.lost, "a flush hides a loss"
                    self.flushes_waited += bool(waits)
                if arrival.op == "write" and self._through(arrival):
                    self._nothing_dirty(arrival)
        assert len(ended) == sum(a.op not in ("stall", "lose") for a in self.arrivals)
        if self.drive.kind == Kind.HDD:
            assert not self.slots, "an idle arm cleans everything"

    def _through(self, arrival: Arrival) -> bool:
        pages = -(-(arrival.offset + arrival.length) // PAGE) - arrival.offset // PAGE
        return arrival.fua or pages > self.drive.cache // PAGE

    def _nothing_dirty(self, arrival: Arrival) -> None:
        for page, sectors in self.slots.values():
            for sector in range(8):
                at = page * PAGE + sector * SECTOR
                inside = arrival.offset <= at < arrival.offset + arrival.length
                assert not (inside and sectors >> sector & 1)

    def _dirty(self, words: Sequence[str]) -> None:
        page, sectors, known, slot = map(int, words[2:6])
        number = int(words[6])
        assert slot < self.drive.cache // PAGE
        assert self.slots.get(slot, (page, 0)) == (page, known)
        assert sectors
        if not known:
            self.acknowledged += 1
            self.born[slot] = self.acknowledged
        self.slots[slot] = (page, known | sectors)
        assert sum(p == page for p, _ in self.slots.values()) <= 2
        arrival = self.arrivals[number]
        assert arrival.op == "write"
        assert not self._through(arrival)

    def _clean(self, words: Sequence[str]) -> None:
        page, sectors, slot = map(int, words[2:5])
        of, dirty = self.slots[slot]
        assert of == page
        assert sectors
        assert sectors & ~dirty == 0, "cleaned what was not dirty"
        if dirty == sectors:
            del self.slots[slot], self.born[slot]
        else:
            self.slots[slot] = (page, dirty & ~sectors)

    def _lose(self, counted: int) -> None:
        assert counted == sum(s.bit_count() for _, s in self.slots.values()) * SECTOR
        self.lost |= set(self.born.values())
        self.slots.clear()
        self.born.clear()


TIME = st.integers(0, 20_000_000)
RATE = st.integers(10_000_000, 3 * 10**9)


@st.composite
def drives(draw: st.DrawFn) -> Parameters:
    cache = draw(st.sampled_from([0, PAGE, 5 * PAGE, 128 << 10, 1 << 20]))
    common = {"overhead": draw(st.integers(0, 400_000)), "link_rate": draw(RATE), "cache": cache}
    if draw(st.booleans()):  # what measured drives do
        common |= {
            "link_command": draw(st.integers(0, 50_000)),
            "wake": draw(st.integers(0, 10**6)),
            "wake_after": draw(st.sampled_from([0, 1000, 10**6])),
        }
    if draw(st.booleans()):
        return Parameters(
            kind=Kind.SSD,
            **common,
            read_latency=draw(st.integers(0, 10**6)),
            write_latency=draw(st.integers(0, 10**6)),
            flush_latency=draw(st.integers(0, 10**6)),
            channels=draw(st.integers(1, 9)),
            page=draw(st.sampled_from([512, 4096, 16384])),
            gc_bytes=draw(st.sampled_from([0, 65536, 1 << 20])),
            gc_stall=draw(TIME),
        )
    return Parameters(
        kind=Kind.HDD,
        **common,
        seed=draw(st.integers(0, 2**31)),
        revolution=draw(st.sampled_from([0, 4_000_000, 8_333_333])),
        seek_a=draw(st.integers(0, 10**6)),
        seek_b=draw(TIME),
        seek_c=draw(st.integers(-(10**6), 10**7)),
        seek_e=draw(TIME),
        seek_limit=draw(st.integers(0, LIMIT_ONE)),
        write_settle=draw(st.integers(0, 10**6)),
        outer_rate=draw(RATE),
        inner_rate=draw(RATE),
        zones=draw(st.integers(1, 256)),
        read_ahead=draw(st.sampled_from([0, 65536, 2 << 20])),
        queue_depth=draw(st.sampled_from([1, 2, 32])),
        ageing=draw(st.integers(0, 10**6)),
        lead=draw(st.sampled_from([0, 0, 1, 3])),
        oldest_share=draw(st.sampled_from([0, 0, 50_000, 400_000, 10**6])),
        seek_only=draw(st.integers(0, 1)),
        write_places=draw(st.sampled_from([0, 0, 1, 2, 7])),
        write_choice=draw(st.sampled_from([0, 0, 1, 3, 256])),
    )


@st.composite
def requests(draw: st.DrawFn, size: int) -> list[Arrival]:
    """Draw bursts of requests over few places, so that they overlap."""
    seed = draw(st.integers(0, 2**32))
    number = random.Random(seed)
    span = min(size, number.choice([64 << 10, 2 << 20, size])) // SECTOR
    found: list[Arrival] = []
    now = 0
    for _ in range(draw(st.integers(1, 120))):
        now += number.choice([0, 0, 1, 1000, 100_000, 3_000_000, 60_000_000])
        kind = number.random()
        length = number.choice([1, 3, 8, 8, 8, 64, 300]) * SECTOR
        length = min(length, span * SECTOR)
        offset = number.randrange(span - length // SECTOR + 1) * SECTOR
        if kind < 0.40:
            found.append(Arrival(now, "read", offset, length))
        elif kind < 0.85:
            found.append(Arrival(now, "write", offset, length, fua=number.random() < 0.1))
        elif kind < 0.96:
            found.append(Arrival(now, "flush"))
        elif kind < 0.98:
            found.append(Arrival(now, "stall", now + number.choice([0, 5_000_000, 200_000_000])))
        else:
            found.append(Arrival(now, "lose"))
    return found


SMALL_SIZE = 8 << 20
CASES = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@CASES
@given(drives(), requests(SMALL_SIZE), st.integers(0, 2**32))
def test_late_advances_change_nothing(
    replay: Path, drive: Parameters, arrivals: list[Arrival], seed: int
) -> None:
    text = head(drive, SMALL_SIZE) + "".join(a.line(n) for n, a in enumerate(arrivals))
    polled = run(replay, text, "events")
    assert len(polled) > len(arrivals)
    late = run(replay, text, "events", "late", str(seed))
    # A late advance reports earlier events later, so other lines may have another order.
    commands = ("stall", "lose")
    told = [
        [w for w in out if w.split()[2:3] not in ([c] for c in commands)] for out in (polled, late)
    ]
    assert told[0] == told[1]


@CASES
@given(drives(), requests(SMALL_SIZE))
def test_a_caller_that_sleeps_until_it_is_needed_is_never_late(
    replay: Path, drive: Parameters, arrivals: list[Arrival]
) -> None:
    text = head(drive, SMALL_SIZE) + "".join(a.line(n) for n, a in enumerate(arrivals))
    assert run(replay, text, "events", "wake") == run(replay, text, "events")


def seeks(count: int = 400) -> list[Arrival]:
    """Return reads in an eighth of the disk, and writes that a flush follows, far apart."""
    number, found = random.Random(5), []
    for n in range(count):
        offset = number.randrange(SIZE // PAGE // 8) * PAGE
        found.append(Arrival(n * 40_000_000, "write" if n % 2 else "read", offset, PAGE))
        if n % 2:
            found.append(Arrival(n * 40_000_000 + 4_000_000, "flush"))
    return found


def test_a_caller_sleeps_while_commands_become_ready(replay: Path, tmp_path: Path) -> None:
    text = head(DISK, SIZE) + "".join(a.line(n) for n, a in enumerate(seeks()))
    wakes = []
    for program in (
        replay,
        compiled(
            tmp_path,
            "if (r->step != LAB_STEP_READY",
            "if (d)\n\t\treturn r->time;\n\tif (r->step != LAB_STEP_READY",
        ),
    ):
        done = subprocess.run(
            [program, "wake"], input=text, capture_output=True, text=True, timeout=120, check=True
        )
        wakes.append(int(done.stderr.split()[0]))
    assert wakes[0] < 0.75 * wakes[1]


def test_a_caller_that_sleeps_too_long_is_caught(tmp_path: Path) -> None:
    program = compiled(tmp_path, "first) + last - first);", "first) + d->p.revolution);")
    assert any("late" in line for line in replayed(program, DISK, seeks(), "wake"))


def test_lateness_that_adds_up_is_caught(tmp_path: Path) -> None:
    program = compiled(tmp_path, "lab_most(d->clock, t);", "lab_most(d->clock, now);")
    assert replayed(program, DISK, busy()) != replayed(program, DISK, busy(), "late", "1")


@CASES
@given(drives(), requests(SMALL_SIZE))
def test_what_must_hold_for_every_drive_holds(
    replay: Path, drive: Parameters, arrivals: list[Arrival]
) -> None:
    Watch(drive, arrivals).check(replayed(replay, drive, arrivals, "events", size=SMALL_SIZE))


def busy(count: int = 600) -> list[Arrival]:
    """Return writes all over the disk with some flushes."""
    number = random.Random(4)
    found = []
    for n in range(count):
        offset = number.randrange(SIZE // PAGE) * PAGE
        found.append(
            Arrival(n * 1_000_000, "flush")
            if n % 10 == 9
            else Arrival(n * 1_000_000, "write", offset, PAGE)
        )
    return found


@pytest.mark.parametrize("preset", [HDD["hdd_7200"], SSD["ssd_sata"]], ids=["hdd", "ssd"])
def test_flushes_wait_for_what_was_acknowledged_before(
    replay: Path, preset: HardDrive | SolidStateDrive
) -> None:
    drive = integers(preset, "disk1")
    watch = Watch(drive, busy())
    watch.check(replayed(replay, drive, busy(), "events"))
    assert watch.flushes_waited >= 50


def test_a_flush_that_does_not_wait_is_caught(tmp_path: Path) -> None:
    program = compiled(tmp_path, "		if (d->used)\n", "		if (0)\n")
    with pytest.raises(AssertionError, match="a flush did not wait"):
        Watch(DISK, busy()).check(replayed(program, DISK, busy(), "events"))


def test_a_flush_that_hides_a_loss_is_caught(replay: Path, tmp_path: Path) -> None:
    old = "		d->request[r].failed |= oldest < d->request[r].stamp;\n\t\tlab_drive_schedule"
    program = compiled(tmp_path, old, "\t\tlab_drive_schedule")
    for later in (20_000_000, 2_000_001):  # while it waits, and before it is in the queue
        arrivals = [
            *(Arrival(0, "write", n << 24, PAGE) for n in range(20)),
            Arrival(2_000_000, "flush"),
            Arrival(later, "lose"),
        ]
        found = replayed(replay, DISK, arrivals, "events")
        Watch(DISK, arrivals).check(found)
        assert sum(line.endswith("failed") for line in found) == 1
        if later == 20_000_000:
            with pytest.raises(AssertionError, match="a flush hides a loss"):
                Watch(DISK, arrivals).check(replayed(program, DISK, arrivals, "events"))


def test_a_large_cache_on_a_large_disk_is_kept_in_order(replay: Path) -> None:
    """65,536 pages on 12 TiB: C-LOOK goes up over the disk, then again from its start."""
    drive = replace(DISK, cache=256 << 20)
    number = random.Random(1)
    size = 12 << 40
    writes = [
        Arrival(n * 20_000, "write", number.randrange(size // PAGE) * PAGE, PAGE)
        for n in range(30_000)
    ]
    lines = replayed(replay, drive, [*writes, Arrival(10**9, "lose")], "events", size=size)
    cleaned = [int(line.split()[2]) for line in lines if line.split()[1] == "clean"]
    assert 100 < len(cleaned) < 1000
    falls = sum(a > b for a, b in itertools.pairwise(cleaned))
    assert falls <= 1
    lost = [int(line.split()[4]) for line in lines if line.split()[2] == "lose"]
    assert lost == [(30_000 - len(cleaned)) * PAGE]


# --- angles, seeks, rates -------------------------------------------------------------------------

NO_SEEKS = {"seek_a": 0, "seek_b": 0, "seek_c": 0, "seek_e": 0}


def angles(program: Path, seeds: Sequence[int]) -> list[int]:
    read = Arrival(0, "read", 1 << 30, PAGE).line(0)
    text = "".join(head(replace(DISK, seed=seed)) + read for seed in seeds)
    return [int(line.split()[7]) for line in run(program, text) if line != "drive"]


def angles_differ(program: Path) -> bool:
    return len(set(angles(program, range(64)))) == 64


def test_each_seed_is_an_angle(replay: Path, tmp_path: Path) -> None:
    assert angles(replay, [7, 7]) == [angles(replay, [7])[0]] * 2
    assert angles_differ(replay)
    # The golden ratio distributes them evenly over the revolution.
    found = sorted(angles(replay, range(64)))
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert max(gaps) < 3 * DISK.revolution / 64


def test_an_angle_that_ignores_the_seed_is_caught(tmp_path: Path) -> None:
    program = compiled(tmp_path, "(p->seed * 0x9e3779b97f4a7c15ull)", "0x9e3779b97f4a7c15ull")
    assert not angles_differ(program)


def test_the_mean_wait_for_the_platter_is_half_a_revolution(replay: Path) -> None:
    drive = replace(DISK, **NO_SEEKS, read_ahead=0, overhead=0, write_settle=0)
    count = 4000
    found = closed_loop(replay, drive, 1, count)
    transfer = PAGE * sum(1 / rate for rate in zone_rates(drive)) / drive.zones * SECOND
    mean = sum(end - begin for begin, end in found) / count - transfer
    spread = drive.revolution / math.sqrt(12 * count)
    assert abs(mean - drive.revolution / 2) < 4 * spread


def zone_rates(drive: Parameters) -> list[int]:
    step = drive.inner_rate - drive.outer_rate
    last = max(drive.zones - 1, 1)
    return [drive.outer_rate + int(step * z / last) for z in range(drive.zones)]


@pytest.mark.parametrize("preset", HDD.values(), ids=HDD)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_seeks_follow_the_curve(replay: Path, preset: HardDrive, write: bool) -> None:
    drive = replace(integers(preset, "d"), revolution=0, read_ahead=0, cache=0, overhead=0)
    number = random.Random(2)
    places = [number.randrange(SIZE // PAGE) * PAGE for _ in range(400)]
    op = "write" if write else "read"
    found = one_at_a_time(replay, drive, [Arrival(0, op, at, PAGE) for at in places])
    rates = zone_rates(drive)
    link = PAGE / drive.link_rate * SECOND
    at = 0
    seeks = 0
    for place, took in zip(places, found, strict=True):
        media = PAGE / rates[min(place * drive.zones // SIZE, drive.zones - 1)] * SECOND
        transfer = link + media if write else max(link, media)
        if abs(place - at) > 1 << 20:  # otherwise it is the same track
            expected = preset.seek_curve(abs(place - at) / SIZE) + write * preset.write_settle
            assert took == pytest.approx(expected * SECOND + transfer, abs=4)
            seeks += 1
        at = place + PAGE
    assert seeks > 390


@pytest.mark.parametrize("zone", [0, 7, 15])
def test_a_stream_has_its_zones_rate_to_the_nanosecond(replay: Path, zone: int) -> None:
    """Queued reads, one after the other: the medium never stops, so no rounding adds up."""
    drive, block, count = DISK, 1 << 20, 30
    first = SIZE // drive.zones * zone
    reads = [Arrival(bool(n) * 300_000, "read", first + n * block, block) for n in range(count)]
    lines = [line.split() for line in replayed(replay, drive, reads)]
    ends = [int(w[7]) for w in lines]
    assert [int(w[0]) for w in lines] == list(range(count))
    expected = (count - 1) * block / zone_rates(drive)[zone] * SECOND
    assert ends[-1] - ends[0] == pytest.approx(expected, abs=2)


def test_a_cached_write_does_not_wait_for_a_read_of_the_medium(replay: Path) -> None:
    """The link is free during seeks."""
    lines = replayed(
        replay,
        DISK,
        [Arrival(0, "read", 1 << 31, PAGE), Arrival(1_000_000, "write", 0, PAGE)],
    )
    (number, arrival, *_), end = lines[0].split(), int(lines[0].split()[7])
    assert number == "1"
    assert end - int(arrival) == pytest.approx(
        DISK.overhead + PAGE / DISK.link_rate * SECOND, abs=1
    )


def test_a_stalled_drive_turns_on(replay: Path) -> None:
    """After a stall a write of one place waits as long as without it: the platter kept turning."""
    drive = replace(DISK, cache=0, overhead=0)
    write = Arrival(0, "write", 1 << 30, PAGE)
    plain = replayed(replay, drive, [write, replace(write, time=10**9)])
    stalled = replayed(
        replay,
        drive,
        [write, Arrival(5 * 10**8, "stall", 10**9), replace(write, time=6 * 10**8)],
    )
    assert plain[-1].split()[7] == stalled[-1].split()[7]


# --- layout ---------------------------------------------------------------------------------------


def test_python_and_c_agree_on_the_parameters(tmp_path: Path) -> None:
    names = [f.name for f in fields(Parameters)]
    offsets = ", ".join(f"offsetof(struct lab_drive_parameters, {name})" for name in names)
    source = tmp_path / "layout.c"
    source.write_text(
        f"""
#include <stdio.h>
#include <stddef.h>
#include "{DRIVE}/drive.h"
int main(void) {{
    size_t at[] = {{ {offsets} }};
    printf("%zu %d %d\\n", sizeof(struct lab_drive_parameters), LAB_DRIVE_HDD, LAB_DRIVE_SSD);
    for (unsigned i = 0; i < sizeof at / sizeof *at; i++) printf("%zu\\n", at[i]);
}}
"""
    )
    program = tmp_path / "layout"
    subprocess.run(["gcc", "-o", program, source], check=True, timeout=60)
    lines = run(program, "")
    assert lines[0] == f"{PARAMETERS.size} {Kind.HDD} {Kind.SSD}"
    assert [int(line) for line in lines[1:]] == [8 * n for n in range(len(names))]
    drive = replace(DISK, seek_c=-5)
    assert struct.unpack(f"<{len(names)}q", drive.pack()) == astuple(drive)


@CASES
@given(
    st.sampled_from([f.name for f in fields(Parameters) if f.name != "kind"]),
    st.sampled_from(
        [1, 2**50, 2**50 + 1, 256 << 20, (256 << 20) + PAGE, 10**15, 10**6, 5000, 6000]
    ),
    st.sampled_from([1 << 20, 12 << 40]),
    st.booleans(),
)
def test_what_python_takes_for_a_drive_the_core_takes(
    replay: Path, name: str, value: int, size: int, flash: bool
) -> None:
    plain = integers(SSD["ssd_sata"], "d") if flash else DISK
    limited = ("zones", "queue_depth", "channels", "page", "ageing", "seek_limit")
    if name in (*limited, "lead", "oldest_share", "write_choice"):
        value = min(value, 256)  # the scenario's fields have these limits
    if name == "seek_only":
        value = 1
    if name == "page":
        value = max(value, 512)
    if name.endswith("_rate"):
        value = min(value, 10**15)
    drive = replace(plain, **{name: value})
    taken = run(replay, head(drive, size)) == ["drive"]
    used = getattr(plain, name) or name in ("overhead", "cache")
    assert taken or list(drive.out_of_range(size))
    if used:
        assert taken is not bool(list(drive.out_of_range(size)))


def test_the_core_compiles_as_the_kernel_compiles(tmp_path: Path) -> None:
    source = tmp_path / "kernel.c"
    source.write_text(
        f"""
#include "{DRIVE}/drive.h"
u64 all(struct lab_drive *d, const struct lab_drive_parameters *p, const struct lab_drive_ops *o);
u64 all(struct lab_drive *d, const struct lab_drive_parameters *p, const struct lab_drive_ops *o)
{{
    u8 sectors;
    lab_drive_init(d, p, lab_drive_bytes(p), o, 0);
    lab_drive_submit(d, d, LAB_DRIVE_WRITE, true, 0, 4096, 0);
    lab_drive_stall(d, lab_drive_lose(d, 0), 0);
    lab_drive_advance(d, lab_drive_next(d));
    lab_drive_empty(d);
    return lab_drive_slot(d, 0, true, &sectors) + lab_drive_dirty(d);
}}
"""
    )
    for level in ("-O0", "-O2", "-Os"):
        flags = ("-ffreestanding", "-mno-sse", "-mno-mmx", "-mno-80387", "-nostdlib", "-fno-pic")
        warnings = ("-Wdeclaration-after-statement", "-Wconversion", "-Wno-sign-conversion")
        command = ["gcc", *STRICT, level, *flags, *warnings, "-c", source, "-o", tmp_path / "k.o"]
        subprocess.run(command, check=True, timeout=60)
        symbols = subprocess.run(
            ["nm", "-u", tmp_path / "k.o"], check=True, capture_output=True, text=True
        ).stdout
        assert set(symbols.replace(" U ", " ").split()) <= {"memcpy", "memset"}


# --- the disk server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(tmp_path_factory.mktemp("h")))
        yield


def mixed(server: DiskServer, count: int) -> None:
    """Send reads, writes, FUA and flushes, up to 12 in flight, with a stall and a loss."""
    client, number = server.client(), random.Random(3)
    for n in range(count):
        offset, length = (
            number.randrange(SIZE // PAGE - 64) * PAGE,
            number.choice([1, 8, 128]) * SECTOR,
        )
        kind = number.random()
        if kind < 0.4:
            client.submit(READ, offset, length)
        elif kind < 0.9:
            client.submit(WRITE, offset, data=bytes(length), flags=FUA * (kind > 0.85))
        else:
            client.submit(FLUSH)
        if n == count // 3:
            server.order("lose")
        if n == count // 2:
            server.order("stall release")
            time.sleep(0.05)
            server.order("release")
        while len(client.pending) >= 12:
            client.collect()
    while client.pending:
        client.collect()
    client.close()


@pytest.mark.skipif(bool(servers.missing_programs()), reason=f"needs {servers.PACKAGES}")
@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("speed", [0, 1])
@pytest.mark.parametrize("name", ["hdd", "usb", "ssd"])
def test_the_servers_log_replayed_gives_the_same_nanoseconds(
    replay: Path, tmp_path: Path, name: str, speed: int
) -> None:
    drive: HardDrive | SolidStateDrive = {
        "hdd": replace(HDD["hdd_7200"], write_cache=256 << 10),
        "usb": HDD["hdd_5400_usb"],
        "ssd": SSD["ssd_sata"],
    }[name]
    log = tmp_path / "log"
    with running(tmp_path, drive, size=SIZE, speed=speed, log=str(log)) as server:
        mixed(server, 400 if name == "ssd" else 150)
    logged = log.read_text()
    for options in ((), ("late", "1")):
        found = run(replay, logged, *options)
        assert sorted(found[1:]) == sorted(logged.splitlines()[1:])
        assert len(found) > 150
    # Negative control: a log with another angle, or with an arrival 1 us later, does not agree.
    changed: list[Callable[[str], str]] = [
        lambda text: text.replace(" overhead=", " overhead=1", 1),
        lambda text: text.replace("\n1 ", "\n1 1", 1),
    ]
    for change in changed:
        other = change(logged)
        assert sorted(run(replay, other)[1:]) != sorted(logged.splitlines()[1:])
