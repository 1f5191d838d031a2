"""The short form of an expectation says the same as the long one, or where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.short_claims import ShortFormError, long_form
from lab.core.errors import InputError
from lab.model.scenario.claim import Claim, Expectation
from tests.fakes import compiled_text

AXES = ("array.layout", "disks.count", "array.chunk")
_EXPECTATION: TypeAdapter[Any] = TypeAdapter(Expectation)


def value(workload: str, layout: str | None = None, count: int | None = None, **more: Any) -> Any:
    where = {"array.layout": layout, "disks.count": count}
    given = {k: v for k, v in where.items() if v is not None}
    return {"workload": workload, **({"where": given} if given else {}), **more}


LAST5, LAST3 = value("full", "parity-last", 5), value("full", "parity-last", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "full[parity-last, 5] >= 1.8 * full[parity-last, 3]",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_least": 1.8},
        ),
        (
            "full[parity-last, 5] <= full[parity-last, 3]",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_most": 1},
        ),
        (
            "full[parity-last, 5] >= full[parity-last, 3]",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_least": 1},
        ),
        (
            "0.9 * full[parity-last, 3] <= full[parity-last, 5] <= 110% * full[parity-last, 3]",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_least": 0.9, "at_most": 1.1},
        ),
        (
            "full[parity-last, 5] = 1.35 * full[parity-last, 3] ± about",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_least": 1.215, "at_most": 1.485},
        ),
        (
            "full[parity-last, 5] >= full[parity-last, 3] - negligible",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_least": 0.95},
        ),
        (
            "full[parity-last, 5] <= full[parity-last, 3] - 20%",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_most": 0.8},
        ),
        (
            "full[parity-last, 5] <= full[parity-last, 3] + negligible",
            {"kind": "ratio", "of": LAST5, "to": LAST3, "at_most": 1.05},
        ),
        (
            "full[parity-last, 5] = 10MB/s ± 8%",
            {"kind": "bound", "value": LAST5, "near": "10MB/s", "within": "8%"},
        ),
        (
            "cut.intact = 1",
            {"kind": "bound", "value": value("cut", metric="intact"), "near": 1, "within": 0},
        ),
        ("full >= 9MB/s", {"kind": "bound", "value": value("full"), "at_least": 9e6}),
        (
            "9MB/s <= full <= 11MB/s",
            {"kind": "bound", "value": value("full"), "at_least": 9e6, "at_most": 11e6},
        ),
        (
            "11MB/s >= full >= 9MB/s",
            {"kind": "bound", "value": value("full"), "at_least": 9e6, "at_most": 11e6},
        ),
        (
            "full.disk_flushes@disk2 <= 20",
            {
                "kind": "bound",
                "value": value("full", metric="disk_flushes", disk="disk2"),
                "at_most": 20,
            },
        ),
        (
            "full[parity-last, 5] > full[parity-last, 3] by 10%",
            {"kind": "order", "values": [LAST5, LAST3], "margin": 0.1},
        ),
        (
            "full > read > seek",
            {"kind": "order", "values": [value("full"), value("read"), value("seek")]},
        ),
        (
            "full[parity-last, 5] = full[parity-last, 3] ± 5%",
            {"kind": "same", "values": [LAST5, LAST3], "within": 0.05},
        ),
        ("full = read", {"kind": "same", "values": [value("full"), value("read")]}),
        (
            "full[disks.count: 5] rises along array.chunk ± 3%",
            {
                "kind": "monotonic",
                "value": {"workload": "full", "where": {"disks.count": 5}},
                "along": "array.chunk",
                "direction": "rising",
                "tolerance": 0.03,
            },
        ),
        (
            "full falls along array.chunk",
            {
                "kind": "monotonic",
                "value": value("full"),
                "along": "array.chunk",
                "direction": "falling",
            },
        ),
    ],
)
def test_every_kind_has_a_short_form(text: str, expected: dict[str, Any]) -> None:
    found = _EXPECTATION.validate_python(long_form(text, AXES))
    assert found == _EXPECTATION.validate_python(expected)


def test_values_of_axes_are_read_as_in_yaml() -> None:
    found = long_form("full[default, 5, 64KiB] >= 1", AXES)
    assert found["value"]["where"] == {
        "array.layout": "default",
        "disks.count": 5,
        "array.chunk": "64KiB",
    }


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a workload"),
        ("full", 5, "expected >=, <=, =, >, rises or falls, found the end"),
        ("full >=", 8, "expected a workload, or a number"),
        ("full => 3", 7, "expected a workload, or a number"),
        ("full >= 1.8 x read", 13, "expected the end, found 'x'"),
        ("full >= 9MB * read", 9, "'9MB' is no factor"),
        ("full[a, 5 >= 3", 9, "expected a value and ]"),
        ("full[a, 5, 4KiB, 9] >= 3", 18, "there are fewer axes than values"),
        ("full[a, array.layout: b] >= 3", 9, "array.layout is given twice"),
        ("full = 10MB/s ± much", 17, "expected a share such as 8%"),
        ("full >= 3 > read", 11, ">= and > cannot be mixed"),
        ("full > 3", 8, "expected a value without a factor"),
        ("2 * full >= 3 * read", 1, "without a factor"),
        ("1 <= 2 <= 3", 6, "expected a value"),
        ("full rises with array.chunk", 12, "expected along and an axis"),
        ("9MB/s <= full <= 2 * read", 18, "the same kind of limit"),
        ("full >= read - 2 * seek", 16, "expected a share such as 8%, about or negligible"),
        ("full >= read - 5% >= seek", 19, "expected the end"),
        ("full >= 2 * read - 5%", 9, "expected a value without a factor"),
        ("full = 2 * read ± little", 19, "expected a share such as 8%, about or negligible"),
        ("full by 10%", 6, "expected >=, <=, =, >"),
    ],
)
def test_what_is_wrong_is_named_with_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(ShortFormError) as error:
        long_form(text, AXES)
    assert (error.value.column, message in str(error.value)) == (column, True), str(error.value)


FILE = """\
title: t
question: q
disks: {count: 4, size: 1GiB, throttle: 5MiB}
array: {level: 5, chunk: 64KiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 10, oflag: direct}
matrix:
  array.chunk: [4KiB, 64KiB]
  disks.count: [3, 5]
claims:
  - id: A
    says: Five disks are faster
    expect: EXPECT
"""
LONG = """{kind: ratio, of: {workload: write, where: {array.chunk: 4KiB, disks.count: 5}},
             to: {workload: write, where: {array.chunk: 4KiB, disks.count: 3}}, at_least: 1.5}"""
SHORT = "write[4KiB, 5] >= 1.5 * write[4KiB, 3]"


def test_a_file_may_have_either_form(tmp_path: Path) -> None:
    def claims(expect: str, *sets: str) -> Any:
        return compiled_text(
            tmp_path, FILE.replace("EXPECT", expect), *sets, name="s"
        ).scenario.claims

    assert claims(SHORT) == claims(LONG)
    fixed = "array.chunk=4KiB"  # the axis is not in the matrix any more
    assert claims(SHORT, fixed) == claims(LONG, fixed)


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("write[4KiB, 5] >= 1.5 times write[4KiB, 3]", "column 23: expected the end"),
        ("write[8KiB, 5] >= 1.5 * write[4KiB, 3]", "no cell has 8KiB"),
        ("wriet[4KiB, 5] >= 1", "there is no workload 'wriet'"),
    ],
)
def test_errors_name_line_and_column(tmp_path: Path, expect: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FILE.replace("EXPECT", expect))
    with pytest.raises(InputError) as error:
        compile_scenario(path)
    assert f"{path}:13: claims[0].expect" in error.value.message
    assert message in error.value.message


def test_the_schema_takes_a_line_of_text() -> None:
    schema = json.dumps(Claim.model_json_schema()["properties"]["expect"])
    assert '"type": "string"' in schema
