"""ZFS pools in faults: spares, waiting for a resilver, the state afterwards and its metrics.

Nothing in the guest takes a spare by itself: ZFS leaves that to its event daemon, zed, which images
mask. So the fault itself requests it, with ``zpool replace``, and always at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from lab.core.errors import ToolError
from lab.model.execution.procedure import words
from lab.model.plugin import Problem, Scene
from lab.plugins import catalog
from lab.plugins.faults._shared import disk, number, state


def is_pool(scene: Scene) -> bool:
    """Return whether the fault's array is a ZFS pool."""
    return bool(scene.device) and scene.array.kind == "zfs"


def members(scene: Scene) -> int:
    """Return the number of disks that are no spares."""
    kind = catalog.array_kind(scene.array.kind)
    return kind.sizes(scene.array, [one.disk for one in scene.disks])["members"]


def pool_problems(scene: Scene, position: int) -> Iterable[Problem]:
    """Yield a problem if the pool cannot lose a disk, or the disk is a spare that is not in use."""
    if scene.array.level == "stripe":
        yield Problem(
            key="fault",
            message=f"{scene.fault.fault} needs a pool with redundancy: set array.level to mirror"
            " or raidz2, or remove the fault",
        )
    elif position in spares_left(scene):
        last = members(scene)
        yield Problem(
            key="disk", message=f"disk {position} is a spare: give a disk from 1 to {last}"
        )


def spares_left(scene: Scene) -> list[int]:
    """Return the positions of spares that earlier faults have not used."""
    first = members(scene) + 1
    left = list(range(first, first + scene.array.spares))
    for fault in scene.earlier:
        used = fault.parameters.get("with", left[0] if left and fault.fault == "fail" else None)
        if used in left:
            left.remove(used)
    return left


def replace(scene: Scene, old: int, new: int) -> str:
    """Return the line that makes ZFS copy a disk's data to another disk, ``zpool-replace(8)``."""
    return words("zpool", "replace", scene.array.name, *(disk(scene, n).path for n in (old, new)))


def settle(pool: str, limit: float) -> str:
    """Return shell lines that wait until the pool resilvers nothing, at most ``limit`` seconds, and
    print how long it did."""
    return (
        f"timeout {int(limit)} {words('zpool', 'wait', '-t', 'replace,resilver', pool)} ||\n"
        f'  {{ echo "{pool} was still resilvering" >&2; exit 1; }}\n'
        "read -r now idle < /proc/uptime\n"
        'echo "began=$began"\necho "ended=$now"\n'
    )


def pool_state(scene: Scene) -> str:
    """Return shell lines that print the state of the pool and its disks, and the kernel's log."""
    return (
        f"echo members={members(scene)}\n{words('zpool', 'status', '-P', scene.array.name)}\n"
        + state("/dev/null", scene.tag)
    )


_LEAF: Final = re.compile(
    r"^[ \t]+(?:/dev/\S+|\d+)[ \t]+(ONLINE|DEGRADED|FAULTED|OFFLINE|UNAVAIL|REMOVED)\b(.*)$",
    re.MULTILINE,
)
"""A disk in ``zpool status -P``: its path, or its number if it is gone. A spare that is not in use
has another state."""


def pool_values(stdout: str, files: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of a fault on a pool, except bytes and acknowledged writes."""
    after = files.get("state.txt", "")
    leaves = _LEAF.findall(after)
    if not leaves:
        raise ToolError(f"the output has no disk of a pool: {after.strip()[-300:]!r}")
    in_sync = sum(state == "ONLINE" and "resilvering" not in rest for state, rest in leaves)
    missing = number(after, "members") - in_sync
    return {
        "seconds": round(number(stdout, "ended") - number(stdout, "began"), 3),
        "degraded": max(missing, 0.0),
        "in_sync": float(in_sync),
        "faulty": float(sum(state != "ONLINE" for state, _ in leaves)),
        "missing": missing,
    }
