"""A sealed guest: QEMU's command line and the initramfs. All else lies in the guest's region.

The integration into the lab will use ``command`` and ``initramfs``; until then tests do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MACHINE: Final = "pc-i440fx-7.1,usb=off,vmport=off,smbus=off,i8042=off,hpet=off,nvdimm=on"
"""Of QEMU 7.2's machine types the newest that gives the kernel no random seed (SETUP_RNG_SEED)."""
CPU: Final = "Nehalem-v1,-vme"
"""A model without RDRAND, that TCG has in full; the same in all versions of QEMU."""
ICOUNT: Final = "shift=0,sleep=off,rr=record,rrfile=/dev/null"
"""One instruction is 1 ns, and the clock of an idle guest jumps to the next timer.

The recording is thrown away. It is there for its mutex: without it, QEMU's main loop may move the
clock (``icount_start_warp_timer``) after the processor has halted and before the instructions that
it executed are counted (``icount_process_data`` runs without the global lock). One of nine
restores on a busy host was 8 ns off at its end.
"""
GIB: Final = 1 << 30
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
    # A panic ends QEMU (-no-reboot).
    "panic=-1 oops=panic"
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
    seed: int = 1
    arguments: str = ""
    """More of the kernel's."""
    extra: Sequence[str] = ()
    """More of QEMU's."""


STOPPABLE: Final = ("-device", "pvpanic", "-action", "panic=pause")
"""For guests that are saved, and when they are restored: ``stop`` of the driver stops QEMU."""


def command(guest: Guest) -> list[str]:
    """QEMU's command line. The guest ends QEMU by powering off."""

    at = FIRST_ADDRESS
    memory = []
    for name, path, backend, device in (
        ("region", guest.region, "", ""),
        ("base", guest.base, ",readonly=on", ",unarmed=on"),
    ):
        size = path.stat().st_size
        memory += [
            "-object",
            f"memory-backend-file,id={name},mem-path={path},size={size},share=on{backend}",
        ]
        memory += ["-device", f"nvdimm,id=nv-{name},memdev={name},addr={at:#x}{device}"]
        at += -(-size // GIB) * GIB
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", MACHINE, "-cpu", CPU, "-smp", "1"),
        *("-m", f"{guest.memory},slots=2,maxmem={at - FIRST_ADDRESS + 4 * GIB}B"),
        *("-accel", "tcg,thread=single", "-icount", ICOUNT),
        *("-rtc", "base=2026-01-01T00:00:00,clock=vm", "-seed", str(guest.seed), "-no-reboot"),
        *("-kernel", str(guest.kernel), "-initrd", str(guest.initramfs)),
        *("-append", f"{KERNEL_ARGUMENTS} {guest.arguments}".strip()),
        *memory,
        *guest.extra,
    ]


def initramfs(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive (newc) of files by path with their modes; the same bytes each time."""

    def member(number: int, name: str, mode: int, data: bytes) -> bytes:
        raw = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + raw
        return _padded(head) + _padded(data)

    directories = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, 0o040755, b"") for name in sorted(directories)]
    entries += [(name, 0o100000 | mode, data) for name, (mode, data) in sorted(files.items())]
    members = [member(n, *entry) for n, entry in enumerate(entries, 1)]
    return b"".join(members) + member(0, "TRAILER!!!", 0, b"")


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)
