"""Ids of cells: a cell's name, and the identity that claims use."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from lab.model.scenario.document import Cell, DiskBus
from lab.model.scenario.suite import Suite
from lab.plugins import catalog

_SPOKEN: Final = ("array", "disks", "faults", "filesystem", "workloads")
"""Sections that a claim may refer to by name."""


def cell_id(cell: Cell) -> str:
    """Return a readable slug and 8 hex digits of a digest of all fields that affect values."""
    data = cell.model_dump(mode="json", exclude={"timeout", "axes"})
    return f"{slug(cell)}-{_digest(data)}"


def digest_of(cell_id: str) -> str:
    """Return the hex digits of a cell's id. Earlier versions made another slug before them."""
    return cell_id.rpartition("-")[2]


def slug(cell: Cell) -> str:
    """Return the cell's axis values as a readable name, without omitted ones."""
    values = [str(value) for value in cell.axes.values() if value is not None]
    words = [re.sub(r"[^A-Za-z0-9]+", "-", value).strip("-") for value in values]
    named = "-".join(word for word in words if word)[:60].strip("-")
    return named or ("default" if cell.axes else "base")


def identity(cell: Cell) -> str:
    """Return a digest of disks, array, file system, workloads and faults, without the guest.

    A cell that ``--set`` changed has another identity, and no published value. A suite's directory
    is not included.
    """
    return next(identities([cell]))


def identities(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield the identity of each cell; shared sections are serialised once."""
    written: dict[int, tuple[object, str]] = {}
    for cell in cells:
        texts = []
        for name in _SPOKEN:
            section = getattr(cell, name)
            if name == "faults" and not section:
                continue
            known = written.get(id(section))
            if known is None:
                known = written[id(section)] = section, f'"{name}":{_text(_spoken(cell, name))}'
            texts.append(known[1])
        yield _hash("{" + ",".join(texts) + "}")


def _spoken(cell: Cell, section: str) -> Any:
    data = cell.model_dump(mode="json", include={section})[section]
    for disk in data if section == "disks" else ():
        if disk["bus"] == DiskBus.LAB:  # claims do not depend on virtual time
            disk["bus"] = DiskBus.VIRTIO.value
    if section == "workloads":
        for workload in data:
            if isinstance(catalog.workload(workload["tool"]), Suite):
                workload["parameters"].pop("directory")
    return data


def _digest(data: Any) -> str:
    return _hash(_text(data))


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
