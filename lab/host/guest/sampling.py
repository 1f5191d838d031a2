"""Samples of a guest's activity.

The watchdog reads the disks' counters from QEMU. A sample is the difference between two readings,
with QEMU's CPU time. It needs no further request to QEMU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lab.host.guest.libvirt.drives import DiskCounters
from lab.model.execution.events import Sample

STALE: Final = 6.0
"""Age in seconds above which a reading does not start a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    at: float
    processor: float
    disks: Mapping[str, DiskCounters]


class Sampler:
    """Makes samples from one guest's counters."""

    def __init__(self, processor: Callable[[], float], tell: Callable[[Sample], None]) -> None:
        self._processor = processor
        """Returns QEMU's CPU seconds so far."""
        self._tell = tell
        self._last: _Seen | None = None

    def take(self, at: float, disks: Mapping[str, DiskCounters]) -> None:
        """Take the disks' counters at a time; emit a sample if the previous reading is recent.

        Decreased counters belong to a new QEMU after a power cut: they start again. A disk that was
        plugged in since the previous reading counts from the next one.
        """
        now = _Seen(at=at, processor=self._processor(), disks=disks)
        last, self._last = self._last, now
        if last is None or not 0 < at - last.at <= STALE or now.processor < last.processor:
            return
        both = [
            (last.disks[serial], disk) for serial, disk in disks.items() if serial in last.disks
        ]
        moved = [
            (new.read_bytes - old.read_bytes, new.written_bytes - old.written_bytes)
            for old, new in both
        ]
        if any(read < 0 or written < 0 for read, written in moved):
            return
        self._tell(
            Sample(
                seconds=round(at - last.at, 3),
                processor=round(now.processor - last.processor, 3),
                read_bytes=sum(read for read, _ in moved),
                written_bytes=sum(written for _, written in moved),
            )
        )
