"""A watchdog for guests whose I/O has stopped: QEMU has had throttles that never woke up.

While a command runs in the guest, QEMU's own counters of completed requests are looked at every
two seconds. Where no disk has completed anything for too long, the guest is asked whether requests
are in flight: a workload that only thinks has none, and is left alone.

QEMU is asked in a thread: a stopped QEMU answers only after libvirt's limit. SSH finds sooner that
such a guest hangs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Final

from lab.core.errors import GuestError
from lab.host.guest.libvirt.drives import Completed
from lab.host.system import clock

GLANCE: Final = 2.0
"""Seconds between two looks at QEMU's counters."""
ANSWER: Final = 0.5
"""Seconds that a look waits for QEMU's answer, which takes a few milliseconds."""
JOIN: Final = 5.0
"""Seconds that an answer under way may take when the command has ended."""

IN_FLIGHT: Final = """\
cd /dev/disk/by-id
for link in virtio-* scsi-*; do
  device=$(readlink -f "$link")
  read -r reads writes < "/sys/block/${device##*/}/inflight" || continue
  serial=${link#virtio-}
  echo "${serial#scsi-0QEMU_QEMU_HARDDISK_}=$((reads + writes))"
done 2>/dev/null"""
"""``inflight`` is the kernel's ``Documentation/block/stat.rst``; the links are udev's."""


def read_in_flight(stdout: str) -> dict[str, int]:
    """Return the requests in flight by serial, from what :data:`IN_FLIGHT` printed."""
    pairs = (line.rpartition("=") for line in stdout.splitlines())
    return {serial: int(n) for serial, equals, n in pairs if equals}


class Watchdog:
    """Looks after one guest's data disks."""

    def __init__(
        self,
        completed: Callable[[], Mapping[str, Completed]],
        in_flight: Callable[[], Mapping[str, int]],
        heard: Callable[[float, Mapping[str, Completed]], None],
    ) -> None:
        self.patience = 0.0
        """Seconds without a completed request before the guest is asked; 0: no watchdog."""
        self._completed = completed
        self._in_flight = in_flight
        """Requests by disk that the guest's kernel waits for."""
        self._heard = heard
        """Takes each answer of QEMU and its time, in the thread that looks."""
        self._answer: tuple[float, Mapping[str, Completed]] | None = None
        self._asking: threading.Thread | None = None
        self._counters: Mapping[str, Completed] = {}
        self._moved = clock.now()
        self._asked = -math.inf

    def begin(self) -> None:
        """A command begins: what was before it does not count."""
        self._moved = clock.now()
        self._asked = -math.inf

    def end(self) -> None:
        """The command has ended: nobody else asks QEMU now."""
        if self._asking is not None:
            self._asking.join(JOIN)

    def look(self) -> None:
        """Raise ``GuestError`` where requests are in flight and none has ended for too long."""
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
            "the guest's I/O has stopped: for"
            f" {now - self._moved:.0f} seconds no disk has completed a request: {disks}"
        )

    def _busy(self) -> bool:
        return self._asking is not None and self._asking.is_alive()

    def _ask(self) -> None:
        try:
            found = self._completed()
        except GuestError:
            return  # it has ended, or no longer answers: others look for that
        self._answer = (clock.now(), found)
        if found != self._counters:
            self._counters = found
            self._moved = clock.now()
