"""``samples``: values of a guest that are read while a workload runs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from lab.analysis import measure
from lab.compile.cell import samples
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError, ToolError
from lab.model.execution.procedure import Timed
from lab.model.scenario.document import Sample, Workload
from tests.fakes import compiled_text

HEAD = """\
title: T
question: Q?
disks: {count: 3, size: 1GiB}
array: {level: 5, component_size: 64MiB}
workloads:
  - {name: write, tool: command, argv: [ls]SAMPLES}
"""
AFTER = """\
cpu  1 2 3 4 5 6 7 8
disk disk1 lab1
 252 1 lab1 1 2 3 4 5 6 7 8 9 10 11
sample cache 10.00 1
sample cache 11.00 5
sample dirty 11.01 100
sample cache 12.00
sample cache 12.50 3
sample dirty 12.50 none
sample dirty 12.51 300
"""


def compiled(tmp_path: Path, text: str, claims: str = "") -> Compiled:
    return compiled_text(tmp_path, HEAD.replace("SAMPLES", text) + claims)


def workload(**given: Sample) -> Workload:
    return Workload(name="write", tool="command", samples=given, parameters={"argv": ["ls"]})


BOTH = workload(cache=Sample(file="md/cache"), dirty=Sample(command="x", unit="KiB"))


def test_values_over_time_and_their_metrics() -> None:
    assert samples.traces(BOTH, AFTER) == {
        ("cache", "1"): ((0.0, 1.0), (1.0, 5.0), (2.5, 3.0)),
        ("dirty", "KiB"): ((pytest.approx(1.01), 100.0), (pytest.approx(2.51), 300.0)),
    }
    assert samples.values_of_samples(BOTH, AFTER) == {
        "cache_mean": 3.0, "cache_max": 5.0, "cache_end": 3.0,
        "dirty_mean": 200.0, "dirty_max": 300.0, "dirty_end": 300.0,
    }  # fmt: skip
    units = {m.name: m.unit for m in samples.metrics_of_samples(BOTH)}
    assert units["dirty_mean"] == "KiB"
    assert set(units) == set(samples.values_of_samples(BOTH, AFTER))


def test_a_sample_without_a_number_is_an_error() -> None:
    text = "\n".join(line for line in AFTER.splitlines() if "sample dirty" not in line)
    with pytest.raises(ToolError, match=r"'dirty' of 'write' has no number: x is missing"):
        samples.values_of_samples(BOTH, text)


def test_a_cell_s_measurements_and_series_have_them(tmp_path: Path) -> None:
    (cell,) = compiled(tmp_path, ", samples: {cache: md/cache}").cells
    end = '\n--lab-- {"status": 0, "seconds": 2.5}\n'
    raw = {"write.1.stdout.txt": end, "write.1.stderr.txt": "", "write.1.after.txt": AFTER}
    found = {m.metric: m.values for m in measure.measurements(cell, raw)}
    assert found["cache_max"] == (5.0,)
    (series,) = measure.series(cell, raw)
    assert (series.direction, series.unit, series.values) == ("cache", "1", (1.0, 5.0, 3.0))
    del raw["write.1.after.txt"]
    assert measure.series(cell, raw) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (", samples: {cache: {}}", "expected file or command"),
        (", samples: {cache: {file: a, command: b}}", "expected file or command"),
        (", samples: {cache: {file: a, every: 0}}", "every"),
        (", samples: {Cache: md/x}", "no name of a sample"),
        (", samples: {cache: {fil: a}}", "did you mean 'file'"),
    ],
)
def test_wrong_samples_are_explained(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"q.yaml.*samples.*{said}"):
        compiled(tmp_path, text)


def test_claims_use_them(tmp_path: Path) -> None:
    claims = "claims:\n  - {id: C-1, says: S, ours: true, expect: write.cache_max <= NUMBER}\n"
    text = ", samples: {cache: md/cache}"
    assert compiled(tmp_path, text, claims.replace("NUMBER", "256")).scenario.claims
    with pytest.raises(InputError, match="command gives no 'cache_max'"):
        compiled(tmp_path, "", claims.replace("NUMBER", "256"))


def test_a_cell_without_samples_is_as_it_was(tmp_path: Path) -> None:
    (without,) = compiled(tmp_path, "").cells
    (with_,) = compiled(tmp_path, ", samples: {cache: md/cache}").cells
    assert "samples" not in without.workloads[0].model_dump()
    assert cell_id(without) != cell_id(with_)
    for cell, there in ((without, False), (with_, True)):
        (step,) = [s for s in cell_procedure(cell, "/g").steps if isinstance(s, Timed)]
        assert ("lab-sampler" in step.before, "lab-sampler" in step.after) == (there, there)
        assert ("lab-samples" in step.after) == there


def test_the_lines_take_samples_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell lines, run here: from the first sample to the last, and nothing runs on."""
    monkeypatch.setattr(samples, "_PROGRAM", str(tmp_path / "sampler"))
    monkeypatch.setattr(samples, "_LINES", str(tmp_path / "lines"))
    value = tmp_path / "it's a value"
    value.write_text("7 of 9\n")
    own = workload(
        file=Sample(file=str(value), every=0.1),
        said=Sample(command="echo 3.5 MB; false"),
        none=Sample(command="echo none"),
    )
    text = f"{samples.begin(own, '/dev/null')}sleep 0.5\necho 8 >'{value.as_posix()}'\n"
    text = text.replace(f"'{value.as_posix()}'", f'"{value}"') + samples.end(own)
    began = time.monotonic()
    done = subprocess.run(["/bin/sh", "-e", "-c", text], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    known = workload(**{name: own.samples[name] for name in ("file", "said")})
    found = {name: trace for (name, _), trace in samples.traces(known, done.stdout).items()}
    assert found["file"][0][1] == 7
    assert found["file"][-1][1] == 8
    assert len(found["file"]) >= 3
    assert {value for _, value in found["said"]} == {3.5}
    with pytest.raises(ToolError, match="'none'"):
        samples.traces(own, done.stdout)
    pid = int((tmp_path / "sampler.pid").read_text())
    time.sleep(0.3)
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
