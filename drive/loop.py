"""Workloads on the timing core ``drive.h`` without a guest: ``drive/loop.c`` through ctypes.

The caller compiles the library (``FLAGS``). Times are seconds; positions are bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drive.drive import Parameters

SOURCE: Final = Path(__file__).parent / "loop.c"
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared")
HEADERS: Final = ("drive.h", "throttle.h")
"""What ``loop.c`` includes, next to it."""
SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to a closed loop."""

    reads: tuple[float, ...]
    """Latencies in seconds, in order of the answers."""
    writes: tuple[float, ...]
    seconds: float
    """From the start to the last answer."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return (len(self.reads) + len(self.writes)) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Random requests of a closed loop with ``depth`` senders."""

    depth: int
    block: int = 4096
    read_share: float = 1.0
    inside: int = 32
    """Requests that the kernel gives the drive at once; others wait in order of arrival."""
    think: float = 0.0
    """Seconds of the host from an answer to the sender's next request."""
    start: int = 0
    span: int | None = None
    """Bytes within which positions are random; ``None``: all of the disk."""
    warm: int = 0
    """The first answers do not count, so many: they bring the drive into its state."""
    count: int = 20_000
    limit: float = 60.0
    """Seconds after which the loop ends."""
    seed: int = 1


class Core:
    """The compiled library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name in ("lab_loop_closed", "lab_loop_trace", "lab_loop_flush"):
            getattr(self._library, name).restype = ctypes.c_uint64

    def closed(self, drive: Parameters, size: int, loop: Loop) -> Answers:
        """Run a closed loop; ``ValueError``: the core refuses the drive."""
        span = min(loop.span or size, size - loop.start)
        latency = (ctypes.c_uint64 * loop.count)()
        written = (ctypes.c_uint8 * loop.count)()
        end = ctypes.c_uint64()
        words = (
            *(size, loop.start, span, loop.block, loop.depth),
            *(loop.inside, round(loop.read_share * 1e6), round(loop.think * SECOND)),
            *(loop.seed, loop.warm, loop.count, round(loop.limit * SECOND)),
        )
        got = self._library.lab_loop_closed(
            drive.pack(), *map(ctypes.c_uint64, words), latency, written, ctypes.byref(end)
        )
        if not got:
            raise ValueError("the timing core refuses this drive")
        times, kinds = latency[:got], bytes(written[:got])
        return Answers(
            tuple(t / SECOND for t, kind in zip(times, kinds, strict=True) if not kind),
            tuple(t / SECOND for t, kind in zip(times, kinds, strict=True) if kind),
            end.value / SECOND,
        )

    def trace(
        self,
        drive: Parameters,
        size: int,
        requests: Sequence[tuple[bool, int, int, float]],
    ) -> list[float]:
        """Return seconds of each request: write or read, offset, length, seconds since the end of
        the previous one."""
        count = len(requests)
        latency = (ctypes.c_uint64 * count)()
        writes, offsets, lengths, thinks = zip(*requests, strict=True)
        got = self._library.lab_loop_trace(
            drive.pack(),
            ctypes.c_uint64(size),
            ctypes.c_uint64(count),
            (ctypes.c_uint8 * count)(*writes),
            (ctypes.c_uint64 * count)(*offsets),
            (ctypes.c_uint64 * count)(*lengths),
            (ctypes.c_uint64 * count)(*(round(t * SECOND) for t in thinks)),
            latency,
        )
        if got != count:
            raise ValueError("the timing core refuses this drive")
        return [t / SECOND for t in latency]

    def flush(
        self,
        drive: Parameters,
        size: int,
        writes: int,
        *,
        pause: float = 0.1,
        count: int = 100,
        seed: int = 1,
    ) -> list[float]:
        """Return seconds of flushes, each after so many scattered writes of a page and followed by
        a pause."""
        latency = (ctypes.c_uint64 * count)()
        words = (size, 0, size, 4096, writes, round(pause * SECOND), seed, count)
        if not self._library.lab_loop_flush(drive.pack(), *map(ctypes.c_uint64, words), latency):
            raise ValueError("the timing core refuses this drive")
        return [t / SECOND for t in latency]
