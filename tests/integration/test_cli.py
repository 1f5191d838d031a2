"""The command line: help with examples, one JSON document, statuses, speed, quiet pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lab.cli.app import FIRST, SECTIONS
from lab.cli.commands import app
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import EXIT_UNREAD
from lab.model.result.document import Result
from lab.plugins import catalog
from tests.fakes import SCENARIO, UNDRAWN, Cli, clean_environment, programs, stored_run, with_matrix

MAIN = "raid5-parity-last"


def commands() -> list[tuple[str, ...]]:
    """Return every command as words."""

    def walk(command: Any, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        below = getattr(command, "commands", None)
        if below is None:
            return [words]
        return [w for name, one in below.items() for w in walk(one, (*words, name))]

    return walk(typer.main.get_command(app), ())


def test_the_commands_of_the_contract_are_there() -> None:
    there = {" ".join(words) for words in commands()}
    assert there >= {
        *("doctor", "image list", "image build", "image import", "image remove", "image prune"),
        *("scenario list", "scenario show", "scenario check", "scenario plan", "scenario predict"),
        *("scenario new", "up scenario", "run scenario", "ps", "ssh", "console", "down", "gc"),
        *("results list", "results show", "schema scenario", "schema result"),
        *("results compare", "results history", "results noise", "results export"),
    }


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli(*words, "--help")
    assert (ended.status, ended.stderr) == (0, "")
    examples = ended.stdout.partition("\nExamples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith(f"  lab {' '.join(words)}") for line in examples)
    assert ended.stdout.startswith("Usage: lab ")


def test_help_may_be_asked_for_in_short(cli: Cli) -> None:
    assert cli("scenario", "plan", "-h").stdout == cli("scenario", "plan", "--help").stdout


JSON: dict[str, tuple[str, ...]] = {
    "scenario list": (),
    "scenario show": (MAIN,),
    "scenario check": (),
    "scenario plan": (MAIN,),
    "scenario predict": (MAIN,),
    "results list": (),
    "results show": ("last",),
    "results compare": ("last", "last"),
    "results history": ("throughput",),
    "results noise": ("last",),
    "results export": ("--format", "csv", "--out", "a.csv"),
    "ps": (),
    "image list": (),
    "doctor": (),
    "down": (),
    "gc": (),
    "image prune": (),
}


@pytest.mark.parametrize("command", JSON)
def test_json_is_one_document_and_nothing_else(cli: Cli, command: str) -> None:
    stored_run(cli.home / "data" / "runs")
    if command == "doctor":  # it is faster without QEMU
        cli.env["PATH"] = programs(cli.base / "bin", "sh", "sed", find=shutil.which)
    ended = cli(*command.split(), *JSON[command], "--json")
    assert isinstance(ended.json, dict)
    assert ended.status == (3 if command == "doctor" else 0)
    assert "Traceback" not in ended.stderr
    with pytest.raises(json.JSONDecodeError):
        json.loads(ended.stdout + ended.stdout)


@pytest.mark.parametrize("kind", ["scenario", "result"])
def test_schemas_are_json(cli: Cli, kind: str) -> None:
    assert cli("schema", kind).json["$schema"].startswith("https://json-schema.org/")


def test_a_prediction_is_a_result_without_measurements(cli: Cli) -> None:
    ended = cli("scenario", "predict", MAIN, "--json")
    result = Result.model_validate_json(ended.stdout)
    assert [c.axes["disks.count"] for c in result.cells] == [5, 3, 5]
    assert all(c.predictions and not c.measurements for c in result.cells)
    assert {c.verdict.value for c in result.claims} == {"not_tested"}
    one = {p.metric: p.value for p in result.cells[1].predictions if p.workload == "write"}
    assert one["throughput"] == pytest.approx(10.7e6, rel=0.02)


def test_what_is_shown_of_a_run_is_the_result_document(cli: Cli) -> None:
    run = stored_run(cli.home / "data" / "runs")
    for name in ("last", MAIN, run.id, str(run.directory)):
        ended = cli("results", "show", name, "--json")
        result = Result.model_validate_json(ended.stdout)
        assert result.run.id == run.id
        assert result.cells[0].measurements[0].median > 0
    page = cli("results", "show").stdout
    assert "S004-1" in page
    assert str(run.directory).replace(str(cli.base), "~") in page


def test_a_scenarios_page_has_the_words_and_the_mechanism_of_its_claims(cli: Cli) -> None:
    shown = " ".join(cli("scenario", "show", MAIN).stdout.split())
    for claim in compile_scenario(catalog.scenario_path(MAIN)).scenario.claims:
        quote = f"source: “{claim.quote}”" if claim.quote else "the source does not say this"
        assert " ".join(quote.split()) in shown
        assert " ".join((claim.why or "none").split()) in shown


def test_a_set_reaches_the_cells(cli: Cli) -> None:
    ended = cli("scenario", "show", MAIN, "--json", "--set", "matrix={}", "--set", "disks.count=6")
    assert [c["axes"] for c in ended.json["cells"]] == [{}]
    assert ended.json["scenario"]["disks"][0]["count"] == 6


def test_commands_and_options_that_do_not_exist_are_bad_input(cli: Cli) -> None:
    for args in (("scnario",), ("scenario", "chekc"), ("doctor", "--jsn"), ("run", "scenario")):
        ended = cli(*args)
        assert (ended.status, ended.stdout) == (2, "")
        assert "Traceback" not in ended.stderr
        assert len(ended.stderr.splitlines()) < 8
    for args in (
        ("run", "scenario", MAIN, "--trials", "0"),
        ("run", "scenario", MAIN, "--trials", "x"),
    ):
        assert cli(*args).status == 2
    assert not cli.home.exists()


def test_a_name_that_is_nearly_right_is_guessed(cli: Cli) -> None:
    ended = cli("run", "scenario", "raid5-partiy-last")
    assert ended.status == 2
    assert "did you mean 'raid5-parity-last'?" in ended.stderr


def test_without_runs_and_guests_it_says_so(cli: Cli) -> None:
    ended = cli("results", "show")
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr.startswith("lab: there is no run 'last'")
    assert "There is no run yet" in cli("results", "list").stdout
    assert "No guest is up" in cli("ps").stdout
    assert cli("ssh").status == cli("console").status == cli("down", "g1").status == 2
    assert not cli.home.exists()


def test_a_broken_scenario_does_not_hide_the_good_ones(cli: Cli) -> None:
    own = cli.base / ".config" / "lab" / "scenarios"
    own.mkdir(parents=True)
    (own / "broken.yaml").write_text("titel: x\n")
    (own / "mine.yaml").write_text(SCENARIO)
    listed = cli("scenario", "list")
    assert "mine" in listed.stdout
    assert "broken.yaml:1: titel: " in listed.stderr
    checked = cli("scenario", "check")
    assert checked.status == 2
    assert "mine: good, 1 cell\n" in checked.stdout
    both = cli("scenario", "check", "--json").json
    assert [w["name"] for w in both["wrong"]] == ["broken"]


def test_a_new_scenario_is_a_good_one_and_is_never_written_over(cli: Cli) -> None:
    assert cli("scenario", "new", "mine.yaml").status == 0
    assert cli("scenario", "check", "mine.yaml").status == 0
    (cli.base / "mine.yaml").write_text("precious")
    again = cli("scenario", "new", "mine.yaml")
    assert again.status == 2
    assert "already exists" in again.stderr
    assert (cli.base / "mine.yaml").read_text() == "precious"
    assert cli("scenario", "new", "mine.txt").status == 2
    assert cli("scenario", "new", "nowhere/mine.yaml").status == 2


def test_output_that_is_no_terminal_has_no_colour_and_80_columns(cli: Cli) -> None:
    cli.env["TERM"] = "xterm-256color"
    for args in (("scenario", "show", MAIN), ("scenario", "predict", MAIN)):
        ended = cli(*args)
        assert "\x1b" not in ended.stdout
        assert max(map(len, ended.stdout.splitlines())) <= 80


@pytest.mark.parametrize("columns", ["", "0", "x", "200", "80", "60", "20"])
def test_a_pipe_gets_one_record_per_line_with_whole_identifiers(cli: Cli, columns: str) -> None:
    if columns:
        cli.env["COLUMNS"] = columns
    run = stored_run(cli.home / "data" / "runs")
    names = list(catalog.scenarios())
    lines = cli("scenario", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["scenario", *names]
    runs = cli("results", "list").stdout.splitlines()
    assert [line.split()[0] for line in runs] == ["run", run.id]
    widest = max(map(len, lines))
    if columns in ("80", "60"):
        assert widest <= int(columns)
    elif columns != "20":
        assert any(catalog_title(name) in line for name, line in zip(names, lines[1:], strict=True))
    else:
        assert widest == max(map(len, names))


def catalog_title(name: str) -> str:
    return compile_scenario(catalog.scenario_path(name)).scenario.title


def test_the_doctor_names_what_is_missing_and_how_to_fix_it(cli: Cli) -> None:
    cli.env["PATH"] = programs(cli.base / "bin", "sh", "sed", find=shutil.which)
    ended = cli("doctor")
    assert ended.status == 3
    for words in ("qemu-img", "xorriso"):
        assert any(line.split()[:2] == ["MISSING", words] for line in ended.stdout.splitlines())
    assert "sudo apt-get install qemu-system-x86" in ended.stdout


def test_the_help_names_every_command_once_on_one_screen(cli: Cli) -> None:
    cli.env["COLUMNS"] = "80"
    lines = cli("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    first, others = lines.index(f"{FIRST}:") + 1, lines.index("", 5)
    named = [line.split()[0] for line in lines[first:others]]
    for section in SECTIONS[1:]:
        (line,) = (line for line in lines if line.startswith(f"{section}  "))
        named += line.removeprefix(section).split()
    older = {"gc", "prune"}  # hidden: `lab clean` does that
    assert sorted(named) == sorted({first for first, *_ in commands()} - older)


def test_a_changed_scenario_is_checked_and_planned_before_it_runs(cli: Cli) -> None:
    assert cli("check", MAIN).status == 0
    level = cli("check", MAIN, "--set", "array.level=6")
    assert (level.status, "RAID 6 needs at least 4 members" in level.stderr) == (2, True)
    assert cli("check", MAIN, "--profile", "published", "--clock", "virtual").status == 0
    matrix = cli("check", "nightly", "--clock", "virtual")
    assert (matrix.status, "is a matrix" in matrix.stderr) == (2, True)
    words = (MAIN, "--set", "array.chunk=256KiB")
    planned = cli("run", *words, "--plan")
    assert planned.status == 0
    assert "--chunk=256K" in planned.stdout
    assert planned.stdout == cli("scenario", "plan", *words).stdout


@pytest.mark.parametrize("name", ["last~1", "other-20240101", "other", "raid5-parity-last~1"])
def test_every_command_that_takes_a_run_takes_its_names(
    cli: Cli, name: str, tmp_path: Path
) -> None:
    runs = cli.home / "data" / "runs"
    for id_ in ("other-20240101-120000", "raid5-parity-last-20230101-120000"):
        stored_run(tmp_path / id_).directory.rename(runs_of(runs) / id_)
    stored_run(runs)
    wanted = {"raid5-parity-last~1": "raid5-parity-last-20230101-120000"}
    id_ = wanted.get(name, "other-20240101-120000")
    shown = [
        cli("results", "show", name).stdout,
        cli("results", "compare", name, "last").stdout,
        cli("report", name, "--json", before=UNDRAWN).stdout,
        cli("results", "export", name, "--format", "junit", "--out", "x.xml").stdout,
    ]
    assert id_ in shown[0]
    assert id_ in shown[2]
    assert all(shown)
    assert cli("scenario", "explain", MAIN, "--run", name).status == 0


def runs_of(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_the_version_is_the_programs(cli: Cli) -> None:
    import lab

    assert cli("--version").stdout == f"lab {lab.__version__}\n"


# -- in a new process: behaviour at its start and end


def lab_argv() -> list[str]:
    script = Path(sys.executable).parent / "lab"
    return [str(script)] if script.exists() else [sys.executable, "-m", "lab"]


def test_the_module_and_the_script_are_the_same_program(tmp_path: Path) -> None:
    said = {
        subprocess.run(
            [*argv, "--version"],
            env=clean_environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for argv in (lab_argv(), [sys.executable, "-m", "lab"])
    }
    assert len(said) == 1


@pytest.mark.parametrize("args", [["scenario", "plan", "q.yaml"], ["scenario", "list", "--json"]])
def test_a_reader_that_goes_away_is_no_error_to_speak_of(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "q.yaml").write_text(with_matrix("  disks.count: [3, 4, 5]\n"))
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*lab_argv(), *args],
        env=clean_environment(tmp_path),
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert ended.stderr == b""
    assert ended.returncode in (0, EXIT_UNREAD)
