"""Runs in a guest, beside the lab's own ``realdisks``: refusals that need md, LVM and SCSI disks.

Prints JSON: for each case the rules that forbid the disk, and those that are left when what was
done to it has been undone.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.host.real_disks import guard
from lab.host.real_disks.guard import Ground, Held, Named

NAMES = Path("/dev/disk/by-id")


def run(argv: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True)
    return done.returncode, done.stdout


def do(line: str) -> None:
    done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{line!r} failed: {done.stderr}{done.stdout}")


GROUND = Ground(
    names=NAMES, leases=Path("/run/lock/lab-disks"), system=(Path("/"),), own=(), run=run
)


def name_of(serial: str) -> Path:
    return NAMES / f"scsi-0QEMU_QEMU_HARDDISK_{serial}"


def named(path: Path) -> Named:
    device, found = guard.look(GROUND, str(path))
    assert device is not None, (path, found)
    return Named(path=str(path), size=device.size, serial=device.serial)


def tried(disk: Named) -> list[str]:
    outcome = guard.take(GROUND, disk, (disk.serial,))
    if isinstance(outcome, Held):
        again = [o.rule.value for o in outcome.objections()]
        outcome.release()
        return again
    said = sorted({o.rule.value for o in outcome.objections})
    return [*said, outcome.sentence]


def settle() -> None:
    do("udevadm settle --timeout=30")


@contextlib.contextmanager
def done(make: str, undo: str) -> Iterator[None]:
    do(make)
    settle()
    try:
        yield
    finally:
        do(undo)
        settle()


CASES: dict[str, Callable[[Path, Path], tuple[str, str]]] = {
    "md": lambda a, b: (
        f"mdadm --create /dev/md/t --run --level=1 --raid-devices=2 --assume-clean {a} {b}",
        f"mdadm --stop /dev/md/t; mdadm --zero-superblock {a} {b}",
    ),
    "md on a partition": lambda a, b: (
        f"{TABLE} {a}; udevadm settle; mdadm --create /dev/md/t --run --level=1 --raid-devices=2"
        f" --assume-clean --force {a}-part1 missing",
        f"mdadm --stop /dev/md/t; wipefs --all --quiet {a}-part1; wipefs --all --quiet {a};"
        f" partx --delete {a} 2>/dev/null || true",
    ),
    "dm": lambda a, b: (
        f"echo 0 8192 linear {a} 0 | dmsetup create t",
        "dmsetup remove t",
    ),
    "lvm": lambda a, b: (
        f"pvcreate -qq -y {a} && vgcreate -qq t {a} && lvcreate -qq -y -l 4 -n v t",
        f"vgremove -qq -f t && pvremove -qq {a}",
    ),
    "lvm that is not active": lambda a, b: (f"pvcreate -qq -y {a}", f"pvremove -qq {a}"),
    "swap": lambda a, b: (
        f"mkswap -q {a} && swapon {a}",
        f"swapoff {a}; wipefs --all --quiet {a}",
    ),
    "mounted": lambda a, b: (
        f"mkfs.ext4 -q -F {a} && mkdir -p /run/t && mount {a} /run/t",
        f"umount /run/t; wipefs --all --quiet {a}",
    ),
    "mounted on LVM": lambda a, b: (
        f"pvcreate -qq -y {a} && vgcreate -qq t {a} && lvcreate -qq -y -l 8 -n v t"
        " && mkfs.ext4 -q /dev/t/v && mkdir -p /run/t && mount /dev/t/v /run/t",
        f"umount /run/t; vgremove -qq -f t && pvremove -qq {a}",
    ),
    "read-only": lambda a, b: (f"blockdev --setro {a}", f"blockdev --setrw {a}"),
}
TABLE = f"{sys.executable} {Path(__file__).resolve()} table"


def table(path: str) -> None:
    """A DOS table with one partition, which the kernel reads."""
    sector = bytearray(512)
    sector[446:462] = struct.pack("<B3xB3xII", 0, 0x83, 2048, 32768)
    sector[510:] = b"\x55\xaa"
    with Path(path).open("r+b") as file:
        file.write(sector)
    do(f"blockdev --rereadpt {path}")


def pulled(path: Path) -> dict[str, list[str]]:
    """A disk that goes while it is held, and one that is gone before; and comes back."""
    disk = named(path)
    node = path.resolve().name
    delete = f"echo 1 > /sys/block/{node}/device/delete"
    held = guard.take(GROUND, disk)
    assert isinstance(held, Held), held
    do(delete)
    while_held = sorted({o.rule.value for o in held.objections()})
    held.release()
    settle()
    gone = tried(disk)[:-1]
    do('for host in /sys/class/scsi_host/*; do echo "- - -" > "$host/scan"; done')
    settle()
    return {"while held": while_held, "gone": gone, "back": tried(disk)}


def swapped(one: Path, other: Path) -> list[str]:
    """Two disks change their places: the name leads to another disk of the same size."""
    disk, target, back = named(one), one.readlink(), other.readlink()
    one.unlink()
    one.symlink_to(back)
    found = tried(disk)
    one.unlink()
    one.symlink_to(target)
    return found


def system_below() -> list[str]:
    """The disk of the root file system, by a name of its own."""
    root = subprocess.run(
        ["findmnt", "-no", "SOURCE", "/"], capture_output=True, text=True, check=True
    ).stdout.strip()
    link = NAMES / "lab-root"
    link.symlink_to(os.path.realpath(root))
    _, found = guard.look(GROUND, str(link))
    link.unlink()
    return sorted({o.rule.value for o in found})


def main(serials: Sequence[str]) -> None:
    a, b = (name_of(serial) for serial in serials)
    disk = named(a)
    found: dict[str, object] = {
        "facts": {"serial": disk.serial, "size": disk.size},
        "at first": tried(disk),
    }
    for case, make in CASES.items():
        with done(*make(a, b)):
            forbidden = tried(disk)
        found[case] = [forbidden, tried(disk)]
    found["swapped"] = [swapped(a, b), tried(disk)]
    found["pulled"] = pulled(a)
    found["system"] = system_below()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(sys.argv[2])
    else:
        main(sys.argv[1:])
