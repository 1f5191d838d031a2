"""The CI files pass their services' schemas and linters, and use existing commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lab.cli import capabilities
from tests.fakes import Cli

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github/workflows/nightly.yml"
GITLAB = ROOT / ".gitlab-ci.yml"
PATCH = ROOT / ".github/workflows/patch.yml"
ACTION = ROOT / "action.yml"
MATRICES = (GITHUB, GITLAB)
ROOMS = {"run": "matrix", "site": "site"}
"""The capability of a command in these files."""
SCHEMAS = {
    GITHUB: "vendor.github-workflows",
    GITLAB: "vendor.gitlab-ci",
    PATCH: "vendor.github-workflows",
    ACTION: "vendor.github-actions",
}


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def program(name: str) -> str:
    """Return a linter next to this Python, or on PATH; skip the test if it is not installed."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("file", SCHEMAS)
def test_each_file_is_what_its_service_reads(file: Path, tmp_path: Path) -> None:
    check = (program("check-jsonschema"), "--builtin-schema", SCHEMAS[file])
    ended = ran(*check, file)
    assert ended.returncode == 0, ended.stdout
    wrong = tmp_path / "wrong.yml"
    spoilt = file.read_text().replace("runs-on:", "runs-on-:").replace("parallel: 4", "parallel: x")
    spoilt = spoilt.replace("using: composite", "using: nothing")
    wrong.write_text(spoilt)
    assert ran(*check, wrong).returncode == 1


@pytest.mark.parametrize("file", [GITHUB, PATCH, ACTION], ids=lambda file: file.stem)
def test_the_workflow_is_safe_by_its_linter(tmp_path: Path, file: Path) -> None:
    """Actions are pinned, no credentials are left, no expansion in a shell."""
    zizmor = (program("zizmor"), "--offline", "--no-progress", "--quiet")
    ended = ran(*zizmor, file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    wrong = tmp_path / file.name  # zizmor knows an action by its name
    wrong.write_text(re.sub(r"(actions/[a-z-]+)@\w+", r"\1@v4", file.read_text()))
    assert ran(*zizmor, wrong).returncode != 0


def test_the_guides_workflow_is_one(tmp_path: Path) -> None:
    """The workflow that the guide shows for other repositories is valid, and uses real inputs."""
    guide = (ROOT / "docs/howto/patch.md").read_text()
    text = re.search(r"```yaml title=\"\.github/workflows/md\.yml\"\n(.*?)```", guide, re.DOTALL)
    assert text is not None
    shown = tmp_path / "md.yml"
    shown.write_text(text[1])
    check = (program("check-jsonschema"), "--builtin-schema", "vendor.github-workflows")
    assert ran(*check, shown).returncode == 0
    steps = document(shown)["jobs"]["patch"]["steps"]
    assert set(steps[-1]["with"]) <= set(document(ACTION)["inputs"])


def document(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file.read_text())


def lines(file: Path) -> Iterator[str]:
    """Yield every line of shell."""
    for job in document(file).get("jobs", document(file)).values():
        if not isinstance(job, dict):
            continue
        steps = [step.get("run", "") for step in job.get("steps", ()) if isinstance(step, dict)]
        for text in (*steps, *job.get("script", ()), *job.get("before_script", ())):
            yield from text.splitlines()


@pytest.mark.parametrize("file", MATRICES)
def test_what_they_run_is_there(file: Path, cli: Cli) -> None:
    """Check each make target, and each command and option of the lab."""
    commands = [line.strip() for line in lines(file)]
    targets = {line.split()[1] for line in commands if line.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text()
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    ours = [line.split()[1:] for line in commands if line.startswith(".venv/bin/lab ")]
    assert [words[0] for words in ours] == ["doctor", "run", "site"]
    for words in ours:
        if ROOMS.get(words[0], "") not in ("", *capabilities.names()):
            continue
        verbs = words[: next((i for i, w in enumerate(words) if w.startswith("-")), len(words))]
        known = cli(*[v for v in verbs if v != "nightly"], "--help")
        assert known.status == 0
        for option in (word for word in words if word.startswith("--")):
            assert option in known.stdout


def test_all_shares_are_run() -> None:
    shards = document(GITHUB)["jobs"]["matrix"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{n}/{len(shards)}" for n in range(1, len(shards) + 1)]
    assert document(GITLAB)["matrix"]["parallel"] == len(shards)
    assert '"$CI_NODE_INDEX/$CI_NODE_TOTAL"' in GITLAB.read_text()


@pytest.mark.parametrize("file", MATRICES)
def test_what_became_refuted_is_bisected(file: Path) -> None:
    """In the same command as the report, which has the result; on runs of the nights before."""
    shell = " ".join(lines(file))
    command = shell[shell.index("lab run matrix nightly") :]
    command = command[: command.index("--verbose")]
    assert "--bisect" in command
    assert "--report" in command


def test_a_strangers_series_gets_no_cache_and_leaves_no_device_open() -> None:
    """What foreign code may have written is never saved; /dev/kvm is given back, whatever fails."""
    steps = document(ROOT / "action.yml")["runs"]["steps"]
    uses = [step["uses"] for step in steps if "uses" in step]
    assert not [one for one in uses if one.startswith(("actions/cache@", "actions/cache/save@"))]
    assert [one for one in uses if one.startswith("actions/cache/restore@")]
    shell = " ".join(step.get("run", "") for step in steps)
    assert "chmod" not in shell
    (back,) = [step for step in steps if "$KVM_GROUP" in step.get("run", "")]
    assert back["if"] == "always()"


@pytest.mark.parametrize(
    "file",
    ["action.yml", ".github/workflows/nightly.yml", "docs/howto/ci.md", "docs/howto/patch.md"],
)
def test_examples_are_pinned_and_not_privileged(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert "--privileged" not in text
    assert "0666" not in text
    for action in re.findall(r"uses: (actions/\S+)@(\S+)", text):
        assert re.fullmatch(r"[0-9a-f]{40}", action[1]), action
