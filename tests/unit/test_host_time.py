"""Host time of sealed cells, estimated before any has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.analysis.host_time import COPIED, GUEST, READ, WRITE, host_seconds
from lab.analysis.predict import durations
from lab.compile.scenario.compiler import compile_scenario
from lab.core.yaml import parse_override
from lab.model.scenario.document import Cell
from lab.run.task import seconds_of
from tests.fakes import SCENARIO, compiled_text

FIO = "ioengine: libaio, direct: 1, filename: '{target}'"


def cell(directory: Path, *workloads: str, disks: str = "model: hdd, size: 1GiB") -> Cell:
    named = "\n".join(f"  - {{name: w{n}, {text}}}" for n, text in enumerate(workloads))
    return compiled_text(
        directory,
        "title: One disk\nquestion: How long?\nguest: {clock: virtual}\n"
        f"disks: {{{disks}}}\narray: none\nworkloads:\n{named}\n",
    ).base


def test_requests_and_bytes_decide_and_not_the_time_that_disks_take(tmp_path: Path) -> None:
    dd = "tool: dd, if: '{target}', bs: 1MiB, count: 100, iflag: direct"
    limited = "size: 1GiB, throttle: {{total_bytes_per_second: {}}}"
    slow, fast = (cell(tmp_path, dd, disks=limited.format(rate)) for rate in ("1MiB", "100MiB"))
    assert durations(slow)["w0"] > 50 * durations(fast)["w0"]
    assert host_seconds(slow) == host_seconds(fast)
    assert host_seconds(slow)["w0"] == pytest.approx(100 * (READ + (1 << 20) / COPIED))
    assert seconds_of(slow) == pytest.approx(GUEST + host_seconds(slow)["w0"])


def test_a_load_that_ends_by_its_time_counts_its_drives_rate(tmp_path: Path) -> None:
    load = f"tool: fio, rw: randread, bs: 4KiB, {FIO}, size: 1GiB, time_based: 1, runtime: 60s"
    one, deep = cell(tmp_path, f"{load}, iodepth: 1", f"{load}, iodepth: 32").workloads
    found = host_seconds(cell(tmp_path, f"{load}, iodepth: 1", f"{load}, iodepth: 32"))
    assert (one.name, deep.name) == ("w0", "w1")
    assert found["w0"] == pytest.approx(60 * 80.6 * (READ + 4096 / COPIED), rel=0.01)
    assert found["w1"] == found["w0"]  # one arm
    flash = cell(tmp_path, f"{load}, iodepth: 32", disks="model: ssd, size: 1GiB")
    assert host_seconds(flash)["w0"] > 300 * found["w0"]


def test_writes_cost_more_and_an_end_by_size_is_exact(tmp_path: Path) -> None:
    load = f"tool: fio, bs: 4KiB, {FIO}, size: 1GiB, io_size: 40MiB, iodepth: 4, rw: rand"
    found = host_seconds(cell(tmp_path, f"{load}write", f"{load}read"))
    assert found["w0"] == pytest.approx(10240 * (WRITE + 4096 / COPIED))
    assert found["w1"] == pytest.approx(10240 * (READ + 4096 / COPIED))


def test_each_trial_of_a_sealed_cell_has_a_guest(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO)
    one, three = (
        compile_scenario(path, overrides=(parse_override("guest.clock=virtual"),), trials=n).base
        for n in (1, 3)
    )
    assert seconds_of(three) == pytest.approx(3 * seconds_of(one))
    assert seconds_of(one) > GUEST


def test_what_theory_does_not_know_is_not_estimated(tmp_path: Path) -> None:
    assert host_seconds(cell(tmp_path, "tool: mkfs, type: ext4")) == {}
