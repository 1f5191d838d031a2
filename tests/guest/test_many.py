"""Many guests at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.host.guest import registry as guests
from lab.host.guest.ssh.shell import banner

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow]

MB = 10**6
GIB = 1024**3
BESIDE_QEMU = 120 * MB
"""What the lab itself may take for each guest: its worker, and its share of the orchestrator."""
HOST = 24 * GIB

GUESTS = 16
SIXTEEN = """\
title: Sixteen guests
question: Do they live at once?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 512KiB}}
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 512MiB
  bitmap: none
  consistency_policy: resync
  initial_sync: assume_clean
workloads:
  - {name: write, tool: dd, if: /dev/zero, of: '{target}', bs: 1MiB, count: 600, oflag: direct}
matrix:
  array.layout: [left-symmetric, left-asymmetric, right-symmetric, right-asymmetric]
  array.chunk: [32KiB, 64KiB, 128KiB, 256KiB]
"""

Starter = Callable[..., subprocess.Popen[str]]


def rss(pid: int) -> int:
    """Resident bytes, as ``proc(5)`` has them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(w.split()[1]) * 1024 for w in text.splitlines() if w.startswith("Rss:"))


def test_sixteen_guests_live_at_once(
    lab_home: Home, image: str, tmp_path: Path, lab_process: Starter
) -> None:
    scenario = tmp_path / "sixteen.yaml"
    scenario.write_text(SIXTEEN)
    lab_home.run("up", "scenario", str(scenario), "--no-run")  # makes the warm state
    lab_home.run("down")
    began = time.monotonic()
    process = lab_process("run", "scenario", str(scenario), "--jobs", str(GUESTS))

    def measuring() -> list[Path]:
        found = lab_home.path.glob("data/runs/sixteen-*/cells/.*/events.jsonl")
        return [e for e in found if '"label":"write"' in e.read_text()]

    deadline = time.monotonic() + 500
    while len(measuring()) < GUESTS:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, [str(e) for e in measuring()]
        time.sleep(1)
    records = [r for r in guests.every() if guests.is_alive(r)]
    assert len(records) == GUESTS
    assert all(banner(r.port, 20, pid=r.pid) for r in records)
    spaces = {Path(f"/proc/{r.pid}/ns/net").readlink() for r in records}
    assert len({*spaces, Path("/proc/self/ns/net").readlink()}) == GUESTS + 1
    qemu = sum(rss(r.pid) for r in records)
    lab = rss(process.pid)
    workers = [rss(r.owner_pid) for r in records]
    print(
        f"{GUESTS} guests measure after {time.monotonic() - began:.0f} s; QEMU {qemu / MB:.0f} MB,"
        f" the lab {lab / MB:.0f} MB, its workers {sum(workers) / MB:.0f} MB, that is"
        f" {(lab + sum(workers)) / GUESTS / MB:.1f} MB for each guest"
    )
    assert qemu + lab + sum(workers) < HOST
    assert (lab + sum(workers)) / GUESTS <= BESIDE_QEMU
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert lab_home.left() == []
