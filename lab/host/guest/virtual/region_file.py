"""The file of a guest's memory region: in memory where there is plenty, or else on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drive import region
from lab.core.errors import full
from lab.core.units import GIB, format_size
from lab.host.system import load

SHARE: Final = 0.5
"""The part of the available memory that a region may come to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFile:
    """An open file, or a name for one that does not exist yet."""

    path: Path
    """Also in a child process that inherits ``descriptors``, but in no other process."""
    descriptors: tuple[int, ...] = ()
    """The open file, if it is in memory."""

    @property
    def in_memory(self) -> bool:
        return bool(self.descriptors)

    def reserve(self, made: region.Region) -> None:
        """Allocate the space of a new region on the disk; ``OSError``: there is none.

        Memory is not reserved: most guests write far less than their disks may come to hold.
        """
        if not self.in_memory:
            region.reserve(made)


@contextmanager
def region_file(directory: Path, most: int) -> Iterator[RegionFile]:
    """Yield a file for a region that comes to use at most ``most`` bytes; ``HostError``: no space.

    It is in ``directory`` unless memory can hold it. On a disk each page that the guest writes
    first costs the host's file system some work, and the disk a write. A file in memory has no name
    (``memfd_create(2)``), so nothing is left of it when this process and QEMU are killed.
    """
    if most > SHARE * load.available_memory():
        need_space(directory, most)
        path = directory / "region"
        try:
            yield RegionFile(path=path)
        finally:
            path.unlink(missing_ok=True)
        return
    descriptor = os.memfd_create("region")
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        yield RegionFile(path=path, descriptors=(descriptor,))
    finally:
        os.close(descriptor)


def need_space(directory: Path, wanted: int) -> None:
    """``HostError`` unless the host has this many bytes free, and 1 GiB more."""
    free = shutil.disk_usage(directory).free
    if free < wanted + GIB:
        raise full(
            f"a cell's disks need up to {format_size(wanted)} in '{directory}', and"
            f" {format_size(free)} are free"
        )
