"""Users of a block device: mounts, swap, devices above it, processes, the system, signatures."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from lab.host.real_disks.device import (
    Number,
    assembled,
    backing_file,
    family,
    name_of,
    number_at,
    partitions,
    related,
    whole_of,
)

Run = Callable[[Sequence[str]], "tuple[int, str]"]
"""Runs a program on the host; returns exit status and standard output. ``OSError``: it cannot
run."""


class Rule(Enum):
    """Why a disk may not be passed through."""

    UNSTABLE = "unstable name"
    GONE = "gone"
    FORBIDDEN = "forbidden"
    NO_DISK = "no disk"
    MOUNTED = "mounted"
    SWAP = "swap"
    HELD = "held"
    SIGNATURE = "signature"
    SYSTEM = "system disk"
    LAB = "disk of the lab's own files"
    OPEN = "open elsewhere"
    READ_ONLY = "read-only"
    CHANGED = "changed"
    LEASED = "leased"
    ERASE = "wrong serial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One reason against a disk, with the evidence."""

    rule: Rule
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of ``mountinfo``, ``proc(5)``."""

    device: Number
    point: str
    type: str
    source: str


def mounts() -> Iterator[Mount]:
    """Yield all mounts, in every mount namespace that can be read."""
    seen: set[str] = set()
    for process in ("self", *_processes()):
        try:
            space = str(Path(f"/proc/{process}/ns/mnt").readlink())
            if space in seen:
                continue
            text = Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        seen.add(space)
        for line in text.splitlines():
            before, _, after = line.partition(" - ")
            words, more = before.split(), after.split()
            major, _, minor = words[2].partition(":")
            yield Mount(
                device=(int(major), int(minor)),
                point=_plain(words[4]),
                type=more[0],
                source=_plain(more[1]),
            )


def mounted(number: Number) -> Iterator[Objection]:
    """Objections: a file system uses the device, one of its partitions, or its disk.

    File systems without a block device of their own (btrfs, overlay) count by the device they name.
    """
    numbers = set(family(number))
    found = set()
    for mount in mounts():
        device = mount.device if mount.device[0] else number_at(mount.source)
        if device in numbers:
            found.add(f"{_node(device)} is mounted at {mount.point} ({mount.type})")
    for entry in Path("/sys/fs/btrfs").glob("*/devices/*/dev"):
        major, _, minor = entry.read_text(encoding="ascii").strip().partition(":")
        if (device := (int(major), int(minor))) in numbers:
            found.add(f"{_node(device)} belongs to the btrfs {entry.parents[2].name}")
    yield from (Objection(rule=Rule.MOUNTED, evidence=text) for text in sorted(found))


def swap(number: Number) -> Iterator[Objection]:
    """Objections: it is used as swap (``/proc/swaps``)."""
    numbers = set(family(number))
    for line in Path("/proc/swaps").read_text(encoding="utf-8").splitlines()[1:]:
        path = _plain(line.split()[0])
        if number_at(path) in numbers:
            yield Objection(rule=Rule.SWAP, evidence=f"{path} is in /proc/swaps")


def held(number: Number) -> Iterator[Objection]:
    """Objections: other block devices use it: md, device-mapper and LVM, loop devices."""
    for one in family(number):
        for above in related(one, "holders"):
            kind = assembled(above) or "another driver"
            label = _label(above)
            evidence = f"{_node(one)} is part of {_node(above)}{label}, a device of {kind}"
            yield Objection(rule=Rule.HELD, evidence=evidence)
    numbers = set(family(number))
    for entry in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        try:
            file = entry.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if number_at(file) in numbers:
            loop = entry.parents[1].name
            yield Objection(rule=Rule.HELD, evidence=f"{file} is the file of /dev/{loop}")


def opened(number: Number, but: Iterable[int], mine: Iterable[int] = ()) -> Iterator[Objection]:
    """Objections: processes have it open, except those in ``but`` and this process's ``mine``.

    Only root sees other users' processes; ``O_EXCL`` excludes those.
    """
    numbers = {os.makedev(*one) for one in family(number)}
    passed, own = set(but), set(mine)
    for process in _processes():
        if int(process) in passed:
            continue
        for entry, found in _open_files(process):
            if not stat.S_ISBLK(found.st_mode) or found.st_rdev not in numbers:
                continue
            if int(process) == os.getpid() and int(entry) in own:
                continue
            node = _node((os.major(found.st_rdev), os.minor(found.st_rdev)))
            evidence = f"process {process} ({_command(process)}) has {node} open"
            yield Objection(rule=Rule.OPEN, evidence=evidence)
            break


def holders_of_file(descriptor: int) -> str:
    """Return the processes that have the same file open, in words; empty: none is visible."""
    wanted = os.fstat(descriptor)
    found = []
    for process in _processes():
        if int(process) == os.getpid():
            continue
        for _, other in _open_files(process):
            if (other.st_dev, other.st_ino) == (wanted.st_dev, wanted.st_ino):
                found.append(f"process {process} ({_command(process)})")
                break
    return ", ".join(found)


def beneath(path: Path) -> dict[Number, str]:
    """Return the disks below a path's file system, each with the chain that leads to it.

    Follows md, device-mapper and files of loop devices. A file system without a known block device
    (network, RAM disk, ZFS pool) yields nothing: a mounted disk is claimed and cannot be opened
    anyway.
    """
    existing = path
    while not existing.exists():
        existing = existing.parent
    device = existing.stat().st_dev
    start: list[Number] = [(os.major(device), os.minor(device))]
    if not start[0][0]:
        start = _sources(start[0])
    found: dict[Number, str] = {}
    left = [(one, f"{path} lies on {_node(one)}") for one in start]
    seen: set[Number] = set()
    while left:
        one, way = left.pop()
        if one in seen:
            continue
        seen.add(one)
        whole = whole_of(one)
        if whole != one:
            way = f"{way}, a partition of {_node(whole)}"
        found.setdefault(whole, way)
        below = [*related(one, "slaves"), *related(whole, "slaves")]
        left += [(slave, f"{way}, which stands on {_node(slave)}") for slave in below]
        if file := backing_file(whole):
            left += [
                (other, f"{way}, whose file is {file}: {deeper}")
                for other, deeper in (beneath(Path(file)) if Path(file).exists() else {}).items()
            ]
    return found


def signatures(path: str, number: Number, run: Run) -> Iterator[Objection]:
    """Objections: file systems, RAID and LVM members, swap, partition tables on it.

    ``path`` leads to the device. Two programs look, and the kernel has read a partition table
    itself.
    """
    found: set[str] = set()
    try:
        status, text = run(("wipefs", "--no-act", "--json", path))
        if status != 0:
            raise OSError(f"wipefs ended with status {status}")
        for one in json.loads(text or "{}").get("signatures", ()):
            label = f", labelled {one['label']}" if one.get("label") else ""
            found.add(f"{one['type']} at {one['offset']}{label} (wipefs)")
        status, text = run(("blkid", "--probe", "--output", "export", path))
        if status not in (0, _NOTHING, _AMBIVALENT):
            raise OSError(f"blkid ended with status {status}")
        if status == _AMBIVALENT:
            found.add("several at once (blkid)")
        pairs = (line.partition("=")[::2] for line in text.splitlines())
        found.update(f"{value} (blkid)" for key, value in pairs if key in ("TYPE", "PTTYPE"))
    except (OSError, ValueError, KeyError) as error:
        found.add(f"unknown: {error}")
    for part in partitions(number):
        found.add(f"a partition, {_node(part)} (kernel)")
    yield from (Objection(rule=Rule.SIGNATURE, evidence=text) for text in sorted(found))


_NOTHING: Final = 2
"""``blkid(8)``: nothing was found."""
_AMBIVALENT: Final = 8
"""``blkid(8)``: more than one result."""


def _sources(device: Number) -> list[Number]:
    """Return the block devices of a file system without its own, as its mounts name them."""
    named = (number_at(m.source) for m in mounts() if m.device == device)
    return list({number for number in named if number is not None})


def _processes() -> list[str]:
    names = (entry.name for entry in Path("/proc").iterdir())
    return sorted((name for name in names if name.isdigit()), key=int)


def _open_files(process: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield entry.name, entry.stat()
        except OSError:
            continue


def _command(process: str) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    return b" ".join(words).decode("utf-8", errors="replace").strip()[:80] or "without a name"


def _node(number: Number) -> str:
    return f"/dev/{name_of(number)}"


def _label(number: Number) -> str:
    """Return the name in device-mapper, which includes LVM's."""
    try:
        path = Path(f"/sys/dev/block/{number[0]}:{number[1]}/dm/name")
        return f" ({path.read_text(encoding='utf-8').strip()})"
    except OSError:
        return ""


def _plain(text: str) -> str:
    """Decode a path of ``proc(5)``, where blanks are octal escapes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
