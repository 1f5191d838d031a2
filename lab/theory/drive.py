"""What a modelled drive must deliver, from its figures alone: the other side of a calibration.

Nothing here knows how the server computes its times: means come from the data sheet's own figures,
and where a queue is involved from a simulation with places and angles drawn at random.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Final

from lab.model.drive import HardDrive, SolidStateDrive
from lab.units import KIB, MIB

SMALL: Final = 4 * KIB
"""Bytes of a random request."""
LARGE: Final = 1 * MIB
"""Bytes of a sequential one."""
_REQUESTS: Final = 6000
"""Simulated; the mean then strays by about a hundredth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What calibration measures, on a host that adds no time of its own."""

    random_read_1: float
    """Requests of ``SMALL`` bytes in a second, one at a time, all over the disk."""
    random_read_16: float
    """The same with sixteen at a time."""
    sequential_outer: float
    """Bytes per second of one stream of ``LARGE`` reads at the disk's beginning."""
    sequential_inner: float
    """The same at its end."""
    flush: float
    """Seconds of a random write of ``SMALL`` bytes and the flush after it."""


def figures(drive: HardDrive | SolidStateDrive) -> Figures:
    """All of them."""
    return Figures(
        random_read_1=random_read_rate(drive, 1),
        random_read_16=random_read_rate(drive, 16),
        sequential_outer=sequential_read_rate(drive, 0.0),
        sequential_inner=sequential_read_rate(drive, 1.0),
        flush=flush_seconds(drive),
    )


def random_read_rate(
    drive: HardDrive | SolidStateDrive, depth: int, *, seed: int = 1, requests: int = _REQUESTS
) -> float:
    """Random reads of ``SMALL`` bytes in a second with ``depth`` of them always on the way.

    A hard disk at depth 1: one over command, mean seek, half a revolution and transfer.
    """
    if isinstance(drive, SolidStateDrive):
        return _channels(drive, depth, seed, requests)
    if depth == 1:
        return 1 / (drive.overhead + _positioning(drive) + _transfer(drive))
    return _queue(drive, depth, seed, requests)


def sequential_read_rate(
    drive: HardDrive | SolidStateDrive, place: float, *, block: int = LARGE
) -> float:
    """Bytes per second of a stream of reads, one request after the other, from ``place`` on.

    The drive reads ahead, so that the medium sets the rate, or command and cable where they are
    slower.
    """
    if isinstance(drive, SolidStateDrive):
        pages = -(-block // drive.page)
        rounds = -(-pages // drive.channels)
        return block / (drive.overhead + rounds * drive.read_latency + block / drive.link_rate)
    answer = drive.overhead + block / drive.link_rate
    if drive.read_ahead == 0:
        # Each request has just missed its place, and waits until it comes round again.
        turns = -(-drive.overhead // drive.revolution) if drive.revolution else 0
        return block / (
            max(block / drive.rate(place), block / drive.link_rate) + turns * drive.revolution
        )
    return min(drive.rate(place), block / answer)


def flush_seconds(drive: HardDrive | SolidStateDrive) -> float:
    """A random write of ``SMALL`` bytes, acknowledged by the cache, and the flush that follows.

    The arm is on its way as soon as the write is acknowledged, and the flush waits for it.
    """
    if isinstance(drive, SolidStateDrive):
        write = drive.overhead + drive.write_latency + SMALL / drive.link_rate
        return write + drive.overhead + drive.flush_latency
    cached = drive.overhead + SMALL / drive.link_rate
    if drive.write_cache == 0:
        cached += drive.overhead  # of the flush, which then finds nothing to do
    return cached + _positioning(drive) + drive.write_settle + _transfer(drive)


def full_cache_seconds(drive: HardDrive | SolidStateDrive) -> float:
    """Seconds at most until a full write cache of ``SMALL`` writes is on the medium."""
    writes = -(-drive.write_cache // SMALL)
    if isinstance(drive, SolidStateDrive):
        stalls = drive.write_cache / drive.gc_after * drive.gc_stall if drive.gc_after else 0.0
        return -(-writes // drive.channels) * drive.write_latency + stalls
    each = drive.overhead + _positioning(drive) + drive.write_settle + _transfer(drive)
    return writes * each


def _positioning(drive: HardDrive) -> float:
    """Mean seconds until a random place is under the head."""
    return drive.average_seek + drive.revolution / 2


def _transfer(drive: HardDrive) -> float:
    """Mean seconds of a small transfer; each zone has as many bytes as the next."""
    media = sum(SMALL / drive.rate((z + 0.5) / drive.zones) for z in range(drive.zones))
    return max(media / drive.zones, SMALL / drive.link_rate)


def _queue(drive: HardDrive, depth: int, seed: int, requests: int) -> float:
    """Of those that wait the one with the least positioning time, less its age's worth."""
    draw = random.Random(seed).random  # noqa: S311 - places on a disk are no secret
    curve, turn = drive.seek_curve, drive.revolution
    window = min(depth, drive.queue_depth)
    clock = place = 0.0
    waiting = [(draw(), draw() * turn, 0.0) for _ in range(depth)]  # place, angle, since when
    for _ in range(requests):
        best, chosen, least = 0, 0.0, float("inf")
        for index in range(window):
            target, angle, since = waiting[index]
            seek = curve(abs(target - place))
            cost = seek + ((angle - clock - seek) % turn if turn else 0.0)
            aged = cost - drive.ageing * (clock - since)
            if aged < least:
                best, chosen, least = index, cost, aged
        place = waiting.pop(best)[0]
        media = SMALL / drive.rate(place)
        clock += chosen + max(media, SMALL / drive.link_rate)
        waiting.append((draw(), draw() * turn, clock))
    return requests / clock


def _channels(drive: SolidStateDrive, depth: int, seed: int, requests: int) -> float:
    """``depth`` requests, each on a channel at random, one after the other on each; one cable."""
    number = random.Random(seed).randrange  # noqa: S311
    free = [0.0] * drive.channels
    link = end = 0.0
    arrivals = [0.0] * depth
    for _ in range(requests):
        ready = heapq.heappop(arrivals) + drive.overhead
        channel = number(drive.channels)
        free[channel] = max(free[channel], ready) + drive.read_latency * -(-SMALL // drive.page)
        link = max(link, free[channel]) + SMALL / drive.link_rate
        end = max(end, link)
        heapq.heappush(arrivals, link)
    return requests / end
