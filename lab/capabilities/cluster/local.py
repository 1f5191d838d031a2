"""A cluster on this machine: a scheduler, and workers with their own home and CPUs.

::

    c/.l.PID/cluster.json     its address; PID is the process that manages it
    c/.l.PID/tls/             its certificates, new for each cluster
    c/.l.PID/1/…              home of the first host: LAB_HOME of its worker

All processes are children of that process and share its lifeline. When it exits for any reason,
they end their guests and exit. `lab clean` removes files that are left after a crash.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from lab.capabilities.cluster import client as cluster
from lab.capabilities.cluster import tls as cluster_tls
from lab.capabilities.cluster.client import Door
from lab.core.errors import HostError, InputError, unwritable
from lab.host.guest import registry as guests
from lab.host.images import workspace as image_workspace
from lab.host.system import clock, paths, pids
from lab.host.system.process import Child, python, uninterrupted

RECORD: Final = "cluster.json"
TLS: Final = "tls"
LOCAL: Final = "local"
"""Address argument for the cluster on this machine."""
BEGINNING: Final = 120.0
"""Timeout in seconds for all processes to serve; the first may have to probe KVM."""
ENDING: Final = 120.0
"""Timeout in seconds for all processes to exit."""

_Line = tuple[str, str | None]
"""A child's name and a line of its output; ``None``: it has exited."""


def door_of(text: str, tls: Path | None) -> Door:
    """Return the connection data of the cluster at an address, or of the one on this machine.

    Without ``tls``: the certificates that `lab cluster local` and `lab cluster scheduler` make.
    """
    address = None if text == LOCAL else cluster.address_of(text)
    for record in alive():
        if address in (None, record["address"]):
            return cluster.door(record["address"], tls or Path(record["tls"]))
    if address is None:
        raise InputError(
            "no cluster is up on this machine",
            hint="`lab cluster local 2` starts one with two hosts",
        )
    return cluster.door(address, tls or paths.tls())


def alive() -> list[dict[str, Any]]:
    """Return the running clusters on this machine, newest first."""
    found = []
    for path in paths.clusters().glob(f".l.*/{RECORD}"):
        pid = path.parent.suffix[1:]
        with suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_text(encoding="utf-8"))
            started = pids.started_ticks(int(pid))
            if started and record["started"] == started:  # otherwise another process reuses the id
                found.append({**record, "pid": int(pid), "tls": path.with_name(TLS)})
    return sorted(found, key=lambda r: str(r["since"]), reverse=True)


def serve(count: int, since: str, ready: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Run a cluster with ``count`` hosts until an interrupt, or until its scheduler exits.

    Calls ``ready`` with its address. ``HostError``: a process does not start.
    """
    directory = paths.clusters() / f".l.{os.getpid()}"
    lines: SimpleQueue[_Line] = SimpleQueue()
    children: dict[str, Child] = {}
    try:
        _make(directory)
        start = _Starter(directory, lines, children)
        cluster_tls.make(directory / TLS)
        tls = ["--tls", str(directory / TLS)]
        start("scheduler", ["scheduler", "--port", "0", *tls], {})
        address = _first(lines, "scheduler", directory)
        for number, share in enumerate(_shares(count), 1):
            home = _home(directory / str(number))
            words = ["worker", address, "--name", f"host{number}", "--share", str(count), *tls]
            with _on(share):
                start(f"host{number}", words, {"LAB_HOME": str(home)})
        for number in range(1, count + 1):
            _first(lines, f"host{number}", directory)
        record = {
            "address": address,
            "since": since,
            "hosts": count,
            "started": pids.started_ticks(os.getpid()),
        }
        (directory / RECORD).write_text(json.dumps(record), encoding="utf-8")
        ready(address)
        while True:
            name, line = lines.get()
            if line is None:
                say(f"{name} has ended")
                if name == "scheduler":
                    raise HostError(
                        "the cluster's scheduler has ended", hint=_last_words(directory, name)
                    )
    finally:
        with uninterrupted():
            for child in reversed(children.values()):
                child.hang_up()
            for child in reversed(children.values()):
                child.end(ENDING)
            guests.remove_home(directory)


def down() -> list[str]:
    """End every cluster on this machine; return their addresses. ``HostError``: one does not
    end."""
    ended = []
    for record in alive():
        pid = record["pid"]
        pids.send(pid, signal.SIGTERM)
        clock.wait_until(
            partial(_gone, pid), timeout=2 * ENDING, reason=f"the cluster of process {pid} to end"
        )
        ended.append(str(record["address"]))
    guests.collect_homes()
    return ended


def _gone(pid: int) -> bool | None:
    return None if pids.started_ticks(pid) else True


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise unwritable(directory, error, "made") from error


def _home(home: Path) -> Path:
    """Create a host's home with links to this lab's images and its facts about this machine."""
    try:
        (home / "data").mkdir(parents=True)
        (home / "data" / "images").symlink_to(image_workspace.home())
        if paths.host().is_dir():
            shutil.copytree(
                paths.host(),
                home / "cache" / "host",
                ignore=shutil.ignore_patterns(".*", "cpu-slots"),
            )
    except (OSError, shutil.Error) as error:
        raise HostError(f"'{home}' cannot be made: {error}") from error
    return home


def _shares(count: int) -> list[set[int]]:
    """Return the CPUs of each host; hosts share CPUs if there are too few."""
    all_of_them = sorted(os.sched_getaffinity(0))
    if count >= len(all_of_them):
        return [{all_of_them[n % len(all_of_them)]} for n in range(count)]
    return [set(all_of_them[n::count]) for n in range(count)]


@contextmanager
def _on(cpus: set[int]) -> Iterator[None]:
    """Run the processes that the block starts on these CPUs only (``sched_setaffinity(2)``)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class _Starter:
    """Starts the cluster's processes, and collects their output."""

    def __init__(
        self, directory: Path, lines: SimpleQueue[_Line], children: dict[str, Child]
    ) -> None:
        self._directory, self._lines, self._children = directory, lines, children

    def __call__(self, name: str, words: list[str], env: dict[str, str]) -> None:
        child = Child(
            python("-m", "lab", "cluster", *words, "--lifeline"),
            first_line="",
            log=self._directory / f"{name}.log",
            env=env,
        )
        self._children[name] = child
        threading.Thread(target=self._listen, args=(name, child), daemon=True).start()

    def _listen(self, name: str, child: Child) -> None:
        for line in child.lines():
            self._lines.put((name, line))
        self._lines.put((name, None))


def _first(lines: SimpleQueue[_Line], name: str, directory: Path) -> str:
    """Return the first line of the next ready process; ``HostError``: a process exited instead."""
    try:
        said, line = lines.get(timeout=BEGINNING)
    except Empty:
        raise HostError(f"'{name}' did not come up within {BEGINNING:.0f} s") from None
    if line is None:
        raise HostError(
            f"'{said}' of the cluster did not come up", hint=_last_words(directory, said)
        )
    return line


def _last_words(directory: Path, name: str) -> str:
    text = (directory / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()
    return text or "it said nothing"
