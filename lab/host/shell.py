"""SSH into a guest: one connection with a pinned host key, and a shell that stays open.

A channel for each command costs an emulated guest a tenth of a second and more: sshd forks, and a
login shell is loaded that loads another. So one ``sh`` reads one script after another from its
channel. Each runs in a subshell of its own: it may end, change directory or set what it likes.
"""

from __future__ import annotations

import importlib
import io
import shlex
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from lab.errors import GuestError, ToolError
from lab.host import clock
from lab.model.ports import Output

if TYPE_CHECKING:
    import paramiko

BANNER_SECONDS: Final = 5.0
"""QEMU's user network accepts connections long before sshd lives: without a limit on the
banner, a client waits for minutes."""
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
COPY_SECONDS: Final = 60.0
"""For which no byte of a file may pass."""
_GLANCE: Final = 0.2
"""Seconds between two looks at standard error and the clock."""


def prepare() -> None:
    """Load paramiko, which takes a tenth of a second, while the guest starts."""
    threading.Thread(target=importlib.import_module, args=("paramiko",), daemon=True).start()


def reach(port: int, timeout: float = BANNER_SECONDS) -> socket.socket | None:
    """A connection on which an SSH server has said who it is; its words are still to be read."""
    with suppress(OSError):
        connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        try:
            connection.settimeout(timeout)
            if connection.recv(8, socket.MSG_PEEK).startswith(b"SSH-"):
                return connection
        except OSError:
            pass
        connection.close()
    return None


def banner(port: int, timeout: float = BANNER_SECONDS) -> bool:
    """Whether an SSH server answers on a port of 127.0.0.1 within ``timeout`` seconds."""
    connection = reach(port, timeout)
    if connection is None:
        return False
    connection.close()
    return True


class Shell:
    """A connection as root that runs one script after another."""

    def __init__(self, client: paramiko.SSHClient, alive: Callable[[], None]) -> None:
        self._client = client
        self._alive = alive
        """Raises ``GuestError`` when the guest has died; asked again and again in a command."""
        self._idle: list[paramiko.Channel] = []
        """Shells that wait for their next script; two at once need two."""
        self._mark = token_hex(8)

    @classmethod
    def connect(
        cls,
        connection: socket.socket,
        *,
        private_key: str,
        host_key: str,
        alive: Callable[[], None],
        timeout: float,
        user: str = "root",
    ) -> Shell:
        """Log in on what :func:`reach` found; any host key but the pinned one is refused.

        ``alive`` raises ``GuestError`` when the guest has died; it is asked again and again while
        a command runs.
        """
        import paramiko

        port = connection.getpeername()[1]
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
                sock=connection,
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

    def run(
        self, script: str, timeout: float, heard: Callable[[bytes], None] = lambda _output: None
    ) -> Output:
        """Run shell lines with ``set -e``; ``GuestError`` when the guest dies or takes too long.

        ``heard`` gets what they print, as it comes.
        """
        import paramiko

        started = clock.now()

        def still_time() -> None:
            self._alive()
            if clock.now() - started > timeout:
                first = script.strip().splitlines()[0]
                raise GuestError(
                    f"a command in the guest had not ended after {timeout:.0f} seconds:"
                    f" {first[:120]}"
                )

        try:
            channel = self._idle.pop() if self._idle else self._open(still_time)
            try:
                answer = self._ask(channel, script, still_time, heard)
            except BaseException:
                channel.close()  # something may still run in it
                raise
            self._idle.append(channel)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self._alive()
            raise GuestError(f"the SSH connection to the guest was lost: {error}") from error
        status, out, err = answer
        return Output(
            status=status,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=clock.now() - started,
        )

    def start(self, script: str) -> Running:
        """Begin a script in a shell of its own, with ``set -e``, and go on."""
        started = clock.now()

        def still_time() -> None:
            self._alive()
            if clock.now() - started > 60.0:
                raise GuestError("the guest did not take a script within 60 seconds")

        channel = self._open(still_time)
        text = f"(set -e; eval {shlex.quote(script)}) </dev/null\nexit $?\n"
        _send(channel, text.encode(), still_time)
        return Running(channel, self._alive)

    def put(self, source: Path, target: str) -> None:
        """Copy a file into the guest, with its mode; ``ToolError`` says what was refused."""

        def move(files: paramiko.SFTPClient) -> None:
            files.put(str(source), target)
            files.chmod(target, stat.S_IMODE(source.stat().st_mode))

        self._copy(move, f"'{source}' could not be copied to '{target}' in the guest")

    def get(self, source: str, target: Path) -> None:
        """Copy a file out of the guest; ``ToolError`` says what was refused."""
        self._copy(
            lambda files: files.get(source, str(target)),
            f"'{source}' in the guest could not be copied to '{target}'",
        )

    def _copy(self, move: Callable[[paramiko.SFTPClient], object], failed: str) -> None:
        """One transfer over SFTP; a guest that takes nothing for so long has died."""
        import paramiko

        try:
            with self._client.open_sftp() as files:
                channel = files.get_channel()
                if channel is not None:
                    channel.settimeout(COPY_SECONDS)
                move(files)
        except (paramiko.SSHException, TimeoutError, EOFError) as error:
            self._alive()
            raise GuestError(f"the SSH connection to the guest was lost: {error}") from error
        except OSError as error:
            self._alive()
            raise ToolError(f"{failed}: {error.strerror or error}") from error

    def _open(self, still_time: Callable[[], None]) -> paramiko.Channel:
        """A channel with a shell in it that waits for scripts."""
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            self._alive()
            raise GuestError("the SSH connection to the guest was lost")
        channel = _channel(transport, still_time)
        _begin(channel, f"LC_ALL=C PATH={_PATH} exec sh", still_time)
        return channel

    def _ask(
        self,
        channel: paramiko.Channel,
        script: str,
        still_time: Callable[[], None],
        heard: Callable[[bytes], None],
    ) -> tuple[int, bytes, bytes]:
        """Give a shell a script; its exit status, standard output and error."""
        mark = self._mark
        text = (
            f"(set -e; eval {shlex.quote(script)}) </dev/null\n"
            f"printf '\\n{mark} %d\\n' $?\n"
            f"printf '\\n{mark}\\n' >&2\n"
        )
        _send(channel, text.encode(), still_time)
        end, out, err = f"\n{mark} ".encode(), bytearray(), bytearray()
        error_end = f"\n{mark}\n".encode()
        asked = clock.now()
        whole = False
        while not (whole and err.endswith(error_end)):
            source, into = (channel.recv_stderr, err) if whole else (channel.recv, out)
            channel.settimeout(_GLANCE)
            with suppress(TimeoutError):
                got = source(65536)
                if not got:
                    self._alive()
                    raise GuestError("the SSH connection to the guest was lost")
                into += got
                if not whole:
                    heard(got)
            while channel.recv_stderr_ready():
                err += channel.recv_stderr(65536)
            whole = whole or (out.endswith(b"\n") and out.rfind(end, -len(end) - 8) >= 0)
            if clock.now() - asked > 1.0:
                still_time()
                asked = clock.now()
        printed, _, status = bytes(out).rpartition(end)
        return int(status), printed, bytes(err[: -len(error_end)])


class Running:
    """A script that runs beside others; what it prints is taken in as it comes."""

    def __init__(self, channel: paramiko.Channel, alive: Callable[[], None]) -> None:
        self._channel, self._alive = channel, alive
        self._out, self._err = bytearray(), bytearray()
        self._began = self._ended = clock.now()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._channel.settimeout(_GLANCE)
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
        status = self._channel.recv_exit_status()
        if status < 0:
            self._alive()
            raise GuestError("the SSH connection to the guest was lost")
        return self._output(status)

    def over(self) -> Output:
        """What it had told when its guest ended under it."""
        self._reader.join(5.0)  # the connection ends with QEMU
        self._channel.close()
        self._reader.join(5.0)
        return self._output(-1)

    def _output(self, status: int) -> Output:
        return Output(
            status=status,
            stdout=self._out.decode(errors="replace"),
            stderr=self._err.decode(errors="replace"),
            seconds=self._ended - self._began,
        )


def _channel(transport: paramiko.Transport, still_time: Callable[[], None]) -> paramiko.Channel:
    """A channel; a guest that is only slow gets more than one try."""
    import paramiko

    while True:
        try:
            return transport.open_session(timeout=2.0)
        except paramiko.SSHException as error:
            if "imeout" not in str(error):
                raise
            still_time()


def _send(channel: paramiko.Channel, data: bytes, still_time: Callable[[], None]) -> None:
    """All of it, however slowly the guest takes it."""
    channel.settimeout(1.0)
    while data:
        try:
            data = data[channel.send(data) :]
        except TimeoutError:
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
