"""Channels of an SSH connection: every operation of paramiko's has a timeout, and all that a guest
sends has a limit.

The guest's sshd may be another program: root in the guest has its host key. paramiko keeps all that
such a server sends and nobody reads, of any channel, as well as a packet or a line of any length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lab.compile.guest.program import OUTPUT
from lab.core.errors import GuestError, LimitError
from lab.core.units import format_size
from lab.host.system import clock, deadline
from lab.model.execution.procedure import Output

if TYPE_CHECKING:
    import socket

    import paramiko

LIMIT: Final = 60.0
"""Timeout in seconds for the guest to open a channel, or to accept a command or a part of a script.
paramiko itself waits without limit for replies, and for space in a connection that nobody reads."""
LONGEST: Final = 3600.0
"""paramiko's own timeouts in seconds. They count on the host's clock, so the lab's own limits come
first."""
CLOSING: Final = 5.0
"""Timeout in seconds for closing a channel or a connection; then it is abandoned."""
GLANCE: Final = 0.2
"""Seconds between two checks of standard error and the clock."""


UNREAD: Final = 2 * OUTPUT
"""Most bytes that a guest may have sent and that no command has read."""


class Meter:
    """A socket for paramiko, which ends the connection if the guest sends too much unread data."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = 0
        self.sentence = ""
        """Why the connection was ended; empty: it was not."""

    def recv(self, size: int) -> bytes:
        data = self._socket.recv(size)
        self._unread += len(data)
        if self._unread > UNREAD:
            self.sentence = (
                f"the guest sent {format_size(UNREAD)} over SSH that no command has read; the "
                "connection was closed"
            )
            self._socket.close()
            return b""
        return data

    def send(self, data: bytes) -> int:
        return self._socket.send(data)

    def read(self) -> None:
        """Note that a command has read what was sent so far, or that a new one begins."""
        self._unread = 0

    def close(self) -> None:
        self._socket.close()

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def getpeername(self) -> object:
        return self._socket.getpeername()

    @property
    def _closed(self) -> bool:
        """Whether it is closed; ``paramiko.Transport.stop_thread`` reads it."""
        return self._socket.fileno() < 0


def too_long(what: str) -> LimitError:
    """Return the error for a command that prints too much."""
    return LimitError(f"{what} printed more than {format_size(OUTPUT)}: make it print less")


class Running:
    """A script that runs concurrently with others; its output is read as it arrives."""

    def __init__(
        self,
        channel: paramiko.Channel,
        alive: Callable[[], None],
        read: Callable[[], None] = lambda: None,
        time: Callable[[], float] = clock.now,
    ) -> None:
        """``read`` is called for all that was read. ``time``: the clock of limits."""
        self._channel, self._alive, self._took = channel, alive, read
        self._time, self._asked = time, time()
        self._out, self._err = bytearray(), bytearray()
        self._too_long = False
        self._began = self._ended = clock.now()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._channel.settimeout(GLANCE)
        while self._fits():
            while self._channel.recv_stderr_ready() and self._fits():
                self._err += self._channel.recv_stderr(65536)
            with suppress(TimeoutError):
                got = self._channel.recv(65536)
                if not got:
                    break
                self._out += got
        with suppress(OSError):  # standard error ends with the channel
            while self._fits() and (got := self._channel.recv_stderr(65536)):
                self._err += got
        self._ended = clock.now()
        if not self._fits():
            self._too_long = True
            close(self._channel.close)

    def _fits(self) -> bool:
        self._took()
        return len(self._out) + len(self._err) <= OUTPUT

    def end(self, timeout: float) -> Output:
        """Wait until it ends; ``GuestError``: the guest died, or ``timeout`` seconds are over.

        ``LimitError``: it printed too much.
        """
        while self._reader.is_alive():
            self._reader.join(1.0)
            if self._reader.is_alive():
                self._alive()
                if self._time() - self._asked > timeout:
                    error = GuestError(f"a workload did not end within {timeout:.0f} seconds")
                    error.late = f"{timeout:.0f} seconds"
                    raise error
        if self._too_long:
            raise too_long("a workload")
        status = deadline.call(
            self._channel.recv_exit_status,
            seconds=clock.limit(LIMIT),
            what="the exit status of a workload over SSH",
            glance=self._alive,
            time=self._time,
        )
        if status < 0:
            self._alive()
            raise GuestError("the SSH connection to the guest was lost")
        return self._output(status)

    def over(self) -> Output:
        """Return its output so far, after its guest has ended."""
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


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of an operation."""

    seconds: float
    time: Callable[[], float] = clock.now
    """The clock that it counts on."""


def channel(
    transport: paramiko.Transport, still_time: Callable[[], None], limit: Limit
) -> paramiko.Channel:
    """Return a new channel; ``still_time`` is called every second and may raise."""
    return deadline.call(
        lambda: transport.open_session(timeout=LONGEST),
        seconds=limit.seconds,
        what="the guest to open a channel over SSH",
        glance=still_time,
        time=limit.time,
    )


def send(
    channel: paramiko.Channel, data: bytes, still_time: Callable[[], None], limit: Limit
) -> None:
    """Send all data, however slowly the guest accepts it."""
    channel.settimeout(1.0)

    def piece() -> int:
        try:
            return channel.send(data)
        except TimeoutError:
            return 0

    while data:
        taken = deadline.call(
            piece,
            seconds=limit.seconds,
            what="the guest to accept a script over SSH",
            glance=still_time,
            time=limit.time,
        )
        if not taken:
            still_time()
        data = data[taken:]


def begin(
    channel: paramiko.Channel, command: str, still_time: Callable[[], None], limit: Limit
) -> None:
    """Send the command, and wait until the guest accepts it."""
    deadline.call(
        lambda: channel.exec_command(command),
        seconds=limit.seconds,
        what="the guest to start a command over SSH",
        glance=still_time,
        time=limit.time,
    )


def close(close: Callable[[], None]) -> None:
    """Close an object of paramiko's, within :data:`CLOSING`."""
    with suppress(GuestError, OSError, EOFError):
        deadline.call(close, seconds=clock.limit(CLOSING), what="a connection over SSH to close")
