"""One guest with a modelled hard disk: what it sees of it, what it costs, and faults on command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host.guest import registry as guests
from lab.host.guest import servers
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.system import keys
from lab.md.theory.drive import random_read_rate
from lab.model.execution.procedure import AskServer
from lab.plugins.disks import hdd
from lab.plugins.disks._drives import control_path

from .conftest import LAB, Home

pytestmark = [
    pytest.mark.guest,
    pytest.mark.skipif(bool(servers.missing_programs()), reason=f"needs {servers.PACKAGES}"),
]

SCENARIO = """\
title: One modelled hard disk
question: What does a guest see of it?
disks:
  size: 4GiB
  model: hdd
  bus: BUS
array: none
workloads:
  - name: read
    tool: dd
    if: '{target}'
    bs: 1MiB
    count: COUNT
    iflag: direct
"""
DRIVE = hdd.PRESETS["hdd_7200"]
DISK = {"virtio": "virtio-disk1", "scsi": "scsi-0QEMU_QEMU_HARDDISK_disk1"}


def scenario(directory: Path, *, bus: str = "virtio", count: int = 100) -> str:
    path = directory / f"hdd-{bus}.yaml"
    path.write_text(SCENARIO.replace("BUS", bus).replace("COUNT", str(count)))
    return str(path)


def server_pids(directory: Path) -> list[int]:
    """Processes of nbdkit that name the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(b"nbdkit\0") and os.fsencode(directory) in line:
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def record(
    lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuestRecord]:
    before = {r.id for r in guests.every()}
    done = lab_home.run("up", "scenario", scenario(tmp_path_factory.mktemp("s")))
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = [r for r in guests.every() if r.id not in before and guests.is_alive(r)]
    assert len(server_pids(found.path)) == 1, "the server must outlive the worker"
    yield found
    lab_home.run("down", found.id)
    assert server_pids(found.path) == []
    assert lab_home.left() == []


@pytest.fixture(scope="module")
def bench(record: GuestRecord) -> Iterator[LiveBackend]:
    live = LiveBackend(record, keys.lab_key().private)
    live.wait_for_ssh(60)
    yield live
    live.close()


def ask(record: GuestRecord, line: str, number: int = 1) -> str:
    path = str(record.path / "disks" / f"disk{number}.raw")
    answer = servers.ask(AskServer(label=line, socket=control_path(path), line=line))
    assert answer.startswith("ok"), answer
    return answer[3:]


@pytest.mark.slow
def test_the_workload_ran_and_the_servers_counters_were_kept(
    lab_home: Home, record: GuestRecord
) -> None:
    # Hidden directories hold attempts.
    (run,) = (lab_home.path / "data" / "runs").glob("*/cells/[!.]*/raw/disk1.server.txt")
    kept = json.loads(run.read_text().removeprefix("ok "))
    assert kept["read_bytes"] >= 100 << 20
    assert kept["late_median"] <= 0.005
    assert kept["in_flight"] == 0


@pytest.mark.slow
def test_the_guest_sees_a_disk_that_turns_and_writes_back(bench: LiveBackend) -> None:
    done = bench.guest(
        "q=/sys/block/$(basename $(readlink -f /dev/disk/by-id/virtio-disk1))/queue\n"
        'cat "$q/rotational" "$q/write_cache"',
        60,
    )
    assert done.stdout.splitlines() == ["1", "write back"]


@pytest.mark.slow
def test_a_flush_reaches_the_server_and_costs_what_a_drive_takes(
    bench: LiveBackend, record: GuestRecord
) -> None:
    ask(record, "reset")
    fio = (
        "fio --name=f --filename=/dev/disk/by-id/virtio-disk1 --rw=randwrite --bs=4k --direct=1 "
        "--ioengine=psync --fsync=1 --number_ios=120 --size=4G --output-format=json"
    )
    done = bench.guest(fio, 120)
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)["jobs"][0]
    each = found["job_runtime"] / 1000 / found["write"]["total_ios"]
    counted = json.loads(ask(record, "stats"))
    mean = DRIVE.access + DRIVE.write_settle  # of the write; the flush ends with it
    print(f"{each * 1000:.2f} ms, expected {mean * 1000:.2f}", counted)
    assert counted["flushes"] >= 115
    assert counted["dirty_bytes"] == 0
    assert 0.9 * mean < each < 1.6 * mean


@pytest.mark.slow
def test_random_reads_cost_seek_and_rotation(bench: LiveBackend, record: GuestRecord) -> None:
    ask(record, "reset")
    fio = (
        "fio --name=f --filename=/dev/disk/by-id/virtio-disk1 --rw=randread --bs=4k --direct=1 "
        "--ioengine=libaio --iodepth=DEPTH --number_ios=300 --size=4G --output-format=json"
    )
    rates = {}
    for depth in (1, 16):
        done = bench.guest(fio.replace("DEPTH", str(depth)), 120)
        assert done.status == 0, done.stderr
        rates[depth] = json.loads(done.stdout)["jobs"][0]["read"]["iops"]
    wanted = {depth: random_read_rate(DRIVE, depth) for depth in rates}
    counted = json.loads(ask(record, "stats"))
    print(rates, wanted, counted)
    assert all(0.75 * wanted[depth] < rates[depth] < 1.1 * wanted[depth] for depth in rates)
    assert counted["queue_peak"] >= 12
    assert counted["late_median"] <= 0.005


@pytest.mark.slow
def test_faults_on_command_are_the_guests(bench: LiveBackend, record: GuestRecord) -> None:
    disk = "/dev/disk/by-id/virtio-disk1"
    read = f"dd if={disk} of=/dev/null bs=4096 count=1 skip=1000 iflag=direct"
    fault = ask(record, f"error read {1000 * 4096} 4096")
    done = bench.guest(read, 60)
    assert done.status != 0
    assert "Input/output error" in done.stderr
    ask(record, f"clear {fault}")
    assert bench.guest(read, 60).status == 0

    ask(record, "stall 2")
    began = time.monotonic()
    assert bench.guest(read, 60).status == 0
    assert time.monotonic() - began > 1.5

    write = f"printf lab | dd of={disk} bs=4096 seek=2000 conv=sync oflag=direct 2>/dev/null"
    back = f"dd if={disk} bs=4096 skip=2000 count=1 iflag=direct 2>/dev/null | head -c 3"
    assert bench.guest(f"{write}\nsync {disk}", 60).status == 0
    ask(record, "lose")
    assert bench.guest(back, 60).stdout == "lab"
    ask(record, f"rot {2000 * 4096} 1 1")
    assert bench.guest(back, 60).stdout == "mab"


@pytest.mark.slow
def test_a_scsi_disk_is_what_its_rotation_rate_says(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    """Through a run of its own, since the guest is restored: the disk is plugged into it."""
    disks = ", ".join(f"{{size: 1GiB, model: {model}, bus: scsi}}" for model in ("hdd", "ssd"))
    path = tmp_path / "scsi.yaml"
    path.write_text(
        f"title: Two SCSI disks\nquestion: Do they turn?\ndisks: [{disks}]\narray: none\n"
    )
    done = lab_home.run("run", "scenario", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_worker_leaves_no_server(lab_home: Home, image: str, tmp_path: Path) -> None:
    before = {r.id for r in guests.every()}
    process = subprocess.Popen(
        [*LAB, "run", "scenario", scenario(tmp_path, count=4000), "--trials", "20", "--jobs", "1"],
        env=lab_home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        fresh: list[GuestRecord] = []
        while not fresh and time.monotonic() < deadline:
            time.sleep(0.2)
            fresh = [r for r in guests.every() if r.id not in before and server_pids(r.path)]
        (victim,) = fresh
        os.kill(process.pid, signal.SIGSTOP)  # it would try the cell again
        os.kill(victim.owner_pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert server_pids(victim.path), "the server goes on without its worker"
    assert victim.id in lab_home.json("gc")["removed"]
    assert server_pids(victim.path) == []
    assert not victim.path.exists()


# --- eight at once -------------------------------------------------------------------------------

EIGHT = (
    SCENARIO.replace("  bus: BUS\n", "  bus: virtio\n  count: 8\n")
    .replace("array: none\n", "array:\n  level: 0\n  chunk: 64KiB\n")
    .replace("COUNT", "20")
)
"""A workload has one target, so that eight disks are given as an array."""
LATE = 0.005
"""Seconds that the median completion may be late."""


@pytest.fixture(scope="module")
def eight(
    lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GuestRecord, LiveBackend]]:
    """One guest with eight disks."""
    path = tmp_path_factory.mktemp("e") / "eight.yaml"
    path.write_text(EIGHT)
    before = {r.id for r in guests.every()}
    done = lab_home.run("up", "scenario", str(path), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = [r for r in guests.every() if r.id not in before and guests.is_alive(r)]
    assert len(server_pids(record.path)) == 8
    live = LiveBackend(record, keys.lab_key().private)
    live.wait_for_ssh(60)
    assert live.guest("mdadm --stop /dev/md/bench", 60).status == 0
    yield record, live
    live.close()
    lab_home.run("down", record.id)
    assert server_pids(record.path) == []


def on_disk(number: int) -> str:
    return f"/dev/disk/by-id/virtio-disk{number}"


def counters(record: GuestRecord, number: int) -> dict[str, float]:
    """A server's own, and none of its requests is lost: each that came was completed."""
    found: dict[str, float] = json.loads(ask(record, "stats", number))
    sent = found["reads"] + found["writes"] + found["flushes"]
    assert found["completions"] == sent, found
    assert found["in_flight"] == 0
    return found


@pytest.mark.slow
def test_four_disks_with_64_requests_in_flight_lose_none_and_are_in_time(
    eight: tuple[GuestRecord, LiveBackend],
) -> None:
    """QEMU has at most 16 on the way on one NBD connection: four times 16."""
    record, bench = eight
    for number in range(1, 5):
        ask(record, "reset", number)
    jobs = " ".join(f"--name=d{n} --filename={on_disk(n)}" for n in range(1, 5))
    done = bench.guest(
        "fio --output-format=json --rw=randread --bs=4k --direct=1 --ioengine=libaio "
        f"--iodepth=16 --time_based --runtime=10 --ramp_time=1 {jobs}",
        120,
    )
    assert done.status == 0, done.stderr
    said = json.loads(done.stdout)["jobs"]
    assert [job["error"] for job in said] == [0] * 4
    for number, job in enumerate(said, 1):
        found = counters(record, number)
        print(f"disk{number}: {job['read']['iops']:.1f}/s", found)
        assert found["completions"] >= job["read"]["total_ios"]
        assert found["in_flight_peak"] == 16
        assert found["late_median"] <= LATE
