"""Short forms of scenario files: cases, include, extends, profiles, sizes of the array, and what an
axis leaves unused. Each error names the file and line that caused it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.analysis.judge import JudgedCell, judge
from lab.compile.scenario.compiler import Compiled, compile_document, compile_scenario
from lab.compile.scenario.expand import expand
from lab.compile.scenario.extends import MAX_FILES
from lab.compile.scenario.fields import fields_of
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError
from lab.core.yaml import Document, parse_override, read_text, validate
from lab.model.result.document import CellMeasurement, CellResult, Outcome
from lab.model.scenario.claim import Bound, Verdict
from lab.model.scenario.document import Scenario
from lab.run.execute import _text_of
from tests.fakes import SCENARIO, Cli, with_matrix


def compiled(tmp_path: Path, text: str, *sets: str, name: str = "q") -> Compiled:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return compile_scenario(path, overrides=[parse_override(s) for s in sets])


def refused(tmp_path: Path, text: str, *sets: str) -> str:
    """The message without the directory."""
    with pytest.raises(InputError) as error:
        compiled(tmp_path, text, *sets)
    return error.value.message.replace(f"{tmp_path}/", "")


def points(found: Compiled) -> list[tuple[object, ...]]:
    return [tuple(cell.axes.values()) for cell in found.cells]


def ids(found: Compiled) -> list[str]:
    return [cell_id(cell) for cell in found.cells]


# -- cases

CASES = SCENARIO + (
    "cases:\n"
    "  - {array.layout: parity-last}\n"
    "  - {array.chunk: 128KiB, disks.count: 5}\n"
    "  - {array.chunk: 256KiB}\n"
)


def test_a_field_that_a_case_leaves_out_has_the_files_own_value(tmp_path: Path) -> None:
    found = compiled(tmp_path, CASES)
    assert list(found.cells[0].axes) == ["array.layout", "array.chunk", "disks.count"]
    assert points(found) == [
        ("parity-last", 65536, 4),
        ("left-symmetric", 131072, 5),
        ("left-symmetric", 262144, 4),
    ]
    assert [len(cell.each_disk) for cell in found.cells] == [4, 5, 4]


def test_cases_make_the_cells_of_a_matrix_with_excludes(tmp_path: Path) -> None:
    long = with_matrix(
        "  array.layout: [left-symmetric, parity-last]\n  array.chunk: [64KiB, 128KiB]\n"
        "  exclude: [{array.layout: parity-last, array.chunk: 64KiB}]\n"
    )
    short = SCENARIO + (
        "cases:\n  - {array.layout: left-symmetric, array.chunk: 64KiB}\n"
        "  - {array.layout: left-symmetric, array.chunk: 128KiB}\n"
        "  - {array.layout: parity-last, array.chunk: 128KiB}\n"
    )
    assert ids(compiled(tmp_path, long)) == ids(compiled(tmp_path, short))


def test_each_case_goes_with_each_combination_of_the_matrix(tmp_path: Path) -> None:
    found = compiled(tmp_path, CASES + "matrix:\n  guest.cpus: [1, 2]\n")
    assert [p[0] for p in points(found)] == [1, 1, 1, 2, 2, 2]
    assert points(found)[0][1:] == points(found)[3][1:] == ("parity-last", 65536, 4)
    said = refused(tmp_path, CASES + "matrix:\n  array.chunk: [64KiB]\n")
    assert said.startswith("q.yaml:28: cases[1].array.chunk: the matrix has this axis too")


def test_an_empty_case_is_the_file_itself(tmp_path: Path) -> None:
    found = compiled(tmp_path, SCENARIO + "cases: [{}, {array.chunk: 128KiB}]\n")
    assert points(found) == [(65536,), (131072,)]
    assert found.cells[0].array == found.base.array


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("{array.chnk: 64KiB}", "q.yaml:27: cases[0].array.chnk: unknown key 'chnk': did you"),
        ("{array.chunk: 3KiB}", "q.yaml:27: cases[0].array.chunk: '3KiB': 3KiB is less"),
        ("{array.chunk: [64KiB]}", "q.yaml:27: cases[0].array.chunk: expected one value"),
        ("{arry.chunk: 64KiB}", "q.yaml:27: cases[0].arry.chunk: an axis begins with one of"),
        ("{workloads.wirte.bs: 1MiB}", "q.yaml:27: cases[0].workloads.wirte.bs: workloads has no"),
        (
            "{disks.count: 2}\n  - {disks.count: 2}",
            "q.yaml:28: cases[1]: makes the same cell twice",
        ),
        ("64KiB", "q.yaml:27: cases[0]: expected a mapping of names to one value"),
    ],
)
def test_what_is_wrong_in_a_case_has_its_line(tmp_path: Path, case: str, says: str) -> None:
    assert refused(tmp_path, SCENARIO + f"cases:\n  - {case}\n").startswith(says)


def test_a_set_picks_the_cases_that_have_the_value(tmp_path: Path) -> None:
    for spelled in ("128KiB", "131072"):
        found = compiled(tmp_path, CASES, f"array.chunk={spelled}")
        assert points(found) == [(5,)]
    # The first case has the file's own chunk.
    assert points(compiled(tmp_path, CASES, "array.chunk=64KiB")) == [("parity-last",)]
    other = compiled(tmp_path, CASES, "array.chunk=512KiB")
    assert points(other) == [("parity-last", 4), ("left-symmetric", 5), ("left-symmetric", 4)]
    assert {cell.array.chunk for cell in other.cells if cell.array} == {524288}


def test_a_set_of_the_matrix_replaces_the_cases_too(tmp_path: Path) -> None:
    alone = compiled(tmp_path, CASES, "matrix={}")
    assert alone.cells == (alone.base,)
    assert points(compiled(tmp_path, CASES, "matrix={array.chunk: [4KiB]}")) == [(4096,)]
    both = compiled(tmp_path, CASES, "cases=[{array.chunk: 4KiB}]", "matrix={guest.cpus: [2]}")
    assert points(both) == [(2, 4096)]


# -- include

FRUIT: dict[str, Any] = {
    "fruit": ["apple", "pear"],
    "animal": ["cat", "dog"],
    "include": [
        {"color": "green"},
        {"color": "pink", "animal": "cat"},
        {"fruit": "apple", "shape": "circle"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ],
}


def combinations(matrix: dict[str, Any]) -> list[dict[str, Any]]:
    data = {"title": "t", "question": "q", "matrix": matrix}
    document = Document(source="q.yaml", data=data)
    scenario = validate(Scenario, document)
    return [dict(point.values) for point in expand(scenario, document, document)]


def test_include_is_that_of_github_actions() -> None:
    """The example of "Expanding or adding matrix configurations" in GitHub's documentation."""
    assert combinations(FRUIT) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_include_comes_after_exclude_and_alone_is_a_list_of_cells() -> None:
    matrix = {"a": [1, 2], "exclude": [{"a": 1}], "include": [{"a": 1, "b": 3}]}
    assert combinations(matrix) == [{"a": 2}, {"a": 1, "b": 3}]
    assert combinations({"include": [{"a": 1}, {"a": 2}]}) == [{"a": 1}, {"a": 2}]


def test_an_included_cell_has_the_files_own_values(tmp_path: Path) -> None:
    text = with_matrix(
        "  array.chunk: [64KiB, 128KiB]\n  include:\n"
        "    - {array.chunk: 128KiB, guest.cpus: 2}\n"
        "    - {array.layout: parity-last, array.chunk: 4KiB}\n"
    )
    assert points(compiled(tmp_path, text)) == [
        (65536, 1, "left-symmetric"),
        (131072, 2, "left-symmetric"),
        (4096, 1, "parity-last"),
    ]
    wrong = text.replace("parity-last", "parity-lost")
    said = refused(tmp_path, wrong)
    assert said.startswith("q.yaml:30: matrix.include[1].array.layout: 'parity-lost': RAID 5 has")


# -- fields that another one leaves unused

BITMAPS = SCENARIO.replace("  level: 5\n  layout: left-symmetric\n", "  level: 10\n")


def test_a_value_that_means_nothing_counts_as_not_given(tmp_path: Path) -> None:
    short = with_matrix(
        "  array.bitmap: [none, internal]\n  array.bitmap_chunk: [4MiB, 16MiB]\n", BITMAPS
    )
    long = with_matrix(
        "  array.bitmap: [none, internal]\n  array.bitmap_chunk: [null, 4MiB, 16MiB]\n"
        "  exclude:\n    - {array.bitmap: none, array.bitmap_chunk: 4MiB}\n"
        "    - {array.bitmap: none, array.bitmap_chunk: 16MiB}\n"
        "    - {array.bitmap: internal, array.bitmap_chunk: null}\n",
        BITMAPS,
    )
    found = compiled(tmp_path, short)
    assert points(found) == [("none", None), ("internal", 4194304), ("internal", 16777216)]
    assert ids(found) == ids(compiled(tmp_path, long))


def test_raid_1_stands_beside_raid_10(tmp_path: Path) -> None:
    text = with_matrix("  array.level: [1, 10]\n  array.layout: [n2, f2]\n", BITMAPS)
    assert "  chunk: 64KiB\n" in text
    found = compiled(tmp_path, text)
    assert points(found) == [("1", None), ("10", "n2"), ("10", "f2")]
    assert [cell.array.chunk for cell in found.cells if cell.array] == [None, 65536, 65536]
    alone = BITMAPS.replace("level: 10", "level: 1").replace("  chunk: 64KiB\n", "")
    assert identity(found.cells[0]) == identity(compiled(tmp_path, alone).base)
    # Where the level is not an axis, it is a mistake.
    said = refused(tmp_path, BITMAPS.replace("level: 10", "level: 1"))
    assert said.startswith("q.yaml:10: array.chunk: RAID 1 has no chunk: remove it")


def test_raid_0_has_no_bitmap_and_so_no_bitmap_chunk(tmp_path: Path) -> None:
    axes = (
        "  array.level: [0, 10]\n  array.bitmap: [none, internal]\n  array.bitmap_chunk: [4MiB]\n"
    )
    text = BITMAPS.replace("  component_size: 256MiB\n", "")
    assert points(compiled(tmp_path, with_matrix(axes, text))) == [
        ("0", "none", None),
        ("10", "none", None),
        ("10", "internal", 4194304),
    ]


def test_a_layout_of_another_level_is_still_an_error(tmp_path: Path) -> None:
    axes = "  array.level: [5, 10]\n  array.layout: [left-symmetric]\n"
    said = refused(tmp_path, with_matrix(axes, BITMAPS))
    assert "RAID 10 has no layout 'left-symmetric'" in said


# -- sizes of the array


def sized(tmp_path: Path, value: str, *sets: str, text: str = SCENARIO) -> list[Any]:
    changed = text.replace("bs: 192KiB", f"bs: {value}", 1)
    found = compiled(tmp_path, changed, *sets)
    return [cell.workloads[0].parameters["bs"] for cell in found.cells]


@pytest.mark.parametrize(
    ("sets", "stripe", "data", "members"),
    [
        ((), 3 * 65536, 3, 4),
        (("array.level=6",), 2 * 65536, 2, 4),
        (
            ("array.level=0", "array.layout=null", "array.component_size=null"),
            *(4 * 65536, 4, 4),
        ),
        (("array.level=10", "array.layout=n2"), 2 * 65536, 2, 4),
        (("array.level=10", "array.layout=n2", "disks.count=6"), 3 * 65536, 3, 6),
        (("array.level=10", "array.layout=f2", "disks.count=6"), 6 * 65536, 6, 6),
        (("array.level=10", "array.layout=o2", "disks.count=6"), 6 * 65536, 6, 6),
        (("array.level=10", "array.layout=n2", "disks.count=3"), 3 * 65536, 3, 3),
        (("array.level=10", "array.layout=f2", "disks.count=3"), 3 * 65536, 3, 3),
        (("disks.count=5", "array.spares=1"), 3 * 65536, 3, 4),
        (("array.chunk=null",), 3 * 524288, 3, 4),
    ],
)
def test_sizes_are_those_of_the_cells_array(
    tmp_path: Path, sets: tuple[str, ...], stripe: int, data: int, members: int
) -> None:
    assert sized(tmp_path, "'{stripe}'", *sets) == [stripe]
    assert sized(tmp_path, "'{chunk}'", *sets) == [stripe // data]
    numbers = SCENARIO.replace("count: 10", "count: '{members}'", 1)
    (cell,) = compiled(tmp_path, numbers, *sets).cells
    assert cell.workloads[0].parameters["count"] == members
    numbers = SCENARIO.replace("count: 10", "count: '{data_disks}'", 1)
    (cell,) = compiled(tmp_path, numbers, *sets).cells
    assert cell.workloads[0].parameters["count"] == data


def test_sizes_follow_the_axes_and_may_be_values_of_one(tmp_path: Path) -> None:
    text = with_matrix("  disks.count: [3, 5]\n  array.chunk: [4KiB, 64KiB]\n")
    assert sized(tmp_path, "'{stripe}'", text=text) == [8192, 131072, 16384, 262144]
    axis = with_matrix("  disks.count: [3, 5]\n  workloads.write.bs: ['{stripe}', '{chunk}']\n")
    assert points(compiled(tmp_path, axis)) == [(3, 131072), (3, 65536), (5, 262144), (5, 65536)]


def test_a_size_stands_within_words_too(tmp_path: Path) -> None:
    fio = "  - {name: mix, tool: fio, rw: randwrite, bssplit: '{chunk}/60:4k/40', size: 1MiB}\n"
    found = compiled(tmp_path, SCENARIO + fio)
    assert found.base.workloads[2].parameters["bssplit"] == "65536/60:4k/40"


@pytest.mark.parametrize(
    ("value", "sets", "says"),
    [
        ("'{stripes}'", (), "q.yaml:17: workloads[0].bs: '{stripes}' is not a size"),
        ("{stripe}", (), "q.yaml:17: workloads[0].bs: put it in quotes: '{stripe}'"),
        (
            "'{stripe}'",
            ("array.level=1",),
            "q.yaml:17: workloads[0].bs: an array of level 1 has no {stripe}: it has {members},"
            " {data_disks}; write one of them, or a number",
        ),
        (
            "'{chunk}'",
            ("array.level=1",),
            "q.yaml:17: workloads[0].bs: an array of level 1 has no {chunk}: it has {members},"
            " {data_disks}; write",
        ),
        (
            "'{chunk}'",
            ("array=none", "disks.count=1"),
            "q.yaml:17: workloads[0].bs: {chunk} is a size of the array, and there is none: write a"
            " number",
        ),
        ("'{stripe}'", ("array.chunk=3KiB",), "--set array.chunk=3KiB: array.chunk: 3KiB is less"),
    ],
)
def test_a_size_that_is_not_there_is_refused(
    tmp_path: Path, value: str, sets: tuple[str, ...], says: str
) -> None:
    text = SCENARIO.replace("bs: 192KiB", f"bs: {value}", 1)
    assert refused(tmp_path, text, *sets).startswith(says)


def test_a_pool_has_members_alone(tmp_path: Path) -> None:
    pool = SCENARIO[: SCENARIO.index("array:")] + "array: {kind: zfs, level: raidz2}\n"
    text = pool + SCENARIO[SCENARIO.index("workloads:") :]
    assert sized(tmp_path, "'{members}'", text=text) == [4]
    said = refused(tmp_path, text.replace("bs: 192KiB", "bs: '{stripe}'", 1))
    assert "an array of kind zfs of level raidz2 has no {stripe}: it has {members};" in said


# -- extends

CHILD = "extends: base\ntitle: Another\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(SCENARIO + "matrix: {array.chunk: [64KiB, 128KiB]}\n")
    return path


def test_mappings_are_merged_and_the_rest_is_replaced(tmp_path: Path, base: Path) -> None:
    child = (
        CHILD
        + "disks: {size: 2GiB}\narray: {level: 6}\n"
        + "workloads:\n  - {name: only, tool: dd, if: '{target}', bs: 1MiB}\n"
    )
    found = compiled(tmp_path, child)
    assert (found.scenario.title, found.scenario.question) == ("Another", "Does it answer?")
    assert points(found) == [(65536,), (131072,)]
    disk = found.base.disks[0]
    assert (disk.count, disk.size) == (4, 2 * 1024**3)
    assert disk.throttle.total_bytes_per_second == 5 * 1024**2
    assert found.base.array is not None
    assert (found.base.array.level, found.base.array.layout) == ("6", "left-symmetric")
    assert [w.name for w in found.base.workloads] == ["only"]


def test_matrix_or_cases_replace_both(tmp_path: Path, base: Path) -> None:
    found = compiled(tmp_path, CHILD + "cases: [{disks.count: 3}, {disks.count: 5}]\n")
    assert points(found) == [(3,), (5,)]
    base.write_text(SCENARIO + "cases: [{disks.count: 3}]\n")
    assert points(compiled(tmp_path, CHILD + "matrix: {array.chunk: [4KiB]}\n")) == [(4096,)]


def test_set_changes_a_field_and_ends_its_axis(tmp_path: Path, base: Path) -> None:
    found = compiled(tmp_path, CHILD + "set: {workloads.write.bs: 1MiB, array.chunk: 4KiB}\n")
    (cell,) = found.cells
    assert cell.axes == {}
    assert cell.array is not None
    assert (cell.array.chunk, cell.workloads[0].parameters["bs"]) == (4096, 1024**2)
    assert cell.workloads[0].parameters["count"] == 10


def test_a_chain_and_a_command_line_are_done_in_order(tmp_path: Path, base: Path) -> None:
    (tmp_path / "middle.yaml").write_text(
        "extends: base.yaml\nset: {disks.count: 5, guest.cpus: 2}\n"
    )
    child = "extends: middle\nset: {disks.count: 6}\n"
    found = compiled(tmp_path, child, "guest.cpus=3")
    assert (len(found.base.each_disk), found.base.guest.cpus) == (6, 3)
    assert len(found.cells) == 2


def test_a_shipped_scenario_can_be_extended_by_a_file_of_its_name(tmp_path: Path) -> None:
    text = "extends: raid5-parity-last\nset: {disks.count: 7}\nclaims: []\n"
    found = compiled(tmp_path, text, name="raid5-parity-last")
    assert points(found) == [("parity-last",), ("left-symmetric",)]
    assert len(found.base.each_disk) == 7


def test_lines_are_those_of_the_right_file(tmp_path: Path, base: Path) -> None:
    def said(child: str, text: str | None = None) -> str:
        base.write_text(text or SCENARIO)
        return refused(tmp_path, CHILD + child)

    wrong = SCENARIO.replace("chunk: 64KiB", "chunk: 3KiB")
    assert said("", wrong).startswith("base.yaml:11: array.chunk: 3KiB is less than a page")
    assert said("array: {chunk: 3KiB}\n").startswith("q.yaml:3: array.chunk: 3KiB is less")
    assert said("set: {array.chunk: 3KiB}\n").startswith("q.yaml:3: array.chunk: 3KiB is less")
    assert said("array:\n  chnk: 1\n").startswith("q.yaml:4: array.chnk: unknown key 'chnk'")
    assert said("set: {workloads.wirte.bs: 1}\n").startswith(
        "q.yaml:3: set.workloads.wirte.bs: workloads has no 'wirte' (it has write, read): did you"
    )
    broken = SCENARIO.replace("title:", "title")
    assert said("", broken).startswith("base.yaml:")
    cases = SCENARIO + "cases: [{disks.count: 2}, {disks.count: 1}]\n"
    assert said("array: {level: 6}\n", cases).startswith("base.yaml:26: cases[0].disks.count: 2:")
    claim = (
        "claims:\n  - {id: c, says: s, expect: {kind: bound, value: {workload: wrte}, near: 1}}\n"
    )
    text = SCENARIO + claim
    assert said("", text).startswith("base.yaml:27: claims[0].expect.value.workload: there is no")


def test_what_cannot_be_extended_is_refused(tmp_path: Path, base: Path) -> None:
    def said(text: str) -> str:
        return refused(tmp_path, text)

    assert said("title: t\nextends: bse\n").startswith(
        "q.yaml:2: extends: there is no scenario 'bse', next to this file or in `lab"
    )
    assert said("extends: bse\n").endswith("did you mean 'base'?")
    assert said("extends: ../other.yaml\n").startswith("q.yaml:1: extends: the file '")
    assert said("extends: ../other.yaml\n").endswith("other.yaml' does not exist")
    assert said("extends: q.yaml\n") == "q.yaml:1: extends: 'q.yaml' is this file: name another one"
    assert said("extends: q\n") == "q.yaml:1: extends: 'q' is this file: name another one"
    assert said("extends: [base]\n").startswith("q.yaml:1: extends: expected a scenario's name, or")
    assert said("title: t\nset: {disks.count: 3}\n").startswith("q.yaml:2: set: it changes what")
    assert "q.yaml:1: question: this key is missing" in said("title: t\n")
    base.write_text("title: t\nextends: q\n")
    circle = "base.yaml:2: extends: q.yaml extends base.yaml extends q.yaml, itself: end the circle"
    assert said("extends: base\n") == circle


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f0.yaml").write_text(SCENARIO)
    for number in range(1, MAX_FILES):
        (tmp_path / f"f{number}.yaml").write_text(f"extends: f{number - 1}\n")
    assert compile_scenario(tmp_path / f"f{MAX_FILES - 1}.yaml").scenario.title
    said = refused(tmp_path, f"extends: f{MAX_FILES - 1}\n")
    assert said.startswith(
        f"f1.yaml:1: extends: {MAX_FILES} files are the most, and there are more"
    )


def test_a_stored_copy_needs_no_other_file(tmp_path: Path, base: Path) -> None:
    base.write_text(SCENARIO + "profiles: {big: {disks.size: 4GiB}}\n")
    found = compiled(tmp_path, CHILD + "set: {disks.count: 5}\ncases: [{array.chunk: 4KiB}]\n")
    stored = read_text(_text_of(found), source="scenario.yaml")
    base.unlink()
    again = compile_document(Path("q.yaml"), stored)
    assert again.cells == found.cells
    big = compile_document(Path("q.yaml"), stored, overrides=[parse_override("profile=big")])
    assert big.base.disks[0].size == 4 * 1024**3
    plain = compiled(tmp_path, SCENARIO)
    assert _text_of(plain) == SCENARIO


# -- profiles

PROFILES = SCENARIO + (
    "matrix:\n  array.chunk: [64KiB, 128KiB]\n"
    "profiles:\n"
    "  published:\n"
    "    disks.size: 1TiB\n"
    "    workloads.write.count: 1000\n"
    "  small: {array.chunk: 128KiB, disks.size: 512MiB}\n"
    "  other: {matrix: {disks.count: [3, 5]}}\n"
)


def test_a_profile_is_a_group_of_sets(tmp_path: Path) -> None:
    plain = compiled(tmp_path, PROFILES)
    assert plain.base.disks[0].size == 1024**3
    published = compiled(tmp_path, PROFILES, "profile=published")
    assert points(published) == points(plain)
    assert published.base.disks[0].size == 1024**4
    assert published.base.workloads[0].parameters["count"] == 1000
    assert points(compiled(tmp_path, PROFILES, "profile=other")) == [(3,), (5,)]
    small = compiled(tmp_path, PROFILES, "profile=small")
    assert points(small) == [()]
    same = compiled(tmp_path, PROFILES, "array.chunk=128KiB", "disks.size=512MiB")
    assert ids(small) == ids(same)


def test_a_set_comes_after_the_profile(tmp_path: Path) -> None:
    for sets in (
        ("profile=published", "disks.size=2GiB"),
        ("disks.size=2GiB", "profile=published"),
    ):
        found = compiled(tmp_path, PROFILES, *sets)
        assert found.base.disks[0].size == 2 * 1024**3
        assert found.base.workloads[0].parameters["count"] == 1000
    alone = compiled(tmp_path, PROFILES, "profile=other", "matrix={}")
    assert alone.cells == (alone.base,)


def test_a_file_may_name_its_profile(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(PROFILES)
    found = compiled(tmp_path, CHILD + "profile: published\n")
    assert found.base.disks[0].size == 1024**4
    none = compiled(tmp_path, CHILD + "profile: published\n", "profile=null")
    assert none.base.disks[0].size == 1024**3


def test_claims_hold_in_the_cells_of_a_profile(tmp_path: Path) -> None:
    claim = (
        "claims:\n  - {id: c, says: s, expect: {kind: bound, at_least: 1,"
        " value: {workload: write, where: {array.chunk: 64KiB}}}}\n"
    )

    def verdict(*sets: str) -> Verdict:
        found = compiled(tmp_path, PROFILES + claim, *sets)
        judged = []
        for cell in found.cells:
            value = CellMeasurement(
                workload="write", metric="throughput", unit="B/s", values=(1e6,), median=1e6
            )
            result = CellResult(
                id=cell_id(cell), axes=cell.axes, outcome=Outcome.DONE, measurements=(value,)
            )
            judged.append(
                JudgedCell(
                    result=result,
                    fields=fields_of(cell, found.scenario.claims),
                    published=identity(cell) in found.published,
                )
            )
        (one,) = judge(found.scenario.claims, judged)
        return one.verdict

    # Of one trial nothing is decided, but the claim is tested.
    assert verdict() is verdict("profile=published") is Verdict.INCONCLUSIVE
    assert verdict("profile=published", "disks.size=2GiB") is Verdict.NOT_TESTED
    assert verdict("profile=small") is Verdict.NOT_TESTED


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (
            "profile=publishd",
            "--set profile=publishd: profile: the scenario has no profile 'publishd': expected one"
            " of a, b, c, other, published, small, found 'publishd': did you mean 'published'?",
        ),
        ("profile=a", "q.yaml:29: disks.size: '1 bananas' has the unknown unit"),
        ("profile=b", "q.yaml:30: profiles.b.workloads.wirte.bs: workloads has no 'wirte'"),
        ("profile=c", "q.yaml:31: disks.sze: unknown key 'sze': did you mean 'size'?"),
    ],
)
def test_what_is_wrong_in_a_profile_has_its_line(tmp_path: Path, profile: str, says: str) -> None:
    wrong = "  a: {disks.size: 1 bananas}\n  b: {workloads.wirte.bs: 1}\n  c: {disks.sze: 1}\n"
    text = PROFILES.replace("  published:", f"{wrong}  published:")
    assert refused(tmp_path, text, profile).startswith(says)


def test_a_scenario_without_profiles_says_so(tmp_path: Path) -> None:
    said = refused(tmp_path, SCENARIO, "profile=published")
    assert said == (
        "--set profile=published: profile: the scenario has no profile 'published': write it, or"
        " leave this out"
    )
    wrong = refused(tmp_path, SCENARIO + "profiles: [published]\n")
    assert wrong.startswith("q.yaml:26: profiles: expected a mapping of names to")


def test_the_command_line_knows_profiles(cli: Cli) -> None:
    (cli.base / "q.yaml").write_text(PROFILES)
    shown = cli("scenario", "show", "q.yaml", "--profile", "published", "--json")
    assert json.loads(shown.stdout)["scenario"]["disks"][0]["size"] == 1024**4
    page = cli("scenario", "show", "q.yaml").stdout
    assert "published: disks.size 1TiB, workloads.write.count 1000" in page
    wrong = PROFILES.replace("disks.size: 512MiB", "disks.size: 5 bananas")
    (cli.base / "q.yaml").write_text(wrong)
    checked = cli("scenario", "check", "q.yaml")
    assert checked.status == 2
    assert "q.yaml:32: disks.size: '5 bananas'" in checked.stderr


# -- units in claims


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10MB/s", 1e7),
        ("64KiB", 65536.0),
        ("5ms", 0.005),
        ("2min", 120.0),
        ("7%", 0.07),
        ("8", 8.0),
        ("1.5", 1.5),
        (3, 3.0),
    ],
)
def test_values_of_claims_have_units(text: object, value: float) -> None:
    bound = Bound.model_validate({"kind": "bound", "value": {"workload": "write"}, "at_most": text})
    assert bound.at_most == pytest.approx(value)


def test_a_value_without_such_a_unit_is_refused(tmp_path: Path) -> None:
    expect = "{kind: bound, value: {workload: write}, near: 5 m}"
    claim = f"claims:\n  - {{id: c, says: s, expect: {expect}}}\n"
    said = refused(tmp_path, SCENARIO + claim)
    assert said == (
        "q.yaml:27: claims[0].expect.near: '5 m' is not a number, a rate such as 10.7MB/s, a size"
        " such as 64KiB, a time such as 5ms, or a share such as 7%"
    )
