"""A claim that no run could test is refused, with its line and a suggestion."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.analysis.judge import JudgedCell, judge
from lab.compile.cell.metrics import COUNTS, similar
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.fields import fields_of
from lab.core.errors import InputError
from lab.model.result.document import CellResult, Outcome
from lab.model.scenario.claim import Verdict, matches
from lab.plugins import catalog
from tests.fakes import compiled_text
from tests.speed import reference, scale

TEXT = """\
title: A matrix with a value left to mdadm
question: What does the layout cost?
disks: {count: 4, size: 1GiB}
array: {level: 5, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 8}
  - {name: random, tool: fio, rw: randread, bs: 4KiB, runtime: 2s, time_based: true}
matrix:
  array.level: [5, 10]
  array.layout: [null, parity-last, n2]
  array.chunk: [64KiB, 128KiB]
  exclude:
    - {array.level: 10, array.layout: null}
    - {array.level: 10, array.layout: parity-last}
    - {array.level: 5, array.layout: n2}
    - {array.level: 10, array.chunk: 128KiB}
claims:
  - id: c1
    says: so
    expect:
      kind: ratio
      of: VALUE
      to: {workload: write, where: {array.level: 10}}
      at_least: 1
"""
GOOD = "{workload: write, where: {array.layout: parity-last, array.chunk: 64KiB}}"
EXPECT = "    expect:\n      kind: ratio\n      of: VALUE\n"


def text(value: str = GOOD, **changes: str) -> str:
    changed = TEXT
    for old, new in changes.items():
        changed = changed.replace(old, new)
    return changed.replace("VALUE", value)


def compiled(tmp_path: Path, scenario: str, *sets: str) -> Compiled:
    return compiled_text(tmp_path, scenario, *sets)


def refused(tmp_path: Path, scenario: str) -> str:
    with pytest.raises(InputError) as error:
        compiled(tmp_path, scenario)
    return error.value.message.removeprefix(f"{tmp_path}/")


OF = "q.yaml:22: claims[0].expect.of"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "{workload: write, where: {array.levle: 5}}",
            f"{OF}.where.array.levle: there is no field 'array.levle': did you mean 'array.level'?",
        ),
        (
            "{workload: write, where: {array.layout: parity-lost}}",
            f"{OF}.where.array.layout: no cell has parity-lost: did you mean 'parity-last'?",
        ),
        (
            "{workload: write, where: {array.chunk: 32MB}}",
            f"{OF}.where.array.chunk: no cell has 32MB: cells have 64KiB, 128KiB",
        ),
        (
            "{workload: write, where: {disks.count: 5, array.level: 10}}",
            f"{OF}.where.disks.count: no cell has 5: cells have 4",
        ),
        (
            "{workload: write, where: {array.level: 5}}",
            f"{OF}.where: picks 4 cells and must pick one: they differ in array.layout (default,"
            " parity-last), array.chunk (64KiB, 128KiB); add array.layout to where",
        ),
        (
            "{workload: write, where: {array.layout: parity-last}}",
            f"{OF}.where: picks 2 cells and must pick one: they differ in array.chunk (64KiB,"
            " 128KiB); add array.chunk to where",
        ),
        ("{workload: write}", f"{OF}.where: picks 5 cells and must pick one: they differ in array"),
        (
            "{workload: write, where: {array.level: 10, array.layout: parity-last}}",
            f"{OF}.where: no cell has array.level: 10, array.layout: parity-last together; with"
            " array.layout: parity-last there is array.level: 5; with array.level: 10 there is"
            " array.layout: n2",
        ),
        (
            "{workload: wirte, where: {array.level: 10}}",
            f"{OF}.workload: there is no workload 'wirte': did you mean 'write'?",
        ),
        (
            "{workload: write, metric: throughputs, where: {array.level: 10}}",
            f"{OF}.metric: dd gives no 'throughputs': did you mean 'throughput'?",
        ),
        (
            "{workload: write, metric: iops, where: {array.level: 10}}",
            f"{OF}.metric: dd gives no 'iops': it gives throughput, seconds, disk_reads",
        ),
        (
            "{workload: write, metric: disk_reads, disk: disk9, where: {array.level: 10}}",
            f"{OF}.disk: there is no disk 'disk9': did you mean 'disk4'?",
        ),
        (
            "{workload: write, where: {workloads.write.cuont: 8, array.level: 10}}",
            f"{OF}.where.workloads.write.cuont: there is no field 'workloads.write.cuont': did you"
            " mean 'workloads.write.count'?",
        ),
    ],
)
def test_a_value_that_is_not_one_cells_is_refused(tmp_path: Path, value: str, says: str) -> None:
    assert refused(tmp_path, text(value)).startswith(says)


def test_the_names_that_are_most_like_a_wrong_one_come_first_of_a_few(tmp_path: Path) -> None:
    wrong = "{workload: random, metric: disk_write_bytes, where: {array.level: '10'}}"
    said = refused(tmp_path, text(wrong))
    assert "gives no 'disk_write_bytes': it gives disk_read_bytes, disk_written_bytes, " in said
    assert said.count(", ") == 11
    assert " more (docs/reference)" in said


@pytest.mark.parametrize(
    "value",
    [
        GOOD,
        "{workload: write, where: {array.layout: parity-last, array.chunk: 65536}}",
        "{workload: write, where: {array.layout: null, array.chunk: 128KiB}}",
        "{workload: write, where: {array.layout: default, array.chunk: 128KiB}}",
        "{workload: random, metric: iops, where: {array.level: '10'}}",
        "{workload: write, metric: disk_reads, disk: disk4, where: {array.layout: n2}}",
        "{workload: write, where: {array.layout: n2, workloads.write.count: 8, disks.count: 4}}",
        "{workload: write, where: {array.level: 10, array.sysfs.rmw_level: null}}",
        "{workload: write, where: {array.level: 10, workloads.random.ioengine: null}}",
        "{workload: write, where: {array.level: 10, disks.throttle.group: default}}",
        "{workload: write, where: {array.level: 10, disks.0.size: 1GiB}}",
    ],
)
def test_a_value_of_one_cell_is_taken(tmp_path: Path, value: str) -> None:
    found = compiled(tmp_path, text(value))
    (claim,) = found.scenario.claims
    assert [len(picked(found, number)) for number in (0, 1)] == [1, 1]
    assert claim.values[0].where.get("array.layout") != "default"


def picked(found: Compiled, number: int) -> list[object]:
    """Return ids of the cells that a value of the claim selects, as for the verdict."""
    claims = found.scenario.claims
    value = claims[0].values[number]
    return [c.axes for c in found.cells if matches(value.where, fields_of(c, claims))]


def test_default_is_the_axis_own_value_where_it_has_one(tmp_path: Path) -> None:
    axes = "  array.sysfs.group: [null, default]\n"
    scenario = TEXT.partition("matrix:")[0] + "matrix:\n" + axes + "claims:\n"
    scenario += "  - {id: c1, says: so, expect: {kind: bound, at_least: 1, value: {workload: write,"
    scenario += " where: {array.sysfs.group: default}}}}\n"
    found = compiled(tmp_path, scenario)
    assert picked(found, 0) == [{"array.sysfs.group": "default"}]
    # With the axis reduced to the cell without a value, the claim selects another cell.
    changed = compiled(tmp_path, scenario, "matrix={array.sysfs.group: [null]}")
    assert picked(changed, 0) == []


def monotonic(**changes: str) -> str:
    expect = (
        "    expect:\n      kind: monotonic\n      value: {workload: write, where: {array.layout:"
        " parity-last}}\n      along: array.chunk\n      direction: rising\n"
    )
    head = TEXT.partition("    expect:")[0]
    for old, new in changes.items():
        expect = expect.replace(old, new)
    return head + expect


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("array.chunk", "array.chnuk", "there is no axis 'array.chnuk': did you mean 'array.chunk"),
        ("array.chunk", "disks.count", "there is no axis 'disks.count': the axes are array.level"),
        ("array.chunk", "array.layout", "picks more than one cell at array.layout: parity-last"),
        ("parity-last", "n2", "the claim needs two cells along array.chunk, and its where picks"),
        (
            "{array.layout: parity-last}}\n      along: array.chunk",
            "{array.level: 5, array.chunk: 64KiB}}\n      along: array.layout",
            "the cell with array.layout: default has no place on a scale",
        ),
    ],
)
def test_a_monotonic_claim_needs_cells_in_a_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert compiled(tmp_path, monotonic())
    found = refused(tmp_path, monotonic(**{old: new}))
    assert found.startswith("q.yaml:23: claims[0].expect.along: ")
    assert says in found


def test_a_workload_that_a_fault_ends_has_no_values(tmp_path: Path) -> None:
    scenario = TEXT.partition("matrix:")[0] + (
        "faults:\n  - {name: cut, fault: power_cut, during: write, at: 1s}\n"
        "claims:\n  - {id: c1, says: so, expect: {kind: bound, at_least: 1,"
        " value: {workload: write}}}\n"
    )
    assert "'write' has no values, since a fault ends it" in refused(tmp_path, scenario)
    assert compiled(
        tmp_path, scenario.replace("value: {workload: write", "value: {workload: random")
    )


def test_a_claim_whose_cells_a_set_took_away_is_not_tested(tmp_path: Path) -> None:
    found = compiled(tmp_path, text(), "array.chunk=128KiB")
    cells = [
        JudgedCell(
            result=CellResult(id=str(n), axes=c.axes, outcome=Outcome.DONE),
            fields=fields_of(c, found.scenario.claims),
            published=True,
        )
        for n, c in enumerate(found.cells)
    ]
    (verdict,) = judge(found.scenario.claims, cells)
    assert verdict.verdict is Verdict.NOT_TESTED
    assert "no cell with array.layout: parity-last, array.chunk: 64KiB" in verdict.reason
    with pytest.raises(InputError, match=r"claims\[0\]\.expect\.of\.where"):  # the file itself
        compiled(tmp_path, text("{workload: write}"), "array.chunk=128KiB")


UNITS = """\
title: Units
question: Must they be there?
disks: {count: 3, size: 1GiB}
array: {level: 5, component_size: 64MiB}
workloads: [{name: w, tool: fio, rw: write, bs: 4KiB, size: 1MiB}]
claims: [{id: A, says: So, ours: true, expect: EXPECT}]
"""


@pytest.mark.parametrize(
    ("expect", "wrong"),
    [
        ('"w >= 10"', "at_least: 10 has no unit, and throughput is a rate of bytes"),
        ('"10 <= w"', "at_least: 10 has no unit"),
        ('"w = 10 ± 5%"', "near: 10 has no unit"),
        ('"1MB/s <= w <= 10"', "at_most: 10 has no unit"),
        ('"w.seconds <= 10"', "10s"),
        ('"w.sync_p99 <= 10"', "10s"),
        ('"w.disk_written_bytes <= 10"', "10MiB"),
        ('"w >= 10ms"', "'10ms' is not a rate of bytes"),
        ('"w.seconds <= 10MB"', "'10MB' is not a time"),
        ('"w.iops >= 10MB/s"', "'10MB/s' is not a number per second"),
        ('"w.disk_writes = 10MiB"', "'10MiB' is not a number"),
        ("{kind: bound, value: {workload: w}, at_least: 10ms}", "'10ms' is not a rate of bytes"),
        ('"w >= 10MB/s"', ""),
        ('"w >= 10MiB"', ""),
        ('"w <= 0"', ""),
        ('"w.seconds <= 10min"', ""),
        ('"w.iops >= 10"', ""),
        ('"w.iops >= 10/s"', ""),
        ('"w.disk_written_bytes = 10B"', ""),
        ('"w.disk_writes = 256"', ""),
        ('"w >= 2 * w"', ""),
        ("{kind: bound, value: {workload: w}, at_least: 10}", ""),
        ('"v[5] >= 10MB/s"', "column 1: there is no workload 'v': there is w"),
        ('"ww[5] >= 10MB/s"', "did you mean 'w'?"),
        ('"w[5] >= 10MB/s"', "column 3: there are no axes"),
    ],
)
def test_a_number_of_a_claim_has_the_unit_of_its_metric(
    tmp_path: Path, expect: str, wrong: str
) -> None:
    """``w >= 10`` was ten bytes per second, and held."""
    path = tmp_path / "units.yaml"
    path.write_text(UNITS.replace("EXPECT", expect))
    if not wrong:
        assert compile_scenario(path).scenario.claims
        return
    with pytest.raises(InputError) as error:
        compile_scenario(path)
    assert wrong in str(error.value)
    assert f"{path}:6: claims[0].expect" in str(error.value)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("clat_p9", ""),
        ("clat_p90", ""),
        ("claat_p99", "clat_p99"),
        ("fsync_p99", ""),
        ("write_sync_p99", ""),
        ("lat_p99", "lat_p99"),
        ("fdatasync_p99", ""),
        ("latency_p99", ""),
        ("sync_mean", ""),
        ("trougput", "throughput"),
        ("read_trougput", "read_throughput"),
        ("disk_wirtes", "disk_writes"),
        ("disk_bytes", ""),
        ("write_bytes", ""),
    ],
)
def test_no_other_value_is_suggested(word: str, near: str) -> None:
    """``clat_p99`` for the percentile of fdatasync turned a verdict round."""
    known = [*(metric.name for metric in catalog.workload("fio").metrics), *COUNTS]
    assert similar(word, known) == near


def test_thousands_of_cells_and_claims_are_checked_in_seconds(tmp_path: Path) -> None:
    numbers = list(range(1, 71))
    axes = "".join(f"  workloads.{w}: {numbers}\n" for w in ("write.count", "random.iodepth"))
    scenario = TEXT.partition("matrix:")[0] + "matrix:\n" + axes + "claims:\n"
    for number in numbers:
        where = f"{{workloads.write.count: {number}, workloads.random.iodepth: 3}}"
        value = f"{{workload: write, where: {where}}}"
        expect = f"{{kind: bound, at_least: 1, value: {value}}}"
        scenario += f"  - {{id: c{number}, says: so, expect: {expect}}}\n"
    began = time.process_time()
    assert len(compiled(tmp_path, scenario).cells) == 4900
    assert (time.process_time() - began) * scale(reference()) < 6
