"""What a guest does now: differences of counters that its worker looks at anyway.

The watchdog asks QEMU what its disks have completed; each answer, beside QEMU's processor time, is
held against the one before. So a pulse costs the guest no question of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lab.host.guest.libvirt.drives import Completed
from lab.model.execution.events import Pulse

STALE: Final = 6.0
"""Seconds after which an answer is too old to be the beginning of what happens now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    at: float
    processor: float
    disks: Mapping[str, Completed]


class Pulses:
    """Turns one guest's counters into pulses."""

    def __init__(self, processor: Callable[[], float], tell: Callable[[Pulse], None]) -> None:
        self._processor = processor
        """Seconds of processor time that QEMU has had so far."""
        self._tell = tell
        self._last: _Seen | None = None

    def take(self, at: float, disks: Mapping[str, Completed]) -> None:
        """What the disks had completed at a moment; tells a pulse where the one before is fresh.

        Counters that went back are those of another QEMU, after a power cut: they begin anew. A
        disk that was plugged in since then counts from the next answer on.
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
            Pulse(
                seconds=round(at - last.at, 3),
                processor=round(now.processor - last.processor, 3),
                read_bytes=sum(read for read, _ in moved),
                written_bytes=sum(written for _, written in moved),
            )
        )
