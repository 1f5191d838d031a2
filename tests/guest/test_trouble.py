"""What goes wrong ends with a sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.errors import GuestError
from lab.host import guests, keys
from lab.host.bench import LiveBench
from lab.host.hypervisor import Hypervisor

from .conftest import Home

pytestmark = pytest.mark.guest

Starter = Callable[..., subprocess.Popen[str]]


def wait_for(what: Callable[[], object], timeout: float, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def qemu_is_up(home: Home) -> bool:
    return any(guests.qemu_pids(d) for d in home.guests.glob("g*"))


def writing(home: Home, since: float) -> bool:
    """Whether a workload has begun after a moment; runs of other tests lie there too."""
    events = home.path.glob("data/runs/*/cells/.*/events.jsonl")
    fresh = [e for e in events if e.stat().st_mtime >= since]
    return any('"label":"write"' in e.read_text() for e in fresh)


@pytest.mark.parametrize(
    ("moment", "kind"),
    [("image checked", signal.SIGINT), ("booting", signal.SIGINT), ("booting", signal.SIGTERM)],
)
def test_ctrl_c_leaves_nothing_running(
    lab_home: Home, image: str, lab_process: Starter, moment: str, kind: signal.Signals
) -> None:
    process = lab_process("run", "scenario", "raid5-parity-last")
    if moment == "booting":
        wait_for(lambda: qemu_is_up(lab_home), 60, process)
        time.sleep(2)
    else:
        wait_for(lambda: list(lab_home.guests.glob("*")), 60, process)
    os.kill(process.pid, kind)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "lab: stopped; what was started is taken down"
    assert "Traceback" not in said
    assert lab_home.left() == []


def test_a_guest_that_panics_and_ctrl_c_in_a_workload(
    lab_home: Home, image: str, lab_process: Starter
) -> None:
    """Two fates of one run: a guest dies, and then the run is stopped; what is known is kept."""
    since = time.time()
    process = lab_process("run", "scenario", "raid5-parity-last", "--jobs", "1")
    wait_for(lambda: writing(lab_home, since), 200, process)
    time.sleep(1)
    (directory,) = lab_home.guests.glob("g*")
    record = guests.read(directory)
    assert record is not None
    bench = LiveBench(record, keys.lab_key().private)
    bench.wait_for_ssh(60)
    with pytest.raises(GuestError, match=r"panicked|is gone|was lost") as caught:
        bench.guest("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger", 60)
    assert "Kernel panic" in caught.value.hint
    bench.close()
    # The run goes on in a fresh guest with the next cell; there it is stopped.
    wait_for(lambda: any(d != directory for d in lab_home.guests.glob("g*")), 120, process)
    wait_for(lambda: qemu_is_up(lab_home), 60, process)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert lab_home.left() == []
    run = max(lab_home.path.glob("data/runs/raid5-parity-last-*"))
    (evidence,) = run.glob("cells/.*.1/outcome.json")
    outcome = json.loads(evidence.read_text())
    assert outcome["outcome"] == "lost"
    assert "panicked" in outcome["reason"]
    assert "Kernel panic" in outcome["reason"]
    assert "Kernel panic" in (evidence.parent / "raw" / "console.txt").read_text()
    found = lab_home.json("results", "show", str(run))
    assert {c["outcome"] for c in found["cells"]} == {"skipped"}
    assert {c["verdict"] for c in found["claims"]} == {"inconclusive"}


def test_hung_dead_and_forgotten_guests(lab_home: Home, fresh_guest: Callable[..., str]) -> None:
    """One guest: its processors stop, then QEMU is killed, then only its directory is left."""
    name = fresh_guest()
    record = guests.find(name)
    bench = LiveBench(record, keys.lab_key().private, silence=4.0)
    bench.wait_for_ssh(60)
    os.kill(record.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(GuestError, match="hangs: nothing on SSH for 4 seconds") as caught:
        bench.guest("echo never", 300)
    assert time.monotonic() - began < 30
    assert "login:" in caught.value.hint
    bench.close()

    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while guests.is_alive(record):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other = LiveBench(record, keys.lab_key().private)
    with pytest.raises(GuestError, match="ended by itself: its QEMU is gone"):
        other.wait_for_ssh(30)
    assert lab_home.json("ps")["guests"][0]["state"] == "gone"
    would = lab_home.json("gc", "--dry-run")
    assert would == {"removed": [name], "dry_run": True}
    assert Path(record.directory).is_dir()
    assert lab_home.json("gc")["removed"] == [name]
    assert lab_home.left() == []


def test_a_lab_that_is_killed_takes_its_guest_with_it(
    lab_home: Home, image: str, lab_process: Starter
) -> None:
    """SIGKILL leaves no time to clean up: the worker sees its lifeline break, and does."""
    process = lab_process("run", "scenario", "raid5-parity-last")
    wait_for(lambda: qemu_is_up(lab_home), 60, process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while lab_home.left():
        assert time.monotonic() < deadline, lab_home.left()
        time.sleep(0.1)


def test_a_killed_worker_s_guest_is_garbage(
    lab_home: Home, image: str, lab_process: Starter
) -> None:
    process = lab_process("run", "scenario", "raid5-parity-last", "--jobs", "1")
    wait_for(lambda: qemu_is_up(lab_home), 60, process)
    (directory,) = lab_home.guests.glob("g*")
    record = guests.read(directory)
    assert record is not None
    # Both at once: neither can clean up after the other.
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(record.owner_pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert qemu_is_up(lab_home)
    assert lab_home.json("gc")["removed"] == [record.id]
    assert lab_home.left() == []


def test_a_path_that_is_too_long_for_sockets_is_said_before_anything_starts(
    tmp_path: Path,
) -> None:
    root = tmp_path / ("x" * 80)
    root.mkdir()
    with pytest.raises(Exception, match=r"too long for QEMU's sockets.*") as caught:
        Hypervisor(root).open()
    assert "LAB_HOME" in str(caught.value)
