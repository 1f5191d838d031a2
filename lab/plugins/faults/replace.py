"""A working member is replaced, ``mdadm --replace`` or ``zpool replace``: the array is never
degraded.

md copies from the member itself, and drops it when the copy is complete (``mdadm(8)``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from lab.core.stable import Stable, named
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.plugins.faults import _pools
from lab.plugins.faults._shared import Position, array_problems, disk, disk_problems


class ReplaceParameters(Stable):
    """The member, and its replacement."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk with_")

    disk: Position
    with_: Position = Field(alias="with")
    """A spare of the array."""


class Replace(FaultKind):
    """``mdadm --replace --with``, or ``zpool replace``."""

    parameters = ReplaceParameters

    @override
    def problems(self, p: ReplaceParameters, scene: Scene) -> Iterable[Problem]:
        pool = _pools.is_pool(scene)
        yield from _pools.pool_problems(scene, p.disk) if pool else array_problems(scene)
        yield from disk_problems(scene, p.disk)
        yield from disk_problems(scene, p.with_, "with")
        if scene.earlier:  # earlier faults change which disks are spares, so mdadm checks it
            return
        members = len(scene.disks) - scene.array.spares
        if p.disk > members:
            yield Problem(
                key="disk", message=f"disk {p.disk} is a spare: give a disk from 1 to {members}"
            )
        if p.with_ <= members:
            yield Problem(
                key="with",
                message=f"disk {p.with_} is not a spare: array.spares is {scene.array.spares}, and"
                " the spares are the last disks",
            )

    @override
    def script(self, p: ReplaceParameters, scene: Scene) -> str:
        if _pools.is_pool(scene):
            return _pools.replace(scene, p.disk, p.with_) + " 2>&1\n"
        old, new = disk(scene, p.disk).path, disk(scene, p.with_).path
        return words("mdadm", scene.device, "--replace", old, "--with", new) + " 2>&1\n"


FAULT: FaultKind = Replace()
