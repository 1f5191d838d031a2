"""A guest's procedure: boot, restore from a snapshot, or boot and save a snapshot.

Pure: paths, accelerator and keys are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from lab.compile.guest.cloud_init import Identity, meta_data, user_data
from lab.compile.guest.disks import NO_DISKS, Plugged, disk_files, disk_steps
from lab.compile.guest.domain_xml import NAME, Machine, Virtual, domain_xml
from lab.core import qemu_img
from lab.core.units import MIB
from lab.model.execution.procedure import (
    GuestCommand,
    HostCommand,
    MakeDirectory,
    Procedure,
    RestoreGuest,
    SaveGuest,
    StartGuest,
    Step,
    WaitForSsh,
    WriteFile,
)
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest

SETTLED: Final = """\
systemctl is-system-running --wait >/dev/null || true
udevadm settle --timeout=60 || true
modprobe -qa raid0 raid1 raid10 raid456 || true
sync
echo 3 > /proc/sys/vm/drop_caches
for program in sh bash dd cat sleep readlink grep sed head tail dmesg sync mkdir rm date \\
    udevadm mdadm wipefs blkid blockdev mount umount fio; do
  path=$(command -v "$program") && cat "$path" >/dev/null
done
mdadm --version >/dev/null 2>&1 || true
udevadm --version >/dev/null 2>&1 || true
wipefs --version >/dev/null 2>&1 || true
dmesg >/dev/null"""
"""Shell lines that complete the boot before a snapshot. SSH answers in the middle of a boot, so
without them each restored guest would spend seconds on the rest of it. They also read the programs
that every cell runs, and load md's modules: raid6 and xor then try all their algorithms (0.5 s of
emulated CPU time, ``lib/raid6/algos.c: raid6_select_algo``)."""

WAITER_ID: Final = "/run/lab-waiter.pid"
ASK: Final = "/run/lab-waiter.ask"
ANSWER: Final = "/run/lab-waiter.answer"
WAITER: Final = f"""\
rm -f {WAITER_ID} {ASK} {ANSWER}
mkfifo -m 600 {ASK} {ANSWER}
perl -e '
  open(POOL, "+>", "/dev/urandom") && open(ASK, "+<", "{ASK}") &&
    open(ANSWER, "+<", "{ANSWER}") or exit 1;
  while (defined($line = <ASK>)) {{
    ($seconds, $micro, $seed) = split " ", $line;
    $done = syscall(164, pack("q2", $seconds, $micro), 0) == 0 &&
      syswrite(POOL, pack("H*", $seed)) && ioctl(POOL, 0x5207, 0);
    syswrite(ANSWER, $done ? "done\\n" : "failed\\n");
  }}' </dev/null >/dev/null 2>&1 &
echo $! > {WAITER_ID}"""
"""Starts Perl in a guest before it is saved. In each restored guest Perl takes the time and a seed
from ``ASK``, as :func:`lab.host.guest.ssh.restored.script` writes them. 164 is ``settimeofday`` of
x86-64 (``arch/x86/entry/syscalls/syscall_64.tbl``), ``0x5207`` is ``RNDRESEEDCRNG``. A pipe that is
open for reading and writing opens at once and never reaches its end (``fifo(7)``)."""

ZERO: Final = """\
sync
free=$(sed -n 's/^MemFree: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)
mkdir -p /run/zero
mount -t tmpfs -o size=100% zero /run/zero
dd if=/dev/zero of=/run/zero/memory bs=64K count=$((free / 64 - 256)) 2>/dev/null || true
umount /run/zero
rmdir /run/zero"""
"""Zeroes free memory, which the boot filled: it would all be saved and restored. QEMU writes a page
of zeros as one byte (``migration/ram.c: save_zero_page``)."""

ENVIRONMENT: Final = """\
echo "kernel=$(uname -r)"
echo "mdadm=$(mdadm --version 2>&1 | head -n 1)"
echo "fio=$(fio --version 2>/dev/null)"
echo "cloud_init=$(dpkg-query --show --showformat='${Version}' cloud-init 2>/dev/null ||
    cloud-init --version 2>&1 | head -n 1)"
echo "cpus=$(nproc)"
echo "memory_kib=$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)"
sed -n 's/^PRETTY_NAME="\\(.*\\)"/os=\\1/p' /etc/os-release"""
"""Shell lines that print versions and sizes of a guest, as ``key=value``."""

_KEPT: Final = "/run/lab-environment"
KEEP_ENVIRONMENT: Final = f"(\n{ENVIRONMENT}\n) >{_KEPT}\n"
"""Shell lines that store these values in a guest to be saved: a restored one saves 1.7 s of host
CPU."""
KEPT_ENVIRONMENT: Final = f"if [ -e {_KEPT} ]; then cat {_KEPT}; else\n{ENVIRONMENT}\nfi"
"""Prints :data:`ENVIRONMENT`, from the snapshot's stored values if it has them."""


BOOT_TIMEOUT: Final = {"kvm": 60.0, "tcg": 240.0}
"""Timeout in seconds for a cold guest to answer; under TCG a boot takes 24 to 40 on an idle
host."""

UNSEALED_BOOT_TIMEOUT: Final = 600.0
"""Timeout in seconds for a guest in virtual time to answer. Its boot takes 13 s of its clock. That
took up to 220 s on a host with three times as many busy processes as CPUs."""

RESTORE_TIMEOUT: Final = 60.0
"""Timeout in seconds for a restored guest to answer; on an idle host it does within 2."""

KERNEL_ARGUMENTS: Final = (
    "root=LABEL=root",
    "ro",
    "console=ttyS0",
    "quiet",
    "loglevel=4",
    "mitigations=off",
    "net.ifnames=0",
    "random.trust_cpu=on",
    "systemd.show_status=0",
    "panic=-1",  # a panic reboots at once, and a reboot ends the domain: no wait for a dead guest
)
TCG_ARGUMENTS: Final = (
    "nokaslr",
    "no_timer_check",
    # QEMU translates code again for each address. With a program at the same address every time,
    # its second run costs half of the first.
    "norandmaps",
)
UNSEALED_ARGUMENTS: Final = (
    "console=ttyS0",
    "quiet",
    "loglevel=4",
    "net.ifnames=0",
    "systemd.show_status=0",
    "module_blacklist=nfit",  # it would make disks of the region and of the image
    "noautogroup",  # makes the busy process yield to processes of every session
    "LAB_INIT=/sbin/init",
)
"""Kernel arguments of a guest in virtual time with systemd and SSH, after those of a sealed one."""

BUSY: Final = "/run/lab-busy.pid"
"""File with the process id of the busy process; ``drive/init.c`` writes it."""

UNSEALED_REST: Final = 60
"""Seconds of the guest's clock, which jumps, for work that the boot has started. Without them the
first workload took 35 ms longer than in a sealed guest, after one of three boots."""

UNSEALED: Final = f"""\
systemctl is-system-running --wait >/dev/null || true
udevadm settle --timeout=60 || true
cat {BUSY} > /sys/fs/cgroup/cgroup.procs
systemctl stop '*.timer'
sysctl -q -w net.ipv4.tcp_retries2=255 net.ipv4.tcp_keepalive_intvl=32767 \\
    net.ipv4.tcp_keepalive_probes=127
kill -STOP $(cat {BUSY})
sleep {UNSEALED_REST}
kill -CONT $(cat {BUSY})"""
"""Commands for such a guest after its boot.

In the root control group the busy process yields to all others (``SCHED_IDLE``). In another group
it would get that group's share. Timers are stopped, since they would fire whenever the clock jumps.
TCP must keep a connection without traffic for an hour of the guest's clock, which may be four
seconds of the host's. The last lines wait for other work of the boot, such as udev's workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A guest's paths on the host, and its machine."""

    directory: str
    """The guest's directory, with all its files on the host."""
    accelerator: str
    emulator: str
    machine_type: str
    image_disk: str
    kernel: str | None
    initrd: str | None
    as_root: bool
    """Whether the lab runs as root. Then libvirt must not change the user."""


def qemu_conf(*, as_root: bool) -> str:
    """Return libvirt's ``qemu.conf`` for an embedded root: no daemon, no cgroups, no other user."""
    lines = [
        'stdio_handler = "file"',
        'security_driver = "none"',
        "namespaces = []",
        "cgroup_controllers = []",
        "remember_owner = 0",
    ]
    if as_root:
        lines += ['user = "root"', 'group = "root"', "dynamic_ownership = 0"]
    return "\n".join(lines) + "\n"


def machine_of(guest: Guest, site: Site) -> Machine:
    """Return the domain of a guest that boots."""
    directory = PurePosixPath(site.directory)
    arguments = (
        *KERNEL_ARGUMENTS,
        *(TCG_ARGUMENTS if site.accelerator == "tcg" else ()),
        *guest.kernel_arguments,
    )
    return Machine(
        accelerator=site.accelerator,
        emulator=site.emulator,
        machine_type=site.machine_type,
        cpus=guest.cpus,
        memory=guest.memory,
        root_disk=str(directory / "root.qcow2"),
        seed=str(directory / "seed.iso"),
        console=str(directory / "console.log"),
        kernel=site.kernel,
        initrd=site.initrd,
        kernel_arguments=arguments,
    )


def guest_procedure(guest: Guest, site: Site, identity: Identity, scale: float = 1.0) -> Procedure:
    """Make the guest's files, start it, wait for SSH with the pinned key."""
    steps = [
        *_boot(guest, site, identity, scale),
        GuestCommand(label="versions in the guest", script=ENVIRONMENT, capture="environment"),
    ]
    return Procedure(name=identity.guest, steps=tuple(steps))


def unsealed_procedure(
    guest: Guest,
    site: Site,
    identity: Identity,
    virtual: Virtual,
    arguments: str,
    scale: float = 1.0,
) -> Procedure:
    """Make the files of a guest in virtual time with SSH, start it, and wait for SSH.

    ``arguments``: the kernel arguments of a sealed guest. The memory region exists already.
    """
    directory = PurePosixPath(site.directory)
    machine = Machine(
        accelerator="tcg",
        emulator=site.emulator,
        machine_type=site.machine_type,
        cpus=1,
        memory=guest.memory,
        root_disk="",
        seed=str(directory / "seed.iso"),
        console=str(directory / "console.log"),
        kernel=site.kernel,
        initrd=site.initrd,
        kernel_arguments=(*arguments.split(), *UNSEALED_ARGUMENTS, *guest.kernel_arguments),
        virtual=virtual,
    )
    return Procedure(
        name=identity.guest,
        steps=(
            *_places(site),
            *_seed(site, identity, machine.seed),
            *_start(site, machine, UNSEALED_BOOT_TIMEOUT * scale),
        ),
    )


def bake_procedure(
    guest: Guest, site: Site, identity: Identity, key: str, scale: float = 1.0
) -> Procedure:
    """Boot a guest and save a snapshot for its guest configuration."""
    steps = [
        *_boot(guest, site, identity, scale),
        GuestCommand(
            label="the boot to its end",
            script=f"{SETTLED}\n{WAITER}",
            timeout=BOOT_TIMEOUT[site.accelerator] * scale,
        ),
        SaveGuest(key=key, environment=ENVIRONMENT, zero=ZERO),
    ]
    return Procedure(name=identity.guest, steps=tuple(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The files of a snapshot."""

    key: str
    memory: str
    root: str
    seed: str
    saved_directory: str


def restore_procedure(
    name: str, site: Site, saved: Saved, scale: float = 1.0, disks: Plugged = NO_DISKS
) -> Procedure:
    """Start a guest from a snapshot, without a boot.

    ``disks`` are the disks of the snapshot; the guest gets blank ones in their place.
    """
    return Procedure(name=name, steps=_restore(site, saved, scale, disks))


def disks_procedure(
    name: str, site: Site, saved: Saved, key: str, cell: Cell, scale: float = 1.0
) -> Procedure:
    """Restore a guest, attach a cell's disks, and save another snapshot with them."""
    steps = (
        *_restore(site, saved, scale, NO_DISKS),
        *disk_steps(cell, site.directory, NO_DISKS),
        SaveGuest(key=key, environment=ENVIRONMENT, zero=ZERO, over=site.image_disk),
    )
    return Procedure(name=name, steps=steps)


def _restore(site: Site, saved: Saved, scale: float, disks: Plugged) -> tuple[Step, ...]:
    directory = PurePosixPath(site.directory)
    root, seed = str(directory / "root.qcow2"), str(directory / "seed.iso")
    return (
        *_places(site),
        HostCommand(label="seed of the snapshot", argv=("cp", saved.seed, seed), creates=(seed,)),
        _overlay(saved.root, root),
        *disk_files(disks, site.directory),
        RestoreGuest(
            key=saved.key,
            state=saved.memory,
            saved_directory=saved.saved_directory,
            directory=site.directory,
            console=str(directory / "console.log"),
        ),
        WaitForSsh(timeout=RESTORE_TIMEOUT * scale),
    )


def _places(site: Site) -> tuple[Step, ...]:
    directory = PurePosixPath(site.directory)
    return (
        MakeDirectory(path=str(directory / "etc")),
        MakeDirectory(path=str(directory / "disks")),
        WriteFile(
            path=str(directory / "etc" / "qemu.conf"), content=qemu_conf(as_root=site.as_root)
        ),
    )


def _overlay(base: str, path: str) -> HostCommand:
    return HostCommand(
        label="root disk over the image",
        argv=qemu_img.overlay(base, path),
        creates=(path,),
    )


def _boot(guest: Guest, site: Site, identity: Identity, scale: float) -> tuple[Step, ...]:
    machine = machine_of(guest, site)
    return (
        *_places(site),
        *_seed(site, identity, machine.seed),
        _overlay(site.image_disk, machine.root_disk),
        *_start(site, machine, BOOT_TIMEOUT[site.accelerator] * scale),
    )


def _seed(site: Site, identity: Identity, path: str) -> tuple[Step, ...]:
    seed = PurePosixPath(site.directory) / "seed"
    return (
        MakeDirectory(path=str(seed)),
        WriteFile(
            path=str(seed / "user-data"), content=user_data(identity), mode=0o600, secret=True
        ),
        WriteFile(path=str(seed / "meta-data"), content=meta_data(identity)),
        HostCommand(
            label="seed for cloud-init",
            argv=(
                *("xorriso", "-as", "genisoimage", "-quiet"),
                *("-output", path, "-volid", "cidata", "-joliet", "-rational-rock"),
                *(str(seed / "user-data"), str(seed / "meta-data")),
            ),
            creates=(path,),
        ),
    )


def _start(site: Site, machine: Machine, timeout: float) -> tuple[Step, ...]:
    return (
        StartGuest(
            name=NAME,
            xml=domain_xml(machine),
            xml_path=str(PurePosixPath(site.directory) / "domain.xml"),
            console=machine.console,
        ),
        WaitForSsh(timeout=timeout),
    )


def memory_of(guest: Guest) -> int:
    """Return the host memory in bytes that a guest may use: its own, QEMU's and the TCG cache."""
    return guest.memory + 400 * MIB
