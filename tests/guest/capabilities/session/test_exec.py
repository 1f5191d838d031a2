"""``lab exec`` in fresh guests of both clocks, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.guest.conftest import Home

pytestmark = pytest.mark.guest

SCRIPT = """\
#!/bin/bash
echo "$# $1 $SEED"
ls /dev/lab
readlink -e $TARGET | wc -l
echo told >&2
mkdir made
echo kept > made/file
exit 7
"""


def script(tmp_path: Path) -> str:
    path = tmp_path / "mine.sh"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_in_virtual_time(lab_home: Home, image: str, tmp_path: Path) -> None:
    words = ("exec", "--disks", "2", "--clock", "virtual", "--trials", "2", "--image", image)
    out = tmp_path / "out"
    done = lab_home.run(*words, "--json", "--out", str(out), script(tmp_path), "a b", "c")
    assert done.returncode == 7, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == 7
    assert [one["stdout"] for one in found["trials"]] == [
        f"2 a b {seed}\ndisk1\ndisk2\n2\n" for seed in (1, 2)
    ]
    assert {one["stderr"] for one in found["trials"]} == {"told\n"}
    assert (out / "2" / "made" / "file").read_text() == "kept\n"
    assert lab_home.left() == []


@pytest.mark.slow
def test_a_script_in_real_time_has_the_terminal(lab_home: Home, image: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("exec", "--disks", "2", "--level", "1", "--image", image, "--out", str(out))
    done = lab_home.run(*words, script(tmp_path), "a b", "c")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "2 a b 1\ndisk1\ndisk2\n1\n"
    assert "told\n" in done.stderr
    assert (out / "made" / "file").read_text() == "kept\n"
    assert lab_home.left() == []
    panics = ("exec", "--image", image, "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 60")
    dead = lab_home.run(*panics)
    assert dead.returncode == 3
    assert "panic" in dead.stderr
    assert lab_home.left() == []
