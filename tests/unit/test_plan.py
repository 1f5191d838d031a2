"""The plan is a script: a shell can read it, heredocs end, and it has no secrets."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from lab.host.system import keys
from lab.model.execution.plan import Plan
from lab.model.execution.procedure import GuestCommand, HostCommand, Timed, WriteFile
from lab.report.export.shell import as_script
from lab.run.plan import plan_of
from tests.fakes import SCENARIO, compiled_text, with_matrix


@pytest.fixture
def plan(tmp_path: Path, lab_home: Path) -> Plan:
    return planned(tmp_path, with_matrix("  array.chunk: [64KiB, 128KiB]\n"))


def planned(directory: Path, text: str) -> Plan:
    return plan_of(compiled_text(directory, text))


def unreadable(script: str) -> str:
    """Return bash's errors; a heredoc without an end is a warning."""
    return subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, check=False
    ).stderr


def test_a_shell_can_read_the_whole_plan(plan: Plan) -> None:
    assert unreadable(as_script(plan)) == ""


def test_a_heredoc_that_does_not_end_would_be_noticed(plan: Plan) -> None:
    script = as_script(plan)
    assert "here-document" in unreadable(script[: script.rindex("\nEND\n")] + "\n")
    assert unreadable("if\n") != ""


def test_every_command_of_every_step_is_there(plan: Plan) -> None:
    script = as_script(plan)
    steps = [s for g in plan.guests for c in g.cells for s in c.procedure.steps]
    steps += [s for g in plan.guests for s in g.procedure.steps]
    for step in steps:
        if isinstance(step, HostCommand):
            assert f"\n{shlex.join(step.argv)}\n" in script
        elif isinstance(step, GuestCommand | Timed):
            assert f"\n{step.script.rstrip()}\n" in script
            assert not isinstance(step, GuestCommand) or step.undo in script
    assert script.count("\nguest <<'END'\n") > 10
    assert all(c.id in script for g in plan.guests for c in g.cells)


def test_texts_are_given_as_they_are(plan: Plan, tmp_path: Path) -> None:
    """The shell writes exactly the files that the lab would write."""
    (step,) = [
        s
        for s in plan.guests[0].procedure.steps
        if isinstance(s, WriteFile) and s.path.endswith("qemu.conf")
    ]
    script = as_script(plan)
    command = re.search(
        rf"^cat > {re.escape(shlex.quote(step.path))} <<'END'\n.*?\nEND\n", script, re.M | re.S
    )
    assert command is not None
    Path(step.path).parent.mkdir(parents=True)
    subprocess.run(["sh", "-ec", command.group()], check=True)
    assert Path(step.path).read_text() == step.content


def test_no_private_key_is_in_it(plan: Plan) -> None:
    script = as_script(plan)
    assert "PRIVATE KEY" not in script
    assert "PRIVATE KEY" not in plan.model_dump_json()
    assert "PRIVATE KEY" in keys.make().private  # it would have been noticed


def test_planning_makes_nothing(plan: Plan, lab_home: Path) -> None:
    assert [p for p in lab_home.rglob("*") if p.is_file() and p.name != "accelerator.json"] == []


def test_what_is_missing_is_a_note(plan: Plan) -> None:
    assert any("is not built yet: lab image build debian-12" in n for n in plan.notes)


def test_a_line_end_in_a_value_begins_no_command(tmp_path: Path, lab_home: Path) -> None:
    axis = '  workloads.write.if: ["/dev/zero\\ntouch /tmp/owned"]\n'
    script = as_script(planned(tmp_path, with_matrix(axis)))
    assert unreadable(script) == ""
    assert "owned" in script
    outside = re.sub(r"<<'(END_*)'\n.*?\n\1\n", "\n", script, flags=re.S)
    assert "\ntouch" not in outside


def test_a_text_that_ends_a_heredoc_gets_another_mark(tmp_path: Path, lab_home: Path) -> None:
    axis = '  workloads.write.if: ["/dev/zero\\nEND\\nx"]\n'
    script = as_script(planned(tmp_path, with_matrix(axis)))
    assert unreadable(script) == ""
    assert "<<'END_'" in script


def test_a_home_with_quotes_and_spaces_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "it's a home"))
    script = as_script(planned(tmp_path, SCENARIO))
    assert unreadable(script) == ""
    line = next(line for line in script.splitlines() if line.startswith("DIRECTORY="))
    assert shlex.split(line) == [f"DIRECTORY={tmp_path}/it's a home/state/guests/gplan"]
    uri = next(line for line in script.splitlines() if line.startswith("URI="))
    assert uri == f'URI="qemu:///embed?root={tmp_path}/it%27s%20a%20home/state/guests/gplan"'
    # Paths that ssh would split at blanks are in its environment.
    assert "ssh -F none" in script
    assert not re.search(r"(-o|-i) *\S*[$]DIRECTORY|-i ", script)
