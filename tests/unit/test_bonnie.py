"""bonnie++: its options, its CSV, and missing values in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads.bonnie import FIELDS, WORKLOAD, BonnieParameters

GOLDEN = Path(__file__).parent.parent / "golden" / "workloads" / "bonnie"
BLOCKS: dict[str, Any] = {"s": "100MiB", "n": 0, "r": 0, "f": True}


def _parameters(**changes: Any) -> BonnieParameters:
    return BonnieParameters.model_validate({**BLOCKS, **changes})


def _recorded(case: str) -> list[str]:
    return (GOLDEN / case / "stdout").read_text().strip().split(",")


def _parse(fields: list[str], **changes: Any) -> dict[str, float]:
    line = ",".join(fields) + "\n"
    return WORKLOAD.parse(_parameters(**changes), Outputs(stdout=line, stderr="", files={}))


def test_every_option_reaches_the_command() -> None:
    script = WORKLOAD.script(
        _parameters(
            s="1GiB", io_chunk_size="64KiB", seeks=9, seek_proc_count=2, n=3, max_size="4KiB",
            min_size=512, num_dirs=5, r="256MiB", c=2, b=True, D=True, z=7,
        ),
        "/mnt/bench/data",
    )  # fmt: skip
    assert shlex.split(script.splitlines()[-1]) == [
        *("LC_ALL=C", "bonnie++", "-q", "-u", "root", "-m", "lab", "-d", "/mnt/bench/data"),
        *("-s", "1024:65536:9:2", "-n", "3:4096:512:5", "-f", "-b", "-D"),
        *("-c", "2", "-z", "7", "-r", "256"),
    ]


def test_what_is_left_out_is_said_with_a_zero() -> None:
    words = shlex.split(WORKLOAD.script(_parameters(s=0, n=1), "/t").splitlines()[-1])
    assert words[words.index("-s") + 1] == "0"
    words = shlex.split(WORKLOAD.script(_parameters(), "/t").splitlines()[-1])
    assert words[words.index("-n") + 1] == "0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"s": 0}, "skip every test"),
        ({"s": 1000}, "whole MiB"),
        ({"s": "1MB"}, "whole MiB"),
        ({"io_chunk_size": 3000}, "power of two"),
        ({"io_chunk_size": "2MiB"}, "power of two"),
        ({"r": "64MiB"}, "twice as large as r"),
        ({"min_size": 2, "max_size": 1}, "above max_size"),
        ({"d": "/tmp"}, "does not contain"),
        ({"z": 0}, "greater than or equal to 1"),
    ],
)
def test_what_bonnie_or_sense_would_refuse(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _parameters(**changes)


def test_its_k_is_1024_bytes() -> None:
    """Its table for people has 41.4m where the CSV has 42417: 42417 / 1024."""
    table = (GOLDEN / "blocks" / "stderr").read_text()
    assert "41.4m" in table
    fields = _recorded("blocks")
    assert fields[11] == "42417"
    assert _parse(fields)["write_throughput"] == 42417 * 1024
    assert round(42417 / 1024, 1) == 41.4


def test_the_recorded_write_was_held_at_40_mib_per_second() -> None:
    """The disk was limited to 41943040 bytes per second, plus the initial burst."""
    assert 1.0 < _parse(_recorded("blocks"))["write_throughput"] / 41943040 < 1.06


def test_a_test_that_was_too_quick_has_no_rate_but_a_latency() -> None:
    found = _parse(_recorded("blocks"))
    assert "seeks" not in found
    assert found["seeks_max_latency"] == pytest.approx(0.082092)


@pytest.mark.parametrize(
    ("index", "text", "said"),
    [
        (0, "1.97", "did not print CSV of format 1.98"),
        (4, "2", "seed '2' instead of '1'"),
        (5, "64M", "file_size '64M' instead of '100M'"),
        (21, "16", "num_files '16' instead of ''"),
        (11, "", "gives '' for put_block"),
        (11, "fast", "gives 'fast' for put_block"),
        (11, "0", "gives 0 for put_block"),
        (11, "-5", "gives -5 for put_block"),
        (11, "nan", "gives nan for put_block"),
        (39, "94959", "gives '94959' for the longest put_block"),
    ],
)
def test_a_changed_field_is_noticed(index: int, text: str, said: str) -> None:
    fields = _recorded("blocks")
    fields[index] = text
    with pytest.raises(ToolError, match=said):
        _parse(fields)


def test_a_line_with_a_field_too_few_is_none() -> None:
    fields = _recorded("blocks")
    assert len(fields) == FIELDS
    with pytest.raises(ToolError, match="50 fields"):
        _parse(fields[:-1])


def test_characters_that_were_asked_for_must_be_there() -> None:
    with pytest.raises(ToolError, match="gives '' for putc"):
        _parse(_recorded("blocks"), f=False)


def test_a_gibibyte_has_two_spellings() -> None:
    fields = _recorded("blocks")
    fields[5] = "2G"
    assert _parse(fields, s="2GiB")["write_throughput"] == 42417 * 1024
