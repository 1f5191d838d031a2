"""From a guest and its cells to procedures: every host and guest command, before any of them runs.

Nothing here asks the world: paths, accelerator and keys come in as data, and a step never needs
what an earlier step returned. Disks go by serial, so their paths in the guest are known too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from lab import catalog
from lab.compile.cloud_init import Identity, meta_data, user_data
from lab.compile.domain_xml import NAME, Machine, domain_xml
from lab.disks import guest_path
from lab.model.procedure import (
    AttachDisk,
    GuestCommand,
    HostCommand,
    MakeDirectory,
    Procedure,
    RestoreGuest,
    SaveGuest,
    StartGuest,
    Step,
    Timed,
    Verify,
    WaitForSsh,
    WriteFile,
    words,
)
from lab.model.scenario import Cell, Guest, Throttle
from lab.units import MIB

MOUNT: Final = "/mnt/bench"
BOOT_TIMEOUT: Final = {"kvm": 60.0, "tcg": 240.0}
"""Seconds until a cold guest must answer; under TCG a boot takes 24 to 40 on an idle host."""

RESTORE_TIMEOUT: Final = 60.0
"""Seconds until a restored guest must answer; it does within 2 on an idle host."""

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
TCG_ARGUMENTS: Final = ("nokaslr", "no_timer_check")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and on what a guest will run."""

    directory: str
    """The guest's own directory; everything that it leaves on the host is in there."""
    accelerator: str
    emulator: str
    machine_type: str
    image_disk: str
    kernel: str | None
    initrd: str | None
    as_root: bool
    """Whether the lab runs as root, and libvirt must be told to stay so."""


def qemu_conf(*, as_root: bool) -> str:
    """libvirt's ``qemu.conf`` for an embedded root: no daemon, no cgroups, no other user."""
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
    """The domain of a guest that boots."""
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
    """Make the guest's files, start it, and wait until SSH answers with the pinned key."""
    steps = [
        *_boot(guest, site, identity, scale),
        GuestCommand(label="versions in the guest", script=_ENVIRONMENT, capture="environment"),
    ]
    return Procedure(name=identity.guest, steps=tuple(steps))


def bake_procedure(
    guest: Guest, site: Site, identity: Identity, key: str, scale: float = 1.0
) -> Procedure:
    """Boot a guest and save it, for all others of its kind."""
    steps = [*_boot(guest, site, identity, scale), SaveGuest(key=key, environment=_ENVIRONMENT)]
    return Procedure(name=identity.guest, steps=tuple(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A warm state, as a procedure needs it."""

    key: str
    memory: str
    root: str
    seed: str
    saved_directory: str


def restore_procedure(name: str, site: Site, saved: Saved, scale: float = 1.0) -> Procedure:
    """Start a guest from a warm state: its own files over the saved ones, no boot."""
    directory = PurePosixPath(site.directory)
    root, seed = str(directory / "root.qcow2"), str(directory / "seed.iso")
    steps: list[Step] = [
        *_places(site),
        HostCommand(
            label="seed of the saved guest", argv=("cp", saved.seed, seed), creates=(seed,)
        ),
        _overlay(saved.root, root),
        RestoreGuest(
            key=saved.key,
            state=saved.memory,
            saved_directory=saved.saved_directory,
            directory=site.directory,
            console=str(directory / "console.log"),
        ),
        WaitForSsh(timeout=RESTORE_TIMEOUT * scale),
    ]
    return Procedure(name=name, steps=tuple(steps))


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
        argv=("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", path),
        creates=(path,),
    )


def _boot(guest: Guest, site: Site, identity: Identity, scale: float) -> tuple[Step, ...]:
    directory = PurePosixPath(site.directory)
    machine = machine_of(guest, site)
    seed = directory / "seed"
    return (
        *_places(site),
        MakeDirectory(path=str(seed)),
        WriteFile(
            path=str(seed / "user-data"), content=user_data(identity), mode=0o600, secret=True
        ),
        WriteFile(path=str(seed / "meta-data"), content=meta_data(identity)),
        HostCommand(
            label="seed for cloud-init",
            argv=(
                *("xorriso", "-as", "genisoimage", "-quiet"),
                *("-output", machine.seed, "-volid", "cidata", "-joliet", "-rational-rock"),
                *(str(seed / "user-data"), str(seed / "meta-data")),
            ),
            creates=(machine.seed,),
        ),
        _overlay(site.image_disk, machine.root_disk),
        StartGuest(
            name=NAME,
            xml=domain_xml(machine),
            xml_path=str(directory / "domain.xml"),
            console=machine.console,
        ),
        WaitForSsh(timeout=BOOT_TIMEOUT[site.accelerator] * scale),
    )


def cell_procedure(
    cell: Cell, guest_directory: str, expected_seconds: Mapping[str, float] | None = None
) -> Procedure:
    """Plug fresh disks in, build the array, read it back, run every workload, take it all apart."""
    expected = expected_seconds or {}
    steps: list[Step] = []
    directory = PurePosixPath(guest_directory) / "disks"
    for index, (serial, disk) in enumerate(cell.each_disk, 1):
        model = catalog.disk_model(disk.model)
        path = str(directory / f"{serial}.{disk.format.value}")
        steps.extend(model.create(disk, path))
        steps.append(
            AttachDisk(
                serial=serial,
                xml=model.xml(disk, serial=serial, path=path, index=index),
                xml_path=str(directory / f"{serial}.xml"),
            )
        )
    steps.append(_disks_read_back(cell))
    target = guest_path(cell.each_disk[0][1], cell.each_disk[0][0]) if cell.disks else ""
    if cell.array is not None:
        kind = catalog.array_kind(cell.array.kind)
        paths = [guest_path(disk, serial) for serial, disk in cell.each_disk]
        steps.extend(kind.assemble(cell.array, paths, [d.size for _, d in cell.each_disk]))
        target = kind.target(cell.array)
    if cell.filesystem is not None:
        steps.extend(_filesystem(cell, target))
        target = f"{MOUNT}/data"
    if cell.workloads:
        steps.append(_programs(cell))
    for trial in range(1, cell.trials + 1):
        for workload in cell.workloads:
            tool = catalog.workload(workload.tool)
            parameters = tool.parameters.model_validate(workload.parameters)
            steps.append(
                Timed(
                    workload=workload.name,
                    trial=trial,
                    before=_before(cell),
                    script=tool.script(parameters, target),
                    after=_counters(cell),
                    timeout=cell.timeout,
                    expected_seconds=expected.get(workload.name),
                )
            )
    if cell.array is not None:
        steps.append(
            GuestCommand(
                label="the array's state at the end",
                script="cat /proc/mdstat; dmesg | tail -n 40",
                capture="end",
            )
        )
    return Procedure(name=cell.scenario, steps=tuple(steps))


_ENVIRONMENT: Final = """\
echo "kernel=$(uname -r)"
echo "mdadm=$(mdadm --version 2>&1 | head -n 1)"
echo "fio=$(fio --version 2>/dev/null)"
echo "cloud_init=$(dpkg-query --show --showformat='${Version}' cloud-init 2>/dev/null ||
    cloud-init --version 2>&1 | head -n 1)"
echo "cpus=$(nproc)"
echo "memory_kib=$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)"
sed -n 's/^PRETTY_NAME="\\(.*\\)"/os=\\1/p' /etc/os-release"""


def _disks_read_back(cell: Cell) -> Verify:
    """Every disk is there under its serial, with its size, and has the scheduler it should have.

    Under software emulation each process costs a hundredth of a second or more, so the shell does
    by itself whatever it can.
    """
    paths = [guest_path(disk, serial) for serial, disk in cell.each_disk]
    wanted = " ".join(f"{serial}:{disk.scheduler}" for serial, disk in cell.each_disk)
    lines = [
        "udevadm settle --timeout=30",
        f"for path in {' '.join(paths)}; do",
        '  tries=0; until [ -b "$path" ] || [ $tries -ge 100 ]',
        "  do sleep 0.1; tries=$((tries + 1)); done",
        "done",
        f"set -- {wanted}",
        f"for device in $(readlink -f {' '.join(paths)}); do",
        "  queue=/sys/block/${device##*/}/queue serial=${1%:*}",
        '  echo "${1##*:}" > "$queue/scheduler" || true',
        '  read -r sectors < "$queue/../size"; echo "$serial.bytes=$((sectors * 512))"',
        '  read -r schedulers < "$queue/scheduler"',
        '  chosen=${schedulers#*\\[}; echo "$serial.scheduler=${chosen%%\\]*}"',
        "  shift",
        "done",
    ]
    expect: dict[str, str] = {}
    for serial, disk in cell.each_disk:
        expect[f"{serial}.bytes"] = str(disk.size)
        expect[f"{serial}.scheduler"] = disk.scheduler
    return Verify(name="disks", script="\n".join(lines), expect=expect, timeout=60.0)


def _programs(cell: Cell) -> Verify:
    """The programs that the workloads run are in the guest."""
    needed = sorted({p for w in cell.workloads for p in catalog.workload(w.tool).programs})
    script = "\n".join(
        f"command -v {p} >/dev/null && echo {p}=yes || echo {p}=missing" for p in needed
    )
    return Verify(name="programs", script=script, expect=dict.fromkeys(needed, "yes"))


def _counters(cell: Cell) -> str:
    """Which device each disk is, and the kernel's counters of all devices."""
    serials = " ".join(serial for serial, _ in cell.each_disk)
    paths = " ".join(guest_path(disk, serial) for serial, disk in cell.each_disk)
    return (
        f"set -- {serials}\n"
        f'for device in $(readlink -f {paths}); do echo "disk $1 ${{device##*/}}"; shift; done\n'
        "cat /proc/diskstats"
    )


def _before(cell: Cell) -> str:
    """Dirty pages out, cached ones dropped, buckets run dry; then the counters."""
    rest = max((_drain(disk.throttle) for disk in cell.disks), default=0.0)
    settle = f"sync; echo 3 > /proc/sys/vm/drop_caches; sleep {max(rest, 0.2):.2f}"
    return f"{settle}\n{_counters(cell)}"


def _drain(throttle: Throttle) -> float:
    """Seconds until QEMU's fullest bucket has leaked: its size, and one request of 1 MiB more.

    ``util/throttle.c``: without a maximum a bucket holds a tenth of a second, with one
    ``max * seconds``; a request is let in as long as the bucket is not over its size.
    """
    longest = 0.0
    for name in ("total", "read", "write"):
        for unit, request in (("bytes", MIB), ("operations", 1)):
            limit = f"{name}_{unit}_per_second"
            average = getattr(throttle, limit)
            if not average:
                continue
            burst = getattr(throttle, f"{limit}_max")
            seconds = getattr(throttle, f"{limit}_max_seconds") or 1
            bucket = burst * seconds if burst else average / 10
            longest = max(longest, (bucket + request) / average)
    return min(longest, 60.0)


def _filesystem(cell: Cell, target: str) -> tuple[Step, ...]:
    """Make the file system, mount it, and see that it is mounted."""
    filesystem = cell.filesystem
    assert filesystem is not None
    force = "-f" if filesystem.type == "xfs" else "-F"
    options = ("-o", ",".join(filesystem.mount_options)) if filesystem.mount_options else ()
    make = words(f"mkfs.{filesystem.type}", "-q", force, *filesystem.options, target)
    mount = words("mount", "-t", filesystem.type, *options, target, MOUNT)
    return (
        GuestCommand(
            label=f"{filesystem.type} on the array",
            script=f"{make}\nmkdir -p {MOUNT}\n{mount}",
            timeout=cell.timeout,
            undo=f"umount {MOUNT}",
        ),
        Verify(
            name="filesystem",
            script=f'echo "type=$(findmnt -n -o FSTYPE {MOUNT})"\n'
            f'echo "source=$(readlink -f "$(findmnt -n -o SOURCE {MOUNT})")"\n'
            f'[ "$(readlink -f {target})" = "$(readlink -f "$(findmnt -n -o SOURCE {MOUNT})")" ]'
            " && echo on_target=yes",
            expect={"type": filesystem.type, "on_target": "yes"},
        ),
    )


def memory_of(guest: Guest) -> int:
    """Host memory that a guest may come to hold, in bytes: its own, QEMU's and the TCG cache."""
    return guest.memory + 400 * MIB
