"""Other ways to give a guest a real disk, and why each is not open for one.

The lab passes blocks: what the guard opened. With the SCSI commands of a ``lun``, or with the whole
controller by VFIO, a guest reaches past that descriptor: it could write where only reading was
allowed, and no limit holds.
"""

from __future__ import annotations

from pathlib import Path

from lab.host.real_disks.device import Number, directory, whole_of

_GROUPS = Path("/sys/kernel/iommu_groups")


def lun(number: Number, *, system: Path | None = None) -> str:
    """Why the guest cannot have its SCSI commands, in a sentence."""
    here = system or directory(whole_of(number))
    kind = _linked(here / "device" / "subsystem")
    if kind != "scsi":
        return f"it is no SCSI disk but one of the kernel's {kind or 'virtual'} devices"
    return "SCSI commands go past the descriptor that was opened for reading, and past limits"


def vfio(number: Number, *, system: Path | None = None, groups: Path = _GROUPS) -> str:
    """Why the guest cannot have its NVMe controller, in a sentence."""
    here = system or directory(whole_of(number))
    if not here.name.startswith("nvme"):
        return "it is no NVMe disk"
    if not groups.is_dir() or not any(groups.iterdir()):
        return "this host has no IOMMU, or the kernel was not told to use it (intel_iommu=on)"
    controller = next((p for p in here.parents if (p / "iommu_group").exists()), None)
    if controller is None:
        return "its controller is in no IOMMU group"
    members = sorted(p.name for p in (controller / "iommu_group" / "devices").iterdir())
    others = [name for name in members if name != controller.name]
    if others:
        return f"its IOMMU group has other devices in it: {', '.join(others)}"
    return "the kernel would have to let go of its controller, which the guard cannot undo"


def _linked(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
