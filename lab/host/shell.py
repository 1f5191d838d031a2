"""SSH into a guest: one connection with a pinned host key, a channel for each command."""

from __future__ import annotations

import io
import shlex
import socket
import threading
from collections.abc import Callable
from typing import Final

import paramiko

from lab.errors import GuestError
from lab.host import clock
from lab.model.ports import Output

BANNER_SECONDS: Final = 5.0
"""QEMU's user network accepts connections long before sshd lives: without a limit on the
banner, a client waits for minutes."""


def banner(port: int, timeout: float = BANNER_SECONDS) -> bool:
    """Whether an SSH server answers on a port of 127.0.0.1 within ``timeout`` seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(8).startswith(b"SSH-")
    except OSError:
        return False


class Shell:
    """A connection as root that runs one command after another."""

    def __init__(self, client: paramiko.SSHClient, alive: Callable[[], None]) -> None:
        self._client = client
        self._alive = alive
        """Raises ``GuestError`` when the guest has died; asked every second of a command."""

    @classmethod
    def connect(
        cls,
        port: int,
        *,
        private_key: str,
        host_key: str,
        alive: Callable[[], None],
        timeout: float,
        user: str = "root",
    ) -> Shell:
        """Connect; any host key but the pinned one is refused.

        ``alive`` raises ``GuestError`` when the guest has died; it is asked again and again while
        a command runs.
        """
        client = paramiko.SSHClient()
        kind, blob = host_key.split()[:2]
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"[127.0.0.1]:{port} {kind} {blob}")
        assert entry is not None
        assert entry.key is not None
        client.get_host_keys().add(f"[127.0.0.1]:{port}", kind, entry.key)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        try:
            client.connect(
                "127.0.0.1",
                port,
                username=user,
                pkey=key,
                look_for_keys=False,
                allow_agent=False,
                timeout=timeout,
                banner_timeout=timeout,
                auth_timeout=timeout,
            )
        except paramiko.BadHostKeyException as error:
            client.close()
            raise GuestError(
                "the guest showed another SSH host key than the one the lab gave it, and was"
                " refused",
                hint="something else listens on its port, or the image makes keys of its own",
            ) from error
        except paramiko.AuthenticationException as error:
            client.close()
            raise GuestError(
                f"the guest refused the lab's key for user '{user}'",
                hint="cloud-init did not run, or the image forbids it; see the console log",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            raise GuestError(f"the SSH connection to the guest failed: {error}") from error
        return cls(client, alive)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def run(self, script: str, timeout: float) -> Output:
        """Run shell lines with ``sh -e``; ``GuestError`` when the guest dies or takes too long."""
        started = clock.now()
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        command = f"LC_ALL=C PATH={path} exec sh -ec {shlex.quote(script)}"
        try:
            return self._run(f"{command} </dev/null", script, started, timeout)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self._alive()
            raise GuestError(f"the SSH connection to the guest was lost: {error}") from error

    def _run(self, command: str, script: str, started: float, timeout: float) -> Output:
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            self._alive()
            raise GuestError("the SSH connection to the guest was lost")

        def still_time() -> None:
            self._alive()
            if clock.now() - started > timeout:
                first = script.strip().splitlines()[0]
                raise GuestError(
                    f"a command in the guest had not ended after {timeout:.0f} seconds:"
                    f" {first[:120]}"
                )

        channel = _open(transport, still_time)
        out, err = bytearray(), bytearray()
        try:
            _begin(channel, command, still_time)
            asked = clock.now()
            while True:
                # recv_exit_status would wait without a limit: take what comes, look at the clock.
                # Whether all has come is asked before the taking: what comes between is not lost.
                whole = channel.exit_status_ready() and channel.eof_received
                moved = False
                while channel.recv_ready():
                    out += channel.recv(65536)
                    moved = True
                while channel.recv_stderr_ready():
                    err += channel.recv_stderr(65536)
                    moved = True
                if whole and not moved:
                    break
                if channel.closed and not channel.exit_status_ready():
                    self._alive()
                    raise GuestError("the SSH connection to the guest was lost")
                if clock.now() - asked > 1.0 or clock.now() - started > timeout:
                    still_time()
                    asked = clock.now()
                if not moved:
                    channel.status_event.wait(0.01)
            status = channel.recv_exit_status()
        finally:
            channel.close()
        return Output(
            status=status,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=clock.now() - started,
        )


def _open(transport: paramiko.Transport, still_time: Callable[[], None]) -> paramiko.Channel:
    """A channel; a guest that is only slow gets more than one try."""
    while True:
        try:
            return transport.open_session(timeout=2.0)
        except paramiko.SSHException as error:
            if "imeout" not in str(error):
                raise
            still_time()


def _begin(channel: paramiko.Channel, command: str, still_time: Callable[[], None]) -> None:
    """Send the command. paramiko waits for the answer without a limit, so a thread does that."""
    failed: list[Exception] = []

    def send() -> None:
        try:
            channel.exec_command(command)
        except Exception as error:  # told to whoever waits, below
            failed.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    while True:
        sender.join(1.0)
        if not sender.is_alive():
            break
        still_time()
    if failed:
        raise failed[0]
