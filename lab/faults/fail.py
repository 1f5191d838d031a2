"""A member that md is told to take for broken, ``mdadm --fail``: a spare, if any, steps in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from lab.faults import (
    Position,
    array_problems,
    disk,
    disk_problems,
)
from lab.model.base import Model
from lab.model.measurement import Metric
from lab.model.plugin import FaultKind, Outputs, Problem, Scene
from lab.model.procedure import Step, words


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

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """Those of every fault."""
        return ()

    @property
    @override
    def cuts(self) -> bool:
        """The guest goes on."""
        return False

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """There is such a member."""
        yield from array_problems(scene)
        yield from disk_problems(scene, _checked(parameters).disk)

    @override
    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """Nothing on the host."""
        return ()

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """md lets go of a failed member a moment later, when its requests have ended."""
        p = _checked(parameters)
        path = disk(scene, p.disk).path
        script = words("mdadm", scene.device, "--fail", path) + " 2>&1\n"
        if p.remove:
            remove = words("mdadm", scene.device, "--remove", path)
            script += (
                f"tries=0\nuntil {remove} 2>&1; do\n"
                "  tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.1\ndone\n"
            )
        return script

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Nothing of its own."""
        return {}


def _checked(parameters: Any) -> FailParameters:
    if not isinstance(parameters, FailParameters):
        raise TypeError(f"{type(parameters).__name__} are not the parameters of fail")
    return parameters


FAULT: FaultKind = Fail()
