"""Real disks: what a scenario that names one takes from the host, and how a cell blanks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from lab.core.units import KIB
from lab.core.yaml import Document
from lab.model.execution.procedure import GuestCommand, PassDisk
from lab.model.plugin import Problem
from lab.model.scenario.document import CacheMode, Disk, DiskFormat
from lab.model.scenario.real import RealDisk

EDGE: Final = 256 * KIB
"""Bytes at each end of a disk that are looked at before an array is made of it. All superblocks
are there (``md(4)``: 1.1 at 0, 1.2 at 4 KiB, 1.0 and 0.90 in the last 128 KiB), the bitmap that
belongs to 1.2, partition tables, and the signatures of file systems."""

PASSED: Final = ("throttle", "none")
"""Models that a real disk may have: with limits laid over it, and without."""

Known = Callable[[str], RealDisk | None]
"""A real disk by its stable name; ``None``: the host has no such disk."""


def nobody(_device: str) -> RealDisk | None:
    """For a scenario that is read without a host."""
    return None


def with_real(document: Document, known: Known) -> Document:
    """The scenario with each real disk's size, serial and rotation, where they are not given.

    From here on they are what the disk was when it was named: it is refused if they change.
    """
    return document.with_disks(lambda entry: _filled(entry, known))


def _filled(entry: Any, known: Known) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get("device"), str):
        return entry
    if "size" in entry and entry.get("device_serial") is not None:
        return entry
    real = known(entry["device"])
    if real is None:
        return entry
    facts = {
        "size": real.size,
        "device_serial": real.serial,
        "device_rotational": real.rotational,
    }
    return {**facts, **entry}


def real_problems(disk: Disk) -> Iterable[Problem]:
    """What cannot be said of a real disk; and what is said of one where there is none."""
    if disk.device is None:
        for name in ("device_serial", "device_rotational"):
            if getattr(disk, name) is not None:
                message = "it is said of a real disk, and there is none: set device, or remove it"
                yield Problem(key=name, message=message)
        return
    if disk.count != 1:
        message = f"one real disk cannot be there {disk.count} times: remove it, and list each disk"
        yield Problem(key="count", message=message)
    if disk.model not in PASSED:
        yield Problem(
            key="model",
            message=f"a real disk has its own speed, and cannot be {disk.model!r}: remove it, or "
            "limit the disk with throttle",
        )
    if disk.format is not DiskFormat.RAW:
        message = f"a real disk has its own bytes, and no {disk.format}: remove the format"
        yield Problem(key="format", message=message)
    if disk.cache is CacheMode.UNSAFE:
        message = "unsafe drops the guest's flushes, on a real disk too: remove it"
        yield Problem(key="cache", message=message)
    if "size" not in disk.model_fields_set or disk.device_serial is None:
        yield Problem(
            key="device",
            message=f"{disk.device} is not on this host: `lab disk list` lists those that are; with"
            " size and device_serial beside it the scenario is checked without the disk",
        )


def erasable(disk: Disk, erase: Sequence[str]) -> bool:
    """Whether a real disk may be written to: its serial was typed."""
    return bool(disk.device_serial) and disk.device_serial in erase


def pass_step(disk: Disk, serial: str, xml: str, erase: Sequence[str]) -> PassDisk:
    """The disk claimed, and handed over."""
    assert disk.device is not None
    return PassDisk(
        serial=serial,
        device=disk.device,
        size=disk.size,
        device_serial=disk.device_serial or "",
        erase=tuple(s for s in erase if s == disk.device_serial),
        xml=xml,
    )


def blank_step(paths: Sequence[str]) -> GuestCommand:
    """Both ends of the disks zeroed, by the guest, which has them alone; again when the cell goes.

    What a cell before this one left on them would otherwise be in the way of the next.
    """
    lines = [
        "udevadm settle --timeout=30",
        f"for path in {' '.join(paths)}; do",
        '  tries=0; until [ -b "$path" ] || [ $tries -ge 100 ]',
        "  do sleep 0.1; tries=$((tries + 1)); done",
        '  size=$(blockdev --getsize64 "$path")',
        '  wipefs --all --quiet "$path"',
        f"  for seek in 0 $((size - {EDGE})); do",
        f'    dd if=/dev/zero of="$path" bs={EDGE} count=1 seek=$seek oflag=seek_bytes,direct \\',
        "      conv=notrunc,fsync 2>/dev/null",
        "  done",
        "done",
    ]
    script = "\n".join(lines)
    return GuestCommand(label="blanking real disks", script=script, undo=script)
