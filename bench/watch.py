"""The processes of a benchmark: time, memory and CPU time of a command, and its leftovers.

A process belongs to a benchmark if its arguments (QEMU) or its environment (all others) contain the
benchmark's work directory.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LIMIT_SECONDS = 1800.0
"""Timeout of one command: ten times the slowest so far."""
SAMPLE_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")

Left = dict[str, set[str]]
"""Names of processes, sockets, ports and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the benchmark."""

    pid: int
    parent: int
    started: float
    """Seconds on CLOCK_BOOTTIME."""
    role: str
    """``qemu``, ``worker`` or ``other``."""
    rss: int
    """Bytes, shared pages included."""
    cpu: float
    """Seconds, without children."""


def processes(work: Path) -> list[Process]:
    """Return the live processes of a benchmark, without zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                words = process.cmdline()
                texts = (*words, *process.environ().values())
                if process.pid == os.getpid() or not any(str(work) in text for text in texts):
                    continue
                cpu = process.cpu_times()
                # psutil rounds its start time to a whole second of the host's boot time.
                stat = Path(f"/proc/{process.pid}/stat").read_text(errors="replace")
                found.append(
                    Process(
                        pid=process.pid,
                        parent=process.ppid(),
                        started=int(stat.rpartition(")")[2].split()[19]) / TICKS,
                        role=_role(words),
                        rss=process.memory_info().rss,
                        cpu=cpu.user + cpu.system,
                    )
                )
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
    # A worker's child that still looks like a worker has not called execve yet.
    workers = {p.pid for p in found if p.role == "worker"}
    return [p for p in found if p.role != "worker" or p.parent not in workers]


def _role(words: Sequence[str]) -> str:
    if words and Path(words[0]).name.startswith("qemu-system"):
        return "qemu"
    return "worker" if "lab.run.worker" in words else "other"


@dataclass(slots=True)
class Sampler:
    """Samples a command's processes until it is stopped."""

    work: Path
    command: int
    """Process id of the command: the lab's main process, or the script."""
    peak: dict[str, int] = field(default_factory=dict)
    """Largest resident bytes of the ``orchestrator``, of a ``worker``, and of both together
    (``lab``); ``guests``: QEMU processes at the last of these."""
    workers: dict[int, float] = field(default_factory=dict)
    """Start of each worker by process id."""
    qemu: dict[int, float] = field(default_factory=dict)
    """CPU seconds of each QEMU by process id."""
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def sample(self) -> None:
        """Take one sample."""
        found = processes(self.work)
        own = [p for p in found if p.role != "qemu"]
        self.qemu |= {p.pid: p.cpu for p in found if p.role == "qemu"}
        self.workers |= {p.pid: p.started for p in own if p.role == "worker"}
        whole = sum(p.rss for p in own)
        if whole > self.peak.get("lab", 0):
            self.peak |= {"lab": whole, "guests": len(found) - len(own)}
        for p in own:
            name = "orchestrator" if p.pid == self.command else p.role
            self.peak[name] = max(self.peak.get(name, 0), p.rss)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self.sample()


@dataclass(slots=True, kw_only=True)
class Ended:
    """Result of a command that has ended."""

    status: int
    started: float
    """Seconds on CLOCK_BOOTTIME."""
    seconds: float
    cpu: float
    """CPU seconds of the command and of all children that were waited for."""
    stdout: str
    stderr: list[tuple[float, str]]
    """Each line with its time on CLOCK_BOOTTIME."""
    sampler: Sampler

    @property
    def last_words(self) -> str:
        """Return the last line on standard error."""
        return next((line for _, line in reversed(self.stderr) if line.strip()), "nothing")


def run(argv: Sequence[str], *, work: Path, cwd: Path, env: dict[str, str]) -> Ended:
    """Run a command in its own session to its end; after the timeout it gets SIGTERM."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        selectors.DefaultSelector() as ready,
    ):
        started = now()
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        assert child.stderr is not None
        lines: list[tuple[float, str]] = []
        os.set_blocking(child.stderr.fileno(), False)
        ready.register(child.stderr, selectors.EVENT_READ)
        ended = os.pidfd_open(child.pid)
        ready.register(ended, selectors.EVENT_READ)
        with Sampler(work, child.pid) as sampler:
            while ended not in [key.fd for key, _ in ready.select(timeout=1.0)]:
                if _read(child.stderr.fileno(), lines):
                    ready.unregister(child.stderr)
                if now() - started > LIMIT_SECONDS:
                    os.killpg(child.pid, signal.SIGTERM)
            # Popen.wait would not return the CPU use of the command and its children.
            _, status, usage = os.wait4(child.pid, 0)
            seconds = now() - started
        _read(child.stderr.fileno(), lines)
        child.stderr.close()
        os.close(ended)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return Ended(
            status=child.returncode,
            started=started,
            seconds=seconds,
            cpu=usage.ru_utime + usage.ru_stime,
            stdout=out.read(),
            stderr=lines,
            sampler=sampler,
        )


def _read(file: int, lines: list[tuple[float, str]]) -> bool:
    """Append the lines that a pipe holds; return whether it is at its end."""
    while True:
        try:
            text = os.read(file, 65536)
        except BlockingIOError:
            return False
        lines.extend((now(), line) for line in text.decode(errors="replace").splitlines())
        if not text:
            return True


def sweep(work: Path) -> None:
    """Kill the processes of a benchmark by their ids."""
    for _ in range(50):
        found = processes(work)
        if not found:
            return
        for process in found:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    raise OSError(f"the benchmark's processes {[p.pid for p in found]} do not end")


def there(work: Path) -> Left:
    """Return processes, sockets, listening ports and files of a benchmark.

    Runs, snapshots and facts about the host are kept on purpose and not included.
    """
    found: Left = {"processes": set(), "sockets": set(), "ports": set(), "files": set()}
    for process in processes(work):
        found["processes"].add(f"{process.role} {process.pid}")
        try:
            opened = psutil.Process(process.pid).net_connections("tcp")
        except psutil.Error:
            continue
        found["ports"] |= {f"{c.laddr.ip}:{c.laddr.port}" for c in opened if c.status == "LISTEN"}
    for socket in psutil.net_connections("unix"):
        if str(socket.laddr).startswith(f"{work}/"):
            found["sockets"].add(str(Path(socket.laddr).relative_to(work)))
    kept = ("cache/lab/warm/", "cache/lab/host/")
    parts = ("state/lab", "state/lab/guests", "cache/lab", *(name.rstrip("/") for name in kept))
    for top in ("state", "tmp", "cache"):
        names = {str(path.relative_to(work)) for path in (work / top).rglob("*")}
        found["files"] |= {n for n in names if n not in parts and not n.startswith(kept)}
    return found


def left(work: Path, before: Left) -> dict[str, list[str]]:
    """Return new entries since ``before``; kinds without any are left out."""
    new = {kind: sorted(names - before[kind]) for kind, names in there(work).items()}
    return {kind: names for kind, names in new.items() if names}


def now() -> float:
    """Return seconds on CLOCK_BOOTTIME, which the kernel uses for start times of processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def machine() -> tuple[float, float]:
    """Return CPU seconds that the machine was busy, and that its own host took (steal)."""
    times = psutil.cpu_times()
    return sum(times[:7]) - times.idle - times.iowait, times.steal
