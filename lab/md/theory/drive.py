"""What a modelled drive must deliver, from its figures alone: the other side of a calibration.

Means come from the data sheet's own figures. Where a queue is involved, ``mechanism`` simulates the
drive by the rules of ``drive/drive.h``, with places drawn at random.

The requests come from a guest that takes time of its own, ``GuestTimes``. So the loop is closed:
so many requesters, each of whom gets an answer, does the guest's part, and asks again. What the
drive does meanwhile for the others, or by itself, is not lost; what it would have done is.
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
from lab.model.result.calibration import GuestTimes
from lab.model.scenario.drive import HardDrive, SolidStateDrive

SMALL: Final = 4 * KIB
"""Bytes of a random request."""
LARGE: Final = 1 * MIB
"""Bytes of a sequential one."""
STREAM_DEPTH: Final = 2
"""Requests on their way in a calibration's stream: the drive works on one while the guest does its
part of the other."""
NO_TIME: Final = GuestTimes(
    random_read_1=0.0, random_read_16=0.0, sequential_1=0.0, sequential=0.0, flush=0.0
)
"""A guest that takes none, for the drive's own figures."""
_REQUESTS: Final = 6000
"""Simulated; the mean then strays by about half a hundredth."""
_SIZE: Final = 1 << 40
"""Bytes of a simulated hard disk: so many that reading ahead serves no random request."""
_BLOCKS: Final = 400
"""Simulated of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What calibration measures."""

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
    revolutions: float
    """Writes of one and the same place in a second, each with a flush after it; 0 for a drive that
    does not turn."""


@dataclass(slots=True)
class Requesters:
    """Who asks again: from an answer to the arrival of the next request.

    ``serial`` seconds of it keep the guest busy, so that the next answer waits for them; during
    ``beside`` seconds it can do its part of others.
    """

    serial: float = 0.0
    beside: float = 0.0
    _free: float = 0.0

    @classmethod
    def of(cls, alone: float, each: float) -> Requesters:
        """``alone``: seconds of a request that has no other beside it; ``each``: between many.

        Against a drive that takes no time this gives both back, if the guest's were measured so.
        """
        serial = min(alone, each)
        return cls(serial=serial, beside=alone - serial)

    def next(self, answered: float) -> float:
        """When the next request arrives; answers must come in the order of their times."""
        self._free = max(self._free, answered) + self.serial
        return self._free + self.beside


def figures(
    drive: HardDrive | SolidStateDrive, guest: GuestTimes = NO_TIME, *, span: int | None = None
) -> Figures:
    """All of them, as seen by a guest; ``span``: see ``sequential_read_rate``."""
    ends = [
        sequential_read_rate(drive, place, depth=STREAM_DEPTH, guest=guest, span=span)
        for place in (0.0, 1.0)
    ]
    return Figures(
        random_read_1=random_read_rate(drive, 1, guest=guest),
        random_read_16=random_read_rate(drive, 16, guest=guest),
        sequential_outer=ends[0],
        sequential_inner=ends[1],
        flush=flush_seconds(drive, guest),
        revolutions=revolution_rate(drive, guest),
    )


def random_read_rate(
    drive: HardDrive | SolidStateDrive,
    depth: int,
    *,
    guest: GuestTimes = NO_TIME,
    seed: int = 1,
    requests: int = _REQUESTS,
) -> float:
    """Random reads of ``SMALL`` bytes in a second with ``depth`` of them always on the way.

    A hard disk at depth 1: one over command, mean seek, half a revolution and transfer, and all of
    the guest's time, for nobody else is served meanwhile.
    """
    if depth == 1:
        who = Requesters(serial=guest.random_read_1)
    else:
        who = Requesters.of(guest.random_read_1, guest.random_read_16)
    if isinstance(drive, SolidStateDrive):
        return _channels(drive, depth, who, seed, requests)
    if depth == 1:
        return 1 / (drive.access + _transfer(drive) + who.serial)
    return _queue(drive, depth, who, seed, requests)


def sequential_read_rate(
    drive: HardDrive | SolidStateDrive,
    place: float,
    *,
    block: int = LARGE,
    depth: int = 1,
    guest: GuestTimes = NO_TIME,
    span: int | None = None,
) -> float:
    """Bytes per second of a stream of reads, each after the one before it, from ``place`` on.

    The drive reads ahead, so that the medium sets the rate, or command and cable where they are
    slower. After ``span`` bytes the stream begins again where it began, a zone of the disk before:
    a seek and half a revolution. ``None``: it does not.
    """
    if depth == 1:
        who = Requesters(serial=guest.sequential_1)
    else:
        who = Requesters.of(guest.sequential_1, guest.sequential)
    if isinstance(drive, SolidStateDrive):
        return block / _stream_of_pages(drive, block, depth, who)
    back = drive.seek_curve(1 / drive.zones) + drive.revolution / 2 if span else 0.0
    return 1 / (_stream(drive, place, block, depth, who) / block + back / (span or 1))


def flush_seconds(drive: HardDrive | SolidStateDrive, guest: GuestTimes = NO_TIME) -> float:
    """A random write of ``SMALL`` bytes, acknowledged by the cache, and the flush that follows.

    The arm is on its way as soon as the write is acknowledged, and the flush waits for it: what
    the guest does between the two, half of its time, passes beside that.
    """
    if isinstance(drive, SolidStateDrive):
        write = drive.overhead + drive.write_latency + SMALL / drive.link_rate
        return write + drive.overhead + drive.flush_latency + guest.flush
    cached = drive.overhead + SMALL / drive.link_rate
    mean = drive.average_seek + drive.revolution / 2 + drive.write_settle + _transfer(drive)
    if drive.write_cache == 0:  # the flush then finds nothing to do
        return cached + mean + drive.overhead + guest.flush
    half = guest.flush / 2
    return cached + mean + half + _overtaken(drive, half + drive.overhead)


def full_cache_seconds(drive: HardDrive | SolidStateDrive) -> float:
    """Seconds at most until a full write cache of ``SMALL`` writes is on the medium."""
    writes = -(-drive.write_cache // SMALL)
    if isinstance(drive, SolidStateDrive):
        stalls = drive.write_cache / drive.gc_after * drive.gc_stall if drive.gc_after else 0.0
        return -(-writes // drive.channels) * drive.write_latency + stalls
    return writes * (drive.access + drive.write_settle + _transfer(drive))


def revolution_rate(drive: HardDrive | SolidStateDrive, guest: GuestTimes = NO_TIME) -> float:
    """Writes of one place in a second, each with a flush: one for each time that it comes round.

    Unless drive and guest together take longer than that; then it must come round again.
    """
    if isinstance(drive, SolidStateDrive) or not drive.revolution:
        return 0.0
    turn, half, answered = drive.revolution, guest.flush / 2, 0.0
    for _ in range(_BLOCKS):
        write = answered + half + drive.overhead
        if drive.write_cache:
            write += SMALL / drive.link_rate
        done = math.ceil((write + _transfer(drive)) / turn) * turn
        flush = (write if drive.write_cache else done) + half + drive.overhead
        answered = max(done, flush)
    return _BLOCKS / answered


def _overtaken(drive: HardDrive, later: float) -> float:
    """Mean seconds by which a flush that comes ``later`` than its write finds the arm done."""
    draw = random.Random(1).random  # noqa: S311 - places on a disk are no secret
    curve, turn = drive.seek_curve, drive.revolution
    waited = 0.0
    for _ in range(_REQUESTS):
        arm = curve(abs(draw() - draw())) + drive.write_settle + draw() * turn
        waited += max(0.0, later - arm)
    return waited / _REQUESTS


def _transfer(drive: HardDrive) -> float:
    """Mean seconds of a small transfer; each zone has as many bytes as the next."""
    media = sum(SMALL / drive.rate((z + 0.5) / drive.zones) for z in range(drive.zones))
    return max(media / drive.zones, SMALL / drive.link_rate)


@dataclass(slots=True)
class _Loop:
    """Requests at places drawn at random; each that ends is followed by the next."""

    server: Mechanism | Channels
    who: Requesters
    draw: random.Random
    events: EventQueue

    def fire(self, what: object) -> None:  # noqa: ARG002
        """Send a request."""
        place = self.draw.randrange(_SIZE // SMALL) * SMALL
        self.server.arrive(Direction.READ, SMALL, None, place)

    def run(self, depth: int, requests: int) -> float:
        """Seconds of so many requests."""
        for _ in range(depth):
            self.fire(None)
        ended = 0
        while ended < requests and self.events.next(math.inf):
            while self.events.passed:
                self.events.passed.popleft()
                ended += 1
                self.events.set(self.who.next(self.events.now), self, None)
        return self.events.now


def _queue(drive: HardDrive, depth: int, who: Requesters, seed: int, requests: int) -> float:
    """Reads per second of a hard disk that chooses among those that wait."""
    events = EventQueue()
    server = server_of(ModelledDrive(drive=drive, size=_SIZE, seed=seed), events)
    loop = _Loop(server, who, random.Random(seed), events)  # noqa: S311
    return requests / loop.run(depth, requests)


def _stream(drive: HardDrive, place: float, block: int, depth: int, who: Requesters) -> float:
    """Mean seconds of a stream's block.

    The head reads on between requests as far as ``read_ahead`` goes. Then it stops, and when there
    is room again, the place must come round.
    """
    rate, turn = drive.rate(place), drive.revolution
    coming = [0.0] * depth
    wanted = reached = 0.0  # bytes: asked for, and in the drive's memory
    room = float(drive.read_ahead)  # how far it may read
    at = link = 0.0  # when it had reached it, when the cable is free
    answers = []
    for _ in range(_BLOCKS):
        ready = heapq.heappop(coming) + drive.overhead
        wanted += block
        more = min(room - reached, max(0.0, ready - at) * rate)
        reached, at = reached + more, at + more / rate
        if reached >= room and at < ready:
            at = at + math.ceil((ready - at) / turn) * turn if turn else ready
        room = wanted + drive.read_ahead
        link = max(link, ready) + block / drive.link_rate
        answer = link
        if wanted > reached:
            at += (wanted - reached) / rate
            reached, answer = wanted, max(at, link)
        answers.append(answer)
        heapq.heappush(coming, who.next(answer))
    return (answers[-1] - answers[0]) / (_BLOCKS - 1)


def _stream_of_pages(drive: SolidStateDrive, block: int, depth: int, who: Requesters) -> float:
    """Mean seconds of a block whose pages lie on all channels in turn."""
    rounds = -(-block // drive.page // drive.channels) * drive.read_latency
    coming = [0.0] * depth
    pages = link = 0.0
    answers = []
    for _ in range(_BLOCKS):
        pages = max(pages, heapq.heappop(coming) + drive.overhead) + rounds
        link = max(link, pages) + block / drive.link_rate
        answers.append(link)
        heapq.heappush(coming, who.next(link))
    return (answers[-1] - answers[0]) / (_BLOCKS - 1)


def _channels(
    drive: SolidStateDrive, depth: int, who: Requesters, seed: int, requests: int
) -> float:
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
        heapq.heappush(arrivals, who.next(link))
    return requests / end
