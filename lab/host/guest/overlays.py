"""A guest that runs one script over disks, without network and SSH, and ends.

Inputs are descriptors that this process opened for reading only: QEMU gets them in descriptor sets
and opens ``/dev/fdset/N`` with ``read-only``, so neither it nor the guest can write to them. The
guest's writes go to qcow2 overlays. QEMU is killed with its parent.

The guest boots the image's kernel and initrd with ``init=/bin/sh`` and the script as a disk; no
systemd, udev or cloud-init runs. Its second serial port carries the answers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.core import qemu_img
from lab.core.errors import FullError, GuestError, HostError, InputError, LimitError, cause_of_panic
from lab.core.qemu_img import QCOW2, RAW
from lab.core.units import GIB, MIB, format_size, is_digits
from lab.host.guest.virtual.confined import SANDBOX
from lab.host.system import accelerator, clock, files, process
from lab.model.image.manifest import Image

SECTOR: Final = 512
_ARGUMENTS: Final = (
    "root=/dev/vda ro panic=-1 oops=panic console=ttyS0 quiet mitigations=off norandmaps nokaslr"
    " audit=0 nowatchdog cryptomgr.notests no_timer_check tsc=reliable raid=noautodetect"
    " init=/bin/sh -- /dev/vdb"
)
"""An argument after ``--`` is one of init's."""
_ERRORS: Final = "werror=report,rerror=report"
"""A full disk of the host is an error for the guest; by default QEMU would stop it."""
_OVERLAY: Final = "cluster_size=64k,extended_l2=on,lazy_refcounts=on"
"""Allocation in units of 2 KiB, with small tables also for 20 TB."""

PRELUDE: Final = r"""
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DM_DISABLE_UDEV=1 TERM=dumb
for d in /run /tmp /mnt; do mount -t tmpfs -o mode=755 tmpfs $d; done
mkdir -p /run/lock /run/lvm /run/cryptsetup /run/mdadm
exec 3>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo
echo 1 >/proc/sys/kernel/sysrq
modprobe -qa virtio_scsi sd_mod raid0 raid1 raid10 raid456 dm_mod
mount -t tmpfs -o mode=755 tmpfs /etc/mdadm
printf 'AUTO -all\nHOMEHOST <ignore>\n' >/etc/mdadm/mdadm.conf
# item ID SECONDS SCRIPT: run it, with the functions of /tmp/lib, and send status and output
item() {
  timeout -k 10 "$2" sh -c "[ ! -f /tmp/lib ] || . /tmp/lib; $3" >/tmp/out 2>&1 </dev/null 3>&-
  status=$?
  head -c 4194304 /tmp/out >/tmp/sent
  printf '\n@%s %s %s\n' "$1" "$status" "$(stat -c %s /tmp/sent)" >&3
  cat /tmp/sent >&3
}
finish() { printf '\n@end 0 0\n' >&3; sync; echo b >/proc/sysrq-trigger; sleep 60; }
scsi=/sys/bus/scsi/devices
# disk TARGET LUN: the device of a disk
disk() { echo /dev/$(ls -d $scsi/*:0:$1:$2/block/* | sed 's,.*/,,'); }
n=0
while [ "$(ls -d $scsi/*:*:*:*/block/* 2>/dev/null | wc -l)" -lt @DISKS@ ] && [ $n -lt 600 ]; do
  sleep 0.1
  n=$((n + 1))
done
"""
"""Shell lines before each script: functions ``item``, ``disk`` and ``finish``."""


_MOST: Final = {"answers": 256 * MIB, "console": 64 * MIB, "qemu.log": 16 * MIB}
"""Most bytes of a guest's files; 20 items of 4 MiB are answers."""
_FREE: Final = GIB
"""Bytes of the disk that stay free: what the guest writes goes to overlays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A disk that is only read."""

    descriptor: int
    """Open for reading only; raw."""
    block_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A disk of the guest."""

    target: int
    lun: int
    path: Path
    """The overlay, or a raw file of the lab's own that the guest writes to."""
    base: int | None = None
    """Number of the base below the overlay; ``None``: a raw file."""
    sector: int = SECTOR
    """Logical block size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an item of the script printed."""

    status: int
    output: str


def overlay(path: Path, size: int) -> None:
    """Make an empty overlay; QEMU is told its base when it starts."""
    process.run(qemu_img.create(QCOW2, path, size, ("-o", _OVERLAY)), timeout=60)


def run(
    image: Image,
    script: str,
    *,
    bases: Sequence[Base] = (),
    drives: Sequence[Drive] = (),
    work: Path,
    seconds: float,
    memory: int = 512,
    more: Mapping[str, Path] | None = None,
    descriptors: Mapping[str, int] | None = None,
) -> dict[str, Answer]:
    """Run a script to its end; return its items' answers, also those before a crash.

    ``seconds``: of the guest at native speed; under emulation it gets more. ``work``: an empty
    directory. ``more``: raw files that the guest sees after the script, by name. ``descriptors``:
    the same, for files that are open here and only read. ``GuestError``: it
    did not answer at all.
    """
    if image.kernel is None or image.initrd is None:
        raise InputError(
            f"the image '{image.name}' has no separate kernel and initrd",
            hint="use an image that was built here: lab image build rescue",
        )
    if shutil.which("setpriv") is None:
        raise HostError("the program 'setpriv' is not installed", hint="apt install util-linux")
    text = PRELUDE.replace("@DISKS@", str(len(drives))) + script + "\nfinish\n"
    data = text.encode()
    data += b"\n" * (-len(data) % SECTOR)
    files.write(work / "script", data)
    told, log = work / "answers", work / "console"
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--no-new-privs"),
        # Root's QEMU opens files of other users, and may do nothing else that they may not.
        *(("--inh-caps=-all", "--bounding-set=-all,+dac_override") if os.geteuid() == 0 else ()),
        "--",
        *_command(image, bases, drives, work, memory, told, log, more or {}, descriptors or {}),
    ]
    qemu = process.Daemon(
        command,
        log=work / "qemu.log",
        descriptors=[*(base.descriptor for base in bases), *(descriptors or {}).values()],
    )
    over = ""
    try:
        countdown = clock.Countdown(clock.limit(seconds))
        while qemu.status() is None and countdown.left() > 0 and not over:
            qemu.wait(clock.LOOK / 4)
            over = _over(work)
        ended = qemu.status()
    finally:
        qemu.end(5.0)
    if over:
        raise LimitError(f"the guest of '{image.name}' printed more than {over}: it was ended")
    answers = parse(told.read_bytes() if told.exists() else b"")
    if not answers:
        errors = process.tail(work / "qemu.log", 2000).strip()
        console = process.tail(log, 4000) if log.exists() else ""
        why = errors or cause_of_panic(console) or "it printed nothing"
        how = "did not answer in time" if ended is None else "ended without an answer"
        raise GuestError(f"the guest of '{image.name}' {how}: {why}")
    return answers


def _over(work: Path) -> str:
    """Return the limit of a file that a guest has exceeded; empty: none.

    ``FullError``: the disk is almost full.
    """
    if shutil.disk_usage(work).free < _FREE:
        raise FullError(
            f"less than {format_size(_FREE)} is free on the disk of '{work}', and what the guest"
            " writes goes there: it was ended",
            hint="free some space, or set LAB_HOME to another disk",
        )
    for name, most in _MOST.items():
        if (work / name).exists() and (work / name).stat().st_size > most:
            return format_size(most)
    return ""


def parse(raw: bytes) -> dict[str, Answer]:
    """Return the complete items; a guest that was killed leaves the last one unfinished."""
    found: dict[str, Answer] = {}
    place = 0
    while (begin := raw.find(b"\n@", place)) >= 0:
        end = raw.find(b"\n", begin + 2)
        words = raw[begin + 2 : end].split() if end > 0 else []
        if len(words) != 3 or not all(is_digits(word.decode("latin-1")) for word in words[1:]):
            place = begin + 2
            continue
        length = int(words[2])
        body = raw[end + 1 : end + 1 + length]
        if len(body) < length:
            break
        found[words[0].decode(errors="replace")] = Answer(
            status=int(words[1]), output=body.decode(errors="replace")
        )
        place = end + 1 + length - 1 if length else end
    return found


def _command(
    image: Image,
    bases: Sequence[Base],
    drives: Sequence[Drive],
    work: Path,
    memory: int,
    told: Path,
    log: Path,
    more: Mapping[str, Path],
    descriptors: Mapping[str, int],
) -> list[str]:
    found = accelerator.find(image.kernel)
    words = [
        *(accelerator.emulator(), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "pc,usb=off,vmport=off", "-accel", found.kind),
        *("-cpu", "host" if found.kind == "kvm" else "max"),
        *("-m", str(memory), "-smp", "1", "-no-reboot", "-sandbox", SANDBOX),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _ARGUMENTS),
        *("-chardev", f"file,id=c0,path={_value(log)}", "-serial", "chardev:c0"),
        *("-chardev", f"file,id=c1,path={_value(told)}", "-serial", "chardev:c1"),
        *("-device", "virtio-scsi-pci,id=scsi,num_queues=1"),
    ]
    fixed = [
        ("root", {"driver": QCOW2, "file": _file(image.disk), "read-only": True}),
        ("script", {"driver": RAW, "file": _file(work / "script"), "read-only": True}),
    ]
    fixed += [(name, {"driver": RAW, "file": _file(path)}) for name, path in more.items()]
    for place, (name, descriptor) in enumerate(descriptors.items(), 1000):
        words += ["-add-fd", f"fd={descriptor},set={place},opaque={name}"]
        file = {"driver": "file", "filename": f"/dev/fdset/{place}", "read-only": True}
        fixed.append((name, {"driver": RAW, "file": file, "read-only": True}))
    for name, node in fixed:
        words += ["-blockdev", json.dumps({"node-name": name, **node})]
        words += ["-device", f"virtio-blk-pci,drive={name},serial={name},{_ERRORS}"]
    for number, base in enumerate(bases):
        words += ["-add-fd", f"fd={base.descriptor},set={number + 1},opaque=input{number}"]
        driver = "host_device" if base.block_device else "file"
        node = {
            "node-name": f"in{number}",
            "driver": RAW,
            "read-only": True,
            "auto-read-only": False,
            "file": {
                "driver": driver,
                "filename": f"/dev/fdset/{number + 1}",
                "read-only": True,
                "auto-read-only": False,
            },
        }
        words += ["-blockdev", json.dumps(node)]
    for drive in drives:
        name = f"t{drive.target}d{drive.lun}"
        disk: dict[str, Any] = {
            "node-name": name,
            "cache": {"no-flush": True},
            "file": _file(drive.path),
        }
        if drive.base is None:
            disk |= {"driver": RAW}
        else:
            disk |= {"driver": QCOW2, "backing": f"in{drive.base}"}
        words += ["-blockdev", json.dumps(disk)]
        size = f"logical_block_size={drive.sector},physical_block_size={max(drive.sector, 512)}"
        words += [
            "-device",
            f"scsi-hd,drive={name},serial={name},channel=0,scsi-id={drive.target},"
            f"lun={drive.lun},{size},{_ERRORS}",
        ]
    return words


def _file(path: Path) -> dict[str, Any]:
    return {"driver": "file", "filename": str(path), "locking": "off"}


def _value(path: Path) -> str:
    return str(path).replace(",", ",,")
