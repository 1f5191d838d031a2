"""Where the memory region of a sealed guest is, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drive import region
from lab.core.errors import HostError
from lab.host.guest.virtual import region_file
from lab.host.guest.virtual.region_file import RegionFile

MOST = 64 << 20
DISK = region.Disk(serial="d", size=1 << 30)
KILLED = f"""\
import sys
from pathlib import Path
from lab.host.guest.virtual.region_file import region_file
with region_file(Path(sys.argv[1]), {MOST}) as file:
    file.path.write_bytes(b"x")
    print(file.descriptors[0], flush=True)
    sys.stdin.read()
"""


def memory(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr(region_file.load, "available_memory", lambda: available)


def filled(file: RegionFile) -> str:
    """Make a region in the file, and return its digest."""
    for _ in range(2):  # as when a snapshot does not restore, and the guest boots instead
        made = region.create(file.path, [DISK], size=region.SMALLEST, commands=b"true", blocks=64)
    file.reserve(made)
    return region.digest(file.path)


def test_a_region_is_in_memory_if_half_of_the_available_memory_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 2 * MOST)
    with region_file.region_file(tmp_path, MOST) as file:
        assert file.in_memory
        in_memory = filled(file)
        assert file.path.stat().st_blocks * 512 < MOST // 16  # memory is not reserved
        assert list(tmp_path.iterdir()) == []
    assert not file.path.exists()
    memory(monkeypatch, 2 * MOST - 1)
    with region_file.region_file(tmp_path, MOST) as file:
        assert not file.in_memory
        assert filled(file) == in_memory
        assert file.path.stat().st_blocks * 512 >= 64 * region.BLOCK  # space is
        assert list(tmp_path.iterdir()) == [file.path]
    assert list(tmp_path.iterdir()) == []


def test_neither_memory_nor_space_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 1 << 30)
    with (
        pytest.raises(HostError, match=r"a cell's disks need up to 1024TiB in .* are free"),
        region_file.region_file(tmp_path, 1 << 50),
    ):
        pytest.fail("it began")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_memory_when_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = Path(f"/proc/{process.pid}/fd/{process.stdout.readline().strip()}")
        assert path.read_bytes() == b"x"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []
