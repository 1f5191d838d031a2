"""The checks of a series are a matrix over both images."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.capabilities.patch.run import CLAIMS, Asked, check, matrix_of
from lab.core.errors import InputError
from lab.model.scenario.guest import Clock

BOTH = ("debian-12", "debian-13")


@pytest.mark.parametrize(
    ("kernel", "clock"),
    [
        ("5.10.0-30-amd64", Clock.REAL),
        ("6.1.0-1-cloud-amd64", Clock.VIRTUAL),
        (None, Clock.VIRTUAL),
    ],
)
def test_kernels_before_6_1_have_real_time(
    tmp_path: Path, kernel: str | None, clock: Clock
) -> None:
    suite = tmp_path / "mdadm"
    (suite / "tests").mkdir(parents=True)
    asked = Asked(series="x", claims=(), suites={"mdadm-tests": suite})
    found = matrix_of(asked, BOTH, kernel, tmp_path)
    assert [job.broken for job in found.jobs] == [""] * 6
    assert {cell.guest.clock for job in found.jobs for cell in job.cells} == {clock}
    assert {cell.guest.image for job in found.jobs for cell in job.cells} == set(BOTH)


@pytest.mark.parametrize(
    ("levels", "cells"),
    [(("0",), 1), (("5",), 2), (("1", "6"), 4), (("0", "1", "4", "5", "6", "10"), 11), ((), 0)],
)
def test_levels_limit_what_fio_verifies(
    tmp_path: Path, levels: tuple[str, ...], cells: int
) -> None:
    asked = Asked(series="x", levels=levels, claims=("raid5-parity-last",))
    jobs = matrix_of(asked, BOTH[:1], None, tmp_path).jobs
    assert sum(len(job.cells) for job in jobs if job.scenario.startswith("fio-")) == cells
    assert {job.scenario for job in jobs if not job.scenario.startswith("fio-")} == {
        "raid5-parity-last"
    }


def test_tests_that_differ_run_alone_again(tmp_path: Path) -> None:
    suite = tmp_path / "mdadm"
    (suite / "tests").mkdir(parents=True)
    asked = Asked(series="x", suites={"mdadm-tests": suite, "blktests-md": tmp_path})
    again = {"mdadm-tests": ("00raid5", "06name")}
    (job,) = matrix_of(asked, BOTH[:1], "6.1.0-1-amd64", tmp_path, again).jobs
    (cell,) = job.cells
    assert cell.workloads[0].parameters["tests"] == ["00raid5", "06name"]
    assert cell.guest.clock is Clock.VIRTUAL


@pytest.mark.parametrize(("kernel", "trials"), [("5.10.0-30-amd64", 3), ("6.1.0-1-amd64", 1)])
def test_in_real_time_trials_are_of_each_cell_and_not_of_suites(
    tmp_path: Path, kernel: str, trials: int
) -> None:
    suite = tmp_path / "mdadm"
    (suite / "tests").mkdir(parents=True)
    asked = Asked(
        series="x", levels=("0",), claims=CLAIMS[:1], suites={"mdadm-tests": suite}, trials=3
    )
    jobs = {job.scenario: job for job in matrix_of(asked, BOTH[:1], kernel, tmp_path).jobs}
    assert {cell.trials for cell in jobs["fio-verify-raid0"].cells} == {trials}
    assert {cell.trials for cell in jobs["mdadm-tests"].cells} == {1}
    parameters = jobs["mdadm-tests"].cells[0].workloads[0].parameters
    assert parameters["directory"] == str(suite)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(series="x", levels=(), claims=()),
        Asked(series="x", claims=("no-such-scenario",)),
        Asked(series="x", claims=("./missing.yaml",)),
        Asked(series="x", image="no-such-image"),
        Asked(series="x", kernel="./bzImage"),
        Asked(series="x", suites={"mdadm-tests": Path("/nonexistent")}),
    ],
)
def test_wrong_checks_are_found_before_anything_is_built(
    asked: Asked, tmp_path: Path, lab_home: Path
) -> None:
    with pytest.raises(InputError):
        check(asked, tmp_path)
    assert not lab_home.exists()
