"""Disks without limits: as fast as the host's file and the emulation between."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from lab.model.execution.procedure import Step
from lab.model.plugin import DiskModel, Problem
from lab.model.scenario.document import Disk
from lab.plugins.disks import as_text, create_file, drive_element, drive_problems


class Unlimited(DiskModel):
    """What it measures is the host: for programs, not for claims about disks."""

    @override
    def problems(self, disk: Disk) -> Iterable[Problem]:
        """The fields that all models share, and a throttle that nobody would apply."""
        yield from drive_problems(disk)
        for name, value in disk.throttle:
            if value is not None:
                yield Problem(
                    key=f"throttle.{name}",
                    message="the disk model 'none' has no limits: remove the throttle, or set "
                    "model to throttle",
                )

    @override
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """A sparse file."""
        return create_file(disk, path)

    @override
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        """``<disk>`` without ``<iotune>``."""
        return as_text(drive_element(disk, serial=serial, path=path, index=index))

    @override
    def rotational(self, disk: Disk) -> bool | None:
        """What the real disk does; of a file, what the bus makes of it."""
        return disk.device_rotational


DISK: DiskModel = Unlimited()
