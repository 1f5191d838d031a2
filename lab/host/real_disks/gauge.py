"""A disk measured by reading it: rates by zone, jumps, random reads, reading ahead.

The descriptor is open for reading only, past the page cache (``O_DIRECT``). Nothing is claimed: a
disk in use can be measured, and shows its users too.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lab.host.real_disks.device import Device, read

SMALL: Final = 4096
"""Bytes of a random read."""
LARGE: Final = 1024 * 1024
"""Bytes of a read in a stream."""
PLACES: Final = 9
"""Where streams are read, evenly over the disk."""
DISTANCES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.45, 0.6, 0.75, 0.9, 0.98)
"""Shares of the disk that the arm is made to jump over."""
_AHEAD: Final = (256 * 1024, 512 * 1024, LARGE, 2 * LARGE, 4 * LARGE, 8 * LARGE)


class Readable(Protocol):
    """A disk to be measured."""

    size: int
    """Bytes."""

    def read(self, offset: int, length: int) -> None:
        """Read, past every cache but the disk's own."""

    def now(self) -> float:
        """Seconds on the clock that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is read."""

    stream: int
    """Bytes at each place."""
    jumps: int
    """Over each distance."""
    random: int
    """Small reads all over the disk."""


class Drive:
    """A block device, or a file."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._buffers = threading.local()

    @classmethod
    def open(cls, path: str) -> Drive:
        """For reading, past the page cache; ``OSError``: it cannot be."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        return cls(descriptor, os.lseek(descriptor, 0, os.SEEK_END))

    def facts(self) -> Device:
        """What the kernel says of it; ``OSError``: it is no block device."""
        return read(self._descriptor)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> None:
        """One request; a buffer for each thread, for direct reads want whole pages."""
        buffer = getattr(self._buffers, "whole", None)
        if buffer is None:
            buffer = self._buffers.whole = mmap.mmap(-1, LARGE)
        got = os.preadv(self._descriptor, [memoryview(buffer)[:length]], offset)
        if got != length:
            raise OSError(f"{got} bytes of {length} could be read at byte {offset}")

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()


def streams(disk: Readable, effort: Effort) -> list[tuple[float, float]]:
    """Shares of the disk, and bytes per second there; the way to each place does not count."""
    found = []
    blocks = max(effort.stream // LARGE, 2)
    last = (disk.size // LARGE - blocks - 1) * LARGE
    for number in range(PLACES):
        place = max(last, 0) * number // (PLACES - 1) // LARGE * LARGE
        disk.read(place, LARGE)
        began = disk.now()
        for block in range(1, blocks + 1):
            disk.read(place + block * LARGE, LARGE)
        found.append((place / disk.size, blocks * LARGE / (disk.now() - began)))
    return found


def jumps(disk: Readable, effort: Effort, draw: random.Random) -> list[tuple[float, list[float]]]:
    """For each distance the seconds of reads that lie so far from the one before, either way."""
    found = []
    pages = disk.size // SMALL
    for distance in DISTANCES:
        far = int(distance * pages)
        times = []
        for _ in range(effort.jumps):
            pair = [start := draw.randrange(pages - far), start + far]
            if draw.random() < 0.5:
                pair.reverse()
            disk.read(pair[0] * SMALL, SMALL)
            times.append(_timed(disk, pair[1] * SMALL))
        found.append((far / pages, times))
    return found


def near(disk: Readable, effort: Effort, draw: random.Random) -> list[float]:
    """Seconds of small reads right behind another, for which nothing has to move."""
    times = []
    for _ in range(max(effort.jumps, 8)):
        place = draw.randrange(disk.size // SMALL - 2) * SMALL
        disk.read(place, SMALL)
        times.append(_timed(disk, place + SMALL))
    return times


def scattered(disk: Readable, effort: Effort, draw: random.Random) -> list[float]:
    """Seconds of small reads all over the disk, one at a time."""
    pages = disk.size // SMALL
    return [_timed(disk, draw.randrange(pages) * SMALL) for _ in range(effort.random)]


def crowd(disk: Readable, depth: int, length: int, count: int, draw: random.Random) -> float:
    """Reads in a second with ``depth`` of them on the way, each by a thread of its own."""
    places = [draw.randrange(disk.size // length) * length for _ in range(count)]
    lock = threading.Lock()
    failed: list[OSError] = []

    def work() -> None:
        while True:
            with lock:
                if not places or failed:
                    return
                place = places.pop()
            try:
                disk.read(place, length)
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(depth)]
    began = disk.now()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return count / (disk.now() - began)


def ahead(disk: Readable, quick: float, draw: random.Random, pause: Callable[[float], None]) -> int:
    """How far the disk has read on by itself, in bytes: what is there comes as a near read does.

    ``quick``: seconds of a near read.
    """
    reached = 0
    for far in _AHEAD:
        times = []
        for _ in range(3):
            place = draw.randrange((disk.size - 2 * _AHEAD[-1]) // LARGE) * LARGE
            disk.read(place, LARGE)
            pause(0.1)
            times.append(_timed(disk, place + LARGE + far - SMALL))
        if sorted(times)[1] > 3 * quick + 0.0005:
            break
        reached = far
    return reached


def measure(
    disk: Readable,
    effort: Effort,
    *,
    rotational: bool,
    seed: int,
    crowds: bool = True,
    pause: Callable[[float], None] | None = None,
) -> dict[str, object]:
    """Everything, as plain data. Without ``pause`` it is not asked how far the disk reads on."""
    draw = random.Random(seed)  # noqa: S311 - places on a disk are no secret
    found: dict[str, object] = {"size": disk.size, "rotational": rotational}
    found["zones"] = [{"place": p, "rate": r} for p, r in streams(disk, effort)]
    if rotational:
        found["jumps"] = [
            {"distance": d, "seconds": times} for d, times in jumps(disk, effort, draw)
        ]
    quick = near(disk, effort, draw)
    found["near"] = quick
    found["random"] = scattered(disk, effort, draw)
    if crowds:
        found["random_16"] = crowd(disk, 16, SMALL, 4 * effort.random, draw)
        found["large_16"] = LARGE * crowd(disk, 16, LARGE, max(effort.random // 2, 16), draw)
    if pause is not None and rotational:
        found["read_ahead"] = ahead(disk, _median(quick), draw, pause)
    return found


def _timed(disk: Readable, offset: int) -> float:
    began = disk.now()
    disk.read(offset, SMALL)
    return disk.now() - began


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
