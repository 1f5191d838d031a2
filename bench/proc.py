"""What runs and what is left, from /proc: memory and processor time of a benchmark's processes.

The processes of a benchmark are those that name its work directory, in their arguments (QEMU) or
in their environment (all others).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.5
LISTENING = "0A"
"""A socket's state in ``/proc/net/tcp``: TCP_LISTEN of ``include/net/tcp_states.h``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the benchmark."""

    pid: int
    parent: int
    started: float
    """Seconds on CLOCK_BOOTTIME, to a hundredth."""
    role: str
    """``qemu``, ``worker`` or ``other``."""
    rss: int
    """Resident bytes, pages that it shares with others included."""
    greatest: int
    """The same at its greatest so far, as the kernel has kept it (VmHWM)."""
    cpu: float
    """Processor seconds of its own."""


def parse_stat(text: str) -> tuple[str, int, float, float, int]:
    """State, parent, processor seconds, start and resident bytes, of a ``/proc/PID/stat``."""
    # The name in parentheses may hold anything, parentheses too (proc_pid_stat(5)).
    fields = text.rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return fields[0], int(fields[1]), cpu, int(fields[19]) / TICKS, int(fields[21]) * PAGE


def parse_greatest(text: str) -> int:
    """Greatest resident bytes, of a ``/proc/PID/status``; 0 where it has none any more."""
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def role_of(arguments: list[str]) -> str:
    """What a process is for."""
    if arguments and Path(arguments[0]).name.startswith("qemu-system"):
        return "qemu"
    return "worker" if "lab.run.worker" in arguments else "other"


def processes(work: Path) -> Iterator[Process]:
    """The live processes of a benchmark; a zombie is none."""
    mark = str(work).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            if mark not in arguments and mark not in (entry / "environ").read_bytes():
                continue
            stat = (entry / "stat").read_text(errors="replace")
            state, parent, cpu, started, rss = parse_stat(stat)
            greatest = parse_greatest((entry / "status").read_text(errors="replace"))
        except OSError:  # it has ended, or is another user's
            continue
        if state not in "ZX":
            words = arguments.decode(errors="replace").split("\0")
            yield Process(
                pid=int(entry.name),
                parent=parent,
                started=started,
                role=role_of(words),
                rss=rss,
                greatest=max(rss, greatest),
                cpu=cpu,
            )


def _settled(found: list[Process]) -> list[Process]:
    """Without those that are about to become another program.

    A process that a worker has forked has the worker's name and memory until it calls ``execve``;
    it is no second worker, and its pages are no more than the worker's own.
    """
    workers = {p.pid for p in found if p.role == "worker"}
    return [p for p in found if p.role != "worker" or p.parent not in workers]


@dataclass(slots=True)
class Sampler:
    """Watches the processes of a benchmark while a command runs."""

    work: Path
    command: int = 0
    """The process that was started: the lab's orchestrator, or the script."""
    peak: dict[str, int] = field(default_factory=dict)
    """Greatest resident bytes of the ``orchestrator``, of a ``worker``, and of all of them at one
    moment, ``lab``; with ``guests``, the QEMU processes at that moment."""
    workers: dict[int, float] = field(default_factory=dict)
    """Start of each worker seen, by process id."""
    qemu_cpu: dict[int, float] = field(default_factory=dict)
    """Processor seconds of each QEMU, as last seen."""
    qemu_peak: int = 0
    """Greatest resident bytes of a QEMU."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def look(self) -> None:
        """Take one sample."""
        found = _settled(list(processes(self.work)))
        own = [p for p in found if p.role != "qemu"]
        machines = [p for p in found if p.role == "qemu"]
        whole = sum(p.rss for p in own)
        if whole > self.peak.get("lab", 0):
            self.peak |= {"lab": whole, "guests": len(machines)}
        for p in own:
            name = "orchestrator" if p.pid == self.command else p.role
            self.peak[name] = max(self.peak.get(name, 0), p.greatest)
            if p.role == "worker":
                self.workers[p.pid] = p.started
        for p in machines:
            self.qemu_cpu[p.pid] = p.cpu
            self.qemu_peak = max(self.qemu_peak, p.greatest)

    def start(self, command: int) -> None:
        """Sample until stopped."""
        self.command = command
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def stop(self) -> None:
        """No more samples."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What there is of a benchmark at one moment."""

    processes: frozenset[str]
    sockets: frozenset[str]
    ports: frozenset[str]
    files: frozenset[str]

    def since(self, before: Snapshot) -> dict[str, list[str]]:
        """What is here now and was not before, kind by kind; empty: nothing is left."""
        kinds = ("processes", "sockets", "ports", "files")
        new = {k: sorted(getattr(self, k) - getattr(before, k)) for k in kinds}
        return {kind: names for kind, names in new.items() if names}


def snapshot(work: Path) -> Snapshot:
    """Processes, named sockets, listening ports and files of a benchmark.

    Files: guests' directories and temporary files, and whatever the cache holds beside saved
    guests and facts about the host, which are kept on purpose. Not the runs: they are the result.
    """
    own = list(processes(work))
    return Snapshot(
        processes=frozenset(f"{p.role} {p.pid}" for p in own),
        sockets=frozenset(_named_sockets(work)),
        ports=frozenset(_ports({p.pid for p in own})),
        files=frozenset(_files(work)),
    )


def _files(work: Path) -> Iterator[str]:
    kept = (Path("cache/lab/warm"), Path("cache/lab/host"))
    containers = {*map(str, kept), "state/lab", "state/lab/guests", "cache/lab"}
    for top in ("state", "tmp", "cache"):
        for path in sorted((work / top).rglob("*")):
            relative = path.relative_to(work)
            if str(relative) not in containers and not any(k in relative.parents for k in kept):
                yield str(relative)


def _named_sockets(work: Path) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and str(work) in fields[7]:
            yield str(Path(fields[7].lstrip("@")).relative_to(work))


def listening(text: str) -> dict[str, int]:
    """Inode by inode the ports that are listened on, of a ``/proc/net/tcp``."""
    found = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING:
            found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _ports(pids: Iterable[int]) -> Iterator[str]:
    """Listening TCP ports of these processes."""
    inodes: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        if path.exists():
            inodes |= listening(path.read_text())
    for pid in pids:
        try:
            for entry in (Path("/proc") / str(pid) / "fd").iterdir():
                inode = str(entry.readlink()).removeprefix("socket:[").removesuffix("]")
                if inode in inodes:
                    yield f"127.0.0.1:{inodes[inode]}"
        except OSError:  # it has ended meanwhile
            continue


def boot_clock() -> float:
    """Seconds on the clock that processes' starts are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def busy_seconds(text: str) -> tuple[float, float]:
    """Processor seconds that the machine worked, and that its own host took away (steal)."""
    # proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice.
    fields = [int(f) for f in text.splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq) / TICKS, steal / TICKS


def machine() -> tuple[float, float]:
    """The machine's busy and stolen processor seconds since it started."""
    return busy_seconds(Path("/proc/stat").read_text())
