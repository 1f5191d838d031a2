"""Frees disk space: snapshots, kernels, kits, old builds of images, and with an option runs.

An item that is in use stays. Use is looked up again just before each removal: a process that has it
open or on its command line (QEMU), a guest that is up, a run that is being made. Last use is the
newest access or change of an item's files; Linux stores an access once a day (``relatime``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lab.capabilities.prune.model import Item, Kind, Pruning
from lab.core.errors import LabError
from lab.host import images
from lab.host.guest import registry as guests
from lab.host.system import files, leftovers, made, makers, paths
from lab.host.system.pids import used_paths
from lab.run.preparation.images import in_use
from lab.store import judgements, reuse
from lab.store import runs as store

_ORDER: Final = list(Kind)
_KEPT_NAMES: Final = re.compile(r"(?:snapshot|base|boot|driver)-[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    kind: Kind
    name: str
    path: Path
    bytes: int
    used: float
    """Seconds since the epoch."""
    stays: str
    """Why it stays whatever its age; empty: it may go."""


def plan(keep: int, *, with_runs: bool) -> Pruning:
    """Return what to remove so that at most ``keep`` bytes are left. Nothing is removed."""
    found = list(_found())
    busy = _busy()
    total = left = sum(one.bytes for one in found)
    gone, stay = [], []
    for one in sorted(found, key=_turn):
        why = one.stays or ("" if with_runs or one.kind is not Kind.RUN else _RUNS_STAY)
        why = why or busy(one)
        if not why and (left > keep or one.kind is Kind.LEFTOVER):
            left -= one.bytes
            left_over = one.kind is Kind.LEFTOVER
            reason = "a killed process was making it" if left_over else "least recently used"
            gone.append(_item(one, reason, remove=True))
        else:
            stay.append(_item(one, why or "there is room for it", remove=False))
    return Pruning(keep=keep, before=total, after=left, done=False, items=(*gone, *stay))


def _turn(one: _Found) -> tuple[bool, bool, float, int]:
    """Return a key for the order of removal: leftovers, then by last use, and runs at the end."""
    return (
        one.kind is not Kind.LEFTOVER,
        one.kind is Kind.RUN,
        one.used,
        _ORDER.index(one.kind),
    )


_RUNS_STAY: Final = "results are removed with --results only"


def carry_out(planned: Pruning, say: Callable[[Item], None]) -> Pruning:
    """Remove what the plan says, unless it has come into use; ``say`` hears of each removed item.

    An item is renamed before it is deleted, so no process sees half of it.
    """
    items: list[Item] = []
    left = planned.before
    for item in planned.items:
        if not item.remove:
            items.append(item)
            continue
        why = _remove(item)
        if not why:
            left -= item.bytes
            say(item)
        items.append(item.model_copy(update={"remove": not why, "why": why or item.why}))
    if any(item.kind is Kind.RUN for item in planned.items if item.remove):
        reuse.collect_garbage()  # entries whose cell is gone
        judgements.collect_garbage()
    return planned.model_copy(update={"after": left, "done": True, "items": tuple(items)})


def _remove(item: Item) -> str:
    """Remove an item; return why it was not removed."""
    path = Path(item.path)
    if not os.path.lexists(path):
        return "another process has removed it"
    if why := _busy()(item):
        return why
    try:
        if item.kind is Kind.IMAGE:
            images.remove(path.name, in_use=in_use())
        elif item.kind is Kind.JUDGEMENTS:
            judgements.clear()
        elif item.kind is Kind.RUN:
            with makers.hold(path), made.making(path) as aside:
                files.move(path, aside)
        elif item.kind is Kind.LEFTOVER:
            leftovers.discard(path)
        elif not made.drop(path, lambda: not _busy()(item)):
            return "another process uses it"
        else:
            _forget(path)
    except LabError as error:
        return error.message
    return ""


def _forget(path: Path) -> None:
    """Remove what was stored about something that is gone."""
    if path.parent == paths.sealed():
        _forget_base(path)
    if path.parent == paths.warm():
        path.with_name(f".{path.name}.asked").unlink(missing_ok=True)
    made.remove_free_locks(made.lock_of(path))


def _forget_base(path: Path) -> None:
    """Remove the names of images whose raw disk is gone."""
    digest = path.name.removeprefix("base-")
    for pointer in paths.sealed().glob("image-*"):
        if pointer.read_text(encoding="ascii", errors="replace").strip() == digest:
            pointer.unlink(missing_ok=True)


# -- what there is


def _found() -> Iterator[_Found]:
    newest: set[str] = set()
    for image in images.list_images().images:
        stays = "" if image.name in newest else "it is the newest of its name"
        newest.add(image.name)
        yield _one(Kind.IMAGE, image.directory, stays)
    for path in _visible(paths.warm()):
        yield _one(Kind.SNAPSHOT, path)
    for path in _visible(paths.sealed()):
        if _KEPT_NAMES.fullmatch(path.name):
            yield _one(Kind.SNAPSHOT if path.name.startswith("snapshot") else Kind.KIT, path)
    if _visible(paths.judged()):
        yield _one(Kind.JUDGEMENTS, paths.judged())
    for path in _visible(paths.kernels()):
        yield _one(Kind.KERNEL, path)
    for path in sorted(paths.images().glob(f"{images.TREE}*")):
        if path.is_dir() and not path.is_symlink():
            yield _one(Kind.TREE, path)
    for path in leftovers.every():
        yield _one(Kind.LEFTOVER, path)
    for run in store.every():
        if run.is_run and not run.directory.is_symlink():
            yield _one(Kind.RUN, run.directory)


def _visible(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if p.name[0] != "." and not p.is_symlink())
    except OSError:
        return []


def _one(kind: Kind, path: Path, stays: str = "") -> _Found:
    size = files.disk_usage(path)
    return _Found(
        kind=kind, name=path.name, path=path, bytes=size, used=_last_use(path), stays=stays
    )


def _last_use(path: Path) -> float:
    times = [0.0]
    for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
        try:
            found = file.lstat()
        except OSError:
            continue
        # Listing a directory is an access, and no use.
        times += [found.st_mtime, *([] if file.is_dir() else [found.st_atime])]
    return max(times)


def _item(one: _Found, why: str, *, remove: bool) -> Item:
    return Item(
        kind=one.kind,
        name=one.name,
        path=str(one.path),
        bytes=one.bytes,
        used=datetime.fromtimestamp(one.used, UTC).isoformat(timespec="seconds"),
        remove=remove,
        why=why,
    )


# -- what is in use


def _busy() -> Callable[[_Found | Item], str]:
    """Return a function that says why an item is in use; empty: it is not."""
    records = list(guests.every())
    of_guests = {r.image for r in records} | {r.warm for r in records if r.warm}
    places = (paths.images(), paths.warm(), paths.sealed(), paths.kernels(), paths.runs())
    opened = {path for place in {p.resolve() for p in places} for path in used_paths(place)}
    writing = {run.id for run in store.every() if makers.holder(run.directory) is not None}

    def why(item: _Found | Item) -> str:
        path = Path(item.path).resolve()
        if item.kind is Kind.LEFTOVER:
            return ""
        if any(one == path or path in one.parents for one in opened):
            return "a process uses it"
        if path.name in of_guests:
            return "a guest uses it"
        if item.kind is Kind.RUN:
            return "it is being made" if path.name in writing else ""
        return f"the run '{min(writing)}' is being made and may need it" if writing else ""

    return why
