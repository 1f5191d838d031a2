"""No number in a scenario, however long or strange, is a bug in the lab."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lab.cli.app import app
from lab.cli.commands.running import how_of
from lab.cli.options import _trials
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError, LabError
from lab.core.units import parse_rate, parse_seconds, parse_share, parse_size, whole_number

TEXTS = (
    *("²", "½", "٣", "１２", "٣MiB", "５%", "２s", "0x10", "1_000", "1e400", "+5", "--", "-1", " "),
    *("9" * 401, "9" * 5000, "1." + "0" * 401, "9" * 401 + "MiB", "9" * 401 + "s", "9" * 401 + "%"),
)
NUMBERS = (-1, 10**401, -(10**401), 1e308, float("inf"), float("nan"), 0.1, True)


@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_seconds, parse_share])
@pytest.mark.parametrize("value", [*TEXTS, *NUMBERS], ids=lambda v: str(v)[:12])
def test_a_number_is_ascii_and_of_a_size_that_exists(parse: Any, value: Any) -> None:
    if parse is parse_share and not isinstance(value, str):
        return
    said = ""
    try:
        found = parse(value)
    except ValueError as error:
        said = str(error)
    if said:
        assert 10 < len(said) < 300
    else:
        assert 0 <= found < 10**31
        assert not isinstance(value, str) or value.isascii()


@pytest.mark.parametrize("text", [*TEXTS, "0", "1234567890"], ids=lambda v: str(v)[:12])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None
    assert whole_number("00256") == 256


SCENARIO = """\
title: T
question: Q?
guest: {cpus: 1, memory: 512MiB, clock: virtual}
disks:
  - {count: 4, size: 1GiB, throttle: {total_bytes_per_second: 5MiB, operation_size: 4096,
     total_operations_per_second: 100}}
  - {count: 1, size: 1GiB, serial: 'h{index}', model: hdd, hdd: {rpm: 7200, write_cache: 8MiB}}
array: {level: 5, chunk: 64KiB, component_size: 256MiB, members: 4, spares: 1, data_offset: 1MiB,
  bitmap: internal, bitmap_chunk: 64MiB, sysfs: {stripe_cache_size: '256', safe_mode_delay: '0.2'}}
filesystem: {type: ext4}
trials: 1
timeout: 600
workloads:
  - {name: w, tool: dd, of: '{target}', bs: 64KiB, count: 9, seek: 2}
  - {name: f, tool: fio, rw: randrw, bs: 4k, size: 1MiB, iodepth: 4, numjobs: 2, runtime: 5,
     rwmixread: 50}
  - {name: l, tool: ledger, bs: 4KiB, size: 1MiB, count: 9}
faults:
  - {name: a, fault: slow, during: w, at: 2s, disk: 1, total_bytes_per_second: 1MiB}
  - {name: b, fault: fail, after: l, disk: 2}
  - {name: c, fault: grow, after: l, raid_devices: 5, until: 5%}
claims:
  - {id: C-1, says: It does, expect: 'w >= 1MB/s'}
"""
LEAF = re.compile(r"(?<![\w{'])(\d[\w.%/]*)(?=[,}\s'])")


def damaged(value: str) -> Iterator[tuple[str, str]]:
    """Yield the scenario with one of its numbers replaced, and the old text."""
    for found in LEAF.finditer(SCENARIO):
        yield SCENARIO[: found.start()] + value + SCENARIO[found.end() :], found[0]


YAML = (
    *("'²'", "٣", "'１２'", "'½'", "9" * 401, "'" + "9" * 401 + "'", "9" * 5000, "9" * 401 + "MiB"),
    *("9" * 401 + "s", ".inf", ".nan", "-1", "1e308", "1e400", "0x" + "f" * 400, "'5%%'", "1:2:3"),
)


@pytest.mark.parametrize("value", YAML, ids=lambda v: v[:10])
def test_a_hostile_number_in_any_field_is_a_sentence(tmp_path: Path, value: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO)
    compile_scenario(path)
    said: list[tuple[str, str]] = []
    for text, old in damaged(value):
        path.write_text(text)
        try:
            cell = compile_scenario(path).base
        except LabError as error:
            said.append((old, error.message))
            continue
        if cell.trials < 10:
            cell_procedure(cell, "/g")
    assert len(said) > 20
    assert not [(old, len(text)) for old, text in said if len(text) > 6000]


def options() -> Iterator[tuple[str, Any]]:
    """Yield each option of each command."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{path} {name}")
        yield from ((path, p) for p in command.params if p.param_type_name == "option")

    importlib.import_module("lab.cli.commands")
    yield from walk(typer.main.get_command(app), "lab")


def test_each_number_that_an_option_takes_has_limits() -> None:
    """typer refuses what is no number itself; without an upper limit 401 digits would pass."""
    found = [(path, o) for path, o in options() if o.type_descriptor.annotation in (int, float)]
    assert len(found) > 3
    open_ended = {f"{path} --{o.name}" for path, o in found if o.max is None}
    assert open_ended == set()


@pytest.mark.parametrize("text", [*TEXTS, "0", "257"], ids=lambda v: str(v)[:12])
def test_a_number_of_jobs_and_of_trials_is_a_number(text: str) -> None:
    with pytest.raises(InputError, match="expected auto or a number from 1 to 256") as error:
        how_of(text, False, keep=False, workloads=True, cold=False)
    assert len(error.value.message) < 150
    with pytest.raises(typer.BadParameter, match="from 1 to 1000, or auto"):
        _trials("1001" if text == "257" else text)
