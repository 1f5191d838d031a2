"""A sealed guest that stops at a time of its clock, for ``lab debug``.

The driver's own timer stops QEMU (``drive/lab_hunt.c: lab_stop_fire``). A ``stop`` from the host
would come at another instruction each time. After the stop QEMU may be asked anything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from drive import region, requests, sealed
from drive.monitor import Monitor, MonitorError
from lab.compile.guest.program import programs
from lab.core.errors import GuestError, HostError, InputError
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual import snapshot as sealed_snapshot
from lab.host.guest.virtual.confined import confined
from lab.host.guest.virtual.limits import Limits
from lab.host.guest.virtual.sealed import SLOWEST, SealedBackend
from lab.host.guest.virtual.snapshot import BOOT, SealedSnapshot
from lab.host.system import clock, files, made
from lab.model.execution.job import SealedKit
from lab.model.execution.procedure import SealDisks, Step


class Stopped:
    """A guest that has stopped, and QEMU's monitor."""

    def __init__(self, found: requests.Stop, log: str, memory: int, monitor: Monitor) -> None:
        self.found = found
        self.log = log
        """Kernel messages so far."""
        self._memory = memory
        self._monitor = monitor

    def core(self, path: Path) -> None:
        """Write the guest's memory as an ELF file; ``HostError``: that failed.

        QEMU follows links, so it gets a name that nobody can guess.
        """
        with made.making(path) as part:
            try:
                self._monitor.ask(
                    "dump-guest-memory",
                    paging=False,
                    protocol=f"file:{part}",
                    begin=0,
                    length=self._memory << 20,
                )
            except (MonitorError, OSError) as error:
                raise HostError(f"the guest's memory could not be written: {error}") from error
            files.move(part, path)

    def serve_gdb(self, path: Path) -> None:
        """Make QEMU wait for gdb on a socket; ``HostError``: that failed."""
        line = f"gdbserver unix:{path},server=on,wait=off"
        try:
            said = self._monitor.ask("human-monitor-command", **{"command-line": line})
        except (MonitorError, OSError) as error:
            raise HostError(f"QEMU's gdbserver did not start: {error}") from error
        if not path.is_socket():
            raise HostError(f"QEMU's gdbserver did not start: {str(said).strip()}")

    def wait(self) -> None:
        """Wait until gdb ends QEMU."""
        try:
            while True:
                try:
                    self._monitor.wait_for("SHUTDOWN")
                except TimeoutError:
                    continue
                return
        except (MonitorError, OSError):
            return


class _OverError(Exception):
    """The guest has stopped, and nothing more is wanted of it."""


class StoppingBackend(SealedBackend):
    """A sealed guest whose first boot stops at a time of its clock."""

    def __init__(
        self,
        record: GuestRecord,
        kit: SealedKit,
        *,
        stop: int,
        then: Callable[[Stopped], None],
        tell: Callable[[Step | str], None],
        notice: Callable[[str], None],
        cold: bool,
    ) -> None:
        """``stop``: nanoseconds. ``then`` is called with the stopped guest, which ends after it."""
        super().__init__(record, kit, tell=tell, notice=notice, cold=cold)
        self._stop = stop
        self._then = then

    @override
    def _take_trial(self) -> None:
        super()._take_trial()
        self._programs = programs(self._procedure, self._stop)

    @override
    def seal_disks(self, step: SealDisks) -> None:
        with suppress(_OverError):
            super().seal_disks(step)

    @override
    def _boot(
        self, guest: sealed.Guest, limit: float, snapshot: SealedSnapshot | None = None
    ) -> None:
        socket = self.record.path / "qmp"
        socket.unlink(missing_ok=True)
        extra = (*guest.extra, *sealed.STOPPABLE)
        guest = snapshot.restored(guest) if snapshot else replace(guest, extra=extra)
        command = [*sealed.command(guest), *Monitor.arguments(socket)]
        incoming = ["-incoming", "defer"] if snapshot else []
        daemon = self._started(confined([*command, *incoming], self.record.path))
        timeout = clock.limit(BOOT + SLOWEST * limit)
        own = self._own_region
        with Limits(daemon, own, self.record.path / "qemu.log"), ExitStack() as stack:
            try:
                monitor = stack.enter_context(
                    sealed_snapshot.connected(Monitor, socket, daemon, timeout=timeout)
                )
                if snapshot:
                    sealed_snapshot.restore(snapshot, monitor)
                else:
                    monitor.ask("cont")
                monitor.wait_for("STOP")
            except TimeoutError as error:
                self._lost(f"the guest neither stopped nor ended within {timeout:.0f} s")
                raise AssertionError from error
            except (MonitorError, OSError) as error:
                self._ended_before(own, error, restored=snapshot is not None)
            state = region.read(own)
            found = requests.stop_of(state.output)
            if found is None:
                raise GuestError("the guest stopped, but not by its timer")
            self._then(Stopped(found, state.log, guest.memory, monitor))
        raise _OverError

    def _ended_before(self, own: region.Region, error: Exception, *, restored: bool) -> NoReturn:
        """Raise an error for a guest that has ended before its stop; ``MonitorError``: it could not
        load the snapshot."""
        self.destroy_guest()
        state = region.read(own)
        if state.phase in (region.Phase.RUNNING, region.Phase.NOT_LOADED):
            said = f"{error}: {self._said() or 'QEMU printed nothing'}"
            raise (MonitorError if restored else GuestError)(said) from error
        raise InputError(
            f"--at: the guest ended at {state.clock / 1e9:.3f} s of its clock"
            f" ({state.phase.name.lower()}), before it could be stopped: give an earlier time"
        )
