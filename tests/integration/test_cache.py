"""Volatile caches of drives in a region: which data is lost, at any end of the guest.

``drive/tests/cache.c`` runs random requests on the driver's code, in user space.
"""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drive import region
from drive.drive import Kind, Parameters

SOURCE = Path(__file__).parents[2] / "drive" / "tests" / "cache.c"
SPAN = 2 << 20
SIZE = 64 << 20
WRITE, THROUGH, FLUSH, READ, END = range(1, 6)
RECORD = struct.Struct("<5Q")
HDD = Parameters(
    kind=Kind.HDD,
    overhead=200_000,
    link_rate=300_000_000,
    cache=256 << 10,
    revolution=8_333_333,
    seek_a=500_000,
    seek_b=9_000_000,
    seek_c=5_000_000,
    seek_e=12_000_000,
    seek_limit=(1 << 62) // 3,
    write_settle=400_000,
    outer_rate=142_000_000,
    inner_rate=75_000_000,
    zones=16,
    read_ahead=1 << 20,
    queue_depth=32,
    ageing=30_000,
)
SSD = Parameters(
    kind=Kind.SSD,
    overhead=20_000,
    link_rate=470_000_000,
    cache=256 << 10,
    read_latency=89_300,
    write_latency=423_000,
    flush_latency=500_000,
    channels=8,
    page=16 << 10,
    gc_bytes=4 << 20,
    gc_stall=5_000_000,
)


@dataclass
class Sector:
    """Possible contents of a sector: versions that may be found after a loss."""

    versions: list[int] = field(default_factory=lambda: [0])
    safe: int = 0
    """Index of the newest version that is certainly on the medium."""
    open: set[int] = field(default_factory=set)
    """Versions of writes that have not completed."""
    torn: bool = False
    """A write without the cache has not completed, so it may be partial."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and a variant whose flushes never reach the drive."""
    directory = tmp_path_factory.mktemp("cache")
    found = []
    for name, flags in (("cache", ()), ("lost", ("-DLAB_TEST_LOST_FLUSH",))):
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o", directory / name]
        subprocess.run([*command, SOURCE], check=True, timeout=60)
        found.append(directory / name)
    return found[0], found[1]


class Bench:
    """A region with one drive, its expected contents, and programs that write to it."""

    def __init__(self, directory: Path, drive: Parameters) -> None:
        self.path, self.log = directory / "region", directory / "log"
        self.own = region.create(
            self.path,
            [region.Disk(serial="d", size=SIZE, flags=region.WRITE_BACK, drive=drive)],
            size=32 << 20,
            output_size=1 << 16,
            log_size=1 << 16,
            commands_size=1 << 16,
        )
        self.sectors = [Sector() for _ in range(SPAN // region.SECTOR)]

    def run(self, program: Path, seed: int, requests: int, kill_after: float = 0.0) -> None:
        """Run it to its end or until it is killed, and read its records."""
        with self.log.open("wb") as file:
            file.truncate(RECORD.size * 2 * requests + 8)
        words = [program, self.path, self.log, str(seed), str(requests)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            if kill_after:
                time.sleep(kill_after)
                process.kill()
            status = process.wait(timeout=60)
        assert status == 0 or (kill_after and status == -9)
        self.take_in(list(self.records()))

    def records(self) -> Iterator[tuple[int, int, int, int, int]]:
        raw = self.log.read_bytes()
        count = int.from_bytes(raw[:8], "little")
        yield from RECORD.iter_unpack(raw[8 : 8 + count * RECORD.size])

    def take_in(self, records: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Apply records in the order of completion; a flush makes earlier completed writes safe."""
        begun: dict[int, tuple[int, int, range, list[int]]] = {}
        for kind, tag, offset, length, zeros in records:
            if kind != END:
                touched = range(offset // region.SECTOR, (offset + length) // region.SECTOR)
                before = [len(s.versions) - 1 for s in self.sectors] if kind == FLUSH else []
                begun[tag] = (kind, 0 if zeros else tag, touched, before)
                continue
            kind, content, touched, before = begun.pop(tag)
            for sector, safe in zip(self.sectors, before, strict=False):
                sector.safe = max(sector.safe, safe)
            for sector in (self.sectors[n] for n in touched if kind in (WRITE, THROUGH)):
                sector.versions.append(content)
                if kind == THROUGH:
                    sector.safe = len(sector.versions) - 1
        for kind, content, touched, _ in begun.values():
            for sector in (self.sectors[n] for n in touched if kind in (WRITE, THROUGH)):
                sector.open.add(content)
                sector.torn |= kind == THROUGH

    def contents(self) -> list[tuple[int, ...]]:
        raw = region.contents(self.own, 0, 0, SPAN)
        return list(struct.iter_unpack("<64Q", raw))

    def wrong(self) -> list[int]:
        """Return sectors with unexpected contents."""
        found = []
        for n, (sector, words) in enumerate(zip(self.sectors, self.contents(), strict=True)):
            allowed = {*sector.versions[sector.safe :], *sector.open}
            if not sector.torn and (len(set(words)) > 1 or words[0] not in allowed):
                found.append(n)
        return found

    def newest(self) -> bool:
        """Return whether each sector has its last written data."""
        pairs = zip(self.sectors, self.contents(), strict=True)
        return all({s.versions[-1]} == set(words) for s, words in pairs)

    def settle(self) -> None:
        """Take the medium's contents as the new state; rewrite a partial sector."""
        for n, words in enumerate(self.contents()):
            self.sectors[n] = Sector(versions=[words[0]])
            if len(set(words)) > 1:
                whole = struct.pack("<Q", words[0]) * len(words)
                region.overwrite(self.own, 0, n * region.SECTOR, whole)


@pytest.mark.parametrize("drive", [HDD, SSD], ids=["hdd", "ssd"])
def test_what_was_flushed_is_never_lost_and_what_was_not_is(
    programs: tuple[Path, Path], tmp_path: Path, drive: Parameters
) -> None:
    bench = Bench(tmp_path, drive)
    lost = []
    for seed in range(1, 13):
        bench.run(programs[0], seed, 400)
        assert bench.newest()
        before = region.read(bench.own).disks["d"].drive["lost_bytes"]
        dirty = bench.contents()
        lost.append(region.lose_cache(bench.own)["d"])
        assert bench.wrong() == []
        changed = sum(a != b for a, b in zip(dirty, bench.contents(), strict=True))
        assert changed * region.SECTOR <= lost[-1]
        # The host counts the loss, and the undo log is empty.
        assert region.read(bench.own).disks["d"].drive["lost_bytes"] == before + lost[-1]
        assert region.lose_cache(bench.own) == {"d": 0}
        bench.settle()
    assert len(set(lost)) > 6
    assert max(lost) <= 2 * drive.cache


def test_a_cache_that_is_kept_is_on_the_medium(programs: tuple[Path, Path], tmp_path: Path) -> None:
    bench = Bench(tmp_path, HDD)
    bench.run(programs[0], 1, 400)
    assert region.keep_cache(bench.own) == {}
    assert region.lose_cache(bench.own) == {"d": 0}
    assert bench.newest()


@pytest.mark.parametrize("drive", [HDD, SSD], ids=["hdd", "ssd"])
def test_an_end_at_any_instruction_leaves_what_can_be_undone(
    programs: tuple[Path, Path], tmp_path: Path, drive: Parameters
) -> None:
    bench = Bench(tmp_path, drive)
    lost = 0
    for seed in range(1, 13):
        bench.run(programs[0], seed, 200_000, kill_after=0.005 + seed * 0.0007)
        lost += region.lose_cache(bench.own)["d"]
        assert bench.wrong() == []
        bench.settle()
    assert lost > 0


def test_undoing_that_was_interrupted_is_done_again(
    programs: tuple[Path, Path], tmp_path: Path
) -> None:
    bench = Bench(tmp_path, HDD)
    bench.run(programs[0], 5, 400)
    again = replace(bench.own, path=tmp_path / "again")
    region.copy(bench.path, again.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region, "keep_cache", lambda _path: {})  # as after an end before that
        region.lose_cache(again)
    region.lose_cache(again)
    region.lose_cache(bench.own)
    assert region.contents(again, 0, 0, SPAN) == region.contents(bench.own, 0, 0, SPAN)


@pytest.mark.parametrize("drive", [HDD, SSD], ids=["hdd", "ssd"])
def test_a_flush_that_does_not_wait_is_caught(
    programs: tuple[Path, Path], tmp_path: Path, drive: Parameters
) -> None:
    caught = 0
    for seed in range(1, 13):
        directory = tmp_path / str(seed)
        directory.mkdir()
        bench = Bench(directory, drive)
        bench.run(programs[1], seed, 400)
        region.lose_cache(bench.own)
        caught += bool(bench.wrong())
    assert caught >= 9


# --- the host's part alone, with any log that a driver may leave --------------------------------


@given(
    writes=st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 255), st.integers(0, 3)), max_size=24
    )
)
def test_the_log_is_undone_newest_first(
    writes: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each write changes some sectors of a page, and has its own slot."""
    path = tmp_path_factory.mktemp("undo") / "region"
    drive = Parameters(kind=Kind.HDD, cache=24 * region.PAGE)
    disk = region.Disk(serial="d", size=1 << 20, drive=drive)
    own = region.create(path, [disk], size=32 << 20, output_size=1 << 16, log_size=1 << 16)
    header, parts = own.header, own.places[0]
    pages = [bytes([n]) * region.PAGE for n in range(8)]
    with path.open("r+b") as file:

        def put(at: int, raw: bytes) -> None:
            file.seek(at)
            file.write(raw)

        put(parts.map, b"\1\0\0\0")  # the first block is the disk's first, as a driver leaves it
        put(parts.present, b"\1")
        now = [bytearray(page) for page in pages]
        for slot, (page, sectors, value) in enumerate(writes):
            old = bytes(now[page])
            zeros = 0
            for n in (n for n in range(8) if sectors >> n & 1):
                place = slice(n * region.SECTOR, (n + 1) * region.SECTOR)
                zeros |= (not any(old[place])) << n
                now[page][place] = bytes([value]) * region.SECTOR
            # The data of zero sectors are unused.
            kept = bytes(
                255 if zeros >> n // region.SECTOR & 1 else old[n] for n in range(region.PAGE)
            )
            put(
                parts.undo + slot * region.UNDO.size,
                region.UNDO.pack(page, slot + 1, sectors, zeros),
            )
            put(parts.undo_data + slot * region.PAGE, kept)
        put(header.data, b"".join(now))
    lost = region.lose_cache(own)
    assert lost == {"d": sum(s.bit_count() for _, s, _ in writes) * region.SECTOR}
    assert region.contents(own, 0, 0, 8 * region.PAGE) == b"".join(pages)


def test_undo_logs_lie_beside_each_other_and_have_space(tmp_path: Path) -> None:
    path = tmp_path / "region"
    disks = [
        region.Disk(serial=f"d{n}", size=1 << 40, drive=HDD if n % 2 else None) for n in range(8)
    ]
    own = region.create(path, disks, size=16 << 30, blocks=100)
    pairs = zip(disks, own.places, strict=True)
    places = [(p.undo, p.undo_data, disk.slots) for disk, p in pairs if disk.slots]
    spans = [
        span
        for undo, data, slots in places
        for span in ((undo, undo + slots * region.UNDO.size), (data, data + slots * region.PAGE))
    ]
    assert len(places) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] <= own.header.link
    assert spans[-1][1] - spans[0][0] == region.undo_size(disks)
    empty = path.stat().st_blocks * 512
    region.reserve(own)
    taken = path.stat().st_blocks * 512 - empty
    assert taken >= region.undo_size(disks) + 100 * region.BLOCK
    assert taken < region.undo_size(disks) + 104 * region.BLOCK
