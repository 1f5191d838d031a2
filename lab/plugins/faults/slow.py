"""A disk becomes slower, or completes nothing for a while.

md has no limit on how long a request may take: nothing fails, and the array waits. QEMU's throttle
changes while the guest runs; a modelled disk stalls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from lab.core.base import Rate, Seconds
from lab.core.stable import Stable, named
from lab.model.execution.procedure import AskServer, Step
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.document import Throttle
from lab.plugins.faults._shared import Position, disk, disk_problems, limits_of, limits_step, served


class SlowParameters(Stable):
    """The disk, and its new limits."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "disk total_bytes_per_second read_bytes_per_second write_bytes_per_second",
        "total_operations_per_second read_operations_per_second",
        "write_operations_per_second stall",
    )

    disk: Position
    total_bytes_per_second: Rate | None = Field(default=None, ge=1)
    read_bytes_per_second: Rate | None = Field(default=None, ge=1)
    write_bytes_per_second: Rate | None = Field(default=None, ge=1)
    total_operations_per_second: Rate | None = Field(default=None, ge=1)
    read_operations_per_second: Rate | None = Field(default=None, ge=1)
    write_operations_per_second: Rate | None = Field(default=None, ge=1)
    stall: Seconds | None = Field(default=None, gt=0)
    """Seconds for which a modelled disk completes nothing."""

    @property
    def limits(self) -> dict[str, int]:
        """Return the given limits, by libvirt's names (``<iotune>``)."""
        return limits_of(self.model_dump(exclude_none=True))


class Slow(FaultKind):
    """Lower limits, or a stall."""

    parameters = SlowParameters

    @override
    def throttle(self, p: SlowParameters, given: Throttle) -> Throttle:
        return Throttle(**p.model_dump(exclude={"disk", "stall"})) if p.limits else given

    @override
    def problems(self, p: SlowParameters, scene: Scene) -> Iterable[Problem]:
        yield from disk_problems(scene, p.disk, member=False)
        if p.disk > len(scene.disks):
            return
        model = disk(scene, p.disk).disk.model
        group = disk(scene, p.disk).disk.throttle.group
        sharing = [n for n, d in enumerate(scene.disks, 1) if d.disk.throttle.group == group]
        if p.limits and group is not None and len(sharing) > 1:
            yield Problem(
                key="disk",
                message=f"disk {p.disk} shares its limits with disks"
                f" {', '.join(str(n) for n in sharing if n != p.disk)} (group {group!r}), so all of"
                " them would become slow: give a disk without throttle.group",
            )
            return
        if p.stall is not None and not served(disk(scene, p.disk)):
            yield Problem(
                key="stall",
                message=f"disks of the model {model} cannot stall: give limits such as"
                " total_bytes_per_second, or set disks.model to hdd or ssd",
            )
        if p.limits and model != "throttle":
            yield Problem(
                key=next(iter(p.model_dump(exclude={"disk", "stall"}, exclude_none=True))),
                message=f"disks of the model {model} have no throttle: set disks.model to throttle"
                + (", or give stall" if served(disk(scene, p.disk)) else ""),
            )
        if not p.limits and p.stall is None:
            yield Problem(
                key="fault",
                message="no limit is given: give one such as total_bytes_per_second, or stall",
            )
        for unit in ("bytes", "iops"):
            if f"total_{unit}_sec" in p.limits and len([k for k in p.limits if unit in k]) > 1:
                name = "bytes" if unit == "bytes" else "operations"
                yield Problem(
                    key=f"total_{name}_per_second",
                    message="a total excludes read and write limits: remove one of them",
                )

    @override
    def steps(self, p: SlowParameters, scene: Scene) -> tuple[Step, ...]:
        if p.stall is None:
            return (limits_step(scene, p.disk, p.limits),)
        stalled = disk(scene, p.disk)
        return (
            AskServer(
                label=f"stall {stalled.serial}",
                socket=stalled.control,
                line=f"stall {p.stall:g}",
                capture=f"{scene.tag}.server",
            ),
        )


FAULT: FaultKind = Slow()
