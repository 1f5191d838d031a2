"""Where units run: a work directory of their own, and commands that are timed and watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import proc
from bench.document import BenchError
from bench.plan import CELLS

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 1800.0
"""For any one command: ten times what the slowest has taken."""


@dataclass(slots=True, kw_only=True)
class Ended:
    """A command that has come to its end."""

    status: int
    seconds: float
    """From its start to its end."""
    started: float
    """On CLOCK_BOOTTIME."""
    stdout: str
    stderr: list[tuple[float, str]]
    """Each line with the moment it came."""
    cpu: float
    """Processor seconds of the command and of the children that it waited for."""
    sampler: proc.Sampler

    def last_words(self) -> str:
        """What it said last on standard error."""
        return next((line for _, line in reversed(self.stderr) if line.strip()), "nothing")


@dataclass(slots=True, kw_only=True)
class Arena:
    """Where units run: a work directory with a state and a cache of its own, images as ever."""

    work: Path
    lab: tuple[str, ...]
    image: Path | None = None
    accelerator: str = "tcg"
    cells: Sequence[str] = CELLS
    """Those that are run by hand."""
    alone: Sequence[str] = CELLS
    """Those that the lab runs one at a time."""
    cpu: float = 0.0
    """Processor seconds of all commands so far, as far as somebody waited for them."""
    _child: subprocess.Popen[str] | None = field(default=None, init=False)

    def environment(self) -> dict[str, str]:
        """The lab's guests, saved guests and temporary files go into the work directory."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("LAB_")}
        for variable, name in (
            ("XDG_STATE_HOME", "state"),
            ("XDG_CACHE_HOME", "cache"),
            ("TMPDIR", "tmp"),
        ):
            (self.work / name).mkdir(parents=True, exist_ok=True)
            env[variable] = str(self.work / name)
        if home := os.environ.get("LAB_HOME"):  # its images are to be used all the same
            (self.work / "data").mkdir(exist_ok=True)
            if not (self.work / "data" / "lab").exists():
                (self.work / "data" / "lab").symlink_to(Path(home).absolute() / "data")
            env["XDG_DATA_HOME"] = str(self.work / "data")
        env["ACCEL"] = self.accelerator
        return env

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command in a session of its own, so that a Ctrl-C here is passed on in order."""
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=self.environment(),
            start_new_session=True,
        )
        return self._child

    def run(self, argv: Sequence[str], *, watch: bool = True) -> Ended:
        """Run a command to its end."""
        sampler = proc.Sampler(self.work)
        started = proc.boot_clock()
        child = self.start(argv)
        if watch:
            sampler.start(child.pid)
        lines: list[tuple[float, str]] = []
        out: list[str] = []
        assert child.stdout is not None
        assert child.stderr is not None
        stderr, stdout = child.stderr, child.stdout

        def listen() -> None:
            lines.extend((proc.boot_clock(), line.rstrip("\n")) for line in stderr)

        readers = [
            threading.Thread(target=listen, daemon=True),
            threading.Thread(target=lambda: out.append(stdout.read()), daemon=True),
        ]
        for reader in readers:
            reader.start()
        limit = threading.Timer(LIMIT_SECONDS, self.interrupt)
        limit.daemon = True
        limit.start()
        try:
            # Not Popen.wait: the kernel adds up what the command and its children used.
            _, status, usage = os.wait4(child.pid, 0)
            ended = proc.boot_clock()
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            limit.cancel()
            sampler.stop()
        for reader, pipe in zip(readers, (stderr, stdout), strict=True):
            reader.join(10.0)
            if not reader.is_alive():  # else something that was left behind holds it open
                pipe.close()
        self._child = None
        self.cpu += usage.ru_utime + usage.ru_stime
        return Ended(
            status=child.returncode,
            seconds=ended - started,
            started=started,
            stdout="".join(out),
            stderr=lines,
            cpu=usage.ru_utime + usage.ru_stime,
            sampler=sampler,
        )

    def interrupt(self) -> None:
        """Ask the command that runs to end, and all of its session: a shell waits for its ssh."""
        if self._child is not None and self._child.returncode is None:
            try:
                os.killpg(self._child.pid, signal.SIGTERM)
            except ProcessLookupError:
                return

    def stop(self) -> None:
        """End what is running, and whatever is left of it in the work directory."""
        if self._child is not None and self._child.returncode is None:
            self.interrupt()
            try:
                self._child.wait(60.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self.sweep()

    def saved_guests(self) -> set[tuple[str, int]]:
        """What the lab keeps with its saved guests: name and inode, so that a new one is told.

        Its hidden notes count too: it may save a guest only when it is asked for once more.
        """
        place = self.work / "cache" / "lab" / "warm"
        found = list(place.iterdir()) if place.exists() else []
        return {(entry.name, entry.stat().st_ino) for entry in found}

    def sweep(self) -> None:
        """End the processes that name the work directory, by their ids."""
        for _ in range(50):
            found = [p.pid for p in proc.processes(self.work)]
            if not found:
                return
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        raise BenchError(f"the processes {found} of the benchmark cannot be ended")

    # -- the lab's commands

    def ask(self, *arguments: str) -> dict[str, Any]:
        """A command of the lab that prints one document."""
        ended = self.run([*self.lab, *arguments, "--json"], watch=False)
        return self.document(ended, arguments)

    def document(self, ended: Ended, arguments: Sequence[str]) -> dict[str, Any]:
        """The document that a command printed; a refuted claim or a failed cell is one too."""
        try:
            data = json.loads(ended.stdout)
        except ValueError:
            data = None
        if ended.status not in (0, 1) or not isinstance(data, dict):
            raise BenchError(
                f"`lab {' '.join(arguments)}` ended with status {ended.status}:"
                f" {ended.last_words()}"
            )
        return data


def lab_command() -> tuple[str, ...]:
    """The `lab` beside this Python; without one the module, which is a little slower."""
    beside = Path(sys.executable).with_name("lab")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "lab")
