"""Verification of an md array: the kernel's values as ``key=value`` lines, and expected values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.facts.option_rules import bitmap_path, read_back
from lab.md.facts.sizes import present
from lab.md.facts.sysfs import read_lines
from lab.model.execution.procedure import Verify, words
from lab.model.scenario.document import Array, InitialSync

BITMAP_SECONDS: Final = 5
"""mdadm's ``DEFAULT_BITMAP_DELAY``: the interval of the kernel's scan for bits to clear."""


SUPERBLOCKS: Final = """\
for disk in /sys/block/*; do
  case ${disk##*/} in md* | loop* | ram* | sr*) continue ;; esac
  serial=
  [ ! -e $disk/serial ] || read -r serial <$disk/serial || true
  echo "== ${disk##*/} $serial"
  timeout -k 1 20 mdadm --examine /dev/${disk##*/} 2>&1 || true
done
"""
"""Shell lines that print the superblock of each disk of the guest."""


def has_bits(array: Array) -> bool:
    """Return whether the bitmap starts with all bits set, until the kernel has cleared them."""
    return array.bitmap in ("internal", "external")


def ready(array: Array, shape: Geometry) -> dict[str, str]:
    """Return the state to wait for before the first workload; empty: no wait."""
    if not shape.level.redundant or array.initial_sync is InitialSync.NONE:
        return {}
    expect = {"dirty_bits": "0"} if has_bits(array) else {}
    if array.initial_sync is InitialSync.WAIT:
        expect |= _synced(array)
    return expect


def _synced(array: Array) -> dict[str, str]:
    """All members present, no sync. A lockless bitmap syncs regions at their first write."""
    expect = {"state": "running", "degraded": "0" if array.missing is None else "1"}
    if array.bitmap != "lockless":
        expect |= {"sync_action": "idle", "resync_start": "none"}
    return expect


def state_script(device: str) -> str:
    """``key=value`` lines of the sync's state; levels without redundancy lack some files."""
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


def dirty_bits_script(array: Array, disks: Sequence[str]) -> str:
    """Return lines that print the number of set bits on the disk, read without the page cache."""
    if not has_bits(array):
        return ""
    examine = words("mdadm", "--examine-bitmap", bitmap_path(array) or disks[0])
    return f"echo \"dirty_bits=$({examine} | sed -n 's/.* \\([0-9]*\\) dirty.*/\\1/p')\"\n"


def read_back_array(
    array: Array,
    shape: Geometry,
    device: str,
    disks: Sequence[str],
    name: str,
    journal: str | None,
) -> Verify:
    """Return the step that verifies that the array is as requested."""
    script, expect = _read(array, device, disks), _expected(array, shape)
    if journal is not None:
        script += (
            f"b=$({words('readlink', '-f', journal)}) slot=missing\n"
            'read -r slot < "$md/dev-${b##*/}/slot"\n'
            'echo "journal_disk.slot=$slot"\n'
        )
        expect |= {"consistency_policy": "journal", "journal_disk.slot": "journal"}
    return Verify(name=name, script=script, expect=expect)


def _read(array: Array, device: str, disks: Sequence[str]) -> str:
    """Return lines that print the array's sysfs properties as ``key=value``, sizes in bytes."""
    settings = "".join(map(read_lines, array.sysfs))
    return (
        f"[ -b {device} ] && echo block_device=yes\n"
        f"{state_script(device)}"
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
        # Without a bitmap Linux 7.2 has only the first of these files.
        '  [ ! -e "$md/bitmap/chunksize" ] || read -r chunk < "$md/bitmap/chunksize"\n'
        '  [ ! -e "$md/bitmap/backlog" ] || read -r backlog < "$md/bitmap/backlog"\n'
        '  [ ! -e "$md/bitmap/time_base" ] || read -r base < "$md/bitmap/time_base"\n'
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
        f"{_bad_block_lists(array)}"
        "  for flag in write_mostly failfast; do\n"
        "    case ,$state, in *,$flag,*) v=yes ;; *) v=no ;; esac\n"
        '    echo "disk$n.$flag=$v"\n'
        "  done\n"
        "done\n"
        f"{settings}"
    )


def _bad_block_lists(array: Array) -> str:
    """Return a line that counts the lists of one disk, if there should be none."""
    if array.bad_block_list:
        return ""
    examine = 'mdadm --examine "$b" | grep -c "Bad Block Log"'
    return f'  echo "disk$n.bad_block_lists=$({examine})"\n'


def _expected(array: Array, shape: Geometry) -> dict[str, str]:
    """Return the expected value of each property of the requested array."""
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
        # RAID 0 stores its layout only for unequal disks, and mdadm versions differ.
        expect["layout"] = str(shape.layout)
    if level.striped:
        expect["chunk_size"] = str(shape.chunk)
    if level.redundant:
        expect["component_size"] = str(shape.component_size)
        if array.initial_sync is not InitialSync.NONE:
            expect |= _synced(array)
    expect |= _expected_bitmap(array, shape)
    numbers = present(array, range(1, shape.members + shape.spares + 1))
    for place, number in enumerate(numbers, 1):
        found = _expected_disk(array, shape, number)
        expect |= {f"disk{place}.{key}": value for key, value in found.items()}
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
    if has_bits(array) and "bitmap/time_base" not in array.sysfs:
        expect["bitmap_seconds"] = str(BITMAP_SECONDS)
    return expect


def _expected_disk(array: Array, shape: Geometry, number: int) -> dict[str, str]:
    """Return slot, offset and flags of the ``number``-th disk, from 1.

    RAID 4 and 5 start with their last member as a spare. Its slot is known only without a sync, or
    after the sync if there were no other spares.
    """
    expect = {"data_offset": str(shape.data_offset)}
    recovered = (
        shape.level in (Level.RAID4, Level.RAID5)
        and array.initial_sync is not InitialSync.ASSUME_CLEAN
        and number >= shape.members
    )
    if not recovered or (array.initial_sync is InitialSync.WAIT and not shape.spares):
        expect["slot"] = str(number - 1) if number <= shape.members else "none"
    if array.write_mostly and number <= shape.members:
        expect["write_mostly"] = "yes" if number in array.write_mostly else "no"
    if array.failfast:
        expect["failfast"] = "yes"
    if not array.bad_block_list:
        expect["bad_block_lists"] = "0"
    return expect
