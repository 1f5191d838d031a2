"""The watchdog's decisions, with made-up counters and a fake guest."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from lab.core.errors import GuestError
from lab.host.guest import watchdog
from lab.host.guest.libvirt.drives import DiskCounters
from lab.host.guest.watchdog import Watchdog

PATIENCE = 0.1


class Disk:
    """A disk's counters, and the guest's requests in flight."""

    def __init__(self) -> None:
        self.writes = self.waiting = self.questions = 0
        self.moves = False
        self.heard_at: list[float] = []

    def completed(self) -> dict[str, DiskCounters]:
        self.writes += self.moves
        return {"disk1": DiskCounters(reads=7, writes=self.writes, flushes=0)}

    def heard(self, at: float, disks: Mapping[str, DiskCounters]) -> None:
        assert disks["disk1"].writes == self.writes
        self.heard_at.append(at)

    def in_flight(self) -> dict[str, int]:
        self.questions += 1
        return {"disk1": self.waiting}


def watch(dog: Watchdog, seconds: float) -> None:
    dog.patience = PATIENCE
    dog.begin()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        dog.look()
        time.sleep(0.01)
    dog.end()


def test_requests_that_wait_while_none_is_completed_end_the_wait() -> None:
    disk = Disk()
    disk.waiting = 3
    with pytest.raises(GuestError, match="I/O has stopped") as caught:
        watch(Watchdog(disk.completed, disk.in_flight, disk.heard), 5.0)
    assert "'disk1' has completed 7 reads, 0 writes and 0 flushes, and 3 requests wait" in str(
        caught.value
    )


def test_disks_that_move_are_left_alone_and_the_guest_is_not_even_asked() -> None:
    disk = Disk()
    disk.waiting, disk.moves = 3, True
    watch(Watchdog(disk.completed, disk.in_flight, disk.heard), 5 * PATIENCE)
    assert disk.writes > 1
    assert disk.questions == 0


def test_a_guest_that_only_thinks_is_asked_and_left_alone() -> None:
    disk = Disk()
    watch(Watchdog(disk.completed, disk.in_flight, disk.heard), 5 * PATIENCE)
    assert disk.questions > 1


def test_each_answer_is_told_once_in_the_thread_that_looks() -> None:
    disk = Disk()
    disk.moves = True
    here: list[bool] = []

    def heard(at: float, disks: Mapping[str, DiskCounters]) -> None:
        here.append(threading.current_thread() is threading.main_thread())
        disk.heard(at, disks)

    watch(Watchdog(disk.completed, disk.in_flight, heard), 5 * PATIENCE)
    assert all(here)
    assert len(here) == disk.writes > 1
    assert disk.heard_at == sorted(set(disk.heard_at))


def test_without_patience_the_guest_is_not_asked() -> None:
    disk = Disk()
    disk.waiting = 1
    dog = Watchdog(disk.completed, disk.in_flight, disk.heard)
    dog.look()
    time.sleep(2 * PATIENCE)
    dog.look()
    assert disk.questions == 0
    assert len(disk.heard_at) == 1  # QEMU was queried for a sample


def test_an_answer_that_never_comes_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirt waits without a limit for a stopped QEMU; SSH detects such a guest."""
    monkeypatch.setattr(watchdog, "JOIN", 0.1)
    never = threading.Event()
    disk = Disk()
    disk.waiting = 1

    def stuck() -> dict[str, DiskCounters]:
        never.wait(30)
        return {}

    began = time.monotonic()
    watch(Watchdog(stuck, disk.in_flight, disk.heard), 5 * PATIENCE)
    assert time.monotonic() - began < 5
    assert disk.questions == 0
    never.set()
