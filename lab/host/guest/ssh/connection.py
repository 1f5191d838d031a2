"""A pool user's own connection to a guest that a worker owns."""

from __future__ import annotations

from pathlib import Path

from lab.core.errors import GuestError
from lab.host.guest import registry as guests
from lab.host.guest.registry import GuestRecord
from lab.host.guest.ssh.shell import Shell, reach
from lab.host.system import keys
from lab.model.execution.procedure import Output

CONNECT_SECONDS = 60.0
"""Timeout in seconds for connecting. It is ample, since the worker is connected already."""


class GuestConnection:
    """A connection as root. Each method raises ``GuestError``; for a dead guest it has the
    console."""

    def __init__(self, record: GuestRecord) -> None:
        self.record = record
        connection = reach(record.port, CONNECT_SECONDS, pid=record.pid)
        if connection is None:
            guests.require_alive(record)
            raise guests.dead(record, f"the guest '{record.id}' does not answer on SSH")
        self._shell = Shell.connect(
            connection,
            private_key=keys.lab_key().private,
            host_key=record.host_key,
            alive=lambda: guests.require_alive(record),
            timeout=CONNECT_SECONDS,
        )

    def run(self, script: str, timeout: float) -> Output:
        """Run shell lines; a failing line does not end the script. ``timeout`` in seconds."""
        try:
            return self._shell.run(script, timeout, stop=False)
        except GuestError as error:
            raise self._why(error) from error

    def put(self, source: Path, target: str) -> None:
        """Copy a file and its mode into the guest."""
        try:
            self._shell.put(source, target)
        except GuestError as error:
            raise self._why(error) from error

    def get(self, source: str, target: Path) -> None:
        try:
            self._shell.get(source, target)
        except GuestError as error:
            raise self._why(error) from error

    def alive(self) -> bool:
        """Return whether the guest runs and has not panicked."""
        try:
            guests.require_alive(self.record)
        except GuestError:
            return False
        return True

    def console(self, lines: int) -> str:
        """Return the last lines of the guest's console, or those around a panic."""
        return guests.console_tail(self.record.path, lines=lines)

    def close(self) -> None:
        """Close the connection; the guest continues."""
        self._shell.close()

    def _why(self, error: GuestError) -> GuestError:
        """Return the error; for a dead guest one with its console."""
        try:
            guests.require_alive(self.record)
        except GuestError as found:
            return found
        return error
