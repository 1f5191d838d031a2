"""An array's shape is a metric of each workload and fault: size, level, chunk, layout, members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.analysis import measure
from lab.analysis.measure import shapes
from lab.compile.cell.metrics import SHAPES, metrics_of
from lab.compile.cell.procedure import cell_procedure
from lab.core.errors import InputError
from lab.model.result.measurement import Check
from lab.model.scenario.document import Cell
from tests.fakes import compiled_text

KIB, MIB = 1024, 1024**2
MDSTAT = """\
Personalities : [raid0] [raid1] [raid4] [raid5] [raid6] [raid10] [linear]
md127 : active {line}

unused devices: <none>
"""
Q: dict[str, Any] = {
    "title": "t",
    "question": "q",
    "guest": {"clock": "virtual"},
    "disks": {"count": 4, "size": "256MiB"},
    "array": {"level": 5, "chunk": "64KiB", "component_size": "64MiB"},
    "workloads": [
        {"name": name, "tool": "dd", "of": "{target}", "bs": "64KiB", "count": 4}
        for name in ("first", "second")
    ],
}


def compiled(directory: Path, **changes: Any) -> Cell:
    return compiled_text(directory, yaml.safe_dump(Q | changes, sort_keys=False)).cells[0]


def found(cell: Cell, raw: dict[str, str], *checks: Check) -> dict[str, dict[str, Any]]:
    every: dict[str, dict[str, Any]] = {}
    for m in shapes(cell, raw, checks):
        every.setdefault(m.workload, {})[m.metric] = m.values
    return every


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        # As md.c: md_seq_show and the levels' status functions print them.
        (
            "raid0 vdd[2] vdc[1] vdb[0]\n      786432 blocks super 1.2 64k chunks\n      ",
            {"raid_disks": 3, "array_level": 0, "array_chunk_bytes": 64 * KIB},
        ),
        (
            "linear vdc[1] vdb[0]\n      786432 blocks super 1.2 0k rounding\n      ",
            {"raid_disks": 2, "array_level": -1},
        ),
        (
            "raid1 vdd[2](S) vdc[1] vdb[0](W)\n      786432 blocks super 1.2 [2/2] [UU]\n      ",
            {"raid_disks": 2, "array_level": 1},
        ),
        (
            "(auto-read-only) raid10 vdd[2] vdc[1] vdb[0]\n"
            "      786432 blocks super 1.2 32K chunks 2 far-copies [3/3] [UUU]\n      ",
            {"raid_disks": 3, "array_level": 10, "array_chunk_bytes": 32 * KIB,
             "array_layout": 0x201},
        ),
        *(
            (
                f"raid{level} vde[3] vdd[2] vdc[1] vdb[0]\n      786432 blocks super 1.2 level "
                f"{level}, 128k chunk, algorithm 2 [4/3] [UUU_]\n      ",
                {"raid_disks": 4, "array_level": level, "array_chunk_bytes": 128 * KIB,
                 "array_layout": 2},
            )
            for level in (4, 5, 6)
        ),
    ],
)  # fmt: skip
def test_each_level_has_a_shape_without_a_fault(
    tmp_path: Path, line: str, wanted: dict[str, float]
) -> None:
    raw = {"mdadm-create.txt": "mdadm: array started.\n" + MDSTAT.format(line=line)}
    check = Check(name="array", passed=True, detail="level=raid5, component_size=67108864, a=b")
    shape = {"array_bytes": 768 * MIB, "array_component_bytes": 64 * MIB, **wanted}
    both = found(compiled(tmp_path), raw, check)
    assert both == {name: {k: (v,) for k, v in shape.items()} for name in ("first", "second")}
    # Control: the sizes are what md prints, and without its words there are none.
    assert "array_component_bytes" not in found(compiled(tmp_path), raw)["first"]
    assert found(compiled(tmp_path), {}, check) == {}


def five(blocks: int, disks: int) -> str:
    return MDSTAT.format(
        line=f"raid5 vdb[0]\n      {blocks} blocks super 1.2 level 5, 64k chunk, algorithm 2 "
        f"[{disks}/{disks}] [{'U' * disks}]"
    )


def test_a_workload_after_a_change_has_the_new_shape(tmp_path: Path) -> None:
    cell = compiled(
        tmp_path,
        array={"level": 5, "members": 3, "spares": 1, "component_size": "64MiB"},
        faults=[{"name": "wider", "fault": "grow", "after": "first", "raid_devices": 4}],
    )
    raw = {
        "mdadm-create.txt": five(131072, 3),
        "wider.1.state.txt": f"raid_disks=4\ncomponent_size=65536\n{five(196608, 4)}",
    }
    shape = found(cell, raw, Check(name="array", passed=True, detail="component_size=67108864"))
    assert shape["first"]["array_bytes"] == (128 * MIB,)
    assert shape["second"]["array_bytes"] == shape["wider"]["array_bytes"] == (192 * MIB,)
    assert shape["second"]["raid_disks"] == (4,)
    assert shape["wider"]["array_component_bytes"] == shape["first"]["array_component_bytes"]


def test_claims_may_use_it_where_there_is_an_md_array(tmp_path: Path) -> None:
    claim = {
        "id": "c", "says": "s", "ours": True,
        "expect": {"kind": "bound", "value": {"workload": "first", "metric": "array_bytes"},
                   "at_least": "192MiB", "at_most": "192MiB"},
    }  # fmt: skip
    cell = compiled(tmp_path, claims=[claim])
    assert {("second", name) for name in SHAPES} < set(metrics_of(cell))
    assert ("first", "array_bytes") in measure.counted(cell)
    with pytest.raises(InputError, match="array_bytes"):
        compiled(tmp_path, claims=[claim], array="none", disks={"count": 1, "size": "1GiB"})


def test_each_trial_of_a_fault_is_read(tmp_path: Path) -> None:
    """Output of a fault has its trial in its name, and not twice."""
    cell = compiled(
        tmp_path,
        trials=2,
        workloads=[
            {"name": "book", "tool": "ledger", "bs": "64KiB", "size": "64MiB", "count": 3}
        ],
        faults=[{"name": "gone", "fault": "fail", "after": "book", "disk": 1, "check": True}],
    )  # fmt: skip
    steps = cell_procedure(cell, "/g").steps
    raw = {f"{name}.txt": "" for s in steps if (name := getattr(s, "capture", ""))}
    for trial in (1, 2):
        raw[f"gone.{trial}.stdout.txt"] = "began=1.0\nended=2.0\ndegraded_most=1\n"
        raw[f"book.{trial}.stdout.txt"] = '0\n1\n2\n{"written": 3, "seconds": 1.5}\n'
    for name in raw:
        if ".state" in name:
            raw[name] = "raid_disks=4\ndegraded=1\nmember vdb 1 0 in_sync\n" + five(196608, 4)
        elif ".kept" in name:
            raw[name] = '{"intact": [[0, 3]], "looked_at": 3, "errors": 0}\n'
    values = {m.metric: m.values for m in measure.measurements(cell, raw) if m.workload == "gone"}
    assert values["degraded"] == (1, 1)
    assert values["acknowledged"] == (3, 3)
    assert values["lost"] == (0, 0)
    assert {name for name in raw if name.startswith("environment")} == {
        "environment.txt", "environment.2.txt",
    }  # fmt: skip
