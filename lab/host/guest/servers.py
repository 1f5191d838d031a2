"""Servers on the host that a guest's disks stand behind, and the plug-ins they are made of.

A server outlives the process that started it, as QEMU does: the guest of ``lab up`` keeps its
disks. It is found again by its command line, which names the guest's directory.
"""

from __future__ import annotations

import contextlib
import functools
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
from lab.host.system import clock, cpu_slots, files, paths, pids, process
from lab.model.execution.procedure import AskServer, BuildPlugin, StartServer

PACKAGES: Final = "nbdkit nbdkit-plugin-dev gcc libc6-dev"
"""Debian's names of what builds and runs a plug-in."""
_PACKAGE: Final = Path(lab.__file__).resolve().parent
_ANSWER: Final = 20.0
"""Seconds for one line's answer."""


def build(step: BuildPlugin) -> Path:
    """The compiled plug-in, from the cache where source, compiler and headers are the same."""
    source = _PACKAGE / step.source
    text = source.read_bytes()
    built = paths.plugins() / f"{source.stem}-{_digest(text, step)}.so"
    if not built.exists():
        files.make_directory(built.parent)
        part = built.with_name(f".{built.name}.{os.getpid()}")
        try:
            process.run(
                ["gcc", *step.flags, "-o", str(part), str(source), *step.libraries], timeout=120
            )
            files.publish(part, built)
        except ToolError as error:
            raise HostError(
                f"the plug-in '{step.source}' does not compile: {error.message}",
                hint=f"is all of it here? sudo apt-get install {PACKAGES}",
            ) from error
        finally:
            part.unlink(missing_ok=True)
    return built


@functools.cache
def identity(step: BuildPlugin) -> str:
    """Names the server that the plug-in makes on this host; empty: it cannot be built here."""
    return "" if missing_programs() else _digest((_PACKAGE / step.source).read_bytes(), step)


def _digest(text: bytes, step: BuildPlugin) -> str:
    """Of all that decides what the compiler makes of the source."""
    missing = missing_programs()
    if missing:
        raise HostError(
            f"disks of the models hdd and ssd need {missing}, which this host does not have",
            hint=f"sudo apt-get install {PACKAGES}",
        )
    compiler = process.run(["gcc", "-dumpfullversion", "-dumpmachine"], timeout=20).stdout
    nbdkit = process.run(["nbdkit", "--version"], timeout=20).stdout
    parts = (text, *(w.encode() for w in (*step.flags, *step.libraries, compiler, nbdkit)))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def missing_programs() -> str:
    """What a modelled disk needs and is not here, in words; empty: nothing."""
    words = [f"the program '{name}'" for name in ("nbdkit", "gcc") if shutil.which(name) is None]
    if not any((Path(d) / "nbdkit-plugin.h").exists() for d in _include_directories()):
        words.append("the header 'nbdkit-plugin.h'")
    return " and ".join(words)


def _include_directories() -> Sequence[str]:
    more = os.environ.get("C_INCLUDE_PATH", "").split(":") + os.environ.get("CPATH", "").split(":")
    return ("/usr/include", "/usr/local/include", *filter(None, more))


def link(step: BuildPlugin) -> None:
    """Build, and put a link to it where the step wants it."""
    built = build(step)
    with contextlib.suppress(FileNotFoundError):
        Path(step.link).unlink()
    Path(step.link).symlink_to(built)


class Server:
    """One process that this one has started."""

    def __init__(self, step: StartServer) -> None:
        self._step = step
        with contextlib.suppress(FileNotFoundError):
            Path(step.socket).unlink()  # of one that was killed
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
                f"the server of '{self._step.label}' ended at once, with status {status}: "
                f"{_tail(self._step.log)}",
                hint=f"is all of it here? sudo apt-get install {PACKAGES}",
            )
        try:
            with contextlib.closing(_connect(self._step.socket, 1.0)):
                return True
        except OSError:
            return None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def trouble(self) -> str:
        """Why the server serves nothing, in a sentence; empty: it has not ended or stopped."""
        who = f"the server of the disk '{self._step.label}' (process {self.pid})"
        status = self._process.status()
        if status is not None:
            ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            return f"{who} ended {ended}"
        return f"{who} is stopped" if pids.is_stopped(self.pid) else ""

    def stop(self, grace: float = 3.0) -> None:
        """End it, by force after ``grace`` seconds: a stalled disk does not end by itself."""
        self._process.end(grace)
        with contextlib.suppress(FileNotFoundError):
            Path(self._step.socket).unlink()

    def let_go(self) -> None:
        """It goes on without this process."""
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
    """The line with which the server answers."""
    return ask_line(step.socket, step.line)


def ask_line(socket: str, line: str) -> str:
    """One line to the server behind a socket, and the line with which it answers."""
    try:
        with contextlib.closing(_connect(socket, _ANSWER)) as connection:
            connection.sendall(f"{line}\n".encode())
            with connection.makefile("r", encoding="utf-8") as answers:
                answer = answers.readline()
    except OSError as error:
        raise GuestError(
            f"the server behind '{socket}' does not answer: {error.strerror or error}"
        ) from error
    if not answer.endswith("\n"):
        raise GuestError(f"the server behind '{socket}' ended instead of answering")
    return answer.rstrip("\n")


def _tail(log: str) -> str:
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return "\n".join(text.strip().splitlines()[-5:]) or "it printed nothing"
