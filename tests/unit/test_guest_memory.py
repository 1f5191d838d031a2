"""A cell whose caches and buffers do not fit into its guest is refused before anything boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.core.errors import InputError
from tests.fakes import compiled_text

BASE = """\
title: T
question: Q?
guest: {memory: MEMORY, clock: CLOCK}
disks: {count: COUNT, size: 1GiB, DISK}
array: {ARRAY}
workloads:
  - {name: w, WORKLOAD}
"""
DD = "tool: dd, if: /dev/zero, of: '{target}', bs: 1MiB, count: 9"
FIO = "tool: fio, rw: randread, size: 64MiB, direct: 1, ioengine: libaio"
RAID5 = "level: 5, chunk: 64KiB, component_size: 128MiB"
MIB = 1 << 20


def refused(directory: Path, **given: str) -> str:
    """Return the message, or nothing."""
    usual = {"MEMORY": "512MiB", "CLOCK": "virtual", "COUNT": "8", "DISK": "throttle: 9MiB/s"}
    usual |= {"ARRAY": RAID5, "WORKLOAD": DD}
    text = BASE
    for key, value in (usual | given).items():
        text = text.replace(key, value)
    try:
        compiled_text(directory, text)
    except InputError as error:
        return error.message
    return ""


def cache(stripes: int) -> str:
    return f"{RAID5}, sysfs: {{stripe_cache_size: '{stripes}'}}"


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_stripe_cache_that_a_guest_had_room_for_passes_and_others_do_not(
    tmp_path: Path, clock: str
) -> None:
    """Sealed guests of 512 MiB with 8 members: 10240 stripes ran, and 11264 ended in a panic."""
    for stripes, fits in ((256, True), (10240, True), (11264, False), (32768, False)):
        said = refused(tmp_path, ARRAY=cache(stripes), CLOCK=clock)
        assert (not said) is fits, (stripes, said)
    assert "q.yaml:5: array.sysfs.stripe_cache_size: the guest would run out of memory" in said
    assert "needs 1.11 GiB" in said
    assert "set guest.memory to 1280MiB" in said
    assert not refused(tmp_path, ARRAY=cache(32768), CLOCK=clock, MEMORY="1280MiB")


@pytest.mark.parametrize("memory", [256, 512, 1024, 4096])
@pytest.mark.parametrize("members", [3, 8, 16, 64])
def test_stripes_times_members_times_pages(tmp_path: Path, memory: int, members: int) -> None:
    """raid5.c allocates a page for each member, and less than 15 % more for its structures."""
    for stripes in (17, 256, 1024, 4096, 8192, 16384, 32768):
        pages = stripes * members * 4096
        given = {"MEMORY": f"{memory}MiB", "COUNT": str(members), "ARRAY": cache(stripes)}
        said = refused(tmp_path, **given)
        if pages > (memory - 144) * MIB:
            assert "out of memory" in said
        elif pages * 1.15 + 2 * MIB < (memory - 144) * MIB:
            assert not said, (stripes, said)


HOGS = {  # what is given, whether it fits into 512 MiB, what the message names
    "buffers of fio": ({"WORKLOAD": f"{FIO}, bs: 1MiB, iodepth: 64, numjobs: 8"}, "buffers of 'w'"),
    "the same one after the other": ({"WORKLOAD": f"{FIO}, bs: 1MiB, iodepth: 1, numjobs: 8"}, ""),
    "a depth that is not used": (
        {"WORKLOAD": "tool: fio, rw: read, size: 64MiB, bs: 1MiB, iodepth: 512"},
        "",
    ),
    "a range of blocks": ({"WORKLOAD": f"{FIO}, bsrange: 4k-8m, iodepth: 64"}, "buffers of 'w'"),
    "jobs of fio": ({"WORKLOAD": f"{FIO}, bs: 4k, numjobs: 500"}, "buffers of 'w'"),
    "pinned by fio": ({"WORKLOAD": f"{FIO}, bs: 4k, lockmem: 400m"}, "buffers of 'w'"),
    "a buffer of dd": (
        {"WORKLOAD": "tool: dd, if: /dev/zero, of: '{target}', bs: 512MiB, count: 1"},
        "buffers of 'w'",
    ),
    "many arrays": (
        {
            "ARRAY": "kind: segments, segments: 14, level: 5, chunk: 64KiB, bitmap: none,"
            " component_size: 64MiB, sysfs: {stripe_cache_size: '2048'}",
        },
        "14 times 2048 stripes of 8 members",
    ),
    "an array of many disks": ({"COUNT": "64"}, ""),
    "the same in a small guest": ({"COUNT": "64", "MEMORY": "256MiB"}, ""),
    "a bitmap of a file": (
        {
            "COUNT": "4",
            "DISK": "throttle: 9MiB/s",
            "ARRAY": "level: 1, bitmap: external, bitmap_file: /var/lib/bits, bitmap_chunk: 4KiB",
        },
        "",
    ),
    "huge pages": (
        {"MEMORY": "512MiB, kernel_arguments: [hugepages=256]"},
        "hugepages=256 512 MiB",
    ),
    "less memory": ({"MEMORY": "1GiB, kernel_arguments: [mem=100M]"}, "are free"),
    "ZFS's cache": ({"ARRAY": "kind: zfs, level: mirror, zfs: {arc_max: 400MiB}"}, "ZFS's cache"),
    "a cache that ZFS ignores": (
        {"ARRAY": "kind: zfs, level: mirror, zfs: {arc_max: 1GiB}"},
        "ZFS ignores 1GiB",
    ),
    "a cache that fits": ({"ARRAY": "kind: zfs, level: mirror, zfs: {arc_max: 128MiB}"}, ""),
    "tables of drives": ({"COUNT": "64", "DISK": "model: hdd, hdd: {write_cache: 256MiB}"}, ""),
}


@pytest.mark.parametrize("name", HOGS)
def test_each_hog_of_memory_is_found(tmp_path: Path, name: str) -> None:
    given, says = HOGS[name]
    said = refused(tmp_path, **given)
    assert bool(said) is bool(says), said
    assert says in said
    if says:
        assert not refused(tmp_path, **{**given, "MEMORY": "8GiB"})
