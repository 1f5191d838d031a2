"""Disk servers on the host, and the nbdkit plug-ins that they run.

A server outlives the process that started it, as QEMU does: the guest of ``lab up`` keeps its
disks. Its command line contains the guest's directory, and later commands find it by that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lab
from lab.core.errors import GuestError, HostError, ToolError
from lab.host.system import clock, cpu_slots, made, paths, pids, process
from lab.model.execution.procedure import AskServer, BuildPlugin, StartServer

PACKAGES: Final = "nbdkit nbdkit-plugin-dev gcc libc6-dev"
"""Debian packages for building and running a plug-in."""
COMPILING: Final = 120.0
"""Timeout in seconds for compiling a plug-in."""
_SOURCES: Final = Path(lab.__file__).resolve().parents[1]
_ANSWER: Final = 20.0
"""Timeout in seconds for the reply to one line."""


def build(step: BuildPlugin) -> Path:
    """Return the compiled plug-in, from the cache if sources, compiler and nbdkit are unchanged."""
    source = _SOURCES / step.source
    built = paths.plugins() / f"{source.stem}-{_digest(step)}.so"

    def make(part: Path) -> None:
        try:
            process.run(
                ["gcc", *step.flags, "-o", str(part), str(source), *step.libraries],
                timeout=COMPILING,
            )
        except ToolError as error:
            raise HostError(
                f"compiling the disk server '{step.source}' failed: {error.message}",
                hint=f"install what it needs: sudo apt-get install {PACKAGES}",
            ) from error

    return made.once(
        built,
        lambda: built if built.exists() else None,
        make,
        seconds=2 * COMPILING,
        what=f"another process to compile '{step.source}'",
    )


def _digest(step: BuildPlugin) -> str:
    """Return a digest of all inputs of the compiler."""
    missing = missing_programs()
    if missing:
        raise HostError(
            f"disks of the models hdd and ssd need {missing}: not found on this host",
            hint=f"sudo apt-get install {PACKAGES}",
        )
    compiler = process.run(["gcc", "-dumpfullversion", "-dumpmachine"], timeout=20).stdout
    nbdkit = process.run(["nbdkit", "--version"], timeout=20).stdout
    texts = ((_SOURCES / name).read_bytes() for name in (step.source, *step.headers))
    parts = (*texts, *(w.encode() for w in (*step.flags, *step.libraries, compiler, nbdkit)))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def missing_programs() -> str:
    """Return what this host lacks for modelled disks, in words; empty: nothing."""
    words = [f"the program '{name}'" for name in ("nbdkit", "gcc") if shutil.which(name) is None]
    if not any((Path(d) / "nbdkit-plugin.h").exists() for d in _include_directories()):
        words.append("the header 'nbdkit-plugin.h'")
    return " and ".join(words)


def _include_directories() -> Sequence[str]:
    more = os.environ.get("C_INCLUDE_PATH", "").split(":") + os.environ.get("CPATH", "").split(":")
    return ("/usr/include", "/usr/local/include", *filter(None, more))


def link(step: BuildPlugin) -> None:
    """Build the plug-in, and link to it at the step's path."""
    built = build(step)
    with contextlib.suppress(FileNotFoundError):
        Path(step.link).unlink()
    Path(step.link).symlink_to(built)


class Server:
    """A server process that this process started."""

    def __init__(self, step: StartServer) -> None:
        self._step = step
        with contextlib.suppress(FileNotFoundError):
            Path(step.socket).unlink()  # of a killed server
        self._process = process.Daemon(step.argv, log=Path(step.log))
        try:
            reason = f"the server of '{step.label}' to answer"
            clock.wait_until(self._ready, timeout=step.timeout, reason=reason)
            cpu_slots.never(self._process.pid)
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool | None:
        status = self._process.status()
        if status is not None:
            raise HostError(
                f"the server of '{self._step.label}' ended at once with status {status}: "
                f"{_tail(self._step.log)}",
                hint=f"install what it needs: sudo apt-get install {PACKAGES}",
            )
        try:
            with contextlib.closing(_connect(self._step.socket, 1.0)):
                return True
        except OSError:
            return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def trouble(self) -> str:
        """Return why the server no longer serves, as a sentence; empty: it runs."""
        who = f"the server of the disk '{self._step.label}' (process {self.pid})"
        status = self._process.status()
        if status is not None:
            ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            return f"{who} ended {ended}"
        return f"{who} is stopped" if pids.is_stopped(self.pid) else ""

    def failed(self) -> bool:
        """Return whether it is stopped, or exited with another status than 0."""
        return self._process.status() != 0 and bool(self.trouble())

    def stop(self, grace: float = 3.0) -> None:
        """End it, with SIGKILL after ``grace`` seconds: the server of a stalled disk ignores
        SIGTERM."""
        self._process.end(grace)
        with contextlib.suppress(FileNotFoundError):
            Path(self._step.socket).unlink()

    def let_go(self) -> None:
        """Detach from the server, which continues when this process ends."""
        self._process.let_go()


def _connect(path: str, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def ask(step: AskServer) -> str:
    """Send the step's line, and return the server's reply, one line."""
    return ask_line(step.socket, step.line)


def order(socket: str, line: str) -> str:
    """As :func:`ask_line`; ``ToolError``: the server refused the command."""
    answer = ask_line(socket, line)
    if answer.split(" ", 1)[0] != "ok":
        raise ToolError(f"the disk server at '{socket}' refused '{line}': {answer or 'no words'}")
    return answer


def ask_line(socket: str, line: str) -> str:
    """Send one line to the server of a socket; return its reply, one line."""
    try:
        with contextlib.closing(_connect(socket, _ANSWER)) as connection:
            connection.sendall(f"{line}\n".encode())
            with connection.makefile("r", encoding="utf-8") as answers:
                answer = answers.readline()
    except OSError as error:
        raise GuestError(
            f"the disk server at '{socket}' does not answer: {error.strerror or error}"
        ) from error
    if not answer.endswith("\n"):
        raise GuestError(f"the disk server at '{socket}' ended without an answer")
    return answer.rstrip("\n")


def _tail(log: str) -> str:
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return "\n".join(text.strip().splitlines()[-5:]) or "it printed nothing"
