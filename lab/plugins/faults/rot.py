"""Bytes of a member that change by themselves, while the array is stopped.

md does not verify what it reads: data that rotted are read as they are. Its ``check`` counts the
stripe, 8 sectors for each page, and ``repair`` makes parity of what it finds (``raid5.c:
handle_parity_checks5``). What a member holds where is md's layout: the first chunk of the last
member of a left-symmetric RAID 5 is parity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationInfo, field_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.model.execution.procedure import AskServer, GuestCommand, SpoilDisk, Step, words
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.plugins.faults import (
    Position,
    array_problems,
    assemble,
    disk,
    disk_problems,
    geometry,
    served,
    settings,
    unplugged,
)

PATTERN: Final = 0xA5
"""What a plain disk's bytes become, and a modelled disk's are flipped by (exclusive or)."""


class RotParameters(Model):
    """Which disk, and where on it."""

    disk: Position
    offset: Size = 0
    """First byte, counted from where the member's data begin; a multiple of 512."""
    length: Size = 4096
    """Bytes, a multiple of 512."""

    @field_validator("offset", "length")
    @classmethod
    def _whole_sectors(cls, value: int, info: ValidationInfo) -> int:
        if value % 512 or (info.field_name == "length" and value < 512):
            raise ValueError(f"{value} is not a number of sectors: give a multiple of 512 bytes")
        return value


class Rot(FaultKind):
    """The array is stopped, bytes change, and it is assembled again."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return RotParameters

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """Nothing uses the array, and the bytes are a member's data."""
        p = checked(RotParameters, parameters)
        yield from array_problems(scene)
        yield from disk_problems(scene, p.disk)
        if scene.fault.moment == "during":
            yield Problem(
                key="during",
                message=f"the array is stopped for it, and {scene.fault.during} would run on it:"
                " write before or after",
            )
        if scene.mount:
            yield Problem(
                key="fault",
                message="the array is stopped for it, and a file system is mounted from it: remove"
                " the file system",
            )
        if scene.device and p.offset + p.length > geometry(scene).component_size:
            yield Problem(
                key="offset",
                message=f"{p.offset} and {p.length} bytes more lie beyond the member's data, of"
                f" {geometry(scene).component_size} bytes: lower offset or length",
            )

    @override
    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """No copy of the bytes is in the guest when they change."""
        p = checked(RotParameters, parameters)
        rotten, first = disk(scene, p.disk), geometry(scene).data_offset + p.offset
        stop = GuestCommand(
            label=f"stop {scene.device}",
            script=f"sync\n{words('mdadm', '--stop', scene.device)} 2>&1\n"
            "udevadm settle --timeout=30",
        )
        if not served(rotten):
            spoil = SpoilDisk(serial=rotten.serial, offset=first, length=p.length, pattern=PATTERN)
            return (stop, spoil)
        return (
            stop,
            AskServer(
                label=f"rot on {rotten.serial}",
                socket=rotten.control,
                line=f"rot {first} {p.length} {PATTERN}",
                capture=f"{scene.tag}.server",
            ),
        )

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """The array comes back, with its settings."""
        gone = unplugged(scene)
        return f"{assemble(scene, gone)} || exit 1\nudevadm settle --timeout=30\n{settings(scene)}"


FAULT: FaultKind = Rot()
