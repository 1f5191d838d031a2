"""The engine: guests in a second, cells side by side, nothing lost when something is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from drive import region
from lab.compile.guest.steps import WAITER_ID
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.guest.ssh import restored
from lab.host.system import keys

from .conftest import LAB, Home

pytestmark = pytest.mark.guest

SHORT = (
    *("--set", "workloads.write.count=20", "--set", "workloads.read.count=20"),
    *("--set", "workloads.write_stripe.count=10"),
)


CLOCKS = ("real", "virtual")


def boots(said: str) -> bool:
    return "booting a guest once" in said


@pytest.fixture
def pair(lab_home: Home, image: str) -> Iterator[list[GuestRecord]]:
    """Two guests restored from the same state, at once."""
    seen: list[GuestRecord] = []
    for _ in range(3):  # the guest that is saved for all others is not itself a restored one
        known = {r.id for r in guests.every()}
        done = lab_home.run(
            *("up", "scenario", "raid5-parity-last", "--no-run", "-v", "--set", "disks.count=3")
        )
        assert done.returncode == 0, done.stderr
        (record,) = [r for r in guests.every() if r.id not in known]
        if record.warm:
            seen.append(record)
        else:
            lab_home.run("down", record.id)
        if len(seen) == 2:
            break
    assert len({record.warm for record in seen}) == 1
    assert not boots(done.stderr)
    yield seen
    lab_home.run("down")
    assert lab_home.left() == []


def test_restored_guests_are_alike_in_nothing_that_must_differ(pair: list[GuestRecord]) -> None:
    assert len({Path(f"/proc/{r.pid}/ns/net").readlink() for r in pair}) == 2  # its port is there
    said = []
    for record in pair:
        bench = LiveBackend(record, keys.lab_key().private)
        bench.wait_for_ssh(60)
        script = "date +%s.%N; head -c 16 /dev/urandom | od -An -tx1; mdadm -D /dev/md/bench"
        began = time.time()
        output = bench.guest(script, 60)
        clock, random = output.stdout.splitlines()[:2]
        assert began - 3 < float(clock) < time.time() + 3
        (uuid,) = [w.split()[-1] for w in output.stdout.splitlines() if "UUID" in w]
        said.append((random, uuid))
        takes_the_time(bench)
        bench.close()
    (random_1, uuid_1), (random_2, uuid_2) = said
    assert random_1 != random_2
    assert uuid_1 != uuid_2


def takes_the_time(bench: LiveBackend) -> None:
    """From what waits in it, with no program started; and by itself where that has died."""
    for before in ("PATH=/nowhere", f"kill $(cat {WAITER_ID}); sleep 0.2"):
        assert bench.guest("date -s @1000000000", 60).status == 0
        done = bench.guest(f"{before}\n{restored.script()}", 60)
        assert done.status == 0, done.stderr
        now = float(bench.guest("date +%s.%N", 60).stdout)
        assert time.time() - 3 < now < time.time() + 3
    failed = bench.guest(f"PATH=/nowhere\n{restored.script()}", 60)
    assert failed.status != 0  # there is nobody left who could have done it


@pytest.mark.slow
def test_a_state_that_does_not_restore_gives_way_to_a_cold_boot(lab_home: Home, image: str) -> None:
    """Right size, wrong bytes: only restoring tells."""
    state = state_of_a_guest(lab_home)
    size = state.memory.stat().st_size
    with state.memory.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(size // 3))
    done = lab_home.run("up", "scenario", "raid5-parity-last", "--no-run", "-v")
    assert done.returncode == 0, done.stderr
    assert "did not restore and is thrown away; booting cold" in " ".join(done.stderr.split())
    assert not state.directory.exists()
    lab_home.run("down")
    assert lab_home.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_killed_run_goes_on_and_leaves_finished_cells_alone(
    lab_home: Home, image: str, clock: str
) -> None:
    words = ("run", "scenario", "raid5-parity-last", "--jobs", "1", "--clock", clock, *SHORT)
    known = runs(lab_home)
    process = subprocess.Popen(
        [*LAB, *words],
        env=lab_home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        (run,) = wait(lambda: runs(lab_home) - known, 60)
        wait(lambda: finished(run), 200)
    finally:
        process.kill()
        process.wait()
    wait(lambda: not lab_home.left(), 30)
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in finished(run)}
    assert 1 <= len(before) < 3
    other = lab_home.run(*words[:-2], "--resume", run.name)
    assert other.returncode == 2
    assert "has other cells" in other.stderr
    document = lab_home.json(*words, "--resume", run.name)
    assert document["run"]["id"] == run.name
    assert [c["outcome"] for c in document["cells"]] == ["done"] * 3
    after = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in finished(run)}
    assert len(after) == 3
    assert {p: after[p] for p in before} == before
    assert lab_home.left() == []


@pytest.mark.slow
def test_one_guest_at_a_time_is_enough_for_all_cells_and_to_stay_up(
    lab_home: Home, image: str
) -> None:
    """The base cell, and the guest that is to stay with its array, are not the last."""
    done = lab_home.run("up", "scenario", "raid5-parity-last", "--jobs", "1", *SHORT, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    assert "3 of 3 cells done" in done.stdout
    state = lab_home.run("ssh", "--", "cat", "/proc/mdstat").stdout
    assert "[5/5] [UUUUU]" in state
    assert lab_home.run("results", "show", "raid5-parity-last").stderr == ""
    lab_home.run("down")
    assert lab_home.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("victim", ["worker", "QEMU"])
def test_a_cell_whose_guest_is_killed_is_tried_once_more(
    lab_home: Home, image: str, victim: str, clock: str
) -> None:
    words = ("run", "scenario", "raid5-parity-last", "--json", "--jobs", "1", "--clock", clock)
    known = runs(lab_home)
    process = subprocess.Popen(
        [*LAB, *words, "--fresh", *SHORT],
        env=lab_home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    busy = guest_with_an_array if clock == "real" else sealed_guest_at_work
    try:
        (run,) = wait(lambda: runs(lab_home) - known, 60)
        record = wait(lambda: busy(run), 200)
        assert record is not None
        os.kill(record.owner_pid if victim == "worker" else record.pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert [c["outcome"] for c in json.loads(stdout)["cells"]] == ["done"] * 3
    lost = [json.loads(p.read_text()) for p in run.glob("cells/.*/outcome.json")]
    assert "lost" in [o["outcome"] for o in lost]
    assert lab_home.left() == []


KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_kills_leave_nothing(lab_home: Home, image: str) -> None:
    """Lab, worker and QEMU in turn, each a drawn time after a sealed guest's first commands."""
    words = ("run", "scenario", "raid5-parity-last", "--jobs", "1", "--clock", "virtual", *SHORT)
    chance = random.Random(20261125)
    for number in range(KILLS):
        victim = ("lab", "worker", "QEMU")[number % 3]
        known = runs(lab_home)
        process = subprocess.Popen(
            [*LAB, *words, "--fresh"],
            env=lab_home.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            (run,) = wait(lambda known=known: runs(lab_home) - known, 120)
            record = wait(lambda run=run: sealed_guest_at_work(run), 300)
            time.sleep(chance.uniform(0, 2))
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(
                    {"lab": process.pid, "worker": record.owner_pid, "QEMU": record.pid}[victim],
                    signal.SIGKILL,
                )
            process.wait(timeout=600)
        finally:
            process.kill()
        wait(lambda: not lab_home.left(), 60)
        if victim == "lab":
            before = {p: p.stat().st_mtime_ns for p in finished(run)}
            assert lab_home.run(*words, "--resume", run.name, timeout=600).returncode == 0
            assert {p: p.stat().st_mtime_ns for p in before} == before
        else:
            assert process.returncode == 0
        assert len(finished(run)) == 3
        assert lab_home.left() == []
        assert lab_home.litter() == []
        print(f"{number + 1}: {victim}", flush=True)


T = TypeVar("T")


def state_of_a_guest(home: Home) -> snapshots.Snapshot:
    """The saved guest that one of the scenario's is restored from; made if it is not there."""
    for _ in range(2):  # the guest that is saved for all others is not itself a restored one
        known = {r.id for r in guests.every()}
        done = home.run("up", "scenario", "raid5-parity-last", "--no-run")
        assert done.returncode == 0, done.stderr
        (record,) = [r for r in guests.every() if r.id not in known]
        home.run("down", record.id)
        if record.warm:
            break
    state = snapshots.find(record.warm)
    assert state is not None
    return state


def guest_with_an_array(run: Path) -> GuestRecord | None:
    """The guest of a run with ``--jobs 1`` that has built a cell's array, and is still at it."""
    for raw in run.glob("cells/.*/raw/mdadm-create.txt"):
        if not (raw.parents[1] / "outcome.json").exists():
            owned = [r for r in guests.every() if guests.is_alive(r) and guests.is_owned(r)]
            return owned[0] if len(owned) == 1 else None
    return None


def sealed_guest_at_work(run: Path) -> GuestRecord | None:
    """The sealed guest of a run with ``--jobs 1`` after its first commands."""
    for record in guests.every():
        path = record.path / "region"
        if path.exists() and guests.is_alive(record) and output_used(path) > 1000:
            return record
    return None


def output_used(path: Path) -> int:
    """Return the bytes of a guest's output so far, by its own header."""
    with path.open("rb") as file:
        header = region.HEADER.unpack(file.read(region.HEADER.size))
        file.seek(header[5])
        return int(region.STATE.unpack(file.read(region.STATE.size))[7])


def runs(home: Home) -> set[Path]:
    found = home.path.glob("data/runs/raid5-parity-last-*")
    return {p for p in found if (p / "run.json").exists()}


def finished(run: Path) -> list[Path]:
    return [p for p in run.glob("cells/*/outcome.json") if not p.parent.name.startswith(".")]


def wait(what: Callable[[], T], timeout: float) -> T:
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)
    return found
