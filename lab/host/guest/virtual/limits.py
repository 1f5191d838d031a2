"""Limits of what a guest in virtual time takes of the host, watched while it runs.

The guest sees its memory region as one NVDIMM. Root in the guest can write to all of it, and each
page that is touched takes the host memory or disk space. The lab's driver uses the region's disks
and areas only.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from drive import region
from lab.core.errors import LimitError
from lab.core.printable import printable
from lab.core.units import MIB, format_size
from lab.host.system import pids

EXTRA: Final = 16 * MIB
"""Bytes beyond those that the driver allocates: what the host's file system adds to a file."""
REGION: Final = "region"
"""Name of an unsealed guest's region in the guest's directory."""
SAID: Final = 16 * MIB
"""Most bytes of QEMU's own messages."""
PRIVATE: Final = 512 * MIB
"""Most bytes of memory of a native guest's processes, without the guest's own memory."""
PROCESSES: Final = 8192
"""Most processes of a native guest on the host: each of the guest's is one."""
_SELDOM: Final = 5
"""Checks between two checks of a native guest's processes, which takes some milliseconds."""
_GLANCE: Final = 0.05
"""Seconds between two checks. An emulated guest touched 40 MiB of new pages in this time."""
_HUGE: Final = 2 * MIB
_SHMEM: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Ends(Protocol):
    """A process that can be ended."""

    def end(self, grace: float) -> None: ...


def exceeded(own: region.Region) -> str:
    """Return a sentence if the region's file has more data than its disks can hold; or empty."""
    return over(own.path, allowed(own))


def over(path: Path, most: int) -> str:
    """Return that sentence for a region's file that may have ``most`` bytes of data; or empty."""
    with suppress(OSError):
        held = path.stat().st_blocks * 512
        if held > most:
            return (
                f"the guest has written to parts of its memory region that belong to no disk:"
                f" {format_size(held)} are in use, and its disks need {format_size(most)} at most"
            )
    return ""


def allowed(own: region.Region) -> int:
    """Return the most bytes of the host that a region may take."""
    with suppress(OSError):
        if not {"[never]", "[deny]"} & set(_SHMEM.read_text(encoding="ascii").split()):
            return own.most(_HUGE) + EXTRA
    return own.most() + EXTRA


class Limits:
    """Ends QEMU when its guest exceeds a limit, from a thread of its own."""

    def __init__(
        self, daemon: Ends, own: region.Region, log: Path, *, native: int | None = None
    ) -> None:
        """``native``: process of a native guest, whose root can run any code in its sandbox."""
        self._daemon, self._native = daemon, native
        self._own, self._log = own, log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="lab-limits")
        self.sentence = ""
        """What the guest did; empty: it has exceeded no limit."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if isinstance(error, Exception):
            self.check()

    def check(self) -> None:
        """``LimitError``: the guest has exceeded a limit."""
        if self.sentence:
            raise LimitError(f"{self.sentence}; it was ended")

    def _watch(self) -> None:
        seen = 0
        while not self._over.wait(_GLANCE):
            sentence = exceeded(self._own) or _too_long(self._log)
            if self._native is not None and seen % _SELDOM == 0:
                sentence = sentence or crowded(self._native)
            seen += 1
            if sentence:
                self.sentence = sentence
                self._daemon.end(0.0)
                return


def crowded(pid: int) -> str:
    """Return a sentence if a native guest has too much memory or too many processes; or empty.

    Its own memory is a file in a tmpfs of limited size, which does not count here.
    """
    found = pids.family(pid)
    if len(found) > PROCESSES:
        return f"the native guest had {len(found)} processes on the host, at most {PROCESSES}"
    memory = sum(map(pids.private_memory, found))
    if memory > PRIVATE:
        most = format_size(PRIVATE)
        return f"the native guest took {format_size(memory)} of the host's memory, at most {most}"
    return ""


def _too_long(log: Path) -> str:
    with suppress(OSError):
        if log.stat().st_size > SAID:
            return f"the guest made QEMU print more than {format_size(SAID)} of messages"
    return ""


def tail(path: Path, size: int) -> str:
    """Return at most ``size`` characters from a text file's end; empty: it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4 * size))
            return printable(file.read(4 * size).decode(errors="replace").strip())[-size:]
    except OSError:
        return ""
