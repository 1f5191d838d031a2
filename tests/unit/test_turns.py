"""Turns at the processors: who computes steps back, for the kernel's groups of sessions too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("lab_home")

PROGRAM = """\
import os
from pathlib import Path
from lab.host.turns import LOW, Turn

def seen():
    group = Path("/proc/self/autogroup")
    words = group.read_text().split() if group.exists() else []
    return f"{words[-1] if words else 'none'} {os.getpriority(os.PRIO_PROCESS, 0)}"

turn, said = Turn(), [seen()]
turn.take()
said.append(seen())
turn.give()
said.append(seen())
print(LOW, *said, sep=", ")
"""


def told(*, session: bool) -> list[str]:
    """Niceness of the session's group and of the thread: before, with a turn, after it.

    The session of the first process has no group of its own: its file is there, and is empty.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=session,
        timeout=30,
    )
    low, *said = done.stdout.strip().split(", ")
    assert low == "15"
    return said


def test_a_worker_that_computes_steps_back_as_a_session_and_comes_forward_again() -> None:
    before, during, after = told(session=True)
    group = Path("/proc/self/autogroup").exists()
    assert before == after
    assert before.endswith(" 0")
    assert during == f"{'15' if group else 'none'} {15 if os.geteuid() == 0 else 0}"


def test_the_session_of_whoever_started_it_is_left_alone() -> None:
    groups = {said.split()[0] for said in told(session=False)}
    assert len(groups) == 1
