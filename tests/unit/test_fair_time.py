"""Limits count the time that a guest got: the host's, without its QEMU's waits for a CPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lab.core.errors import GuestError
from lab.host.guest import fair_time
from lab.host.guest.fair_time import CEILING, FairTime
from lab.host.system import clock, deadline, load


class Host:
    """A host's clock, and the waits of a QEMU's threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waits, self.pid = 1000.0, {1: 5.0, 2: 0.0}, 7
        self.told: list[str] = []
        self.ran = 3.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        monkeypatch.setattr(load, "waits", lambda _pid: dict(self.waits))
        monkeypatch.setattr(load, "processor", lambda _pid: self.ran)
        monkeypatch.setattr(load.os, "getloadavg", lambda: (10.2, 0.0, 0.0))
        monkeypatch.setattr(load.accelerator, "cpus", lambda: 2)
        self.fair = FairTime(lambda: self.pid, self.told.append)
        self.began = self.fair.now()

    def goes_on(self, seconds: float, *, waiting: float) -> float:
        """Let time pass in steps of a second; return how far the guest's time is."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.waits[1] += waiting
            self.ran += 1.0 - waiting
            self.fair.now()
        return self.fair.now() - self.began


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.mark.parametrize(
    ("waiting", "got"),
    [
        (0.0, 100.0),  # an idle host, or a guest that hangs: nothing waits for a CPU
        (0.5, 50.0),
        (0.8, 20.0),
        (1.0, 100.0 / CEILING),  # no CPU at all: the limit ends nevertheless
    ],
)
def test_what_a_guest_gets(host: Host, waiting: float, got: float) -> None:
    assert host.goes_on(100, waiting=waiting) == pytest.approx(got, abs=0.01)


def test_a_wait_that_is_counted_at_its_end_counts_whole(host: Host) -> None:
    host.goes_on(10, waiting=0.0)
    host.waits[1] += 8.0  # the kernel adds it when the thread runs again
    assert host.goes_on(20, waiting=0.0) == pytest.approx(22.0, abs=0.01)


def test_the_longest_wait_of_a_thread_counts_and_not_the_sum(host: Host) -> None:
    for _ in range(100):
        host.waits[2] += 0.5
        host.goes_on(1, waiting=0.5)
    assert host.fair.now() - host.began == pytest.approx(50.0, abs=0.01)


def test_waits_of_another_qemu_do_not_count(host: Host) -> None:
    """After a power cut the guest has another QEMU, whose earlier waits are not known."""
    host.goes_on(10, waiting=0.0)
    host.pid, host.waits = 8, {9: 500.0}
    host.fair.now()
    host.waits = {1: 0.0, 9: 500.0}
    assert host.goes_on(10, waiting=0.0) == pytest.approx(20.0, abs=0.01)


def test_a_starved_guest_is_told_within_a_minute_and_another_never(host: Host) -> None:
    """The guest that needed 108 s to boot in silence had waited for 40 %."""
    host.goes_on(31, waiting=0.4)
    assert len(host.told) == 1
    assert "in the last 30 s this guest got 18 s of CPU, and waited for 12 s" in host.told[0]
    assert "10 processes want the host's 2 CPUs" in host.told[0]
    host.goes_on(121, waiting=0.4)
    assert len(host.told) == 3  # once a minute from then on
    assert "in the last 60 s this guest got 36 s of CPU, and waited for 24 s" in host.told[1]
    host.told.clear()
    host.goes_on(200, waiting=0.1)
    assert host.told == []


def test_a_limit_counts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes two seconds of the host has a limit of one: it ends if nothing waits."""
    slow = time.monotonic()
    call = lambda: time.sleep(0.4) or "done"  # noqa: E731
    monkeypatch.setattr(clock, "LOOK", 0.02)
    starved = lambda: slow + (time.monotonic() - slow) / 4  # noqa: E731
    assert deadline.call(call, seconds=0.2, what="a test", time=starved) == "done"
    with pytest.raises(GuestError, match="waiting for a test"):
        deadline.call(call, seconds=0.2, what="a test")


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that computes beside another one on the same CPU."""
    words = ["taskset", "-c", "0", "nice", "-n", "5", sys.executable, "-c", "while True: pass"]
    pair = [subprocess.Popen(words) for _ in range(2)]
    yield pair[0].pid
    for one in pair:
        one.kill()
        one.wait()


def test_the_kernel_counts_what_a_process_waits(busy: int) -> None:
    fair = FairTime(lambda: busy)
    began, at = time.monotonic(), fair.now()
    while time.monotonic() - began < 1.5:
        time.sleep(0.1)
        fair.now()
    got = (fair.now() - at) / (time.monotonic() - began)
    assert got < 0.8  # half of a CPU at most, and less on a busy host
    assert fair_time.load.waits(busy)
