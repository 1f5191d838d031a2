"""The guard of real disks, on real block devices: each refusal, and a disk that passes."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.units import MIB
from lab.host.real_disks import alternatives, guard, leases
from lab.host.real_disks.device import read, serial_of
from lab.host.real_disks.guard import Held, Refusal
from lab.host.real_disks.users import Rule, beneath
from tests import loops
from tests.loops import SIZE, Bay, Loop, mount, swap_off, swap_on, told, unmount


@pytest.fixture
def bay(tmp_path: Path) -> Iterator[Bay]:
    yield from loops.bay(tmp_path)


def rules(outcome: Held | Refusal) -> set[Rule]:
    if isinstance(outcome, Held):
        outcome.release()
        return set()
    assert outcome.objections
    return {o.rule for o in outcome.objections}


def evidence(outcome: Held | Refusal, rule: Rule) -> str:
    assert isinstance(outcome, Refusal)
    return "; ".join(o.evidence for o in outcome.objections if o.rule is rule)


def blank(disk: Loop) -> None:
    told("wipefs", "--all", "--quiet", disk.device)


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that has run the code and printed a line."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.communicate("\n")


HOLD = """\
import os, sys
f = os.open(sys.argv[1], eval(sys.argv[2]))
print('ready', flush=True)
input()
"""


def test_a_blank_disk_is_taken_and_given_back(bay: Bay) -> None:
    disk = bay.loop("disk")
    held = bay.take(disk, disk.named.serial)
    assert isinstance(held, Held)
    assert (held.device.size, held.device.serial) == (SIZE, str(disk.file))
    assert held.objections() == ()
    held.release()
    assert rules(bay.take(disk)) == set()


def test_only_a_name_that_stays_with_the_disk(bay: Bay) -> None:
    disk = bay.loop("disk")
    for path in (disk.device, f"{bay.path}/by-id/../by-id/disk", f"{bay.path}/by-id/.."):
        refused = guard.take(bay.ground, replace(disk.named, path=path))
        assert rules(refused) == {Rule.UNSTABLE}
        assert isinstance(refused, Refusal)
        assert path in refused.sentence
    assert rules(bay.take(disk)) == set()


def test_a_name_that_leads_to_nothing_or_to_no_disk(bay: Bay) -> None:
    disk = bay.loop("disk")
    file = bay.path / "by-id" / "file"
    file.write_bytes(bytes(MIB))
    character = bay.path / "by-id" / "character"
    character.symlink_to("/dev/null")
    gone = bay.path / "by-id" / "gone"
    gone.symlink_to("/dev/nothing-at-all")
    found = {
        path.name: rules(guard.take(bay.ground, replace(disk.named, path=str(path))))
        for path in (file, character, gone)
    }
    assert found == {"file": {Rule.NO_DISK}, "character": {Rule.NO_DISK}, "gone": {Rule.GONE}}


def test_mounted(bay: Bay) -> None:
    disk = bay.loop("disk")
    told("mkfs.ext4", "-q", "-F", disk.device)
    point = bay.path / "a mount"
    point.mkdir()
    assert mount(disk.device, point) == 0
    try:
        refused = bay.take(disk, disk.named.serial)
        assert f"{disk.device} is mounted at {point} (ext4)" in evidence(refused, Rule.MOUNTED)
    finally:
        unmount(point)
    assert rules(bay.take(disk)) == {Rule.SIGNATURE}
    blank(disk)
    assert rules(bay.take(disk)) == set()


def test_mounted_where_only_others_see_it(bay: Bay) -> None:
    disk = bay.loop("disk")
    told("mkfs.ext4", "-q", "-F", disk.device)
    point = bay.path / "m"
    point.mkdir()
    script = f"mount {disk.device} {point} && echo ready && read -r line"
    child = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    try:
        assert disk.device not in Path("/proc/self/mountinfo").read_text()
        assert str(point) in evidence(bay.take(disk), Rule.MOUNTED)
    finally:
        child.communicate("\n")
    assert rules(bay.take(disk)) == {Rule.SIGNATURE}


def test_a_mounted_partition_forbids_its_disk(bay: Bay) -> None:
    disk, first, second = bay.partitioned("disk")
    told("mkfs.ext4", "-q", "-F", first.device)
    point = bay.path / "m"
    point.mkdir()
    other = replace(second.named, size=4 * MIB)
    assert mount(first.device, point) == 0
    try:
        refused = bay.take(disk)
        assert rules(refused) >= {Rule.MOUNTED, Rule.SIGNATURE}
        assert first.device in evidence(refused, Rule.MOUNTED)
        assert rules(guard.take(bay.ground, other)) == set()  # the other partition is free
    finally:
        unmount(point)
    assert rules(bay.take(disk)) == {Rule.SIGNATURE}


def test_swap(bay: Bay) -> None:
    disk = bay.loop("disk")
    told("mkswap", disk.device)
    if error := swap_on(disk.device):
        pytest.skip(f"this kernel does not swap to a loop device: {os.strerror(error)}")
    try:
        assert disk.device in evidence(bay.take(disk, disk.named.serial), Rule.SWAP)
    finally:
        swap_off(disk.device)
    assert rules(bay.take(disk)) == {Rule.SIGNATURE}
    blank(disk)
    assert rules(bay.take(disk)) == set()


def test_a_loop_device_on_it(bay: Bay) -> None:
    disk = bay.loop("disk")
    above = bay.attach(Path(disk.device))
    assert f"is the file of {above}" in evidence(bay.take(disk), Rule.HELD)
    bay.detach(above)
    assert rules(bay.take(disk)) == set()


MD = 0xA92B4EFC.to_bytes(4, "little")


def _ext4(disk: Loop) -> None:
    told("mkfs.ext4", "-q", "-F", disk.device)


def _swap(disk: Loop) -> None:
    told("mkswap", disk.device)


def _backup(disk: Loop) -> None:
    """Leave only a GPT's copy at the disk's end."""
    loops.gpt(disk.device)
    loops.write(disk.device, 0, bytes(MIB))


def _md(offset: int, disk: Loop) -> None:
    """Write the head of an md superblock 1.x, ``md_p.h: mdp_superblock_1``, with its own offset."""
    block = bytearray(256)
    block[0:4], block[4:8] = MD, (1).to_bytes(4, "little")
    block[128 + 16 : 128 + 24] = (offset // 512).to_bytes(8, "little")
    total = sum(int.from_bytes(block[i : i + 4], "little") for i in range(0, 256, 4))
    block[216:220] = ((total & 0xFFFFFFFF) + (total >> 32)).to_bytes(4, "little")
    loops.write(disk.device, offset, bytes(block))


SIGNATURES = {
    "ext4": (_ext4, "ext4 at 0x438"),
    "swap": (_swap, "swap at 0xff6"),
    "dos": (lambda disk: loops.dos(disk.device), "dos at 0x1fe"),
    "gpt": (lambda disk: loops.gpt(disk.device), "gpt at 0x200"),
    "gpt's copy": (_backup, "gpt at 0xfffe00"),
    "md 1.2": (lambda disk: _md(4096, disk), "linux_raid_member at 0x1000"),
    "md 1.0": (lambda disk: _md(SIZE - 8192, disk), "linux_raid_member at 0xffe000"),
    "luks": (
        lambda disk: loops.write(disk.device, 0, b"LUKS\xba\xbe\0\x01" + bytes(600)),
        "crypto_LUKS at 0x0",
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_refused_whatever_is_typed(bay: Bay, name: str) -> None:
    write, words = SIGNATURES[name]
    disk = bay.loop("disk")
    write(disk)
    refused = bay.take(disk, disk.named.serial)
    assert rules(refused) == {Rule.SIGNATURE}
    assert words in evidence(refused, Rule.SIGNATURE)
    blank(disk)
    assert rules(bay.take(disk, disk.named.serial)) == set()


def test_what_cannot_be_looked_at_counts_as_signed(bay: Bay) -> None:
    disk = bay.loop("disk")

    def broken(argv: object) -> tuple[int, str]:
        raise FileNotFoundError(2, "no such program")

    for run in (broken, lambda argv: (1, ""), lambda argv: (0, "{half")):
        ground = replace(bay.ground, run=run)
        assert rules(bay.take(disk, ground=ground)) == {Rule.SIGNATURE}
    assert rules(bay.take(disk)) == set()


def test_the_disk_of_the_system_and_of_the_lab(bay: Bay) -> None:
    """Also an unused partition of it, and a disk with the file of a loop device."""
    disk, first, second = bay.partitioned("disk")
    told("mkfs.ext4", "-q", "-F", first.device)
    point, deep = bay.path / "m", bay.path / "deep"
    point.mkdir()
    deep.mkdir()
    free = replace(second.named, size=4 * MIB)
    assert mount(first.device, point) == 0
    try:
        inner = point / "inner.raw"
        inner.write_bytes(bytes(2 * MIB))
        upper = bay.attach(inner)
        told("mkfs.ext4", "-q", "-F", upper)
        assert mount(upper, deep) == 0
        try:
            for path in (point, deep, deep / "not" / "yet"):
                for rule, ground in (
                    (Rule.SYSTEM, replace(bay.ground, system=(path,))),
                    (Rule.LAB, replace(bay.ground, own=(path,))),
                ):
                    refused = guard.take(ground, free)
                    assert rules(refused) == {rule}
                    assert first.device in evidence(refused, rule)
                    assert rules(bay.take(disk, ground=ground)) >= {rule, Rule.MOUNTED}
            elsewhere = replace(bay.ground, system=(Path("/proc"),))
            assert rules(guard.take(elsewhere, free)) == set()
        finally:
            unmount(deep)
            bay.detach(upper)
    finally:
        unmount(point)


def test_where_this_system_lies_is_found() -> None:
    found = beneath(Path("/"))
    source = told("findmnt", "--noheadings", "--output", "SOURCE", "/")
    if not source.startswith("/dev/"):
        pytest.skip(f"the root file system is on {source}, which is no block device")
    assert found
    assert beneath(Path("/proc")) == {}


@pytest.mark.parametrize("how", ["os.O_RDONLY", "os.O_RDWR", "os.O_RDWR | os.O_EXCL"])
def test_open_elsewhere(bay: Bay, how: str) -> None:
    disk = bay.loop("disk")
    with process(HOLD, disk.device, how) as child:
        refused = bay.take(disk)
        assert f"process {child.pid}" in evidence(refused, Rule.OPEN)
        assert rules(refused) == {Rule.OPEN}
        claimed = "EBUSY" in evidence(refused, Rule.OPEN)
        assert claimed is ("O_EXCL" in how)
    assert rules(bay.take(disk)) == set()


def test_a_partition_that_is_open_forbids_its_disk(bay: Bay) -> None:
    disk, first, second = bay.partitioned("disk")
    with process(HOLD, first.device, "os.O_RDONLY"):
        assert rules(bay.take(disk)) == {Rule.OPEN, Rule.SIGNATURE}
        assert rules(guard.take(bay.ground, replace(second.named, size=4 * MIB))) == set()


def test_read_only(bay: Bay) -> None:
    disk = bay.loop("disk", "--read-only")
    for erase in ((), (disk.named.serial,)):
        refused = bay.take(disk, *erase)
        assert Rule.READ_ONLY in rules(refused)
        assert "read-only" in evidence(refused, Rule.READ_ONLY)
    told("blockdev", "--setrw", disk.device)
    other = bay.loop("other")
    told("blockdev", "--setro", other.device)
    assert rules(bay.take(other, other.named.serial)) >= {Rule.READ_ONLY}
    told("blockdev", "--setrw", other.device)
    assert rules(bay.take(other, other.named.serial)) == set()


def test_changed_in_size(bay: Bay) -> None:
    disk = bay.loop("disk")
    with disk.file.open("r+b") as file:
        file.truncate(2 * SIZE)
    assert rules(bay.take(disk)) == set()  # the kernel has not read the table
    told("losetup", "--set-capacity", disk.device)
    refused = bay.take(disk)
    assert rules(refused) == {Rule.CHANGED}
    assert f"its size was {SIZE} and is {2 * SIZE}" in evidence(refused, Rule.CHANGED)


def test_another_disk_under_the_same_name(bay: Bay) -> None:
    disk, other = bay.loop("disk"), bay.loop("other")
    named = disk.named
    disk.name.unlink()
    disk.name.symlink_to(other.device)
    refused = guard.take(bay.ground, named, (named.serial,))
    assert rules(refused) == {Rule.CHANGED}
    assert str(other.file) in evidence(refused, Rule.CHANGED)
    disk.name.unlink()
    disk.name.symlink_to(disk.device)
    assert rules(bay.take(disk)) == set()


def test_a_name_that_moves_on_while_the_disk_is_held(bay: Bay) -> None:
    disk, other = bay.loop("disk"), bay.loop("other")
    held = bay.take(disk)
    assert isinstance(held, Held)
    disk.name.unlink()
    disk.name.symlink_to(other.device)
    assert [o.rule for o in held.objections()] == [Rule.CHANGED]
    assert read(held.descriptor).serial == str(disk.file)  # the claimed disk is the named one
    held.release()


def test_leased(bay: Bay) -> None:
    """By the lock alone: the other process need not have the disk open."""
    disk, first, second = bay.partitioned("disk")
    place = bay.ground.leases

    def tried(one: Loop) -> set[Rule]:
        size = SIZE if one is disk else 4 * MIB
        return rules(guard.take(bay.ground, replace(one.named, size=size)))

    with first.name.open("rb") as file:
        lease = leases.take(place, read(file.fileno()))
    assert isinstance(lease, list)
    assert tried(first) == {Rule.LEASED}
    assert tried(second) == set()
    with disk.name.open("rb") as file:
        busy = leases.take(place, read(file.fileno()))
    assert not isinstance(busy, list)
    assert str(place) in busy.evidence
    leases.release(lease)
    with disk.name.open("rb") as file:
        lease = leases.take(place, read(file.fileno()))
    assert isinstance(lease, list)
    assert tried(second) == {Rule.LEASED}
    leases.release(lease)
    assert tried(first) == set()


def test_a_lease_names_who_has_it_and_ends_with_its_holder(bay: Bay) -> None:
    disk = bay.loop("disk")
    held = bay.take(disk)
    assert isinstance(held, Held)
    code = "print('ready', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=held.descriptors,
    )
    assert child.stdout is not None
    child.stdout.readline()
    (lease,) = held.descriptors[1:]
    path = Path(f"/proc/self/fd/{lease}").readlink()
    held.release()
    # The claim and the lock continue in the process that got the descriptors.
    refused = bay.take(disk)
    assert "EBUSY" in evidence(refused, Rule.OPEN)
    assert f"process {child.pid}" in evidence(refused, Rule.OPEN)
    with path.open("wb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.kill()
    child.communicate()
    assert rules(bay.take(disk)) == set()


def test_a_place_for_leases_that_is_none(bay: Bay) -> None:
    disk = bay.loop("disk")
    bay.ground.leases.symlink_to(bay.path)
    assert Rule.GONE not in rules(refused := bay.take(disk))
    assert f"{bay.ground.leases} is not a directory" in evidence(refused, Rule.LEASED)


def test_udev_is_waited_for_and_others_are_not(bay: Bay, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = bay.loop("disk")
    monkeypatch.setattr(guard, "_UDEV", 0.3)
    lock = "import fcntl; fcntl.flock(f, fcntl.LOCK_SH)\n"
    code = HOLD.replace("print(", f"{lock}print(")
    with process(code, disk.device, "os.O_RDONLY"):
        assert Rule.OPEN in rules(bay.take(disk))
    # The lock without another process that has the disk open: it is this process's own.
    other = os.open(disk.device, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)
    monkeypatch.setattr(guard, "opened", lambda *_: iter(()))
    assert rules(bay.take(disk)) == {Rule.LEASED}
    monkeypatch.setattr(guard, "_UDEV", 10.0)
    threading.Timer(0.2, os.close, (other,)).start()
    began = time.monotonic()
    assert rules(bay.take(disk)) == set()
    assert time.monotonic() - began > 0.1


def test_only_the_whole_serial_lets_a_disk_be_written_to(bay: Bay) -> None:
    disk = bay.loop("disk")
    serial = disk.named.serial
    for typed in ((), (serial[:-1],), (f"{serial}x",), ("",), (serial.upper(),)):
        held = bay.take(disk, *typed)
        assert isinstance(held, Held)
        assert not held.writable
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(held.descriptor, b"x")
        held.release()
    held = bay.take(disk, "another", serial)
    assert isinstance(held, Held)
    assert held.writable
    assert os.write(held.descriptor, b"x") == 1
    held.release()


def test_a_disk_that_tells_no_serial_is_never_written_to(bay: Bay) -> None:
    disk = bay.loop("disk")
    refused = guard.take(bay.ground, replace(disk.named, serial=""), ("",))
    assert rules(refused) == {Rule.CHANGED}
    assert serial_of((1, 1)) == ""  # a device that does not exist


def test_nothing_begins_while_it_is_held(bay: Bay) -> None:
    disk = bay.loop("disk")
    point = bay.path / "m"
    point.mkdir()

    def attempts() -> list[bool]:
        tool = subprocess.run(["mkfs.ext4", "-q", disk.device], capture_output=True)
        table = subprocess.run(["blockdev", "--rereadpt", disk.device], capture_output=True)
        mounted = mount(disk.device, point) == 0
        swapped = swap_on(disk.device) != errno.EBUSY
        return [tool.returncode == 0, table.returncode == 0, mounted, swapped]

    held = bay.take(disk)
    assert isinstance(held, Held)
    assert attempts() == [False, False, False, False]
    assert held.objections() == ()
    held.release()
    succeeded = attempts()
    unmount(point)
    assert succeeded == [True, True, True, False]  # a mounted disk cannot be used as swap


def test_what_was_written_past_the_claim_is_seen_at_the_last_look(bay: Bay) -> None:
    disk = bay.loop("disk")
    held = bay.take(disk, disk.named.serial)
    assert isinstance(held, Held)
    assert held.objections() == ()
    with process(HOLD, disk.device, "os.O_RDWR") as child:
        assert [o.rule for o in held.objections()] == [Rule.OPEN]
        assert held.objections((child.pid,)) == ()
    _md(4096, disk)
    assert [o.rule for o in held.objections()] == [Rule.SIGNATURE] * 2
    held.release()


def test_looking_claims_and_locks_nothing(bay: Bay) -> None:
    disk = bay.loop("disk")
    device, objections = guard.look(bay.ground, str(disk.name))
    assert device is not None
    assert objections == ()
    assert not bay.ground.leases.exists()
    with Path(disk.device).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_refused_disk_is_as_it_was(bay: Bay) -> None:
    """No refusal writes to the disk or keeps it open."""
    disk = bay.loop("disk")
    _ext4(disk)
    told("sync")
    before, open_before = disk.file.read_bytes(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        assert rules(bay.take(disk, disk.named.serial)) == {Rule.SIGNATURE}
    assert disk.file.read_bytes() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_other_ways_than_blocks_have_their_reasons(bay: Bay, tmp_path: Path) -> None:
    with Path(bay.loop("disk").device).open("rb") as file:
        number = read(file.fileno()).number
    assert alternatives.lun(number) == "it is not a SCSI disk but a virtual device"
    assert alternatives.vfio(number) == "it is not an NVMe disk"
    # Simulated /sys of other hosts.
    controller = tmp_path / "pci" / "0000:01:00.0"
    disk = controller / "nvme" / "nvme0" / "nvme0n1"
    (disk / "device").mkdir(parents=True)
    groups = tmp_path / "groups"
    assert "no IOMMU" in alternatives.vfio(number, system=disk, groups=groups)
    (groups / "7" / "devices" / "0000:01:00.0").mkdir(parents=True)
    assert "in no IOMMU group" in alternatives.vfio(number, system=disk, groups=groups)
    (controller / "iommu_group").symlink_to(groups / "7")
    assert "cannot undo" in alternatives.vfio(number, system=disk, groups=groups)
    (groups / "7" / "devices" / "0000:01:00.1").mkdir()
    assert "0000:01:00.1" in alternatives.vfio(number, system=disk, groups=groups)
    (disk / "device" / "subsystem").symlink_to("/sys/bus/scsi")
    assert "the limits" in alternatives.lun(number, system=disk)
