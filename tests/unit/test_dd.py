"""dd: operands, quoting, and the last line of its output."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads.dd import WORKLOAD, DdParameters, bytes_moved

WRITE = {"of": "{target}", "bs": "1MiB", "count": 100}


def _parameters(**changes: Any) -> DdParameters:
    return DdParameters.model_validate({**WRITE, **changes})


def _read(**changes: Any) -> DdParameters:
    return DdParameters.model_validate({"if": "{target}", **changes})


def _parse(stderr: str, parameters: DdParameters | None = None) -> dict[str, float]:
    outputs = Outputs(stdout="", stderr=stderr, files={})
    return WORKLOAD.parse(parameters or _parameters(), outputs)


def test_a_write_takes_urandom_and_sizes_become_bytes() -> None:
    assert WORKLOAD.script(_parameters(oflag="direct"), "/dev/md/bench") == (
        "LC_ALL=C dd if=/dev/urandom of=/dev/md/bench bs=1048576 count=100 oflag=direct\n"
    )


def test_a_read_goes_nowhere() -> None:
    assert WORKLOAD.script(_read(bs="64KiB", iflag="direct", skip=3), "/dev/md/bench") == (
        "LC_ALL=C dd if=/dev/md/bench of=/dev/null bs=65536 iflag=direct skip=3\n"
    )


def test_every_operand_reaches_the_command() -> None:
    parameters = _parameters(
        **{"if": "/dev/zero", "iflag": "fullblock", "oflag": "direct,dsync"},
        conv="notrunc,fsync",
        seek=7,
        skip=9,
    )
    words = WORKLOAD.script(parameters, "/t").split()
    assert words[1:] == [
        *("dd", "if=/dev/zero", "of=/t", "bs=1048576", "count=100", "iflag=fullblock"),
        *("oflag=direct,dsync", "conv=notrunc,fsync", "seek=7", "skip=9"),
    ]


def test_a_path_with_spaces_and_quotes_stays_one_word() -> None:
    parameters = _read(of="/tmp/it's $(here)")
    assert "of=/tmp/it's $(here)" in shlex.split(WORKLOAD.script(parameters, "/dev/md/bench"))


def test_the_script_really_runs_and_is_read(tmp_path: Path) -> None:
    target = tmp_path / "target"
    parameters = _parameters(bs="4KiB", count=16, conv="fsync")
    script = WORKLOAD.script(parameters, str(target))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    metrics = _parse(done.stderr, parameters)
    assert target.stat().st_size == bytes_moved(parameters) == 65536
    assert metrics["throughput"] == pytest.approx(65536 / metrics["seconds"])


@pytest.mark.parametrize(
    ("operands", "words"),
    [
        ({"bs": "1MiB", "count": 1}, "neither if nor of"),
        ({"if": "/dev/zero", "of": "/tmp/x", "count": 1}, "neither if nor of"),
        ({"if": "{target}", "of": "{target}", "count": 1}, "both if and of"),
        ({"of": "{target}"}, "give count"),
        ({**WRITE, "bs": 0}, "expected 1 byte or more"),
        ({**WRITE, "count": 0}, "greater than or equal to 1"),
        ({**WRITE, "seek": -1}, "greater than or equal to 0"),
        ({**WRITE, "bs": "1M"}, "MiB or MB"),
        ({**WRITE, "oflag": "directly"}, "found 'directly': did you mean 'direct'?"),
        ({**WRITE, "iflag": ""}, "expected one of append, "),
        ({**WRITE, "conv": "fsync,ebcdic"}, "found 'ebcdic'"),
    ],
)
def test_what_dd_or_sense_would_refuse(operands: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DdParameters.model_validate(operands)


def test_bytes_moved_is_unknown_without_count() -> None:
    assert bytes_moved(_parameters()) == 104857600
    assert bytes_moved(_read()) is None


def test_a_write_to_the_target_destroys_and_a_read_does_not() -> None:
    assert WORKLOAD.destroys(_parameters())
    assert not WORKLOAD.destroys(_read())
    assert not WORKLOAD.destroys(_parameters(of="{target}/file"))


def test_published_line_is_read_exactly() -> None:
    line = "100+0 records in\n100+0 records out\n"
    line += "104857600 bytes (105 MB, 100 MiB) copied, 9.83307 s, 10.7 MB/s\n"
    assert _parse(line) == {"throughput": 104857600 / 9.83307, "seconds": 9.83307}


@pytest.mark.parametrize(
    "line",
    [
        "104857600 bytes (105 MB, 100 MiB) copied",
        "104857600 bytes (105 MB, 100 MiB) copied, 9,83307 s, 10,7 MB/s",
        "104857600 Bytes (105 MB, 100 MiB) kopiert, 9.83 s, 10.7 MB/s",
        "104857600 bytes (105 MB, 100 MiB) copied, 9.83307 s, 10.7 MB/s, and more",
        "x104857600 bytes (105 MB, 100 MiB) copied, 9.83307 s, 10.7 MB/s",
        "104857600 bytes (105 MB, 100 MiB) copied, 9.83307 s, 10.7 MB/s\nKilled",
        "104857600 bytes (105 MB, 100 MiB) copied, 1.2.3 s, 10.7 MB/s",
    ],
)
def test_another_line_is_not_guessed_at(line: str) -> None:
    with pytest.raises(ToolError, match="cannot be read"):
        _parse(line)


def test_no_time_is_no_speed() -> None:
    with pytest.raises(ToolError, match="too fast"):
        _parse("104857600 bytes (105 MB, 100 MiB) copied, 0 s, Infinity B/s")


def test_more_than_asked_for_is_unreadable_too() -> None:
    with pytest.raises(ToolError, match=r"104857601 .*104857600"):
        _parse("104857601 bytes (105 MB, 100 MiB) copied, 9.8 s, 10.7 MB/s")


@given(
    blocks=st.integers(1, 10**6),
    size=st.integers(1, 10**9),
    seconds=st.floats(1e-6, 1e7, allow_nan=False),
)
def test_what_dd_prints_is_read_back(blocks: int, size: int, seconds: float) -> None:
    copied = blocks * size
    printed = f"{seconds:g}"  # dd's own format: six digits, with an exponent if that is shorter
    line = f"{copied} bytes (1 MB, 1 MiB) copied, {printed} s, 1.0 MB/s\n"
    metrics = _parse(line, _parameters(bs=size, count=blocks))
    assert metrics["seconds"] == float(printed)
    assert metrics["throughput"] == copied / float(printed)


@given(blocks=st.integers(2, 10**4), missing=st.integers(1, 4096))
def test_a_short_copy_is_never_a_number(blocks: int, missing: int) -> None:
    copied = blocks * 4096 - missing
    line = f"{copied} bytes (1 MB, 1 MiB) copied, 1.5 s, 1.0 MB/s"
    with pytest.raises(ToolError, match=f"{copied} bytes, expected {blocks * 4096}"):
        _parse(line, _parameters(bs=4096, count=blocks))
