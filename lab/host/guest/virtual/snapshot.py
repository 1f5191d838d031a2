"""Snapshots of booted sealed guests, from which cells start without a boot.

A guest with only its root disk boots, is set up, and stops itself. Its memory, QEMU's state and its
region are stored under a digest of all inputs. A cell's region gets the saved root disk, and the
driver finds the cell's disks in it when the guest continues.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from drive import region, sealed
from drive.monitor import Console, Monitor, MonitorError
from lab.compile.guest.steps import KEEP_ENVIRONMENT
from lab.core.errors import FullError, HostError, LabError, TroubleError
from lab.core.units import MIB
from lab.host.guest.virtual.confined import confined
from lab.host.guest.virtual.limits import Limits, tail
from lab.host.images.store import file_sha256
from lab.host.images.virtual_time import guest_of, root_disk
from lab.host.system import clock, files, made, paths, process
from lab.model.execution.job import SealedKit

STATE: Final = "state"
MEMORY: Final = "memory"
REGION: Final = "region"
ABOUT: Final = "snapshot.json"
FORMAT: Final = 2
ROOT_SPACE: Final = 512 * MIB
"""Most bytes that a guest may write to its root file system."""
BOOT: Final = 600.0
"""Timeout for a boot and a power-off, in seconds of the host."""
KEPT: Final = 6
"""Most snapshots that are kept; each takes about 200 MB."""
_ANSWER: Final = 60.0
"""Timeout in seconds for QEMU to start, and to load a state."""
_MAKING: Final = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSnapshot:
    """A snapshot of a sealed guest."""

    directory: Path
    digests: dict[str, str]
    """SHA-256 of QEMU's state, the guest's memory and its region."""

    def restored(self, guest: sealed.Guest) -> sealed.Guest:
        """Return the guest that starts from this snapshot, over its own region."""
        return replace(
            guest, memory_file=self.directory / MEMORY, extra=(*guest.extra, *sealed.STOPPABLE)
        )

    def graft(self, made: region.Region) -> None:
        """Copy the saved root disk into a cell's new region; ``RegionError``: it does not fit."""
        saved = _region(self.directory / REGION, made.disks[0], made.header.size)
        region.graft(saved, made)


def _region(path: Path, root: region.Disk, size: int) -> region.Region:
    return region.describe(path, [root], size=size, blocks=ROOT_SPACE // region.BLOCK)


def name_of(kit: SealedKit, size: int) -> str:
    """Return the snapshot's name for regions of ``size`` bytes: a digest of all its inputs."""
    guest = guest_of(kit, Path("REGION"))
    facts = {
        "format": FORMAT,
        "files": kit.digests,
        "memory": guest.memory,
        "seed": guest.seed,
        "arguments": [sealed.KERNEL_ARGUMENTS, guest.arguments],
        "machine": [sealed.MACHINE, sealed.CPU, sealed.UNRECORDED, sealed.STOPPABLE],
        "commands": _COMMANDS,
        "size": size,
    }
    text = json.dumps(facts, sort_keys=True)
    return f"snapshot-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


_COMMANDS: Final = sealed.SETUP + KEEP_ENVIRONMENT + sealed.STOP


def prepare(
    kit: SealedKit, size: int, *, directory: Path, say: Callable[[str], None]
) -> SealedSnapshot:
    """Return the snapshot for regions of ``size`` bytes; make it if missing. ``HostError``: that
    failed.

    ``directory`` belongs to the guest for which it is made: QEMU's socket and log are there
    meanwhile.
    """
    place = paths.sealed() / name_of(kit, size)

    def make(work: Path) -> None:
        try:
            work.mkdir()
            digests = _make(kit, size, work, directory)
            files.write(work / ABOUT, json.dumps({"digests": digests, "sizes": _sizes(work)}))
        except FullError:
            raise
        except LabError as error:
            raise HostError(
                f"making the snapshot of a sealed guest failed: {error.message}"
            ) from error
        except (OSError, MonitorError, region.RegionError) as error:
            raise HostError(f"making the snapshot of a sealed guest failed: {error}") from error

    if (present := _read(place)) is not None:
        return present
    snapshot = made.once(
        place,
        lambda: _read(place),
        make,
        seconds=_MAKING,
        what="another process to save a sealed guest",
        begin=lambda: say("making a snapshot: booting a guest once"),
    )
    _trim(place)
    return snapshot


def discard(snapshot: SealedSnapshot) -> None:
    """Remove a snapshot that does not restore, unless another process has replaced it."""
    made.drop(snapshot.directory, lambda: _digests(snapshot.directory) == snapshot.digests)


def _make(kit: SealedKit, size: int, work: Path, directory: Path) -> dict[str, str]:
    path, memory = work / REGION, work / MEMORY
    own = region.create(
        path,
        [root_disk(kit)],
        size=size,
        blocks=ROOT_SPACE // region.BLOCK,
        commands=_COMMANDS.encode(),
    )
    with memory.open("wb") as new:
        new.truncate(kit.memory * MIB)
    guest = replace(
        guest_of(kit, path), memory_file=memory, saves=True, extra=tuple(sealed.STOPPABLE)
    )
    socket = directory / "qmp"
    socket.unlink(missing_ok=True)
    log = directory / "qemu.log"
    command = [*sealed.command(guest), *Monitor.arguments(socket)]
    daemon = process.Daemon(confined(command, directory), log=log)
    try:
        with (
            Limits(daemon, own, log),
            connected(Monitor, socket, daemon, timeout=clock.limit(BOOT)) as monitor,
        ):
            monitor.ask("cont")
            monitor.wait_for("STOP")
            if (state := region.read(own)).phase is not region.Phase.RUNNING:
                raise MonitorError(f"the guest stopped unexpectedly ({state.phase.name.lower()})")
            monitor.save(work / STATE)
            monitor.ask("quit")
            daemon.wait(_ANSWER)
        region.set_clock(own, round_clock(work / STATE))
    except (OSError, MonitorError) as error:
        said = (tail(log, 2000) or _log(own)).splitlines()
        raise MonitorError(f"{error}: {' / '.join(said[-4:]) or 'it printed nothing'}") from error
    finally:
        daemon.end(3.0)
    return {
        STATE: file_sha256(work / STATE),
        MEMORY: region.digest(memory),
        REGION: region.digest(path),
    }


_SECOND: Final = 10**9
_CLOCKS: Final = b"\x05\x0ctimer/icount\0\0\0\1"
"""A subsection's mark, its name's length, its name and version: three clocks of 8 bytes are before
it, two behind (QEMU, ``softmmu/cpu-timers.c: vmstate_timers``)."""


def round_clock(state: Path) -> int:
    """Set the clock in a snapshot to a whole second, at least one ahead; return nanoseconds.

    When the guest has stopped, QEMU may still move the clock to the next timer, depending on the
    host's load. Of three snapshots two were 2.8 ms ahead of the third: dd took 1.36136 s in their
    guests and 1.38070 s in the third's. With the clock set, the three states have the same bytes.
    Timers that are due by then fire when the guest goes on.

    The saved count of instructions becomes 0, and the clock's bias all of it: the guest sees their
    sum. QEMU compares its first count with 0 in an ``int`` (``replay_advance_current_icount``) and
    aborts from 2^31 instructions on, which the boot of Linux 6.12 executes.

    ``MonitorError``: the state has no clock where QEMU 7.2 has it.
    """
    data = bytearray(state.read_bytes())
    if (at := data.find(_CLOCKS)) < 24:
        raise MonitorError("QEMU's saved state has another layout than QEMU 7.2's")
    bias: int
    executed: int
    bias, executed = struct.unpack_from(">qq", data, at + len(_CLOCKS))
    # From the instructions, of which each guest executed as many; the bias has QEMU's move.
    clock = (executed // _SECOND + 2) * _SECOND
    while clock < bias + executed:
        clock += _SECOND
    struct.pack_into(">qq", data, at + len(_CLOCKS), clock, 0)
    # Clocks of the host. A guest with -icount does not see them.
    struct.pack_into(">qqq", data, at - 24, 0, 0, 0)
    state.write_bytes(data)
    return clock


def _log(own: region.Region) -> str:
    try:
        return region.read(own).log.strip()
    except (OSError, ValueError):
        return ""


def restore(snapshot: SealedSnapshot, monitor: Monitor | Console) -> None:
    """Load the saved state into a waiting QEMU, and let the guest continue.

    After this no command may be sent to QEMU: it would change the guest's timing.
    """
    monitor.restore(snapshot.directory / STATE)
    monitor.ask("cont")


_M = TypeVar("_M", Monitor, Console)


@contextmanager
def connected(
    kind: type[_M], path: Path, daemon: process.Daemon, *, timeout: float = _ANSWER
) -> Iterator[_M]:
    """Yield a connection to a monitor of a QEMU that was just started.

    ``timeout``: seconds for a reply. ``MonitorError``, ``OSError``: no reply.
    """

    def attempt() -> _M | None:
        if daemon.status() is not None:
            raise MonitorError("QEMU has ended")
        try:
            return kind(path, timeout)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    try:
        monitor = clock.wait_until(
            attempt, timeout=_ANSWER, reason="QEMU's monitor to answer", interval=0.01
        )
    except TroubleError as error:
        raise MonitorError(error.message) from error
    with monitor:
        yield monitor


def _sizes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_size for name in (STATE, MEMORY, REGION)}


def _digests(directory: Path) -> Any:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads((directory / ABOUT).read_text(encoding="utf-8"))["digests"]
    return None


def _read(directory: Path) -> SealedSnapshot | None:
    """Return the snapshot in a directory; ``None``: none, or an incomplete one."""
    try:
        about = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
        if about["sizes"] != _sizes(directory):
            return None
        os.utime(directory / ABOUT)  # `_trim` removes the least recently used snapshots
        return SealedSnapshot(directory=directory, digests=dict(about["digests"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _last_used(directory: Path) -> int:
    """Return the time of a snapshot's last use in nanoseconds; it changes if it is replaced."""
    return (directory / ABOUT).stat().st_mtime_ns


def _was_last_used(directory: Path, when: int) -> bool:
    return _last_used(directory) == when


def _trim(newest: Path) -> None:
    """Remove the least recently used snapshots beyond :data:`KEPT`."""
    used = []
    for entry in paths.sealed().glob("snapshot-*"):
        with suppress(OSError):
            used.append((_last_used(entry), entry))
    for when, entry in sorted(used, reverse=True)[KEPT:]:
        if entry != newest:
            made.drop(entry, partial(_was_last_used, entry, when))
