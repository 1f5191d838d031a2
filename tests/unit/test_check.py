"""`make check` succeeds only if every part does; each part runs even if others fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Name of a fake program, and the words in its command line.
PARTS = {
    "ruff format --check": "ruff",
    "ruff check": "ruff",
    "mypy": "mypy",
    "lint-imports --no-logo": "lint-imports",
    "python -m pytest": "python",
}


def check(base: Path, *broken: str) -> subprocess.CompletedProcess[str]:
    """Run the script with fakes that print their arguments, in its own checkout."""
    (base / "tools").mkdir()
    shutil.copy(ROOT / "tools/check.sh", base / "tools")
    tools = base / ".venv/bin"
    tools.mkdir(parents=True)
    for program in set(PARTS.values()):
        fails = "".join(f'"{b}"*) exit 1 ;;\n' for b in broken)
        (tools / program).write_text(
            f'#!/bin/sh\nasked="{program}${{*:+ $*}}"\necho "asked: $asked"\n'
            f'case "$asked" in\n{fails}esac\n'
        )
        (tools / program).chmod(0o755)
    return subprocess.run(
        [base / "tools/check.sh", "-k", "a b"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("broken", [(), *((part,) for part in PARTS), ("mypy", "python")], ids=str)
def test_a_part_that_fails_fails_the_check_and_hides_no_other(
    tmp_path: Path, broken: tuple[str, ...]
) -> None:
    done = check(tmp_path, *broken)
    assert done.returncode == (1 if broken else 0), done.stderr
    for part in PARTS:
        assert f"asked: {part}" in done.stdout
    assert " -k a b\n" in done.stdout
    assert ("the tests" in done.stderr) == any("python" in b for b in broken)
    assert ("a linter" in done.stderr) == any("python" not in b for b in broken)
