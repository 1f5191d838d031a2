"""A guest with virtual time: QEMU's command line. All else lies in its region.

``command`` is that of a sealed guest. An unsealed guest is libvirt's; ``unsealed`` returns what of
its command line libvirt has no words for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MACHINE_TYPE: Final = "pc-i440fx-7.1"
"""Of QEMU 7.2's machine types the newest that gives the kernel no random seed (SETUP_RNG_SEED)."""
_WITHOUT: Final = "usb=off,vmport=off,smbus=off,i8042=off,hpet=off,nvdimm=on"
MACHINE: Final = f"{MACHINE_TYPE},{_WITHOUT}"
CPU: Final = "Nehalem-v1,-vme"
"""A model without RDRAND, that TCG has in full; the same in all versions of QEMU."""
UNRECORDED: Final = "shift=0,sleep=off"
ICOUNT: Final = f"{UNRECORDED},rr=record,rrfile=/dev/null"
"""One instruction is 1 ns, and the clock of an idle guest jumps to the next timer.

The recording is thrown away. It is there for its mutex: without it, QEMU's main loop may move the
clock (``icount_start_warp_timer``) after the processor has halted and before the instructions that
it executed are counted (``icount_process_data`` runs without the global lock). One of nine
restores on a busy host was 8 ns off at its end. A guest that is saved has no recording: QEMU's
migration thread reads the host's clock without the mutex, and would abort (``replay_save_clock``).
"""
START: Final = 1767225600
"""2026-01-01T00:00:00Z: what each guest's clock says first, in seconds since 1970."""
GIB: Final = 1 << 30
UNSEALED_REGION: Final = 80 * GIB
"""Bytes of an unsealed guest's region, which libvirt has to be told before its disks are known.

The maps of 64 disks of 12 TiB take 48 GiB. The file is sparse.
"""
FIRST_ADDRESS: Final = 4 * GIB
"""Where QEMU's memory slots begin in a guest with less than 3 GiB; the same in each guest."""
KERNEL_ARGUMENTS: Final = (
    # The clock counts instructions, 1 ns each: it need not be measured, nor doubted.
    "tsc_early_khz=1000000 tsc=reliable clocksource=tsc lpj=4000000 no_timer_check "
    # Self-tests of ciphers: a second of processor time.
    "cryptomgr.notests "
    # Nothing random, nothing that only fires because time passes.
    "nokaslr random.trust_cpu=off random.trust_bootloader=off nowatchdog "
    "rcupdate.rcu_cpu_stall_suppress=1 "
    # Page tables that change with each system call, and programs at another address each time,
    # cost QEMU a third more: it translates code for each address that it is found at.
    "mitigations=off norandmaps "
    # A panic ends QEMU (-no-reboot).
    "panic=-1 oops=panic "
    # The reset register at once. Linux tries the keyboard controller first, which is not there, for
    # 2.6 s of the guest's time that its processor is busy: a minute of the host's at a power cut.
    "reboot=pci"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What a sealed guest is made of."""

    kernel: Path
    initramfs: Path
    region: Path
    base: Path
    """Image of the root file system. It is never written to."""
    memory: int = 512
    """MiB."""
    memory_file: Path | None = None
    """The guest's own memory. A restored guest sees the file and never changes it."""
    saves: bool = False
    """It is to be saved: it writes its memory to the file, and QEMU records nothing."""
    seed: int = 1
    arguments: str = ""
    """More of the kernel's."""
    extra: Sequence[str] = ()
    """More of QEMU's."""
    emulator: str = "qemu-system-x86_64"


STOPPABLE: Final = ("-device", "pvpanic", "-action", "panic=pause")
"""For guests that are saved, and when they are restored: ``stop`` of the driver stops QEMU."""


SETTLE: Final = "udevadm settle --timeout=60\n"
SETUP: Final = f"""\
/lib/systemd/systemd-udevd --daemon
modprobe -qa raid0 raid1 raid10 raid456
udevadm trigger --action=add --subsystem-match=block
{SETTLE}\
for program in sh bash dd cat sleep readlink grep sed head tail dmesg sync mkdir rm date \\
    timeout wc udevadm mdadm wipefs blkid blockdev mount umount fio; do
  path=$(command -v "$program") && cat "$path" >/dev/null
done
mdadm --version >/dev/null 2>&1
dmesg >/dev/null
"""
"""Shell lines before a guest's commands: udev, on which mdadm and LVM rely, md's modules, and a
first read of the programs that every cell runs."""
STOP: Final = f"""\
sync
echo 1 > /sys/module/lab_disk/parameters/stop || exit 1
{SETTLE}\
exec sh /dev/lab_io
"""
"""Shell lines that stop a guest for a snapshot. When it goes on, it waits until udev knows the
disks of its new region, and runs the commands that it finds there."""


def command(guest: Guest, region_size: int | None = None) -> list[str]:
    """QEMU's command line. The guest ends QEMU by powering off.

    ``region_size``: bytes of a region that does not exist yet.
    """

    machine, memory = MACHINE, []
    if guest.memory_file is not None:
        share = "on" if guest.saves else "off"
        machine += ",memory-backend=ram"
        memory += [
            "-object",
            f"memory-backend-file,id=ram,mem-path={guest.memory_file},size={guest.memory}M,"
            f"share={share}",
        ]
    size = guest.region.stat().st_size if region_size is None else region_size
    nvdimms, room = _nvdimms(str(guest.region), size, str(guest.base), guest.base.stat().st_size)
    memory += nvdimms
    return [
        *(guest.emulator, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", machine, "-cpu", CPU, "-smp", "1"),
        *("-m", f"{guest.memory},{room}"),
        *("-accel", "tcg,thread=single"),
        *("-icount", UNRECORDED if guest.saves else ICOUNT),
        *("-rtc", "base=2026-01-01T00:00:00,clock=vm", "-seed", str(guest.seed), "-no-reboot"),
        *("-kernel", str(guest.kernel), "-initrd", str(guest.initramfs)),
        *("-append", f"{KERNEL_ARGUMENTS} {guest.arguments}".strip()),
        *memory,
        *guest.extra,
    ]


def unsealed(region: str, base: str, base_size: int, monitor: str, seed: int = 1) -> list[str]:
    """Arguments after libvirt's; ``monitor``: path of a socket for QMP, beside libvirt's own."""
    memory, room = _nvdimms(region, UNSEALED_REGION, base, base_size)
    return [
        # QEMU merges these with what libvirt has given; the last -cpu counts.
        *("-machine", _WITHOUT, "-cpu", CPU, "-m", room),
        *("-icount", UNRECORDED, "-seed", str(seed)),  # nor can QEMU record the network
        *("-qmp", f"unix:{monitor},server=on,wait=off"),
        *memory,
    ]


def _nvdimms(region: str, size: int, base: str, base_size: int) -> tuple[list[str], str]:
    """The region and the image as NVDIMMs, and what ``-m`` must say for them."""
    at = FIRST_ADDRESS
    memory = []
    for name, path, length, backend, device in (
        ("region", region, size, "", ""),
        ("base", base, base_size, ",readonly=on", ",unarmed=on"),
    ):
        memory += [
            "-object",
            f"memory-backend-file,id={name},mem-path={path},size={length},share=on{backend}",
        ]
        memory += ["-device", f"nvdimm,id=nv-{name},memdev={name},addr={at:#x}{device}"]
        at += -(-length // GIB) * GIB
    return memory, f"slots=2,maxmem={at - FIRST_ADDRESS + 4 * GIB}B"
