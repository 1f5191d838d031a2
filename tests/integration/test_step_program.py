"""``guest_programs/step.py``, run here instead of in a guest."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import lab.plugins.guest_programs as programs

PROGRAM = Path(programs.__file__).parent / "step.py"


def run(tmp_path: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    given = {
        "argv": [],
        "script": "",
        "directory": "",
        "environment": {},
        "limit": None,
        "accepted": [0],
        "scratch": str(tmp_path),
        **changes,
    }
    return subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(given)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def told(done: subprocess.CompletedProcess[str]) -> tuple[str, dict[str, Any]]:
    text, mark, last = done.stdout.rpartition("\n--lab-- ")
    assert mark
    return text, json.loads(last)


def test_output_passes_unchanged_and_the_end_follows(tmp_path: Path) -> None:
    done = run(tmp_path, argv=["printf", "no newline"])
    text, end = told(done)
    assert text == "no newline"
    assert end["status"] == 0
    assert 0 <= end["seconds"] < 30
    assert done.returncode == 0


def test_a_script_gets_arguments_variables_and_its_interpreter(tmp_path: Path) -> None:
    script = f"#!{sys.executable}\nimport os, sys\nprint(sys.argv[1:], os.environ['TARGET'])\n"
    done = run(tmp_path, script=script, argv=["a b", "c"], environment={"TARGET": "/dev/x"})
    assert told(done)[0] == "['a b', 'c'] /dev/x\n"


def test_a_shell_script_ends_with_its_first_failure(tmp_path: Path) -> None:
    done = run(tmp_path, script="echo one\nfalse\necho two\n")
    assert told(done) == ("one\n", {"status": 1, "seconds": pytest.approx(0, abs=30)})
    assert done.returncode == 1


@pytest.mark.parametrize(("accepted", "status"), [([0], 3), ([0, 3], 0), ([], 0)])
def test_the_exit_status_is_that_of_a_command_that_failed(
    tmp_path: Path, accepted: list[int], status: int
) -> None:
    done = run(tmp_path, script="exit 3", accepted=accepted)
    assert done.returncode == status
    assert told(done)[1]["status"] == 3


def test_the_limit_ends_the_command_and_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    done = run(tmp_path, script=f"sleep 300 & echo $! > {pids}; wait", limit=0.5)
    assert time.monotonic() - began < 50
    assert done.returncode == 124
    assert "did not end within 0.5 seconds" in done.stderr
    stat = Path(f"/proc/{pids.read_text().strip()}/stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the script's child still runs")


def test_a_signal_and_a_missing_program_have_the_shell_s_status(tmp_path: Path) -> None:
    assert run(tmp_path, script="kill -TERM $$").returncode == 143
    missing = run(tmp_path, argv=["no-such-program"])
    assert missing.returncode == 127
    assert "no-such-program: No such file" in missing.stderr


def test_nothing_is_left_but_a_directory_that_was_named(tmp_path: Path) -> None:
    place = tmp_path / "place"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run(tmp_path, script="touch file", directory=str(place), scratch=str(scratch))
    assert [p.name for p in place.iterdir()] == ["file"]
    run(tmp_path, script="touch file", scratch=str(scratch))
    assert not list(scratch.iterdir())
