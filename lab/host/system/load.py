"""The host's resources, and how long guests wait for them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lab.host.system import accelerator, clock, files, paths, unfinished

SAMPLE: Final = 128 * 1024**2
"""Bytes written and read once per host boot, to measure the host's throughput."""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Return the bytes of memory that this process and its children may still use.

    That is the host's ``MemAvailable`` (``proc(5)``), or less if a cgroup has a limit, as in a
    container (cgroup v2; v1 is not read).
    """
    left = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            left = int(line.split()[1]) * 1024
    return min([left, *left_in_cgroups(_CGROUPS, _OWN.read_text(encoding="utf-8"))])


def left_in_cgroups(root: Path, own: str) -> Iterator[int]:
    """Yield the bytes that each limited cgroup of a process may still use, cache counted as free.

    ``own``: its ``/proc/…/cgroup`` (``cgroups(7)``). Source of the files below ``root``:
    ``Documentation/admin-guide/cgroup-v2.rst``.
    """
    for line in own.splitlines():
        number, _, path = line.partition("::")
        if number != "0":
            continue
        group = root / path.strip("/")
        for one in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError, KeyError):
                most = int((one / "memory.max").read_text(encoding="ascii"))
                used = int((one / "memory.current").read_text(encoding="ascii"))
                kinds = (one / "memory.stat").read_text(encoding="ascii").splitlines()
                cache = int(dict(kind.split() for kind in kinds)["inactive_file"])
                yield max(most - used + cache, 0)
            if one == root:
                break


def free_space() -> int:
    """Return the free bytes on the disk of the guests' directory."""
    where = paths.guests()
    while not where.exists():
        where = where.parent
    return shutil.disk_usage(where).free


def throughput() -> float:
    """Return bytes per second through the host's page cache, which guests' disks use.

    Measured once per host boot, in about 0.1 s, and stored.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    memory = paths.host() / "throughput.json"
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["boot"] == boot:
            return float(known["bytes_per_second"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    rate = _measure()
    files.make_directory(memory.parent)
    files.write(memory, json.dumps({"boot": boot, "bytes_per_second": rate}))
    return rate


def _measure() -> float:
    directory = paths.guests()
    directory.mkdir(parents=True, exist_ok=True)
    path = unfinished.name(directory / "throughput")
    block = os.urandom(1024**2)
    began = clock.now()
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(SAMPLE // len(block)):
                file.write(block)
        with path.open("rb", buffering=0) as file:
            while file.read(len(block)):
                pass
    finally:
        path.unlink(missing_ok=True)
    return 2 * SAMPLE / max(clock.now() - began, 1e-6)


def processor(pid: int) -> float:
    """Return the CPU seconds of a process with its ended threads; 0: it has ended.

    ``utime`` and ``stime`` of ``/proc/PID/stat`` (``proc(5)``), in steps of 10 ms.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def waits(pid: int) -> dict[int, float]:
    """Return the seconds that each thread of a process was ready without running, by thread id.

    Empty: it has ended, or the kernel does not count them.
    """
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            found[int(task.parent.name)] = int(task.read_text(encoding="ascii").split()[1]) / 1e9
    return found


CROWDED: Final = 2.0
"""Processes that want to run, for each CPU, from which on a host is busy."""


def demand(*, always: bool = True) -> str:
    """Return how many processes want the host's CPUs, as a sentence without its full stop.

    Not ``always``: empty if the host is not busy. Source: the average of the last minute
    (``getloadavg(3)``).
    """
    wanting, cpus = os.getloadavg()[0], accelerator.cpus()
    if not always and wanting < CROWDED * cpus:
        return ""
    return f"{wanting:.0f} processes want the host's {cpus} CPU{'s' * (cpus > 1)}"


def pressure(pid: int) -> dict[str, float]:
    """Return counters of waiting time; their differences over a timed step are stored with it.

    ``cpu`` and ``wait``: seconds that all threads of the process ran, and were ready without
    running (``/proc/PID/task/*/schedstat``, the kernel's
    ``Documentation/scheduler/sched-stats.rst``). ``host_cpu_some`` and ``host_io_some``: seconds in
    which some process of the host waited (PSI, ``Documentation/accounting/psi.rst``), if the kernel
    reports them.
    """
    found = {"cpu": 0.0, "wait": 0.0}
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran, waited, _ = task.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        found["cpu"] += int(ran) / 1e9
        found["wait"] += int(waited) / 1e9
    for name in ("cpu", "io"):
        try:
            some = Path(f"/proc/pressure/{name}").read_text(encoding="ascii").splitlines()[0]
            found[f"host_{name}_some"] = int(some.rpartition("total=")[2]) / 1e6
        except (OSError, ValueError, IndexError):
            continue
    return found
