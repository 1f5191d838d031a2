"""A workload that would read or write beyond its target's end is refused before a guest boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError

COMPONENT = 12  # MiB, a multiple of all chunks
DATA = {
    "{level: 0}": 5 * (1024 - 2),  # whole disks but for mdadm's data offset of 2 MiB
    "{level: 1, bitmap: none}": COMPONENT,
    "{level: 4}": 4 * COMPONENT,
    "{level: 5, missing: 1}": 4 * COMPONENT,
    "{level: 5, spares: 1}": 3 * COMPONENT,
    "{level: 6}": 3 * COMPONENT,
    "{level: 10, layout: n2}": 5 * COMPONENT / 2,
    "{level: 10, layout: n3}": 5 * COMPONENT / 3,
    "{level: 10, layout: f2}": 5 * COMPONENT / 2,
    "{level: 10, layout: o3}": 5 * COMPONENT / 3,
}
"""MiB of five members' data, by arithmetic."""


def scenario(tmp_path: Path, array: str, workload: str, more: str = "") -> Path:
    inside = array.removesuffix("}")
    size = "" if "level: 0" in array else f", component_size: {COMPONENT}MiB"
    chunk = "" if "level: 1," in array else ", chunk: 4KiB"
    path = tmp_path / "q.yaml"
    path.write_text(
        "title: How far a workload reaches\nquestion: Does it fit?\n"
        "disks: {count: 5, size: 1GiB}\n"
        f"array: {inside}{size}{chunk}}}\nworkloads:\n  - {workload}\n{more}"
    )
    return path


@pytest.mark.parametrize("array", DATA)
@pytest.mark.parametrize("way", ["of", "if"])
def test_dd_may_reach_the_end_of_an_array_and_not_further(
    tmp_path: Path, array: str, way: str
) -> None:
    fits = int(DATA[array] * 256)  # blocks of 4 KiB
    before = 16
    skip = "seek" if way == "of" else "skip"
    dd = f"{{name: w, tool: dd, {way}: '{{target}}', bs: 4KiB, count: COUNT, {skip}: {before}}}"
    compile_scenario(scenario(tmp_path, array, dd.replace("COUNT", str(fits - before))))
    with pytest.raises(InputError, match=r"q\.yaml:6: workloads.*count: 'w' ends at byte \d+"):
        compile_scenario(scenario(tmp_path, array, dd.replace("COUNT", str(fits - before + 1))))


def test_other_workloads_and_targets(tmp_path: Path) -> None:
    ledger = "{name: w, tool: ledger, count: 4, offset: 8MiB, size: SIZE}"
    raid1 = "{level: 1, bitmap: none}"
    compile_scenario(scenario(tmp_path, raid1, ledger.replace("SIZE", "4MiB")))
    with pytest.raises(InputError, match=r"q\.yaml:6: workloads.*size: 'w' ends at byte 13631488"):
        compile_scenario(scenario(tmp_path, raid1, ledger.replace("SIZE", "5MiB")))
    dd = "{name: w, tool: dd, of: '{target}/file', bs: 4KiB, count: 4000}"
    compile_scenario(scenario(tmp_path, raid1, dd, "filesystem: {type: ext4}\n"))
