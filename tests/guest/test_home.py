"""A real guest in a home whose path has every kind of special character: both clocks, and SSH."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host.system import paths

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow]
NAME = "a '\"#%41$\\é&;[b]"


@pytest.fixture(scope="module")
def home(lab_home: Home, image: str) -> Iterator[Home]:
    """A home with a copy of the image, and without boot files: the driver is built in it."""
    directory = Path(tempfile.mkdtemp(prefix="lab-h-", dir="/tmp"))
    place = directory / NAME
    images = place / "data" / "images"
    images.mkdir(parents=True)
    for found in paths.images().glob(f"{image}-*"):
        shutil.copytree(found, images / found.name)
    home = Home(place)
    yield home
    home.run("down")
    home.wait_until_nothing_is_left(30)
    left = home.left()
    beside = os.listdir(directory)  # noqa: PTH208
    shutil.rmtree(directory, ignore_errors=True)
    assert left == []
    assert beside == [NAME]


def test_doctor_finds_nothing_wrong(home: Home) -> None:
    findings = {one["name"]: one["good"] for one in home.json("doctor")["findings"]}
    assert findings["home"]
    assert findings["libvirt"]


def test_a_sealed_cell(home: Home) -> None:
    """mmdebstrap builds the driver, QEMU maps region, image and memory, and saves a snapshot."""
    words = ("run", "scenario", "raid5-parity-last", "--clock", "virtual", "--set", "matrix={}")
    done = home.run(*words, timeout=1500)
    assert done.returncode in (0, 1), done.stderr
    assert [path.name for path in (home.path / "cache/sealed").glob("snapshot-*")]
    assert "cells done" in done.stdout + done.stderr


def test_a_guest_in_real_time(home: Home) -> None:
    """libvirt saves and restores it, in its own directories; `lab ssh` leads into it."""
    done = home.run("up", "scenario", "raid5-parity-last", "--no-run", timeout=1500)
    assert done.returncode == 0, done.stderr
    assert "made a snapshot" in done.stderr or list((home.path / "cache/warm").glob("[0-9a-f]*"))
    (row,) = home.json("ps")["guests"]
    assert row["state"] == "up"
    inside = home.run("ssh", "--", "cat /proc/mdstat")
    assert "raid5" in inside.stdout, inside.stderr
    assert home.run("down").returncode == 0
