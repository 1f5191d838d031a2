"""What a cell takes of a host and what a host has to give, in the words of a cluster: pure.

Both are dask's resources: named amounts that a worker offers and its tasks take while they run
(the chapter "Worker Resources" of distributed's documentation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.compile.schedule import RESERVE, Need
from lab.core.units import MIB, format_size
from lab.model.scenario.document import Cell

CPUS, MEMORY, SPACE = "cpus", "memory", "space"
IMAGE = "image:"
"""Before an image's directory: of a host that has it already."""
DISK = "disk:"
"""Before a real disk's stable name. Not its serial, which its partitions have too."""

Amounts = dict[str, float]


def offered(
    *,
    accelerator: str,
    guests: int,
    memory: int,
    space: int,
    images: Iterable[str],
    disks: Iterable[str],
    share: int,
) -> Amounts:
    """What a host gives, where ``share`` labs have it together; sizes in bytes.

    ``guests`` is how many it bears side by side, one processor each. An accelerator and images are
    there or not: as many cells as the host bears may use them at once. A real disk is one cell's.
    """
    amounts = {
        accelerator: float(guests),
        CPUS: float(guests),
        MEMORY: float(max(0, memory - RESERVE) // share),
        SPACE: float(max(0, space - RESERVE) // share),
    }
    amounts |= {f"{IMAGE}{name}": float(guests) for name in images}
    return amounts | {f"{DISK}{name}": 1.0 for name in disks}


def wanted(cell: Cell, need: Need, accelerator: str, image: str = "") -> Amounts:
    """What a cell takes while it runs; ``image``: one that its host must have already."""
    amounts = {
        accelerator: 1.0,
        CPUS: float(cell.guest.cpus),
        MEMORY: float(need.memory),
        SPACE: float(need.space),
    }
    amounts |= {f"{DISK}{disk.device}": 1.0 for disk in cell.disks if disk.device is not None}
    return amounts | ({f"{IMAGE}{image}": 1.0} if image else {})


def lacking(wants: Amounts, offers: Mapping[str, Amounts]) -> str:
    """What no single host has of what a cell takes, and what hosts have; empty where one has all.

    ``offers`` are the hosts' by name.
    """
    if any(all(has.get(k, 0.0) >= v for k, v in wants.items()) for has in offers.values()):
        return ""
    told = []
    for name, has in sorted(offers.items()):
        short = [k for k, v in wants.items() if has.get(k, 0.0) < v]
        told.append(f"{name} has {', '.join(_amount(k, has.get(k, 0.0)) for k in short)}")
    short = [k for k in wants if any(has.get(k, 0.0) < wants[k] for has in offers.values())]
    takes = ", ".join(_amount(k, wants[k]) for k in short or wants)
    return f"it takes {takes}; {'; '.join(told) or 'there is no host'}"


def _amount(name: str, amount: float) -> str:
    if name in (MEMORY, SPACE):
        return f"{format_size(int(amount) // MIB * MIB)} of {name}"
    if name == CPUS:
        return f"{amount:g} processors for guests"
    kinds = {IMAGE: "the image", DISK: "the disk"}
    named = (
        f"{word} {name.removeprefix(kind)}" for kind, word in kinds.items() if name.startswith(kind)
    )
    what = next(named, name.upper())
    return what if amount else f"not {what}"
