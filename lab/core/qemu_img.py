"""Command lines of ``qemu-img`` and ``qemu-io``; no other module makes them.

Without ``-f`` it guesses the format from the file's first bytes, and a guest writes those of a raw
disk: with a header of qcow2 there, the host would open the "backing file" that it names, such as
``/etc/shadow`` or an address of the network. So each function takes the format, which the lab
knows. A header that QEMU wrote itself is not the guest's. A foreign image is refused at its import
if its header names another file.

QEMU takes what is before a colon for a protocol: a file's name ``nbd:example.org:10809`` is an
address, and ``json:{…}`` any file. Such a path gets ``./`` before it.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

PROGRAM: Final = "qemu-img"
_IO: Final = "qemu-io"
QCOW2: Final = "qcow2"
RAW: Final = "raw"
Path = str | PurePath
Command = tuple[str, ...]


def _named(path: Path) -> str:
    """Return a path that names a file for QEMU too."""
    text = str(path)
    return f"./{text}" if ":" in text.partition("/")[0] else text


def format_of(path: Path) -> str:
    """Return the format of a disk's file, which the lab named after it."""
    kind = PurePath(path).suffix.removeprefix(".")
    if kind not in (QCOW2, RAW):
        raise ValueError(f"'{path}' is not the name of a disk's file")
    return kind


def create(kind: str, path: Path, size: int, options: Command = ()) -> Command:
    """Make an empty disk."""
    return (PROGRAM, "create", "-q", "-f", kind, *options, _named(path), str(size))


def overlay(base: Path, path: Path) -> Command:
    """Make a qcow2 file over another one."""
    return (PROGRAM, "create", "-q", "-f", QCOW2, "-b", _named(base), "-F", QCOW2, _named(path))


def rebase(path: Path, base: Path) -> Command:
    """Merge the files between an overlay and its new base into the overlay."""
    return (PROGRAM, "rebase", "-f", QCOW2, "-b", _named(base), "-F", QCOW2, _named(path))


def convert(source: Path, kind: str, target: Path, to: str) -> Command:
    """Copy a disk to a new file of the format ``to``."""
    return (PROGRAM, "convert", "-f", kind, "-O", to, _named(source), _named(target))


def extents(path: Path, kind: str) -> Command:
    """Print a disk's extents as JSON; QEMU may have it open."""
    return (PROGRAM, "map", "-U", "-f", kind, "--output=json", _named(path))


def info(path: Path, kind: str) -> Command:
    """Print what a header says, as JSON. No other file is opened."""
    return (PROGRAM, "info", "-f", kind, "--output=json", _named(path))


def compare(path: Path, kind: str, pattern: int, offset: int, length: int) -> Command:
    """Read bytes while QEMU has the disk open; print those that are not the pattern."""
    read = f"read -q -P {pattern} {offset} {length}"
    return (_IO, "-U", "-r", "-f", kind, "-c", read, _named(path))
