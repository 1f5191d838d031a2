"""A scenario of one cell without a file: a guest with disks, perhaps an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lab.compile.guest.real_disks import Known, nobody
from lab.compile.scenario.compiler import Compiled, compile_document
from lab.core.yaml import Document, Override, override

CHANGED: Final = ("guest", "disks", "array", "filesystem", "seed", "timeout")
"""Keys of a scenario that say what a guest has."""


def bare(
    path: Path,
    place: str,
    fields: Mapping[str, object],
    *,
    title: str,
    base: Compiled | None = None,
    workloads: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Any] | None = None,
    known: Known = nobody,
) -> Compiled:
    """Return a scenario with these fields, by dotted name, and these workloads.

    ``base``: a scenario whose guest, disks, array and file system it has, without its matrix. Other
    guests have no disk. ``place`` names the source in messages; relative paths begin at ``path``.
    """
    given = base.document.data if base else {"disks": {"count": 0}}
    data: dict[str, Any] = {
        "title": title,
        "question": place,
        **{key: given[key] for key in CHANGED if key in given},
        **(more or {}),
    }
    if workloads:
        data["workloads"] = [dict(one) for one in workloads]
    changes = [
        Override(text=f"{name}={value}", path=tuple(name.split(".")), value=value, line=place)
        for name, value in fields.items()
    ]
    changed = override(Document(source=place, data=data), changes).data
    return compile_document(path, Document(source=place, data=changed), known=known)
