"""Runs without claims: the order of the cells, and the axes that decide."""

from __future__ import annotations

from typing import Any

import pytest

from lab.model.result.document import CellMeasurement, CellResult, Outcome
from lab.report.content.exploration import explored

LEVELS = {
    ("0", None): 375.0,
    ("10", "near"): 196.0,
    ("10", "far"): 195.2,
    ("5", "left-symmetric"): 101.4,
    ("5", "parity-last"): 101.2,
}


def value(
    number: float, *, workload: str = "write", metric: str = "iops", spread: float | None = None
) -> CellMeasurement:
    """A measurement; ``spread``: half of its interval; ``None``: one trial."""
    known = spread is not None
    return CellMeasurement(
        workload=workload,
        metric=metric,
        unit={"iops": "1/s", "throughput": "B/s", "seconds": "s"}[metric],
        values=(number,),
        median=number,
        low=number - spread if known and spread else None,
        high=number + spread if known and spread else None,
        no_seed_changes_it=spread == 0,
    )


def cell(axes: dict[str, Any], *values: CellMeasurement, **more: Any) -> CellResult:
    name = "-".join(str(v) for v in axes.values())
    return CellResult(id=name, axes=axes, outcome=Outcome.DONE, measurements=values, **more)


def levels(**words: Any) -> list[CellResult]:
    return [
        cell({"array.level": level, "array.layout": layout}, value(iops, **words))
        for (level, layout), iops in LEVELS.items()
    ]


def said(cells: list[CellResult], *workloads: str) -> str:
    return " ".join(explored("Which?", cells, workloads or ("write",)).sentences)


def test_the_fastest_the_slowest_and_what_decides() -> None:
    answer = explored("Which?", levels(spread=0), {"write"})
    assert answer.sentences == (
        "Fastest: RAID 0, 375/s. Slowest: RAID 5, parity-last, 101.2/s, 0.270 times as fast.",
        "What does not: layout, at most 0.4%.",
    )
    assert [v.measured for v in answer.values] == sorted(LEVELS.values(), reverse=True)
    assert answer.claims == ()


def test_axes_are_judged_by_cells_that_differ_in_one_alone() -> None:
    cells = [
        cell({"array.level": level, "disks.count": n}, value(speed * n, spread=0))
        for level, speed in (("5", 10.0), ("6", 9.9))
        for n in (4, 8)
    ]
    axes = "What decides: disks, up to 2 times. What does not: level, at most 1.0%."
    assert said(cells).endswith(axes)


def test_less_than_chance_wins_nothing() -> None:
    close = [cell({"disks.count": n}, value(100 + n, spread=5)) for n in (1, 2, 3)]
    assert said(close) == "All 3 cells are equally fast, within 2.0% (write)."
    apart = [cell({"disks.count": n}, value(100 * n, spread=5)) for n in (1, 2, 3)]
    assert said(apart).startswith("Fastest: 3 disks, 300/s. Slowest: 1 disk, 100/s")
    two = [*apart, cell({"disks.count": 4}, value(304, spread=5))]
    assert said(two).startswith("Fastest: 4 disks; 3 disks (equally fast), 304/s.")


def test_cells_are_equal_only_if_all_workloads_are() -> None:
    cells = [
        cell({"disks.count": n}, value(100, spread=5), value(100 * n, workload="read", spread=5))
        for n in (1, 2)
    ]
    assert said(cells, "write", "read").startswith("Fastest over 2 workloads: 2 disks. Slowest: 1")
    doubted = cells[0].model_copy(update={"id": "3", "measurements": cells[0].measurements[:1]})
    left = said([*cells, doubted], "write", "read")
    assert "geometric mean; 1 of 3 cells is not ranked." in left


def test_an_axis_of_request_sizes_is_compared_by_throughput() -> None:
    """Small requests are told in IOPS, large ones in throughput."""
    cells = [
        cell(
            {"workloads.write.bs": size},
            value(rate, spread=0),
            value(size * rate, metric="throughput", spread=0),
        )
        for size, rate in ((4096, 1000.0), (1 << 20, 50.0))
    ]
    assert said(cells).startswith("Fastest: bs 1MiB, 52.4 MB/s. Slowest: bs 4KiB, 4.10 MB/s")


def test_cells_without_a_workload_in_common_are_not_ranked() -> None:
    cells = [cell({"disks.count": n}, value(100, workload=f"write{n}", spread=0)) for n in (1, 2)]
    answer = explored("Which?", cells, {"write1", "write2"})
    assert answer.sentences == ("No claims, only values: write1 100/s, write2 100/s.",)
    assert [v.workload for v in answer.values] == ["write1", "write2"]


def test_one_trial_says_so() -> None:
    assert said(levels()).count("with one trial, small differences may be chance") == 1
    assert "chance" not in said(levels(spread=0))


def test_seconds_are_better_if_fewer_and_workloads_are_weighed_alike() -> None:
    slow = [cell({"disks.count": n}, value(10 / n, metric="seconds", spread=0)) for n in (1, 2)]
    assert said(slow).startswith("Fastest: 2 disks, 5.0 s. Slowest: 1 disk, 10 s, 0.500 times")
    both = [
        cell(
            {"disks.count": n},
            value(n * n, spread=0),
            value(1e6, workload="read", metric="throughput", spread=0),
        )
        for n in (1, 2)
    ]
    assert said(both, "write", "read") == (
        "Fastest over 2 workloads: 2 disks. Slowest: 1 disk, 0.500 times as fast in the geometric "
        "mean."
    )


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SKIPPED])
def test_failed_cells_and_faults_are_left_out(outcome: Outcome) -> None:
    cells = levels(spread=0)
    cells[0] = cells[0].model_copy(update={"outcome": outcome})
    cells[1] = cells[1].model_copy(
        update={"measurements": (*cells[1].measurements, value(1.0, workload="cut"))}
    )
    assert said(cells).startswith("Fastest: RAID 10, near; RAID 10, far (equally fast), 196/s.")
    nothing = explored("Which?", cells, {"other"})
    assert nothing.sentences == ("The scenario has no claims, so nothing is judged.",)
    assert nothing.values == ()


def test_one_cell_has_its_values() -> None:
    one = cell({}, value(101.4), value(8e6, workload="read", metric="throughput"))
    assert said([one], "write", "read") == "No claims, only values: write 101.4/s, read 8.00 MB/s."
