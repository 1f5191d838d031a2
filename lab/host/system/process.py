"""Starts processes on the host; no other module does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NoReturn

from lab.core.errors import HostError, LimitError, ToolError, full
from lab.host.system import clock, pids

TAKES: Final = 60.0
"""Timeout in seconds for a child to read a command; then it is killed."""
_WATCH: Final = 0.5
"""Seconds between two looks at a watched process."""
TAIL: Final = 1024 * 1024
"""Most bytes of a log that are read."""
_DEATH: Final = 10.0
"""Timeout in seconds for a killed process to end; then it is abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """Result of a process that ended."""

    argv: tuple[str, ...]
    status: int
    """Exit status; negative: ended by that signal."""
    stdout: str
    stderr: str


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children; it leads its own session."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if not pids.send_to_group(process.pid, kind):
            break
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_DEATH)  # a process that waits for a hanging device ignores signals
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unsent input does not matter
                pipe.close()


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    timeout: float = 60.0,
    check: bool = True,
    stdin: str = "",
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    watch: Callable[[int], str] | None = None,
    descriptors: Sequence[int] = (),
) -> ProcessResult:
    """Run a program to its end, without a shell, and return its output.

    It has its own session, so that Ctrl-C reaches the lab first. An interrupted wait (Ctrl-C, a
    signal handler's exception, the timeout) ends the whole process group. With ``log``, standard
    output and error go there as they arrive, and ``stderr`` is its tail. ``watch`` gets the process
    id every half second; what it returns is why the process is stopped. ``descriptors``: open files
    that it inherits. ``HostError``: the program is missing, or the disk is full. ``ToolError``: it
    failed (unless ``check`` is off), took longer than ``timeout`` seconds, or was stopped.
    """
    words = tuple(os.fspath(a) for a in argv)
    out: int | IO[str] = subprocess.PIPE
    err: int | IO[str] = subprocess.PIPE
    handle = log.open("w", encoding="utf-8") if log else None
    if handle:
        out, err = handle, handle
    try:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                errors="replace",
                env={**os.environ, **env} if env is not None else None,
                cwd=cwd,
                start_new_session=True,
                pass_fds=tuple(descriptors),
            )
        except FileNotFoundError as missing:
            if cwd is not None and not cwd.exists():
                raise HostError(f"the directory '{cwd}' does not exist") from missing
            raise HostError(
                f"the program '{words[0]}' is not installed",
                hint="`lab doctor` prints how to install it",
            ) from missing
        except OSError as error:
            raise HostError(f"'{words[0]}' could not be started: {error.strerror}") from error
        try:
            stdout, stderr = _communicated(process, stdin, timeout, watch)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise ToolError(
                f"'{words[0]}' did not end within {timeout:.0f} seconds and was stopped",
                hint=f"the command was: {shlex.join(words)}",
            ) from None
        except BaseException:
            _kill_group(process)
            raise
    finally:
        if handle:
            handle.close()
    if log:
        stderr = tail(log, 4000)
    done = ProcessResult(
        argv=words, status=process.returncode, stdout=stdout or "", stderr=stderr or ""
    )
    if check and done.status != 0:
        raise failure(done)
    return done


def tail(log: Path, most: int = TAIL) -> str:
    """Return the last ``most`` bytes of a log; foreign code may have made it as large as a disk."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode(errors="replace")


def _communicated(
    process: subprocess.Popen[str],
    stdin: str,
    timeout: float,
    watch: Callable[[int], str] | None,
) -> tuple[str, str]:
    """Return its output; ``ToolError``: `watch` gave a reason to stop it."""
    if watch is None:
        return process.communicate(stdin, timeout=timeout)
    given: str | None = stdin
    end = clock.now() + timeout
    while True:
        try:
            return process.communicate(given, timeout=min(_WATCH, max(0.0, end - clock.now())))
        except subprocess.TimeoutExpired:
            if clock.now() >= end:
                raise
        given = None
        if why := watch(process.pid):
            raise ToolError(f"{why}, and was stopped")


def failure(done: ProcessResult) -> HostError | ToolError:
    """Return the error for a failed process; a full disk is ``HostError``, all else
    ``ToolError``."""
    tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
    if os.strerror(errno.ENOSPC) in done.stderr:
        return full(f"'{done.argv[0]}' could not write: {tail}")
    how = f"ended with status {done.status}"
    if done.status < 0:
        how = f"was ended by signal {signal.Signals(-done.status).name}"
    return ToolError(
        f"'{done.argv[0]}' {how}: {tail or 'it printed nothing'}",
        hint=f"the command was: {shlex.join(done.argv)}",
    )


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore signals during clean-up: a second Ctrl-C has no effect."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def python(*words: str) -> list[str]:
    """Return the command line of this Python, such as ``-m`` and a module of the lab.

    With ``-m`` or ``-c`` alone it would import from the working directory first, which may be a
    stranger's checkout.
    """
    return [sys.executable, "-P", *words]


class Child:
    """A process that writes output while it runs, and ends when its input closes.

    ``silence``: seconds without output after which it is killed; 0: never. Such a child sends signs
    of life (:class:`lab.host.system.wire.Teller`).
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        first_line: str,
        log: Path,
        env: Mapping[str, str],
        silence: float = 0.0,
    ) -> None:
        self.fate = ""
        """Why this process killed it, to complete "the process …"; empty: it was not killed."""
        self._log = log.open("wb")
        self._silence = clock.Countdown(clock.limit(silence)) if silence else None
        self._grace: clock.Countdown | None = None
        """Remaining time to end, once its input was closed."""
        self._telling = threading.Lock()
        self._process = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **env},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.tell(first_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Yield its output by line until it closes it; empty lines are heartbeats and are skipped.

        An incomplete last line, of a killed process, is dropped.
        """
        out = self._process.stdout
        assert out is not None
        poll = select.poll()
        poll.register(out.fileno(), select.POLLIN)
        rest, killed = b"", clock.Countdown(_DEATH)
        with out:
            while not self.fate or killed.left() > 0:
                if not poll.poll(1000 * clock.LOOK):
                    self._look(killed)
                    continue
                if self._silence is not None:
                    self._silence.again()
                self._look(killed)
                got = os.read(out.fileno(), 65536)
                if not got:
                    return
                *whole, rest = (rest + got).split(b"\n")
                for line in filter(None, whole):
                    yield line.decode(errors="replace")

    def _look(self, killed: clock.Countdown) -> None:
        """Kill it if its time is over."""
        for countdown, did in ((self._silence, "sent nothing"), (self._grace, "did not end")):
            if not self.fate and countdown is not None and countdown.left() <= 0:
                self._kill(f"{did} for {countdown.seconds:.0f} s and was killed")
                killed.again()

    def _kill(self, fate: str) -> None:
        self.fate = self.fate or fate
        pids.send_to_group(self._process.pid, signal.SIGKILL)

    def tell(self, line: str) -> None:
        """Write it a line; if it has died, its exit status shows that.

        A child that does not read for :data:`TAKES` is killed.
        """
        stdin = self._process.stdin
        assert stdin is not None
        data = memoryview(line.encode() + b"\n")
        countdown = clock.Countdown(clock.limit(TAKES))
        with self._telling, contextlib.suppress(BrokenPipeError, ValueError):
            poll = select.poll()
            poll.register(stdin.fileno(), select.POLLOUT)
            while data:
                if countdown.left() <= 0:
                    self._kill(f"read no command for {countdown.seconds:.0f} s and was killed")
                    return
                if poll.poll(1000 * clock.LOOK):
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(stdin.fileno(), data) :]

    def hang_up(self, grace: float = 0.0) -> None:
        """Close its input, so that it cleans up and ends.

        With ``grace``, `lines` kills it after so many seconds.
        """
        assert self._process.stdin is not None
        if grace and self._grace is None:
            self._grace = clock.Countdown(clock.limit(grace))
        with self._telling, contextlib.suppress(BrokenPipeError, OSError):
            self._process.stdin.close()

    def end(self, grace: float) -> int:
        """Return its exit status; kill it if it does not end within ``grace`` seconds."""
        try:
            _wait(self._process, clock.limit(grace))
        except subprocess.TimeoutExpired:
            self._kill(f"did not end within {clock.limit(grace):.0f} s and was killed")
            with contextlib.suppress(subprocess.TimeoutExpired):
                _wait(self._process, _DEATH)
        finally:
            self._log.close()
            self.hang_up()
        status = self._process.returncode
        return -signal.SIGKILL if status is None else status


def _wait(process: subprocess.Popen[Any], seconds: float) -> None:
    """Wait until it ends; time in which this process was stopped does not count."""
    countdown = clock.Countdown(seconds)
    while True:
        left = countdown.left()
        try:
            process.wait(timeout=max(0.0, min(clock.LOOK, left)))
        except subprocess.TimeoutExpired:
            if left <= 0:
                raise
        else:
            return


class Daemon:
    """A process that may outlive the lab."""

    def __init__(self, argv: Sequence[str], *, log: Path, descriptors: Sequence[int] = ()) -> None:
        """``descriptors``: open files that it inherits."""
        try:
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    pass_fds=descriptors,
                    cwd="/",  # QEMU takes firmware of its working directory before its own
                )
        except FileNotFoundError as missing:
            raise HostError(
                f"the program '{argv[0]}' is not installed",
                hint="`lab doctor` prints how to install it",
            ) from missing
        except OSError as error:
            raise HostError(f"'{argv[0]}' could not be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """Return its exit status; ``None``: it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Return its exit status if it ends within so many seconds; ``None``: it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=seconds)
        return None

    def end(self, grace: float) -> None:
        """End it and its children, with SIGKILL after ``grace`` seconds."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            pids.send_to_group(self._process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=grace)

    def let_go(self) -> None:
        """Detach: it continues after this process has ended."""
        self._process.returncode = self._process.poll() or 0


def start_watcher(argv: Sequence[str]) -> None:
    """Start a process that outlives this one; return when it has printed something."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdout is not None
        ready = select.poll()
        ready.register(watcher.stdout.fileno(), select.POLLIN)
        countdown = clock.Countdown(clock.limit(TAKES))
        while not ready.poll(1000 * clock.LOOK):
            if countdown.left() <= 0:
                watcher.kill()
                raise HostError(
                    f"'{shlex.join(argv)}' did not start within {countdown.seconds:.0f} s"
                )
        if not watcher.stdout.read(1):
            raise HostError(f"'{shlex.join(argv)}' ended at once with status {watcher.wait()}")
        watcher.returncode = 0  # no process waits for it here


def passed_socket(argv: Sequence[str], timeout: float) -> socket.socket | None:
    """Return the socket that a program passes on its standard output; ``None``: it passes none.

    ``timeout`` in seconds.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.settimeout(timeout)
        passed: list[int] = []
        try:
            with contextlib.suppress(OSError):
                passed = socket.recv_fds(ours, 1, 1)[1]
        finally:
            child.kill()
            child.wait()
    if not passed:
        return None
    os.set_inheritable(passed[0], False)
    return socket.socket(fileno=passed[0])


_PR_SET_PDEATHSIG: Final = 1
"""``prctl(2)``."""


def attached(
    argv: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
    watch: Callable[[], str] = lambda: "",
) -> int:
    """Run a program on this terminal; return its exit status, 128 + N for signal N.

    Keys such as Ctrl-C go to the program. It is killed if this process ends first. ``watch`` is
    called each second; what it says ends the program, with ``LimitError``.
    """
    libc = ctypes.CDLL(None)
    lab = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for kind in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(kind, signal.SIG_DFL)
        if os.getppid() != lab:
            os._exit(1)

    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in (signal.SIGINT, signal.SIGQUIT)}
    try:
        child = subprocess.Popen(argv, preexec_fn=prepare, env={**os.environ, **environment})
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = child.wait(1.0)
                break
            if says := watch():
                child.terminate()
                child.wait()
                raise LimitError(says)
    except FileNotFoundError:
        raise HostError(
            f"the program '{argv[0]}' is not installed",
            hint="`lab doctor` prints how to install it",
        ) from None
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return 128 - status if status < 0 else status


def replace_with(
    argv: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> NoReturn:
    """Replace this process with another program, as ``lab ssh`` does."""
    try:
        os.execvpe(argv[0], list(argv), {**os.environ, **environment})  # noqa: S606 - no shell is the point
    except FileNotFoundError:
        raise HostError(
            f"the program '{argv[0]}' is not installed",
            hint="`lab doctor` prints how to install it",
        ) from None
