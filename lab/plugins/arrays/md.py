"""Linux md arrays of whole disks, made by mdadm and verified through sysfs.

An external bitmap is a file on a file system outside the array: the guest's root, or an ext4 that
is made for it on a disk of the scenario (``array.bitmap_disk``). md looks up the file's blocks
(``md-bitmap.c: read_page``, ``bmap``) and writes to them directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from lab.md.facts.levels import Level
from lab.md.facts.option_rules import BITMAP_MOUNT, bitmap_path, journal_disk
from lab.md.facts.rules import array_problems
from lab.md.facts.sizes import array_memory, geometry_of, named_sizes, without_disks_aside
from lab.md.facts.support import unsupported
from lab.md.steps.create import array_steps, bitmap_mount_command, device_of
from lab.md.steps.rest import rest_script
from lab.model.execution.procedure import GuestCommand, Step, Verify, words
from lab.model.image.manifest import ImageFacts
from lab.model.plugin import ArrayKind, MemoryUse, Problem
from lab.model.scenario.document import Array, Disk, Filesystem


class Md(ArrayKind):
    """An array of Linux software RAID."""

    @override
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        yield from array_problems(array, [disk.size for disk in disks])
        if array.segments is not None:
            yield Problem(
                key="array.segments",
                message="an md array uses whole disks: set kind to segments, or remove it",
                idle_by="array.kind",
            )

    @override
    def sizes(self, array: Array, disks: Sequence[Disk]) -> Mapping[str, int]:
        used = without_disks_aside(array, [disk.size for disk in disks])
        return named_sizes(geometry_of(array, used))

    @override
    def capacity(self, array: Array, disks: Sequence[Disk]) -> int | None:
        used = without_disks_aside(array, [disk.size for disk in disks])
        shape = geometry_of(array, used)
        # RAID 0 of unequal disks has zones.
        whole = shape.level is not Level.LINEAR and (shape.level.redundant or len({*used}) == 1)
        return shape.size if whole else None

    @override
    def memory(self, array: Array, disks: Sequence[Disk]) -> Iterable[MemoryUse]:
        used = without_disks_aside(array, [disk.size for disk in disks])
        return array_memory(array, geometry_of(array, used))

    @override
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        return unsupported(array, facts)

    @override
    def target(self, array: Array) -> str:
        return device_of(array)

    @override
    def rest(self, array: Array, *, waits: bool) -> str:
        return rest_script(array, waits=waits)

    @override
    def state(self, array: Array) -> str:
        return "cat /proc/mdstat"

    @override
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        members, sized = without_disks_aside(array, disks), without_disks_aside(array, sizes)
        log = journal_disk(array)
        journal = None if log is None else disks[log - 1]
        steps = array_steps(array, members, sized, journal=journal)
        return (*_bitmap_steps(array, disks), *steps)


def _bitmap_steps(array: Array, disks: Sequence[str]) -> tuple[Step, ...]:
    """Make an ext4 for the bitmap's file, fully initialised, so that ext4 writes nothing later."""
    path = bitmap_path(array)
    if array.bitmap_disk is None or path is None:
        return ()
    disk = disks[array.bitmap_disk - 1]
    make = words(
        *("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
        disk,
    )
    mount = bitmap_mount_command(disk)
    return (
        GuestCommand(
            label="ext4 for the bitmap",
            script=f"{make}\nmkdir -p {BITMAP_MOUNT}\n{mount}",
            timeout=120.0,
            undo=f"umount {BITMAP_MOUNT}",
        ),
        Verify(
            name="bitmap_disk",
            script=f"source=$(findmnt -n -o SOURCE,FSTYPE -T {BITMAP_MOUNT})\n"
            'echo "type=${source##* }"\n'
            f'[ "${{source%% *}}" = "$(readlink -f {disk})" ] && echo on_its_disk=yes',
            expect={"type": "ext4", "on_its_disk": "yes"},
        ),
    )


ARRAY: ArrayKind = Md()
