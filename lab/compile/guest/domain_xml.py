"""libvirt's domain XML for a guest. It has no policy: all values are arguments.

Data disks are not part of it. They are plugged in while the guest runs, so that one guest serves
cells with any number of disks. Three PCI bridges hold up to 93 of them (``lab.plugins.disks`` gives
each its slot). libvirt does not know the network card, which uses a slot of the root bus that
libvirt never fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

NAME: Final = "lab"
"""Name of every guest's domain: each guest has its own embedded libvirt."""
UUID: Final = "6c616221-6d64-4000-8000-000000000001"
"""UUID of every guest's domain: libvirt restores a guest only with its own name and UUID. The
``genid`` next to it is new at each restore, and makes the guest's kernel reseed its random
numbers."""
NIC_SLOT: Final = "0x1d"
BRIDGES: Final = 3
QEMU_NAMESPACE: Final = "http://libvirt.org/schemas/domain/qemu/1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """Additional settings of a guest in virtual time. Its root disk is on the lab's driver."""

    start: int
    """First value of its clock: seconds since 1970."""
    arguments: tuple[str, ...]
    """QEMU's arguments after libvirt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All values of a domain's XML."""

    accelerator: str
    """``kvm`` or ``tcg``."""
    emulator: str
    machine_type: str
    cpus: int
    memory: int
    """In bytes."""
    root_disk: str
    """Path of the overlay on the image."""
    seed: str
    """Path of the NoCloud ISO."""
    console: str
    """Path of the console log."""
    kernel: str | None
    """``None``: the image has its own boot loader."""
    initrd: str | None
    kernel_arguments: tuple[str, ...]
    translation_cache_mib: int = 256
    """TCG only. QEMU's default, a quarter of the memory up to 1 GiB, is too large for a small
    host."""
    virtual: Virtual | None = None
    """``None``: real time."""


def domain_xml(machine: Machine) -> str:
    """Return the domain's XML for ``virsh create``."""
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    root = ET.Element("domain", type="kvm" if machine.accelerator == "kvm" else "qemu")
    _text(root, "name", NAME)
    _text(root, "uuid", UUID)
    ET.SubElement(root, "genid")
    _text(root, "memory", str(machine.memory // 1024), unit="KiB")
    _text(root, "vcpu", str(machine.cpus))
    _boot(root, machine)
    features = ET.SubElement(root, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    if machine.accelerator == "kvm":
        ET.SubElement(root, "cpu", mode="host-passthrough")
    else:
        tcg = ET.SubElement(features, "tcg")
        _text(tcg, "tb-cache", str(machine.translation_cache_mib), unit="MiB")
        cpu = ET.SubElement(root, "cpu", mode="custom", match="exact", check="none")
        _text(cpu, "model", "qemu64", fallback="forbid")
    _clock(root, machine)
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _text(root, event, "destroy")
    _devices(root, machine)
    _network(root, machine)
    _capabilities(root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _clock(root: ET.Element, machine: Machine) -> None:
    if machine.virtual is None:
        ET.SubElement(root, "clock", offset="utc")
        return
    clock = ET.SubElement(root, "clock", offset="absolute", start=str(machine.virtual.start))
    ET.SubElement(clock, "timer", name="rtc", track="guest")
    ET.SubElement(clock, "timer", name="hpet", present="no")


def _boot(root: ET.Element, machine: Machine) -> None:
    system = ET.SubElement(root, "os")
    _text(system, "type", "hvm", arch="x86_64", machine=machine.machine_type)
    if machine.kernel and machine.initrd:
        _text(system, "kernel", machine.kernel)
        _text(system, "initrd", machine.initrd)
        _text(system, "cmdline", " ".join(machine.kernel_arguments))
    else:
        ET.SubElement(system, "boot", dev="hd")


def _devices(root: ET.Element, machine: Machine) -> None:
    devices = ET.SubElement(root, "devices")
    _text(devices, "emulator", machine.emulator)
    ET.SubElement(devices, "controller", type="pci", index="0", model="pci-root")
    if machine.virtual is None:
        for index in range(1, BRIDGES + 1):
            ET.SubElement(devices, "controller", type="pci", index=str(index), model="pci-bridge")
        ET.SubElement(devices, "controller", type="scsi", index="0", model="virtio-scsi")
        _disk(devices, machine.root_disk, kind="qcow2", target="vda", cache="unsafe")
    ET.SubElement(devices, "controller", type="usb", index="0", model="none")
    seed = _disk(devices, machine.seed, kind="raw", target="vdb", cache="writeback")
    ET.SubElement(seed, "readonly")
    serial = ET.SubElement(devices, "serial", type="file")
    ET.SubElement(serial, "source", path=machine.console)
    ET.SubElement(serial, "target", port="0")
    if machine.virtual is None:
        rng = ET.SubElement(devices, "rng", model="virtio")
        _text(rng, "backend", "/dev/urandom", model="random")
    ET.SubElement(devices, "memballoon", model="none")


def _disk(devices: ET.Element, path: str, *, kind: str, target: str, cache: str) -> ET.Element:
    """Add a disk of the guest itself; it ignores flushes, since the disk is removed with the
    guest."""
    disk = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type=kind, cache=cache)
    ET.SubElement(disk, "source", file=path)
    ET.SubElement(disk, "target", dev=target, bus="virtio")
    return disk


def _network(root: ET.Element, machine: Machine) -> None:
    """Add a user-mode network without outside access, and forward one port of 127.0.0.1 to SSH.

    libvirt's own user network has neither ``restrict`` nor forwarding (``qemu-system(1)``,
    ``-netdev user``). Port 0 lets the host's kernel choose the port, so that two guests cannot
    collide. A guest in virtual time has no IPv6: QEMU would send router advertisements by its
    clock.
    """
    ipv6 = "" if machine.virtual is None else ",ipv6=off"
    command = ET.SubElement(root, f"{{{QEMU_NAMESPACE}}}commandline")
    for value in (
        "-netdev",
        f"user,id=net0,restrict=on{ipv6},hostfwd=tcp:127.0.0.1:0-:22",
        "-device",
        f"virtio-net-pci,netdev=net0,bus=pci.0,addr={NIC_SLOT}",
        *(machine.virtual.arguments if machine.virtual else ()),
    ):
        ET.SubElement(command, f"{{{QEMU_NAMESPACE}}}arg", value=value)


def _capabilities(root: ET.Element) -> None:
    """Make libvirt query QEMU's CPU features with one request instead of 390.

    libvirt's ``qemu_process.c: qemuProcessFetchGuestCPU`` queries each feature by name if it knows
    that QEMU has ``unavailable-features``. That takes 0.2 s at each start. libvirt compares the
    result with a CPU definition, and the lab's definition names no features.
    """
    element = ET.SubElement(root, f"{{{QEMU_NAMESPACE}}}capabilities")
    ET.SubElement(element, f"{{{QEMU_NAMESPACE}}}del", capability="cpu-unavailable-features")
