"""Disks without limits: as fast as the host's file and the emulation."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from lab.model.execution.procedure import Step
from lab.model.plugin import DiskModel, Problem
from lab.model.scenario.document import Disk
from lab.plugins.disks._drives import as_text, create_file, drive_element, drive_problems


class Unlimited(DiskModel):
    """A disk that measures the host: useful for functional tests, not for claims about disks."""

    @override
    def problems(self, disk: Disk) -> Iterable[Problem]:
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
        return create_file(disk, path)

    @override
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        return as_text(drive_element(disk, serial=serial, path=path, index=index))

    @override
    def rotational(self, disk: Disk) -> bool | None:
        # A file has None, whatever the bus implies.
        return disk.device_rotational


DISK: DiskModel = Unlimited()
