"""Disks for virtual time without a guest: throttle, region, initramfs."""

from __future__ import annotations

import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from drive import cpio, region, sealed
from drive.drive import PARAMETERS

DRIVE = Path(__file__).parents[2] / "drive"
CASES = DRIVE / "tests" / "throttle-cases.txt"

Case = tuple[str, list[int], list[int]]
"""Name, arrival and start times of a case's requests, in nanoseconds."""


def compiled(source: Path, program: Path) -> Path:
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True, timeout=60
    )
    return program


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(DRIVE / "tests" / "replay.c", tmp_path_factory.mktemp("replay") / "replay")


def recorded() -> list[Case]:
    """Return QEMU's own times."""
    cases: list[Case] = []
    for line in CASES.read_text().splitlines():
        words = line.split()
        if words[0] == "case":
            cases.append((words[1], [], []))
        elif words[0] == "r":
            cases[-1][1].append(int(words[1]))
            cases[-1][2].append(int(words[1]) + int(words[5]))
    return cases


def replayed(replay: Path, parts_per_million: int = 0) -> dict[str, list[int]]:
    text = "".join(
        line + "\n" for line in CASES.read_text().splitlines() if not line.startswith("#")
    )
    done = subprocess.run(
        [replay, str(parts_per_million)],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    begins: dict[str, list[int]] = {}
    for word in done.stdout.replace("case ", "case:").split():
        if word.startswith("case:"):
            begins[word.removeprefix("case:")] = []
        else:
            begins[[*begins][-1]].append(int(word))
    return begins


def test_requests_begin_when_qemu_lets_them_begin_within_a_nanosecond(replay: Path) -> None:
    ours = replayed(replay)
    for name, arrivals, theirs in recorded():
        assert sum(b > a for a, b in zip(arrivals, theirs, strict=True)) >= 30, f"{name}: idle"
        # Never early. QEMU cuts its wait, a double, to whole nanoseconds. If the exact wait is a
        # whole number, the double may be slightly smaller.
        late = [b - a for a, b in zip(theirs, ours[name], strict=True)]
        assert set(late) <= {0, 1}, name


def test_every_limit_and_group_is_among_the_recorded_cases() -> None:
    lines = [line.split() for line in CASES.read_text().splitlines()]
    limits = [list(map(int, words[1:])) for words in lines if words[0] == "l"]
    assert {limit[0] for limit in limits} == set(range(6))
    assert any(limit[2] for limit in limits)
    assert any(limit[3] > 1 for limit in limits)
    heads = [words for words in lines if words[0] == "case"]
    assert {int(words[2]) for words in heads} >= {1, 2, 3, 64}
    assert any(int(words[3]) for words in heads)


def test_a_bucket_a_tenth_of_a_percent_off_is_caught_in_every_case(replay: Path) -> None:
    # Or by one, if that is more: rates are whole numbers.
    wrong = replayed(replay, parts_per_million=1000)
    for name, _, theirs in recorded():
        assert max(abs(a - b) for a, b in zip(theirs, wrong[name], strict=True)) > 1000, name


def test_errors_do_not_add_up(replay: Path, tmp_path: Path) -> None:
    # 50,000 requests of 4096 bytes, at 3,333,333 bytes/s and at 977 operations of 1000 bytes/s.
    requests = 50_000
    for limits, op_size, first, step in (
        ("l 0 3333333 0 0", 0, 333_333.3, 4096 / 3_333_333),
        ("l 3 977 0 0", 1000, 97.7, 4.096 / 977),
    ):
        text = f"case long 1 {op_size}\n{limits}\n" + "r 0 0 1 4096\n" * requests
        done = subprocess.run(
            [replay], input=text, capture_output=True, text=True, check=True, timeout=60
        )
        last = int(done.stdout.split()[-1])
        poured = (requests - 1) * (4096 if op_size == 0 else 4.096)
        rate = (4096 if op_size == 0 else 4.096) / step
        assert abs(last - (poured - first) / rate * 1e9) <= 2


def test_python_and_c_agree_on_the_layout(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(
        f"""
#include <stdio.h>
#include <stddef.h>
#include "{DRIVE}/region.h"
int main(void) {{
    printf("%zu %zu %zu %zu %zu %zu %d %d\\n", sizeof(struct lab_header), sizeof(struct lab_state),
        offsetof(struct lab_entry, limits), sizeof(struct lab_bad),
        offsetof(struct lab_entry, statistics), sizeof(struct lab_statistics),
        sizeof(struct lab_entry) <= LAB_ENTRY, LAB_MAGIC == {region.MAGIC}ull);
    printf("%d %d %d %d %d\\n", LAB_BLOCK, 1 << LAB_MAP_SHIFT, LAB_ENTRY, LAB_BAD_RANGES,
        LAB_DISKS);
    printf("%zu %zu %zu %zu %zu %zu\\n", offsetof(struct lab_entry, drive),
        sizeof(struct lab_drive_parameters), offsetof(struct lab_entry, undo),
        offsetof(struct lab_entry, drive_statistics), sizeof(struct lab_drive_statistics),
        sizeof(struct lab_undo));
    printf("%d %d %d %d %d %d\\n", LAB_ABSENT, LAB_ROTATIONAL, LAB_WRITE_BACK, LAB_PARTITIONS,
        LAB_BASE, LAB_READ_ONLY);
}}
"""
    )
    text = subprocess.run(
        [compiled(source, tmp_path / "layout")], capture_output=True, text=True, check=True
    ).stdout
    lines = [list(map(int, line.split())) for line in text.splitlines()]
    assert lines[0] == [
        *(region.HEADER.size, region.STATE.size, region.ENTRY_HEAD.size, region.BAD.size),
        *(region.STATISTICS_AT, region.STATISTICS.size, 1, 1),
    ]
    assert lines[1] == [
        *(region.BLOCK, region.MAP_ENTRIES, region.ENTRY),
        *(region.BAD_RANGES, region.MAX_DISKS),
    ]
    assert lines[2] == [
        *(region.DRIVE_AT, PARAMETERS.size, region.UNDO_AT, region.DRIVE_STATISTICS_AT),
        *(region.DRIVE_STATISTICS.size, region.UNDO.size),
    ]
    assert lines[3] == [
        *(region.ABSENT, region.ROTATIONAL, region.WRITE_BACK),
        *(region.PARTITIONS, region.BASE, region.READ_ONLY),
    ]


def test_64_disks_of_12_tib_take_no_space(tmp_path: Path) -> None:
    path = tmp_path / "region"
    disks = [region.Disk(serial=f"d{n}", size=region.LARGEST_DISK) for n in range(64)]
    own = region.create(path, disks, size=1 << 37, commands=b"true\n")
    assert path.stat().st_blocks * 512 < 1 << 20
    state = region.read(own)
    assert list(state.disks) == [f"d{n}" for n in range(64)]
    assert state.phase is region.Phase.NOT_LOADED
    assert state.status is None
    assert region.contents(own, 63, region.LARGEST_DISK - 4096, 4096) == bytes(4096)


def test_a_region_is_copied_with_its_holes_and_its_digest_sees_every_byte(tmp_path: Path) -> None:
    path, other = tmp_path / "region", tmp_path / "copy"
    region.create(path, [region.Disk(serial="a", size=1 << 30)], size=1 << 30, commands=b"sync\n")
    region.copy(path, other)
    assert region.digest(path) == region.digest(other)
    assert other.stat().st_blocks * 512 < 1 << 20
    with other.open("r+b") as file:
        file.seek((1 << 30) - 1)
        file.write(b"\1")
    assert region.digest(path) != region.digest(other)


ROOT = region.Disk(serial="root", size=3 << 30, flags=region.BASE)


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def saved_region(path: Path, blocks: int = 1000) -> region.Region:
    """Write a region as a guest leaves it that has written one block of its root disk."""
    own = region.create(path, [ROOT], size=region.SMALLEST, blocks=blocks, commands=b"setup\n")
    header, place = own.header, own.places[0]
    put(path, header.state, region.STATE.pack(1, 0, 10, 4, 0, 9, 0, 5, 0, 3, 0, 77))
    put(path, header.output[0], b"hello")
    put(path, header.log[0], b"log")
    put(path, place.map + 4 * 7, (4).to_bytes(4, "little"))  # block 7 of the disk is the third
    put(path, place.present, b"\1")
    put(path, header.link + 4 * 3, (9).to_bytes(4, "little"))
    put(path, header.data + 3 * region.BLOCK + 100, b"superblock")
    counters = region.STATISTICS.pack(*range(13))
    put(path, header.table + region.STATISTICS_AT, counters)
    return own


def test_a_saved_guests_root_disk_is_grafted_into_a_region_with_more_disks(tmp_path: Path) -> None:
    old = saved_region(tmp_path / "old")
    disks = [ROOT, *(region.Disk(serial=f"d{n}", size=1 << 40) for n in range(5))]
    new = region.create(
        tmp_path / "new", disks, size=region.SMALLEST, blocks=5000, commands=b"cell\n"
    )
    region.graft(old, new)
    was, now = region.read(old), region.read(new)
    assert (now.phase, now.output, now.log, now.clock, now.blocks_used) == (
        *(region.Phase.RUNNING, b"hello", "log", 77, 9),
    )
    assert now.disks["root"] == was.disks["root"]
    assert now.disks["root"].waited == 12
    assert list(now.disks) == ["root", "d0", "d1", "d2", "d3", "d4"]
    at = 7 * region.BLOCK
    assert region.contents(new, 0, at, region.BLOCK) == region.contents(old, 0, at, region.BLOCK)
    assert b"superblock" in region.contents(new, 0, at, region.BLOCK)
    with new.path.open("rb") as file:
        assert region._at(file, new.header.link + 4 * 3, 4) == (9).to_bytes(4, "little")
        assert region._at(file, new.header.input[0], 5) == b"cell\n"
    assert old.header.data != new.header.data
    assert new.path.stat().st_blocks * 512 < 1 << 20


def test_a_graft_does_not_depend_on_how_the_files_are_allocated(tmp_path: Path) -> None:
    old = saved_region(tmp_path / "old")
    one, two = (
        region.create(tmp_path / name, [ROOT], size=region.SMALLEST, blocks=5000)
        for name in ("one", "two")
    )
    region.reserve(two)
    region.graft(old, one)
    region.graft(old, two)
    assert region.digest(one.path) == region.digest(two.path)
    put(old.path, region.SMALLEST // 2, b"elsewhere")
    region.create(two.path, [ROOT], size=region.SMALLEST, blocks=5000)
    region.graft(old, two)
    assert region.digest(one.path) == region.digest(two.path)


@pytest.mark.parametrize(
    ("disks", "size", "blocks", "message"),
    [
        ([ROOT], region.SMALLEST, 9, "no room for it"),
        ([ROOT], 2 * region.SMALLEST, 1000, "no room for it"),
        ([], region.SMALLEST, 1000, "no room for it"),
        ([region.Disk(serial="root", size=3 << 30)], region.SMALLEST, 1000, "disk 0 is not the"),
        (
            [region.Disk(serial="root", size=4 << 30, flags=region.BASE)],
            *(region.SMALLEST, 1000, "disk 0 is not the saved guest's"),
        ),
    ],
)
def test_a_graft_that_does_not_fit_is_refused(
    tmp_path: Path, disks: list[region.Disk], size: int, blocks: int, message: str
) -> None:
    old = saved_region(tmp_path / "old")
    new = region.create(tmp_path / "new", disks, size=size, blocks=blocks)
    with pytest.raises(region.RegionError, match=message):
        region.graft(old, new)


def test_regions_have_few_sizes() -> None:
    assert region.size_for([ROOT], 1000) == region.SMALLEST
    assert region.size_for([ROOT], region.SMALLEST // region.BLOCK) == 2 * region.SMALLEST
    disks = [region.Disk(serial=f"d{n}", size=region.LARGEST_DISK) for n in range(64)]
    assert region.size_for(disks, (16 << 30) // region.BLOCK) == 128 << 30
    with pytest.raises(region.RegionError, match="there is room for"):
        region.size_for([ROOT], (512 << 30) // region.BLOCK)


@pytest.mark.parametrize("blocks", [1, 1000, 16 << 30 >> 16])
def test_a_region_of_the_size_for_its_blocks_holds_them(tmp_path: Path, blocks: int) -> None:
    disks = [region.Disk(serial=f"d{n}", size=region.LARGEST_DISK) for n in range(3)]
    size = region.size_for(disks, blocks)
    region.create(tmp_path / "region", disks, size=size, blocks=blocks)


@pytest.mark.parametrize(
    ("disk", "size", "message"),
    [
        (region.Disk(serial="a", size=13 << 40), 1 << 30, "at most 13194139533312"),
        (region.Disk(serial="a", size=513), 1 << 30, "whole blocks of 512"),
        (region.Disk(serial="a" * 33, size=512), 1 << 30, "at most 32 bytes"),
        (region.Disk(serial="a", size=512), 3 << 20, "whole 2 MiB"),
        (region.Disk(serial="a", size=12 << 40), 1 << 29, "room for 0 blocks"),
        (
            region.Disk(serial="a", size=512, limits={"bytes": region.Limit(1)}),
            1 << 30,
            r"limits \['bytes'\]: expected some of",
        ),
    ],
)
def test_what_no_region_can_hold_is_refused(
    tmp_path: Path, disk: region.Disk, size: int, message: str
) -> None:
    with pytest.raises(region.RegionError, match=message):
        region.create(tmp_path / "region", [disk], size=size)


def test_initramfs_is_read_by_cpio_and_is_the_same_each_time() -> None:
    files = {"init": (0o755, b"#!"), "modules/00-lab_disk.ko": (0o644, b"abc")}
    archive = cpio.initramfs(files)
    assert archive == cpio.initramfs(dict(reversed(files.items())))
    names = re.findall(rb"070701[0-9A-F]{104}([^\0]*)\0", archive)
    assert names == [b"modules", b"init", b"modules/00-lab_disk.ko", b"TRAILER!!!"]
    assert len(archive) % 4 == 0


def test_a_sealed_guest_has_nothing_that_answers_in_host_time(tmp_path: Path) -> None:
    for name in ("region", "base"):
        (tmp_path / name).write_bytes(bytes(4096))
    command = sealed.command(
        sealed.Guest(
            kernel=tmp_path / "kernel",
            initramfs=tmp_path / "initrd",
            region=tmp_path / "region",
            base=tmp_path / "base",
        )
    )
    devices = [word for flag, word in itertools.pairwise(command) if flag == "-device"]
    assert [device.split(",")[0] for device in devices] == ["nvdimm"] * 2
    assert not re.search(r"virtio|netdev|-nic|-serial|-monitor|-qmp|rng", " ".join(command))
    assert "clock=vm" in command[command.index("-rtc") + 1]
    assert command[command.index("-icount") + 1] == sealed.ICOUNT


def test_a_restored_guest_never_writes_to_the_saved_memory(tmp_path: Path) -> None:
    for name in ("region", "base"):
        (tmp_path / name).write_bytes(bytes(4096))
    guest = sealed.Guest(
        kernel=tmp_path / "kernel",
        initramfs=tmp_path / "initrd",
        region=tmp_path / "region",
        base=tmp_path / "base",
        memory_file=tmp_path / "memory",
    )

    def share(guest: sealed.Guest) -> str:
        command = sealed.command(guest)
        assert command[command.index("-machine") + 1].endswith(",memory-backend=ram")
        (memory,) = (word for word in command if f"mem-path={tmp_path}/memory," in word)
        return memory.rpartition(",")[2]

    assert share(guest) == "share=off"
    assert share(replace(guest, saves=True)) == "share=on"
