"""Reproducing a stored run, without a guest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.analysis.reproduction import first_difference, image_advice, other_inputs
from lab.capabilities.reproduce import run as reproduce
from lab.cli.commands import app
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_INPUT, InputError
from lab.host.system import paths
from lab.model.execution.procedure import GuestCommand, Procedure, SealDisks, Timed
from lab.model.image.manifest import ImageFile, contents_digest
from lab.model.result.document import CellClock, Digest, Outcome, SeedDigest
from lab.model.result.reproduction import CellState
from lab.model.result.stored import StoredOutcome
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest
from lab.results.export import Form, export
from lab.results.script import script_of
from lab.run.options import RunOptions
from lab.store import bundles
from lab.store.runs import RunStore, StoredCell
from tests.fakes import SCENARIO, compiled_text, stored_run
from tests.unit.test_image_store import plant
from tests.unit.test_reuse import begun, digest, ran


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled_text(tmp_path, SCENARIO, "guest.clock=virtual").base


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


IMAGE = {"name": "debian-12", "digest": "a" * 64}


def sealed_as(store: RunStore, sealed: dict[str, str]) -> RunStore:
    """The run with these facts about its guests' files."""
    about = store.load_run()
    facts = {**about.environment, "image": IMAGE, "sealed": sealed}
    store.save_run(about.model_copy(update={"environment": facts}))
    return RunStore(store.directory)


@pytest.mark.parametrize(
    ("there", "inputs", "state", "reason"),
    [
        ({"image": "j", "qemu": "q"}, "0" * 64, CellState.OTHER_INPUTS, "image"),
        ({"image": "j", "qemu": "r"}, "0" * 64, CellState.OTHER_INPUTS, "image, qemu"),
        ({"image": "i", "qemu": "q"}, "0" * 64, CellState.OTHER_INPUTS, "programs"),
        ({"image": "i", "qemu": "q"}, None, CellState.DIFFERENT, ""),
    ],
)
def test_a_difference_with_other_inputs_names_them_and_does_not_blame_the_run(
    cell: Cell,
    lab_home: Path,
    there: dict[str, str],
    inputs: str | None,
    state: CellState,
    reason: str,
) -> None:
    store = sealed_as(ran(cell), {"image": "i", "qemu": "q"})
    source = reproduce.source_of(store)
    again = sealed_as(ran(cell), there)
    (name,) = source.cells
    place = again.directory / "cells" / name
    document = json.loads((place / "outcome.json").read_text())
    if inputs is not None:
        document["digest"]["inputs"] = inputs
    document["digest"]["results"] = "1" * 64
    (place / "outcome.json").write_text(json.dumps(document))
    raw = next(iter((place / "raw").iterdir()))
    raw.write_text(f"{raw.read_text()}more")
    others = [o.what for o in other_inputs(facts_of(store), facts_of(again))]
    found = reproduce._compared(source, RunStore(again.directory), name, others)
    assert (found.state, found.reason) == (state, reason)
    assert found.difference is not None


def facts_of(store: RunStore) -> dict[str, Any]:
    return store.load_run().environment


def test_equal_bytes_are_identical_whatever_the_inputs(cell: Cell, lab_home: Path) -> None:
    source = reproduce.source_of(ran(cell))
    (name,) = source.cells
    found = reproduce._compared(source, ran(cell), name, ["image"])
    assert found.state is CellState.IDENTICAL


def test_the_image_with_the_bytes_of_the_run_is_used_whatever_its_digest_says(
    lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds of one recipe once had one digest; the bytes decide."""
    wanted, other = (
        plant("debian-12", content=content).model_copy(update={"kernel": Path("/kernel")})
        for content in (b"one", b"other")
    )
    found = SimpleNamespace(images=(other, wanted))
    monkeypatch.setattr(reproduce.images, "list_images", lambda: found)
    contents = {wanted.digest: "1" * 64, other.digest: "2" * 64}
    monkeypatch.setattr(
        reproduce.sealed_kit, "base_digest", lambda image, say: contents[image.digest]
    )
    said: list[str] = []
    placed: list[Any] = []
    monkeypatch.setattr(
        reproduce.LocalExecutor, "placed", lambda self, guest, progress, image: placed.append(image)
    )
    monkeypatch.setattr(reproduce.systems, "find", lambda guest: other)

    def executor(bytes_: str) -> reproduce.PinnedExecutor:
        return reproduce.PinnedExecutor(
            options=RunOptions(), watch=None, say=said.append, digest=other.digest, contents=bytes_
        )  # type: ignore[arg-type]

    guest = Guest(clock=Clock.VIRTUAL)
    executor("1" * 64).place(guest, lambda what, part: None)
    assert [one.digest for one in placed] == [wanted.digest]
    assert said == []
    executor("3" * 64).place(guest, lambda what, part: None)
    assert placed[1:] == [None]
    (sentence,) = said
    assert "'debian-12' is not on this host" in sentence
    monkeypatch.setattr(reproduce.systems, "find", lambda guest: None)
    executor("3" * 64).place(guest, lambda what, part: None)
    assert "is built, which takes minutes" in said[1]


def test_the_advised_commands_work_as_they_are_printed(
    lab_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is parsed by the command line itself: it fails only for want of the files."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"`(lab [^`]+)`", image_advice("debian-12"))
    assert len(commands) == 2
    for command in commands:
        done = CliRunner().invoke(app, command.split()[1:])
        assert isinstance(done.exception, InputError), done.output
        assert "--checksum" not in str(done.exception)
    assert "`lab image import IMAGE.tar`" in image_advice("$(touch /tmp/x)")


def test_other_bytes_are_another_image() -> None:
    one = {
        "disk.qcow2": ImageFile(size=1, sha256="a" * 64),
        "kernel": ImageFile(size=1, sha256="b" * 64),
    }
    other = {**one, "disk.qcow2": ImageFile(size=1, sha256="c" * 64)}
    swapped = {"disk.qcow2": one["kernel"], "kernel": one["disk.qcow2"]}
    assert contents_digest(dict(reversed(one.items()))) == contents_digest(one)
    assert len({contents_digest(files) for files in (one, other, swapped)}) == 3
