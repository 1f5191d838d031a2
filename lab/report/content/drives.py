"""Which modelled drives were compared with a real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lab.model.scenario.document import SERVED, Cell, Disk
from lab.plugins import catalog

NOT_MEASURED = "not measured on a drive"


def backing(disk: Disk) -> str:
    """Return whether a disk's model was compared with a drive; empty: it models none.

    A scenario's own values make another drive of a measured one. All values together are a
    profile's, which was.
    """
    if disk.model not in SERVED:
        return ""
    drive = catalog.disk_model(disk.model).drive(disk)
    values = getattr(disk, disk.model)
    given = values.model_dump(exclude_none=True)
    if "write_cache" in given and len(given) > len(type(values).model_fields) / 2:
        return "a profile"
    if drive is None or given or not drive.certificate:
        return NOT_MEASURED
    return "measured"


def unmeasured(cells: Iterable[Cell]) -> str:
    """Return a sentence about the modelled drives that no measurement backs; empty: there are
    none."""
    names = dict.fromkeys(_names(cells))
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb} {NOT_MEASURED}: values of data sheets, or the scenario's"


def _names(cells: Iterable[Cell]) -> Iterator[str]:
    for cell in cells:
        for disk in cell.disks:
            if backing(disk) == NOT_MEASURED:
                name = disk.preset or f"the preset of {disk.model}"
                changed = getattr(disk, disk.model).model_dump(exclude_none=True)
                yield f"{name} with {', '.join(sorted(changed))}" if changed else name
