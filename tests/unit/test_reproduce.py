"""Reproducing a stored run, without a guest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.analysis.reproduction import first_difference, other_inputs
from lab.cli.commands import app
from lab.compile.scenario.document import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_INPUT, InputError
from lab.core.yaml import parse_override
from lab.host.system import paths
from lab.model.execution.procedure import GuestCommand, Procedure, SealDisks, Timed
from lab.model.result.document import CellClock, Digest, Outcome, SeedDigest
from lab.model.result.stored import StoredOutcome
from lab.model.scenario.document import Cell
from lab.results.export import Form, export
from lab.results.script import script_of
from lab.run import reproduce
from lab.store import bundles
from lab.store.runs import RunStore, StoredCell
from tests.fakes import SCENARIO, stored_run
from tests.unit.test_reuse import begun, digest, ran


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO)
    return compile_scenario(path, overrides=[parse_override("guest.clock=virtual")]).base


PROCEDURE = Procedure(
    name="q",
    steps=(
        SealDisks(disks=(), seed=1),
        GuestCommand(label="versions", script="true", capture="environment"),
        Timed(workload="write", trial=1, script="true", timeout=1.0),
        SealDisks(disks=(), seed=2),
        GuestCommand(label="versions", script="true", capture="environment.2"),
        Timed(workload="write", trial=2, script="true", timeout=1.0),
    ),
)
RAW = {
    "environment.txt": "kernel=6.1\n",
    "environment.2.txt": "kernel=6.1\n",
    "write.1.stdout.txt": "one\ntwo\n",
    "write.2.stdout.txt": "one\ntwo\n",
}
DONE = StoredOutcome(outcome=Outcome.DONE, digest=digest())


def differ(raw: dict[str, str], outcome: StoredOutcome = DONE):  # type: ignore[no-untyped-def]
    return first_difference(PROCEDURE, (DONE, RAW), (outcome, raw))


def test_equal_runs_have_no_difference() -> None:
    assert differ(dict(RAW)) is None


def test_the_first_difference_has_step_seed_and_byte() -> None:
    found = differ(RAW | {"write.2.stdout.txt": "one\ntwe\n", "write.1.stdout.txt": "one\ntwo\n!"})
    assert (found.step, found.label, found.seed) == (3, "write", 1)
    assert (found.file, found.byte) == ("raw/write.1.stdout.txt", 8)
    found = differ(RAW | {"write.2.stdout.txt": "one\ntwe\n"})
    assert (found.step, found.seed, found.file, found.byte) == (6, 2, "raw/write.2.stdout.txt", 6)
    assert (found.stored, found.here) == ("one\\ntwo\\n", "one\\ntwe\\n")


def test_an_offset_counts_bytes() -> None:
    before = RAW | {"write.1.stdout.txt": "ä1"}
    found = first_difference(PROCEDURE, (DONE, before), (DONE, RAW | {"write.1.stdout.txt": "ä2"}))
    assert found is not None
    assert found.byte == 2


def test_a_missing_file_and_one_of_no_step_are_differences() -> None:
    less = {k: v for k, v in RAW.items() if k != "environment.txt"}
    found = differ(less)
    assert (found.step, found.byte, found.here) == (2, None, "(no such file)")
    found = differ(RAW | {"more.txt": ""})
    assert (found.step, found.file, found.stored) == (None, "raw/more.txt", "(no such file)")


def test_what_no_output_shows_is_found_by_the_digest() -> None:
    def both(*results: str) -> Digest:
        seeds = tuple(
            SeedDigest(seed=n, inputs="a" * 64, results=r * 64) for n, r in enumerate(results, 1)
        )
        return Digest(inputs="a" * 64, results="".join(results), seeds=seeds)

    old = DONE.model_copy(update={"digest": both("c", "d")})
    new = DONE.model_copy(update={"digest": both("c", "e")})
    found = first_difference(PROCEDURE, (old, RAW), (new, RAW))
    assert found is not None
    assert (found.seed, found.file, found.stored, found.here) == (2, "", "cd", "ce")


def test_a_repeated_failure_is_identical_and_another_one_is_not() -> None:
    failed = StoredOutcome(outcome=Outcome.FAILED, reason="no", digest=digest())
    assert first_difference(None, (failed, {}), (failed, {})) is None
    other = failed.model_copy(update={"reason": "yes"})
    found = first_difference(None, (failed, {}), (other, {}))
    assert found is not None
    assert (found.stored, found.here) == ("failed no", "failed yes")
    assert differ(dict(RAW), failed).here == "failed no"


def test_cells_that_are_not_sealed_are_named(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    real = reproduce.source_of(stored_run(tmp_path))
    why = reproduce.skipped(real)
    assert len(why) == 3
    assert all("real time" in reason for reason in why.values())
    source = reproduce.source_of(ran(cell))
    assert reproduce.skipped(source) == {}
    assert list(reproduce.skipped(source, "other")) == [cell_id(cell)]
    assert "did not finish" in reproduce.skipped(reproduce.source_of(begun(cell)))[cell_id(cell)]


def test_the_cells_are_those_of_the_stored_scenario(cell: Cell, lab_home: Path) -> None:
    source = reproduce.source_of(ran(cell))
    with reproduce.workplace(source) as place:
        compiled = reproduce.compiled_of(source, place / "q.yaml", {cell_id(cell)})
        assert [cell_id(c) for c in compiled.cells] == [cell_id(cell)]
        with pytest.raises(InputError, match="other cells"):
            reproduce.compiled_of(source, place / "q.yaml", {"base-00000000"})
    assert not place.exists()


def test_the_seeds_of_a_run_with_trials_auto_are_its_cells(
    cell: Cell, lab_home: Path, tmp_path: Path
) -> None:
    run = ran(cell)
    more = [cell.model_copy(update={"seed": seed}) for seed in (2, 5)]
    about = run.load_run()
    run.save_run(
        about.model_copy(
            update={
                "overrides": (*about.overrides, "trials=auto"),
                "cells": (
                    *about.cells,
                    *(StoredCell(id=cell_id(c), cell=c, published=True) for c in more),
                ),
            }
        )
    )
    ended = DONE.model_copy(update={"clock": CellClock.SEALED})
    for one in more:
        attempt = run.begin_cell(cell_id(one), one, Procedure(name="q", steps=()))
        (attempt / "raw").mkdir()
        run.finish_cell(cell_id(one), attempt, ended)
    source = reproduce.source_of(run)
    assert reproduce.skipped(source) == {}
    every = {cell_id(c) for c in (cell, *more)}
    with reproduce.workplace(source) as place:
        compiled = reproduce.compiled_of(source, place / "q.yaml", every)
        assert {cell_id(c): c.seed for c in compiled.cells} == {
            cell_id(c): c.seed for c in (cell, *more)
        }
        assert compiled.scenario.trials == 1  # no rule adds trials that the run did not have
        (only,) = reproduce.compiled_of(source, place / "q.yaml", {cell_id(more[1])}).cells
        assert only.seed == 5
        third = cell_id(cell.model_copy(update={"seed": 3}))
        with pytest.raises(InputError, match=third):
            reproduce.compiled_of(source, place / "q.yaml", {*every, third})
    script = script_of(run, run.load_run().cells[2])
    assert "--seed 5 --trials 1" in script["README.txt"]
    assert cell_id(cell) in script["result.json"]  # the cell's result is that of all its seeds


def test_guests_boot_if_they_booted_in_the_run(cell: Cell, lab_home: Path) -> None:
    for snapshot, boots in (("", True), ("d" * 64, False)):
        run = ran(cell, found=digest().model_copy(update={"snapshot": snapshot}))
        source = reproduce.source_of(run)
        assert reproduce.booted(source, {cell_id(cell)}) is boots


def test_a_bundle_is_a_source(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    run = ran(cell)
    (bundle,) = export(run, Form.BUNDLE, tmp_path / "q.lab.zip", None)
    known = reproduce.source_of(run)
    with bundles.opened(str(bundle)) as unpacked:
        found = reproduce.source_of(unpacked, is_here=False)
        assert (found.id, found.scenario) == (known.id, known.scenario)
        assert found.cells == known.cells
        assert reproduce.skipped(found) == {}


@pytest.mark.parametrize("name", ["../../x", "", "..", "a/b", "a\nb"])
def test_a_hostile_name_leads_nowhere(cell: Cell, lab_home: Path, name: str) -> None:
    run = ran(cell)
    run.save_run(run.load_run().model_copy(update={"scenario": name}))
    source = reproduce.source_of(run)
    before = sorted(paths.runs().parent.rglob("*"))
    with pytest.raises(InputError), reproduce.workplace(source):
        pass
    assert sorted(paths.runs().parent.rglob("*")) == before


def test_other_inputs_are_named_with_what_to_do() -> None:
    there = {
        "lab": "1",
        "qemu": "QEMU 7.2",
        "image": {"name": "debian-12", "digest": "x"},
        "sealed": {"image": "i", "kernel": "k", "driver": "d", "qemu": "q", "firmware": "f"},
    }
    assert list(other_inputs(there, there)) == []
    here = {**there, "sealed": {"image": "j", "kernel": "l", "driver": "d", "qemu": "r"}}
    found = {one.what: one for one in other_inputs(there, here)}
    assert list(found) == ["image", "kernel", "qemu", "firmware"]
    assert "lab image import" in found["image"].advice
    assert "QEMU 7.2" in found["qemu"].advice


def test_a_run_without_sealed_cells_is_refused_before_anything_is_booted(
    lab_home: Path, tmp_path: Path
) -> None:
    run: RunStore = stored_run(tmp_path)
    done = CliRunner().invoke(app, ["reproduce", str(run.directory)])
    assert isinstance(done.exception, InputError)
    assert done.exception.exit_status == EXIT_INPUT
    assert "real time" in done.exception.message
    assert not paths.runs().exists() or not any(paths.runs().iterdir())


def test_a_run_of_before_this_version_can_be_read(cell: Cell, lab_home: Path) -> None:
    run = ran(cell)
    path = run.cell_directory(cell_id(cell)) / "outcome.json"
    data = json.loads(path.read_text())
    del data["digest"]["seeds"], data["digest"]["snapshot"], data["reused_from"]
    path.write_text(json.dumps(data))
    finished = run.load_cell(cell_id(cell))
    assert finished is not None
    assert finished.outcome.digest is not None
    assert finished.outcome.digest.seeds == ()
