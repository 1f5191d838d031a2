"""Steps that create an md array with mdadm.

The command leaves no question of mdadm 4.2 to 4.6 open: it has ``--run``, an explicit ``--bitmap``,
and an empty standard input. Without ``--bitmap``, 4.2 adds one above 100 GiB, and 4.4 prompts.

Without ``--assume-clean`` mdadm starts RAID 4 and 5 degraded and *recovers* the last member; RAID
1, 6 and 10 *resync* (``Create.c``). With ``initial_sync: none`` the workloads run during that, and
only the state of the sync is not verified.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from lab.core.units import KIB
from lab.md.facts.geometry import Geometry
from lab.md.facts.option_rules import BITMAP_MOUNT, bitmap_path
from lab.md.facts.sizes import geometry_of, present
from lab.md.steps.verify import (
    BITMAP_SECONDS,
    dirty_bits_script,
    has_bits,
    read_back_array,
    ready,
    state_script,
)
from lab.model.execution.procedure import GuestCommand, Step, WaitFor, words
from lab.model.scenario.document import Array, InitialSync

SLOWEST: Final = 128 * KIB
"""Slowest sync in bytes per second; a slower one times out."""
SYNC_SPEED: Final = 1_000_000
"""KiB per second during the initial sync, far above any disk."""


_CONFIG: Final = "/run/lab-mdadm.conf"
"""Says that arrays get no bad-block list; ``mdadm --create`` has no option for it."""


def device_of(array: Array) -> str:
    """Return the array's path, independent of the kernel's device number."""
    return f"/dev/md/{array.name}"


def bitmap_mount_command(disk: str) -> str:
    """Return the command that mounts the ext4 with the bitmap's file."""
    return words("mount", "-t", "ext4", "-o", "noatime", disk, BITMAP_MOUNT)


def array_steps(
    array: Array,
    disks: Sequence[str],
    sizes: Sequence[int],
    check: str = "array",
    journal: str | None = None,
) -> tuple[Step, ...]:
    """Return the steps: create, wait for the sync, write settings, verify.

    ``disks`` are members and spares of ``sizes`` bytes, and ``journal`` is the write journal's
    disk; ``check`` names the verification.
    """
    shape = geometry_of(array, sizes)
    used = present(array, disks)
    device = device_of(array)
    before, after = _settings(array, shape)
    steps: list[Step] = [
        GuestCommand(
            label=f"create {device}",
            script=_create(array, shape, device, used, journal) + before,
            timeout=120.0,
            undo=_take_apart(array, device),
            capture=f"mdadm-create-{check}" if check != "array" else "mdadm-create",
        ),
    ]
    expect = ready(array, shape)
    if expect:
        steps.append(
            WaitFor(
                label=f"{device} to be in sync and clean",
                script=state_script(device) + dirty_bits_script(array, used),
                expect=expect,
                timeout=600.0 + shape.component_size / SLOWEST,
                interval=0.3,
                hits=2,
            )
        )
    if after:
        steps.append(GuestCommand(label=f"settings of {device}", script=_find(device) + after))
    steps.append(read_back_array(array, shape, device, used, check, journal))
    return tuple(steps)


def create_command(
    array: Array, shape: Geometry, device: str, disks: Sequence[str], journal: str | None = None
) -> str:
    """Return mdadm's command line; mdadm needs the level before the layout, and the members before
    the journal."""
    level = shape.level
    options = ["--run", "--homehost=any", f"--name={array.name}", f"--metadata={array.metadata}"]
    options += [f"--level={level.kernel_name}"]
    if array.layout is not None:
        options.append(f"--layout={array.layout}")
    if array.chunk is not None:
        options.append(f"--chunk={_kib(array.chunk)}")
    options.append(f"--raid-devices={shape.members}")
    if shape.members == 1:
        options.append("--force")  # otherwise mdadm refuses a single member
    if shape.spares:
        options.append(f"--spare-devices={shape.spares}")
    if not array.bad_block_list:
        options.append(f"--config={_CONFIG}")
    if array.component_size is not None:
        options.append(f"--size={_kib(array.component_size)}")
    if array.data_offset is not None:
        options.append(f"--data-offset={_kib(array.data_offset)}")
    if level.redundant:
        options += _redundancy_options(array)
    named = list(disks)
    if array.missing is not None:
        named.insert(array.missing - 1, "missing")
    if journal is not None:
        named.append(f"--write-journal={journal}")
    return words("mdadm", "--create", device, *options, *named)


def _redundancy_options(array: Array) -> list[str]:
    options = [f"--bitmap={bitmap_path(array) or array.bitmap}"]
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
    """Return lines that set ``$md`` to the array's sysfs directory, and stop at the first error."""
    return f"set -eu\nd=$(readlink -f {device})\nmd=/sys/block/${{d##*/}}/md\n"


def _create(
    array: Array, shape: Geometry, device: str, disks: Sequence[str], journal: str | None
) -> str:
    """Return lines that create the array, wait for udev, and check that its path is a block device.

    By default mdadm blocks udev and waits five seconds for the name that only udev makes. With
    ``MDADM_NO_UDEV`` it makes the name itself (``mdopen.c: create_mddev``).
    """
    create = create_command(array, shape, device, disks, journal)
    file = bitmap_path(array)
    first = f"{words('mkdir', '-p', file.rpartition('/')[0] or '/')}\n" if file else ""
    if not array.bad_block_list:
        first += f"echo 'CREATE bbl=no' >{_CONFIG}\n"
    numbers = present(array, range(1, shape.members + shape.spares + 1))
    write_mostly = "".join(
        f'b=$(readlink -f {shlex.quote(disk)})\necho writemostly > "$md/dev-${{b##*/}}/state"\n'
        for number, disk in zip(numbers, disks, strict=True)
        if number in array.write_mostly
    )
    return (
        f"set -eu\n{first}MDADM_NO_UDEV=1 {create} </dev/null 2>&1\n"
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
    """Stop the array; udev may keep it busy briefly. The disks are removed with the cell."""
    stop = words("mdadm", "--stop", device)
    file = bitmap_path(array)
    files = words("rm", "-f", device, *([file] if file else []))
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


def _settings(array: Array, shape: Geometry) -> tuple[str, str]:
    """Return sysfs writes right after creation, and those after the wait.

    During the wait the sync runs without limits and bits are cleared quickly; afterwards md's
    defaults or the scenario's values apply.
    """
    own = "".join(_write(key, value) for key, value in array.sysfs.items())
    if not ready(array, shape):
        return own, ""
    before = after = ""
    if array.initial_sync is InitialSync.WAIT:
        for key in ("sync_speed_max", "sync_speed_min"):
            before += _write(key, str(SYNC_SPEED))
            after += _write(key, "system")
    if has_bits(array):
        before += _write("bitmap/time_base", "1")
        after += _write("bitmap/time_base", str(BITMAP_SECONDS))
    return before, after + own


def _write(key: str, value: str) -> str:
    return f"printf '%s\\n' {shlex.quote(value)} > \"$md/{key}\"\n"
