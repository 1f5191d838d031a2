"""Completion as shells use it: through the environment, and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.host.guest import registry as guests
from lab.plugins import catalog
from lab.results.schema import as_text, scenario_schema
from tests.fakes import SCENARIO, Cli, clean_environment, stored_run
from tests.integration.test_cli import lab_argv
from tests.speed import quickest

LIMIT = 0.5
"""CPU seconds of the host of the limits."""


@pytest.fixture
def ask(cli: Cli) -> Callable[[str], list[str]]:
    """Return a function that returns bash's completions for a line up to the cursor."""

    def asked(line: str) -> list[str]:
        words = line.split(" ")
        cli.env |= {"_LAB_COMPLETE": "complete_bash", "COMP_WORDS": line}
        cli.env["COMP_CWORD"] = str(len(words) - 1)
        ended = cli()
        assert (ended.status, ended.stderr) == (0, ""), line
        return ended.stdout.split()

    return asked


def test_names_of_scenarios_images_and_runs(cli: Cli, ask: Callable[[str], list[str]]) -> None:
    store = stored_run(cli.home / "data" / "runs")
    (cli.home / "data" / "images" / "mine-0123456789ab").mkdir(parents=True)
    wanted = [name for name in catalog.scenarios() if name.startswith("raid5-p")]
    for command in ("up scenario", "run scenario", "scenario show", "scenario check"):
        assert ask(f"lab {command} raid5-p") == wanted
    assert ask("lab scenario check degraded raid5-p") == wanted
    for command in ("results show", "report", "results compare last", "scenario explain x --run"):
        assert ask(f"lab {command} ") == ["last", store.scenario_name, store.id]
    assert ask("lab run scenario x --resume raid5-parity-last-") == [store.id]
    (store.directory.parent / "other-20240101-120000").mkdir()
    assert ask("lab report last") == ["last", "last~1"]
    (cli.home / "data" / "nights" / "nightly-20240101-120000").mkdir(parents=True)
    assert ask("lab run matrix nightly --resume n") == ["nightly", "nightly-20240101-120000"]
    assert ask("lab image build debian-13") == [
        "debian-13",
        "debian-13-backports",
        "debian-13-blktests",
    ]
    assert ask("lab image remove m") == ["mine"]
    assert ask("lab results export --format p") == ["parquet"]
    assert ask("lab scenario show nobody-calls-it-so") == []


def test_names_of_guests(
    cli: Cli, ask: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("lab ssh ") == ask("lab down g") == ask("lab console ") == []
    monkeypatch.setenv("LAB_HOME", str(cli.home))
    guests.create(guest="g1a2b3c", scenario="s", image="i", host_key="k")
    for command in ("ssh", "down", "console", "down other"):
        assert ask(f"lab {command} g") == ["g1a2b3c"]


def test_keys_of_set(ask: Callable[[str], list[str]]) -> None:
    found = ask("lab run scenario raid5-parity-last --set ")
    assert {
        "guest.memory",
        "disks.throttle.total_bytes_per_second",
        "array.chunk",
        "matrix",
    } <= set(found)
    assert {"workloads.write.bs", "workloads.read.count"} <= set(found)
    assert "workloads.write.name" not in found
    assert ask("lab scenario plan raid5-parity-last --set array.lay") == ["array.layout"]
    assert ask("lab scenario plan --set disks.cache=write") == [
        "disks.cache=writeback",
        "disks.cache=writethrough",
    ]
    assert ask("lab scenario plan nobody --set workloads.") == []


def test_profiles_and_keys_of_what_is_extended(cli: Cli, ask: Callable[[str], list[str]]) -> None:
    (cli.base / "base.yaml").write_text(f"{SCENARIO}profiles: {{published: {{}}, small: {{}}}}\n")
    (cli.base / "q.yaml").write_text("extends: base\n")
    for command in ("scenario show", "scenario predict", "run scenario", "up scenario"):
        assert ask(f"lab {command} q.yaml --profile ") == ["published", "small"]
    assert ask("lab scenario plan q.yaml --profile p") == ["published"]
    assert ask("lab scenario plan nobody --profile ") == []
    assert "workloads.write.bs" in ask("lab scenario plan q.yaml --set workloads.")


def test_drives_by_name(cli: Cli, ask: Callable[[str], list[str]]) -> None:
    kept = cli.home / "data" / "profiles" / "mine.yaml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("kind: ssd\n")
    assert ask("lab disk serve hdd_sam") == ["hdd_samsung_f1"]
    assert ask("lab disk serve mi") == ["mine"]
    assert ask("lab run scenario degraded --set disks.model=pro") == ["disks.model=profile:mine"]


def unknown(key: str) -> bool:
    """Return whether a scenario has no such key, for any value."""
    path = catalog.scenario_path("raid5-parity-last")
    try:
        compile_scenario(path, overrides=[parse_override(f"{key}=null")])
    except InputError as error:
        return "unknown key" in error.message
    return False


def test_each_key_of_set_is_one_that_a_scenario_has(ask: Callable[[str], list[str]]) -> None:
    found = ask("lab run scenario raid5-parity-last --set ")
    assert len(found) > 80
    assert [key for key in found if unknown(key)] == []
    assert unknown("array.chnk")


def test_the_kept_schema_is_the_models() -> None:
    assert catalog.schema_path().read_text(encoding="utf-8") == as_text(scenario_schema())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(cli: Cli, shell: str) -> None:
    cli.env["_LAB_COMPLETE"] = f"source_{shell}"
    ended = cli()
    assert ended.status == 0
    assert f"complete_{shell}" in ended.stdout


def test_zsh_and_fish_are_told_the_same(cli: Cli) -> None:
    cli.env |= {"_LAB_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "lab scenario show deg"}
    assert cli().stdout == "_arguments '*: :((\"degraded\"))'\n"
    cli.env |= {"_LAB_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert cli().stdout == "degraded\n"


def environment(base: Path) -> dict[str, str]:
    script = str(Path(lab_argv()[0]).parent)
    own = clean_environment(base) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return own | {"PATH": f"{script}{os.pathsep}{own['PATH']}"}


LINES = """
eval "$(_LAB_COMPLETE=source_bash lab)"
COMP_WORDS=({line}); COMP_CWORD={cursor}
_lab_completion lab
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.skipif(len(lab_argv()) > 1, reason="the program is not installed")
def test_a_real_bash_completes_with_the_script(tmp_path: Path) -> None:
    for line, wanted in (("lab scen", ["scenario"]), ("lab scenario show deg", ["degraded"])):
        said = subprocess.run(
            ["bash", "--norc", "-c", LINES.format(line=line, cursor=line.count(" "))],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.split() == wanted, said.stderr


@pytest.mark.parametrize(
    "line",
    ["lab scenario show r", "lab results show ", "lab run scenario degraded --set ", "lab ssh "],
)
def test_an_answer_comes_before_anybody_waits(tmp_path: Path, line: str) -> None:
    asked = {
        "_LAB_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    assert quickest(lab_argv(), environment(tmp_path) | asked, limit=LIMIT) < LIMIT
