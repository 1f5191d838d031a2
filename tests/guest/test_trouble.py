"""What goes wrong ends with a sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.core.errors import GuestError
from lab.host import images
from lab.host.guest import registry as guests
from lab.host.guest.backend import LiveBackend
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.host.system import keys

from .conftest import Home

pytestmark = pytest.mark.guest
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")

TWO_CELLS = """\
title: Two short cells
question: What becomes of them?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 4MiB}}
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 128MiB
  bitmap: none
  consistency_policy: resync
  initial_sync: assume_clean
workloads:
  - {name: write, tool: dd, if: /dev/zero, of: '{target}', bs: 1MiB, count: 48, oflag: direct}
matrix:
  disks.count: [3, 4]    # three are slower and come first; the fourth one's file is new
"""

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
    [("image checked", signal.SIGINT), ("booting", signal.SIGTERM)],
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
    assert "lab: stopped; all guests of this command are removed" in said.splitlines()
    assert "Traceback" not in said
    assert lab_home.left() == []


@pytest.mark.slow
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
    bench = LiveBackend(record, keys.lab_key().private)
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
    attempts = list(run.glob("cells/.*.1/outcome.json"))  # the one that was stopped may have one
    (evidence,) = [p for p in attempts if '"lost"' in p.read_text()]
    outcome = json.loads(evidence.read_text())
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
    bench = LiveBackend(record, keys.lab_key().private, silence=4.0)
    bench.wait_for_ssh(60)
    os.kill(record.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(GuestError, match="hangs: no answer on SSH for 4 seconds") as caught:
        bench.guest("echo never", 300)
    assert time.monotonic() - began < 30
    assert "its console" in caught.value.hint
    bench.close()

    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while guests.is_alive(record):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other = LiveBackend(record, keys.lab_key().private)
    with pytest.raises(GuestError, match="ended unexpectedly: its QEMU is gone"):
        other.wait_for_ssh(30)
    assert lab_home.json("ps")["guests"][0]["state"] == "off"
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
    # The run is stopped first: neither can clean up after the other.
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(record.owner_pid, signal.SIGKILL)
    wait_for(lambda: not guests.is_owned(record), 30, process)  # it may be writing to a disk
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


# -- space runs out, SSH dies, an image is cut short


@contextmanager
def small(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size in a directory that is empty."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=755,size={size}", "tmpfs", place], check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, leave: int) -> Path:
    """Take all space but that many bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(place)
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - leave))
    return filler


def finished(run: Path) -> dict[Path, tuple[int, int]]:
    found = run.glob("cells/[!.]*/outcome.json")
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def second_is_writing(runs: Path) -> bool:
    """One cell is finished, and the workload of the other has begun."""
    done = list(runs.glob("twocells-*/cells/[!.]*/outcome.json"))
    events = runs.glob("twocells-*/cells/.*/events.jsonl")
    return bool(done) and any('"label":"write"' in e.read_text() for e in events)


def told_once(said: str) -> str:
    """The sentence that a run ended with, which is the only one, and no traceback."""
    assert "Traceback" not in said
    assert "mistake in the lab" not in said
    ends = [line for line in said.splitlines() if line.startswith("lab: ")]
    (line,) = [line for line in ends if " kept in " not in line and " to keep in " not in line]
    return line


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("where", ["guests", "run"])
def test_a_disk_that_fills_up_in_the_middle_ends_the_run_in_a_sentence(
    lab_home: Home, image: str, lab_process: Starter, tmp_path: Path, where: str
) -> None:
    scenario = tmp_path / "twocells.yaml"
    scenario.write_text(TWO_CELLS)
    words = ("run", "scenario", str(scenario), "--jobs", "1")
    place = lab_home.guests if where == "guests" else tmp_path / "out"
    with small(place, "400m"):
        out = tmp_path / ("out" if where == "run" else "elsewhere")
        process = lab_process(*words, "--out", str(out))
        wait_for(lambda: second_is_writing(out), 200, process)
        filler = fill(place, 4 * 1024**2 if where == "guests" else 0)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 3, said
        sentence = told_once(said)
        assert sentence.startswith("lab: the disk is full: "), said
        if where == "guests":
            assert "QEMU stopped the guest: the file of" in sentence
        else:
            assert f"'{out}/" in sentence
            assert sentence.endswith(("cannot be written", "cannot be made"))
        assert "--resume" in said
        filler.unlink()
        assert lab_home.left() == []
        (run,) = out.glob("twocells-*")
        assert list(run.rglob("*.part")) == []
        before = finished(run)
        assert len(before) == 1
        shown = lab_home.json("results", "show", str(run))
        assert sorted(c["outcome"] for c in shown["cells"]) == ["done", "skipped"]
        # With room again it goes on, and what was finished is left alone.
        resumed = lab_home.json(*words, "--resume", str(run))
        assert [c["outcome"] for c in resumed["cells"]] == ["done", "done"]
        assert {p: s for p, s in finished(run).items() if p in before} == before
    assert lab_home.left() == []


@pytest.mark.slow
def test_ssh_killed_in_the_guest_costs_its_cell_one_retry(
    lab_home: Home, image: str, lab_process: Starter, tmp_path: Path
) -> None:
    scenario = tmp_path / "twocells.yaml"
    scenario.write_text(TWO_CELLS)
    words = ("run", "scenario", str(scenario), "--jobs", "1", "--out", str(tmp_path), "--json")
    process = lab_process(*words)
    wait_for(lambda: second_is_writing(tmp_path), 200, process)
    (directory,) = lab_home.guests.glob("g*")
    record = guests.read(directory)
    assert record is not None
    bench = LiveBackend(record, keys.lab_key().private)
    bench.wait_for_ssh(60)
    with pytest.raises(GuestError):
        bench.guest("pkill -KILL sshd; sleep 5", 60)
    bench.close()
    stdout, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert [c["outcome"] for c in json.loads(stdout)["cells"]] == ["done", "done"]
    (evidence,) = [
        outcome
        for p in tmp_path.glob("twocells-*/cells/.*/outcome.json")
        if (outcome := json.loads(p.read_text()))["outcome"] == "lost"
    ]
    assert evidence["reason"].startswith("the SSH connection to the guest was lost")
    assert lab_home.left() == []


@pytest.mark.parametrize("cut", ["disk", "kernel", "initrd"])
def test_an_image_that_is_cut_short_is_named_before_anything_starts(
    lab_home: Home, image: str, tmp_path: Path, cut: str
) -> None:
    whole = images.find(image)
    assert whole is not None
    victim = getattr(whole, cut)
    home = Home(tmp_path / "h")
    copy = home.path / "data" / "images" / whole.directory.name
    copy.mkdir(parents=True)
    for file in whole.directory.iterdir():
        (copy / file.name).symlink_to(file)
    short = copy / victim.name
    short.unlink()
    with victim.open("rb") as original:
        short.write_bytes(original.read(4096))
    done = home.run("run", "scenario", "raid5-parity-last")
    assert done.returncode == 3, done.stderr
    size = victim.stat().st_size
    assert told_once(done.stderr) == (
        f"lab: the image '{image}' is corrupt: '{short}' has 4096 bytes, expected {size}"
    )
    assert f"lab image build {image}" in done.stderr
    assert home.left() == []
