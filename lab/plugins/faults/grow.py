"""The array's shape changes while it runs, ``mdadm --grow``: members, level, layout or chunk.

md moves every stripe to its new place, and stores how far it is in the superblocks. mdadm moves the
start of the members' data, so no backup file is needed (``mdadm(8)``, ``--backup-file``;
``Grow.c: reshape_array``). The members need room for that before or after their data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.units import KIB
from lab.model.execution.procedure import words
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import SHAPE, array_problems, shape_of


class GrowParameters(Model):
    """The new shape; what is not given stays."""

    raid_devices: int | None = Field(default=None, ge=2, le=64)
    """Number of members; new ones are the array's spares."""
    level: int | None = Field(default=None, ge=0, le=10)
    """RAID level."""
    layout: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*$")
    """Layout, by mdadm's name."""
    chunk: Size | None = None
    """Bytes of a chunk, a multiple of 4096."""
    wait: bool = True
    """Wait until md has moved everything. Otherwise the reshape goes on during what follows."""

    @model_validator(mode="after")
    def _something(self) -> GrowParameters:
        if (self.raid_devices, self.level, self.layout, self.chunk) == (None,) * 4:
            raise ValueError(
                "nothing changes: give one or more of raid_devices, level, layout and chunk"
            )
        if self.chunk is not None and (not self.chunk or self.chunk % 4096):
            raise ValueError(f"chunk is {self.chunk}, not a multiple of 4096: write 64KiB")
        return self


class Grow(FaultKind):
    """``mdadm --grow``."""

    @property
    @override
    def parameters(self) -> type[Model]:
        return GrowParameters

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        return SHAPE

    @override
    def waits(self, parameters: Any) -> bool:
        return checked(GrowParameters, parameters).wait

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        p = checked(GrowParameters, parameters)
        yield from array_problems(scene)
        disks = len(scene.disks) - (scene.array.bitmap_disk is not None)
        if p.raid_devices is not None and p.raid_devices > disks:
            yield Problem(
                key="raid_devices",
                message=f"{p.raid_devices} members need as many disks, and the cell has {disks}:"
                " raise disks.count, and set array.spares to the new disks",
            )
        if scene.array.bitmap == "external":
            yield Problem(
                key="fault",
                message="mdadm does not reshape an array whose bitmap is a file: set array.bitmap"
                " to internal or none",
            )
        if scene.fault.check and not p.wait:
            yield Problem(
                key="check",
                message="md cannot check an array that it reshapes: remove check, or wait: false",
            )

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        p = checked(GrowParameters, parameters)
        options = []
        if p.level is not None:
            options.append(f"--level={p.level}")
        if p.raid_devices is not None:
            options.append(f"--raid-devices={p.raid_devices}")
        if p.layout is not None:
            options.append(f"--layout={p.layout}")
        if p.chunk is not None:
            options.append(f"--chunk={p.chunk // KIB}")
        # Without systemd's unit mdadm watches the reshape in a process of its own: one path for
        # guests with and without systemd (Grow.c: continue_via_systemd).
        command = words("mdadm", "--grow", scene.device, *options)
        return f"MDADM_NO_SYSTEMCTL=1 {command} </dev/null 2>&1\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        return shape_of(outputs)


FAULT: FaultKind = Grow()
