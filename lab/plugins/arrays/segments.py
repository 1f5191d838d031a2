"""Disks cut into partitions, an md array across each, and one LVM volume over the arrays.

Each array resyncs by itself: after a power cut only the arrays that were being written. Each disk
gets a GPT with ``array.segments`` partitions of one size. The arrays are alike and named ``NAME1``,
``NAME2``. The volume is ``lab/NAME``, linear or striped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from typing_extensions import override

from lab.core.units import KIB, MIB
from lab.md.facts.geometry import Geometry
from lab.md.facts.segments import (
    DEFAULT_STRIPE,
    EXTENT,
    data_start,
    segment_array,
    segment_geometry,
    segment_problems,
    segment_size,
)
from lab.md.facts.sizes import array_memory, named_sizes
from lab.md.facts.support import unsupported
from lab.md.steps.create import array_steps, device_of
from lab.md.steps.rest import rest_script
from lab.model.execution.procedure import GuestCommand, Step, Verify, words
from lab.model.image.manifest import ImageFacts
from lab.model.plugin import ArrayKind, MemoryUse, Problem
from lab.model.scenario.document import Array, Disk, Filesystem

GROUP: Final = "lab"
"""Name of the volume group. LVM uses only the devices that the commands name."""
RULE: Final = "/run/udev/rules.d/99-lab-volume.rules"
"""Stops udev from re-reading the volume: udev reads a device whenever a program that could write to
it closes it. fio opens it to get its size, so these reads would overlap fio's first second."""


class Segments(ArrayKind):
    """One volume over several arrays on the same disks."""

    partitions = True

    @override
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        return segment_problems(array, [disk.size for disk in disks])

    @override
    def sizes(self, array: Array, disks: Sequence[Disk]) -> Mapping[str, int]:
        return named_sizes(segment_geometry(array, [disk.size for disk in disks]))

    @override
    def memory(self, array: Array, disks: Sequence[Disk]) -> Iterable[MemoryUse]:
        shape = segment_geometry(array, [disk.size for disk in disks])
        return array_memory(array, shape, array.segments or 1)

    @override
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        yield from unsupported(array, facts)
        if facts.packages is not None and "lvm2" not in facts.packages:
            yield Problem(key="array.kind", message="it has no LVM")

    @override
    def target(self, array: Array) -> str:
        return f"/dev/{GROUP}/{array.name}"

    @override
    def rest(self, array: Array, *, waits: bool) -> str:
        return rest_script(array, waits=waits)

    @override
    def state(self, array: Array) -> str:
        return f"cat /proc/mdstat; dmsetup table {GROUP}-{array.name}"

    @override
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        shape = segment_geometry(array, sizes)
        count = array.segments or 1
        used = disks[: shape.members + shape.spares]
        cut = [segment_size(size, count) for size in sizes[: len(used)]]
        arrays = [segment_array(array, number) for number in range(1, count + 1)]
        steps: list[Step] = [_partitions(used, cut, count)]
        for number, each in enumerate(arrays, 1):
            parts = [f"{disk}-part{number}" for disk in used]
            steps += array_steps(each, parts, cut, check=f"array{number}")
        devices = [device_of(each) for each in arrays]
        steps += [_volume(array, shape, devices), _read_back(array, shape, devices)]
        return tuple(steps)


def _partitions(disks: Sequence[str], sizes: Sequence[int], count: int) -> GuestCommand:
    """Make a partition table on each disk; at the end udev's names of all partitions exist.

    The undo makes the kernel forget the partitions, because the next cell wipes the disks.
    """
    lines = ["set -eu"]
    for disk, size in zip(disks, sizes, strict=True):
        table = ["label: gpt", *[f"size={size // MIB}MiB"] * count]
        printed = words("printf", "%s\\n", *table)
        lines.append(f"{printed} | {words('sfdisk', '--quiet', disk)}")
    last = " ".join(f"{disk}-part{count}" for disk in disks)
    lines += [
        "udevadm settle --timeout=60",
        f"for part in {last}; do",
        '  tries=0; until [ -b "$part" ]; do',
        "    tries=$((tries + 1))",
        '    [ $tries -le 100 ] || { echo "$part is no block device" >&2; exit 1; }',
        "    sleep 0.1",
        "  done",
        "done",
    ]
    forget = [
        *(f"{words('partx', '--delete', '--nr', f'1:{count}', disk)} || true" for disk in disks),
        "udevadm settle --timeout=30",
        f'for part in {last}; do [ ! -b "$part" ] || exit 1; done',
    ]
    return GuestCommand(
        label=f"cut {len(disks)} disks into {count}",
        script="\n".join(lines) + "\n",
        timeout=120.0,
        undo="\n".join(forget) + "\n",
    )


def _volume(array: Array, shape: Geometry, devices: Sequence[str]) -> GuestCommand:
    """Create the group and the volume, with every option given."""
    seen = [word for device in devices for word in ("--devices", device)]
    group = [
        *("vgcreate", *seen, "--yes", "--quiet", "--physicalextentsize", f"{EXTENT // KIB}k"),
        *("--dataalignment", f"{data_start(shape) // KIB}k", GROUP, *devices),
    ]
    volume = ["lvcreate", *seen, "--yes", "--quiet", "--wipesignatures", "n", "--zero", "n"]
    volume += ["--name", array.name, "--extents", "100%FREE", "--type", array.volume]
    if array.volume == "striped":
        stripe = f"{(array.stripe_size or DEFAULT_STRIPE) // KIB}k"
        volume += ["--stripes", str(len(devices)), "--stripesize", stripe]
    rule = 'SUBSYSTEM=="block", KERNEL=="dm-*", OPTIONS+="nowatch"'
    undo = (
        f"[ ! -e /dev/{GROUP} ] || {words('vgremove', *seen, '--yes', '--quiet', '--force', GROUP)}"
        f" >/dev/null\n{words('rm', '-f', RULE)}\nudevadm control --reload\n"
        "udevadm settle --timeout=30\n"
    )
    return GuestCommand(
        label=f"{array.volume} volume over {len(devices)} arrays",
        script=(
            f"set -eu\nmkdir -p {RULE.rpartition('/')[0]}\n"
            f"{words('echo', rule)} > {RULE}\nudevadm control --reload\n"
            f"{words(*group)} 2>&1\n{words(*volume, GROUP)} 2>&1\n"
            "udevadm settle --timeout=60\n"
        ),
        timeout=180.0,
        undo=undo,
        capture="lvm",
    )


def _read_back(array: Array, shape: Geometry, devices: Sequence[str]) -> Verify:
    """Verify device-mapper's table: the arrays, their order, and the first byte used of each.

    ``dm-linear.c: linear_status``: start, length, ``linear``, device, start there, in sectors;
    ``dm-stripe.c: stripe_status``: one line, with the stripe's size and all devices.
    """
    count, start = len(devices), data_start(shape) // 512
    target = f"/dev/{GROUP}/{array.name}"
    script = (
        f"[ -b {target} ] && echo block_device=yes\n"
        f"wanted=; for d in $({words('readlink', '-f', *devices)}); do\n"
        '  read -r number < "/sys/block/${d##*/}/dev"; wanted="$wanted $number"\n'
        "done\n"
        "kinds= found= starts= stripe=\n"
        f"dmsetup table {GROUP}-{array.name} > /run/lab-table\n"
        "while read -r from length kind rest; do\n"
        '  kinds="$kinds $kind"\n'
        "  set -- $rest\n"
        '  [ "$kind" = linear ] || { stripe=$(($2 * 512)); shift 2; }\n'
        '  while [ $# -ge 2 ]; do found="$found $1"; starts="$starts $2"; shift 2; done\n'
        "done < /run/lab-table\n"
        "rm /run/lab-table\n"
        'echo "kinds=${kinds# }"\n'
        '[ "$found" = "$wanted" ] && echo order=yes\n'
        'echo "starts=${starts# }"\n'
        'echo "stripe_size=$stripe"\n'
    )
    lines = 1 if array.volume == "striped" else count
    stripe = (array.stripe_size or DEFAULT_STRIPE) if array.volume == "striped" else ""
    return Verify(
        name="volume",
        script=script,
        expect={
            "block_device": "yes",
            "kinds": " ".join([array.volume] * lines),
            "order": "yes",
            "starts": " ".join([str(start)] * count),
            "stripe_size": str(stripe),
        },
    )


ARRAY: ArrayKind = Segments()
