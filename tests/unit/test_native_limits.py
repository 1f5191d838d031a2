"""Root in a native guest can run any code in its sandbox: it gets no more memory for that."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from drive import region
from lab.core.errors import LimitError
from lab.core.units import MIB
from lab.host.guest.virtual import limits
from lab.host.guest.virtual.limits import Limits
from lab.host.system import process

DISKS = (region.Disk(serial="root", size=32 * MIB, flags=region.BASE),)
GREEDY = """
import os
os.fork()
held = bytearray(b'x') * (256 << 20)
"""
MANY = "import os\nfor _ in range(6): os.fork()"
HONEST = """
import mmap
held = mmap.mmap(-1, 500 << 20)
for at in range(0, 500 << 20, 4096): held[at] = 1
"""
"""Memory that is in a file, as the guest's own is."""
TABLES = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for _ in range(250):
    at = libc.mmap(None, 1 << 30, 1, 0x4022, -1, 0)
    libc.madvise(at, 1 << 30, 15)
    for page in range(at, at + (1 << 30), 2 << 20): ctypes.string_at(page, 1)
"""
"""Pages of zeros: only the tables that name them take memory, 2 MiB for each GiB."""


def watched(tmp_path: Path, code: str, *, native: bool) -> str:
    own = region.create(tmp_path / "region", DISKS, size=256 * MIB, blocks=100, commands=b"true\n")
    code = f"{code}\nimport time\ntime.sleep(60)"
    daemon = process.Daemon([sys.executable, "-c", code], log=tmp_path / "log")
    try:
        with Limits(daemon, own, tmp_path / "log", native=daemon.pid if native else None) as found:
            began = time.monotonic()
            while not found.sentence and time.monotonic() - began < 6:
                time.sleep(0.1)
            assert (daemon.wait(5.0) is None) == (not found.sentence)
            return found.sentence
    finally:
        daemon.end(1.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRIVATE", 400 * MIB)
    monkeypatch.setattr(limits, "PROCESSES", 50)


def test_its_processes_memory_is_limited(tmp_path: Path) -> None:
    assert "of the host's memory, at most 400MiB" in watched(tmp_path, GREEDY, native=True)


def test_its_page_tables_are_limited(tmp_path: Path) -> None:
    assert "of the host's memory, at most 400MiB" in watched(tmp_path, TABLES, native=True)


def test_the_number_of_its_processes_is_limited(tmp_path: Path) -> None:
    # They are seen while they start.
    assert re.search(r"had [56]\d processes on the host", watched(tmp_path, MANY, native=True))


def test_its_own_memory_does_not_count(tmp_path: Path) -> None:
    assert watched(tmp_path, HONEST, native=True) == ""


def test_the_control_is_not_watched(tmp_path: Path) -> None:
    assert watched(tmp_path, MANY, native=False) == ""


def test_it_is_an_error_of_the_guest(tmp_path: Path) -> None:
    found = Limits.__new__(Limits)
    found.sentence = "the native guest had 64 processes on the host, at most 50"
    with pytest.raises(LimitError, match="it was ended"):
        found.check()
