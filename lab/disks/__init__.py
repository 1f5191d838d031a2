"""Disk models: how a virtual disk's speed comes about. One file each; its name is its name.

How to add one
--------------
1. Write ``lab/disks/NAME.py``. Scenarios then say ``disks.model: NAME``; nothing is registered.
2. Give it a class with the three methods of ``lab.model.plugin.DiskModel``, and end the file with
   ``DISK: DiskModel = YourClass()``, so that mypy checks it there:

   * ``problems(disk)`` yields a ``Problem`` for every field that QEMU or libvirt would refuse.
     Begin with ``yield from drive_problems(disk)``: serial, cache, aio and format are the same
     for all models. Keys are relative to the disk: ``throttle.total_bytes_per_second``.
   * ``create(disk, path)`` returns the host commands that make the disk's file, with what they
     create, so that it is removed again. ``create_file`` is the usual answer.
   * ``xml(disk, serial=…, path=…, index=…)`` returns libvirt's ``<disk>``. ``drive_element``
     makes all of it but the model's own part; ``as_text`` prints it.

3. Nothing in the file may touch the world; it returns data.
4. Add the model to ``tests/unit/test_throttle.py``'s test that libvirt's own parser accepts it.

A variant of a model (a speed, a burst) is a value in a scenario, never a new file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from xml.etree import ElementTree as ET

from lab.model.plugin import Problem
from lab.model.procedure import HostCommand
from lab.model.scenario import Aio, CacheMode, Disk, DiskBus, DiskFormat

SERIAL_BYTES: Final = 20
"""virtio-blk's ``VIRTIO_BLK_ID_BYTES``; QEMU's scsi-hd cuts its device id at the same length."""
LARGEST_INDEX: Final = 93
"""Three PCI bridges of 31 slots each."""

_SERIAL: Final = re.compile(r"[A-Za-z0-9_-]+")
_DIRECT: Final = (CacheMode.NONE, CacheMode.DIRECTSYNC)
_SLOTS: Final = 31


def guest_path(disk: Disk, serial: str) -> str:
    """Where udev's ``60-persistent-storage.rules`` put the disk in the guest."""
    if disk.bus is DiskBus.SCSI:
        return f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}"
    return f"/dev/disk/by-id/virtio-{serial}"


def drive_problems(disk: Disk) -> Iterable[Problem]:
    """What is wrong with the fields that every model shares."""
    yield from _serial_problems(disk)
    if disk.aio is Aio.NATIVE and disk.cache not in _DIRECT:
        yield Problem(
            key="aio",
            message=f"native needs the host's page cache out of the way, and cache is "
            f"{disk.cache}: set cache to none or directsync, or aio to threads or io_uring",
        )
    if disk.lazy_refcounts and disk.format is not DiskFormat.QCOW2:
        yield Problem(
            key="lazy_refcounts",
            message=f"{disk.format} has no reference counts to put off: set format to qcow2, "
            "or lazy_refcounts to false",
        )


def _serial_problems(disk: Disk) -> Iterable[Problem]:
    longest = disk.serial.replace("{index}", str(LARGEST_INDEX))
    if not _SERIAL.fullmatch(longest):
        yield Problem(
            key="serial",
            message=f"{disk.serial!r} has characters that udev rewrites or the guest cannot "
            "hold: use letters, digits, '_' and '-', and {index} for the disk's number",
        )
    elif len(longest) > SERIAL_BYTES:
        yield Problem(
            key="serial",
            message=f"{disk.serial!r} grows to {len(longest)} bytes ({longest}), and QEMU cuts "
            f"serials at {SERIAL_BYTES}: shorten it",
        )
    if disk.count > 1 and "{index}" not in disk.serial:
        yield Problem(
            key="serial",
            message=f"{disk.count} disks would all be called {disk.serial!r}, and the guest finds "
            "disks by their serials: put {index} into it",
        )


def create_file(disk: Disk, path: str) -> tuple[HostCommand, ...]:
    """An empty disk at ``path``: sparse, so that all of it reads as zeros and takes no space."""
    options = ("-o", "lazy_refcounts=on") if disk.lazy_refcounts else ()
    return (
        HostCommand(
            label=f"create {path.rpartition('/')[2]}",
            argv=("qemu-img", "create", "-q", "-f", disk.format, *options, path, str(disk.size)),
            creates=(path,),
        ),
    )


def target_name(prefix: str, index: int) -> str:
    """The label of the ``index``-th disk, from 1: ``vda`` … ``vdz``, ``vdaa`` …

    libvirt wants one for each disk. It says nothing about the name in the guest.
    """
    letters = ""
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return prefix + letters


def drive_element(disk: Disk, *, serial: str, path: str, index: int) -> ET.Element:
    """``<disk>`` without a model's own part, which goes between serial and address.

    The address is ours to choose, because libvirt would fill a bus whose last slots the lab's
    network card needs: 31 disks on each of the domain's PCI bridges 1 to 3, or one SCSI target
    each.
    """
    virtio = disk.bus is DiskBus.VIRTIO
    element = ET.Element("disk", type="file", device="disk")
    driver = ET.SubElement(element, "driver", name="qemu", type=disk.format)
    driver.set("cache", disk.cache)
    driver.set("io", disk.aio)
    if virtio:
        # One queue, so that the guest's scheduler is the one that the scenario names.
        driver.set("queues", "1")
    ET.SubElement(element, "source", file=path)
    # The guest's own two disks, root and seed, are vda and vdb.
    name = target_name("vd", index + 2) if virtio else target_name("sd", index)
    ET.SubElement(element, "target", dev=name, bus=disk.bus)
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


def as_text(element: ET.Element) -> str:
    """The element, indented, with a newline at its end; the same text every time."""
    ET.indent(element)
    return ET.tostring(element, encoding="unicode") + "\n"
