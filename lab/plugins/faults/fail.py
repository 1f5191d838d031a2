"""A member is marked as failed, ``mdadm --fail`` or ``zpool offline -f``; a spare replaces it, if
there is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from typing_extensions import override

from lab.core.stable import Stable, named
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.plugins.faults import _pools
from lab.plugins.faults._shared import Position, array_problems, disk, disk_problems


class FailParameters(Stable):
    """The member, and whether it is removed."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk remove")

    disk: Position
    remove: bool = False
    """Remove it from the md array too (``mdadm --remove``)."""


class Fail(FaultKind):
    """``mdadm --fail``, and ``--remove``; ``zpool offline -f``, and ``zpool replace``."""

    parameters = FailParameters

    @override
    def problems(self, p: FailParameters, scene: Scene) -> Iterable[Problem]:
        if not _pools.is_pool(scene):
            yield from array_problems(scene)
        else:
            yield from _pools.pool_problems(scene, p.disk)
            if p.remove:
                yield Problem(key="remove", message="it is for md arrays: remove it")
        yield from disk_problems(scene, p.disk)

    @override
    def script(self, p: FailParameters, scene: Scene) -> str:
        # md releases a failed member only when its requests have ended, so removal is retried.
        path = disk(scene, p.disk).path
        if _pools.is_pool(scene):
            script = words("zpool", "offline", "-f", scene.array.name, path) + " 2>&1\n"
            if spares := _pools.spares_left(scene):
                script += _pools.replace(scene, p.disk, spares[0]) + " 2>&1\n"
            return script
        script = words("mdadm", scene.device, "--fail", path) + " 2>&1\n"
        if p.remove:
            remove = words("mdadm", scene.device, "--remove", path)
            script += (
                f"tries=0\nuntil {remove} 2>&1; do\n"
                "  tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.1\ndone\n"
            )
        return script


FAULT: FaultKind = Fail()
