"""Corruption: bytes of a member change while the array is stopped, without an error.

md does not verify reads: it returns corrupted data. ``check`` counts the stripe, 8 sectors per
page, and ``repair`` computes parity from the data it finds (``raid5.c: handle_parity_checks5``).
md's layout decides the contents of a member: the first chunk of the last member of a left-symmetric
RAID 5 is parity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from pydantic import ValidationInfo, field_validator
from typing_extensions import override

from lab.core.base import Size
from lab.core.stable import Stable, named
from lab.model.execution.procedure import AskServer, GuestCommand, SpoilDisk, Step, words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.plugins.faults._shared import (
    Position,
    array_problems,
    assemble,
    disk,
    disk_problems,
    geometry,
    moved_problems,
    served,
    settings,
    unplugged,
)

PATTERN: Final = 0xA5
"""New value of a plain disk's bytes; a modelled disk's bytes are changed by exclusive or."""


class RotParameters(Stable):
    """The disk, and the range on it."""

    ALWAYS: ClassVar[frozenset[str]] = named("disk offset length")

    disk: Position
    offset: Size = 0
    """First byte, relative to the member's data; a multiple of 512."""
    length: Size = 4096
    """Bytes, a multiple of 512."""

    @field_validator("offset", "length")
    @classmethod
    def _whole_sectors(cls, value: int, info: ValidationInfo) -> int:
        if value % 512 or (info.field_name == "length" and value < 512):
            raise ValueError(f"{value} bytes are not whole sectors: give a multiple of 512")
        return value


class Rot(FaultKind):
    """Stop the array, change bytes, and assemble it again."""

    parameters = RotParameters

    @override
    def problems(self, p: RotParameters, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)
        yield from disk_problems(scene, p.disk)
        yield from moved_problems(scene)
        if scene.fault.moment == "during":
            yield Problem(
                key="during",
                message=f"the array is stopped for this fault, and {scene.fault.during} would use"
                " it: write before or after",
            )
        if scene.mount:
            yield Problem(
                key="fault",
                message="the array is stopped for this fault, and its file system is mounted:"
                " remove the file system",
            )
        if scene.device and p.offset + p.length > geometry(scene).component_size:
            yield Problem(
                key="offset",
                message="the range ends beyond the member's data, which has"
                f" {geometry(scene).component_size} bytes: lower offset or length",
            )

    @override
    def steps(self, p: RotParameters, scene: Scene) -> tuple[Step, ...]:
        # Stop the array first, so that the guest caches no copy of the bytes.
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
        gone = unplugged(scene)
        return f"{assemble(scene, gone)} || exit 1\nudevadm settle --timeout=30\n{settings(scene)}"


FAULT: FaultKind = Rot()
