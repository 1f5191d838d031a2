"""Real disks: checks before a run, and the list of this host's disks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.analysis.predict import written
from lab.compile.guest.real_disks import erasable
from lab.core.errors import InputError
from lab.host.real_disks import alternatives
from lab.host.real_disks import refusals as real
from lab.model.scenario.document import Cell, Disk


def check_real(cells: Sequence[Cell], erase: Sequence[str]) -> bool:
    """Return whether cells have real disks; ``InputError``: the guard refuses one of them.

    This check fails early. The guard checks again when it opens the disk.
    """
    disks = wanted_disks(cells, erase)
    for device, disk in disks.items():
        _refuse(device, disk.size, disk.device_serial or "")
    return bool(disks)


def check_offer(devices: Sequence[str]) -> None:
    """``InputError``: one of these disks could not be passed to a guest now."""
    for device in devices:
        found = real.known(device)
        if found is None:
            raise InputError(
                f"--disk {device}: this host has no such disk in '{real.NAMES}'",
                hint="`lab disk list` has the names of those that it has",
            )
        _refuse(device, found.size, found.serial)


def _refuse(device: str, size: int, serial: str) -> None:
    if sentence := real.objections(device, size, serial):
        raise InputError(sentence, hint=real.advice(sentence))


def wanted_disks(cells: Sequence[Cell], erase: Sequence[str]) -> dict[str, Disk]:
    """Return the real disks of cells by name; ``InputError``: a disk could not be used so."""
    disks = {d.device: d for cell in cells for d in cell.disks if d.device is not None}
    for serial in erase:
        if serial not in (disk.device_serial for disk in disks.values()):
            known = ", ".join(f"'{d.device_serial}' ({d.device})" for d in disks.values())
            raise InputError(
                f"--erase {serial}: no real disk of this scenario has that serial",
                hint=f"type it in full; there are {known}" if known else "there is no real disk",
            )
    for cell in cells:
        names = [disk.device for disk in cell.disks if disk.device is not None]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"the disk '{name}' is twice in one cell: name each disk once")
        for disk in cell.disks:
            if disk.device is not None and not erasable(disk, erase):
                _only_read(cell, disk)
    return disks


def _only_read(cell: Cell, disk: Disk) -> None:
    """``InputError``: the cell writes to a disk that may only be read."""
    what = "a file system is written to" if cell.filesystem else "its workloads write"
    what = "an array is written to its members" if cell.array else what
    if cell.array is None and cell.filesystem is None and not written(cell):
        return
    serial = disk.device_serial or ""
    hint = f"everything on it would be lost: --erase {serial}"
    if not serial:
        hint = "the disk tells no serial that could be typed, so that it can only be read"
    raise InputError(f"{what}, and the disk '{disk.device}' may only be read", hint=hint)


def inventory() -> list[dict[str, Any]]:
    """Return each disk and partition with a stable name, and why it cannot be passed."""
    return [
        {
            "names": list(names),
            "device": f"/dev/{device.name}",
            "partition": device.partition,
            "size": device.size,
            "model": device.model,
            "serial": device.serial,
            "wwn": device.wwn,
            "rotational": device.rotational,
            "as_lun": alternatives.lun(device.number),
            "by_vfio": alternatives.vfio(device.number),
            "forbidden": [{"rule": o.rule.value, "evidence": o.evidence} for o in found],
        }
        for device, names, found in real.every()
    ]
