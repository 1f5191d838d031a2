"""Detects guests whose I/O has stopped, as when QEMU's throttle missed a wake-up.

While a command runs in the guest, the watchdog reads QEMU's counters of completed requests every
two seconds. If no disk completes a request for too long, it reads from the guest whether requests
are in flight. A workload that only computes has none.

QEMU is queried in a thread, because a stopped QEMU does not reply before libvirt's timeout. SSH
detects such a guest sooner.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final

from lab.core.errors import GuestError
from lab.host.guest.libvirt.drives import DiskCounters
from lab.host.system import clock

GLANCE: Final = 2.0
"""Seconds between two readings of QEMU's counters."""
ANSWER: Final = 0.5
"""Seconds that a reading waits for QEMU's reply, which takes a few milliseconds."""
JOIN: Final = 5.0
"""Timeout in seconds for a pending reply once the command has ended."""

IN_FLIGHT: Final = """\
cd /dev/disk/by-id
for link in virtio-* scsi-*; do
  device=$(readlink -f "$link")
  read -r reads writes < "/sys/block/${device##*/}/inflight" || continue
  serial=${link#virtio-}
  echo "${serial#scsi-0QEMU_QEMU_HARDDISK_}=$((reads + writes))"
done 2>/dev/null"""
"""``inflight`` is described in the kernel's ``Documentation/block/stat.rst``; udev makes the
links."""


_IN_FLIGHT: Final = re.compile(r"^(.+)=([0-9]{1,9})$", re.MULTILINE)


def read_in_flight(stdout: str) -> dict[str, int]:
    """Return requests in flight by serial, from the output of :data:`IN_FLIGHT`."""
    return {serial: int(n) for serial, n in _IN_FLIGHT.findall(stdout)}


class Watchdog:
    """Watches one guest's data disks."""

    def __init__(
        self,
        completed: Callable[[], Mapping[str, DiskCounters]],
        in_flight: Callable[[], Mapping[str, int]],
        heard: Callable[[float, Mapping[str, DiskCounters]], None],
    ) -> None:
        self.patience = 0.0
        """Seconds without a completed request before the guest is queried; 0: off."""
        self._completed = completed
        self._in_flight = in_flight
        """Returns the requests for which the guest's kernel waits, by disk."""
        self._heard = heard
        """Receives each reply of QEMU and its time, in the thread that calls `look`."""
        self._answer: tuple[float, Mapping[str, DiskCounters]] | None = None
        self._asking: threading.Thread | None = None
        self._counters: Mapping[str, DiskCounters] = {}
        self._moved = clock.now()
        self._asked = -math.inf

    def begin(self) -> None:
        """Begin to watch a command; earlier inactivity does not count."""
        self._moved = clock.now()
        self._asked = -math.inf

    def end(self) -> None:
        """Wait for a pending reply after a command."""
        if self._asking is not None:
            self._asking.join(JOIN)

    def look(self) -> None:
        """Raise ``GuestError`` if requests are in flight and none has completed for too long."""
        now = clock.now()
        glance = min(GLANCE, self.patience / 2) if self.patience else GLANCE
        if now - self._asked >= glance and not self._busy():
            self._asked = now
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
            self._asking.join(ANSWER)
        answer, self._answer = self._answer, None
        if answer is not None:
            self._heard(*answer)
        if not self.patience:
            return
        if self._busy() or now - self._moved < self.patience:
            return
        waiting = {name: n for name, n in self._in_flight().items() if n}
        if not waiting:
            self._moved = clock.now()
            return
        disks = "; ".join(
            f"'{name}' has completed {c.reads} reads, {c.writes} writes and {c.flushes} flushes,"
            f" and {waiting.get(name, 0)} requests wait"
            for name, c in sorted(self._counters.items())
        )
        raise GuestError(
            "the guest's I/O has stopped: no disk has completed a request for"
            f" {now - self._moved:.0f} seconds: {disks}"
        )

    def _busy(self) -> bool:
        return self._asking is not None and self._asking.is_alive()

    def _ask(self) -> None:
        try:
            found = self._completed()
        except GuestError:
            return  # QEMU has ended or does not reply: other checks report that
        self._answer = (clock.now(), found)
        if found != self._counters:
            self._counters = found
            self._moved = clock.now()
