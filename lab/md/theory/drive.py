"""Rates of a modelled drive with an infinitely fast guest, from the drive's values alone.

Means come from the data sheet's own values. With a queue, ``mechanism`` simulates the drive by the
rules of ``drive/drive.h``, with random positions. The loop is closed: each of ``depth`` requesters
sends its next request as soon as the previous one has ended.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from typing import Final

from lab.core.units import KIB, MIB
from lab.md.theory.bucket import Direction
from lab.md.theory.mechanism import Channels, Mechanism, ModelledDrive, server_of
from lab.md.theory.throttle import EventQueue
from lab.model.scenario.drive import HardDrive, SolidStateDrive

SMALL: Final = 4 * KIB
"""Bytes of a random request."""
LARGE: Final = 1 * MIB
"""Bytes of a sequential request."""
_REQUESTS: Final = 6000
"""Number of simulated requests; the mean then has an error of about 0.5 %."""
_SIZE: Final = 1 << 40
"""Bytes of a simulated hard disk, so large that reading ahead serves no random request."""
_BLOCKS: Final = 400
"""Number of simulated requests of a stream."""


def random_read_rate(
    drive: HardDrive | SolidStateDrive,
    depth: int,
    *,
    seed: int = 1,
    requests: int = _REQUESTS,
) -> float:
    """Return random reads of ``SMALL`` bytes per second with ``depth`` of them always in flight.

    A hard disk at depth 1: one over command, mean seek, half a revolution and transfer.
    """
    if isinstance(drive, SolidStateDrive):
        return _channels(drive, depth, seed, requests)
    if depth == 1:
        return 1 / (drive.access + _transfer(drive))
    return _queue(drive, depth, seed, requests)


def access_within(drive: HardDrive, part: float) -> float:
    """Return mean seconds from one random read to the next, one at a time, within a ``part`` of the
    stroke: command, seek, half a revolution and transfer.

    Distances of two random places in a part p have the density ``2 (p - x) / p²``.
    """
    steps = 400
    places = [(step + 0.5) / steps for step in range(steps)]
    seek = sum(2 * (1 - x) * drive.seek_curve(x * part) for x in places) / steps
    return drive.overhead + seek + drive.revolution / 2 + _transfer(drive)


def sequential_read_rate(
    drive: HardDrive | SolidStateDrive,
    place: float,
    *,
    block: int = LARGE,
    depth: int = 1,
    span: int | None = None,
) -> float:
    """Return bytes per second of a stream of reads, each after the previous one, from ``place`` on.

    The drive reads ahead, so the medium limits the rate, or a slower command or cable. After
    ``span`` bytes the stream starts again at its beginning, one zone back: a seek and half a
    revolution. ``None``: it does not.
    """
    if isinstance(drive, SolidStateDrive):
        return block / _stream_of_pages(drive, block, depth)
    back = drive.seek_curve(1 / drive.zones) + drive.revolution / 2 if span else 0.0
    return 1 / (_stream(drive, place, block, depth) / block + back / (span or 1))


def full_cache_seconds(drive: HardDrive | SolidStateDrive) -> float:
    """Return the most seconds to write a full cache of ``SMALL`` writes to the medium."""
    writes = -(-drive.write_cache // SMALL)
    if isinstance(drive, SolidStateDrive):
        stalls = drive.write_cache / drive.gc_after * drive.gc_stall if drive.gc_after else 0.0
        return -(-writes // drive.channels) * drive.write_latency + stalls
    return writes * (drive.access + drive.write_settle + _transfer(drive))


def _transfer(drive: HardDrive) -> float:
    """Return mean seconds of a small transfer; all zones have the same number of bytes."""
    media = sum(SMALL / drive.rate((z + 0.5) / drive.zones) for z in range(drive.zones))
    return max(media / drive.zones, SMALL / drive.link_rate)


@dataclass(slots=True)
class _Loop:
    """Requests at random positions; each that ends is followed by the next."""

    server: Mechanism | Channels
    draw: random.Random
    events: EventQueue

    def send(self) -> None:
        """Send a request."""
        place = self.draw.randrange(_SIZE // SMALL) * SMALL
        self.server.arrive(Direction.READ, SMALL, None, place)

    def run(self, depth: int, requests: int) -> float:
        """Return the seconds of so many requests."""
        for _ in range(depth):
            self.send()
        ended = 0
        while ended < requests and self.events.next(math.inf):
            while self.events.passed:
                self.events.passed.popleft()
                ended += 1
                self.send()
        return self.events.now


def _queue(drive: HardDrive, depth: int, seed: int, requests: int) -> float:
    """Return reads per second of a hard disk that chooses among waiting requests."""
    events = EventQueue()
    server = server_of(ModelledDrive(drive=drive, size=_SIZE, seed=seed), events)
    loop = _Loop(server, random.Random(seed), events)  # noqa: S311
    return requests / loop.run(depth, requests)


def _stream(drive: HardDrive, place: float, block: int, depth: int) -> float:
    """Return mean seconds of a stream's block.

    Between requests the head reads on up to ``read_ahead``. Then it stops. When there is space
    again, it waits until the position is under the head.
    """
    rate, turn = drive.rate(place), drive.revolution
    coming = [0.0] * depth
    wanted = reached = 0.0  # bytes: requested, and in the drive's memory
    room = float(drive.read_ahead)  # how far it may read
    at = link = 0.0  # times when it had reached that, and when the cable is free
    answers = []
    for _ in range(_BLOCKS):
        ready = heapq.heappop(coming) + drive.overhead
        wanted += block
        more = min(room - reached, max(0.0, ready - at) * rate)
        reached, at = reached + more, at + more / rate
        if reached >= room and at < ready:
            at = at + math.ceil((ready - at) / turn) * turn if turn else ready
        room = wanted + drive.read_ahead
        link = max(link, ready) + drive.link_command + block / drive.link_rate
        answer = link
        if wanted > reached:
            at += (wanted - reached) / rate
            reached, answer = wanted, max(at, link)
        answers.append(answer)
        heapq.heappush(coming, answer)
    return (answers[-1] - answers[0]) / (_BLOCKS - 1)


def _stream_of_pages(drive: SolidStateDrive, block: int, depth: int) -> float:
    """Return mean seconds of a block whose pages are on all channels in turn."""
    rounds = -(-block // drive.page // drive.channels) * drive.read_latency
    coming = [0.0] * depth
    pages = link = 0.0
    answers = []
    for _ in range(_BLOCKS):
        pages = max(pages, heapq.heappop(coming) + drive.overhead) + rounds
        link = max(link, pages) + drive.link_command + block / drive.link_rate
        answers.append(link)
        heapq.heappush(coming, link)
    return (answers[-1] - answers[0]) / (_BLOCKS - 1)


def _channels(drive: SolidStateDrive, depth: int, seed: int, requests: int) -> float:
    """Simulate ``depth`` requests on random channels with one cable; each channel serves one at a
    time."""
    number = random.Random(seed).randrange  # noqa: S311
    free = [0.0] * drive.channels
    link = end = 0.0
    arrivals = [0.0] * depth
    for _ in range(requests):
        ready = heapq.heappop(arrivals) + drive.overhead
        channel = number(drive.channels)
        free[channel] = max(free[channel], ready) + drive.read_latency * -(-SMALL // drive.page)
        link = max(link, free[channel]) + drive.link_command + SMALL / drive.link_rate
        end = max(end, link)
        heapq.heappush(arrivals, link)
    return requests / end
