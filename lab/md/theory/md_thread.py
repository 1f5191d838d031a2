"""md's thread of RAID 4, 5 and 6, ``raid5d``, with a bitmap, on a guest's only processor.

Source: kernel ``drivers/md/raid5.c`` (``raid5d``, ``handle_active_stripes``,
``do_release_stripe``, ``activate_bit_delay``). The thread handles stripes in the order in which
they became ready, ``BATCH`` at a time. Before each batch it looks for new writes; if there are any,
it writes the bitmap and waits for it, and ready stripes wait too. Parity is computed when a
stripe's reads have ended, and written when the thread handles the stripe again. Requests to members
are sent once the thread waits (``blk_start_plug``).

A request that ends wakes fio. Once the thread has needed ``LEAD`` more processor time than fio, the
scheduler lets fio go first (``kernel/sched/fair.c: check_preempt_wakeup``): its next request is
there before the next batch. Until then fio runs while the thread waits, and its first request wakes
the thread before the second. This was seen in traces of Linux 6.1 in virtual time.

What the processor needs for each step decides how many stripes are ready at the next one, since
drives with a cache end writes a few microseconds apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from lab.md.theory.bucket import Direction
from lab.md.theory.paths import Extent
from lab.md.theory.throttle import EventQueue

BATCH = 8
"""Stripe heads of one batch (``MAX_STRIPE_BATCH``)."""

WAKE = 4e-6
"""Seconds from a request's end to the thread's first step. These times are means of traces of Linux
6.1 in virtual time, where an instruction takes 1 ns, minus 1 µs for each traced event."""
INTERRUPT = 3.5e-6
"""Seconds of the thread that the interrupt for the end of a member's request takes."""
STEP = 5e-6
"""Seconds to make a stripe's requests."""
SEND = 1.7e-6
"""Seconds to send one of these requests."""
PARITY = 5e-6
"""Seconds to compute parity, for each parity block."""
REPLY = 18e-6
"""Seconds to end a request and to receive fio's next one."""
FLUSH = 9e-6
"""Seconds to send one member a page of the bitmap."""
LEAD = 4e-3
"""Seconds that the thread may run more than fio before fio goes first: half of
``sched_latency_ns``, which a sleeper gets, and ``wakeup_granularity_ns``, both of one processor."""


class Stripes(Protocol):
    """A part of a request's work on a run of stripe heads."""

    @property
    def heads(self) -> int:
        """Number of stripe heads."""

    def computes(self) -> bool:
        """Whether parity is computed now; it is not computed twice."""


class Array(Protocol):
    """The array from the thread's side."""

    def bitmap_writes(self) -> list[Extent]:
        """Return writes of the bitmap's dirty pages, which are clean afterwards."""

    def submit(self, job: Any, direction: Direction, extent: Extent) -> None:
        """Send a request to a member; without a job it is the bitmap's."""

    def advance(self, job: Any) -> bool:
        """Start the next stage of a job; return ``False`` if that was its end."""

    def replace(self, most: int | None = None) -> None:
        """Let fio send a request for each that has ended, or for so many."""


class Raid5d:
    """The thread."""

    def __init__(self, array: Array, events: EventQueue, *, parities: int) -> None:
        """``parities``: parity blocks of a stripe."""
        self._array, self._events = array, events
        self._parity = parities * PARITY
        self._new: list[Stripes] = []
        self._released: list[Stripes] = []
        self._plug: list[tuple[Stripes, Direction, Extent]] = []
        self._writing = 0
        """Requests of the bitmap write in flight."""
        self._sleeps = True
        self.runs = False
        """Whether it has the processor."""
        self._taken = 0.0
        """Seconds that interrupts took from the current step."""
        self._lead = -LEAD
        """Processor time of the thread less fio's, less ``LEAD``."""
        self._steps = self._run()
        self.flushes = 0
        """Bitmap writes."""

    def arrive(self, job: Stripes) -> None:
        """Add a write, which waits for the bitmap."""
        self._new.append(job)
        self._wake()

    def release(self, job: Stripes) -> None:
        """All requests of a job's stage have ended."""
        self._released.append(job)
        self._wake()

    def plug(self, job: Stripes, direction: Direction, extent: Extent) -> None:
        """Add a request to a member; it is sent once the thread waits."""
        self._plug.append((job, direction, extent))

    def written(self) -> None:
        """A request of the bitmap write has ended."""
        self._writing -= 1
        if not (self._writing or self.runs):
            self._begin()

    def interrupt(self) -> None:
        """A request to a member has ended."""
        if self.runs:
            self._taken += INTERRUPT

    def fire(self, what: object) -> None:  # noqa: ARG002
        """Take the next step, unless interrupts delayed the previous one."""
        seconds, self._taken = self._taken or next(self._steps), 0.0
        if seconds is None:
            self.runs = False
            if self._lead < 0:
                self._array.replace(1 if self._sleeps else None)
        else:
            self._lead += seconds
            self._events.set(self._events.now + seconds, self, None)

    def _wake(self) -> None:
        if self._sleeps:
            self._sleeps = False
            self._begin()

    def _begin(self) -> None:
        self.runs = True
        self._events.set(self._events.now + WAKE, self, None)

    def _run(self) -> Iterator[float | None]:
        """Yield the CPU time of each step; ``None``: the thread waits."""
        ready: deque[Stripes] = deque()
        while True:
            ready.extend(self._released)
            self._released.clear()
            if self._new:
                waiting, self._new = self._new, []
                yield from self._flush()
                ready.extend(waiting)
            if ready:
                yield from self._batch(ready)
                continue
            yield from self._unplug()
            if not (self._released or self._new):
                self._sleeps = True
                yield None

    def _flush(self) -> Iterator[float | None]:
        writes = self._array.bitmap_writes()
        if not writes:
            return
        self.flushes += 1
        self._writing = len(writes)
        for extent in writes:
            yield FLUSH
            self._array.submit(None, Direction.WRITE, extent)
        yield from self._unplug()
        if self._writing:
            yield None

    def _batch(self, ready: deque[Stripes]) -> Iterator[float]:
        heads, computed = 0, []
        while ready and heads < BATCH:
            job = ready.popleft()
            heads += job.heads
            if job.computes():
                computed.append(job)
                yield self._parity
            elif self._array.advance(job):
                yield STEP
            else:
                yield REPLY
                self._lead -= 2 * REPLY  # it was fio's
                if self._lead >= 0:
                    self._array.replace()
        ready.extend(computed)

    def _unplug(self) -> Iterator[float]:
        sent, self._plug = self._plug, []
        for job, direction, extent in sent:
            self._array.submit(job, direction, extent)
            yield SEND
