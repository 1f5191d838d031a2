"""A member that was failed, removed or pulled comes back, ``mdadm --re-add``.

With a bitmap md recovers only regions that were written since. Without one it does not accept the
disk as the former member (``Manage.c: attempt_re_add``; ``md.c: md_add_new_disk``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from typing_extensions import override

from lab.core.stable import Stable, named
from lab.model.execution.procedure import AttachDisk, Step, words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import (
    Position,
    array_problems,
    counted,
    disk,
    disk_problems,
    limits_step,
    number,
    slowed,
    unplugged,
)

_LEFT: Final = ("failed", "detached")
"""mdadm's names for failed members, and for members whose disk is gone."""


class ReAddParameters(Stable):
    """The disk, and whether it may be added as a new one."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk add")

    disk: Position
    add: bool = False
    """If md does not accept it, clear its superblock and add it as a new disk."""


class ReAdd(FaultKind):
    """``mdadm --re-add``."""

    parameters = ReAddParameters
    metrics = (counted("re_added", better="higher"),)
    plugs = True

    @override
    def problems(self, p: ReAddParameters, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        yield from disk_problems(scene, p.disk, unplugged_too=True)

    @override
    def steps(self, p: ReAddParameters, scene: Scene) -> tuple[Step, ...]:
        if p.disk not in unplugged(scene):
            return ()
        back = disk(scene, p.disk)
        limits = slowed(scene, p.disk)
        return (
            AttachDisk(serial=back.serial, xml=back.xml, xml_path=back.xml_path),
            back.ready,
            # A disk that became slow comes back slow.
            *([limits_step(scene, p.disk, limits)] if limits else []),
        )

    @override
    def script(self, p: ReAddParameters, scene: Scene) -> str:
        # Its failed or detached entry in the array must be removed first.
        path = disk(scene, p.disk).path
        lines = [
            *(f"mdadm {scene.device} --remove {which} 2>&1 || true" for which in _LEFT),
            f"if {words('mdadm', scene.device, '--re-add', path)} 2>&1; then echo re_added=1",
            "else echo re_added=0",
        ]
        if p.add:
            lines += [
                words("mdadm", "--zero-superblock", path) + " 2>&1",
                words("mdadm", scene.device, "--add", path) + " 2>&1",
            ]
        return "\n".join([*lines, "fi"]) + "\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        return {"re_added": number(outputs.stdout, "re_added")}


FAULT: FaultKind = ReAdd()
