"""Real disks in a scenario: facts from the host, problems, and the steps that blank them."""

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
"""Bytes at each end of a disk that are checked before an array is created. They include all
superblocks (``md(4)``: 1.1 at 0, 1.2 at 4 KiB, 1.0 and 0.90 in the last 128 KiB), the bitmap of
1.2, partition tables, and the signatures of file systems."""

PASSED: Final = ("throttle", "none")
"""Models of a real disk: with limits, and without."""

Known = Callable[[str], RealDisk | None]
"""Looks up a real disk by its stable name; ``None`` if the host does not have it."""


def nobody(_device: str) -> RealDisk | None:
    """Return no real disk, for reading a scenario without a host."""
    return None


def with_real(document: Document, known: Known) -> Document:
    """Return the scenario with each real disk's size, serial and rotation, unless given.

    The disk is refused later if they no longer match.
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
    """Yield fields that conflict with a real disk, or that need one."""
    if disk.device is None:
        for name in ("device_serial", "device_rotational"):
            if getattr(disk, name) is not None:
                message = "it needs a real disk: set device, or remove it"
                yield Problem(key=name, message=message)
        return
    if disk.count != 1:
        message = f"a real disk exists once, not {disk.count} times: remove it, and list each disk"
        yield Problem(key="count", message=message)
    if disk.model not in PASSED:
        yield Problem(
            key="model",
            message=f"a real disk cannot have the model {disk.model!r}: remove it, or limit the "
            "disk with throttle",
        )
    if disk.format is not DiskFormat.RAW:
        message = f"a real disk has no {disk.format} format: remove it"
        yield Problem(key="format", message=message)
    if disk.cache is CacheMode.UNSAFE:
        message = "unsafe ignores flushes: remove it for a real disk"
        yield Problem(key="cache", message=message)
    if "size" not in disk.model_fields_set or disk.device_serial is None:
        yield Problem(
            key="device",
            message=f"{disk.device} is not on this host: choose one from `lab disk list`, or add "
            "size and device_serial to check without the disk",
        )


def erasable(disk: Disk, erase: Sequence[str]) -> bool:
    """Return whether a real disk may be overwritten: the user has given its serial."""
    return bool(disk.device_serial) and disk.device_serial in erase


def pass_step(disk: Disk, serial: str, xml: str, erase: Sequence[str]) -> PassDisk:
    """Return the step that claims a real disk and passes it to the guest."""
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
    """Return the step that zeroes both ends of the disks in the guest, before and after the cell.

    Otherwise superblocks of one cell would disturb the next.
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
