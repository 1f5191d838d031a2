"""A disk that is pulled out of the running guest.

QEMU takes the device away, the guest's driver ends what was on its way with errors, and udev has
mdadm fail and remove the member (``udev-md-raid-assembly.rules``: ``mdadm -If``), even of an array
that is idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from lab.core.base import Model
from lab.model.execution.procedure import Step, UnplugDisk
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults import Position, array_problems, counted, disk, disk_problems, find, number


class PullParameters(Model):
    """Which disk."""

    disk: Position


class Pull(FaultKind):
    """The device is gone, with whatever was on its way."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return PullParameters

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """Whether md noticed."""
        return (counted("noticed", better="higher"),)

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """There is such a disk."""
        yield from array_problems(scene)
        yield from disk_problems(scene, checked(PullParameters, parameters).disk)

    @override
    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """QEMU unplugs it; its file stays."""
        pulled = disk(scene, checked(PullParameters, parameters).disk)
        return (UnplugDisk(serial=pulled.serial, xml=pulled.xml),)

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """Ten seconds in which md must find it missing."""
        return (
            f"{find(scene.device)}"
            "tries=0 noticed=0\n"
            "while [ $noticed = 0 ] && [ $tries -lt 100 ]; do\n"
            "  read -r degraded < $md/degraded\n"
            "  if [ $degraded -gt 0 ]; then noticed=1; else sleep 0.1; fi\n"
            "  tries=$((tries + 1))\n"
            "done\n"
            'echo "noticed=$noticed"\n'
        )

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Whether the array was degraded within ten seconds."""
        return {"noticed": number(outputs.stdout, "noticed")}


FAULT: FaultKind = Pull()
