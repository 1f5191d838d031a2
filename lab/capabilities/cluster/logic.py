"""Resource needs of cells and resources of hosts as dask's worker resources. Pure.

Source: the chapter "Worker Resources" of distributed's documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.compile.schedule import RESERVE, Need
from lab.core.units import MIB, format_size
from lab.model.scenario.document import Cell

CPUS, MEMORY, SPACE = "cpus", "memory", "space"
VIRTUAL = "virtual"
"""Number of guests in virtual time, each of which keeps a CPU busy."""
IMAGE = "image:"
"""Prefix of an image's directory, for a host that has it."""
DISK = "disk:"
"""Prefix of a real disk's stable name; its serial is also that of its partitions."""

Amounts = dict[str, float]


def offered(
    *,
    accelerator: str,
    guests: int,
    virtual: int,
    memory: int,
    space: int,
    images: Iterable[str],
    disks: Iterable[str],
    share: int,
) -> Amounts:
    """Return the resources of a host that ``share`` labs use; sizes in bytes.

    ``guests``: number of concurrent guests of one CPU each in real time; ``virtual``: of those in
    virtual time. All of them may use the accelerator and the images at once; a real disk belongs to
    one cell.
    """
    amounts = {
        accelerator: float(guests),
        CPUS: float(guests),
        VIRTUAL: float(virtual),
        MEMORY: float(max(0, memory - RESERVE) // share),
        SPACE: float(max(0, space - RESERVE) // share),
    }
    amounts |= {f"{IMAGE}{name}": float(guests) for name in images}
    return amounts | {f"{DISK}{name}": 1.0 for name in disks}


def wanted(cell: Cell, need: Need, accelerator: str, image: str = "") -> Amounts:
    """Return the resources of a running cell; ``image``: one that its host must have already."""
    amounts = {
        accelerator: 1.0,
        **({VIRTUAL: 1.0} if need.virtual else {CPUS: float(cell.guest.cpus)}),
        MEMORY: float(need.memory),
        SPACE: float(need.space),
    }
    amounts |= {f"{DISK}{disk.device}": 1.0 for disk in cell.disks if disk.device is not None}
    return amounts | ({f"{IMAGE}{image}": 1.0} if image else {})


def lacking(wants: Amounts, offers: Mapping[str, Amounts]) -> str:
    """Return the needs of a cell that no host meets, with each host's values; empty: a host meets
    all.

    ``offers``: each host's resources by name.
    """
    if any(all(has.get(k, 0.0) >= v for k, v in wants.items()) for has in offers.values()):
        return ""
    told = []
    for name, has in sorted(offers.items()):
        short = [k for k, v in wants.items() if has.get(k, 0.0) < v]
        told.append(f"{name} has {', '.join(_amount(k, has.get(k, 0.0)) for k in short)}")
    short = [k for k in wants if any(has.get(k, 0.0) < wants[k] for has in offers.values())]
    takes = ", ".join(_amount(k, wants[k]) for k in short or wants)
    return f"it needs {takes}; {'; '.join(told) or 'there is no host'}"


def _amount(name: str, amount: float) -> str:
    if name in (MEMORY, SPACE):
        return f"{format_size(int(amount) // MIB * MIB)} of {name}"
    if name == CPUS:
        return f"{amount:g} CPUs for guests"
    if name == VIRTUAL:
        return f"{amount:g} guests with virtual time"
    kinds = {IMAGE: "the image", DISK: "the disk"}
    named = (
        f"{word} {name.removeprefix(kind)}" for kind, word in kinds.items() if name.startswith(kind)
    )
    what = next(named, name.upper())
    return what if amount else f"not {what}"
