"""Channels of an SSH connection: each operation of paramiko's, with a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lab.core.errors import GuestError
from lab.host.system import clock, deadline
from lab.model.execution.ports import Output

if TYPE_CHECKING:
    import paramiko

LIMIT: Final = 60.0
"""For the guest to open a channel, or to take a command or a piece of a script. paramiko waits
without a limit for answers, and for room in a connection that nobody reads."""
CLOSING: Final = 5.0
"""For a channel or a connection to close; then it is left as it is."""
GLANCE: Final = 0.2
"""Seconds between two looks at standard error and the clock."""


class Running:
    """A script that runs beside others; what it prints is taken in as it comes."""

    def __init__(self, channel: paramiko.Channel, alive: Callable[[], None]) -> None:
        self._channel, self._alive = channel, alive
        self._out, self._err = bytearray(), bytearray()
        self._began = self._ended = clock.now()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._channel.settimeout(GLANCE)
        while True:
            while self._channel.recv_stderr_ready():
                self._err += self._channel.recv_stderr(65536)
            with suppress(TimeoutError):
                got = self._channel.recv(65536)
                if not got:
                    break
                self._out += got
        with suppress(OSError):  # standard error ends with the channel
            while got := self._channel.recv_stderr(65536):
                self._err += got
        self._ended = clock.now()

    def end(self, timeout: float) -> Output:
        """Wait for its end; ``GuestError`` where the guest dies, or takes too long."""
        while self._reader.is_alive():
            self._reader.join(1.0)
            if self._reader.is_alive():
                self._alive()
                if clock.now() - self._began > timeout:
                    raise GuestError(f"a workload had not ended after {timeout:.0f} seconds")
        status = deadline.call(
            self._channel.recv_exit_status,
            seconds=clock.limit(LIMIT),
            what="the guest to tell the exit status of a workload over SSH",
            glance=self._alive,
        )
        if status < 0:
            self._alive()
            raise GuestError("the SSH connection to the guest was lost")
        return self._output(status)

    def over(self) -> Output:
        """What it had told when its guest ended under it."""
        self._reader.join(5.0)  # the connection ends with QEMU
        close(self._channel.close)
        self._reader.join(5.0)
        return self._output(-1)

    def _output(self, status: int) -> Output:
        return Output(
            status=status,
            stdout=self._out.decode(errors="replace"),
            stderr=self._err.decode(errors="replace"),
            seconds=self._ended - self._began,
        )


def channel(
    transport: paramiko.Transport, still_time: Callable[[], None], limit: float
) -> paramiko.Channel:
    """A channel; ``still_time`` is asked every second."""
    return deadline.call(
        lambda: transport.open_session(timeout=limit),
        seconds=limit,
        what="the guest to open a channel over SSH",
        glance=still_time,
    )


def send(
    channel: paramiko.Channel, data: bytes, still_time: Callable[[], None], limit: float
) -> None:
    """All of it, however slowly the guest takes it."""
    channel.settimeout(1.0)

    def piece() -> int:
        try:
            return channel.send(data)
        except TimeoutError:
            return 0

    while data:
        taken = deadline.call(
            piece,
            seconds=limit,
            what="the guest to take a script over SSH",
            glance=still_time,
        )
        if not taken:
            still_time()
        data = data[taken:]


def begin(
    channel: paramiko.Channel, command: str, still_time: Callable[[], None], limit: float
) -> None:
    """Send the command, and wait for the guest to accept it."""
    deadline.call(
        lambda: channel.exec_command(command),
        seconds=limit,
        what="the guest to begin a command over SSH",
        glance=still_time,
    )


def close(close: Callable[[], None]) -> None:
    """Close something of paramiko's, if it can be closed in time."""
    with suppress(GuestError, OSError, EOFError):
        deadline.call(close, seconds=clock.limit(CLOSING), what="a connection over SSH to close")
