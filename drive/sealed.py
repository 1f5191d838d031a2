"""QEMU's command line for a guest in virtual time. All other settings are in its region.

``command`` returns that of a sealed guest. libvirt starts an unsealed guest; ``unsealed`` returns
the arguments that libvirt does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MACHINE_TYPE: Final = "pc-i440fx-7.1"
"""The newest machine type of QEMU 7.2 that gives the kernel no random seed (SETUP_RNG_SEED)."""
_WITHOUT: Final = "usb=off,vmport=off,smbus=off,i8042=off,hpet=off,nvdimm=on"
MACHINE: Final = f"{MACHINE_TYPE},{_WITHOUT}"
CPU: Final = "Nehalem-v1,-vme"
"""A model without RDRAND that TCG emulates completely; the same in all versions of QEMU."""
UNRECORDED: Final = "shift=0,sleep=off"
ICOUNT: Final = f"{UNRECORDED},rr=record,rrfile=/dev/null"
"""One instruction is 1 ns, and the clock of an idle guest jumps to the next timer.

The recording is discarded. It is enabled for its mutex: without it, QEMU's main loop may move the
clock (``icount_start_warp_timer``) after the CPU has halted and before its instructions are counted
(``icount_process_data`` runs without the global lock). One of nine restores on a busy host was 8 ns
off at its end. A guest to be saved has no recording: QEMU's migration thread reads the host's clock
without the mutex, and would abort (``replay_save_clock``).
"""
START: Final = 1767225600
"""First value of each guest's clock: 2026-01-01T00:00:00Z, in seconds since 1970."""
GIB: Final = 1 << 30
UNSEALED_REGION: Final = 80 * GIB
"""Bytes of an unsealed guest's region. libvirt needs the size before the disks are known.

The maps of 64 disks of 12 TiB take 48 GiB. The file is sparse.
"""
FIRST_ADDRESS: Final = 4 * GIB
"""Address of QEMU's memory slots in a guest with less than 3 GiB; equal in all guests."""
KERNEL_ARGUMENTS: Final = (
    # The clock counts instructions, 1 ns each: Linux need neither measure it nor check it.
    "tsc_early_khz=1000000 tsc=reliable clocksource=tsc lpj=4000000 no_timer_check "
    # Self-tests of ciphers take a second of CPU time.
    "cryptomgr.notests "
    # No random numbers, and no watchdog timers.
    "nokaslr random.trust_cpu=off random.trust_bootloader=off nowatchdog "
    "rcupdate.rcu_cpu_stall_suppress=1 "
    # Page tables that change with each system call, and random addresses of programs, cost QEMU a
    # third more: it translates code again for each address.
    "mitigations=off norandmaps "
    # QEMU pays for its count of instructions where code jumps, and each repetition of a string
    # instruction is a jump. Without REP_GOOD (112) Linux copies and clears memory in longer loops.
    "clearcpuid=112 "
    # Work for each page or system call that protects or accounts, and that no result needs.
    "init_on_alloc=0 hardened_usercopy=off audit=0 lsm= cgroup_disable=memory "
    # A panic ends QEMU (-no-reboot).
    "panic=-1 oops=panic "
    # Use the reset register at once. Linux first tries the keyboard controller, which is missing,
    # and is busy for 2.6 s of guest time: a minute of host time at each power cut.
    "reboot=pci"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Files and settings of a sealed guest."""

    kernel: Path
    initramfs: Path
    region: Path
    base: Path
    """Image of the root file system; never written."""
    memory: int = 512
    """In MiB."""
    memory_file: Path | None = None
    """The guest's own memory. A restored guest maps the file privately and never changes it."""
    saves: bool = False
    """The guest will be saved: it writes its memory to the file, and QEMU records nothing."""
    seed: int = 1
    arguments: str = ""
    """Further kernel arguments."""
    extra: Sequence[str] = ()
    """Further QEMU arguments."""
    emulator: str = "qemu-system-x86_64"


STOPPABLE: Final = ("-device", "pvpanic", "-action", "panic=pause")
"""For a guest that is saved, also when it is restored: the driver's ``stop`` stops QEMU."""


SETTLE: Final = "udevadm settle --timeout=60\n"
SETUP: Final = f"""\
/lib/systemd/systemd-udevd --daemon
modprobe -qa raid0 raid1 raid10 raid456 zfs
udevadm trigger --action=add --subsystem-match=block
{SETTLE}\
engines=$(ldd "$(command -v fio)" 2>/dev/null |
  grep -oE '/[^ ]*/lib(gfapi|ibverbs|nbd|pmem|pmemblk|rados|rbd|rdmacm)\\.so[^ ]*')
for library in $engines; do mount --bind /run/lab-engines.so "$library"; done
[ -z "$engines" ] || fio --version >/dev/null 2>&1 || umount $engines
programs=$(for program in sh bash dd cat sleep readlink grep sed head tail dmesg sync mkdir \\
    rm date timeout wc mktemp udevadm mdadm wipefs blkid blockdev mount umount fio; do
  command -v "$program"
done)
cat $programs >/dev/null
mdadm --version >/dev/null 2>&1
dmesg >/dev/null
fio --name=lab --filename=/run/lab-fio --rw=write --size=4k --thread=1 >/dev/null 2>&1
rm -f /run/lab-fio
/proc/1/exe keep $(ldd $programs 2>/dev/null | grep -o '/[^ :]*' | sort -u) /etc/ld.so.cache
"""
"""Shell lines before a guest's commands: start udev, which mdadm and LVM need, load the modules of
md and ZFS, which then try all their algorithms, replace the libraries of fio's network engines
(``engines.c``), read the programs that every cell runs, and keep them in memory. With fio that
saves 0.6 s of the host's CPU time in each workload, since caches are dropped before it."""
STOP: Final = f"""\
sync
echo 1 > /sys/module/lab_disk/parameters/stop || exit 1
{SETTLE}\
exec sh /dev/lab_io
"""
"""Shell lines that stop a guest for a snapshot. After a restore they wait until udev knows the
disks of the new region, and run the commands in it."""


def command(guest: Guest, region_size: int | None = None) -> list[str]:
    """Return QEMU's command line. The guest ends QEMU by powering off.

    ``region_size``: size in bytes of a region that does not exist yet.
    """

    machine, memory = MACHINE, []
    if guest.memory_file is not None:
        share = "on" if guest.saves else "off"
        machine += ",memory-backend=ram"
        memory += [
            "-object",
            f"memory-backend-file,id=ram,mem-path={value(guest.memory_file)},size={guest.memory}M,"
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
    """Return arguments after libvirt's; ``monitor``: path of a second QMP socket."""
    memory, room = _nvdimms(region, UNSEALED_REGION, base, base_size)
    return [
        # QEMU merges these with libvirt's; the last -cpu is used.
        *("-machine", _WITHOUT, "-cpu", CPU, "-m", room),
        *("-icount", UNRECORDED, "-seed", str(seed)),  # QEMU cannot record the network
        *("-qmp", f"unix:{value(monitor)},server=on,wait=off"),
        *memory,
    ]


def value(path: str | Path) -> str:
    """Return a path as a value in QEMU's options: a comma would begin another option."""
    return str(path).replace(",", ",,")


def _nvdimms(region: str, size: int, base: str, base_size: int) -> tuple[list[str], str]:
    """Return the region and the image as NVDIMMs, and the arguments of ``-m`` for them."""
    at = FIRST_ADDRESS
    memory = []
    for name, path, length, backend, device in (
        ("region", region, size, "", ""),
        ("base", base, base_size, ",readonly=on", ",unarmed=on"),
    ):
        memory += [
            "-object",
            f"memory-backend-file,id={name},mem-path={value(path)},size={length},share=on{backend}",
        ]
        memory += ["-device", f"nvdimm,id=nv-{name},memdev={name},addr={at:#x}{device}"]
        at += -(-length // GIB) * GIB
    return memory, f"slots=2,maxmem={at - FIRST_ADDRESS + 4 * GIB}B"
