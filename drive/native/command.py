"""The command line of a native guest: Linux as a program of the host, in a sandbox. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drive.sealed import SETTLE, START

REGION: Final = 9
"""Number of the region's open file. The kernel prints its command line, so that is the same for
every guest: paths are those inside the sandbox."""
SETUP: Final = f"""\
/lib/systemd/systemd-udevd --daemon
udevadm trigger --action=add --subsystem-match=block
{SETTLE}\
engines='lib(gfapi|ibverbs|nbd|pmem|pmemblk|rados|rbd|rdmacm)\\.so'
LD_TRACE_LOADED_OBJECTS=1 fio 2>/dev/null |
  sed -nE "s#.* (/[^ ]*/$engines[^ ]*).*#/run/lab-engines.so \\1 none bind#p" >/run/lab-fstab
mount -a -T /run/lab-fstab
"""
"""Shell lines before a guest's commands: start udev, and replace the libraries of fio's network
engines (``engines.c``). Programs are not read beforehand: the processor takes no time."""
ENVIRONMENT: Final = {
    # A static C library registers rseq, and the kernel writes there after the stub has unmapped it.
    "GLIBC_TUNABLES": "glibc.pthread.rseq=0",
    "TMPDIR": "/dev/shm",  # noqa: S108  a file there is Linux's memory
    "HOME": "/tmp",  # noqa: S108
}
"""All that the process has; the guest's programs have another one (``init.c``)."""
_SHELL: Final = f'exec {REGION}<>"$1"; shift; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Files and settings of a native guest."""

    kernel: Path
    initramfs: Path
    region: Path
    base: Path
    memory: int = 512
    """In MiB."""
    arguments: str = ""
    """Further kernel arguments."""
    sees_processor: bool = False
    """Programs see the host's processor, which cannot hide its features."""


def arguments(memory: int, further: str = "", *, sees_processor: bool = False) -> list[str]:
    """Return the kernel's arguments: equal on every host."""
    return [
        f"mem={memory}M",
        "time-travel=inf-cpu",
        f"time-travel-start={START}",
        "initrd=/initramfs",
        f"lab_region=/proc/self/fd/{REGION}",
        "lab_base=/base",
        *("con=null", "con0=null,fd:1", "ssl=null", "quiet"),
        *("norandmaps", "random.trust_cpu=off", "lpj=4000000"),
        # A panic ends the process, and so does a restart.
        *("panic=-1", "oops=panic", "noreboot"),
        *("uml_dir=/tmp", "umid=lab"),
        *(["lab_processor=host"] if sees_processor else []),
        *further.split(),
    ]


def command(guest: Guest, masked: Sequence[str] = ()) -> list[str]:
    """Return the command line. The guest ends the process by powering off.

    It sees four files of the host, the region, the root file system's image, kernel and initramfs,
    no network and no other process; it ends with the process that started it. ``masked``: words of
    bubblewrap that hide the host's settings in ``/proc``, which depend on the host.
    """
    return [
        *("sh", "-c", _SHELL, "-", str(guest.region)),
        *sandbox(guest, masked),
        "/linux",
        *arguments(guest.memory, guest.arguments, sees_processor=guest.sees_processor),
    ]


def sandbox(guest: Guest, masked: Sequence[str] = ()) -> Sequence[str]:
    """Return the words of bubblewrap, with the separator."""
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--unshare-user", "--disable-userns", "--uid", "0", "--gid", "0", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for inside, path in (
        ("/linux", guest.kernel),
        ("/initramfs", guest.initramfs),
        ("/base", guest.base),
    ):
        words += ["--ro-bind", str(path), inside]
    size = str((guest.memory + 16) << 20)
    words += ["--size", str(1 << 20), "--tmpfs", "/tmp", "--proc", "/proc", *masked]  # noqa: S108
    words += ["--dev-bind", "/dev/null", "/dev/null", "--size", size, "--tmpfs", "/dev/shm"]  # noqa: S108
    return [*words, "--remount-ro", "/", "--chdir", "/", "--"]
