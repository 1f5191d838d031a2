"""SSH into a guest: one connection with a pinned host key, and a shell that stays open.

A channel for each command costs an emulated guest 0.1 s and more: sshd forks, and a login shell
loads another shell. So one ``sh`` reads scripts from its channel, one after the other. Each script
runs in a subshell: it may exit, change directory or set variables. A line with a new random mark
ends each script's output. Root in the guest can read the mark, so a line with it may say anything.
"""

from __future__ import annotations

import importlib
import io
import re
import shlex
import shutil
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final, cast

from lab.compile.guest.program import OUTPUT
from lab.core.errors import GuestError, LabError, LimitError, ToolError, first_line
from lab.core.printable import printable
from lab.core.units import GIB, MIB, format_size
from lab.host.guest.ssh import channels
from lab.host.guest.ssh.channels import Limit, Meter, Running
from lab.host.system import clock, deadline, network, process
from lab.model.execution.procedure import Output

if TYPE_CHECKING:
    import paramiko

BANNER_SECONDS: Final = 5.0
"""Timeout in seconds for the SSH banner. QEMU's user network accepts connections long before sshd
runs, so that without it a client would wait for minutes."""
ENTERING: Final = 20.0
"""Timeout in seconds for a program that connects in another network namespace. It takes 0.1 s."""
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_STATUS: Final = re.compile(rb"25[0-5]|2[0-4]\d|1?\d?\d")
_END: Final = 64
"""More bytes than the line has that ends a script's output."""
COPY_SECONDS: Final = 60.0
"""Seconds without progress after which copying a file fails."""
COPY_STEP: Final = MIB
"""Bytes that are progress: a guest that sends a piece each minute makes none."""
COPY_LONGEST: Final = 3600.0
"""Most seconds of copying a file, on the clock of the guest's limits."""
COPY_SIZE: Final = 4 * GIB
"""Most bytes of a file that is copied out of a guest."""
_PIECE: Final = 30 << 10
"""Bytes of one request over SFTP: its reply fits into one packet of SSH, and two may wait for TCP's
acknowledgement. The next request follows the reply: paramiko keeps all that come in advance."""


def prepare() -> None:
    """Import paramiko, which takes 0.1 s, while the guest starts."""
    threading.Thread(target=importlib.import_module, args=("paramiko",), daemon=True).start()


def reach(port: int, timeout: float = BANNER_SECONDS, *, pid: int = 0) -> socket.socket | None:
    """Return a connection with an unread SSH banner; ``None``: no banner arrived in time.

    ``pid``: the guest's QEMU, in whose network the port of 127.0.0.1 is; 0: this process's network.
    """
    with suppress(OSError):
        connection = _connected(port, timeout, pid)
        if connection is None:
            return None
        try:
            connection.settimeout(timeout)
            if connection.recv(8, socket.MSG_PEEK).startswith(b"SSH-"):
                return connection
        except OSError:
            pass
        connection.close()
    return None


def _connected(port: int, timeout: float, pid: int) -> socket.socket | None:
    """Return a connection; ``None`` or ``OSError``: there is none."""
    if not network.is_other(pid):
        return socket.create_connection(("127.0.0.1", port), timeout=timeout)
    return process.passed_socket(entering(port, pid), clock.limit(ENTERING))


def entering(port: int, pid: int) -> list[str]:
    """Return the command that connects to a port in the network of a process, and passes the
    connection on its standard output."""
    return [sys.executable, "-I", "-S", str(network.__file__), str(pid), str(port)]


def banner(port: int, timeout: float = BANNER_SECONDS, *, pid: int = 0) -> bool:
    """Return whether an SSH server answers on a port, as :func:`reach` finds it."""
    connection = reach(port, timeout, pid=pid)
    if connection is None:
        return False
    connection.close()
    return True


class Shell:
    """A connection as root that runs one script after another."""

    def __init__(
        self,
        client: paramiko.SSHClient,
        meter: Meter,
        alive: Callable[[], None],
        scale: float = 1.0,
        time: Callable[[], float] = clock.now,
    ) -> None:
        self._client = client
        self._meter = meter
        self._time = time
        """The clock of all limits."""
        self._limit = Limit(clock.limit(channels.LIMIT * scale), time)
        self._alive = alive
        """Raises ``GuestError`` if the guest has died; called repeatedly during a command."""
        self._idle: list[paramiko.Channel] = []
        """Shells that wait for a script; two concurrent scripts need two."""

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
        scale: float = 1.0,
        time: Callable[[], float] = clock.now,
    ) -> Shell:
        """Log in on the connection from :func:`reach`; only the pinned host key is accepted.

        ``alive`` raises ``GuestError`` if the guest has died; it is called repeatedly while a
        command runs. Timeouts grow with ``scale``, and count on the clock ``time``.
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
        meter = Meter(connection)
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        try:
            login = partial(
                client.connect,
                "127.0.0.1",
                port,
                sock=cast("socket.socket", meter),
                username=user,
                pkey=key,
                look_for_keys=False,
                allow_agent=False,
                timeout=channels.LONGEST,
                banner_timeout=channels.LONGEST,
                auth_timeout=channels.LONGEST,
            )
            deadline.call(
                login,
                seconds=clock.limit(2 * timeout),
                what="the SSH login to the guest",
                time=time,
            )
        except BaseException as error:
            # A login that has timed out goes on in its thread, until its connection is closed.
            channels.close(client.close)
            connection.close()
            if (refusal := _refusal(error, user, meter.sentence)) is not None:
                raise refusal from error
            raise
        return cls(client, meter, alive, scale, time)

    def close(self) -> None:
        channels.close(self._client.close)

    def run(
        self,
        script: str,
        timeout: float,
        heard: Callable[[bytes], None] = lambda _output: None,
        *,
        stop: bool = True,
    ) -> Output:
        """Run shell lines; ``GuestError``: the guest died, or they took longer than ``timeout``
        seconds. ``LimitError``: they printed too much.

        ``heard`` receives the output as it comes. ``stop``: the first failing line ends them (``set
        -e``).
        """
        started = clock.now()
        status, out, err = self.raw(script, timeout, heard, stop=stop)
        return Output(
            status=status,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=clock.now() - started,
        )

    def raw(
        self,
        script: str,
        timeout: float,
        heard: Callable[[bytes], None] = lambda _output: None,
        *,
        stop: bool = True,
    ) -> tuple[int, bytes, bytes]:
        """As ``run``, but return exit status, standard output and standard error as bytes."""
        import paramiko

        started = self._time()

        def still_time() -> None:
            self._alive()
            if self._time() - started > timeout:
                error = GuestError(
                    f"a command in the guest did not end within {timeout:.0f} seconds:"
                    f" {first_line(script)[:120]}"
                )
                error.late = f"{timeout:.0f} seconds"
                raise error

        try:
            channel = self._idle.pop() if self._idle else self._open(still_time)
            try:
                answer = self._ask(channel, script, still_time, heard, stop=stop)
            except BaseException:
                channels.close(channel.close)  # the script may still run in it
                raise
            self._idle.append(channel)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self._alive()
            raise self._gone(str(error)) from error
        return answer

    def _gone(self, why: str = "") -> LabError:
        """Return the error of a connection that has ended."""
        if self._meter.sentence:
            return LimitError(self._meter.sentence)
        lost = "the SSH connection to the guest was lost"
        return GuestError(f"{lost}: {why}" if why else lost)

    def start(self, script: str) -> Running:
        """Start a script in its own shell, with ``set -e``, and return."""
        started, most = self._time(), 2 * self._limit.seconds

        def still_time() -> None:
            self._alive()
            if self._time() - started > most:
                raise GuestError(f"the guest did not accept a script within {most:.0f} seconds")

        channel = self._open(still_time)
        text = f"(set -e; eval {shlex.quote(script)}) </dev/null\nexit $?\n"
        channels.send(channel, text.encode(), still_time, self._limit)
        return Running(channel, self._alive, self._meter.read, self._time)

    def put(self, source: Path, target: str) -> None:
        """Copy a file and its mode into the guest; ``ToolError``: copying failed."""

        def move(files: paramiko.SFTPClient, told: Callable[[int, int], None]) -> None:
            files.put(str(source), target, told)
            files.chmod(target, stat.S_IMODE(source.stat().st_mode))

        self._copy(move, f"copying '{source}' to '{target}' in the guest failed")

    def get(self, source: str, target: Path) -> None:
        """Copy a file out of the guest; ``ToolError``: copying failed.

        ``LimitError``: the guest sends more than :data:`COPY_SIZE`, or than the disk can hold.
        """
        place = target.resolve()
        if place.exists() and not place.is_file():
            raise ToolError(f"'{target}' is no file: expected a file, or a name that is free")
        made = place.with_name(f".{token_hex(8)}.part")

        def move(files: paramiko.SFTPClient, told: Callable[[int, int], None]) -> None:
            most = max(0, min(COPY_SIZE, shutil.disk_usage(place.parent).free - GIB))
            try:
                with files.open(source) as there, made.open("xb") as here:
                    done = 0
                    while data := there.read(_PIECE):
                        done += len(data)
                        if done > most:
                            raise LimitError(
                                f"'{source}' in the guest has more than the {format_size(most)}"
                                " that a copy may have: 4 GiB, and 1 GiB of the disk stays free"
                            )
                        told(done, done)
                        here.write(data)
                made.replace(place)
            finally:
                made.unlink(missing_ok=True)

        self._copy(move, f"copying '{source}' from the guest to '{target}' failed")

    def _copy(
        self,
        move: Callable[[paramiko.SFTPClient, Callable[[int, int], None]], object],
        failed: str,
    ) -> None:
        """Do one SFTP transfer; ``GuestError``: no progress for :data:`COPY_SECONDS`."""
        import paramiko

        passed = [0]
        began, longest = self._time(), clock.limit(COPY_LONGEST)
        over = threading.Event()
        opened: list[paramiko.SFTPClient] = []

        def told(done: int, _whole: int) -> None:
            if over.is_set():
                raise EOFError("the copy was abandoned")
            if self._time() - began > longest:
                raise LimitError(f"{failed}: it took more than {longest:.0f} seconds")
            passed[0] = done // COPY_STEP
            self._meter.read()

        def copy() -> None:
            with self._client.open_sftp() as files:
                opened.append(files)
                told(0, 0)
                channel = files.get_channel()
                if channel is not None:
                    channel.settimeout(channels.LONGEST)
                move(files, told)

        try:
            deadline.call(
                copy,
                seconds=clock.limit(COPY_SECONDS),
                what="progress of a file copy over SFTP",
                glance=self._alive,
                moved=lambda: passed[0],
                time=self._time,
            )
        except (paramiko.SSHException, TimeoutError, EOFError) as error:
            self._alive()
            raise self._gone(str(error)) from error
        except OSError as error:
            self._alive()
            raise ToolError(f"{failed}: {error.strerror or error}") from error
        finally:
            # The thread of an abandoned copy ends with its channel, or with its next piece.
            over.set()
            for files in opened:
                channels.close(files.close)

    def _open(self, still_time: Callable[[], None]) -> paramiko.Channel:
        """Return a channel with a shell that waits for scripts."""
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            self._alive()
            raise self._gone()
        channel = channels.channel(transport, still_time, self._limit)
        channels.begin(channel, f"LC_ALL=C PATH={_PATH} exec sh", still_time, self._limit)
        return channel

    def _ask(
        self,
        channel: paramiko.Channel,
        script: str,
        still_time: Callable[[], None],
        heard: Callable[[bytes], None],
        *,
        stop: bool,
    ) -> tuple[int, bytes, bytes]:
        """Run a script in an open shell; return exit status, standard output and error."""
        mark = token_hex(8)
        self._meter.read()
        self._drain(channel)
        text = (
            f"({'set -e; ' if stop else ''}eval {shlex.quote(script)}) </dev/null\n"
            f"printf '\\n{mark} %d\\n' $?\n"
            f"printf '\\n{mark}\\n' >&2\n"
        )
        channels.send(channel, text.encode(), still_time, self._limit)
        out, err = bytearray(), bytearray()
        out_end = re.compile(rb"\n%b ([^\n]*)\n" % mark.encode())
        err_end = f"\n{mark}\n".encode()
        asked = clock.now()
        found: re.Match[bytes] | None = None
        at = 0  # no end begins before it
        while found is None or err.find(err_end, at) < 0:
            source, into = (channel.recv, out) if found is None else (channel.recv_stderr, err)
            at = max(0, len(into) - _END)
            channel.settimeout(channels.GLANCE)
            with suppress(TimeoutError):
                got = source(65536)
                if not got:
                    self._alive()
                    raise self._gone()
                into += got
                if found is None:
                    heard(got)
            while channel.recv_stderr_ready() and len(err) <= OUTPUT:
                err += channel.recv_stderr(65536)
            self._meter.read()
            self._drain(*self._idle)
            if len(out) + len(err) > OUTPUT:
                raise channels.too_long(f"'{first_line(script)[:120]}' in the guest")
            if found is None and (found := out_end.search(out, at)) is not None:
                at = 0
            if clock.now() - asked > 1.0:
                still_time()
                asked = clock.now()
        if not _STATUS.fullmatch(found[1]):
            shown = printable(found[1].decode(errors="replace"))
            raise ToolError(
                f"the guest's shell reports the status '{shown}', expected a number up to 255: a "
                "program in the guest has written to it"
            )
        # What a process of the script prints after its end is dropped.
        return int(found[1]), bytes(out[: found.start()]), bytes(err[: err.find(err_end)])

    @staticmethod
    def _drain(*waiting: paramiko.Channel) -> None:
        """Drop what processes of earlier scripts have printed; ``LimitError``: they do not stop."""
        dropped = 0
        for channel in waiting:
            while channel.recv_ready() or channel.recv_stderr_ready():
                read = channel.recv if channel.recv_ready() else channel.recv_stderr
                dropped += len(read(65536))
                if dropped > channels.UNREAD:
                    raise LimitError(
                        f"the guest printed more than {format_size(channels.UNREAD)} over SSH"
                        " while no command ran"
                    )


def _refusal(error: BaseException, user: str, why: str) -> GuestError | None:
    """Return the lab's error for a failed login; ``None``: the exception is the lab's own.

    ``why``: the reason if the lab closed the connection.
    """
    import paramiko

    if isinstance(error, paramiko.BadHostKeyException):
        return GuestError(
            "the guest's SSH host key is not the one that the lab gave it: connection refused",
            hint="another program listens on its port, or the image generates its own keys",
        )
    if isinstance(error, paramiko.AuthenticationException):
        return GuestError(
            f"the guest refused the lab's key for user '{user}'",
            hint="cloud-init did not run, or the image forbids root logins: see the console",
        )
    if isinstance(error, paramiko.SSHException | OSError | EOFError):
        return GuestError(f"the SSH connection to the guest failed: {why or error}")
    return None
