"""Snapshots of booted guests, from which guests of the same configuration are restored.

A snapshot is a directory. Its name is a digest of everything that both guests must share: image,
domain, QEMU, libvirt, accelerator, the lab's key. So with another QEMU or image an old snapshot is
never used. Its maker holds a lock and renames the directory at the end, so readers never see a
partial one.
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
from functools import partial
from pathlib import Path
from typing import Any, Final

from lab.core.errors import HostError
from lab.host.guest.registry import GuestRecord
from lab.host.system import files, leftovers, made, paths, unfinished

MEMORY: Final = "memory.save"
ROOT: Final = "root.qcow2"
SEED: Final = "seed.iso"
FILES: Final = (MEMORY, ROOT, SEED)
ABOUT: Final = "warm.json"
FORMAT: Final = 2
MAKING: Final = 1200.0
"""Timeout in seconds while another process makes the same snapshot: a slow boot and the saving."""
KEPT: Final = 12
"""Most snapshots that are kept; one of a guest with 512 MiB takes 160 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot of a guest in real time."""

    key: str
    directory: Path
    saved_directory: str
    """The guest's directory when it was saved."""
    host_key: str
    """Public line of its SSH host key."""
    image: str
    created: str
    boot_seconds: float
    """Duration of the boot, which a restored guest does not need."""
    captures: dict[str, str]
    """Raw output of steps after its boot."""

    @property
    def memory(self) -> Path:
        return self.directory / MEMORY

    @property
    def root(self) -> Path:
        """The root disk when it was saved. Restored guests write to overlays on it."""
        return self.directory / ROOT

    @property
    def seed(self) -> Path:
        """The cloud-init seed, which the guest still has as a drive."""
        return self.directory / SEED


def key_of(facts: dict[str, Any]) -> str:
    """Return the name of the snapshot for these facts."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(key: str) -> Snapshot | None:
    """Return the snapshot of that name if it is complete.

    An incomplete one is removed, unless another process is replacing it.
    """
    directory = paths.warm() / key
    state = _read(directory)
    if state is None:
        made.drop(directory, partial(_is_incomplete, directory))
    else:
        with suppress(OSError):
            os.utime(directory / ABOUT)  # `trim` removes the least recently used snapshots
    return state


def _read(directory: Path) -> Snapshot | None:
    try:
        about = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
        sizes = about.pop("sizes")
        if any((directory / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return Snapshot(directory=directory, **about)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def requested_before(key: str) -> bool:
    """Return whether an earlier run requested this snapshot, and record this request."""
    mark = paths.warm() / f".{key}.asked"
    known = mark.exists()
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return known


@contextmanager
def exclusive(key: str) -> Iterator[None]:
    """Hold a lock, so that only one process makes the snapshot of that name.

    ``LockedError`` after :data:`MAKING`.
    """
    what = "another process to save a guest"
    with made.locked(paths.warm() / key, seconds=MAKING, what=what):
        yield


@contextmanager
def making(key: str) -> Iterator[Path]:
    """Yield a directory for the parts of a snapshot; remove it at the end unless it was
    published."""
    place = unfinished.name(paths.warm() / key)
    try:
        paths.warm().mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700)  # the seed holds the guest's private host key
    except OSError as error:
        raise HostError(f"the directory '{place}' cannot be created: {error.strerror}") from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(
    place: Path, key: str, record: GuestRecord, *, boot_seconds: float, captures: dict[str, str]
) -> Snapshot:
    """Move the disks of the guest to its snapshot, write a description, and rename it into place.

    The run that ordered it holds the lock (`exclusive`).
    """
    try:
        for name in (ROOT, SEED):
            shutil.move(record.path / name, place / name)
        sizes = {name: (place / name).stat().st_size for name in FILES}
        state = Snapshot(
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
        made.replace(place, state.directory)
    except OSError as error:
        raise HostError(f"the guest's snapshot could not be stored: {error.strerror}") from error
    return state


def discard(state: Snapshot) -> None:
    """Remove a snapshot that does not restore, unless another process has replaced it."""
    made.drop(state.directory, partial(_is_there, state))


def every() -> list[Snapshot]:
    """Return all complete snapshots."""
    found = [_read(d) for d in _entries() if not d.name.startswith(".")]
    return [s for s in found if s is not None]


def _entries() -> list[Path]:
    try:
        return sorted(d for d in paths.warm().iterdir())
    except OSError:
        return []


def collect_garbage() -> list[str]:
    """Remove leftovers of killed processes and incomplete snapshots; return their names."""
    removed = leftovers.remove(_entries())
    for entry in _entries():
        if entry.name.startswith(".") or _read(entry) is not None:
            continue
        if made.drop(entry, partial(_is_incomplete, entry)):
            removed.append(entry.name)
    return removed


def _is_incomplete(directory: Path) -> bool:
    return _read(directory) is None


def _is_there(state: Snapshot) -> bool:
    """Return whether it is there as it was read: no process has replaced it."""
    return _read(state.directory) == state


def _was_last_used(state: Snapshot, when: int) -> bool:
    return _last_used(state) == when


def _last_used(state: Snapshot) -> int:
    """Return the time of its last use in nanoseconds; 0: another process has removed it."""
    try:
        return (state.directory / ABOUT).stat().st_mtime_ns
    except OSError:
        return 0


def trim(in_use: set[str], keep: int = KEPT) -> list[str]:
    """Remove the least recently used snapshots beyond ``keep``, except those in use.

    After a change of image, QEMU or lab the old snapshots are never requested again.
    """
    used = {state.key: _last_used(state) for state in every()}
    dated = sorted(used.values())
    removed = []
    for state in every():
        if len(dated) <= keep or state.key in in_use:
            continue
        when = used.get(state.key, dated[-1])
        if when < dated[-keep] and made.drop(state.directory, partial(_was_last_used, state, when)):
            (paths.warm() / f".{state.key}.asked").unlink(missing_ok=True)
            removed.append(state.key)
    return removed


def remove_all(*, images: set[str], in_use: set[str]) -> tuple[list[str], int]:
    """Remove unused snapshots of removed images; return names, and bytes freed.

    ``images``: directory names of the remaining images. ``in_use``: keys of running guests.
    """
    removed, freed = [], 0
    for state in every():
        if state.key in in_use or state.image in images:
            continue
        size = files.disk_usage(state.directory)
        if made.drop(state.directory, partial(_is_there, state)):
            freed += size
            removed.append(state.key)
    return removed, freed
