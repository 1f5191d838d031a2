"""A member fails in an array without a spare, and a second array has one, ``mdadm.conf(5)``,
``spare-group``.

The second array is a RAID 1 of other disks of the cell. After the failure ``mdadm --monitor
--scan`` watches both arrays. If they are in one spare group, it moves the spare to the degraded
array (``mdmonitor.c: try_spare_migration``), and md recovers it. It does so at its second look at
the degraded array, so ``--oneshot`` moves nothing (``check_array``). The metrics of every fault are
those of the cell's array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal

from pydantic import Field
from typing_extensions import override

from lab.core.stable import Stable, named
from lab.md.facts.sizes import disks_aside
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import (
    Position,
    array_problems,
    counted,
    disk,
    disk_problems,
    find,
    members,
    number,
)

_SECOND: Final = "/dev/md/lender"
_CONFIGURATION: Final = "/run/lab-spares.conf"
_EVENTS: Final = "/run/lab-spares.events"
_PROGRAM: Final = "/run/lab-spares.sh"
_LOOKS: Final = 10
"""Seconds until the monitor ends, if nothing moves. It looks each second."""


class SpareGroupParameters(Stable):
    """The member that fails, the second array, and its group."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk second groups second_is")

    disk: Position
    second: tuple[Position, ...] = Field(min_length=3)
    """Disks of the second array, a RAID 1; the last one is its spare."""
    groups: Literal["same", "different"] = "same"
    """Both arrays are in one spare group, or each is in its own."""
    second_is: Literal["whole", "degraded"] = "whole"
    """``degraded``: a member of the second array fails first, so that it needs its spare itself."""


class SpareGroup(FaultKind):
    """``spare-group`` in ``mdadm.conf``, and ``mdadm --monitor``."""

    parameters = SpareGroupParameters
    metrics = (
        counted("moved", better="higher"),
        counted("second_spares", better="higher"),
        counted("second_degraded"),
    )

    @override
    def problems(self, p: SpareGroupParameters, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        yield from disk_problems(scene, p.disk)
        if scene.array.spares:
            yield Problem(
                key="fault",
                message="the array has spares of its own, which md uses first: set array.spares to"
                " 0, and array.members to the number of members",
            )
        if len(set(p.second)) < len(p.second):
            yield Problem(key="second", message="it names a disk twice: give different disks")
        if twice := [f.name for f in scene.earlier if f.fault == "spare_group"]:
            yield Problem(
                key="fault",
                message=f"the second array of '{twice[0]}' is still there: remove one of them",
            )
        for position in p.second:
            yield from disk_problems(scene, position, key="second", member=False)
            if position in (aside := disks_aside(scene.array)):
                yield Problem(
                    key="second",
                    message=f"disk {position} is for {aside[position]}: give another disk",
                )
            elif scene.device and position in members(scene):
                yield Problem(
                    key="second",
                    message=f"disk {position} is a member of the array: set array.members, so that "
                    "disks are left",
                )

    @override
    def script(self, p: SpareGroupParameters, scene: Scene) -> str:
        paths = [disk(scene, position).path for position in p.second]
        create = words(
            *("mdadm", "--create", _SECOND, "--run", "--level=1", "--assume-clean"),
            *(f"--raid-devices={len(paths) - 1}", "--spare-devices=1"),
            *paths,
        )
        monitor = words(
            *("mdadm", "--monitor", "--scan", "--delay=1", f"--config={_CONFIGURATION}")
        )
        groups = ("one", "one" if p.groups == "same" else "other")
        arrays = [
            f'echo "$({words("mdadm", "--detail", "--brief", device)}) spare-group={group}"'
            for device, group in zip((scene.device, _SECOND), groups, strict=True)
        ]
        lines = [
            f"{create} </dev/null 2>&1",
            "udevadm settle 2>/dev/null || true",
            *(
                [words("mdadm", _SECOND, "--fail", paths[0]) + " 2>&1"]
                if p.second_is == "degraded"
                else []
            ),
            f"printf '%s\\n' '#!/bin/sh' 'echo \"$@\" >> {_EVENTS}' > {_PROGRAM}",
            f"chmod +x {_PROGRAM}",
            f": > {_EVENTS}",
            f"{{ echo 'PROGRAM {_PROGRAM}'; {'; '.join(arrays)}; }} > {_CONFIGURATION}",
            f"cat {_CONFIGURATION}",
            words("mdadm", scene.device, "--fail", disk(scene, p.disk).path) + " 2>&1",
            f"{monitor} 2>&1 & monitor=$!",
            "seconds=0",
            f'until grep -q "^MoveSpare " {_EVENTS} || [ $seconds -ge {_LOOKS} ]; do',
            "  sleep 1",
            "  seconds=$((seconds + 1))",
            "done",
            "kill $monitor",
            "wait $monitor || true",
            f"cat {_EVENTS}",
            f'echo "moved=$(grep -c "^MoveSpare " {_EVENTS})"',
            find(_SECOND).rstrip(),
            "read -r missing < $md/degraded",
            "spares=0",
            "for m in $md/dev-*; do",
            "  read -r state < $m/state",
            '  [ "$state" != spare ] || spares=$((spares + 1))',
            "done",
            'echo "second_spares=$spares"',
            'echo "second_degraded=$missing"',
        ]
        return "\n".join(lines) + "\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        return {m.name: number(outputs.stdout, m.name) for m in self.metrics}


FAULT: FaultKind = SpareGroup()
