"""libvirt's domain XML for a guest. Objects to XML and nothing else: policy comes from outside.

The data disks are not part of it: they are plugged in while the guest runs, so that one guest
serves cells with any number of disks. Three PCI bridges hold up to 93 of them
(``lab.plugins.disks`` gives each its slot), and the network card, which libvirt does not know of,
keeps to a slot of the root bus that libvirt is never asked to fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

NAME: Final = "lab"
"""Every guest's domain name: each has an embedded libvirt of its own."""
UUID: Final = "6c616221-6d64-4000-8000-000000000001"
"""The same for all: libvirt restores a saved guest under its own name and UUID only. ``genid``
beside it is new at each restore, and tells the guest's kernel to seed its random numbers anew."""
NIC_SLOT: Final = "0x1d"
BRIDGES: Final = 3
QEMU_NAMESPACE: Final = "http://libvirt.org/schemas/domain/qemu/1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """What a guest with virtual time has that others have not. Its root disk is the driver's."""

    start: int
    """What its clock says first: seconds since 1970."""
    arguments: tuple[str, ...]
    """QEMU's, after libvirt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that a domain's XML says."""

    accelerator: str
    """``kvm`` or ``tcg``."""
    emulator: str
    machine_type: str
    cpus: int
    memory: int
    """Bytes."""
    root_disk: str
    """Path of the overlay on the image."""
    seed: str
    """Path of the NoCloud ISO."""
    console: str
    """Path of the console log."""
    kernel: str | None
    """``None``: the image boots from its own disk."""
    initrd: str | None
    kernel_arguments: tuple[str, ...]
    translation_cache_mib: int = 256
    """TCG only; QEMU's own default of a quarter of the memory up to 1 GiB starves a small host."""
    virtual: Virtual | None = None
    """``None``: its clock is the host's."""


def domain_xml(machine: Machine) -> str:
    """The domain, as text that ``virsh create`` takes."""
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
    """A disk of the guest's own; its flushes cost nothing, for it is thrown away with the guest."""
    disk = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type=kind, cache=cache)
    ET.SubElement(disk, "source", file=path)
    ET.SubElement(disk, "target", dev=target, bus="virtio")
    return disk


def _network(root: ET.Element, machine: Machine) -> None:
    """User-mode network that reaches nothing, and one port of 127.0.0.1, which the kernel picks.

    libvirt's own user network has neither ``restrict`` nor forwarding (``qemu-system(1)``,
    ``-netdev user``); port 0 lets the host's kernel choose, so that no two guests can collide.
    A guest with virtual time has no IPv6: QEMU would send router advertisements by its clock.
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
    """Have libvirt ask QEMU for its processor's features in one question instead of 390.

    libvirt's ``qemu_process.c: qemuProcessFetchGuestCPU`` asks for each feature by name where it
    knows QEMU to have ``unavailable-features``, at each start, which takes a fifth of a second; it
    compares the answer with a definition in which the lab names none.
    """
    element = ET.SubElement(root, f"{{{QEMU_NAMESPACE}}}capabilities")
    ET.SubElement(element, f"{{{QEMU_NAMESPACE}}}del", capability="cpu-unavailable-features")
