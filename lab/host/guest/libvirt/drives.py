"""The disks of a running guest, as libvirt and QEMU see them: counters, limits, data.

Only ``lab.host.guest.libvirt.hypervisor`` handles libvirt's objects and exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree as ET

from lab.core.errors import GuestError, HostError

WIPE_BYTES: Final = 1024**3
"""Bytes zeroed by one request."""


def load() -> Any:
    """The module ``libvirt``; ``HostError`` if it is not installed for this Python."""
    try:
        import libvirt
    except ImportError as error:
        raise HostError(
            "the Python binding of libvirt is not installed",
            hint="install it: `make setup` in a checkout, else `pip install 'raid-lab[guests]'`;"
            " `lab doctor` shows what else is missing",
        ) from error
    return libvirt


def words(error: object) -> str:
    """Return a message of libvirt or QEMU on one line."""
    return str(error).strip().replace("\n", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCounters:
    """Completed requests of a disk since it was plugged in, and their bytes, as QEMU counts
    them."""

    reads: int
    writes: int
    flushes: int
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDisk:
    """A disk by libvirt's names."""

    name: str
    bus: str
    alias: str
    group: str = ""
    """Its throttle group; empty: the disk has its own limits."""
    path: str = ""
    """Its file; empty: a disk server has it."""
    format: str = ""

    @property
    def device(self) -> str:
        """Its name for ``qemu-io -d``."""
        if self.bus == "virtio":
            return f"/machine/peripheral/{self.alias}/virtio-backend"
        return self.alias


def drives(domain: Any) -> dict[str, GuestDisk]:
    """Return the guest's disks that have a serial, by serial."""
    found = {}
    for disk in ET.fromstring(domain.XMLDesc(0)).iter("disk"):
        serial, target = disk.findtext("serial"), disk.find("target")
        if serial and target is not None:
            found[serial] = GuestDisk(
                name=target.get("dev", ""),
                bus=target.get("bus", ""),
                alias=_attribute(disk, "alias", "name"),
                group=disk.findtext("iotune/group_name") or "",
                path=_attribute(disk, "source", "file"),
                format=_attribute(disk, "driver", "type"),
            )
    return found


def _attribute(disk: ET.Element, child: str, name: str) -> str:
    found = disk.find(child)
    return "" if found is None else found.get(name, "")


def one(domain: Any, serial: str) -> GuestDisk:
    """Return the guest's disk with that serial; ``GuestError``: it has none."""
    drive = drives(domain).get(serial)
    if drive is None:
        raise GuestError(f"the guest has no disk with the serial '{serial}'")
    return drive


def wipe(domain: Any, serial: str, size: int) -> None:
    """Zero a disk of ``size`` bytes through QEMU, without its limits.

    QEMU accepts requests below 2 GiB (``BDRV_REQUEST_MAX_BYTES``). It prints I/O errors to its log
    and not to the monitor, so the caller checks the file afterwards.
    """
    zeros = [
        f"write -q -z -u {start} {min(WIPE_BYTES, size - start)}"
        for start in range(0, size, WIPE_BYTES)
    ]
    _write(domain, serial, zeros, "wiped")


def spoil(domain: Any, serial: str, offset: int, length: int, pattern: int) -> None:
    """Fill a range with one byte through QEMU, without the guest's knowledge or the limits.

    The caller checks the file afterwards, as after :func:`wipe`.
    """
    _write(domain, serial, [f"write -q -P {pattern} {offset} {length}"], "written to")


def _write(domain: Any, serial: str, commands: list[str], done: str) -> None:
    """Run ``qemu-io`` commands and then a flush, without the disk's limits.

    They use the guest's own device (``qemu-io -d``), because only one writer may open the file.
    """
    import libvirt_qemu

    libvirt = load()
    drive = one(domain, serial)
    before = limits(domain, serial)
    limited = any(value for value in before.values() if type(value) is int)
    try:
        if limited:
            _set(domain, drive, {})
        # The flush writes qcow2's tables out of QEMU's cache (``qcow2_co_flush_to_os``).
        for command in (*commands, "flush"):
            said = domain.monitor(
                f'qemu-io -d {drive.device} "{command}"',
                libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP,
            )
            if said.strip():
                raise GuestError(f"the disk '{serial}' could not be {done}: {words(said)}")
    except libvirt.libvirtError as error:
        raise GuestError(f"the disk '{serial}' could not be {done}: {words(error)}") from error
    finally:
        if limited:
            _restore(domain, serial, drive, before)


def _set(domain: Any, drive: GuestDisk, wanted: Mapping[str, int | str]) -> None:
    """Set exactly these limits, in one call.

    libvirt keeps a limit that is not named. A disk without any limit leaves its group
    (``blockdev.c: qmp_block_set_io_throttle``), so the group is named with each limit.
    """
    live = load().VIR_DOMAIN_AFFECT_LIVE
    now = domain.blockIoTune(drive.name, live)
    none = dict.fromkeys((name for name, value in now.items() if type(value) is int), 0)
    group = {"group_name": drive.group} if drive.group and wanted else {}
    domain.setBlockIoTune(drive.name, {**none, **wanted, **group}, live)


def _restore(domain: Any, serial: str, drive: GuestDisk, before: Mapping[str, int]) -> None:
    """Set the limits that a disk had; ``GuestError``: it has others now."""
    try:
        _set(domain, drive, {k: v for k, v in before.items() if type(v) is int and v})
    except load().libvirtError as error:
        raise GuestError(
            f"the disk '{serial}' has lost its limits: {words(error)}", hint="start a new guest"
        ) from error


def limits(domain: Any, serial: str) -> dict[str, int]:
    """Return QEMU's throttle of the disk with that serial, by the names of ``<iotune>``."""
    libvirt = load()
    drive = one(domain, serial)
    try:
        found: dict[str, int] = domain.blockIoTune(drive.name, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        raise GuestError(f"QEMU does not answer: {words(error)}") from error
    return found


def limit(domain: Any, serial: str, wanted: Mapping[str, int]) -> None:
    """Set exactly these limits, by the names of ``<iotune>``; after an error the disk has those
    that it had."""
    libvirt = load()
    drive = one(domain, serial)
    before = limits(domain, serial)
    try:
        _set(domain, drive, wanted)
    except libvirt.libvirtError as error:
        _restore(domain, serial, drive, before)
        raise GuestError(
            f"setting the limits of the disk '{serial}' failed: {words(error)}"
        ) from error


def completed(connection: Any, domain: Any) -> dict[str, DiskCounters]:
    """Return the completed requests of each data disk, by serial."""
    libvirt = load()
    try:
        serials = {drive.name: serial for serial, drive in drives(domain).items()}
        told = connection.domainListGetStats([domain.raw], libvirt.VIR_DOMAIN_STATS_BLOCK)[0][1]
    except libvirt.libvirtError as error:
        raise GuestError(f"QEMU does not answer: {words(error)}") from error
    found = {}
    for number in range(told.get("block.count", 0)):
        serial = serials.get(told[f"block.{number}.name"])
        if serial:
            reads, writes, flushes = (
                told.get(f"block.{number}.{kind}.reqs", 0) for kind in ("rd", "wr", "fl")
            )
            found[serial] = DiskCounters(
                reads=reads,
                writes=writes,
                flushes=flushes,
                read_bytes=told.get(f"block.{number}.rd.bytes", 0),
                written_bytes=told.get(f"block.{number}.wr.bytes", 0),
            )
    return found
