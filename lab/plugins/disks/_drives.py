"""Code for several disk models: common checks, libvirt's ``<disk>``, the disk server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Final
from xml.etree import ElementTree as ET

from lab.core import qemu_img
from lab.model.execution.procedure import AskServer, BuildPlugin, HostCommand, StartServer, Step
from lab.model.plugin import Problem
from lab.model.scenario.document import (
    SERVED,
    Aio,
    CacheMode,
    Disk,
    DiskBus,
    DiskFormat,
    Sectors,
    Throttle,
)
from lab.model.scenario.drive import (
    HardDrive,
    HddParameters,
    SolidStateDrive,
    SsdParameters,
    integers,
)

SERIAL_BYTES: Final = 20
"""virtio-blk's ``VIRTIO_BLK_ID_BYTES``; QEMU's scsi-hd has the same limit."""
LARGEST_INDEX: Final = 93
"""Three PCI bridges of 31 slots each."""

_SERIAL: Final = re.compile(r"[A-Za-z0-9_-]+")
_DIRECT: Final = (CacheMode.NONE, CacheMode.DIRECTSYNC)
_SLOTS: Final = 31


def guest_path(disk: Disk, serial: str) -> str:
    """Return the disk's path in the guest, from udev's ``60-persistent-storage.rules``."""
    if disk.bus is DiskBus.LAB:  # drive/60-lab-disk.rules
        return f"/dev/disk/by-id/lab-{serial}"
    if disk.bus is DiskBus.SCSI:
        return f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}"
    return f"/dev/disk/by-id/virtio-{serial}"


def no_preset(model: str, preset: str, presets: Mapping[str, object]) -> Problem:
    """Return the problem of a preset that a disk model does not have."""
    near = get_close_matches(preset, presets, n=1)
    guess = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(presets)}"
    return Problem(key="preset", message=f"there is no {model} {preset!r}: {guess}")


def drive_problems(disk: Disk) -> Iterable[Problem]:
    """Yield problems of the fields that all models share."""
    yield from _serial_problems(disk)
    if disk.aio is Aio.NATIVE and disk.cache not in _DIRECT:
        yield Problem(
            key="aio",
            message=f"native needs cache none or directsync, found {disk.cache}: set cache to one "
            "of them, or aio to threads or io_uring",
        )
    if disk.lazy_refcounts and disk.format is not DiskFormat.QCOW2:
        yield Problem(
            key="lazy_refcounts",
            message=f"only qcow2 has reference counts, and format is {disk.format}: set format to "
            "qcow2, or lazy_refcounts to false",
        )
    if disk.device is not None and disk.sectors is not Sectors.NATIVE_512:
        yield Problem(key="sectors", message="a real disk has block sizes of its own: remove it")
    for name, given in (
        ("hdd", disk.hdd != HddParameters()),
        ("ssd", disk.ssd != SsdParameters()),
        ("preset", disk.preset is not None),
    ):
        if given and disk.model != name and not (name == "preset" and disk.model in SERVED):
            wanted = name if name in SERVED else " or ".join(SERVED)
            yield Problem(
                key=name,
                message=f"the disk model {disk.model!r} does not use it: remove it, or set model "
                f"to {wanted}",
            )


def group_problems(disks: Sequence[Disk]) -> Iterable[tuple[int, Problem]]:
    """Yield disks of one throttle group with different limits; each with its position in the list.

    QEMU would apply the limits of the disk that was plugged in last: ``block/throttle-groups.c:
    throttle_group_config`` writes into the shared group.
    """
    first: dict[str, tuple[int, Throttle]] = {}
    for index, disk in enumerate(disks):
        limits = disk.throttle
        if limits.group is None or not disk.count:
            continue
        number, others = first.setdefault(limits.group, (index, limits))
        for name, value in limits:
            other = getattr(others, name)
            if value != other:
                message = (
                    f"{_limit(value)} here and {_limit(other)} in disks[{number}], which shares "
                    f"the group {limits.group!r}: QEMU has one set of limits per group, so give "
                    "both the same limits, or separate groups"
                )
                yield index, Problem(key=f"throttle.{name}", message=message)
                break


def _limit(value: int | None) -> str:
    return "there is no limit" if value is None else str(value)


def _serial_problems(disk: Disk) -> Iterable[Problem]:
    longest = disk.serial.replace("{index}", str(LARGEST_INDEX))
    if not _SERIAL.fullmatch(longest):
        yield Problem(
            key="serial",
            message=f"{disk.serial!r} has characters that udev would replace: use letters, digits, "
            "'_' and '-', and {index} for the disk's number",
        )
    elif len(longest) > SERIAL_BYTES:
        yield Problem(
            key="serial",
            message=f"{disk.serial!r} becomes {longest}, {len(longest)} bytes, and QEMU allows "
            f"{SERIAL_BYTES}: shorten it",
        )
    if disk.count > 1 and "{index}" not in disk.serial:
        yield Problem(
            key="serial",
            message=f"{disk.count} disks would have the same serial {disk.serial!r}: put {{index}} "
            "into it",
        )


def create_file(disk: Disk, path: str) -> tuple[HostCommand, ...]:
    """Create an empty, sparse disk at ``path``. A real disk exists already."""
    if disk.device is not None:
        return ()
    options = ("-o", "lazy_refcounts=on") if disk.lazy_refcounts else ()
    return (
        HostCommand(
            label=f"create {path.rpartition('/')[2]}",
            argv=qemu_img.create(disk.format, path, disk.size, options),
            creates=(path,),
        ),
    )


def target_name(prefix: str, index: int) -> str:
    """Return libvirt's label of the ``index``-th disk, from 1: ``vda`` … ``vdz``, ``vdaa`` …

    It is not the disk's name in the guest.
    """
    letters = ""
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return prefix + letters


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOption:
    """A field of ``Disk`` that libvirt's ``<driver>`` and QEMU's block nodes accept unchanged."""

    libvirt: str
    qemu: str
    nodes: tuple[str, ...] = ("file", "raw")
    """QEMU's nodes of a real disk that accept it: the device's, and the format's above it."""


DRIVER_OPTIONS: Final[Mapping[str, DriverOption]] = {
    "aio": DriverOption(libvirt="io", qemu="aio", nodes=("file",)),
}
"""Options by field of ``Disk``. Real disks get the same options, without libvirt."""


def drive_element(disk: Disk, *, serial: str, path: str, index: int) -> ET.Element:
    """Return the part of ``<disk>`` that all models share; a model's own part goes between serial
    and address.

    The address is set here, because libvirt would fill a bus whose last slots the lab's network
    card needs: 31 disks on each of the domain's PCI bridges 1 to 3, or one SCSI target each.
    """
    virtio = disk.bus is DiskBus.VIRTIO
    element = ET.Element("disk", type="block" if disk.device else "file", device="disk")
    driver = ET.SubElement(element, "driver", name="qemu", type=disk.format)
    driver.set("cache", disk.cache)
    for field, option in DRIVER_OPTIONS.items():
        if (value := getattr(disk, field)) is not None:
            driver.set(option.libvirt, str(value))
    if virtio:
        # One queue, so that only the scenario's scheduler orders requests.
        driver.set("queues", "1")
    ET.SubElement(element, "source", {"dev": disk.device} if disk.device else {"file": path})
    # The guest's own two disks, root and seed, are vda and vdb.
    name = target_name("vd", index + 2) if virtio else target_name("sd", index)
    ET.SubElement(element, "target", dev=name, bus=disk.bus)
    if disk.sectors is not Sectors.NATIVE_512:
        ET.SubElement(
            element,
            "blockio",
            logical_block_size=str(disk.sectors.logical),
            physical_block_size=str(disk.sectors.physical),
        )
    ET.SubElement(element, "serial").text = serial
    if virtio:
        bridge, slot = divmod(index - 1, _SLOTS)
        place = {"type": "pci", "domain": "0x0000", "bus": f"0x{bridge + 1:02x}"}
        place |= {"slot": f"0x{slot + 1:02x}", "function": "0x0"}
    else:
        place = {"type": "drive", "controller": "0", "bus": "0", "target": str(index - 1)}
        place["unit"] = "0"
    ET.SubElement(element, "address", place)
    return element


# --- disks with a disk server ---------------------------------------------------------------------

PLUGIN: Final = "drive/nbdkit_disk.c"
"""Source of the disk server, next to the package ``lab``; it documents its parameters."""
SERVER_THREADS: Final = 64
"""Most requests that nbdkit handles at once. QEMU has at most 16 in flight on its one connection,
``block/nbd.c``: ``MAX_NBD_REQUESTS``."""


def socket_path(path: str) -> str:
    """Return the socket on which the disk's server accepts NBD connections."""
    return f"{PurePosixPath(path).with_suffix('.nbd')}"


def control_path(path: str) -> str:
    """Return the socket on which the disk's server accepts commands: ``stats``, and faults."""
    return f"{PurePosixPath(path).with_suffix('.control')}"


def stretched(disk: Disk) -> float | None:
    """Return the time scale of a drive in a stored run of an earlier version; ``None``: it has
    none.

    No drive with a time scale is known, so nothing is predicted for it.
    """
    slower: float | None = getattr(disk, disk.model).slower
    return None if slower == 1 else slower


def served_problems(disk: Disk) -> Iterable[Problem]:
    """Yield problems of a disk with a disk server."""
    yield from drive_problems(disk)
    if factor := stretched(disk):
        yield Problem(
            key=f"{disk.model}.slower",
            message=f"drives have no time scale any more, and {factor:g} is given: remove it, and "
            "set guest.clock to virtual, where a drive runs at its own speed",
        )
    if disk.format is not DiskFormat.RAW:
        yield Problem(
            key="format",
            message=f"the model {disk.model!r} uses a raw file: remove the format",
        )
    if disk.cache is CacheMode.UNSAFE:
        yield Problem(
            key="cache",
            message=f"unsafe ignores flushes, which the model {disk.model!r} needs for its timing: "
            "remove it, or set it to writeback",
        )
    if disk.aio is not Aio.THREADS:
        yield Problem(
            key="aio", message=f"{disk.aio} is for files, and requests go over a socket: remove it"
        )
    for name, value in disk.throttle:
        if value is not None:
            yield Problem(
                key=f"throttle.{name}",
                message=f"the disk model {disk.model!r} has its own speed: remove the throttle, or "
                "set model to throttle",
            )


_SCENARIO_NAMES: Final = {
    "cache": "write_cache",
    "revolution": "rpm",
    **dict.fromkeys(("seek_a", "seek_b", "seek_c", "seek_e"), "full_stroke"),
}
"""Fields of ``disks.hdd`` and ``disks.ssd`` by the timing core's name, if that differs."""


def drive_limits(disk: Disk, drive: HardDrive | SolidStateDrive) -> Iterable[Problem]:
    """Yield problems of a drive whose values exceed the timing core's integers."""
    for name, message in integers(drive, "").out_of_range(disk.size):
        key = _SCENARIO_NAMES.get(name, name)
        yield Problem(key=f"{disk.model}.{key}", message=message)


def serve(disk: Disk, path: str, drive: HardDrive | SolidStateDrive) -> tuple[Step, ...]:
    """Create the disk's file and start a server for it."""
    stem = str(PurePosixPath(path).with_suffix(""))
    name = PurePosixPath(path).stem
    return (
        *create_file(disk, path),
        BuildPlugin(
            source=PLUGIN,
            link=f"{stem}.so",
            flags=("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"),
            headers=("drive/drive.h", "drive/throttle.h"),
            libraries=("-lpthread",),
        ),
        StartServer(
            label=f"serve {name}",
            argv=(
                *("nbdkit", "--foreground", "--log=stderr", "--newstyle"),
                *("--threads", str(SERVER_THREADS), "--unix", socket_path(path), f"{stem}.so"),
                *(f"file={path}", f"control={control_path(path)}"),
                *integers(drive, name).words(),
            ),
            socket=socket_path(path),
            log=f"{stem}.log",
        ),
    )


def network_element(disk: Disk, *, serial: str, path: str, index: int) -> ET.Element:
    """Return a ``<disk>`` that connects to its server over a unix socket, and passes flushes on."""
    element = drive_element(disk, serial=serial, path=path, index=index)
    element.set("type", "network")
    driver, source = element.find("driver"), element.find("source")
    assert driver is not None
    assert source is not None
    for option in DRIVER_OPTIONS.values():
        if "raw" not in option.nodes:  # only for files
            driver.attrib.pop(option.libvirt, None)
    source.attrib = {"protocol": "nbd"}
    ET.SubElement(source, "host", transport="unix", socket=socket_path(path))
    return element


def ask_statistics(path: str) -> tuple[Step, ...]:
    """Return the step that reads the server's counters, with those of late completions, as JSON."""
    name = PurePosixPath(path).stem
    return (
        AskServer(
            label=f"statistics of {name}",
            socket=control_path(path),
            line="stats",
            capture=f"{name}.server",
        ),
    )


def as_text(element: ET.Element) -> str:
    """Return the element as indented text with a newline at its end."""
    ET.indent(element)
    return ET.tostring(element, encoding="unicode") + "\n"
