"""Measures a disk by reading it: rate by position, seeks, random reads, read-ahead.

The descriptor is open for reading only, without the page cache (``O_DIRECT``). Nothing is claimed:
a disk in use can be measured, but its other users distort the result.
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
"""Bytes of a sequential read."""
PLACES: Final = 9
"""Number of positions for sequential reads, evenly spaced."""
DISTANCES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.45, 0.6, 0.75, 0.9, 0.98)
"""Seek distances, as fractions of the disk."""
_AHEAD: Final = (256 * 1024, 512 * 1024, LARGE, 2 * LARGE, 4 * LARGE, 8 * LARGE)


class Readable(Protocol):
    """A disk to measure."""

    size: int
    """Bytes."""

    def read(self, offset: int, length: int) -> None:
        """Read without the page cache; only the disk's own cache is used."""

    def now(self) -> float:
        """Return seconds on the clock for the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Amounts of data to read."""

    stream: int
    """Bytes at each position."""
    jumps: int
    """Seeks per distance."""
    random: int
    """Small reads at random positions."""


class OpenDisk:
    """A block device, or a file."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._buffers = threading.local()

    @classmethod
    def open(cls, path: str) -> OpenDisk:
        """Open a path for reading, without the page cache; ``OSError``: that failed."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        return cls(descriptor, os.lseek(descriptor, 0, os.SEEK_END))

    def facts(self) -> Device:
        """Return the kernel's facts about it; ``OSError``: it is not a block device."""
        return read(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> None:
        """Do one request. Each thread has its own buffer, since direct reads need whole pages."""
        buffer = getattr(self._buffers, "whole", None)
        if buffer is None:
            buffer = self._buffers.whole = mmap.mmap(-1, LARGE)
        got = os.preadv(self._descriptor, [memoryview(buffer)[:length]], offset)
        if got != length:
            raise OSError(f"only {got} of {length} bytes could be read at byte {offset}")

    def now(self) -> float:
        return time.monotonic()


def streams(disk: Readable, effort: Effort) -> list[tuple[float, float]]:
    """Return position (fraction of the disk) and bytes per second there, without the seek to it."""
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


def seeks(disk: Readable, effort: Effort, draw: random.Random) -> list[tuple[float, list[float]]]:
    """Return read latencies in seconds for each seek distance, in both directions."""
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


def adjacent_reads(disk: Readable, effort: Effort, draw: random.Random) -> list[float]:
    """Return latencies in seconds of small reads directly after another, without a seek."""
    times = []
    for _ in range(max(effort.jumps, 8)):
        place = draw.randrange(disk.size // SMALL - 2) * SMALL
        disk.read(place, SMALL)
        times.append(_timed(disk, place + SMALL))
    return times


def random_reads(disk: Readable, effort: Effort, draw: random.Random) -> list[float]:
    """Return latencies in seconds of small random reads, one at a time."""
    pages = disk.size // SMALL
    return [_timed(disk, draw.randrange(pages) * SMALL) for _ in range(effort.random)]


def parallel_reads(
    disk: Readable, depth: int, length: int, count: int, draw: random.Random
) -> float:
    """Return reads per second with ``depth`` requests in flight, each in a thread."""
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


def read_ahead(
    disk: Readable, quick: float, draw: random.Random, pause: Callable[[float], None]
) -> int:
    """Return how many bytes the disk reads ahead: cached data is as fast as an adjacent read.

    ``quick``: seconds of an adjacent read.
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
    queued: bool = True,
    pause: Callable[[float], None] | None = None,
) -> dict[str, object]:
    """Return all measurements as plain data. Without ``pause`` read-ahead is not measured."""
    draw = random.Random(seed)  # noqa: S311 - positions are not secret
    found: dict[str, object] = {"size": disk.size, "rotational": rotational}
    found["zones"] = [{"place": p, "rate": r} for p, r in streams(disk, effort)]
    if rotational:
        found["jumps"] = [
            {"distance": d, "seconds": times} for d, times in seeks(disk, effort, draw)
        ]
    quick = adjacent_reads(disk, effort, draw)
    found["near"] = quick
    found["random"] = random_reads(disk, effort, draw)
    if queued:
        found["random_16"] = parallel_reads(disk, 16, SMALL, 4 * effort.random, draw)
        found["large_16"] = LARGE * parallel_reads(
            disk, 16, LARGE, max(effort.random // 2, 16), draw
        )
    if pause is not None and rotational:
        found["read_ahead"] = read_ahead(disk, _median(quick), draw, pause)
    return found


def _timed(disk: Readable, offset: int) -> float:
    began = disk.now()
    disk.read(offset, SMALL)
    return disk.now() - began


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
