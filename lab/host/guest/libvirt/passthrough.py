"""Real disks in a running guest: passed to QEMU as open descriptors, without libvirt.

libvirt passes descriptors of files only (``formatdomain``, ``fdgroup``). So the lab sends QEMU
commands through libvirt's monitor: ``add-fd`` (``qemu-qmp-ref``) puts the guard's descriptor into a
set, and QEMU's block layer duplicates it when it opens ``/dev/fdset/N`` (``monitor/fds.c:
monitor_fdset_dup_fd_add``). libvirt does not know such a disk.

Only ``lab.host.guest.libvirt.hypervisor`` handles libvirt's objects and exceptions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

from lab.core.errors import GuestError, HostError
from lab.host.guest.libvirt.drives import DiskCounters, load, words
from lab.host.system import clock
from lab.plugins.disks._drives import DRIVER_OPTIONS

_FIRST_SET: Final = 4096
"""Number of the first set; libvirt counts its own from 0."""
_CACHE: Final = {
    "none": (True, True),
    "writeback": (False, True),
    "writethrough": (False, False),
    "directsync": (True, False),
}
"""Whether the host's page cache is bypassed, and whether the guest sees a write cache:
``qemu-system(1)`` under ``cache=``."""
_LIMITS: Final = {"bytes_sec": "bps", "iops_sec": "iops"}
_DIRECTIONS: Final = {"total": "", "read": "_rd", "write": "_wr"}


def _limit_names() -> dict[str, str]:
    """libvirt's names of limits to those of ``block_set_io_throttle``."""
    names = {"size_iops_sec": "iops_size", "group_name": "group"}
    for unit, short in _LIMITS.items():
        for direction, suffix in _DIRECTIONS.items():
            for length in ("", "_max", "_max_length"):
                names[f"{direction}_{unit}{length}"] = f"{short}{suffix}{length}"
    return names


LIMITS: Final = _limit_names()


def plug(
    domain: Any,
    xml: str,
    descriptors: Sequence[int],
    *,
    writable: bool,
    last_look: Callable[[], None],
) -> None:
    """Give the guest a disk that is open here: the first descriptor is the disk, the others its
    lease.

    ``last_look`` is called when QEMU has the disk and the guest does not see it yet. If it raises,
    QEMU releases the disk.
    """
    disk = ET.fromstring(xml)
    name, number = _names(disk)
    node = _node(disk, name, number, writable=writable)
    try:
        for descriptor in descriptors:
            _ask(domain, "add-fd", {"fdset-id": number}, [descriptor])
        _ask(domain, "blockdev-add", node)
        last_look()
        _ask(domain, "device_add", _device(disk, name))
        if limits := _limits(disk):
            _ask(domain, "block_set_io_throttle", {"id": _backend(disk, name), **limits})
    except BaseException:
        with contextlib.suppress(GuestError):
            unplug(domain, xml)
        raise


def unplug(domain: Any, xml: str) -> None:
    """Remove it from the guest and from QEMU, if it is there."""
    name, number = _names(ET.fromstring(xml))
    if _there(domain, name):
        _ask(domain, "device_del", {"id": name})
        clock.wait_until(
            lambda: None if _there(domain, name) else True,
            timeout=20,
            reason=f"the guest to release the disk '{name}'",
        )
    nodes = [n["node-name"] for n in _ask(domain, "query-named-block-nodes", {"flat": True})]
    if name in nodes:
        _ask(domain, "blockdev-del", {"node-name": name})
    if any(s["fdset-id"] == number for s in _ask(domain, "query-fdsets")):
        _ask(domain, "remove-fd", {"fdset-id": number})


def serials(domain: Any) -> dict[str, str]:
    """Return QEMU's name of each real disk, by serial."""
    found = _ask(domain, "qom-list", {"path": "/machine/peripheral"})
    names = (entry["name"] for entry in found)
    return {name.removeprefix(_PREFIX): name for name in names if name.startswith(_PREFIX)}


def limits(domain: Any, serial: str) -> dict[str, int]:
    """Return QEMU's throttle of a real disk, by libvirt's names."""
    for entry in _ask(domain, "query-block"):
        if _is(entry, f"{_PREFIX}{serial}"):
            inserted = entry["inserted"]
            return {ours: inserted.get(theirs, 0) for ours, theirs in LIMITS.items()}
    raise GuestError(f"the guest has no real disk with the serial '{serial}'")


def completed(domain: Any) -> dict[str, DiskCounters]:
    """Return the completed requests of each real disk, by serial."""
    names = serials(domain)
    if not names:
        return {}
    found = {}
    for entry in _ask(domain, "query-blockstats"):
        for serial, name in names.items():
            if _is(entry, name):
                stats = entry["stats"]
                found[serial] = DiskCounters(
                    reads=stats["rd_operations"],
                    writes=stats["wr_operations"],
                    flushes=stats["flush_operations"],
                    read_bytes=stats["rd_bytes"],
                    written_bytes=stats["wr_bytes"],
                )
    return found


_PREFIX: Final = "real-"


def _names(disk: ET.Element) -> tuple[str, int]:
    """Return QEMU's name of the disk, and the number of its descriptor set."""
    address = disk.find("address")
    assert address is not None
    place = [int(address.get(k, "0"), 0) for k in ("bus", "slot", "target")]
    return f"{_PREFIX}{disk.findtext('serial')}", _FIRST_SET + (place[0] << 8) + sum(place[1:])


def _node(disk: ET.Element, name: str, number: int, *, writable: bool) -> dict[str, Any]:
    """Return QEMU's block node over the descriptor set."""
    driver = disk.find("driver")
    assert driver is not None
    cache = {"direct": _CACHE[driver.get("cache", "")][0], "no-flush": False}
    file = {
        "driver": "host_device",
        "filename": f"/dev/fdset/{number}",
        "cache": cache,
        "read-only": not writable,
        **_options(driver, "file"),
    }
    return {
        "driver": "raw",
        "node-name": name,
        "read-only": not writable,
        "cache": cache,
        "file": file,
        **_options(driver, "raw"),
    }


def _options(driver: ET.Element, node: str) -> dict[str, str]:
    """Return the options in ``<driver>`` that this type of QEMU's node accepts."""
    options = (option for option in DRIVER_OPTIONS.values() if node in option.nodes)
    return {o.qemu: driver.attrib[o.libvirt] for o in options if o.libvirt in driver.attrib}


def _device(disk: ET.Element, name: str) -> dict[str, Any]:
    """Return the device that the guest sees."""
    driver, target, address = (disk.find(tag) for tag in ("driver", "target", "address"))
    assert driver is not None
    assert target is not None
    assert address is not None
    common = {
        "id": name,
        "drive": name,
        "serial": disk.findtext("serial"),
        "write-cache": "on" if _CACHE[driver.get("cache", "")][1] else "off",
    }
    if target.get("bus") == "virtio":
        bus = int(address.get("bus", "0"), 16)
        place = {"bus": f"pci.{bus}", "addr": address.get("slot")}
        return {"driver": "virtio-blk-pci", **common, **place, "num-queues": 1}
    target_number = int(address.get("target", "0"))
    scsi = {"bus": "scsi0.0", "channel": 0, "scsi-id": target_number, "lun": 0}
    return {"driver": "scsi-hd", **common, **scsi}


def _backend(disk: ET.Element, name: str) -> str:
    """Return the device with the disk's node: for virtio, a device within the plugged one."""
    target = disk.find("target")
    assert target is not None
    virtio = target.get("bus") == "virtio"
    return f"/machine/peripheral/{name}/virtio-backend" if virtio else name


def _limits(disk: ET.Element) -> dict[str, Any]:
    """Return ``<iotune>`` for ``block_set_io_throttle``: every rate, 0 for no limit."""
    tune = disk.find("iotune")
    if tune is None:
        return {}
    rates = {f"{s}{d}": 0 for s in _LIMITS.values() for d in _DIRECTIONS.values()}
    given = {
        LIMITS[limit.tag]: limit.text if limit.tag == "group_name" else int(limit.text or "0")
        for limit in tune
    }
    return {**rates, **given}


def _is(entry: dict[str, Any], name: str) -> bool:
    """Return whether an entry of QEMU's list is that device; ``qdev`` is the device's path."""
    return name in entry.get("qdev", "").split("/")


def _there(domain: Any, name: str) -> bool:
    return name in serials(domain).values()


def _ask(
    domain: Any,
    command: str,
    arguments: dict[str, Any] | None = None,
    descriptors: Sequence[int] = (),
) -> Any:
    """Send one command to QEMU's monitor, and return its result."""
    import libvirt_qemu

    libvirt = load()
    if not hasattr(libvirt_qemu, "qemuMonitorCommandWithFiles"):
        raise HostError(
            "this libvirt cannot pass descriptors to QEMU, which real disks need",
            hint="install libvirt and its Python binding 8.2 or newer",
        )
    text = json.dumps({"execute": command, **({"arguments": arguments} if arguments else {})})
    try:
        if descriptors:
            said, _ = domain.monitor_with_files(text, list(descriptors))
        else:
            said = domain.monitor(text, 0)
    except libvirt.libvirtError as error:
        raise GuestError(f"QEMU does not answer '{command}': {words(error)}") from error
    answer = json.loads(said)
    if "error" in answer:
        raise HostError(f"QEMU refused '{command}': {answer['error'].get('desc', said)}")
    return answer["return"]
