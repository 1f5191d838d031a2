"""Sectors of a disk that can no longer be read, or written.

md reads what it cannot read from the other members, writes it again, and reads that back
(``raid5.c: raid5_end_read_request``, "read error corrected"); the member stays. A server answers
with EIO, which only modelled disks have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.model.execution.procedure import AskServer, Step
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults import Position, counted, data_offset, disk, disk_problems, served


class IoErrorParameters(Model):
    """Which disk, and where on it."""

    disk: Position
    direction: Literal["read", "write"] = "read"
    offset: Size = 0
    """First byte, counted from where the member's data begin."""
    length: Size = 4096
    """Bytes."""
    times: int | None = Field(default=None, ge=1)
    """How many requests fail; ``None``: all that touch them."""

    @field_validator("length")
    @classmethod
    def _some_bytes(cls, length: int) -> int:
        if length < 1:
            raise ValueError("0 bytes cannot fail: write length as 4KiB")
        return length


class IoError(FaultKind):
    """EIO on command."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return IoErrorParameters

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """How often md mended a member."""
        return (counted("corrected"),)

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """Only a server can fail on command, within its disk."""
        p = checked(IoErrorParameters, parameters)
        yield from disk_problems(scene, p.disk)
        if p.disk > len(scene.disks):
            return
        broken = disk(scene, p.disk)
        if not served(broken):
            yield Problem(
                key="fault",
                message=f"io_error needs a modelled disk, and disk {p.disk} is of the model"
                f" {broken.disk.model}: set disks.model to hdd or ssd",
            )
        if _first_byte(p, scene) + p.length > broken.disk.size:
            yield Problem(
                key="offset",
                message=f"{p.length} bytes from there lie beyond disk {p.disk}, of"
                f" {broken.disk.size} bytes: lower offset or length",
            )

    @override
    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """The server is told."""
        p = checked(IoErrorParameters, parameters)
        broken = disk(scene, p.disk)
        times = "" if p.times is None else f" {p.times}"
        return (
            AskServer(
                label=f"{p.direction} errors on {broken.serial}",
                socket=broken.control,
                line=f"error {p.direction} {_first_byte(p, scene)} {p.length}{times}",
                capture=f"{scene.tag}.server",
            ),
        )

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Lines of the kernel's log, ``raid5.c`` and ``raid1.c`` have the same words."""
        return {
            "corrected": float(outputs.files.get("state.txt", "").count("read error corrected"))
        }


def _first_byte(p: IoErrorParameters, scene: Scene) -> int:
    return data_offset(scene) + p.offset


FAULT: FaultKind = IoError()
