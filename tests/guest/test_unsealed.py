"""Guests with virtual time that keep SSH: the clock does not race; nobody is in it: suspended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.host.guest import registry as guests
from lab.host.guest.registry import GuestRecord
from lab.host.system import load, pids

from .conftest import LAB, Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

STOPPED = 10.0
SUSPENDED_USE: float = 0.02
"""Share of a processor that a suspended guest may use."""
CLOCK_RATE: float = 20.0
"""Seconds of the guest's clock in one of the host's: an idle guest that races has hundreds."""
DD: float = 100e-6
"""Share by which an unsealed dd may differ from the sealed one with as many requests to the disks.
Measured: 1 to 84 ppm; 0.5 % where md divided one stripe more (139 writes per disk, not 138)."""


@pytest.fixture(scope="module")
def record(lab_home: Home, image: str) -> Iterator[GuestRecord]:
    before = {r.id for r in guests.every()}
    words = ("up", "scenario", "raid5-parity-last", "--no-run", "--clock", "virtual")
    done = lab_home.run(*words, timeout=1800)
    assert done.returncode == 0, done.stderr
    (found,) = [r for r in guests.every() if r.id not in before]
    yield found
    ended = lab_home.run("down", found.id)
    assert found.id in ended.stdout
    lab_home.wait_until_nothing_is_left(10)
    assert lab_home.left() == []


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def state(home: Home) -> str:
    (row,) = home.json("ps")["guests"]
    return str(row["state"])


def use(record: GuestRecord, seconds: float) -> float:
    """Share of a processor that QEMU uses."""
    before = load.processor(record.pid)
    time.sleep(seconds)
    return (load.processor(record.pid) - before) / seconds


def session(home: Home, *command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [*LAB, "ssh", "--", *command]
    return subprocess.Popen(words, env=home.environment, stdin=pipe, stdout=pipe, text=True)


def client_of(process: subprocess.Popen[str]) -> int:
    """The ssh that a `lab ssh` has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def look() -> int:
        for pid in map(int, children.read_text().split()):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "ssh":
                return pid
        return 0

    return int(wait_for(look))


def test_it_is_suspended_while_nobody_is_in_it(lab_home: Home, record: GuestRecord) -> None:
    assert state(lab_home) == "suspended"
    found = use(record, 10.0)
    print(f"suspended: {found:.2%} of a processor")
    assert found < SUSPENDED_USE
    inside = lab_home.run("ssh", record.id, "--", "whoami; cat /proc/mdstat")
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout.splitlines()[0] == "lab"
    assert "raid5 lab5[4] lab4[3] lab3[2] lab2[1] lab1[0]" in inside.stdout
    assert lab_home.run("ssh", "--", "exit 7").returncode == 7
    wait_for(lambda: state(lab_home) == "suspended")


def test_a_login_whose_client_is_stopped_goes_on(lab_home: Home, record: GuestRecord) -> None:
    with session(lab_home, "echo in; cat /proc/uptime") as process:
        client = client_of(process)
        time.sleep(0.2)
        os.kill(client, signal.SIGSTOP)
        time.sleep(STOPPED)
        assert process.poll() is None
        os.kill(client, signal.SIGCONT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.splitlines()[0] == "in"


def test_the_clock_does_not_race_while_the_guest_waits(lab_home: Home, record: GuestRecord) -> None:
    with session(lab_home, "cat /proc/uptime; read line; cat /proc/uptime") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = float(process.stdout.readline().split()[0])
        assert state(lab_home) == "up"
        time.sleep(STOPPED)
        process.stdin.write("\n")
        process.stdin.flush()
        second = float(process.stdout.readline().split()[0])
    rate = (second - first) / STOPPED
    print(f"{rate:.2f} s of the guest's clock in a second")
    assert 0.01 < rate < CLOCK_RATE


def test_a_killed_session_leaves_it_suspended(lab_home: Home, record: GuestRecord) -> None:
    with session(lab_home, "echo in; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        client = client_of(process)
        assert state(lab_home) == "up"
        process.kill()
    wait_for(lambda: not pids.started_ticks(client))
    wait_for(lambda: state(lab_home) == "suspended")
    assert use(record, 5.0) < SUSPENDED_USE


def test_a_reboot_ends_it_and_is_a_sentence(lab_home: Home, record: GuestRecord) -> None:
    """The last test of this guest: its disks are in a region that a kernel can use once."""
    lab_home.run("ssh", record.id, "--", "sudo reboot", timeout=300)
    wait_for(lambda: state(lab_home) == "off", 120.0)
    again = lab_home.run("ssh", record.id, "--", "true")
    assert again.returncode == 2
    assert "A guest in virtual time cannot boot a second time" in again.stderr
    assert f"lab down {record.id}" in again.stderr


@dataclass(frozen=True)
class Copied:
    """What one dd did."""

    throughput: float
    requests: tuple[int, ...]
    """Reads and writes of each disk's data; a write of md's superblock is not counted."""


def copies(home: Home, *words: str) -> dict[tuple[str, str], Copied]:
    result = home.json("run", "scenario", "raid5-parity-last", *words, timeout=3000)
    clocks = {cell["clock"] for cell in result["cells"]}
    assert clocks == {"virtual" if "--unsealed" in words else "sealed"}
    found = {}
    for cell in result["cells"]:
        assert cell["outcome"] == "done", cell["reason"]
        for measured in cell["measurements"]:
            if measured["metric"] == "throughput":
                name = measured["workload"]
                counters = [c for c in cell["counters"] if c["workload"] == name]
                requests = tuple(c["reads"] + c["writes"] - c["flushes"] for c in counters)
                found[cell["id"], name] = Copied(measured["median"], requests)
    return found


def test_each_dd_is_as_fast_as_in_a_sealed_guest(lab_home: Home, image: str) -> None:
    sealed = copies(lab_home, "--clock", "virtual")
    unsealed = copies(lab_home, "--clock", "virtual", "--unsealed")
    assert sealed.keys() == unsealed.keys()
    apart = {key: unsealed[key].throughput / sealed[key].throughput - 1 for key in sealed}
    alike = {key for key in sealed if sealed[key].requests == unsealed[key].requests}
    for key, by in apart.items():
        requests = "the same" if key in alike else "other"
        print(f"{key}: unsealed {1e6 * by:+.2f} ppm, {requests} requests")
    assert len(alike) >= 7
    assert {key: by for key, by in apart.items() if key in alike and abs(by) > DD} == {}
