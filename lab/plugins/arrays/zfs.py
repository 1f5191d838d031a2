"""ZFS pools: mirrors, raidz and stripes, with a dataset or a volume, verified through ZFS.

With ``filesystem: {type: zfs}`` workloads run on a dataset, mounted like other file systems.
Without one, or with another one, they use a volume, a block device in the pool. ZFS gives each disk
a partition table and begins at its first MiB. A pool needs no initial sync.

ZFS's ARC is not the kernel's page cache. Before each workload a dataset is unmounted, which
releases what it holds; the ARC is flushed, and the dataset mounted again. A pool with a volume is
exported, which flushes the ARC too (OpenZFS ``spa.c: spa_unload``, ``arc_flush``), and imported:
2 * 10^9 instructions of the guest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from typing_extensions import override

from lab.core.units import MIB, format_size
from lab.core.wording import choice
from lab.model.execution.procedure import GuestCommand, Step, Verify, words
from lab.model.image.manifest import ImageFacts
from lab.model.plugin import MOUNT, ArrayKind, MemoryUse, Problem
from lab.model.scenario.document import Array, Disk, Filesystem, InitialSync
from lab.model.scenario.zfs import LEVELS, ZfsParameters
from lab.plugins.guest_programs._source import command

OWN: Final = frozenset(("kind", "level", "members", "spares", "name", "initial_sync", "zfs"))
"""Fields of an array that a pool has too."""
SMALLEST: Final = {"stripe": 1, "mirror": 2, "raidz": 2, "raidz1": 2, "raidz2": 3, "raidz3": 4}
"""Least number of disks of a vdev, ``zpool_vdev.c: get_replication`` and ``is_grouping``."""
SMALLEST_DISK: Final = 64 * MIB
"""``SPA_MINDEVSIZE``."""
RESERVED: Final = re.compile(r"(mirror|raidz|draid|spare|log|cache|special|dedup)\d*|c\d.*")
"""Reserved beginnings of a pool's name, ``zpool-create(8)``."""


class Zfs(ArrayKind):
    """A pool of OpenZFS."""

    filesystem = "zfs"
    partitions = True

    @override
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        strange = [
            name
            for name, field in Array.model_fields.items()
            if name not in OWN and getattr(array, name) != field.default
        ]
        for name in strange:
            yield Problem(
                key=f"array.{name}",
                message="a field of md arrays, which a ZFS pool does not have: remove it",
            )
        if array.initial_sync is not InitialSync.ASSUME_CLEAN:
            yield Problem(
                key="array.initial_sync",
                message="a ZFS pool has no initial sync: remove it",
            )
        if RESERVED.match(array.name):
            yield Problem(
                key="array.name", message=f"ZFS reserves the name {array.name!r}: write bench"
            )
        yield from _shape_problems(array, disks)

    @override
    def sizes(self, array: Array, disks: Sequence[Disk]) -> Mapping[str, int]:
        return {"members": _members(array, len(disks))}

    @override
    def memory(self, array: Array, disks: Sequence[Disk]) -> Iterable[MemoryUse]:
        if (most := array.zfs.arc_max) is not None:
            yield MemoryUse(key="array.zfs.arc_max", size=most, what="ZFS's cache of")

    @override
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        if facts.packages is None:
            return
        if "zfsutils-linux" not in facts.packages or "zfs" not in facts.own_modules:
            yield Problem(key="array.kind", message="it has no ZFS")

    @override
    def target(self, array: Array) -> str:
        return f"/dev/zvol/{_volume(array)}"

    @override
    def fresh(self, array: Array) -> str:
        name, volume = array.name, self.target(array)
        return (
            f"set -- $(grep ' {MOUNT} ' /proc/mounts || true)\n"
            "case ${1-} in\n"
            f"{name}/*)\nzfs unmount $1\n{command('flush_arc', {})}\nzfs mount $1\n;;\n*)\n"
            f"case ${{1-}} in /dev/zd*) umount {MOUNT} ;; esac\n"
            f"zpool export {name}\n"
            f"zpool import -d /dev/disk/by-id -o cachefile=none {name}\n"
            "udevadm settle --timeout=60\n"
            f'case ${{1-}} in /dev/zd*) mount -t "$3" -o "$4" {volume} {MOUNT} ;; esac\n'
            ";;\nesac"
        )

    @override
    def state(self, array: Array) -> str:
        name = array.name
        return f"zpool status {name}; zpool list -v {name}; cat /proc/spl/kstat/zfs/arcstats"

    @override
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        used = disks[: _members(array, len(disks)) + array.spares]
        return (
            GuestCommand(
                label=f"create the pool {array.name}",
                script=_create(array, used),
                timeout=120.0,
                undo=_take_apart(array, used),
                capture="zpool-create",
            ),
            Verify(name="array", script=_read(array, used), expect=_expected(array, used)),
            *(
                _dataset(array, filesystem)
                if filesystem is not None and filesystem.type == self.filesystem
                else _made_volume(array, self.target(array))
            ),
        )


def _made_volume(array: Array, path: str) -> tuple[Step, ...]:
    """Make a sparse volume, which reserves no space."""
    size, zfs = array.zfs.volume_size, array.zfs
    room = (
        f"size={size}"
        if size
        else f"size=$(zfs get -Hp -o value available {array.name})\n"
        f"size=$((size / 5 * 4 / {MIB} * {MIB}))"
    )
    create = words("zfs", "create", "-s", "-b", str(zfs.volblocksize))
    return (
        GuestCommand(
            label=f"create the volume {_volume(array)}",
            script=(
                f"set -eu\n{room}\n{create} -V $size {_volume(array)}\n"
                "udevadm settle --timeout=60\ntries=0\n"
                f"until [ -b {path} ]; do\n"
                "  tries=$((tries + 1))\n"
                f'  [ "$tries" -le 100 ] || {{ echo "{path} is not there" >&2; exit 1; }}\n'
                "  sleep 0.1\n"
                "done"
            ),
            timeout=120.0,
        ),
        Verify(
            name="volume",
            script=(
                f"[ -b {path} ] && echo block_device=yes\n"
                f"size=$(zfs get -Hp -o value volsize {_volume(array)})\n"
                f'[ "$(blockdev --getsize64 {path})" = "$size" ] && echo whole=yes\n'
                f'echo "size=$size"\n'
                f'echo "volblocksize=$(zfs get -Hp -o value volblocksize {_volume(array)})"'
            ),
            expect={
                "block_device": "yes",
                "whole": "yes",
                "volblocksize": str(zfs.volblocksize),
                **({"size": str(size)} if size else {}),
            },
        ),
    )


def _dataset(array: Array, filesystem: Filesystem) -> tuple[Step, ...]:
    """Make a dataset, which ZFS mounts."""
    dataset = f"{array.name}/data"
    create = words("zfs", "create", "-o", f"mountpoint={MOUNT}", *filesystem.options, dataset)
    return (
        GuestCommand(
            label=f"create the dataset {dataset}",
            script=create,
            timeout=120.0,
            undo=f"zfs unmount -f {dataset}",
        ),
        Verify(
            name="filesystem",
            script=f'echo "type=$(findmnt -n -o FSTYPE {MOUNT})"\n'
            f'echo "source=$(findmnt -n -o SOURCE {MOUNT})"',
            expect={"type": "zfs", "source": dataset},
        ),
    )


def _volume(array: Array) -> str:
    return f"{array.name}/volume"


def _members(array: Array, disks: int) -> int:
    return array.members if array.members is not None else max(disks - array.spares, 0)


def _width(array: Array, members: int) -> int:
    """Return the number of disks of each vdev."""
    if array.level == "stripe":
        return 1
    if array.zfs.width is not None:
        return array.zfs.width
    return 2 if array.level == "mirror" else members


def _shape_problems(array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
    if array.level not in LEVELS:
        yield Problem(key="array.level", message=choice(array.level, LEVELS))
        return
    members = _members(array, len(disks))
    width = _width(array, members)
    least = SMALLEST[array.level]
    if members + array.spares > len(disks):
        yield Problem(
            key="array.members",
            message=f"{members} members and {array.spares} spares need more than the {len(disks)} "
            "disks of the scenario: raise disks.count, or lower members or spares",
        )
    elif members < least:
        yield Problem(
            key="disks.count",
            message=f"{array.level} needs {least} disks, found {members}: raise disks.count",
        )
    elif width < least:
        yield Problem(
            key="array.zfs.width",
            message=f"{array.level} needs at least {least} disks, found {width}",
        )
    elif members % width:
        yield Problem(
            key="array.zfs.width" if array.zfs.width else "disks.count",
            message=f"{members} disks cannot be divided into vdevs of {width}: change one of them",
        )
    elif array.zfs.width is not None and array.level == "stripe":
        yield Problem(key="array.zfs.width", message="a stripe's vdevs are single disks: remove it")
    elif array.spares and array.level == "stripe":
        yield Problem(key="array.spares", message="a stripe cannot lose a disk: set spares to 0")
    for disk in disks:
        if disk.size < SMALLEST_DISK + 10 * MIB:
            yield Problem(
                key="disks.size",
                message=f"{format_size(disk.size)} is too small for a ZFS pool: give 74MiB or more",
            )
            return
    yield from _power_problems(array.zfs)


def _power_problems(zfs: ZfsParameters) -> Iterable[Problem]:
    for name in ("recordsize", "volblocksize"):
        value = getattr(zfs, name)
        if value & (value - 1):
            yield Problem(
                key=f"array.zfs.{name}",
                message=f"{format_size(value)} is not a power of two: write 128KiB",
            )
    if zfs.recordsize > MIB:
        yield Problem(
            key="array.zfs.recordsize",
            message=f"{format_size(zfs.recordsize)} is above ZFS's limit: give 1MiB or less",
        )


_FIRST_NAMES: Final = {"gzip-6": "gzip", "zstd-fast-1": "zstd-fast"}
"""ZFS's name of levels that have two (OpenZFS, ``module/zcommon/zfs_prop.c``)."""


def _properties(zfs: ZfsParameters) -> dict[str, str]:
    """Return the properties that every dataset of the pool inherits, as ``zfs get -p`` prints
    them."""
    return {
        "recordsize": str(zfs.recordsize),
        "compression": _FIRST_NAMES.get(zfs.compression, zfs.compression),
        "sync": zfs.sync,
        "atime": "on" if zfs.atime else "off",
        "primarycache": zfs.primarycache,
    }


def create_command(array: Array, disks: Sequence[str]) -> str:
    """Return the ``zpool create`` command, with every property given."""
    members = len(disks) - array.spares
    width = _width(array, members)
    options = ["-f", "-o", f"ashift={array.zfs.ashift}", "-o", "cachefile=none"]
    options += ["-O", "mountpoint=none"]
    for name, value in _properties(array.zfs).items():
        options += ["-O", f"{name}={value}"]
    vdevs: list[str] = []
    for first in range(0, members, width):
        vdevs += [*(() if array.level == "stripe" else (array.level,))]
        vdevs += disks[first : first + width]
    if array.spares:
        vdevs += ["spare", *disks[members:]]
    return words("zpool", "create", *options, array.name, *vdevs)


_ARC_MAX: Final = "/sys/module/zfs/parameters/zfs_arc_max"


def _create(array: Array, disks: Sequence[str]) -> str:
    """Return the lines that create the pool, after setting the ARC's limit.

    0 is ZFS's default, and resets an earlier cell's limit.
    """
    return (
        f"set -eu\nmodprobe zfs\necho {array.zfs.arc_max or 0} > {_ARC_MAX}\n"
        f"{create_command(array, disks)} 2>&1\nzpool status {array.name}\n"
    )


def _take_apart(array: Array, disks: Sequence[str]) -> str:
    """Return lines that destroy the pool, and make the kernel forget ZFS's partitions."""
    name = array.name
    parts = words(*(f"{disk}-part{number}" for disk in disks for number in (1, 9)))
    return (
        "tries=0\n"
        f"while zpool list -H -o name {name} >/dev/null 2>&1; do\n"
        f"  zpool destroy -f {name} && break\n"
        "  tries=$((tries + 1))\n"
        '  [ "$tries" -lt 5 ] || exit 1\n'
        "  sleep 0.2\n"
        "done\n"
        f"for part in {parts}; do\n"
        '  [ ! -b "$part" ] || wipefs --all --quiet "$part"\n'
        "done\n"
        f"wipefs --all --quiet {words(*disks)}\n"
        "udevadm settle --timeout=30\n"
    )


def _read(array: Array, disks: Sequence[str]) -> str:
    """Return shell lines that print all facts about the pool as ``key=value``, in bytes."""
    name = array.name
    properties = ",".join(_properties(array.zfs))
    return (
        f'echo "health=$(zpool list -H -o health {name})"\n'
        f'echo "ashift=$(zpool get -Hp -o value ashift {name})"\n'
        f"read -r arc < {_ARC_MAX}\n"
        'echo "arc_max=$arc"\n'
        f"zfs get -Hp -o property,value {properties} {name} |\n"
        '  while read -r key value; do echo "$key=$value"; done\n'
        f"zpool status -P {name} | {{\n"
        "vdev=stripe\n"
        "while read -r word state rest; do\n"
        "  case $word in\n"
        "  mirror-* | raidz*-* | spares) vdev=$word ;;\n"
        "  /dev/*)\n"
        "    n=0\n"
        f"    for disk in {' '.join(shlex.quote(d) for d in disks)}; do\n"
        "      n=$((n + 1))\n"
        '      [ "$disk" != "${word%-part1}" ] || '
        'printf \'%s\\n\' "disk$n.vdev=$vdev" "disk$n.state=$state"\n'
        "    done ;;\n"
        "  esac\n"
        "done\n"
        "}\n"
    )


def _expected(array: Array, disks: Sequence[str]) -> dict[str, str]:
    """Return the facts that ZFS must report for the requested pool."""
    members = len(disks) - array.spares
    width = _width(array, members)
    level = "raidz1" if array.level == "raidz" else array.level
    expect = {
        "health": "ONLINE",
        "ashift": str(array.zfs.ashift),
        "arc_max": str(array.zfs.arc_max or 0),
        **_properties(array.zfs),
    }
    for number in range(1, len(disks) + 1):
        spare = number > members
        vdev = "stripe" if level == "stripe" else f"{level}-{(number - 1) // width}"
        expect[f"disk{number}.vdev"] = "spares" if spare else vdev
        expect[f"disk{number}.state"] = "AVAIL" if spare else "ONLINE"
    return expect


ARRAY: ArrayKind = Zfs()
