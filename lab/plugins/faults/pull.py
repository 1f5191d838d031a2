"""A disk is pulled out of the running guest.

QEMU removes the device, the guest's driver ends its requests with errors, and udev makes mdadm fail
and remove the member (``udev-md-raid-assembly.rules``: ``mdadm -If``), even if the array is idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from typing_extensions import override

from lab.core.stable import Stable, named
from lab.model.execution.procedure import Step, UnplugDisk
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import (
    Position,
    array_problems,
    counted,
    disk,
    disk_problems,
    find,
    number,
)


class PullParameters(Stable):
    """The disk."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk")

    disk: Position


class Pull(FaultKind):
    """The device disappears with its requests in flight."""

    parameters = PullParameters
    metrics = (counted("noticed", better="higher"),)
    unplugs = True

    @override
    def problems(self, p: PullParameters, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        yield from disk_problems(scene, p.disk)

    @override
    def steps(self, p: PullParameters, scene: Scene) -> tuple[Step, ...]:
        pulled = disk(scene, p.disk)
        return (UnplugDisk(serial=pulled.serial, xml=pulled.xml),)

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        # md gets ten seconds to notice that it is missing.
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
        return {"noticed": number(outputs.stdout, "noticed")}


FAULT: FaultKind = Pull()
