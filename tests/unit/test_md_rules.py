"""Everything that mdadm or the kernel would refuse is found before a boot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.units import GIB, KIB, MIB
from lab.md.facts.levels import NAMES, Level, layout_names, layout_number
from lab.md.facts.option_rules import read_back
from lab.model.plugin import Problem
from lab.model.scenario.document import Array, Disk
from lab.plugins.arrays.md import ARRAY


def _problems(disks: int | list[Any] = 5, **fields: Any) -> list[Problem]:
    sizes = ["1GiB"] * disks if isinstance(disks, int) else disks
    singles = [Disk.model_validate({"size": size}) for size in sizes]
    return list(ARRAY.problems(Array.model_validate(fields), singles))


def _keys(disks: int | list[Any] = 5, **fields: Any) -> list[str]:
    return [problem.key for problem in _problems(disks, **fields)]


EXTERNAL = {"bitmap": "external", "bitmap_file": "/var/lib/bench-bitmap"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"level": "raid5", "layout": "parity-last", "component_size": "256MiB"},
        {"component_size": "256MiB", "data_offset": "8KiB"},
        {"level": 0, "chunk": "48KiB"},
        {"level": "stripe", "layout": "original"},
        {"level": 1, "members": 2},
        {"level": 1, "members": 1},
        {"level": 0, "members": 1},
        {"level": "mirror", "write_mostly": [2], "write_behind": 256, "bitmap": "internal"},
        {"level": "mirror", "write_mostly": 2},
        {"level": 4, "members": 2},
        {"level": 6, "spares": 1},
        {"level": 10, "layout": "f5", "failfast": True},
        {"level": 10, "bad_block_list": False},
        {"level": "linear"},
        {"level": 0, "initial_sync": "wait"},
        {"bitmap": "internal", "bitmap_chunk": "64KiB"},
        {"bitmap": "internal", "consistency_policy": "bitmap"},
        {"bitmap": "lockless"},
        {"bitmap": "external", "bitmap_disk": 1},
        {**EXTERNAL, "bitmap_chunk": "4KiB"},
        {"consistency_policy": "ppl"},
        {"consistency_policy": "resync"},
        {"consistency_policy": "journal", "journal_disk": 5},
        {"level": 4, "journal_disk": 1},
        {"level": 6, "members": 4, "journal_disk": 3},
        {"metadata": "1.0"},
        {"metadata": "1.1", "data_offset": "4KiB"},
        {"sysfs": {"stripe_cache_size": 4096, "sync_speed_min": 5000}},
        {"bitmap": "internal", "sysfs": {"bitmap/time_base": "0.5", "safe_mode_delay": 0}},
        {"members": 3},
        {"members": 3, "spares": 2},
    ],
)
def test_arrays_that_mdadm_makes(fields: dict[str, Any]) -> None:
    assert _problems(**fields) == []


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("array.level", {"level": "7"}),
        ("array.level", {"level": "RAID5"}),
        ("array.level", {"level": "faulty"}),
        ("array.level", {"level": "multipath"}),
        ("array.level", {"level": "container"}),
        ("array.layout", {"layout": "left-symmetric-6"}),
        ("array.layout", {"level": 4, "layout": "parity-last"}),
        ("array.layout", {"level": 1, "layout": "n2"}),
        ("array.layout", {"level": 10, "layout": "left-symmetric"}),
        ("array.layout", {"level": 10, "layout": "n6"}),
        ("array.layout", {"level": 10, "layout": "o6"}),
        ("array.layout", {"level": 10, "layout": "n1"}),
        ("array.layout", {"level": 0, "layout": "3"}),
        ("array.chunk", {"level": 1, "chunk": "64KiB"}),
        ("array.chunk", {"level": "linear", "chunk": "64KiB"}),
        ("array.chunk", {"chunk": "48KiB"}),
        ("array.chunk", {"level": 10, "chunk": "48KiB"}),
        ("array.chunk", {"chunk": "2KiB"}),
        ("array.chunk", {"chunk": 0}),
        ("array.chunk", {"level": 0, "chunk": "6KiB"}),
        ("array.chunk", {"chunk": "2GiB"}),
        ("array.members", {"members": 6}),
        ("array.members", {"members": 5, "spares": 1}),
        ("array.members", {"level": 6, "members": 3}),
        ("array.members", {"members": 1}),
        ("array.spares", {"level": 0, "spares": 1}),
        ("array.spares", {"level": 6, "spares": 2}),
        ("array.component_size", {"component_size": "1GiB"}),
        ("array.component_size", {"component_size": "64KiB"}),
        ("array.component_size", {"level": 1, "component_size": 1000}),
        ("array.component_size", {"level": 1, "component_size": "3KiB"}),
        ("array.component_size", {"level": 0, "component_size": "64MiB"}),
        ("array.component_size", {"level": 10, "layout": "f2", "component_size": "512KiB"}),
        ("disks.size", {"chunk": "1GiB"}),
        ("array.data_offset", {"data_offset": "1GiB"}),
        ("array.data_offset", {"data_offset": "4KiB"}),
        ("array.data_offset", {"data_offset": 8200}),
        ("array.data_offset", {"data_offset": "1MiB", "metadata": "1.0"}),
        ("array.data_offset", {"data_offset": "8KiB", "bitmap": "internal"}),
        ("array.data_offset", {"data_offset": "64KiB", "bitmap": "lockless"}),
        ("array.data_offset", {"data_offset": "1MiB", "consistency_policy": "ppl"}),
        ("array.metadata", {"metadata": "0.90"}),
        ("array.metadata", {"metadata": "ddf"}),
        ("array.metadata", {"metadata": "1.1", "bitmap": "lockless"}),
        ("array.bitmap", {"bitmap": "yes"}),
        ("array.bitmap", {"bitmap": "clustered"}),
        ("array.bitmap", {"bitmap": "external"}),
        ("array.bitmap", {"level": 0, "bitmap": "internal"}),
        ("array.bitmap_file", {"bitmap_file": "/var/b"}),
        ("array.bitmap_file", {**EXTERNAL, "bitmap_file": "b"}),
        ("array.bitmap_file", {**EXTERNAL, "bitmap_file": "/var/../b"}),
        ("array.bitmap_file", {**EXTERNAL, "bitmap_file": "/dev/shm/b"}),
        ("array.bitmap_file", {**EXTERNAL, "bitmap_file": "/var/$(reboot)"}),
        ("array.bitmap_disk", {"bitmap_disk": 1}),
        ("array.bitmap_disk", {"bitmap": "external", "bitmap_disk": 6}),
        ("array.bitmap_file", {**EXTERNAL, "bitmap_disk": 1}),
        ("array.consistency_policy", {"consistency_policy": "journal"}),
        (
            "array.consistency_policy",
            {"level": 10, "consistency_policy": "journal", "journal_disk": 5},
        ),
        (
            "array.consistency_policy",
            {"bitmap": "internal", "consistency_policy": "journal", "journal_disk": 5},
        ),
        ("array.journal_disk", {"journal_disk": 6}),
        ("array.journal_disk", {"level": 1, "journal_disk": 5}),
        ("array.journal_disk", {"level": 0, "journal_disk": 5}),
        ("array.journal_disk", {"bitmap": "internal", "journal_disk": 5}),
        ("array.journal_disk", {"consistency_policy": "ppl", "journal_disk": 5}),
        ("array.journal_disk", {"bitmap": "external", "bitmap_disk": 5, "journal_disk": 5}),
        ("array.bitmap_chunk", {"bitmap_chunk": "64KiB"}),
        ("array.bitmap_chunk", {"bitmap": "lockless", "bitmap_chunk": "64KiB"}),
        ("array.bitmap_chunk", {"bitmap": "internal", "bitmap_chunk": "3MiB"}),
        ("array.bitmap_chunk", {"bitmap": "internal", "bitmap_chunk": "2KiB"}),
        ("array.bitmap_chunk", {"bitmap": "internal", "bitmap_chunk": "32KiB"}),
        ("array.bitmap_chunk", {"bitmap": "internal", "bitmap_chunk": "2GiB"}),
        ("array.consistency_policy", {"consistency_policy": "none"}),
        ("array.consistency_policy", {"consistency_policy": "bitmap"}),
        ("array.consistency_policy", {"consistency_policy": "resync", "bitmap": "internal"}),
        ("array.consistency_policy", {"consistency_policy": "ppl", "bitmap": "internal"}),
        ("array.consistency_policy", {"consistency_policy": "ppl", "level": 6}),
        ("array.consistency_policy", {"consistency_policy": "resync", "level": 0}),
        ("array.write_mostly", {"write_mostly": [1]}),
        ("array.write_mostly", {"level": 1, "write_mostly": 6}),
        ("array.write_mostly", {"level": 1, "write_mostly": [6]}),
        ("array.write_mostly", {"level": 1, "write_mostly": [0]}),
        ("array.write_behind", {"level": 1, "write_behind": 9, "bitmap": "internal"}),
        ("array.write_behind", {"level": 1, "write_behind": 9, "write_mostly": [1]}),
        ("array.failfast", {"failfast": True}),
        ("array.name", {"name": "md127"}),
        ("array.name", {"name": "d0"}),
        ("array.sysfs", {"sysfs": {"../../x": 1}}),
        ("array.sysfs", {"sysfs": {"/etc/x": 1}}),
        ("array.sysfs", {"sysfs": {"bitmap/../x": 1}}),
        ("array.sysfs", {"sysfs": {"a b": 1}}),
        ("array.sysfs.layout", {"sysfs": {"layout": 1}}),
        ("array.sysfs.array_state", {"sysfs": {"array_state": "clear"}}),
        ("array.sysfs.stripe_cache_size", {"level": 1, "sysfs": {"stripe_cache_size": 256}}),
        ("array.sysfs.bitmap/time_base", {"sysfs": {"bitmap/time_base": 1}}),
        ("array.sysfs.rmw_level", {"sysfs": {"rmw_level": ""}}),
        ("array.sysfs.rmw_level", {"sysfs": {"rmw_level": "1\n2"}}),
        ("array.sysfs.sync_speed_max", {"sysfs": {"sync_speed_max": "system"}}),
        ("array.sysfs.safe_mode_delay", {"sysfs": {"safe_mode_delay": "soon"}}),
    ],
)
def test_each_refusal_names_its_field(key: str, fields: dict[str, Any]) -> None:
    assert _keys(**fields) == [key]


@pytest.mark.parametrize(
    ("disks", "fields", "key"),
    [
        (2, {"level": 6}, "disks.count"),
        (1, {"level": 5}, "disks.count"),
        (0, {"level": 0}, "disks.count"),
        (3, {"level": 6, "spares": 1}, "disks.count"),
        (2, {"level": 5, "spares": 2}, "array.spares"),
        (4, {"level": 6, "bitmap": "external", "bitmap_disk": 4}, "disks.count"),
        (["1GiB", "1GiB", "1MiB"], {"bitmap": "external", "bitmap_disk": 3}, "array.bitmap_disk"),
        (["1GiB", "1GiB", "8MiB"], {"journal_disk": 3}, "array.journal_disk"),
        (
            ["1GiB", "1GiB", "80MiB"],
            {"journal_disk": 3, "data_offset": "70MiB"},
            "array.journal_disk",
        ),
        (4, {"level": 6, "journal_disk": 4}, "disks.count"),
        (["1MiB", "1MiB"], {"level": 1}, "disks.size"),
        (["1GiB", "1MiB", "1GiB"], {}, "disks.size"),
        (["1GiB", "2GiB"], {"level": 0, "layout": "dangerous"}, "array.layout"),
    ],
)
def test_too_few_or_too_small_disks_name_the_disks(
    disks: int | list[str], fields: dict[str, Any], key: str
) -> None:
    assert _keys(disks, **fields) == [key]


def test_disks_that_nobody_uses_may_be_of_any_size() -> None:
    assert _keys(["1GiB"] * 3 + ["1MiB"], members=3) == []
    assert _keys(["1GiB"] * 3 + ["1MiB"], members=3, spares=1) == ["disks.size"]


def test_equal_disks_may_have_a_dangerous_layout() -> None:
    assert _keys(2, level=0, layout="dangerous") == []


def test_several_problems_are_told_at_once() -> None:
    assert _keys(2, level=6, layout="x", chunk="3KiB", failfast=True) == [
        *("disks.count", "array.layout", "array.chunk", "array.failfast")
    ]


def test_messages_say_what_was_found_and_what_to_do() -> None:
    (problem,) = _problems(chunk="48KiB")
    assert "32KiB" in problem.message
    assert "64KiB" in problem.message
    (problem,) = _problems(2, level=6)
    assert "raise disks.count" in problem.message
    (problem,) = _problems(bitmap="external")
    assert "bitmap_file" in problem.message
    (problem,) = _problems(level=4, layout="parity-last")
    assert "RAID 5 with parity-last" in problem.message


@given(
    level=st.sampled_from(["0", "4", "5", "6", "10"]),
    chunk=st.one_of(st.integers(0, 2 * MIB), st.integers(0, 21).map(lambda n: 1 << n)),
)
def test_chunks_are_powers_of_two_or_whole_pages(level: str, chunk: int) -> None:
    pages = chunk >= 4096 and chunk % 4096 == 0
    valid = pages and (level == "0" or bin(chunk).count("1") == 1)
    assert (_keys(level=level, chunk=chunk) == []) == valid


@given(
    level=st.sampled_from(["0", "1", "4", "5", "6", "10"]),
    disks=st.integers(0, 9),
    members=st.one_of(st.none(), st.integers(1, 9)),
    spares=st.integers(0, 4),
)
def test_members_and_spares_fit_or_are_refused(
    level: str, disks: int, members: int | None, spares: int
) -> None:
    active = disks - spares if members is None else members
    least = {"0": 1, "1": 1, "4": 2, "5": 2, "6": 4, "10": 2}[level]
    valid = active >= least and active + spares <= disks and not (spares and level == "0")
    assert (_keys(disks, level=level, members=members, spares=spares) == []) == valid


@given(offset=st.integers(0, 64).map(lambda n: n * KIB), size=st.sampled_from([1, 64, 512]))
def test_an_internal_bitmap_and_its_data_never_overlap(offset: int, size: int) -> None:
    """8 KiB of superblock, 4 KiB of bitmap at these sizes, 4 KiB for the bad-block log."""
    fields = {"bitmap": "internal", "component_size": size * MIB, "data_offset": offset}
    assert (_keys(**fields) == []) == (offset >= 16 * KIB)


@pytest.mark.parametrize("level", ["5", "6"])
def test_every_layout_that_has_a_number_is_accepted(level: str) -> None:
    for layout in layout_names(NAMES[level]):
        assert _keys(level=level, layout=layout) == []


@given(layout=st.from_regex(r"[nfo][0-9]{1,2}", fullmatch=True), disks=st.integers(2, 9))
def test_raid10_layouts_need_two_copies_that_fit(layout: str, disks: int) -> None:
    wanted = int(layout[1:])
    assert (_keys(disks, level=10, layout=layout) == []) == (2 <= wanted <= disks)
    if wanted:
        assert layout_number(Level.RAID10, layout)


def test_kernel_prints_some_settings_in_another_form() -> None:
    written = {"safe_mode_delay": "0.2", "bitmap/time_base": "5", "rmw_level": "2"}
    assert read_back(written) == {**written, "safe_mode_delay": "0.200"}
    assert read_back({"bitmap/time_base": "0.5"}) == {"bitmap/time_base": "0.500"}
    assert read_back({"safe_mode_delay": "0"}) == {"safe_mode_delay": "0.000"}


def test_huge_disks_have_huge_bitmap_chunks() -> None:
    disks = [10 * 1024 * GIB] * 3
    assert _keys(disks, bitmap="internal", bitmap_chunk="8MiB") == ["array.bitmap_chunk"]
    assert _keys(disks, bitmap="internal", bitmap_chunk="16MiB") == []
