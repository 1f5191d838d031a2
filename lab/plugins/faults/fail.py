"""A member that md is told to take for broken, ``mdadm --fail``: a spare, if any, steps in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from lab.core.base import Model
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.plugins.faults import Position, array_problems, disk, disk_problems


class FailParameters(Model):
    """Which disk."""

    disk: Position
    remove: bool = False
    """Take it out of the array too (``mdadm --remove``)."""


class Fail(FaultKind):
    """``mdadm --fail``, and ``--remove``."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return FailParameters

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """There is such a member."""
        yield from array_problems(scene)
        yield from disk_problems(scene, checked(FailParameters, parameters).disk)

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """md lets go of a failed member a moment later, when its requests have ended."""
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
