"""The guard: opens a real disk once, and checks the opened descriptor.

``O_EXCL`` without ``O_CREAT`` claims a block device (``open(2)``; ``block/bdev.c:
bd_prepare_to_claim``). It fails if the device, its disk or one of its partitions is mounted, used
as swap, part of an array, a volume or a pool, or claimed by a program. While the descriptor is open
no process can begin such a use. The lock keeps away udev and programs that respect it
(systemd, "Locking Block Device Access").
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.host.real_disks import leases
from lab.host.real_disks.device import Device, Number, assembled, listed, name_of, number_at, read
from lab.host.real_disks.users import (
    Objection,
    Rule,
    Run,
    beneath,
    held,
    mounted,
    opened,
    signatures,
    swap,
)

_UDEV: Final = 3.0
"""Timeout in seconds for udev to release the disk; then its lock counts as another user's."""
_GLANCE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Facts about a host that the guard needs."""

    names: Path
    """The directory of stable names."""
    leases: Path
    system: tuple[Path, ...]
    """Paths of the system; their disks are never passed."""
    own: tuple[Path, ...]
    """Paths of the lab's files; their disks are never passed."""
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A disk with the facts that it had when the scenario was read."""

    path: str
    size: int
    """In bytes."""
    serial: str
    """Empty: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A disk that is not passed, with all objections."""

    path: str
    objections: tuple[Objection, ...]

    @property
    def sentence(self) -> str:
        """The objections as one sentence."""
        said = "; ".join(f"{o.rule.value}: {o.evidence}" for o in self.objections)
        return f"the disk '{self.path}' is not passed through: {said}"


@dataclass(slots=True, kw_only=True)
class Held:
    """A claimed disk: no other process can claim it until it is released."""

    named: Named
    device: Device
    writable: bool
    descriptor: int
    _ground: Ground
    _leases: list[int] = field(default_factory=list)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The disk, and the files of its lease. A process with all of them holds the disk."""
        return (self.descriptor, *self._leases)

    def objections(self, but: Iterable[int] = ()) -> tuple[Objection, ...]:
        """Repeat all checks on the same descriptor. ``but``: processes that may have it open."""
        return _objections(self._ground, self.named, self.descriptor, but)

    def release(self) -> None:
        """Release the claim; another process that has the descriptors keeps it."""
        leases.release(self._leases)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def look(
    ground: Ground, path: str, named: Named | None = None
) -> tuple[Device | None, tuple[Objection, ...]]:
    """Return the device behind a name, and the present objections; nothing is claimed or locked.

    ``named``: the disk's earlier facts. ``None``: there is no block device, or it cannot be opened
    for reading.
    """
    if objection := _stable(ground, path):
        return None, (objection,)
    number = number_at(path)
    if number is None:
        return None, (Objection(rule=Rule.GONE, evidence="there is no such block device"),)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return _closed(path, number, error)
    try:
        found = read(descriptor)
        now = Named(path=path, size=found.size, serial=found.serial)
        return found, _objections(ground, named or now, descriptor, ())
    except OSError as error:
        return None, (Objection(rule=Rule.GONE, evidence=str(error)),)
    finally:
        os.close(descriptor)


def take(ground: Ground, named: Named, erase: Sequence[str] = ()) -> Held | Refusal:
    """Claim a disk, or refuse it. ``erase``: serials of disks that may be written to.

    Any other disk is opened for reading only, so no process with the descriptor can write to it.
    """
    if objection := _stable(ground, named.path):
        return Refusal(path=named.path, objections=(objection,))
    writable = bool(named.serial) and named.serial in erase
    access = os.O_RDWR if writable else os.O_RDONLY
    try:
        descriptor = os.open(named.path, access | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        return _refused(ground, named, error)
    lease: list[int] = []
    try:
        found = _objections(ground, named, descriptor, ()) or _locked(descriptor)
        if not found:
            device = read(descriptor)
            taken = _leased(ground, device)
            if isinstance(taken, list):
                lease = taken
                held_ = Held(
                    named=named,
                    device=device,
                    writable=writable,
                    descriptor=descriptor,
                    _ground=ground,
                    _leases=lease,
                )
                # The lock is held: udev and other processes have finished earlier work.
                found = held_.objections()
                if not found:
                    return held_
            else:
                found = (taken,)
    except OSError as error:
        found = (Objection(rule=Rule.GONE, evidence=str(error)),)
    except BaseException:
        leases.release(lease)
        os.close(descriptor)
        raise
    leases.release(lease)
    os.close(descriptor)
    return Refusal(path=named.path, objections=found)


def _stable(ground: Ground, path: str) -> Objection | None:
    """An objection unless the name is in the directory whose names stay with a disk."""
    given = Path(path)
    if given.parent == ground.names and given.name not in ("", ".", ".."):
        return None
    evidence = f"only names in {ground.names} stay with a disk, and '{path}' is not one"
    return Objection(rule=Rule.UNSTABLE, evidence=evidence)


def _closed(
    path: str, number: Number, error: OSError
) -> tuple[Device | None, tuple[Objection, ...]]:
    """Return the facts in ``/sys`` of a device that this user may not open, and the objection."""
    evidence = f"{path} cannot be opened: {error.strerror}"
    try:
        return listed(number), (Objection(rule=Rule.FORBIDDEN, evidence=evidence),)
    except OSError:
        return None, (Objection(rule=Rule.GONE, evidence=evidence),)


def _refused(ground: Ground, named: Named, error: OSError) -> Refusal:
    """Return why it could not be claimed: the objections, and the kernel's error."""
    _, found = look(ground, named.path, named)
    rule = {
        errno.EBUSY: Rule.OPEN,
        errno.EROFS: Rule.READ_ONLY,
        errno.ENOENT: Rule.GONE,
        errno.ENXIO: Rule.GONE,
        errno.ENODEV: Rule.GONE,
        errno.ENOMEDIUM: Rule.GONE,
    }.get(error.errno or 0, Rule.FORBIDDEN)
    if rule is Rule.OPEN:
        evidence = "another program or driver has claimed it (O_EXCL: EBUSY)"
    else:
        evidence = f"{named.path} cannot be opened: {error.strerror}"
    return Refusal(path=named.path, objections=(*found, Objection(rule=rule, evidence=evidence)))


def _objections(
    ground: Ground, named: Named, descriptor: int, but: Iterable[int]
) -> tuple[Objection, ...]:
    """Return all objections to an open device. Signatures come last: they can change any time."""
    try:
        device = read(descriptor)
    except OSError as error:
        return (Objection(rule=Rule.NO_DISK, evidence=str(error)),)
    number = device.number
    found: list[Objection] = []
    if kind := assembled(number):
        evidence = f"/dev/{device.name} is a device of {kind}: name the disks below it"
        found.append(Objection(rule=Rule.NO_DISK, evidence=evidence))
    if not device.size:
        found.append(Objection(rule=Rule.NO_DISK, evidence="its size is 0"))
    found += _changed(named, device)
    if device.read_only:
        evidence = f"the kernel has /dev/{device.name} as read-only"
        found.append(Objection(rule=Rule.READ_ONLY, evidence=evidence))
    for rule, paths in ((Rule.SYSTEM, ground.system), (Rule.LAB, ground.own)):
        for path in paths:
            if way := beneath(path).get(device.whole):
                found.append(Objection(rule=rule, evidence=way))
                break
    found += mounted(number)
    found += swap(number)
    found += held(number)
    found += opened(number, but, (descriptor,))
    found += signatures(f"/proc/{os.getpid()}/fd/{descriptor}", number, ground.run)
    return tuple(found)


def _changed(named: Named, device: Device) -> Iterable[Objection]:
    """Return objections if the disk differs from the named one, or the name leads elsewhere."""
    for what, before, now in (
        ("its size", named.size, device.size),
        ("its serial", named.serial, device.serial),
    ):
        if before != now:
            yield Objection(rule=Rule.CHANGED, evidence=f"{what} was {before!r} and is {now!r}")
    leads = number_at(named.path)
    if leads != device.number:
        to = f"/dev/{name_of(leads)}" if leads else "nothing"
        evidence = f"the name led to /dev/{device.name} and leads to {to}"
        yield Objection(rule=Rule.CHANGED, evidence=evidence)


def _leased(ground: Ground, device: Device) -> list[int] | Objection:
    """Return the disk's lease, or the objection if another process has it."""
    try:
        return leases.take(ground.leases, device)
    except OSError as error:
        return Objection(rule=Rule.LEASED, evidence=f"the lease cannot be taken: {error}")


def _locked(descriptor: int) -> tuple[Objection, ...]:
    """Lock the device file, as udev does while it examines a disk."""
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - began > _UDEV:
                evidence = "another process has locked it (flock)"
                return (Objection(rule=Rule.LEASED, evidence=evidence),)
            time.sleep(_GLANCE)
        else:
            return ()
