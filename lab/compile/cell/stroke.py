"""Arrays that use a part of modelled drives, and so have shorter seeks than the drives."""

from __future__ import annotations

from typing import Final

from lab.core.units import format_size
from lab.model.scenario.document import Cell
from lab.model.scenario.drive import HardDrive
from lab.plugins import catalog

SHORTER: Final = 0.9
"""Least ratio of access times that needs no words."""


def short_stroke(cell: Cell) -> str | None:
    """Return a sentence if ``array.component_size`` makes the seeks of a hard disk shorter.

    A data sheet is mapped to the whole disk at any size, and a component uses a part of it.
    """
    from lab.md.theory.drive import access_within  # 0.17 s, and few cells need it

    component = cell.array.component_size if cell.array is not None else None
    if component is None:
        return None
    for _, disk in cell.each_disk:
        drive = catalog.disk_model(disk.model).drive(disk)
        if not isinstance(drive, HardDrive) or disk.device is not None or component >= disk.size:
            continue
        whole, part = access_within(drive, 1.0), access_within(drive, component / disk.size)
        if part < SHORTER * whole:
            return (
                f"array.component_size is {format_size(component)} of a disk's "
                f"{format_size(disk.size)}, so seeks are short: a random read takes "
                f"{part * 1e3:.3g} ms instead of {whole * 1e3:.3g} ms, and with one at a time "
                f"there are {whole / part:.2g} times as many. To scale the drive too, set "
                "disks.size, and leave component_size out"
            )
    return None
