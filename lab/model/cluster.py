"""Messages between client, hosts and cluster workers. Pure.

A **cluster worker** is the process on a worker's host that runs cells of one run: it reads
an :class:`Assignment` as one line of JSON from standard input, then orders, one per line, and
reports events as lines of JSON on standard output. It ends when standard input closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from lab.core.base import Model
from lab.model.execution.events import CellStarted, Trouble
from lab.model.image.manifest import ImageManifest
from lab.model.result.calibration import Calibration

OUTCOME: Final = "outcome.json"
"""A cell without this file is not finished."""
LONGEST: Final = 200
"""Bytes of a file name, at most. File systems allow 255, and temporary files have longer names."""


def path_below(text: str) -> PurePosixPath:
    """The path of a file that another host sent; ``ValueError``: it is not below a directory."""
    parts = text.split("/")
    long = any(len(part.encode()) > LONGEST for part in parts)  # UnicodeError is a ValueError
    if long or "\0" in text or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{text!r} is not a path below a directory")
    return PurePosixPath(text)


def _file_name(text: str) -> str:
    if len(path_below(text).parts) != 1:
        raise ValueError(f"{text!r} is not a file name")
    return text


FileName = Annotated[str, AfterValidator(_file_name)]


class Assignment(Model):
    """What a cluster worker must know of a run."""

    run: FileName
    scenario: FileName
    """Name of the scenario."""
    document: dict[str, Any]
    """The scenario's data, from which each host makes the same cells: with every ``--set``, profile
    and fact of a real disk, without claims."""
    trials: int
    programs: dict[str, str] = Field(default_factory=dict)
    """Versions that the client and every host must have in common."""
    images: dict[str, ImageManifest]
    """Each image of the client, by its name and replaced kernel, if any."""
    accelerator: str
    """The same for all cells of a run."""
    cold: bool
    jobs: int | None
    erase: tuple[str, ...] = ()
    """Serials of real disks that may be written to."""
    offered: tuple[str, ...] = ()
    """Real disks that cells may use: set by the host, whatever a client says."""


class HostFacts(Model):
    """A host of a cluster, when it joins."""

    name: str
    programs: dict[str, str]
    """Versions that client and host must have in common."""
    environment: dict[str, Any]
    """Facts for the result."""
    accelerator: str
    guests: int
    """Concurrent guests in real time, at most."""
    virtual: int = 0
    """The same with virtual time."""
    images: tuple[str, ...]
    """Directories of its images."""
    disks: tuple[str, ...] = ()
    """Real disks that its operator offers, by stable name."""


class RunCell(Model):
    """Run one more cell."""

    kind: Literal["cell"] = "cell"
    id: str


class Finish(Model):
    """No further cell will arrive."""

    kind: Literal["finish"] = "finish"


ClusterWorkerOrder = Annotated[RunCell | Finish, Field(discriminator="kind")]


class CellBack(Model):
    """A cell is finished and stored in a directory."""

    kind: Literal["cell_back"] = "cell_back"
    cell: str
    directory: str
    attempts: tuple[str, ...] = ()
    """Directories of earlier attempts."""
    calibrations: tuple[Calibration, ...] = ()
    """Calibrations known so far."""


class Known(Model):
    """Calibrations that a cluster worker knows as it ends."""

    kind: Literal["known"] = "known"
    calibrations: tuple[Calibration, ...]


class Said(Model):
    """A message for the user."""

    kind: Literal["said"] = "said"
    text: str


ClusterWorkerEvent = Annotated[
    CellBack | Known | Said | CellStarted | Trouble,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A finished cell, as its host sends it."""

    cell: str
    host: str
    files: Mapping[str, bytes]
    """By path below the cell's directory."""
    attempts: Sequence[Mapping[str, bytes]]
    calibrations: Sequence[str]
    """JSON of each."""
