"""A guest's console log: read as text for a terminal, and limited.

QEMU writes all that the guest sends to its serial port to a file. While a worker owns the guest, a
log beyond :data:`LARGEST` ends it. A guest that stays up has a watcher instead, which drops the
log's beginning. If the guest has a memory region, the watcher ends it if it fills more of the
region than its disks can hold, and says so in the log.

``python -m lab.host.guest.console DIRECTORY MOST`` is the watcher. ``MOST``: the most bytes of data
in the region's file; 0: there is none. It prints a line when it has begun, and ends with the guest.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from lab.core.errors import GuestError, HostError, TroubleError
from lab.core.printable import printable
from lab.core.units import MIB, format_size
from lab.host.guest import registry as guests
from lab.host.guest.virtual.limits import REGION, over
from lab.host.system import clock

LOG: Final = "console.log"
LARGEST: Final = 64 * MIB
"""Most bytes of a console log. An emulated serial port passes 1 MiB per second at most."""
_KEPT: Final = 16 * MIB
"""Bytes at the log's end that a watcher keeps."""
_GLANCE: Final = 1.0
_LINE: Final = 1 << 16
_PUNCH_HOLE: Final = 0x03
"""``FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE``, fallocate(2)."""


def text(directory: Path, *, follow: bool) -> Iterator[str]:
    """Yield the log's lines, or parts of long ones, with control characters escaped.

    ``follow``: until the guest ends. ``GuestError``: it has no log.
    """
    try:
        file = (directory / LOG).open("rb")
    except OSError as error:
        raise GuestError(
            f"the guest '{directory.name}' has no console log: {error.strerror}"
        ) from error
    with file:
        with suppress(OSError):  # the beginning may have been dropped
            file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
        while True:
            while line := file.readline(_LINE):
                yield printable(line.decode(errors="replace"))
            if not follow or not guests.qemu_pids(directory):
                return
            clock.pause(_GLANCE)


class Watch:
    """Ends a guest whose console log is too large, from a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._over = threading.Event()
        self.sentence = ""
        """Why the guest was ended; empty: it was not."""
        threading.Thread(target=self._run, daemon=True, name="lab-console").start()

    def end(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_GLANCE):
            if _size(self._directory) > LARGEST:
                self.sentence = (
                    f"the guest printed more than {format_size(LARGEST)} to its console; it was "
                    "ended"
                )
                with suppress(TroubleError):
                    guests.kill(self._directory)
                return


def _size(directory: Path) -> int:
    """Return the bytes that the log takes on the disk; 0: there is none."""
    try:
        return (directory / LOG).stat().st_blocks * 512
    except OSError:
        return 0


def shorten(directory: Path) -> None:
    """Drop the log's beginning if it is too large; ``HostError``: the file system cannot do that.

    The file keeps its length: QEMU continues to write at its offset.
    """
    if _size(directory) <= LARGEST:
        return
    with (directory / LOG).open("r+b") as file:
        length = max(0, file.seek(0, os.SEEK_END) - _KEPT)
        libc = ctypes.CDLL(None, use_errno=True)
        at, size = ctypes.c_int64(0), ctypes.c_int64(length)
        if libc.fallocate(file.fileno(), _PUNCH_HOLE, at, size):
            raise HostError(
                f"'{directory / LOG}' has more than {format_size(LARGEST)} and cannot be "
                f"shortened: {os.strerror(ctypes.get_errno())}"
            )


def watch(directory: Path, most: int) -> None:
    """Limit the log, and the region to ``most`` bytes, until the guest ends; end the guest if its
    log cannot be shortened, or its region has more data.
    """
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    while pids := guests.qemu_pids(directory):
        try:
            shorten(directory)
        except OSError:
            return  # the guest is being removed
        except HostError:
            guests.kill(directory)
            return
        if most and (sentence := over(directory / REGION, most)):
            guests.kill(directory)
            with suppress(OSError), (directory / LOG).open("a", encoding="utf-8") as file:
                file.write(f"\nlab: {sentence}; it was ended\n")
            return
        _await_end(pids[0], _GLANCE)


def _await_end(pid: int, seconds: float) -> None:
    """Return when the process has ended, after so many seconds at the latest."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
