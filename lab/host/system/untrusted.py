"""Reads files that other users may have created, and writes new files with their contents.

Reading follows no link below the directory, opens regular files only, so that it never blocks, and
has limits of size and number. Writing happens in a new directory, followed by a rename.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.core.errors import InputError, unwritable
from lab.core.printable import printable
from lab.core.units import MIB, format_size
from lab.host.system import files, unfinished

DOCUMENT: Final = 64 * MIB
"""Most bytes of a JSON document; the ``run.json`` of 10 000 cells has 25 MiB."""
ENTRIES: Final = 20_000
"""Most entries of a directory of cells or of raw output."""
_NAME: Final = 255
"""Longest file name in bytes, in Linux's file systems."""
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link, which is not followed",
    stat.S_IFIFO: "a FIFO and no file",
    stat.S_IFSOCK: "a socket and no file",
    stat.S_IFCHR: "a device and no file",
    stat.S_IFBLK: "a device and no file",
    stat.S_IFDIR: "a directory and no file",
    stat.S_IFREG: "a file and no directory",
}


def read(root: Path, *names: str, limit: int = DOCUMENT) -> bytes:
    """Return the contents of a file below ``root``; ``OSError`` says why it cannot be read.

    ``names`` lead to it, one component each. ``limit``: most bytes.
    """
    with _directory(root, names[:-1]) as directory:
        _check_kind(directory, names[-1], stat.S_IFREG)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with os.fdopen(os.open(names[-1], flags, dir_fd=directory), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):  # it was replaced after the check
                raise OSError(errno.EINVAL, f"it is {_KINDS[stat.S_IFMT(mode)]}")
            size = os.fstat(file.fileno()).st_size
            data = file.read(limit + 1) if size <= limit else b""
    if size > limit or len(data) > limit:
        has = f"it has {format_size(max(size, len(data)))}"
        raise OSError(errno.EFBIG, f"{has}, at most {format_size(limit)} are read")
    return data


def entries(root: Path, *names: str) -> list[str]:
    """Return the names in a directory below ``root``, sorted; ``OSError``: it cannot be read."""
    with _directory(root, names) as directory:
        found = os.listdir(directory)  # noqa: PTH208  of an open directory
    if len(found) > ENTRIES:
        raise OSError(errno.EFBIG, f"it has {len(found)} entries, at most {ENTRIES} are read")
    return sorted(found)


def links(root: Path, *names: str) -> dict[str, str]:
    """Return the target of each symbolic link in a directory below ``root``, by name."""
    with _directory(root, names) as directory:
        found = dict[str, str]()
        for name in itertools.islice(sorted(os.listdir(directory)), ENTRIES):  # noqa: PTH208
            if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                found[name] = os.readlink(name, dir_fd=directory)
        return found


@contextmanager
def _directory(root: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Yield an open directory. Only ``root`` itself may be a link, since the user named it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    opened = os.open(root, flags)
    try:
        for name in names:
            _check_kind(opened, name, stat.S_IFDIR)
            below = os.open(name, flags | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = below
        yield opened
    finally:
        os.close(opened)


def _check_kind(directory: int, name: str, wanted: int) -> None:
    """``OSError`` for another kind of entry. A device is not opened: opening may have effects."""
    if wrong := wrong_name(name):
        raise OSError(errno.EINVAL, wrong)
    kind = stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if kind != wanted:
        raise OSError(errno.EINVAL, f"it is {_KINDS[kind]}")


def wrong_name(name: str) -> str:
    """Return why a name is not valid for a file; empty: it is valid."""
    if name in ("", ".", "..") or "/" in name:
        return "its name is not a file name"
    if printable(name) != name or "\n" in name or "\t" in name:
        return "its name has control characters, or is not UTF-8"
    if len(os.fsencode(name)) > _NAME:
        return f"its name has more than {_NAME} bytes"
    return ""


# -- writing


def write_tree(tree: Mapping[str, str], directory: Path) -> list[Path]:
    """Write files by name below a new directory, completely or not at all; return their paths.

    ``InputError``: a name would lead out of it.
    """
    for name in tree:
        for part in name.split("/"):
            if wrong := wrong_name(part):
                raise InputError(f"'{printable(name)}' cannot be written to '{directory}': {wrong}")
    with new(directory) as made:
        made.mkdir()
        for name, text in tree.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            if text.startswith("#!"):
                path.chmod(0o755)
    return [directory / name for name in tree]


def write_text(text: str, path: Path) -> None:
    """Write a new file, completely or not at all."""
    with new(path) as made, made.open("x", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


@contextmanager
def new(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` at the end, unless an error occurs.

    It is in a new directory of this user, so that no other user can put a link there.
    """
    if path.exists() or path.is_symlink():
        raise InputError(f"'{path}' exists already: remove it, or give another name")
    if not path.absolute().parent.is_dir():
        raise InputError(
            f"'{path}' cannot be written: the directory '{path.parent}' does not exist"
        )
    part = unfinished.name(path)
    try:
        part.mkdir(mode=0o700)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield part / path.name
        files.publish(part / path.name, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
