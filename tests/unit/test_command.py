"""``tool: command``: parameters, the values that a command prints, its disks and its script."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError, ToolError
from lab.model.execution.procedure import GuestCommand, Verify
from lab.model.result.measurement import MetricKind
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from tests.fakes import compiled_text

TOOL = catalog.workload("command")
HEAD = "title: T\nquestion: Q?\ndisks: {count: 3, size: 1GiB}\n"


def parsed(text: str, metrics: dict[str, Any], **more: Any) -> dict[str, float]:
    given = TOOL.parameters.model_validate({"argv": ["true"], "metrics": metrics, **more})
    end = '\n--lab-- {"status": 0, "seconds": 1.5}\n'
    return TOOL.parse(given, Outputs(stdout=text + end, stderr="", files={}))


def compiled(tmp_path: Path, text: str, *sets: str) -> Compiled:
    return compiled_text(tmp_path, HEAD + text, *sets)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("rate 12.5 MB/s\n", "MB/s", 12.5e6),
        ("rate 12.5\n", "MB/s", 12.5e6),
        ("rate: 2 KiB/s\n", "MB/s", 2048),
        ("rate = 7 %\n", "1", 0.07),
        ("rate 3 ms\n", "s", 0.003),
        ("rate 90 IOPS\n", "1/s", 90),
        ("rate 4 stripes\n", "stripes", 4),
        ("rate 1\nother words\nrate 2\n", "1", 2),
        ('{"rate": 5}', "1", 5),
        ('begins\n{"rate": "5 GB"}\n', "B", 5e9),
        ('{\n "rate": {"value": 5, "unit": "ms"}\n}\n', "s", 0.005),
        ('{"rate": true}', "1", 1),
    ],
)
def test_a_value_is_read_in_its_unit(text: str, unit: str, value: float) -> None:
    assert parsed(text, {"rate": unit})["rate"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("", "1", "no value"),
        ("speed 5\n", "1", "did not print 'rate'; it printed speed"),
        ("rate five\n", "1", "did not print"),
        ("rate 5 s\n", "B/s", "'s', and metrics says 'B/s'"),
        ('{"rate": "fast"}', "1", "did not print"),
        ("[" * 100_000, "1", "did not print"),
        ('{"a":' * 100_000, "1", "did not print"),
    ],
)
def test_a_value_that_is_not_there_is_an_error(text: str, unit: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        parsed(text, {"rate": unit})


def test_a_value_inside_of_json_has_a_key() -> None:
    text = json.dumps({"jobs": [{"read": {"iops": 7.5}}]})
    metrics = {"rate": {"unit": "1/s", "key": "jobs.0.read.iops"}}
    assert parsed(text, metrics)["rate"] == 7.5


def test_units_decide_what_is_a_count() -> None:
    metrics = {"members": "1", "rate": "MB/s", "fixed": {"unit": "s", "counted": True}}
    given = TOOL.parameters.model_validate({"argv": ["true"], "metrics": metrics})
    found = {metric.name: (metric.unit, metric.kind) for metric in TOOL.measures(given)}
    assert found == {
        "seconds": ("s", MetricKind.TIMED),
        "status": ("1", MetricKind.COUNTED),
        "members": ("1", MetricKind.COUNTED),
        "rate": ("B/s", MetricKind.TIMED),
        "fixed": ("s", MetricKind.COUNTED),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{name: c, tool: command}", "expected argv, script or script_file"),
        ("{name: c, tool: command, argv: [true], metrics: {seconds: s}}", "is there anyway"),
        ("{name: c, tool: command, argv: [true], metrics: {a-b: s}}", "no name of a metric"),
        ("{name: c, tool: command, argv: [true], status: 300}", "status"),
        ("{name: c, tool: command, argv: [true], directory: here}", "directory"),
        ("{name: c, tool: command, script_file: none.sh}", "q.yaml:5.*none.sh.*cannot be read"),
        ("{name: c, tool: command, script_file: q.yaml, script: x}", "remove one"),
    ],
)
def test_wrong_parameters_name_their_line(tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compiled(tmp_path, f"workloads:\n  - {given}\n")


def test_a_script_file_is_read_next_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text("echo 1\n")
    (tmp_path / "other.sh").write_text("echo 2\n")
    text = "workloads:\n  - {name: c, tool: command, script_file: mine.sh}\n"
    one = compiled(tmp_path, text).cells[0]
    assert one.workloads[0].parameters["script"] == "echo 1\n"
    # Another script is another cell, and the stored scenario needs no file.
    other = compiled(tmp_path, text.replace("mine", "other"))
    assert cell_id(one) != cell_id(other.cells[0])
    assert "script_file" not in str(other.portable)


def test_set_names_a_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.sh").write_text("echo here\n")
    (tmp_path / "mine.sh").write_text("echo there\n")
    monkeypatch.chdir(here)
    text = "workloads:\n  - {name: c, tool: command, script_file: mine.sh}\n"
    found = compiled(tmp_path, text, "workloads.c.script_file=mine.sh")
    assert found.cells[0].workloads[0].parameters["script"] == "echo here\n"


def test_words_that_yaml_reads_as_numbers_are_words() -> None:
    given = TOOL.parameters.model_validate({"argv": ["echo", 3, 0.5, True]})
    assert arguments(TOOL.script(given, "/dev/x"))["argv"] == ["echo", "3", "0.5", "true"]


def arguments(script: str) -> dict[str, Any]:
    found = json.loads(shlex.split(script)[-1])
    assert isinstance(found, dict)
    return found


def test_each_bare_disk_is_a_word_of_the_target(tmp_path: Path) -> None:
    text = "workloads:\n  - {name: c, tool: command, argv: [ls, '{target}', '--a={target}']}\n"
    cell = compiled(tmp_path, text).cells[0]
    steps = cell_procedure(cell, "/g").steps
    paths = [f"/dev/disk/by-id/virtio-disk{n}" for n in (1, 2, 3)]
    (timed,) = [step for step in steps if step.kind == "timed"]
    found = arguments(timed.script)
    assert found["argv"] == ["ls", *paths, f"--a={' '.join(paths)}"]
    assert found["environment"]["TARGET"] == " ".join(paths)


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_disks_have_one_name_in_both_clocks(tmp_path: Path, clock: str) -> None:
    text = f"guest: {{clock: {clock}}}\nworkloads:\n  - {{name: c, tool: command, argv: [ls]}}\n"
    steps = cell_procedure(compiled(tmp_path, text).cells[0], "/g").steps
    (named,) = [s for s in steps if isinstance(s, GuestCommand) and "/dev/lab" in s.script]
    kind = "lab" if clock == "virtual" else "virtio"
    assert f"ln -sfn /dev/disk/by-id/{kind}-disk3 /dev/lab/disk3" in named.script


def test_cells_without_a_command_have_no_step_for_names(tmp_path: Path) -> None:
    text = "array: {level: 5}\nworkloads:\n  - {name: w, tool: dd, if: '{target}', count: 1}\n"
    steps = cell_procedure(compiled(tmp_path, text).cells[0], "/g").steps
    assert not [s for s in steps if isinstance(s, GuestCommand) and "/dev/lab" in s.script]


def test_a_command_needs_no_disk_and_other_tools_do(tmp_path: Path) -> None:
    command = "workloads:\n  - {name: c, tool: command, argv: [ls]}\n"
    assert compiled(tmp_path, command, "disks.count=0").cells
    both = f"{command}  - {{name: w, tool: dd, if: '{{target}}', count: 1}}\n"
    with pytest.raises(InputError, match="disks"):
        compiled(tmp_path, both, "disks.count=3")


def test_its_programs_are_verified_before_it_runs(tmp_path: Path) -> None:
    text = "workloads:\n  - {name: c, tool: command, argv: [iostat], needs: [iostat]}\n"
    steps = cell_procedure(compiled(tmp_path, text).cells[0], "/g").steps
    (check,) = [s for s in steps if isinstance(s, Verify) and s.name == "programs"]
    assert check.expect == {"iostat": "yes", "python3": "yes"}


def test_claims_use_its_metrics_and_no_others(tmp_path: Path) -> None:
    text = (
        "workloads:\n  - {name: c, tool: command, argv: [ls], metrics: {rate: MB/s}}\n"
        "claims:\n  - {id: C-1, says: S, ours: true, expect: 'c.NAME >= 1MB/s'}\n"
    )
    assert compiled(tmp_path, text.replace("NAME", "rate")).scenario.claims
    with pytest.raises(InputError, match="command gives no 'speed'"):
        compiled(tmp_path, text.replace("NAME", "speed"))


def test_each_trial_has_its_seed() -> None:
    given = TOOL.parameters.model_validate({"script": "echo $SEED"})
    assert arguments(TOOL.script(given, "/dev/x"))["environment"]["SEED"] == "1"
    later = TOOL.seeded(given, 3)
    assert arguments(TOOL.script(later, "/dev/x"))["environment"]["SEED"] == "3"
