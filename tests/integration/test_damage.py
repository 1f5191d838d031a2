"""A corrupt or foreign entry among the results is reported, and all others are shown."""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.results.documents import result_of
from lab.store.runs import RunStore
from tests import runs
from tests.fakes import UNDRAWN, Cli, Ended, LabServer


def stamp(number: int) -> str:
    return f"202601{number:02d}-120000"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run of two cells with its result."""
    store = runs.theory_run(tmp_path_factory.mktemp("whole"), runs.SMALL, name="d")
    store.save_result(result_of(store))
    return store


def place_run(whole: RunStore, parent: Path, name: str | bytes) -> Path:
    """Copy that run to another name; its id changes too if the name is text."""
    place = parent / os.fsdecode(name)
    shutil.copytree(whole.directory, place)
    for file in ("run.json", "result.json"):
        text = (place / file).read_text()
        (place / file).write_text(
            text.replace(whole.id, place.name.encode(errors="replace").decode())
        )
    return place


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def newer(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1).replace("{", '{"more": 1, ', 1))


def elsewhere(path: Path, other: Path) -> None:
    path.rename(other)
    path.symlink_to(other)


def cells(run: Path) -> list[Path]:
    return sorted(path for path in (run / "cells").iterdir() if path.is_dir())


@dataclass(frozen=True, slots=True)
class Case:
    """A change of a run, the expected message, and commands that read the changed file."""

    harm: Callable[[Path], object]
    says: str
    shows: bool = True
    """Whether it is still a run afterwards."""
    kept: bool = False
    """Whether it is only the stored result, which lists and histories read."""
    deep: bool = False
    """Whether only commands that read cells see it."""
    among: bool = False
    """Whether it is next to the runs."""


CASES = {
    "result.json is cut off": Case(
        lambda run: cut(run / "result.json"), "/result.json' is cut off", kept=True
    ),
    "result.json is of a newer lab": Case(
        lambda run: newer(run / "result.json", "lab.result/1", "lab.result/2"),
        "/result.json' has the form 'lab.result/2', and this lab reads 'lab.result/1'",
        kept=True,
    ),
    "result.json is a directory": Case(
        lambda run: ((run / "result.json").unlink(), (run / "result.json").mkdir()),
        "/result.json' cannot be read: it is a directory and no file",
        kept=True,
    ),
    "result.json is a link": Case(
        lambda run: (
            (run / "result.json").rename(run / "other"),
            (run / "result.json").symlink_to("other"),
        ),
        "/result.json' cannot be read: it is a symbolic link, which is not followed",
        kept=True,
    ),
    "run.json is cut off": Case(
        lambda run: cut(run / "run.json"),
        "/run.json' is not a run that this lab can read",
        shows=False,
    ),
    "run.json is of a newer lab": Case(
        lambda run: newer(run / "run.json", "lab.run/1", "lab.run/2"),
        "/run.json' has the form 'lab.run/2', and this lab reads 'lab.run/1'",
        shows=False,
    ),
    "run.json is a FIFO": Case(
        lambda run: ((run / "run.json").unlink(), os.mkfifo(run / "run.json")),
        "/run.json' cannot be read: it is a FIFO and no file",
        shows=False,
    ),
    "run.json is huge": Case(
        lambda run: os.truncate(run / "run.json", 1 << 40),
        "/run.json' cannot be read: it has 1TiB, at most 64MiB",
        shows=False,
    ),
    "a cell is elsewhere": Case(
        lambda run: elsewhere(cells(run)[0], run / "elsewhere"),
        "cannot be read: it is a symbolic link",
        deep=True,
    ),
    "outcome.json is cut off": Case(
        lambda run: cut(cells(run)[0] / "outcome.json"), "/outcome.json' is cut off", deep=True
    ),
    "raw output is binary junk": Case(
        lambda run: (cells(run)[0] / "raw" / "read.1.stderr.txt").write_bytes(b"\xff\xfe\0"),
        "raw/read.1.stderr.txt' is no text",
        deep=True,
    ),
    "a directory that is no run": Case(
        lambda run: (run.parent / "my things").mkdir(),
        "my things' is no run",
        among=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """Every corrupt run, two intact ones, and the messages about all."""

    cli: Cli
    hurt: dict[str, Path]
    listed: Ended
    past: Ended
    site: Ended


GOOD = ("d-20260101-120000", "d-20260102-120000")


@pytest.fixture(scope="module")
def shown(
    lab_server: LabServer, whole: RunStore, tmp_path_factory: pytest.TempPathFactory
) -> Shown:
    cli = Cli(server=lab_server, base=tmp_path_factory.mktemp("shown"), before=UNDRAWN)
    parent = cli.home / "data" / "runs"
    parent.mkdir(parents=True)
    for name in GOOD:
        place_run(whole, parent, name)
    hurt = {}
    for number, (name, case) in enumerate(CASES.items(), 3):
        hurt[name] = place_run(whole, parent, f"d-{stamp(number)}")
        case.harm(hurt[name])
    return Shown(
        cli,
        hurt,
        listed=cli("results", "list"),
        past=cli("results", "history", "throughput", "--json"),
        site=cli("site", "site"),
    )


def told(text: str, run: Path, case: Case) -> bool:
    """Return whether it is reported in its own sentence, with the path."""
    place = str(run.parent if case.among else run)
    return any(case.says in s and place in s for s in text.splitlines() if s.startswith("lab: "))


@pytest.mark.parametrize("name", CASES)
def test_it_is_named_and_everything_else_shows(shown: Shown, name: str) -> None:
    case, run = CASES[name], shown.hurt[name]
    assert (shown.listed.status, shown.past.status, shown.site.status) == (0, 0, 0)
    assert (run.name in shown.listed.stdout) is case.shows
    assert told(shown.listed.stderr, run, case) is not case.deep
    broken = "".join(f"lab: {s}\n" for s in shown.past.json["broken"])
    assert told(broken, run, case) is not case.deep
    assert told(shown.site.stderr, run, case) is not case.kept
    index = html.unescape((shown.cli.base / "site" / "index.html").read_text())
    assert told(index.replace("<li>", "\nlab: "), run, case) is (case.among or not case.shows)
    assert (shown.cli.base / "site" / f"{run.name}.html").exists() is case.shows
    for words in (
        ("results", "show", str(run)),
        ("results", "compare", GOOD[0], str(run)),
        ("results", "export", str(run), "--format", "csv", "--out", f"{run.name}.csv"),
    ):
        ended = shown.cli(*words)
        assert ended.status == (0 if case.shows else 2), ended.stderr
        assert told(ended.stderr, run, case) is not (case.among or case.kept)
        assert "mistake in the lab" not in ended.stderr


def test_what_is_whole_shows_and_nothing_is_said_of_it(shown: Shown) -> None:
    said = shown.listed.stderr + shown.site.stderr
    for name in GOOD:
        assert name in shown.listed.stdout
        assert name not in said
        assert name in {point["run"] for point in shown.past.json["points"]}
        assert (shown.cli.base / "site" / f"{name}.html").exists()
    for words in (
        ("results", "show", GOOD[1]),
        ("results", "compare", *GOOD),
        ("results", "export", GOOD[1], "--format", "csv", "--out", "good.csv"),
        ("report", GOOD[1], "--out", "good.html"),
    ):
        ended = shown.cli(*words)
        assert (ended.status, ended.stderr) == (0, "")


def test_a_run_may_be_called_anything(cli: Cli, whole: RunStore) -> None:
    parent = cli.home / "data" / "runs"
    parent.mkdir(parents=True)
    names = [place_run(whole, parent, n).name for n in ("odd [1]*?", "no date", b"caf\xe9-1")]
    for words in (
        ("results", "list"),
        ("results", "list", "--json"),
        ("results", "history", "throughput"),
        ("results", "history", "throughput", "--json"),
        ("site", "site"),
    ):
        ended = cli(*words, before=UNDRAWN)
        assert (ended.status, ended.stderr) == (0, ""), (words, ended.stderr)
    assert len(cli("results", "list", "--json").json["runs"]) == 3
    points = cli("results", "history", "throughput", "--json").json["points"]
    assert len({point["run"] for point in points}) == 3
    assert {f"{name}.html" for name in names} < {p.name for p in (cli.base / "site").iterdir()}


CLOSED = ("RUN", "RUN/cells", "RUN/cells/CELL", "RUN/cells/CELL/raw", "RUN/result.json")


@pytest.fixture(scope="module")
def ordinary() -> Iterator[LabServer]:
    """A command line that file modes restrict: root without its capabilities."""
    without = "-dac_override,-dac_read_search"
    setpriv = ("setpriv", f"--inh-caps={without}", f"--bounding-set={without}")
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root may read everything, and there is no setpriv")
    server = LabServer(*(setpriv if os.geteuid() == 0 else ()))
    yield server
    server.close()


@pytest.mark.parametrize("closed", CLOSED)
def test_what_nobody_may_read_is_named_and_everything_else_shows(
    ordinary: LabServer, tmp_path: Path, whole: RunStore, closed: str
) -> None:
    cli = Cli(server=ordinary, base=tmp_path, before=UNDRAWN)
    parent = cli.home / "data" / "runs"
    parent.mkdir(parents=True)
    good, hurt = GOOD
    place_run(whole, parent, good)
    cell = cells(place_run(whole, parent, hurt))[0].name
    path = parent / closed.replace("RUN", hurt).replace("CELL", cell)
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        ended = {
            words: cli(*words)
            for words in (
                ("results", "list"),
                ("results", "history", "throughput"),
                ("results", "show", good),
                ("results", "show", hurt),
                ("results", "compare", good, hurt),
                ("results", "export", hurt, "--format", "csv", "--out", "a.csv"),
                ("results", "export", hurt, "--format", "script", "--cell", cell, "--out", "b"),
                ("site", "site"),
            )
        }
    finally:
        path.chmod(mode)
    for words, end in ended.items():
        assert "mistake in the lab" not in end.stderr, words
        only_listed = words[1] in ("list", "history")
        unread = only_listed if "cells" in closed else closed.endswith("result.json")
        if words == ("results", "show", good) or (unread and closed != "RUN/result.json"):
            assert (end.status, end.stderr) == (0, "")
        elif closed == "RUN/result.json" and not only_listed:
            assert end.status == 0
        elif closed == "RUN" and words[1] in ("show", "compare", "export"):
            assert end.status == 2
        else:
            assert re.search(rf"'{path}.*cannot be read: Permission denied", end.stderr), words
            lost = "script" in words and closed in CLOSED[1:3]
            assert end.status == (2 if lost else 0), (words, end.stderr)
    assert good in ended["results", "list"].stdout
    assert (cli.base / "site" / f"{good}.html").exists()


def test_a_cell_whose_files_are_gone_did_not_end_early(whole: RunStore, tmp_path: Path) -> None:
    run = RunStore(place_run(whole, tmp_path, "d-20260101-120000"))
    shutil.rmtree(cells(run.directory)[0])
    gone, there = sorted(result_of(run).cells, key=lambda cell: cell.outcome, reverse=True)
    assert (gone.outcome, gone.reason) == ("skipped", "its files are not there any more")
    assert there.outcome == "done"
