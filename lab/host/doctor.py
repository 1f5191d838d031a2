"""`lab doctor`: checks of this host; for each problem the command that fixes it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lab.core.errors import LabError
from lab.core.units import GIB, format_size
from lab.host import images
from lab.host.guest import servers
from lab.host.guest.libvirt import drives
from lab.host.system import accelerator, load, network, paths, process
from lab.plugins import catalog

PROGRAMS: Final = {
    "qemu-img": ("qemu-utils", True, "disks"),
    "xorriso": ("xorriso", True, "cloud-init seeds"),
    "virsh": ("libvirt-clients", False, "versions, and pasting what `lab scenario plan` prints"),
    "ssh": ("openssh-client", False, "`lab ssh`"),
    "mmdebstrap": ("mmdebstrap", False, "building images"),
    "mke2fs": ("e2fsprogs", False, "building images"),
    "git": ("git", False, "`lab patch`"),
    "bwrap": ("bubblewrap", False, "building images, and patch series in a sandbox"),
}
LIBVIRT: Final = "libvirt-daemon-system libvirt-daemon-driver-qemu"
HEADERS: Final = "libvirt-dev python3-dev gcc libc6-dev pkgconf"
"""pip needs them to build libvirt-python, which has no wheels."""
SPACE: Final = 4 * GIB
MEMORY: Final = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str
    good: bool
    needed: bool
    """Whether no run is possible without it."""
    detail: str
    mend: str = ""
    """The command that fixes it."""

    def as_data(self) -> dict[str, Any]:
        """Return the finding for ``--json``."""
        return asdict(self)


def findings() -> list[Finding]:
    """Run all checks; return them, most important first."""
    home = _home()
    rest = [*map(_program_of, PROGRAMS), _disk_server()]
    if not home.good:  # nothing else can be read
        return [home, _qemu(), _libvirt(), *rest, _memory()]
    return [
        home,
        _qemu(),
        _accelerator(),
        _libvirt(),
        *rest,
        _network(),
        _image(),
        _space(),
        _memory(),
        *_plugins(),
    ]


def _plugins() -> list[Finding]:
    """Return the plug-ins that did not come with the lab."""
    return [
        Finding(
            name="plug-in",
            good=not one.wrong,
            needed=False,
            detail=f"{one.package}/{one.name}, {one.source}"
            + (f": {one.wrong}" if one.wrong else ""),
            mend="rename or repair the file" if one.wrong else "",
        )
        for one in catalog.other_plugins()
    ]


def _home() -> Finding:
    """Check the path of the lab's files: programs, sockets and URIs get it."""
    try:
        paths.places()
        paths.check_length(virtual=False)
    except LabError as error:
        return Finding(name="home", good=False, needed=True, detail=error.message, mend=error.hint)
    return Finding(name="home", good=True, needed=True, detail=f"guests in '{paths.guests()}'")


def _program_of(name: str) -> Finding:
    return _program(name, *PROGRAMS[name])


def _qemu() -> Finding:
    try:
        version = accelerator.qemu_version()
    except LabError as error:
        return Finding(
            name="QEMU",
            good=False,
            needed=True,
            detail=error.message,
            mend="sudo apt-get install qemu-system-x86",
        )
    return Finding(name="QEMU", good=True, needed=True, detail=version)


def _accelerator() -> Finding:
    try:
        image = images.find("debian-12")
        found = accelerator.find(image.kernel if image else None)
    except LabError as error:
        return Finding(
            name="accelerator", good=False, needed=True, detail=error.message, mend=error.hint
        )
    return Finding(name="accelerator", good=True, needed=True, detail=found.reason)


def _libvirt() -> Finding:
    from lab.host.guest.libvirt.hypervisor import try_open

    command = install_guests(Path(sys.prefix))
    try:
        drives.load()
        command = f"sudo apt-get install {LIBVIRT}"
        version = try_open()
    except LabError as error:
        return Finding(name="libvirt", good=False, needed=True, detail=error.message, mend=command)
    return Finding(name="libvirt", good=True, needed=True, detail=f"{version}, embedded driver")


def install_guests(environment: Path) -> str:
    """Return the command that adds the extra ``guests`` to a Python environment.

    It depends on the tool that made the environment.
    """
    if (environment / ".setup-stamp").exists():
        return "make setup"
    packages = f"sudo apt-get install {LIBVIRT} {HEADERS}"
    if (environment / "pipx_metadata.json").exists():
        return f"{packages} && pipx inject raid-lab libvirt-python"
    return f"{packages} && {environment}/bin/pip install 'raid-lab[guests]'"


def _program(name: str, package: str, needed: bool, purpose: str) -> Finding:
    # mke2fs is in /usr/sbin, which is on no ordinary user's PATH
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    return Finding(
        name=name,
        good=found is not None,
        needed=needed,
        detail=found or f"is not installed; needed for {purpose}",
        mend="" if found else f"sudo apt-get install {package}",
    )


def _disk_server() -> Finding:
    missing = servers.missing_programs()
    if missing:
        return Finding(
            name="nbdkit",
            good=False,
            needed=False,
            detail=f"not found: {missing}; needed for disks of the models hdd and ssd",
            mend=f"sudo apt-get install {servers.PACKAGES}",
        )
    try:
        version = process.run(["nbdkit", "--version"], timeout=20).stdout.split()
    except LabError as error:
        return Finding(
            name="nbdkit", good=False, needed=False, detail=error.message, mend=error.hint
        )
    return Finding(name="nbdkit", good=True, needed=False, detail=f"{version[-1]}, with gcc")


def _network() -> Finding:
    """Check whether guests get a network namespace of their own."""
    try:
        process.run([sys.executable, "-I", "-S", network.__file__, network.TRY], timeout=20)
    except LabError:
        return Finding(
            name="network",
            good=False,
            needed=False,
            detail="guests have no network namespace of their own: other users of this host can"
            " connect to a guest's SSH port, and keep you from it by many connections",
            mend="in a container: give it CAP_SYS_ADMIN; else as root: sysctl"
            " user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1"
            " kernel.apparmor_restrict_unprivileged_userns=0 (those of them that exist)",
        )
    detail = "each guest has a network namespace of its own"
    return Finding(name="network", good=True, needed=False, detail=detail)


def _image() -> Finding:
    try:
        image = images.find("debian-12")
    except LabError as error:
        return Finding(
            name="image", good=False, needed=False, detail=error.message, mend=error.hint
        )
    if image is None:
        return _archive()
    kernel = f"kernel {image.manifest.kernel_version}, mdadm {image.manifest.mdadm_version}"
    return Finding(name="image", good=True, needed=False, detail=f"debian-12: {kernel}")


def _archive() -> Finding:
    """Check whether the image could be built: mmdebstrap simulates the installation."""
    about = "debian-12 is not built yet; the first run builds it, in about a minute"
    try:
        process.run(
            ["mmdebstrap", "--simulate", "--variant=essential", "bookworm", "/dev/null"],
            timeout=120,
        )
    except LabError as error:
        return Finding(
            name="image",
            good=False,
            needed=True,
            detail=f"debian-12 is not built, Debian's archive is not reachable: {error.message}",
            mend="check the network, then: lab image build debian-12",
        )
    return Finding(
        name="image",
        good=False,
        needed=False,
        detail=f"{about}; Debian's archive is reachable",
        mend="lab image build debian-12",
    )


def _space() -> Finding:
    where = paths.images()
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    return Finding(
        name="space",
        good=free >= SPACE,
        needed=False,
        detail=f"{free / GIB:.0f} GiB free for images, guests and runs in '{where}'",
        mend="" if free >= SPACE else f"free {format_size(SPACE)}, or set LAB_HOME to another disk",
    )


def _memory() -> Finding:
    free = load.available_memory()
    return Finding(
        name="memory",
        good=free >= MEMORY,
        needed=False,
        detail=f"{free / GIB:.1f} GiB available; a guest takes about 1 GiB",
        mend="" if free >= MEMORY else "end a large program",
    )
