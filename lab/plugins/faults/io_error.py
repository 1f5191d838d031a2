"""Sectors of a disk that can no longer be read, or written.

md reads such data from the other members, rewrites the sectors, and reads them again (``raid5.c:
raid5_end_read_request``, "read error corrected"); the member stays. The disk server answers with
EIO, so the disk must be a modelled one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from lab.core.base import Size
from lab.core.stable import Stable, named
from lab.model.execution.procedure import AskServer, Step
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import (
    Position,
    counted,
    data_offset,
    disk,
    disk_problems,
    moved_problems,
    served,
)


class IoErrorParameters(Stable):
    """The disk, and the range on it."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk direction offset length times")

    disk: Position
    direction: Literal["read", "write"] = "read"
    offset: Size = 0
    """First byte, relative to the member's data."""
    length: Size = 4096
    """Bytes."""
    times: int | None = Field(default=None, ge=1)
    """Number of requests that fail; ``None``: all that touch the range."""

    @field_validator("length")
    @classmethod
    def _some_bytes(cls, length: int) -> int:
        if length < 1:
            raise ValueError("expected 1 byte or more, as in 4KiB")
        return length


class IoError(FaultKind):
    """The disk server replies EIO for the range."""

    parameters = IoErrorParameters
    metrics = (counted("corrected"),)

    @override
    def problems(self, p: IoErrorParameters, scene: Scene) -> Iterable[Problem]:
        yield from disk_problems(scene, p.disk)
        yield from moved_problems(scene)
        if p.disk > len(scene.disks):
            return
        if scene.device and scene.array.kind != "md":
            yield Problem(
                key="fault",
                message="offset counts from the start of an md member's data, and array.kind is"
                f" {scene.array.kind}: set it to md, or remove the array",
            )
            return
        broken = disk(scene, p.disk)
        if not served(broken):
            yield Problem(
                key="fault",
                message=f"io_error needs a modelled disk, and the model of disk {p.disk} is"
                f" {broken.disk.model}: set disks.model to hdd or ssd",
            )
        if _first_byte(p, scene) + p.length > broken.disk.size:
            yield Problem(
                key="offset",
                message=f"the range ends beyond disk {p.disk}, which has {broken.disk.size} bytes:"
                " lower offset or length",
            )

    @override
    def steps(self, p: IoErrorParameters, scene: Scene) -> tuple[Step, ...]:
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
        # raid5.c and raid1.c log the same message.
        return {
            "corrected": float(outputs.files.get("state.txt", "").count("read error corrected"))
        }


def _first_byte(p: IoErrorParameters, scene: Scene) -> int:
    return data_offset(scene) + p.offset


FAULT: FaultKind = IoError()
