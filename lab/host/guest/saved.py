"""Warm states: guests saved ready to work, from which others of their kind are restored.

A state is a directory named by a digest of everything that a restored guest must share with the
saved one: image, domain, QEMU, libvirt, accelerator, the lab's key. So a changed QEMU or image
never meets an old state; it has another name. Writing one is locked and ends with a rename; a
reader sees a whole one or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lab.core.errors import HostError
from lab.host.guest.registry import GuestRecord
from lab.host.system import files, locks, paths
from lab.host.system.pids import started_ticks

MEMORY: Final = "memory.save"
ROOT: Final = "root.qcow2"
SEED: Final = "seed.iso"
FILES: Final = (MEMORY, ROOT, SEED)
ABOUT: Final = "warm.json"
FORMAT: Final = 2
MAKING: Final = 1200.0
"""Seconds that another lab may take to save a guest: a slow boot and the saving."""
KEPT: Final = 12
"""States that are kept; one of a guest with 512 MiB takes 160 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmState:
    """A saved guest."""

    key: str
    directory: Path
    saved_directory: str
    """Directory that the guest had when it was saved."""
    host_key: str
    """Public line of its SSH host key."""
    image: str
    created: str
    boot_seconds: float
    """What the boot took that restoring spares."""
    captures: dict[str, str]
    """Raw output that was captured when it booted."""

    @property
    def memory(self) -> Path:
        """The saved memory."""
        return self.directory / MEMORY

    @property
    def root(self) -> Path:
        """The root disk at that moment; restored guests write to overlays on it."""
        return self.directory / ROOT

    @property
    def seed(self) -> Path:
        """The seed that the guest still holds in its drive."""
        return self.directory / SEED


def key_of(facts: dict[str, Any]) -> str:
    """Name of the state for these facts."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(key: str) -> WarmState | None:
    """The state of that name, if it is there and whole; a truncated one is thrown away."""
    directory = paths.warm() / key
    state = _read(directory)
    if state is None and directory.is_dir():
        shutil.rmtree(directory, ignore_errors=True)
    if state is not None:
        with suppress(OSError):
            os.utime(directory / ABOUT)  # it is of use still
    return state


def _read(directory: Path) -> WarmState | None:
    try:
        about = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
        sizes = about.pop("sizes")
        if about.pop("saved_image", ""):
            return None  # of another host, from a lab that still fetched such
        if any((directory / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return WarmState(directory=directory, **about)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def asked_before(key: str) -> bool:
    """Whether somebody asked for this state in an earlier run; now somebody has."""
    mark = paths.warm() / f".{key}.asked"
    known = mark.exists()
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return known


@contextmanager
def baking(key: str) -> Iterator[None]:
    """Only one lab at a time makes the state of that name; others wait for it here.

    ``LockedError`` after :data:`MAKING`.
    """
    paths.warm().mkdir(parents=True, exist_ok=True)
    path = paths.warm() / f".{key}.lock"
    with path.open("a") as file:
        locks.take(file.fileno(), path, seconds=MAKING, what="another lab to save a guest")
        yield


@contextmanager
def making(key: str) -> Iterator[Path]:
    """A directory to put a state together in; gone again where it is not published."""
    place = paths.warm() / f".{key}.{os.getpid()}.{started_ticks(os.getpid())}"
    try:
        paths.warm().mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700)  # the seed holds the guest's private host key
    except OSError as error:
        raise HostError(f"'{place}' cannot be made: {error.strerror}") from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(
    place: Path, key: str, record: GuestRecord, *, boot_seconds: float, captures: dict[str, str]
) -> WarmState:
    """Take the saved guest's disks, write down what it is, and put it in its place."""
    try:
        for name in (ROOT, SEED):
            shutil.move(record.path / name, place / name)
        sizes = {name: (place / name).stat().st_size for name in FILES}
        state = WarmState(
            key=key,
            directory=paths.warm() / key,
            saved_directory=record.directory,
            host_key=record.host_key,
            image=record.image,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            boot_seconds=boot_seconds,
            captures=captures,
        )
        about = {k: v for k, v in asdict(state).items() if k != "directory"}
        text = json.dumps({**about, "sizes": sizes}, indent=1)
        (place / ABOUT).write_text(text, encoding="utf-8")
        shutil.rmtree(state.directory, ignore_errors=True)
        files.publish(place, state.directory)
    except OSError as error:
        raise HostError(f"the saved guest could not be kept: {error.strerror}") from error
    return state


def discard(state: WarmState) -> None:
    """Throw a state away that does not restore."""
    shutil.rmtree(state.directory, ignore_errors=True)


def every() -> list[WarmState]:
    """Every whole state."""
    found = [_read(d) for d in _entries() if not d.name.startswith(".")]
    return [s for s in found if s is not None]


def _entries() -> list[Path]:
    try:
        return sorted(d for d in paths.warm().iterdir())
    except OSError:
        return []


def collect_garbage() -> list[str]:
    """Remove what dead labs left half-made, and states that are not whole; their names."""
    removed = []
    for entry in _entries():
        if entry.name.startswith("."):
            words = entry.name.split(".")
            if len(words) != 4 or not words[2].isdigit():
                continue  # a lock
            if str(started_ticks(int(words[2]))) == words[3]:
                continue
        elif _read(entry) is not None:
            continue
        shutil.rmtree(entry, ignore_errors=True)
        removed.append(entry.name)
    return removed


def _last_used(state: WarmState) -> int:
    """When somebody used it, in nanoseconds; 0 where another lab has removed it meanwhile."""
    try:
        return (state.directory / ABOUT).stat().st_mtime_ns
    except OSError:
        return 0


def trim(in_use: set[str], keep: int = KEPT) -> list[str]:
    """Remove the states that nobody has used for longest, but for those that live guests stand on.

    A changed image, QEMU or lab leaves states that will never be asked for again.
    """
    used = {state.key: _last_used(state) for state in every()}
    dated = sorted(used.values())
    removed = []
    for state in every():
        if len(dated) <= keep or state.key in in_use:
            continue
        if used.get(state.key, dated[-1]) < dated[-keep]:
            shutil.rmtree(state.directory, ignore_errors=True)
            (paths.warm() / f".{state.key}.asked").unlink(missing_ok=True)
            removed.append(state.key)
    return removed


def remove_all(*, images: set[str], in_use: set[str]) -> tuple[list[str], int]:
    """Remove the states of images that are gone, but for those in use: names, and bytes freed.

    ``images`` are the directory names of the images that stay, ``in_use`` the keys of states that
    live guests stand on.
    """
    names, freed = [], 0
    for state in every():
        if state.key in in_use or state.image in images:
            continue
        freed += sum(f.stat().st_blocks * 512 for f in state.directory.iterdir())
        shutil.rmtree(state.directory, ignore_errors=True)
        names.append(state.key)
    return names, freed
