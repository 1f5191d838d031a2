"""What several processes need, and one of them makes for all.

`once` is used for everything that is kept under a digest of its inputs: it is made under a name of
:mod:`lab.host.system.unfinished` while a lock is held, and renamed into its place. A look-up never
removes anything. `drop` removes what is in a place under the same lock, and only what was seen.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from lab.core.errors import HostError, unwritable
from lab.host.system import files, leftovers, locks, unfinished

T = TypeVar("T")
_TRIES: Final = 5
"""Attempts to hold what another process may remove before it is held."""


def lock_of(place: Path) -> Path:
    """Return the lock file of a place."""
    return place.with_name(f".{place.name}.lock")


@contextmanager
def locked(place: Path, *, seconds: float, what: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a place; ``LockedError`` after so many seconds.

    ``what``: what the holder is doing. ``shared``: other processes may hold it so too.
    """
    files.make_directory(place.parent)
    path = lock_of(place)
    while True:
        try:
            with path.open("a") as file:
                locks.take(file.fileno(), path, seconds=seconds, what=what, shared=shared)
                if not locks.is_still(path, file.fileno()):
                    continue  # `remove_free_locks` has removed the file
                yield
                return
        except OSError as error:
            raise unwritable(path, error) from error


def once(
    place: Path,
    find: Callable[[], T | None],
    make: Callable[[Path], Path | None],
    *,
    seconds: float,
    what: str,
    begin: Callable[[], object] = lambda: None,
    durable: bool = True,
) -> T:
    """Return what ``find`` returns; if that is ``None``, make it, or wait for the process that
    does.

    ``make`` gets the name for a new file or directory. It is renamed to ``place``, or to what
    ``make`` returns. What is in the place and is not found (it is incomplete) is removed.
    ``begin`` is called before. If the work raises or its process dies, the next process does it.
    ``LockedError``: another process has made it for so many ``seconds``. ``what``: what it does.
    ``durable``: it is synced first, as everything whose loss nobody would notice.
    """
    if (found := find()) is not None:
        return found
    with locked(place, seconds=seconds, what=what):
        if (found := find()) is not None:
            return found
        begin()
        _remove(place)  # it is incomplete
        with making(place) as part:
            replace(part, make(part) or place, durable=durable)
        if (found := find()) is None:
            raise HostError(f"'{place}' was made and is not complete: another process changed it")
        return found


@contextmanager
def held(
    place: Path,
    find: Callable[[], T | None],
    make: Callable[[Path], Path | None],
    *,
    seconds: float,
    what: str,
    begin: Callable[[], object] = lambda: None,
    durable: bool = True,
) -> Iterator[T]:
    """Yield the result of `once`; until the end of the block nothing removes it."""
    try:
        for _ in range(_TRIES):
            once(place, find, make, seconds=seconds, what=what, begin=begin, durable=durable)
            with locked(place, seconds=seconds, what=what, shared=True):
                if (found := find()) is not None:
                    yield found
                    return
    finally:
        remove_free_locks(lock_of(place))
    raise HostError(f"other processes remove '{place}' again and again", hint="try again later")


@contextmanager
def making(place: Path) -> Iterator[Path]:
    """Yield a name for what will be renamed to ``place``; remove what is left under it."""
    part = unfinished.name(place)
    try:
        yield part
    finally:
        if os.path.lexists(part):
            leftovers.discard(part)


def replace(part: Path, place: Path, *, durable: bool = True) -> None:
    """Rename what was made into its place; what is there is removed.

    The caller holds the place's lock.
    """
    put = files.publish if durable else files.move
    if place.is_dir() and not place.is_symlink():
        with making(place) as aside:
            files.move(place, aside)
            put(part, place)
    else:
        put(part, place)


def _remove(place: Path) -> None:
    """Remove what is in a place, in one step for other processes."""
    if os.path.lexists(place):
        with making(place) as aside:
            files.move(place, aside)


def drop(place: Path, still: Callable[[], bool]) -> bool:
    """Remove what is in a place; return whether it was removed.

    It stays if another process makes or holds it now. ``still`` is called while the lock is held,
    and returns whether what is there is still what the caller wants to remove.
    """
    if not os.path.lexists(place):
        return False
    try:
        with locked(place, seconds=0.0, what="another process that makes it"):
            if not still():
                return False
            _remove(place)
            return True
    except locks.LockedError:
        return False


def remove_free_locks(*locks_: Path) -> None:
    """Remove lock files that no process holds."""
    for path in locks_:
        with suppress(OSError), path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if locks.is_still(path, file.fileno()):
                path.unlink()
