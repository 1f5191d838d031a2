"""The ledger: every block is written once, reported when durable, and verified afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.plugin import Keeper, Kept
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs.ledger import content, place
from lab.plugins.workloads.ledger import WORKLOAD, LedgerParameters, acknowledged


def parameters(**changes: Any) -> LedgerParameters:
    return LedgerParameters.model_validate({"size": 256 * 1024, "count": 40, **changes})


def on(path: Path, script: str) -> str:
    done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, check=False)
    if "Invalid argument" in done.stderr and not _direct(path):
        pytest.skip("this file system has no O_DIRECT")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def kept(p: LedgerParameters, told: str, found: str) -> Kept:
    assert isinstance(WORKLOAD, Keeper)
    return WORKLOAD.kept(p, told, found)


def look(p: LedgerParameters, path: Path) -> str:
    assert isinstance(WORKLOAD, Keeper)
    return on(path, WORKLOAD.read_back(p, str(path)))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.write_bytes(bytes(512 * 1024))
    return path


@pytest.mark.parametrize("changes", [{}, {"bs": 8192, "count": 32, "offset": 4096, "flush": False}])
def test_what_was_written_is_found_again(target: Path, changes: dict[str, Any]) -> None:
    p = parameters(**changes)
    told = on(target, WORKLOAD.script(p, str(target)))
    assert acknowledged(told) == p.count
    found = WORKLOAD.parse(p, Outputs(stdout=told, stderr="", files={}))
    assert found["iops"] == pytest.approx(p.count / found["seconds"])
    assert kept(p, told, look(p, target)) == Kept(acknowledged=p.count, lost=0)


def test_one_bit_that_rots_is_one_block_lost(target: Path) -> None:
    p = parameters()
    told = on(target, WORKLOAD.script(p, str(target)))
    data = bytearray(target.read_bytes())
    data[place(p.seed, 17, p.places) * p.bs + 4095] ^= 1
    target.write_bytes(data)
    found = look(p, target)
    assert json.loads(found)["intact"] == [[0, 16], [18, 39]]
    assert kept(p, told, found).lost == 1
    before = "".join(f"{n}\n" for n in range(17))
    assert kept(p, before, found) == Kept(acknowledged=17, lost=0)


def test_a_disk_that_was_never_written_holds_nothing(target: Path) -> None:
    assert json.loads(look(parameters(), target))["intact"] == []


def test_a_file_of_another_seed_holds_nothing(target: Path) -> None:
    told = on(target, WORKLOAD.script(parameters(), str(target)))
    assert kept(parameters(seed=2), told, look(parameters(seed=2), target)).lost == 40


def test_a_target_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert isinstance(WORKLOAD, Keeper)
    script = WORKLOAD.read_back(parameters(), str(tmp_path / "nowhere"))
    done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No such file" in done.stderr


@given(places=st.integers(1, 5000), seed=st.integers(0, 10**9))
def test_every_place_comes_once(places: int, seed: int) -> None:
    found = {place(seed, number, places) for number in range(places)}
    assert found == set(range(places))


def test_no_two_pages_are_alike() -> None:
    pages = [content(1, n, 8192)[i : i + 512] for n in range(50) for i in range(0, 8192, 512)]
    assert len(set(pages)) == len(pages)
    assert content(1, 3, 8192) == content(1, 3, 8192) != content(2, 3, 8192)
    assert len(content(1, 1, 4096)) == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bs": 1000}, "1000: .*multiple of 4096"),
        ({"bs": 0}, "bs is 0"),
        ({"count": 65}, "65 blocks do not fit in 262144 bytes.* 64"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"file": "/dev/vda"}, "does not contain"),
        ({"sync": True}, "sync"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parameters(**changes)


@pytest.mark.parametrize("told", ["", "0\n1\n2\n", "0\n" * 40, '{"written": 40, "seconds": 1}\n'])
def test_a_ledger_that_was_cut_off_gives_no_figures(told: str) -> None:
    with pytest.raises(ToolError):
        WORKLOAD.parse(parameters(), Outputs(stdout=told, stderr="", files={}))
