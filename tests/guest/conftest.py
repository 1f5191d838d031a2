"""Real guests, few and shared: a boot under software emulation takes half a minute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.host.guest import registry as guests
from lab.host.system import paths

LAB = [sys.executable, "-m", "lab"]


@dataclass(frozen=True)
class Home:
    """A lab of the tests' own, with the images of the user's."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """That of the tests, but for ``COLUMNS``, which would change what commands print."""
        kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return {**kept, "LAB_HOME": str(self.path)}

    def run(self, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAB, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def json(self, *words: str, timeout: float = 600) -> Any:
        done = self.run(*words, "--json", timeout=timeout)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @property
    def guests(self) -> Path:
        return self.path / "state" / "guests"

    def left(self, but: Collection[str] = ()) -> list[str]:
        """What of guests is there, but for those of some ids: directories, processes, sockets.

        A process is ours where its command line names the guests' directory, or where it is a lab
        or a worker that was started with this home.
        """
        found = [str(p) for p in self.guests.glob("*")] if self.guests.is_dir() else []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            mine = f"LAB_HOME={self.path}".encode() in environment and "-m lab" in line
            if f"{self.guests}/" in line or mine:
                found.append(f"process {entry.name}: {line[:200]}")
        sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
        found += [f"socket {w}" for w in sockets.split() if w.startswith(f"{self.path}/")]
        return [f for f in found if not any(f"/{name}" in f for name in but)]

    def litter(self) -> list[str]:
        """Files and directories that somebody was making when they were killed."""
        found = [
            *self.path.glob("data/runs/**/.*.part"),
            *self.path.glob("cache/**/.*.[0-9]*"),
            *self.path.glob("state/**/.*.[0-9]*"),
        ]
        return [str(p) for p in found]

    def wait_until_nothing_is_left(self, seconds: float) -> None:
        """Give workers that are cleaning up the time for it."""
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.2)


@pytest.fixture(scope="session")
def lab_home() -> Iterator[Home]:
    # Short, for QEMU's sockets live below it, and a socket's path has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="lab-t-", dir="/tmp"))
    images = paths.images()
    images.mkdir(parents=True, exist_ok=True)
    (directory / "data").mkdir()
    (directory / "data" / "images").symlink_to(images)
    # Drivers and raw images of sealed guests, which are named by what is in them.
    kits = directory / "cache" / "sealed"
    kits.mkdir(parents=True)
    for name in ("base-*", "boot-*", "driver-*", "image-*", "native-*"):
        for found in paths.sealed().glob(name):
            (kits / found.name).symlink_to(found)
    home = Home(directory)
    before = os.environ.get("LAB_HOME")
    os.environ["LAB_HOME"] = str(directory)
    yield home
    home.run("down")
    home.wait_until_nothing_is_left(30)  # a worker whose test was stopped cleans up by itself
    if home.left():
        home.run("gc")
    if before is None:
        os.environ.pop("LAB_HOME", None)
    else:
        os.environ["LAB_HOME"] = before
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def image(lab_home: Home) -> str:
    """The image, built if it is missing: the one step that may take a minute."""
    done = lab_home.run("image", "build", "debian-12")
    assert done.returncode == 0, done.stderr
    return "debian-12"


@pytest.fixture
def fresh_guest(lab_home: Home, image: str) -> Iterator[Callable[..., str]]:
    """Start guests with an array and no workload; each is ended again."""
    known = {r.id for r in guests.every()}

    def new() -> list[str]:
        return [r.id for r in guests.every() if r.id not in known]

    def start(*words: str) -> str:
        done = lab_home.run("up", "scenario", "raid5-parity-last", "--no-run", *words)
        assert done.returncode == 0, done.stderr
        (name,) = [r for r in new() if r in done.stdout]
        return name

    yield start
    if new():
        lab_home.run("down", *new())


@pytest.fixture
def lab_process(lab_home: Home) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``lab`` and go on; whatever became of it, nothing of it is left for the next test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*LAB, *words],
            env=lab_home.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    # A worker whose lab is gone takes its guest down; should it not, it goes by force.
    lab_home.wait_until_nothing_is_left(30)
    if lab_home.left():
        lab_home.run("gc")
        lab_home.run("down", *(r.id for r in guests.every()))


def six_short_cells(what: str, *, blocks: int) -> str:
    """A scenario of six cells, each of which writes so many MiB, to be interrupted."""
    return f"""\
title: Six short cells
question: Does a run survive the death of {what}?
guest: {{image: debian-12, cpus: 1, memory: 512MiB}}
disks: {{count: 4, size: 1GiB, throttle: {{total_bytes_per_second: 3MiB}}}}
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 64MiB
  bitmap: none
  consistency_policy: resync
  initial_sync: assume_clean
workloads:
  - {{name: write, tool: dd, of: '{{target}}', if: /dev/zero, bs: 1MiB, count: {blocks},
     oflag: direct}}
matrix:
  array.layout: [left-symmetric, left-asymmetric, right-symmetric]
  disks.count: [3, 4]
"""
