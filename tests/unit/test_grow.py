"""Changes of an array that mdadm or md refuses, against what a guest's mdadm and md said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import InputError
from lab.md.facts.geometry import Geometry
from lab.md.facts.grow import Change, Log, RefusedError, changed, shape_of
from lab.md.facts.levels import NAMES, layout_number
from lab.md.facts.sizes import named_sizes
from tests.fakes import compiled_text

MIB = 1024**2
WALK: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "golden" / "md" / "grow.json").read_text()
)
"""mdadm 4.2 and Linux 6.1: disks of 64 MiB, components of 16 MiB, chunks of 64 KiB."""


def geometry(level: str, layout: str | None, members: int, spares: int) -> Geometry:
    known = NAMES[level]
    return Geometry(
        level=known,
        layout=layout_number(known, layout),
        members=members,
        spares=spares,
        component_size=(16 if known.redundant else 62) * MIB,
        chunk=65536 if known.striped else 0,
    )


@pytest.mark.parametrize(
    "row", WALK, ids=lambda row: f"{row['array']} {row['change']} {row.get('log')}"
)
def test_as_mdadm_and_md_said(row: dict[str, Any]) -> None:
    array, change = geometry(*row["array"]), row["change"]
    log = Log[row["log"]] if "log" in row else None
    shape = shape_of(array, before=2 * MIB, after=62 * MIB - array.component_size, log=log)
    wanted = Change(
        level=int(change["level"]) if "level" in change else None,
        members=change.get("raid_devices"),
        layout=change.get("layout"),
        chunk=change["chunk"] * 1024 if "chunk" in change else None,
    )
    if row["done"]:
        changed(shape, wanted)
        return
    with pytest.raises(RefusedError):
        changed(shape, wanted)


@pytest.mark.parametrize("row", WALK, ids=lambda row: f"{row['array']}")
def test_a_stripe_is_mds_optimal_io_size(row: dict[str, Any]) -> None:
    if "log" not in row and row["array"][0] not in ("1", "linear"):
        assert named_sizes(geometry(*row["array"]))["stripe"] == row["optimal_io_size"]


def test_the_walk_has_changes_of_both_kinds_at_all_levels() -> None:
    assert {row["array"][0] for row in WALK} >= {"0", "1", "4", "5", "6", "10"}
    assert 20 < sum(row["done"] for row in WALK) < len(WALK) - 20


SCENARIO = """\
title: t
question: q
disks: {count: 6, size: 256MiB}
array: {ARRAY, component_size: 64MiB}
workloads:
  - {name: fill, tool: dd, of: '{target}', bs: 64KiB, count: 4, oflag: direct}
faults:
FAULTS
"""


def check(directory: Path, array: str, *changes: str) -> str:
    """What is wrong with the scenario; empty: nothing."""
    faults = "\n".join(
        f"  - {{name: f{n}, fault: {change}, after: fill}}" for n, change in enumerate(changes)
    )
    try:
        compiled_text(directory, SCENARIO.replace("ARRAY", array).replace("FAULTS", faults))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("array", "changes", "key"),
    [
        (
            "level: 10, layout: f2, members: 4, spares: 2",
            ("grow, raid_devices: 5",),
            "raid_devices",
        ),
        ("level: 5", ("grow, raid_devices: 5",), "raid_devices"),
        ("level: 5", ("grow, chunk: 96KiB",), "chunk"),
        ("level: 6", ("grow, level: 1",), "level"),
        ("level: 5", ("grow, layout: n2",), "layout"),
        ("level: 5, members: 4, spares: 1", ("grow, raid_devices: 6",), "raid_devices"),
        ("level: 5, members: 4, spares: 1", ("grow, raid_devices: 5",), ""),
        ("level: 5, members: 5, spares: 1", ("grow, level: 6", "grow, raid_devices: 5"), "f1"),
        ("level: 5, members: 5, spares: 1", ("grow, level: 6", "grow, level: 5"), ""),
        ("level: 1, members: 3", ("grow, raid_devices: 2",), "raid_devices"),
        ("level: 1, members: 3", ("fail, disk: 2", "grow, raid_devices: 2"), ""),
    ],
)
def test_check_names_the_line_and_the_key(
    tmp_path: Path, array: str, changes: tuple[str, ...], key: str
) -> None:
    said = check(tmp_path, array, *changes)
    if not key:
        assert said == ""
        return
    line = 7 + len(changes)
    assert f"q.yaml:{line}: " in said
    assert ("raid_devices" if key == "f1" else key) in said


@pytest.mark.parametrize(
    ("array", "change", "said"),
    [
        ("level: 4, journal_disk: 6, chunk: 64KiB", "{level: 5}", ""),
        ("level: 4, journal_disk: 6, chunk: 64KiB", "{chunk: 128KiB}", "array.journal_disk"),
        ("level: 5, consistency_policy: ppl, chunk: 64KiB", "{chunk: 128KiB}", "policy"),
    ],
)
def test_a_log_allows_what_moves_no_data(
    tmp_path: Path, array: str, change: str, said: str
) -> None:
    found = check(tmp_path, array, f"grow, {change[1:-1]}")
    assert said in found
    assert bool(found) == bool(said)
