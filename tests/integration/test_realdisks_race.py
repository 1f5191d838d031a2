"""Devices that change while the guard checks them: seeded attempts, none of which may succeed.

Another process mounts, swaps, writes a partition table, or replaces the named disk, at a time that
a seed decides. The lab claims the disk, checks it a last time, and writes to it. An attempt has
succeeded if the lab wrote to another disk or to one in use.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.core.units import MIB
from lab.host.real_disks import guard
from lab.host.real_disks.guard import Held
from tests import loops
from tests.loops import Bay, Loop, mount, swap_off, swap_on, told, unmount

SPAN = 0.12
"""Seconds in which both sides begin. On an idle host a claim with its last check takes 0.1."""
MARK = b"the lab was here" * 256
PLACE = loops.SIZE - MIB
"""Offset at which the lab writes: no file system or table begins there."""
ACTIONS = ("mount", "swap", "table", "link", "disk")


@pytest.fixture(scope="module")
def bay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bay]:
    yield from loops.bay(tmp_path_factory.mktemp("bay"))


@pytest.fixture(scope="module")
def images(bay: Bay) -> dict[str, bytes]:
    """Contents that make a blank disk mountable or usable as swap."""
    found = {}
    for name, tool in (("mount", ("mkfs.ext4", "-q", "-F")), ("swap", ("mkswap",))):
        file = bay.path / f"{name}.image"
        file.write_bytes(bytes(loops.SIZE))
        told(*tool, file)
        found[name] = file.read_bytes()
        assert not any(found[name][PLACE:][: len(MARK)])
    return found


@dataclass
class Change:
    """A change of the disk by another process, and its time."""

    worked: bool = False
    began: float = 0.0
    ended: float = 0.0
    undo: Callable[[], None] = lambda: None


def change(kind: str, disk: Loop, other: Loop, image: bytes, point: Path) -> Change:
    """Change the disk, like a program that does not know the lab."""
    done = Change(began=time.monotonic())
    if kind in ("mount", "swap"):
        for at in range(0, loops.SIZE, 4096):
            if any(block := image[at : at + 4096]):
                loops.write(disk.device, at, block)
        if kind == "mount":
            done.worked = mount(disk.device, point) == 0
            done.undo = lambda: unmount(point)
        else:
            done.worked = swap_on(disk.device) == 0
            done.undo = lambda: swap_off(disk.device)
    elif kind == "table":
        loops.gpt(disk.device, ((MIB, 4 * MIB),))
        done.worked = True
    else:
        if kind == "disk":  # replaced by another disk in the same slot
            subprocess.run(["losetup", "--detach", disk.device], capture_output=True)
            command = ["losetup", disk.device, str(other.file)]
            done.worked = subprocess.run(command, capture_output=True).returncode == 0
        else:
            fresh = disk.name.with_name(".fresh")
            fresh.symlink_to(other.device)
            fresh.rename(disk.name)
            done.worked = True
    done.ended = time.monotonic()
    return done


def blind(bay: Bay, disk: Loop) -> int | None:
    """A naive guard: it checks, and then opens."""
    _, objections = guard.look(bay.ground, str(disk.name))
    return None if objections else os.open(disk.name, os.O_RDWR)


def attempt(
    bay: Bay, seed: int, image: dict[str, bytes], *, careful: bool = True, span: float = SPAN
) -> str:
    """Make one attempt; return ``used``, ``refused``, or how it succeeded."""
    chance = random.Random(seed)
    kind = ACTIONS[seed % len(ACTIONS)]
    disk, other = bay.loop(f"d{seed}"), bay.loop(f"o{seed}")
    point = bay.path / f"m{seed}"
    point.mkdir()
    other.file.write_bytes(secret := chance.randbytes(4096) * (loops.SIZE // 4096))
    named = disk.named
    mine, theirs = chance.uniform(0, span), chance.uniform(0, 2 * span)
    begin = time.monotonic() + 0.01
    changes: list[Change] = []

    def somebody() -> None:
        time.sleep(max(0.0, begin + theirs - time.monotonic()))
        changes.append(change(kind, disk, other, image.get(kind, b""), point))

    thread = threading.Thread(target=somebody)
    thread.start()
    time.sleep(max(0.0, begin + mine - time.monotonic()))
    held: Held | None = None
    descriptor: int | None = None
    if careful:
        outcome = guard.take(bay.ground, named, (named.serial,))
        held = outcome if isinstance(outcome, Held) else None
        last = time.monotonic()
        if held is not None and not held.objections():
            descriptor = os.dup(held.descriptor)
    else:
        last = time.monotonic()
        descriptor = blind(bay, disk)
    if descriptor is not None:
        os.pwrite(descriptor, MARK, PLACE)
        os.fsync(descriptor)
    used = time.monotonic()
    thread.join()
    (done,) = changes
    through = ""
    if descriptor is not None:
        os.close(descriptor)
        if hashlib.sha256(other.file.read_bytes()).digest() != hashlib.sha256(secret).digest():
            through = f"{kind}: another disk was written to"
        elif disk.file.read_bytes()[PLACE:][: len(MARK)] != MARK:
            through = f"{kind}: the named disk was not written to"
        elif done.worked and done.ended < last:
            through = f"{kind}: it was done before the last look began"
        elif done.worked and kind in ("mount", "swap") and done.ended < used:
            through = f"{kind}: it was in use when it was written to"
        elif done.worked and kind in ("mount", "swap") and careful and done.began < used:
            through = f"{kind}: it could be used while it was held"
    if done.worked:
        done.undo()
    if held is not None:
        held.release()
    for one in (disk, other):
        bay.detach(one.device)
        one.file.unlink()
        one.name.unlink()
    point.rmdir()
    return through or ("used" if descriptor is not None else "refused")


def check(bay: Bay, seeds: range, images: dict[str, bytes]) -> None:
    """No attempt succeeds, early changes are detected, and late ones come too late.

    On a busy host a claim takes longer. Then more attempts follow, with later changes.
    """
    found: Counter[tuple[str, str]] = Counter()
    expected = {(kind, outcome) for kind in ACTIONS for outcome in ("used", "refused")}
    for span in (SPAN, 2 * SPAN, 4 * SPAN, 8 * SPAN):
        for seed in seeds:
            found[ACTIONS[seed % len(ACTIONS)], attempt(bay, seed, images, span=span)] += 1
        assert set(found) <= expected, found
        if set(found) == expected:
            return
    pytest.fail(f"changes came only early, or only late: {found}")


def test_nothing_gets_through_in_fifty_attempts(bay: Bay, images: dict[str, bytes]) -> None:
    check(bay, range(50), images)


@pytest.mark.slow
def test_nothing_gets_through_in_five_hundred_attempts(bay: Bay, images: dict[str, bytes]) -> None:
    check(bay, range(1000, 1500), images)


def test_who_looks_and_then_opens_lets_things_through(bay: Bay, images: dict[str, bytes]) -> None:
    """Negative control: the same attempts with a guard that opens twice."""
    for seed in range(2000, 2400):
        if attempt(bay, seed, images, careful=False) not in ("used", "refused"):
            return
    pytest.fail("the attempts cannot tell a careful guard from another")
