"""Stored runs with a plug-in that is not here: what is stored is shown, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import kept
from tests.fakes import UNDRAWN, Cli, Ended, LabServer

Cell = dict[str, Any]


def workload(cell: Cell) -> None:
    cell["workloads"][0]["tool"] = "gone"


def disk(cell: Cell) -> None:
    cell["disks"][0]["model"] = "gone"


def array(cell: Cell) -> None:
    cell["array"]["kind"] = "gone"


def fault(cell: Cell) -> None:
    after = cell["workloads"][-1]["name"]
    cell["faults"] = [{"name": "harm", "fault": "gone", "after": after, "parameters": {}}]


def hidden(cell: Cell) -> None:
    """A module that is not a plug-in."""
    cell["disks"][0]["model"] = "_shared"


def dots(cell: Cell) -> None:
    cell["disks"][0]["model"] = "..workloads.dd"


KINDS: tuple[Callable[[Cell], None], ...] = (workload, disk, array, fault, hidden, dots)
NAME = "raid5-parity-last"


def changed(base: Path, change: Callable[[Cell], None], number: int, *, recorded: bool) -> Path:
    """A run whose last cell has such a plug-in; ``recorded``: it has a stored result."""
    aside = base / f"aside-{number}-{recorded}"
    original = kept.unpacked(NAME, aside)
    run = base / "h" / "data" / "runs" / f"{NAME}-2026010{number + 1}-{int(recorded)}00000"
    run.parent.mkdir(parents=True, exist_ok=True)
    original.directory.rename(run)
    data = json.loads((run / "run.json").read_text()) | {"id": run.name}
    change(data["cells"][-1]["cell"])
    (run / "run.json").write_text(json.dumps(data))
    result = json.loads((run / "result.json").read_text())
    result["run"]["id"] = run.name
    (run / "result.json").write_text(json.dumps(result))
    if not recorded:
        (run / "result.json").unlink()
    return run


@pytest.fixture(scope="module")
def cli(lab_server: LabServer, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """One intact run, and one of each kind with and without a stored result."""
    base = tmp_path_factory.mktemp("missing")
    changed(base, lambda cell: None, 8, recorded=True)
    for number, change in enumerate(KINDS):
        for recorded in (True, False):
            changed(base, change, number, recorded=recorded)
    return Cli(server=lab_server, base=base, before=UNDRAWN)


GOOD = f"{NAME}-20260109-100000"


def about(ended: Ended, run: str) -> list[str]:
    return [line for line in ended.stderr.splitlines() if f"{run}'" in line]


def runs(recorded: bool) -> list[str]:
    return [f"{NAME}-2026010{n + 1}-{int(recorded)}00000" for n in range(len(KINDS))]


@pytest.mark.parametrize(
    "words",
    [
        ("results", "list"),
        ("results", "list", "--json"),  # from what was kept
        ("results", "history", "throughput"),
        ("results", "history", "throughput", "--json"),
        ("results", "noise", GOOD),
        ("site", "site"),
        ("site", "site", "--json"),
    ],
)
def test_commands_on_all_runs_say_one_sentence_of_each_and_show_the_rest(
    cli: Cli, words: tuple[str, ...]
) -> None:
    ended = cli(*words)
    assert ended.status == 0, ended.stderr
    assert "bug in the lab" not in ended.stderr
    for run in (GOOD, *runs(recorded=True)):
        if words[0] == "site":
            assert (cli.base / "site" / f"{run}.html").exists()
        elif words[1] == "list" or "--json" in words:
            assert run in ended.stdout
        assert len(about(ended, run)) <= int(run != GOOD)
    told = ended.stderr
    if words[0] == "results" and "--json" in words:
        told = "\n".join(ended.json["broken"])
    for run in runs(recorded=False):
        if words[1] != "noise" and "3-000000" not in run:  # no value depends on the array's kind
            assert told.count(f"{run}'") == 1, told


def each(run: str) -> tuple[tuple[str, ...], ...]:
    form = ("results", "export", run, "--format")
    return (
        ("results", "show", run),
        ("results", "show", run, "--whole"),
        ("results", "show", run, "--json"),
        ("results", "compare", GOOD, run),
        ("results", "compare", run, run, "--json"),
        ("results", "noise", run),
        ("report", run, "--out", f"{run}.html"),
        ("scenario", "explain", NAME, "--run", run),
        *((*form, name, "--out", f"{run}.{name}") for name in ("csv", "parquet", "junit")),
        *((*form, name, "--out", f"{run}.{name}") for name in ("summary", "openmetrics")),
        *((*form, name, "--out", f"{run}.{name}") for name in ("fio", "script")),
        (*form, "bundle", "--out", f"{run}.lab.zip"),
    )


READS = ("show", "report", "csv", "junit", "summary", "openmetrics", "bundle", "noise")
"""Commands that need no plug-in: what is stored is enough for them."""


@pytest.mark.parametrize(
    ("number", "recorded"), [(0, True), (0, False), (1, True), (2, True), (3, True), (5, False)]
)
def test_commands_on_one_run_show_what_is_stored_or_say_why_not(
    cli: Cli, number: int, recorded: bool
) -> None:
    run = runs(recorded=recorded)[number]
    for words in each(run):
        ended = cli(*words)
        assert "bug in the lab" not in ended.stderr, (words, ended.stderr)
        assert ended.status in (0, 2), (words, ended.stderr)
        if ended.status == 2:
            assert not recorded or not set(READS) & set(words), (words, ended.stderr)
            assert ended.stderr.count("lab: ") == 1, (words, ended.stderr)
        for path in (cli.base / f"{run}.{form}" for form in ("lab.zip", "html")):
            path.unlink(missing_ok=True)


def test_the_sentence_names_the_plug_in_and_the_values_are_those_of_the_end(cli: Cli) -> None:
    run = runs(recorded=True)[0]
    ended = cli("results", "show", run, "--json")
    stored = json.loads((cli.home / "data" / "runs" / run / "result.json").read_text())
    wanted = [(claim["id"], claim["verdict"], claim["measured"]) for claim in stored["claims"]]
    assert [(c["id"], c["verdict"], c["measured"]) for c in ended.json["claims"]] == wanted
    (sentence,) = about(ended, run)
    assert "'gone' in lab/plugins/workloads" in sentence
    (sentence,) = about(cli("results", "show", runs(recorded=False)[0]), runs(recorded=False)[0])
    assert "'gone' in lab/plugins/workloads" in sentence
