"""Results that are judged once: never older than anything that they depend on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lab
from lab.host.system import clock, makers, paths
from lab.results import documents, judged, listing
from lab.run.guests import sweep
from lab.store import judgements
from lab.store.runs import RunStore
from tests import kept
from tests.fakes import FLOORS, stored_run

Made = list[str]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The runs that are judged from now on, in order."""
    made: Made = []
    judge = documents.result_of

    def result_of(store: RunStore) -> object:
        made.append(store.id)
        return judge(store)

    monkeypatch.setattr(documents, "result_of", result_of)
    return made


@pytest.fixture
def run(lab_home: Path) -> RunStore:
    return kept.unpacked("raid5-parity-last", paths.runs())


def run_python(script: str) -> str:
    """What a new process prints."""
    words = [sys.executable, "-c", script]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout


def rows() -> list[dict[str, object]]:
    return listing.every_row(pytest.fail)[0]


@pytest.mark.parametrize("name", kept.NAMES)
def test_what_is_kept_is_what_was_judged(name: str, lab_home: Path, made: Made) -> None:
    run = kept.unpacked(name, paths.runs())
    fresh, explained = documents.result_of(run), judged.explanation_of_run(run)
    judged.result_of(run)
    made.clear()
    assert judged.result_of(RunStore(run.directory)) == fresh
    assert judged.explanation_of_run(run) == explained
    assert rows() == [documents.row_of(fresh) | {"judged": True}]
    assert made == []


def other_noise(run: RunStore) -> None:
    stored = run.load_run()
    run.save_run(stored.model_copy(update={"noise": (*stored.noise, *FLOORS)}))


def other_image(run: RunStore) -> None:
    stored = run.load_run()
    facts = stored.environment | {"image": {"name": "another", "digest": "0" * 64}}
    run.save_run(stored.model_copy(update={"environment": facts}))


def other_claim(run: RunStore) -> None:
    stored = run.load_run()
    run.save_run(stored.model_copy(update={"claims": stored.claims[1:]}))


def other_raw(run: RunStore) -> None:
    path = next(run.directory.glob("cells/*/raw/write.1.stderr.txt"))
    path.write_text(re.sub(r"copied, [\d.]+ s", "copied, 1 s", path.read_text()))


def same_size_and_time(run: RunStore) -> None:
    """The raw output of one cell, written over in place, with its time put back."""
    path = next(run.directory.glob("cells/*/raw/write.1.stderr.txt"))
    before, text = path.stat(), path.read_text()
    digit = re.search(r"copied, (\d)", text)
    assert digit
    at = digit.start(1)
    path.write_text(f"{text[:at]}{9 - int(text[at])}{text[at + 1 :]}")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def no_raw(run: RunStore) -> None:
    next(run.directory.glob("cells/*/raw/write.1.stderr.txt")).unlink()


def other_outcome(run: RunStore) -> None:
    path = next(run.directory.glob("cells/*/outcome.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"outcome": "lost", "reason": "x"}))


def no_cell(run: RunStore) -> None:
    cell = next(run.directory.glob("cells/*/outcome.json")).parent
    cell.rename(run.directory / "elsewhere")


CHANGES = (
    *(other_noise, other_image, other_claim, other_raw, same_size_and_time, no_raw),
    *(other_outcome, no_cell),
)


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_its_files_judges_a_run_again(
    change: Callable[[RunStore], None], run: RunStore, made: Made
) -> None:
    before = judged.result_of(run)
    judged.explanation_of_run(run)
    assert len(rows()) == 1
    assert made == [run.id]
    change(run)
    again = judged.result_of(RunStore(run.directory))
    assert made[1:] == [run.id]
    assert again == documents.result_of(run)
    assert again != before
    (row,) = rows()
    assert row == documents.row_of(again) | {"judged": True}
    explained = judged.explanation_of_run(RunStore(run.directory))
    assert explained == judged.explain.explanation_of_run(run)


def test_other_code_or_another_library_judges_again(
    run: RunStore, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged.result_of(run)
    monkeypatch.setattr(judgements, "code", lambda: "other")
    judged.result_of(run)
    assert made == [run.id] * 2
    assert rows()[0]["judged"]
    assert made == [run.id] * 2


def test_the_code_is_known_by_its_bytes_and_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lab"
    for name in judgements.CODE:
        (package / name).mkdir(parents=True)
    file = package / "analysis" / "judge.py"
    file.write_text("LIMIT = 1\n")
    monkeypatch.setattr(lab, "__file__", str(package / "__init__.py"))
    code = judgements.code.__wrapped__
    first = code()
    assert code() == first
    file.write_text("LIMIT = 2\n")
    second = code()
    file.rename(package / "analysis" / "judges.py")
    third = code()
    monkeypatch.setattr(judgements.metadata, "version", lambda name: f"{name} 0")
    assert len({first, second, third, code()}) == 4


def test_every_module_that_judges_is_part_of_the_code() -> None:
    """The modules of the lab that judging imports, but those that read files and clocks."""
    judging = (
        "import lab.results.documents, lab.results.explain, sys;"
        "print(*(n for n in sys.modules if n.startswith('lab.')))"
    )
    names = run_python(judging).split()
    assert "lab.analysis.judge" in names
    others = {n.split(".")[1] for n in names} - {*judgements.CODE, "host"}
    assert others == set()
    host = {n for n in names if n.startswith("lab.host.")}
    assert {n for n in host if not n.startswith("lab.host.system")} <= {"lab.host.system"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data.replace(b"holds", b"fails"),
        lambda data: data.replace(b'"directory"', b'"directions"'),
        lambda data: b"[" * 100_000,
        lambda data: b"[]\n" + data,
        lambda data: b"\xff\xfe" + data,
        lambda data: os.urandom(1000),
    ],
)
def test_a_damaged_file_of_the_cache_is_ignored(
    damage: Callable[[bytes], bytes], run: RunStore, made: Made
) -> None:
    result, explained = judged.result_of(run), judged.explanation_of_run(run)
    (row,) = rows()
    files = sorted(paths.judged().iterdir())
    assert len(files) == 3
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    (again,) = rows()
    assert again == row
    assert judged.result_of(run) == result
    assert judged.explanation_of_run(run) == explained
    assert made == [run.id] * 2
    if damage(b"x" * 9) != b"":  # what it is of cannot always be read: then it goes
        sweep()
    assert judged.result_of(run) == result


def test_a_directory_in_its_place_and_a_cache_that_cannot_be_written_are_no_errors(
    run: RunStore, made: Made
) -> None:
    result = documents.result_of(run)
    judgements.path_of(run.directory, judgements.RESULT).mkdir(parents=True)
    assert judged.result_of(run) == result
    (paths.judged() / "x").parent.rename(paths.judged().with_name("aside"))
    paths.judged().write_text("a file")
    assert judged.result_of(run) == result
    assert rows()[0]["holds"]


def test_a_run_that_was_never_judged_here_shows_what_it_recorded(run: RunStore, made: Made) -> None:
    recorded = run.load_result()
    assert recorded is not None
    (row,) = rows()
    assert not row["judged"]
    assert row["directory"] == str(run.directory)
    clock.pause(2 * judgements.TICK)
    assert rows() == rows() == [row]
    data = json.loads((run.directory / "result.json").read_text())
    data["claims"][0]["verdict"] = "refuted"
    (run.directory / "result.json").write_text(json.dumps(data))
    assert rows()[0]["refuted"] != row["refuted"]  # it is read again
    assert made == []
    (run.directory / "result.json").unlink()
    assert rows()[0]["judged"]  # there is nothing else to show
    assert made == [run.id]


def test_a_run_that_is_being_written_is_not_kept(run: RunStore, made: Made) -> None:
    with makers.hold(run.directory):
        judged.result_of(run)
        judged.result_of(run)
        assert not paths.judged().exists()
    assert made == [run.id] * 2


def test_a_file_that_changes_within_a_tick_of_the_clock_is_seen(run: RunStore, made: Made) -> None:
    """Three writes in a row, each read at once; the last two may have the same time."""
    for number in range(3):
        path = next(run.directory.glob("cells/*/raw/write.1.stderr.txt"))
        path.write_text(re.sub(r"copied, [\d.]+ s", f"copied, {number + 1} s", path.read_text()))
        assert judged.result_of(run) == documents.result_of(run), number


def test_a_run_with_unreadable_files_is_judged_each_time(run: RunStore, made: Made) -> None:
    next(run.directory.glob("cells/*/raw/environment.txt")).write_bytes(b"\xff\xfe")
    for _ in range(2):
        store = RunStore(run.directory)
        judged.result_of(store)
        assert store.warnings()
    assert made == [run.id] * 2


def test_what_is_kept_goes_with_its_run(lab_home: Path, made: Made) -> None:
    first = stored_run(paths.runs())
    second = kept.unpacked("raid5-parity-last", paths.runs())
    for run in (first, second):
        judged.result_of(run)
    assert len(list(paths.judged().iterdir())) == 4
    (paths.judged() / ".x.result.4194305.1.0123456789abcdef.part").write_text("cut off")
    (first.directory / "run.json").unlink()
    sweep()
    assert {judgements.path_of(second.directory, k) for k in ("result", "summary")} == set(
        paths.judged().iterdir()
    )


def test_a_finished_run_is_kept_from_its_end(run: RunStore, made: Made) -> None:
    judged.keep(run, documents.result_of(run))
    made.clear()
    assert rows()[0]["judged"]
    judged.result_of(run)
    assert made == []


def test_the_list_imports_no_models(run: RunStore) -> None:
    """What the list of kept runs costs is mostly what it imports."""
    judged.result_of(run)
    script = (
        "import sys; from lab.results.listing import every_row; from lab.report.terminal.runs"
        " import run_table; rows, _ = every_row(print); print(len(rows),"
        " [n for n in sys.modules if n.startswith(('pydantic', 'lab.model.'))])"
    )
    assert run_python(script) == "1 []\n"


def test_two_stored_runs_do_not_share_a_judgement(lab_home: Path, made: Made) -> None:
    """A copy of a run is another run: it may change on its own."""
    run = kept.unpacked("raid5-parity-last", paths.runs())
    other = kept.unpacked("raid5-parity-last", paths.runs() / "b")
    assert judged.result_of(run) != judged.result_of(other)
    assert len(made) == 2
