"""Reuse of sealed cells' results by the digest of their inputs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drive import region
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import ToolError
from lab.host.guest.virtual.sealed import SealedBackend, inputs_of_cell
from lab.host.system import paths
from lab.model.execution.job import SealedKit
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellClock, Digest, Outcome, SeedDigest
from lab.model.scenario.document import Cell
from lab.results.documents import result_of
from lab.run import reuse as reusing
from lab.run.guests import sweep
from lab.run.options import RunOptions
from lab.run.scheduling.executor import Execution
from lab.run.task import task_of
from lab.store import reuse
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import SCENARIO, compiled_text, guest_record, raw_of

INPUTS, OTHER, RESULTS = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled_text(tmp_path, SCENARIO, "guest.clock=virtual").base


def digest(inputs: str = INPUTS, results: str = RESULTS) -> Digest:
    return Digest(
        inputs=inputs,
        results=results,
        seeds=(SeedDigest(seed=1, inputs=inputs, results=results),),
    )


def begun(cell: Cell) -> RunStore:
    store = RunStore.create("q", SCENARIO)
    store.save_run(
        StoredRun(
            id=store.id,
            scenario="q",
            title="T",
            question="Q",
            overrides=("guest.clock=virtual",),
            started="2026-01-01T00:00:00+00:00",
            finished="2026-01-01T00:00:01+00:00",
            environment={"accelerator": "tcg"},
            cells=(StoredCell(id=cell_id(cell), cell=cell, published=True),),
            claims=(),
        )
    )
    return store


def ran(cell: Cell, *, outcome: Outcome = Outcome.DONE, found: Digest | None = None) -> RunStore:
    """Return a run with one sealed cell."""
    store = begun(cell)
    attempt = store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
    (attempt / "raw").mkdir()
    for name, text in raw_of(cell, 10.0).items():
        (attempt / "raw" / name).write_text(text)
    ended = StoredOutcome(outcome=outcome, clock=CellClock.SEALED, digest=found or digest())
    store.finish_cell(cell_id(cell), attempt, ended)
    return store


def taken(cell: Cell, inputs: str = INPUTS) -> tuple[RunStore, set[str], list[str]]:
    store, said = begun(cell), list[str]()
    return store, reusing.take(store, [cell], {cell_id(cell): inputs}, said.append), said


def test_a_cell_with_the_same_inputs_is_copied(cell: Cell, lab_home: Path) -> None:
    first = ran(cell)
    reuse.add(first, cell_id(cell))
    second, names, said = taken(cell)
    assert names == {cell_id(cell)}
    assert len(said) == 1
    assert first.id in said[0]
    assert "--fresh" in said[0]
    assert second.raw(second.cell_directory(cell_id(cell))) == raw_of(cell, 10.0)
    (result,) = result_of(second).cells
    assert (result.reused_from, result.outcome) == (first.id, Outcome.DONE)
    assert result.digest == digest()
    assert result_of(first).cells[0].reused_from is None
    # The original run is named, and its files are no longer needed.
    shutil.rmtree(first.directory)
    third, names, _ = taken(cell)
    assert names == {cell_id(cell)}
    assert result_of(third).cells[0].reused_from == first.id


def test_other_inputs_are_not_taken(cell: Cell, lab_home: Path) -> None:
    reuse.add(ran(cell), cell_id(cell))
    assert taken(cell, OTHER)[1:] == (set(), [])


def test_a_run_from_elsewhere_is_not_taken(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    there = ran(cell)
    reuse.add(there, cell_id(cell))
    shutil.move(paths.reuse(), tmp_path / "elsewhere")  # as on another host
    assert taken(cell)[1] == set()
    sweep()
    assert taken(cell)[1] == set()


def test_a_result_of_another_image_is_caught(cell: Cell, lab_home: Path) -> None:
    """Negative control: an entry for a cell with other inputs."""
    reuse.add(ran(cell, found=digest(OTHER)), cell_id(cell))
    entry = json.loads((paths.reuse() / f"{OTHER}.json").read_text())
    (paths.reuse() / f"{INPUTS}.json").write_text(json.dumps({**entry, "inputs": INPUTS}))
    assert reuse.entry_of(INPUTS) is not None
    assert taken(cell)[1] == set()
    assert taken(cell, OTHER)[1] == {cell_id(cell)}


def _raw(place: Path) -> None:
    path = place / "raw" / "write.1.stderr.txt"
    path.write_text(path.read_text().replace("copied", "c0pied"))


def _more(place: Path) -> None:
    (place / "raw" / "more.txt").write_text("")


def _results(place: Path) -> None:
    path = place / "outcome.json"
    path.write_text(path.read_text().replace(RESULTS, OTHER))


def _cut(place: Path) -> None:
    path = place / "outcome.json"
    path.write_bytes(path.read_bytes()[:40])


def _link(place: Path) -> None:
    path = place / "raw" / "write.1.stdout.txt"
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("change", [_raw, _more, _results, _cut, _link, shutil.rmtree])
def test_a_changed_result_is_not_taken(
    cell: Cell, lab_home: Path, change: Callable[[Path], None]
) -> None:
    first = ran(cell)
    reuse.add(first, cell_id(cell))
    change(first.cell_directory(cell_id(cell)))
    _, names, said = taken(cell)
    assert names == set()
    assert len(said) == 1
    assert str(first.directory) in said[0]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LOST])
def test_only_cells_that_are_done_are_remembered(
    cell: Cell, lab_home: Path, outcome: Outcome
) -> None:
    reuse.add(ran(cell, outcome=outcome), cell_id(cell))
    assert taken(cell)[1:] == (set(), [])


ENTRIES = {
    "empty": b"",
    "cut off": b'{"schema": "lab.reuse/1", "inp',
    "no object": b"[1]",
    "too large": b" " * (reuse.ENTRY + 1),
    "not UTF-8": b'{"inputs": "\xff"}',
}


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_broken_entry_is_no_entry(cell: Cell, lab_home: Path, name: str) -> None:
    reuse.add(ran(cell), cell_id(cell))
    path = paths.reuse() / f"{INPUTS}.json"
    path.write_bytes(ENTRIES[name])
    assert taken(cell)[1:] == (set(), [])
    assert path.name in reuse.collect_garbage()
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"cell": "../../../etc"},
        {"cell": ".."},
        {"directory": "relative"},
        {"inputs": OTHER},
        {"raw": "x"},
        {"schema": "lab.reuse/2"},
    ],
)
def test_an_entry_leads_nowhere_else(cell: Cell, lab_home: Path, change: dict[str, str]) -> None:
    reuse.add(ran(cell), cell_id(cell))
    path = paths.reuse() / f"{INPUTS}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert taken(cell)[1] == set()


def test_an_entry_that_is_a_link_or_a_fifo_is_not_read(cell: Cell, lab_home: Path) -> None:
    reuse.add(ran(cell), cell_id(cell))
    path = paths.reuse() / f"{INPUTS}.json"
    path.rename(path.with_name("other"))
    path.symlink_to("other")
    assert taken(cell)[1] == set()
    path.unlink()
    os.mkfifo(path)
    assert taken(cell)[1] == set()


def test_garbage_is_what_leads_to_no_cell(cell: Cell, lab_home: Path) -> None:
    kept, gone = ran(cell), ran(cell, found=digest(OTHER))
    for store in (kept, gone):
        reuse.add(store, cell_id(cell))
    shutil.rmtree(gone.directory)
    ended = subprocess.Popen(["true"])
    ended.wait()
    part = paths.reuse() / f".{INPUTS}.json.{ended.pid}.1.0123456789abcdef.part"
    part.write_text("{")
    assert set(sweep()) == {f"{OTHER}.json", part.name}
    assert taken(cell)[1] == {cell_id(cell)}


WRITER = """
import sys
from pathlib import Path
from lab.store import reuse
from lab.store.runs import RunStore
store = RunStore(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    reuse.add(store, sys.argv[2])
"""


def test_two_writers_and_kill_9_leave_a_whole_entry(cell: Cell, lab_home: Path) -> None:
    runs = [ran(cell) for _ in range(2)]
    name = cell_id(cell)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run.directory), name], stdout=subprocess.PIPE
        )
        for run in runs
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        path = paths.reuse() / f"{INPUTS}.json"
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
        seen = set()
        for _ in range(300):
            entry = reuse.entry_of(INPUTS)
            assert entry is not None
            seen.add(entry.directory)
        assert seen <= {str(run.directory) for run in runs}
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    assert reuse.find(INPUTS) is not None
    reuse.collect_garbage()
    assert [p.name for p in paths.reuse().iterdir()] == [f"{INPUTS}.json"]


# --- inputs, before a cell runs


@pytest.fixture
def kit(tmp_path: Path) -> SealedKit:
    base = tmp_path / "base"
    with base.open("wb") as file:
        file.truncate(64 * region.ALIGNMENT)
    return SealedKit(
        emulator="/usr/bin/qemu",
        kernel=str(tmp_path / "kernel"),
        initramfs=str(tmp_path / "initramfs"),
        base=str(base),
        memory=512,
        digests={"image": "1", "kernel": "2", "driver": "3", "qemu": "4", "firmware": "5"},
    )


def inputs(kit: SealedKit, cell: Cell, *, cold: bool = False, space: int = 1 << 30) -> str:
    return inputs_of_cell(kit, cell_procedure(cell, "/guest"), space, cold=cold)


@pytest.mark.parametrize("name", ["image", "kernel", "driver", "qemu", "firmware"])
def test_each_file_is_an_input(kit: SealedKit, cell: Cell, name: str) -> None:
    other = kit.model_copy(update={"digests": kit.digests | {name: "x"}})
    assert inputs(kit, cell) != inputs(other, cell)
    assert inputs(kit, cell, cold=True) != inputs(other, cell, cold=True)


def test_places_are_no_inputs(kit: SealedKit, cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    moved = shutil.copy(kit.base, tmp_path / "moved")
    other = kit.model_copy(
        update={"base": str(moved), "kernel": "/k", "initramfs": "/i", "emulator": "/q"}
    )
    assert inputs(kit, cell) == inputs(other, cell)
    here = inputs_of_cell(kit, cell_procedure(cell, "/elsewhere/g1"), 1 << 30, cold=False)
    assert here == inputs(kit, cell)


def test_what_a_guest_is_told_is_an_input(kit: SealedKit, cell: Cell) -> None:
    every = {
        inputs(kit, cell),
        inputs(kit, cell, cold=True),
        inputs(kit, cell, space=2 << 30),
        inputs(kit.model_copy(update={"memory": 1024}), cell),
        inputs(kit.model_copy(update={"arguments": "quiet"}), cell),
        inputs(kit, cell.model_copy(update={"seed": 2})),
        inputs(kit, cell.model_copy(update={"trials": 2})),
        inputs(kit, cell.model_copy(update={"workloads": cell.workloads[:1]})),
        inputs(
            kit,
            cell.model_copy(
                update={"disks": (cell.disks[0].model_copy(update={"size": 1 << 29}),)}
            ),
        ),
    }
    assert len(every) == 9
    assert identity(cell) == identity(cell.model_copy(update={"seed": 2}))


def execution(store: RunStore, said: list[str], *, remember: bool = True) -> Execution:
    """Return an execution that has just finished its cell."""
    found = object.__new__(Execution)
    found.store, found.queue, found.say = store, None, said.append
    found.options = RunOptions(remember=remember)
    return found


def test_a_finished_cell_is_remembered_and_other_results_are_told(
    cell: Cell, lab_home: Path
) -> None:
    task, said = task_of(cell), list[str]()
    first = ran(cell)
    execution(first, said, remember=False)._remember(task)
    assert reuse.entry_of(INPUTS) is None
    execution(first, said)._remember(task)
    execution(ran(cell), said)._remember(task)
    assert said == []
    assert reuse.find(INPUTS) is not None
    execution(ran(cell, found=digest(results=OTHER)), said)._remember(task)
    assert len(said) == 1
    assert cell_id(cell) in said[0]
    assert "lab reproduce" in said[0]


def test_a_guest_with_other_inputs_than_planned_is_caught(kit: SealedKit, tmp_path: Path) -> None:
    record = guest_record(tmp_path)
    bench = SealedBackend(record, kit, tell=lambda _: None, notice=lambda _: None)
    bench.check_inputs(INPUTS)  # no cell ran
    bench._done = list(digest().seeds)
    bench.check_inputs(INPUTS)
    with pytest.raises(ToolError, match=OTHER):
        bench.check_inputs(OTHER)
    bench._instead = True  # it had to boot without its snapshot, and reported that
    bench.check_inputs(OTHER)
