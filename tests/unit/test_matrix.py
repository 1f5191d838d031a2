"""Axes to cells: normalised, distinct, excluded, collapsed by ``--set``, ten thousand at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.expand import MAX_CELLS
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.model.execution.procedure import GuestCommand
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from tests.fakes import SCENARIO, compiled_text, with_matrix
from tests.speed import reference, scale

CHUNKS = "  array.chunk: [64KiB, 128KiB]\n"
TWO = CHUNKS + "  disks.count: [3, 4, 5]\n"


def compiled(tmp_path: Path, text: str, *sets: str, trials: int | None = None) -> Compiled:
    return compiled_text(tmp_path, text, *sets, trials=trials)


def points(cells: tuple[Cell, ...]) -> list[tuple[object, ...]]:
    return [tuple(c.axes.values()) for c in cells]


def refused(tmp_path: Path, text: str, *sets: str) -> str:
    with pytest.raises(InputError) as error:
        compiled(tmp_path, text, *sets)
    return error.value.message


def test_the_last_axis_changes_fastest_and_sizes_are_numbers(tmp_path: Path) -> None:
    found = compiled(tmp_path, with_matrix(TWO))
    assert points(found.cells) == [
        (chunk, count) for chunk in (65536, 131072) for count in (3, 4, 5)
    ]
    assert all(c.array and c.array.chunk == c.axes["array.chunk"] for c in found.cells)
    assert all(len(c.each_disk) == c.axes["disks.count"] for c in found.cells)


def test_every_kind_of_field_can_be_an_axis(tmp_path: Path) -> None:
    axes = (
        "  guest.cpus: [1, 2]\n  array.layout: [null, left-asymmetric]\n  array.level: [5]\n"
        "  workloads.write.bs: [192KiB]\n  disks.throttle.total_bytes_per_second: [5MiB/s]\n"
        "  filesystem.type: [ext4]\n  array.sysfs.stripe_cache_size: [512]\n"
    )
    cells = compiled(tmp_path, with_matrix(axes)).cells
    rest = ("5", 196608, 5 * 1024**2, "ext4", "512")
    assert points(cells) == [
        (cpus, layout, *rest) for cpus in (1, 2) for layout in (None, "left-asymmetric")
    ]
    assert cells[0].filesystem is not None
    assert cells[0].array is not None
    assert cells[0].array.sysfs == {"stripe_cache_size": "512"}
    assert cells[0].workloads[0].parameters["bs"] == 196608


def test_disks_in_a_list_are_axes_by_their_number(tmp_path: Path) -> None:
    listed = SCENARIO.replace(
        "disks:\n  count: 4\n  size: 1GiB\n  throttle:\n    total_bytes_per_second: 5MiB\n",
        "disks:\n  - {count: 3, size: 1GiB}\n  - {size: 1GiB, throttle: {total_bytes_per_second: 5"
        "MiB}}\n",
    )
    assert listed != SCENARIO
    axis = "  disks.1.throttle.total_bytes_per_second: [1MiB, 2MiB]\n"
    cells = compiled(tmp_path, with_matrix(axis, listed)).cells
    assert points(cells) == [(1024**2,), (2 * 1024**2,)]
    assert [s for s, _ in cells[0].each_disk] == ["disk1", "disk2", "disk3", "disk4"]
    assert cells[0].each_disk[0][1].throttle.total_bytes_per_second is None
    assert cells[0].each_disk[3][1].throttle.total_bytes_per_second == 1024**2
    assert "it has 0 to 1" in refused(tmp_path, with_matrix("  disks.2.count: [1]\n", listed))


GROUPED = SCENARIO.replace(
    "disks:\n  count: 4\n  size: 1GiB\n  throttle:\n    total_bytes_per_second: 5MiB\n",
    "disks:\n"
    "  - {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 5MiB, group: usb}}\n"
    "  - {size: 2GiB, throttle: {total_bytes_per_second: 4MiB, group: usb}}\n",
)


def test_disks_that_share_a_group_share_its_limits(tmp_path: Path) -> None:
    said = refused(tmp_path, GROUPED)
    assert ":5: disks[1].throttle.total_bytes_per_second: 4194304 here and 5242880 in" in said
    assert "separate groups" in said
    alike = GROUPED.replace("4MiB", "5MiB")
    assert len(compiled(tmp_path, alike).cells[0].each_disk) == 4
    apart = GROUPED.replace("4MiB, group: usb", "4MiB, group: other")
    assert len(compiled(tmp_path, apart).cells[0].each_disk) == 4
    axis = with_matrix("  disks.1.throttle.total_bytes_per_second: [5MiB, 6MiB]\n", GROUPED)
    assert "6291456 here and 5242880" in refused(tmp_path, axis)
    more = GROUPED.replace("4MiB, group", "5MiB, total_operations_per_second: 9, group")
    assert "9 here and there is no limit in disks[0]" in refused(tmp_path, more)


def test_what_only_another_arm_uses_is_no_problem(tmp_path: Path) -> None:
    """A bitmap's chunk, file and disk belong to the cells with such a bitmap."""
    own = "  bitmap_chunk: 64KiB\n  bitmap_disk: 4\n  sysfs: {bitmap/time_base: 2}\nworkloads:\n"
    text = SCENARIO.replace("workloads:\n", own, 1)
    assert "array.sysfs.bitmap/time_base" in refused(tmp_path, text)
    arms = with_matrix("  array.bitmap: [none, internal, external]\n", text)
    commands = [
        "\n".join(s.script for s in cell_procedure(c, "/g").steps if isinstance(s, GuestCommand))
        for c in compiled(tmp_path, arms).cells
    ]
    assert ["--bitmap-chunk=64K" in c for c in commands] == [False, True, True]
    assert ["bitmap/time_base" in c for c in commands] == [False, True, True]
    assert ["mkfs.ext4" in c for c in commands] == [False, False, True]
    assert ["--bitmap=/mnt/bitmap/bench" in c for c in commands] == [False, False, True]
    assert all("--raid-devices=3" in c for c in commands)
    assert len(compiled(tmp_path, arms, "array.bitmap=none").cells) == 1
    other = with_matrix("  array.chunk: [64KiB]\n", text)
    assert "array.sysfs.bitmap/time_base" in refused(tmp_path, other)


def test_a_journals_disk_is_set_aside_in_arms_without_a_journal(tmp_path: Path) -> None:
    text = SCENARIO.replace("workloads:\n", "  journal_disk: 4\nworkloads:\n", 1)
    assert len(compiled(tmp_path, text).cells) == 1
    arms = with_matrix("  array.consistency_policy: [null, resync, ppl, journal]\n", text)
    commands = [
        "\n".join(s.script for s in cell_procedure(c, "/g").steps if isinstance(s, GuestCommand))
        for c in compiled(tmp_path, arms).cells
    ]
    assert ["--write-journal=" in c for c in commands] == [True, False, False, True]
    assert all("--raid-devices=3" in c for c in commands)
    other = text.replace("  journal_disk: 4\n", "  journal_disk: 4\n  consistency_policy: ppl\n")
    assert "array.journal_disk: disk 4" in refused(tmp_path, other)


def test_a_list_may_be_an_axis_of_its_one_entry(tmp_path: Path) -> None:
    mirror = "  level: 1\n  write_mostly: [1, 2]\n"
    text = SCENARIO.replace("  level: 5\n  layout: left-symmetric\n  chunk: 64KiB\n", mirror)
    arms = with_matrix("  array.write_mostly: [1, 3]\n", text)
    cells = compiled(tmp_path, arms).cells
    assert [c.axes["array.write_mostly"] for c in cells] == [1, 3]
    assert [c.array.write_mostly for c in cells if c.array] == [(1,), (3,)]


def test_excluded_cells_are_not_there(tmp_path: Path) -> None:
    text = with_matrix(TWO + "  exclude:\n  - {array.chunk: 64KiB, disks.count: 4}\n")
    assert (65536, 4) not in points(compiled(tmp_path, text).cells)
    assert len(compiled(tmp_path, text).cells) == 5
    all_of_them = with_matrix(CHUNKS + "  exclude: [{array.chunk: 64KiB}, {array.chunk: 128KiB}]\n")
    assert refused(tmp_path, all_of_them).endswith(":26: matrix: every cell is excluded")


def test_a_set_collapses_an_axis_and_its_excludes(tmp_path: Path) -> None:
    text = with_matrix(TWO + "  exclude:\n  - {array.chunk: 64KiB, disks.count: 4}\n")
    for spelled in ("64KiB", "65536"):
        found = compiled(tmp_path, text, f"array.chunk={spelled}")
        assert points(found.cells) == [(3,), (5,)]
        assert all(c.array and c.array.chunk == 65536 for c in found.cells)
    other = compiled(tmp_path, text, "array.chunk=256KiB")
    assert sorted(points(other.cells)) == [(3,), (4,), (5,)]


@pytest.mark.parametrize("axis", ["workloads.write.bs", "workloads.0.bs"])
@pytest.mark.parametrize("name", ["write", "0"])
def test_a_workload_is_the_same_axis_by_its_name_and_by_its_number(
    tmp_path: Path, axis: str, name: str
) -> None:
    text = with_matrix(
        f"  {axis}: [192KiB, 384KiB]\n{CHUNKS}  exclude: [{{{axis}: 384KiB, array.chunk: 64KiB}}]\n"
    )
    assert [p[0] for p in points(compiled(tmp_path, text).cells)] == [196608, 196608, 393216]
    found = compiled(tmp_path, text, f"workloads.{name}.bs=384KiB").cells
    assert points(found) == [(131072,)]
    assert found[0].workloads[0].parameters["bs"] == 393216
    other = compiled(tmp_path, text, f"workloads.{name}.count=7").cells
    assert len(other) == 3


def test_the_cell_that_was_asked_for_by_name_is_run_though_it_was_excluded(tmp_path: Path) -> None:
    text = with_matrix(TWO + "  exclude:\n  - {array.chunk: 64KiB, disks.count: 4}\n")
    found = compiled(tmp_path, text, "array.chunk=64KiB", "disks.count=4")
    assert found.cells == (found.base,)
    assert found.base.axes == {}


def test_a_set_replaces_the_matrix(tmp_path: Path) -> None:
    text = with_matrix(TWO)
    alone = compiled(tmp_path, text, "matrix={}")
    assert alone.cells == (alone.base,)
    other = compiled(tmp_path, text, "matrix={array.layout: [left-symmetric, parity-last]}")
    assert points(other.cells) == [("left-symmetric",), ("parity-last",)]
    both = compiled(
        tmp_path, text, "array.layout=parity-last", "matrix={array.layout: [left-symmetric]}"
    )
    assert both.base.array is not None
    assert both.base.array.layout == "parity-last"
    assert both.cells == (both.base,)


def test_trials_are_overridden(tmp_path: Path) -> None:
    assert {c.trials for c in compiled(tmp_path, with_matrix(TWO), trials=7).cells} == {7}
    assert compiled(tmp_path, SCENARIO, "trials=3").base.trials == 3


def test_the_problem_of_a_cell_points_to_the_axis(tmp_path: Path) -> None:
    axes = "  array.level: [5, 6]\n  disks.count: [4, 3]\n"
    assert ":28: matrix.disks.count: 3: " in refused(tmp_path, with_matrix(axes))
    axes = "  array.level: [5, 6]\n"
    said = refused(tmp_path, with_matrix(axes, SCENARIO.replace("count: 4", "count: 3")))
    assert ":4: disks.count: " in said
    assert said.endswith("(in the cell with array.level: 6)")


def test_an_axis_cannot_be_a_group_of_fields(tmp_path: Path) -> None:
    assert ":27: matrix.array: " in refused(tmp_path, with_matrix("  array: [none]\n"))


def test_ten_thousand_cells_are_planned_in_two_seconds(tmp_path: Path) -> None:
    sizes = ", ".join(f"{4 * n}KiB" for n in range(1, 51))
    text = with_matrix(
        f"  disks.count: [3, 4, 5, 6, 7]\n  array.chunk: [64KiB, 128KiB]\n"
        f"  guest.cpus: [1, 2]\n  array.layout: [left-symmetric, parity-last]\n"
        f"  workloads.write.bs: [{sizes}]\n"
        f"  workloads.read.bs: [4KiB, 8KiB, 12KiB, 16KiB, 20KiB]\n"
    )
    began = time.process_time()
    cells = compiled(tmp_path, text).cells
    assert len(cells) == 10_000
    assert (time.process_time() - began) * scale(reference()) < 2
    assert len({cell_id(c) for c in cells[::37]}) == len(cells[::37])


def test_more_cells_than_anybody_can_run_are_refused_at_once(tmp_path: Path) -> None:
    numbers = ", ".join(str(n) for n in range(1, 1000))
    text = with_matrix(f"  workloads.write.count: [{numbers}]\n  workloads.read.count: [{numbers}]")
    began = time.process_time()
    assert f"makes 998001 cells; {MAX_CELLS} are the most" in refused(tmp_path, text)
    assert (time.process_time() - began) * scale(reference()) < 2


def test_checking_every_scenario_takes_less_than_a_second() -> None:
    began = time.process_time()
    for path in catalog.scenarios().values():
        compile_scenario(path)
    assert (time.process_time() - began) * scale(reference()) < 1


def test_a_commands_words_are_one_value_of_an_axis(tmp_path: Path) -> None:
    axes = "  filesystem.type: [ext4]\n  filesystem.options: [-m 0 -N 64, '']\n"
    cells = compiled(tmp_path, with_matrix(axes)).cells
    assert points(cells) == [("ext4", "-m 0 -N 64"), ("ext4", "")]
    found = [c.filesystem.options for c in cells if c.filesystem is not None]
    assert found == [("-m", "0", "-N", "64"), ()]


def test_a_setting_of_sysfs_may_be_left_to_the_kernel_in_some_cells(tmp_path: Path) -> None:
    cells = compiled(tmp_path, with_matrix("  array.sysfs.rmw_level: [null, 0]\n")).cells
    assert points(cells) == [(None,), ("0",)]
    assert [c.array.sysfs for c in cells if c.array] == [{}, {"rmw_level": "0"}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("metric: disk_flushes, disk: disk1", ""),
        ("metric: disk_flushes", ""),
        ("metric: throughput, disk: disk1", "a single disk has no 'throughput': it has disk_reads"),
        ("metric: disk_seeks", "gives no 'disk_seeks'"),
    ],
)
def test_what_a_claim_may_ask_of_the_disks(tmp_path: Path, value: str, said: str) -> None:
    text = with_matrix(CHUNKS).partition("claims:")[0] + (
        "claims:\n  - id: c1\n    says: it is so\n    expect:\n      kind: bound\n"
        f"      value: {{workload: write, {value}, where: {{array.chunk: 64KiB}}}}\n"
        "      at_least: 1\n"
    )
    if said:
        assert said in refused(tmp_path, text)
    else:
        assert len(compiled(tmp_path, text).cells) == 2
