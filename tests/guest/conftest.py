"""Real guests, few and shared: a boot under software emulation takes half a minute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.host import guests, paths

LAB = [sys.executable, "-m", "lab"]


@dataclass(frozen=True)
class Home:
    """A lab of the tests' own, with the images of the user's."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LAB_HOME": str(self.path)}

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

    def left(self) -> list[str]:
        """What of guests is there: directories, and processes that name them."""
        found = [str(p) for p in self.guests.glob("*")] if self.guests.is_dir() else []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.guests) in line or (line and f"LAB_HOME={self.path}" in line):
                found.append(line[:200])
        return found


@pytest.fixture(scope="session")
def lab_home() -> Iterator[Home]:
    # Short, for QEMU's sockets live below it, and a socket's path has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="lab-t-", dir="/tmp"))
    images = paths.images()
    images.mkdir(parents=True, exist_ok=True)
    (directory / "data").mkdir()
    (directory / "data" / "images").symlink_to(images)
    home = Home(directory)
    before = os.environ.get("LAB_HOME")
    os.environ["LAB_HOME"] = str(directory)
    yield home
    home.run("down")
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
    started: list[str] = []

    def start(*words: str) -> str:
        done = lab_home.run("up", "scenario", "raid5-parity-last", "--no-run", *words)
        assert done.returncode == 0, done.stderr
        (record,) = [r for r in guests.every() if r.id not in started and guests.is_alive(r)]
        started.append(record.id)
        return record.id

    yield start
    for name in started:
        if (lab_home.guests / name).exists():
            lab_home.run("down", name)
