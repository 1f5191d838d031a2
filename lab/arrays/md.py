"""Linux md arrays, made by mdadm and read back from sysfs.

The command answers every question that mdadm 4.2 to 4.6 may ask: ``--run``, an explicit
``--bitmap``, and nothing on standard input. 4.2 adds a bitmap above 100 GiB when none is named,
4.4 asks for one.

mdadm without ``--assume-clean`` starts RAID 4 and 5 degraded and *recovers* the last member; RAID
1, 6 and 10 *resync* (``Create.c``). With ``initial_sync: none`` the workloads run against that,
and the state of the sync is the one thing that is not read back.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from typing_extensions import override

from lab.mdfacts.geometry import Geometry, geometry_of
from lab.mdfacts.levels import Level
from lab.mdfacts.options import read_back
from lab.mdfacts.rules import array_problems
from lab.mdfacts.support import unsupported
from lab.model.image import ImageFacts
from lab.model.plugin import ArrayKind, Problem
from lab.model.procedure import GuestCommand, Step, Verify, WaitFor, words
from lab.model.scenario import Array, Disk, Filesystem, InitialSync
from lab.units import KIB

SLOWEST: Final = 128 * KIB
"""Bytes per second: a sync that is slower than this is given up."""
SYNC_SPEED: Final = 1_000_000
"""KiB per second, far above any limit, while nothing but the initial sync runs."""
BITMAP_SECONDS: Final = 5
"""mdadm's ``DEFAULT_BITMAP_DELAY``: how often the kernel looks for bits to clear."""


class Md(ArrayKind):
    """An array of Linux's own software RAID."""

    @override
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        """What mdadm or the kernel would refuse."""
        return array_problems(array, [disk.size for disk in disks])

    @override
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        """What the image's kernel or mdadm is too old for, too new for, or built without."""
        return unsupported(array, facts)

    @override
    def target(self, array: Array) -> str:
        """The name that mdadm and udev keep, whatever number the kernel gives."""
        return f"/dev/md/{array.name}"

    @property
    @override
    def filesystem(self) -> str | None:
        """None: an array is a block device."""
        return None

    @override
    def fresh(self, array: Array) -> str:
        """md keeps nothing that the kernel does not drop for it."""
        return ""

    @override
    def state(self, array: Array) -> str:
        """All arrays, as the kernel shows them."""
        return "cat /proc/mdstat"

    @override
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        """Create, wait where there is something to wait for, settings, read back."""
        shape = geometry_of(array, sizes)
        used = disks[: shape.members + shape.spares]
        device = self.target(array)
        before, after = _settings(array, shape)
        steps: list[Step] = [
            GuestCommand(
                label=f"create {device}",
                script=_create(array, shape, device, used) + before,
                timeout=120.0,
                undo=_take_apart(array, device),
                capture="mdadm-create",
            ),
        ]
        expect = _ready(array, shape)
        if expect:
            steps.append(
                WaitFor(
                    label=f"{device} to be in sync and clean",
                    script=_state(device) + _dirty_bits(array, used),
                    expect=expect,
                    timeout=600.0 + shape.component_size / SLOWEST,
                    interval=0.3,
                    hits=2,
                )
            )
        if after:
            steps.append(GuestCommand(label=f"settings of {device}", script=_find(device) + after))
        steps.append(
            Verify(
                name="array",
                script=_read(array, device, used),
                expect=_expected(array, shape),
            )
        )
        return tuple(steps)


def create_command(array: Array, shape: Geometry, device: str, disks: Sequence[str]) -> str:
    """mdadm's command line; the level comes before the layout, as mdadm wants it."""
    level = shape.level
    options = ["--run", "--homehost=any", f"--name={array.name}", f"--metadata={array.metadata}"]
    options += [f"--level={level.kernel_name}"]
    if array.layout is not None:
        options.append(f"--layout={array.layout}")
    if array.chunk is not None:
        options.append(f"--chunk={_kib(array.chunk)}")
    options.append(f"--raid-devices={shape.members}")
    if shape.members == 1:
        options.append("--force")  # mdadm takes a single member for a mistake
    if shape.spares:
        options.append(f"--spare-devices={shape.spares}")
    if array.component_size is not None:
        options.append(f"--size={_kib(array.component_size)}")
    if array.data_offset is not None:
        options.append(f"--data-offset={_kib(array.data_offset)}")
    if level.redundant:
        options += _redundancy_options(array)
    return words("mdadm", "--create", device, *options, *disks)


def _redundancy_options(array: Array) -> list[str]:
    options = [f"--bitmap={array.bitmap_file or array.bitmap}"]
    if array.bitmap_chunk is not None:
        options.append(f"--bitmap-chunk={_kib(array.bitmap_chunk)}")
    if array.consistency_policy is not None:
        options.append(f"--consistency-policy={array.consistency_policy}")
    if array.write_behind is not None:
        options.append(f"--write-behind={array.write_behind}")
    if array.failfast:
        options.append("--failfast")
    if array.initial_sync is InitialSync.ASSUME_CLEAN:
        options.append("--assume-clean")
    return options


def _kib(size: int) -> str:
    return f"{size // KIB}K"


def _find(device: str) -> str:
    """``$md``: the array's directory in sysfs. What follows stops at the first error."""
    return f"set -eu\nd=$(readlink -f {device})\nmd=/sys/block/${{d##*/}}/md\n"


def _create(array: Array, shape: Geometry, device: str, disks: Sequence[str]) -> str:
    """Create it, let udev finish with it, and see that its name is a block device.

    With udev, mdadm holds udev back and waits five seconds for the name that only udev would
    make. ``MDADM_NO_UDEV`` has it make the name itself (``mdopen.c: create_mddev``).
    """
    create = create_command(array, shape, device, disks)
    above = (array.bitmap_file or "").rpartition("/")[0] or "/"
    directory = f"{words('mkdir', '-p', above)}\n" if array.bitmap_file else ""
    write_mostly = "".join(
        f"b=$(readlink -f {shlex.quote(disks[member - 1])})\n"
        f'echo writemostly > "$md/dev-${{b##*/}}/state"\n'
        for member in array.write_mostly
    )
    return (
        f"set -eu\n{directory}MDADM_NO_UDEV=1 {create} </dev/null 2>&1\n"
        "udevadm settle --timeout=60 || { echo 'udev was busy for 60 seconds' >&2; exit 1; }\n"
        "tries=0\n"
        f"until [ -b {device} ]; do\n"
        "  tries=$((tries + 1))\n"
        f'  [ "$tries" -le 100 ] || {{ echo "{device} is no block device" >&2; exit 1; }}\n'
        "  sleep 0.1\n"
        "done\n"
        f"cat /proc/mdstat\n{_find(device)}{write_mostly}"
    )


def _take_apart(array: Array, device: str) -> str:
    """Stop the array, which udev may hold for a moment. Its disks go with the cell, unwiped."""
    stop = words("mdadm", "--stop", device)
    files = words("rm", "-f", device, *([array.bitmap_file] if array.bitmap_file else []))
    return (
        "tries=0\n"
        f"while [ -b {device} ]; do\n"
        f"  d=$(readlink -f {device})\n"
        '  echo frozen 2>/dev/null > "/sys/block/${d##*/}/md/sync_action" || true\n'
        f"  {stop} && break\n"
        "  tries=$((tries + 1))\n"
        '  [ "$tries" -lt 5 ] || exit 1\n'
        "  udevadm settle --timeout=10\n"
        "  sleep 0.2\n"
        "done\n"
        "udevadm settle --timeout=30\n"
        f"{files}\n"
    )


def _has_bits(array: Array) -> bool:
    """A bitmap that is written all ones, and is clean only once the kernel has cleared them."""
    return array.bitmap in ("internal", "external")


def _settings(array: Array, shape: Geometry) -> tuple[str, str]:
    """What is written to sysfs right after creation, and what after the wait.

    While the lab waits, the sync runs without limits and bits are cleared as fast as can be;
    afterwards md's own values stand again, or the scenario's.
    """
    own = "".join(_write(key, value) for key, value in array.sysfs.items())
    if not _ready(array, shape):
        return own, ""
    before = after = ""
    if array.initial_sync is InitialSync.WAIT:
        for key in ("sync_speed_max", "sync_speed_min"):
            before += _write(key, str(SYNC_SPEED))
            after += _write(key, "system")
    if _has_bits(array):
        before += _write("bitmap/time_base", "1")
        after += _write("bitmap/time_base", str(BITMAP_SECONDS))
    return before, after + own


def _write(key: str, value: str) -> str:
    return f"printf '%s\\n' {shlex.quote(value)} > \"$md/{key}\"\n"


def _ready(array: Array, shape: Geometry) -> dict[str, str]:
    """What must come true before the first workload; empty where it is true from the start."""
    if not shape.level.redundant or array.initial_sync is InitialSync.NONE:
        return {}
    expect = {"dirty_bits": "0"} if _has_bits(array) else {}
    if array.initial_sync is InitialSync.WAIT:
        expect |= _synced(array)
    return expect


def _synced(array: Array) -> dict[str, str]:
    """Nothing is missing and nothing runs; a lockless bitmap syncs when data are first written."""
    expect = {"state": "running", "degraded": "0"}
    if array.bitmap != "lockless":
        expect |= {"sync_action": "idle", "resync_start": "none"}
    return expect


def _state(device: str) -> str:
    """``key=value`` lines on what runs; levels that cannot sync lack some of these files."""
    return (
        f"d=$(readlink -f {device})\n"
        "md=/sys/block/${d##*/}/md\n"
        "v=\n"
        'read -r v < "$md/array_state"\n'
        "case $v in clean|active|active-idle|write-pending) v=running ;; esac\n"
        'echo "state=$v"\n'
        "for key in sync_action degraded resync_start; do\n"
        '  v=\n  [ ! -e "$md/$key" ] || read -r v < "$md/$key"\n'
        '  echo "$key=$v"\n'
        "done\n"
    )


def _dirty_bits(array: Array, disks: Sequence[str]) -> str:
    if not _has_bits(array):
        return ""
    examine = words("mdadm", "--examine-bitmap", array.bitmap_file or disks[0])
    return f"echo \"dirty_bits=$({examine} | sed -n 's/.* \\([0-9]*\\) dirty.*/\\1/p')\"\n"


def _read(array: Array, device: str, disks: Sequence[str]) -> str:
    """Everything about the array that the kernel tells, as ``key=value`` lines in bytes."""
    settings = "".join(
        f'v=\nread -r v rest < "$md/{key}"\necho "sysfs.{key}=$v"\n' for key in array.sysfs
    )
    return (
        f"[ -b {device} ] && echo block_device=yes\n"
        f"{_state(device)}"
        "for key in level layout raid_disks chunk_size metadata_version consistency_policy; do\n"
        '  v=\n  read -r v < "$md/$key"\n'
        '  echo "$key=$v"\n'
        "done\n"
        'v=0\nread -r v < "$md/component_size"\necho "component_size=$((v * 1024))"\n'
        "kind=none chunk= backlog= base=\n"
        "if grep -qF '[llbitmap]' \"$md/bitmap_type\" 2>/dev/null; then\n"
        "  kind=lockless\n"
        'elif [ -e "$md/bitmap/location" ]; then\n'
        '  read -r kind < "$md/bitmap/location"\n'
        "  case $kind in file) kind=external ;; [+-]*) kind=internal ;; esac\n"
        '  read -r chunk < "$md/bitmap/chunksize"\n'
        '  read -r backlog < "$md/bitmap/backlog"\n'
        '  read -r base < "$md/bitmap/time_base"\n'
        "fi\n"
        'echo "bitmap=$kind"\necho "bitmap_chunk=$chunk"\n'
        'echo "write_behind=$backlog"\necho "bitmap_seconds=$base"\n'
        "n=0\n"
        f"for b in $({words('readlink', '-f', *disks)}); do\n"
        "  n=$((n + 1)) slot=missing offset=0 state=\n"
        "  dev=$md/dev-${b##*/}\n"
        '  read -r slot < "$dev/slot"\n'
        '  read -r offset < "$dev/offset"\n'
        '  read -r state < "$dev/state"\n'
        '  echo "disk$n.slot=$slot"\n'
        '  echo "disk$n.data_offset=$((offset * 512))"\n'
        "  for flag in write_mostly failfast; do\n"
        "    case ,$state, in *,$flag,*) v=yes ;; *) v=no ;; esac\n"
        '    echo "disk$n.$flag=$v"\n'
        "  done\n"
        "done\n"
        f"{settings}"
    )


def _expected(array: Array, shape: Geometry) -> dict[str, str]:
    """What the kernel must say, key by key, of the array that was asked for."""
    level = shape.level
    expect = {
        "block_device": "yes",
        "state": "running",
        "level": level.kernel_name,
        "raid_disks": str(shape.members),
        "metadata_version": array.metadata,
        "consistency_policy": _policy(array, level),
        "bitmap": array.bitmap,
    }
    if level is not Level.RAID0:
        # RAID 0's layout is kept only where it matters, and mdadm's versions differ on where.
        expect["layout"] = str(shape.layout)
    if level.striped:
        expect["chunk_size"] = str(shape.chunk)
    if level.redundant:
        expect["component_size"] = str(shape.component_size)
        if array.initial_sync is not InitialSync.NONE:
            expect |= _synced(array)
    expect |= _expected_bitmap(array, shape)
    for number in range(1, shape.members + shape.spares + 1):
        expect |= _expected_disk(array, shape, number)
    printed = read_back(array.sysfs)
    expect |= {f"sysfs.{key}": value for key, value in printed.items()}
    return expect


def _policy(array: Array, level: Level) -> str:
    if not level.redundant:
        return "none"
    if array.consistency_policy is not None:
        return array.consistency_policy
    return "resync" if array.bitmap == "none" else "bitmap"


def _expected_bitmap(array: Array, shape: Geometry) -> dict[str, str]:
    expect = {}
    chunk = array.bitmap_chunk or shape.bitmap_chunk
    if chunk:
        expect["bitmap_chunk"] = str(chunk)
    if array.write_behind is not None:
        expect["write_behind"] = str(array.write_behind)
    if _has_bits(array) and "bitmap/time_base" not in array.sysfs:
        expect["bitmap_seconds"] = str(BITMAP_SECONDS)
    return expect


def _expected_disk(array: Array, shape: Geometry, number: int) -> dict[str, str]:
    """Slot, offset and flags of the ``number``-th disk, from 1.

    The last member of RAID 4 and 5 is one spare among others until it is recovered, so that its
    slot is known only without a sync, or when the sync is over and there were no other spares.
    """
    expect = {f"disk{number}.data_offset": str(shape.data_offset)}
    recovered = (
        shape.level in (Level.RAID4, Level.RAID5)
        and array.initial_sync is not InitialSync.ASSUME_CLEAN
        and number >= shape.members
    )
    if not recovered or (array.initial_sync is InitialSync.WAIT and not shape.spares):
        slot = str(number - 1) if number <= shape.members else "none"
        expect[f"disk{number}.slot"] = slot
    if array.write_mostly and number <= shape.members:
        flag = "yes" if number in array.write_mostly else "no"
        expect[f"disk{number}.write_mostly"] = flag
    if array.failfast:
        expect[f"disk{number}.failfast"] = "yes"
    return expect


ARRAY: ArrayKind = Md()
