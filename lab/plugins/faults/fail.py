"""A member is marked as failed, ``mdadm --fail``; a spare replaces it, if there is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from lab.core.base import Model
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.plugins.faults._shared import Position, array_problems, disk, disk_problems


class FailParameters(Model):
    """The member, and whether it is removed."""

    disk: Position
    remove: bool = False
    """Remove it from the array too (``mdadm --remove``)."""


class Fail(FaultKind):
    """``mdadm --fail``, and ``--remove``."""

    @property
    @override
    def parameters(self) -> type[Model]:
        return FailParameters

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        yield from disk_problems(scene, checked(FailParameters, parameters).disk)

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        # md releases a failed member only when its requests have ended, so removal is retried.
        p = checked(FailParameters, parameters)
        path = disk(scene, p.disk).path
        script = words("mdadm", scene.device, "--fail", path) + " 2>&1\n"
        if p.remove:
            remove = words("mdadm", scene.device, "--remove", path)
            script += (
                f"tries=0\nuntil {remove} 2>&1; do\n"
                "  tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.1\ndone\n"
            )
        return script


FAULT: FaultKind = Fail()
