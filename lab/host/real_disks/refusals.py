"""Real disks on this host: the guard's configuration, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import lab
from lab.core.errors import HostError, ToolError
from lab.host.real_disks import guard
from lab.host.real_disks.device import Device, number_at
from lab.host.real_disks.guard import Ground, Named, Refusal
from lab.host.real_disks.users import Objection, Rule
from lab.host.system import paths, process
from lab.model.scenario.real import RealDisk

NAMES: Final = Path("/dev/disk/by-id")
"""udev's permanent names of disks: by model and serial, or by world-wide name."""
LEASES: Final = Path("/run/lock/lab-disks")
"""Shared by all users of a host (Filesystem Hierarchy Standard 3.0, 3.15), and empty after a boot.
"""
_SYSTEM: Final = ("/", "/boot", "/usr", "/var")
_LAB: Final = Path(lab.__file__).resolve().parent


def ground() -> Ground:
    """Return the guard's configuration for this host."""
    own = (paths.images(), paths.runs(), paths.guests(), paths.warm(), paths.host(), _LAB)
    return Ground(
        names=NAMES,
        leases=LEASES,
        system=tuple(Path(path) for path in _SYSTEM),
        own=own,
        run=_run,
    )


def known(device: str) -> RealDisk | None:
    """Return the facts that a scenario takes from the host about a disk; ``None``: no such disk."""
    found, _ = guard.look(ground(), device)
    if found is None:
        return None
    return RealDisk(size=found.size, serial=found.serial, rotational=found.rotational)


def objections(device: str, size: int, serial: str) -> str:
    """Return the objections to a named disk as one sentence; empty: none now."""
    named = Named(path=device, size=size, serial=serial)
    _, found = guard.look(ground(), device, named)
    return Refusal(path=device, objections=found).sentence if found else ""


def advice(text: str) -> str:
    """Return what to do about a refusal."""
    if f"{Rule.SIGNATURE.value}:" in text:
        return (
            "if you need none of its data, remove the signatures: `wipefs --all DEVICE`; the lab "
            "never does that"
        )
    return "`lab disk list` shows which disks may be passed through"


def every() -> Iterator[tuple[Device, tuple[str, ...], tuple[Objection, ...]]]:
    """Yield each disk and partition with a stable name: all its names, and the objections."""
    names: dict[tuple[int, int], list[str]] = {}
    for entry in sorted(NAMES.glob("*")):
        if (number := number_at(entry)) is not None:
            names.setdefault(number, []).append(str(entry))
    for number in sorted(names):
        device, found = guard.look(ground(), names[number][0])
        if device is not None:
            yield device, tuple(names[number]), found


def _run(argv: Sequence[str]) -> tuple[int, str]:
    try:
        done = process.run(argv, timeout=60, check=False)
    except (HostError, ToolError) as error:
        raise OSError(error.message) from error
    return done.status, done.stdout
