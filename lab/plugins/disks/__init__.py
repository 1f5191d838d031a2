"""Disk models: how a virtual disk's speed comes about. One file each; its name is its name.

How to add one
--------------
1. Write ``lab/plugins/disks/NAME.py``. Scenarios then say ``disks.model: NAME``; nothing is
   registered.
2. Give it a class that has what ``lab.model.plugin.DiskModel`` demands, and end the file with
   ``DISK: DiskModel = YourClass()``, so that mypy checks it there:

   * ``problems(disk)`` yields a ``Problem`` for every field that QEMU or libvirt would refuse.
     Begin with ``yield from drive_problems(disk)``: serial, cache, aio and format are the same
     for all models. Keys are relative to the disk: ``throttle.total_bytes_per_second``.
   * ``create(disk, path)`` returns the steps that make the disk's file, with what they
     create, so that it is removed again. ``create_file`` is the usual answer; ``serve`` adds a
     server for it, which ``network_element`` has the guest connect to.
   * ``xml(disk, serial=…, path=…, index=…)`` returns libvirt's ``<disk>``. ``drive_element``
     makes all of it but the model's own part; ``as_text`` prints it.
   * ``probes(disk)`` returns what a bare disk is measured by before it is believed,
     ``drive(disk)`` the drive that it models, if it does, and ``costless(disk)`` then the same
     disk with a drive that takes no time, by which the guest's own time is measured.
   * ``rotational(disk)`` and ``report(disk, path)`` where the model has something to say there.

3. Nothing in the file may touch the world; it returns data.
4. Add the model to ``tests/unit/test_throttle.py``'s test that libvirt's own parser accepts it.

A variant of a model (a speed, a burst) is a value in a scenario, never a new file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final
from xml.etree import ElementTree as ET

from lab.core.units import GIB, MIB
from lab.model.execution.procedure import AskServer, BuildPlugin, HostCommand, StartServer, Step
from lab.model.plugin import Probe, Problem
from lab.model.scenario.document import (
    SERVED,
    Aio,
    CacheMode,
    Disk,
    DiskBus,
    DiskFormat,
    Throttle,
    Workload,
)
from lab.model.scenario.drive import HddParameters, SsdParameters

SERIAL_BYTES: Final = 20
"""virtio-blk's ``VIRTIO_BLK_ID_BYTES``; QEMU's scsi-hd cuts its device id at the same length."""
LARGEST_INDEX: Final = 93
"""Three PCI bridges of 31 slots each."""

_SERIAL: Final = re.compile(r"[A-Za-z0-9_-]+")
_DIRECT: Final = (CacheMode.NONE, CacheMode.DIRECTSYNC)
_SLOTS: Final = 31


def guest_path(disk: Disk, serial: str) -> str:
    """Where udev's ``60-persistent-storage.rules`` put the disk in the guest."""
    if disk.bus is DiskBus.LAB:  # drive/60-lab-disk.rules
        return f"/dev/disk/by-id/lab-{serial}"
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
    for name, given in (
        ("hdd", disk.hdd != HddParameters()),
        ("ssd", disk.ssd != SsdParameters()),
        ("preset", disk.preset is not None),
    ):
        if given and disk.model != name and not (name == "preset" and disk.model in SERVED):
            wanted = name if name in SERVED else " or ".join(SERVED)
            yield Problem(
                key=name,
                message=f"the disk model {disk.model!r} does not look at it: remove it, or set "
                f"model to {wanted}",
            )


def group_problems(disks: Sequence[Disk]) -> Iterable[tuple[int, Problem]]:
    """Disks that share buckets and differ in their limits, by their place in the list.

    QEMU would hold all of them to those of the last one that was plugged in:
    ``block/throttle-groups.c: throttle_group_config`` writes into the group that all share.
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
                    f"the group {limits.group!r}: QEMU would hold all of the group to one of "
                    "them, so give both the same limits, or groups of their own"
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
    """An empty disk at ``path``, sparse: zeros that take no space. A real one is there already."""
    if disk.device is not None:
        return ()
    options = ("-o", "lazy_refcounts=on") if disk.lazy_refcounts else ()
    return (
        HostCommand(
            label=f"create {path.rpartition('/')[2]}",
            argv=("qemu-img", "create", "-q", "-f", disk.format, *options, path, str(disk.size)),
            creates=(path,),
        ),
    )


PROBE_REQUESTS: Final = 275
"""Random requests of a measurement, if the drive alone took its time. One strays from the mean by a
third of it (rotation is uniform, 0.29 of a revolution; seeks of random places), so that the mean of
these strays by 2 %: three times that is within the 8 % that are allowed, and leaves 2 % for theory.
"""
STREAM_SECONDS: Final = 3
"""Of a stream, whose requests are alike; and the least of any other probe of a drive."""
STREAM_REQUESTS: Final = 40
"""The least of a stream, however slow: one more or less at its end is then 2.5 %."""
WARM_SECONDS: Final = 1
"""Before each measurement: fio begins, and an emulated guest translates its code."""
GUEST_SECONDS: Final = 1
"""Of each measurement of the guest's own time: some hundred requests, alike."""
PACE: Final = 0.010
"""Seconds that a paced disk takes for each command, as a hard disk does: a guest that rests as long
takes some 1.8 ms to go on, and one that does not 0.4 (emulated; three drives agreed)."""
PACED_SECONDS: Final = 3
"""Of each measurement with such a disk."""
COSTLESS_SIZE: Final = GIB
"""Of the disk that takes no time, whatever the size of those that are held against it."""
STREAM_SPAN: Final = 16 * MIB
"""The least that a stream goes over: more than a drive has in its memory when it begins again."""
BOUNDLESS: Final = 10**15
"""Bytes per second of something that takes no time: a microsecond for all of such a disk."""


def _fio(name: str, seconds: int, options: dict[str, str | int]) -> Workload:
    every = {"filename": "{target}", "ioengine": "libaio", "direct": 1, "time_based": 1}
    times = {"runtime": seconds, "ramp_time": WARM_SECONDS}
    return Workload(name=name, tool="fio", parameters={**every, **times, **options})


_READ: Final[dict[str, str | int]] = {"rw": "randread", "bs": 4096}
_STREAM: Final[dict[str, str | int]] = {"rw": "read", "bs": MIB}
_FLUSHED: Final[dict[str, str | int]] = {"rw": "randwrite", "bs": 4096, "fsync": 1}


_ONE_PLACE: Final[dict[str, str | int]] = {**_FLUSHED, "size": 4096, "norandommap": 1}


def drive_probes(access: float, *, rate: float, span: int | None, turns: bool) -> tuple[Probe, ...]:
    """What a modelled drive is held against: the figures of ``lab.md.theory.drive``.

    ``access``: mean seconds of its random requests, and ``rate``: bytes per second at its
    beginning, which decide how long to measure. ``span``:
    bytes at its beginning that its stream goes over, again and again; ``None``: all.
    ``turns``: it has a speed of rotation, which one place written again and again shows without
    chance, and without the guest: its time passes while the platter comes round.

    A flush has 12 %: it is not known how much of the guest's time lies between write and flush,
    where it passes beside the arm's way.
    """
    rotation = ("revolutions", "revolutions", "iops", 0.08, STREAM_SECONDS, _ONE_PLACE)
    seconds = max(STREAM_SECONDS, math.ceil(PROBE_REQUESTS * access))
    within = {"size": span // MIB * MIB} if span else {}
    stream = max(STREAM_SECONDS, math.ceil(STREAM_REQUESTS * MIB / rate))
    found = (
        ("random_read_1", "random_read_1", "iops", 0.08, seconds, _READ),
        ("random_read_16", "random_read_16", "iops", 0.08, seconds, {**_READ, "iodepth": 16}),
        (
            *("sequential", "sequential_outer", "throughput", 0.08, stream),
            {**_STREAM, "iodepth": 2, **within},
        ),
        ("flush", "flush", "iops", 0.12, seconds, _FLUSHED),
        *([rotation] if turns else []),
    )
    return tuple(
        Probe(
            workload=_fio(name, long, options),
            metric=metric,
            figure=figure,
            guest="flush" if options.get("fsync") else name,
            per_second=figure == "flush",
            tolerance=allowed,
        )
        for name, figure, metric, allowed, long, options in found
    )


def paced_probes() -> tuple[Probe, ...]:
    """Those of the guest's times for which it rests in between, on a disk that takes ``PACE``."""
    found = (("random_read_1", _READ), ("flush", _FLUSHED))
    return tuple(
        Probe(workload=_fio(name, PACED_SECONDS, options), metric="iops") for name, options in found
    )


def guest_probes() -> tuple[Probe, ...]:
    """The same requests on a disk that takes no time: ``GuestTimes``, by its fields' names."""
    found = (
        ("random_read_1", _READ),
        ("random_read_16", {**_READ, "iodepth": 16}),
        ("sequential_1", _STREAM),
        ("sequential", {**_STREAM, "iodepth": 2}),
        ("flush", _FLUSHED),
    )
    return tuple(
        Probe(workload=_fio(name, GUEST_SECONDS, options), metric="iops") for name, options in found
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
    element = ET.Element("disk", type="block" if disk.device else "file", device="disk")
    driver = ET.SubElement(element, "driver", name="qemu", type=disk.format)
    driver.set("cache", disk.cache)
    driver.set("io", disk.aio)
    if virtio:
        # One queue, so that the guest's scheduler is the one that the scenario names.
        driver.set("queues", "1")
    ET.SubElement(element, "source", {"dev": disk.device} if disk.device else {"file": path})
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


# --- disks that a server of the lab's own stands behind -------------------------------------------

PLUGIN: Final = "drive/nbdkit_disk.c"
"""Source of the disk server, beside the package ``lab``; it documents its parameters."""
SERVER_THREADS: Final = 64
"""Requests that nbdkit works on at once; QEMU has 16 on the way at most, ``block/nbd.c``:
``MAX_NBD_REQUESTS``, on its one connection."""


def socket_path(path: str) -> str:
    """Where the server of the disk with that file takes connections."""
    return f"{PurePosixPath(path).with_suffix('.nbd')}"


def control_path(path: str) -> str:
    """Where that server takes commands: ``stats``, and the faults."""
    return f"{PurePosixPath(path).with_suffix('.control')}"


def served_problems(disk: Disk) -> Iterable[Problem]:
    """What cannot be said of a disk that the lab's own server stands behind."""
    yield from drive_problems(disk)
    if disk.format is not DiskFormat.RAW:
        yield Problem(
            key="format",
            message=f"the server of the model {disk.model!r} keeps a raw file: remove the format",
        )
    if disk.cache is CacheMode.UNSAFE:
        yield Problem(
            key="cache",
            message=f"unsafe drops the guest's flushes, and with the model {disk.model!r} they "
            "cost time and save data: remove it, or set it to writeback",
        )
    if disk.aio is not Aio.THREADS:
        yield Problem(
            key="aio", message=f"requests go over a socket, and {disk.aio} is for files: remove it"
        )
    for name, value in disk.throttle:
        if value is not None:
            yield Problem(
                key=f"throttle.{name}",
                message=f"the disk model {disk.model!r} has its own speed: remove the throttle, or "
                "set model to throttle",
            )


def serve(disk: Disk, path: str, parameters: dict[str, str | int | float]) -> tuple[Step, ...]:
    """The disk's file, and a server for it; ``parameters`` are the plug-in's."""
    stem = str(PurePosixPath(path).with_suffix(""))
    name = PurePosixPath(path).stem
    words = tuple(f"{key}={value!r}" for key, value in parameters.items() if key != "model")
    return (
        *create_file(disk, path),
        BuildPlugin(
            source=PLUGIN,
            link=f"{stem}.so",
            flags=("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"),
            libraries=("-lpthread", "-lm"),
        ),
        StartServer(
            label=f"serve {name}",
            argv=(
                *("nbdkit", "--foreground", "--log=stderr", "--newstyle"),
                *("--threads", str(SERVER_THREADS), "--unix", socket_path(path), f"{stem}.so"),
                *(f"model={parameters['model']}", f"file={path}"),
                *(f"control={control_path(path)}", *words),
            ),
            socket=socket_path(path),
            log=f"{stem}.log",
        ),
    )


def network_element(disk: Disk, *, serial: str, path: str, index: int) -> ET.Element:
    """``<disk>`` that reaches its server over a unix socket, and hands flushes on."""
    element = drive_element(disk, serial=serial, path=path, index=index)
    element.set("type", "network")
    driver, source = element.find("driver"), element.find("source")
    assert driver is not None
    assert source is not None
    driver.attrib.pop("io")  # for files
    source.attrib = {"protocol": "nbd"}
    ET.SubElement(source, "host", transport="unix", socket=socket_path(path))
    return element


def ask_statistics(path: str) -> tuple[Step, ...]:
    """What the server has counted, its late completions among it, as JSON."""
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
    """The element, indented, with a newline at its end; the same text every time."""
    ET.indent(element)
    return ET.tostring(element, encoding="unicode") + "\n"
