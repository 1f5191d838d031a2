"""Run directories: written by rename, finished cells never change, found by any name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError, InputError
from lab.host.system import files, paths
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome, Result
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.results.documents import result_of
from lab.results.judged import summary
from lab.store import runs as store
from lab.store.runs import RunStore, StoredCell, StoredOutcome
from tests.fakes import SCENARIO, compiled_text, raw_of, stored_run

DONE = StoredOutcome(outcome=Outcome.DONE)
NONE = Procedure(name="q", steps=())


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled_text(tmp_path, SCENARIO).base


def test_a_run_has_a_directory_of_its_own_even_in_the_same_second(lab_home: Path) -> None:
    runs = [RunStore.create("q", "title: T\n") for _ in range(3)]
    assert len({r.id for r in runs}) == 3
    assert all(r.directory.parent == paths.runs() for r in runs)
    assert (runs[0].directory / "scenario.yaml").read_text() == "title: T\n"


def test_a_run_is_kept_where_it_is_asked_to_be(tmp_path: Path, lab_home: Path) -> None:
    run = RunStore.create("q", "", tmp_path / "out" / "deep")
    assert run.directory.parent == tmp_path / "out" / "deep"
    assert not lab_home.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be made"):
        RunStore.create("q", "", tmp_path / "file")


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write(path, "1")
    files.write(path, "2")
    assert path.read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    path.unlink()
    path.mkdir()
    (path / "x").write_text("")
    with pytest.raises(HostError, match=r"a\.json' cannot be written"):
        files.write(path, "3")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_cell_is_there_only_when_it_is_finished(tmp_path: Path, cell: Cell) -> None:
    run = RunStore.create("q", "", tmp_path)
    attempt = run.begin_cell("c1", cell, NONE)
    assert attempt.name == ".c1.1"
    assert run.load_cell("c1") is None
    (attempt / "raw").mkdir()
    (attempt / "raw" / "write.1.stderr.txt").write_text("text")
    (attempt / "raw" / ".write.1.stdout.txt.part").write_text("half")
    run.finish_cell("c1", attempt, DONE)
    found = run.load_cell("c1")
    assert found is not None
    assert found.raw == {"write.1.stderr.txt": "text"}
    assert not attempt.exists()
    assert json.loads((run.directory / "cells/c1/cell.json").read_text())["scenario"] == "q"


def test_a_finished_cell_is_never_written_again(tmp_path: Path, cell: Cell) -> None:
    run = RunStore.create("q", "", tmp_path)
    run.finish_cell("c1", run.begin_cell("c1", cell, NONE), DONE)
    second = run.begin_cell("c1", cell, NONE)
    with pytest.raises(HostError, match="cells/c1' cannot be made"):
        run.finish_cell("c1", second, StoredOutcome(outcome=Outcome.FAILED, reason="other"))
    found = run.load_cell("c1")
    assert found is not None
    assert found.outcome == DONE


def test_failed_attempts_stay_as_evidence(tmp_path: Path, cell: Cell) -> None:
    run = RunStore.create("q", "", tmp_path)
    names = [run.begin_cell("c1", cell, NONE).name for _ in range(3)]
    assert names == [".c1.1", ".c1.2", ".c1.3"]


def test_an_outcome_that_cannot_be_read_is_a_failed_cell(tmp_path: Path, cell: Cell) -> None:
    run = RunStore.create("q", "", tmp_path)
    run.finish_cell("c1", run.begin_cell("c1", cell, NONE), DONE)
    for text in (b"{", b"\xff", b'{"outcome": "great"}'):
        (run.directory / "cells/c1/outcome.json").write_bytes(text)
        found = run.load_cell("c1")
        assert found is not None
        assert found.outcome.outcome is Outcome.FAILED
        assert "outcome.json' cannot be read" in found.outcome.reason


def test_the_result_is_made_from_the_raw_output_each_time(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    result = result_of(run)
    assert [c.outcome for c in result.cells] == [Outcome.DONE, Outcome.DONE, Outcome.LOST]
    verdicts = {c.id: c.verdict for c in result.claims}
    assert verdicts["S004-1"] is Verdict.HOLDS
    assert verdicts["S004-2"] is Verdict.INCONCLUSIVE
    assert verdicts["S004-6"] is Verdict.REFUTED
    assert result.environment["guest"]["kernel"] == "6.1.0-18-amd64"
    stored = run.load_run().cells[0]
    for name, text in raw_of(stored.cell, 20).items():
        (run.directory / "cells" / stored.id / "raw" / name).write_text(text)
    again = {c.id: c.verdict for c in result_of(run).claims}
    assert again["S004-1"] is Verdict.REFUTED


def test_a_cell_whose_output_cannot_be_read_has_failed(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    stored = run.load_run().cells[0]
    (run.directory / "cells" / stored.id / "raw" / "write.1.stderr.txt").write_text("what?\n")
    first = result_of(run).cells[0]
    assert first.outcome is Outcome.FAILED
    assert "what?" in first.reason
    assert first.measurements == ()


def test_a_cell_that_never_began_was_skipped(tmp_path: Path) -> None:
    run = stored_run(tmp_path, finished=False)
    shutil.rmtree(run.directory / "cells" / run.load_run().cells[1].id)
    assert result_of(run).cells[1].outcome is Outcome.SKIPPED
    assert summary(run)["state"] == "stopped"


def test_a_result_survives_being_written_and_read(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    assert run.load_result() is None
    run.save_result(result_of(run))
    assert run.load_result() == result_of(run)
    data = json.loads((run.directory / "result.json").read_text())
    assert data["schema"] == "lab.result/1"
    assert Result.model_validate(data) == result_of(run)
    (run.directory / "result.json").write_bytes(b"\xff\xfe")
    assert run.load_result() is None


def made(name: str) -> RunStore:
    """Return a run of that id."""
    run = stored_run(paths.runs().parent / "tmp")
    place = paths.runs() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    run.directory.rename(place)
    return RunStore(place)


def test_a_run_is_found_by_its_id_its_scenario_its_directory_and_as_the_last(
    lab_home: Path,
) -> None:
    names = [
        *("a-b-20250101-120000", "z-20250103-120000", "a-b-20250102-120000"),
        *("a-b-20250102-120000-1", "a-b-20250102-120000-10", "a-b-20250102-120000-9"),
    ]
    for name in names:
        made(name)
    assert store.find("last").id == "z-20250103-120000"
    assert store.find("a-b").id == "a-b-20250102-120000-10"
    assert store.find("z").id == "z-20250103-120000"
    for name in names:
        assert store.find(name).id == name
        assert store.find(str(paths.runs() / name)).id == name
    assert [r.id for r in store.every()] == [
        *("z-20250103-120000", "a-b-20250102-120000-10", "a-b-20250102-120000-9"),
        *("a-b-20250102-120000-1", "a-b-20250102-120000", "a-b-20250101-120000"),
    ]
    assert store.find("a-b-20250101").id == "a-b-20250101-120000"
    assert store.find("last~0").id == "z-20250103-120000"
    assert store.find("last~1").id == "a-b-20250102-120000-10"
    assert store.find("a-b~1").id == "a-b-20250102-120000-9"
    assert store.find("last~1", "a-b").id == "a-b-20250102-120000-9"
    assert store.find("last", "nobody").id == "z-20250103-120000"
    for wrong in ("b", "nobody", "-", "", "last~6", "a-b~5", "nobody~1", "last~", "last~x"):
        with pytest.raises(InputError, match="there is no run"):
            store.find(wrong)
    with pytest.raises(InputError, match="ambiguous") as error:
        store.find("a-b-20250102")
    assert "a-b-20250102-120000-10, a-b-20250102-120000-9" in error.value.message


def test_a_run_of_an_earlier_version_keeps_its_ids_and_goes_on(tmp_path: Path) -> None:
    """Earlier versions wrote ``None`` into the ids of cells that leave out an axis."""
    compiled = compile_scenario(catalog.scenario_path("degraded"))
    cells = [c for c in compiled.cells if None in c.axes.values()]
    assert len(cells) > 1
    assert not any("None" in cell_id(c) for c in cells)
    old = [cell_id(c).replace("-", "-None-", 1) for c in cells]
    run = stored_run(tmp_path)
    known = run.load_run()
    stored = tuple(
        StoredCell(id=id_, cell=c, published=False) for id_, c in zip(old, cells, strict=True)
    )
    run.save_run(known.model_copy(update={"cells": stored, "claims": ()}))
    (run.directory / "cells" / old[0]).mkdir()
    (run.directory / "cells" / old[0] / "outcome.json").write_text('{"outcome": "failed"}')
    assert run.finished_cells() == {cell_id(cells[0])}
    run.go_on()
    assert [c.id for c in run.load_run().cells] == [old[0], *map(cell_id, cells[1:])]
    assert [c.outcome for c in result_of(run).cells][:2] == [Outcome.FAILED, Outcome.SKIPPED]


def test_where_there_is_no_run_none_is_found(lab_home: Path) -> None:
    assert list(store.every()) == []
    with pytest.raises(InputError, match="there is no run 'last'"):
        store.find("last")
    assert not lab_home.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is not a run that this lab can read"),
        (b"{", "is not a run that this lab can read"),
        (b"\xff\xfe", "is not a run that this lab can read"),
        (b"[]", "is not a run that this lab can read"),
        (b'{"id": "x"}', "scenario"),
    ],
)
def test_a_directory_that_is_no_run_is_named(tmp_path: Path, text: bytes, says: str) -> None:
    run = stored_run(tmp_path)
    (run.directory / "run.json").write_bytes(text)
    with pytest.raises(InputError) as error:
        run.load_run()
    assert str(run.directory) in error.value.message
    assert says in error.value.message


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"'{tmp_path}' is no run"):
        store.find(str(tmp_path)).load_run()


def test_ids_of_cells_are_names_of_directories(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    listed = {p.name for p in (run.directory / "cells").iterdir()}
    assert listed == {cell_id(c.cell) for c in run.load_run().cells}
