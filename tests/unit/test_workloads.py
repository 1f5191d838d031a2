"""Every workload with recorded output of its tool: ``golden/workloads/NAME/CASE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog

GOLDEN = Path(__file__).parent.parent / "golden" / "workloads"
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/expected.json"))
NAMES = catalog.plugin_names("workloads")


def _case(folder: Path) -> tuple[dict[str, Any], Outputs]:
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.name not in ("stdout", "stderr", "expected.json")
    }
    outputs = Outputs(
        stdout=(folder / "stdout").read_text(encoding="utf-8"),
        stderr=(folder / "stderr").read_text(encoding="utf-8"),
        files=files,
    )
    return json.loads((folder / "expected.json").read_text(encoding="utf-8")), outputs


def _good(name: str) -> Path:
    return next(f for f in CASES if f.parent.name == name and "metrics" in _case(f)[0])


@pytest.mark.parametrize("folder", CASES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_recorded_output_gives_what_is_expected(folder: Path) -> None:
    expected, outputs = _case(folder)
    tool = catalog.workload(folder.parent.name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    if "error" in expected:
        with pytest.raises(ToolError, match=expected["error"]):
            tool.parse(parameters, outputs)
    else:
        assert tool.parse(parameters, outputs) == pytest.approx(expected["metrics"], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_has_a_good_and_a_bad_recording(name: str) -> None:
    kinds = {"error" in _case(f)[0] for f in CASES if f.parent.name == name}
    assert kinds == {True, False}


@pytest.mark.parametrize("name", NAMES)
def test_metrics_declared_are_the_metrics_parsed(name: str) -> None:
    expected, outputs = _case(_good(name))
    tool = catalog.workload(name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    declared = [metric.name for metric in tool.measures(parameters)]
    found = set(tool.parse(parameters, outputs))
    assert found
    assert found <= set(declared)
    assert len(set(declared)) == len(declared)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "Segmentation fault\n", "\0\0\0"])
def test_garbled_output_raises(name: str, text: str) -> None:
    expected, outputs = _case(_good(name))
    tool = catalog.workload(name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    garbled = Outputs(stdout=text, stderr=text, files=dict.fromkeys(outputs.files, text))
    with pytest.raises(ToolError):
        tool.parse(parameters, garbled)


@pytest.mark.parametrize("name", NAMES)
def test_output_cut_in_half_raises(name: str) -> None:
    expected, outputs = _case(_good(name))
    tool = catalog.workload(name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    half = Outputs(
        stdout=outputs.stdout[: len(outputs.stdout) // 2],
        stderr=outputs.stderr[: len(outputs.stderr) // 2],
        files={n: t[: len(t) // 2] for n, t in outputs.files.items()},
    )
    with pytest.raises(ToolError):
        tool.parse(parameters, half)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_a_round_trip(name: str) -> None:
    expected, _ = _case(_good(name))
    model = catalog.workload(name).parameters
    parameters = model.model_validate(expected["parameters"])
    dumped = parameters.model_dump(mode="json", by_alias=True)
    assert model.model_validate(dumped) == parameters


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_parameter_is_refused(name: str) -> None:
    expected, _ = _case(_good(name))
    with pytest.raises(ValueError, match="blocksize"):
        catalog.workload(name).parameters.model_validate({**expected["parameters"], "blocksize": 1})


@pytest.mark.parametrize("name", NAMES)
def test_the_script_is_aimed_at_the_target_and_names_the_programs(name: str) -> None:
    expected, _ = _case(_good(name))
    tool = catalog.workload(name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    script = tool.script(parameters, "/dev/md/here")
    assert "/dev/md/here" in script
    assert "{target}" not in script
    assert all(program in script for program in tool.programs)
