"""Why a guest gets a disk's blocks, and neither its SCSI commands nor its controller.

The lab passes the block device that the guard opened. With the SCSI commands of a ``lun``, or with
the whole controller by VFIO, a guest bypasses that descriptor: it could write to a disk that was
opened for reading, and no limit would apply.
"""

from __future__ import annotations

from pathlib import Path

from lab.host.real_disks.device import Number, directory, whole_of

_GROUPS = Path("/sys/kernel/iommu_groups")


def lun(number: Number, *, system: Path | None = None) -> str:
    """Return why the guest cannot have the disk's SCSI commands, as a sentence."""
    here = system or directory(whole_of(number))
    kind = _linked(here / "device" / "subsystem")
    if kind != "scsi":
        return f"it is not a SCSI disk but a {kind or 'virtual'} device"
    return "SCSI commands bypass the read-only descriptor and the limits"


def vfio(number: Number, *, system: Path | None = None, groups: Path = _GROUPS) -> str:
    """Return why the guest cannot have the disk's NVMe controller, as a sentence."""
    here = system or directory(whole_of(number))
    if not here.name.startswith("nvme"):
        return "it is not an NVMe disk"
    if not groups.is_dir() or not any(groups.iterdir()):
        return "this host has no IOMMU, or the kernel does not use it (intel_iommu=on)"
    controller = next((p for p in here.parents if (p / "iommu_group").exists()), None)
    if controller is None:
        return "its controller is in no IOMMU group"
    members = sorted(p.name for p in (controller / "iommu_group" / "devices").iterdir())
    others = [name for name in members if name != controller.name]
    if others:
        return f"its IOMMU group has other devices: {', '.join(others)}"
    return "the kernel would have to release its controller, which the guard cannot undo"


def _linked(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
