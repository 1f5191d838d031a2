"""Messages between client, hosts and cluster workers. Pure.

A **cluster worker** is the process on a worker's host that runs cells of one run. It reads an
:class:`Assignment` as one line of JSON from standard input, then orders, one per line. It writes
events as lines of JSON to standard output. It ends when standard input closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from lab.core.base import Model
from lab.core.printable import path_below
from lab.model.execution.events import CellStarted, Trouble
from lab.model.image.manifest import ImageManifest
from lab.model.result.calibration import Calibration

OUTCOME: Final = "outcome.json"
"""A cell is finished once its directory has this file."""


def _file_name(text: str) -> str:
    if len(path_below(text).parts) != 1:
        raise ValueError(f"{text!r} is not a file name")
    return text


FileName = Annotated[str, AfterValidator(_file_name)]


class Assignment(Model):
    """Data of a run that a cluster worker needs."""

    run: FileName
    scenario: FileName
    """Name of the scenario."""
    document: dict[str, Any]
    """The scenario's data without claims, with every ``--set``, profile and fact of a real disk.
    Each host makes the same cells from it."""
    overridden: tuple[str, ...] = ()
    """Fields that a ``--set`` or profile gave: what they make unused is no error."""
    trials: int
    seeds: tuple[int, ...] = ()
    """With ``trials: auto``: seeds of the cells, which have one trial each."""
    programs: dict[str, str] = Field(default_factory=dict)
    """Versions that must be equal on the client and every host."""
    images: dict[str, ImageManifest]
    """Manifest of each image of the client, by names of the image and of the replaced kernel."""
    accelerator: str
    """Accelerator of all cells of the run."""
    cold: bool
    jobs: int | None
    erase: tuple[str, ...] = ()
    """Serials of real disks that the guests may write to."""
    offered: tuple[str, ...] = ()
    """Real disks that cells may use. The host sets this and ignores the client's value."""


class HostFacts(Model):
    """Facts of a host that joins a cluster."""

    name: str
    programs: dict[str, str]
    """Versions that must be equal on client and host."""
    environment: dict[str, Any]
    """Facts for the result document."""
    accelerator: str
    guests: int
    """Most concurrent guests in real time."""
    virtual: int = 0
    """Most concurrent guests in virtual time."""
    images: tuple[str, ...]
    """Directories of its images."""
    disks: tuple[str, ...] = ()
    """Real disks that the host's operator offers, by stable name."""


class RunCell(Model):
    """Run one more cell."""

    kind: Literal["cell"] = "cell"
    id: str


class Finish(Model):
    """No further cell will arrive."""

    kind: Literal["finish"] = "finish"


ClusterWorkerOrder = Annotated[RunCell | Finish, Field(discriminator="kind")]


class CellBack(Model):
    """A cell finished; its result is stored in a directory."""

    kind: Literal["cell_back"] = "cell_back"
    cell: str
    directory: str
    attempts: tuple[str, ...] = ()
    """Directories of earlier attempts."""
    calibrations: tuple[Calibration, ...] = ()
    """Calibrations known when the cell finished."""


class Known(Model):
    """Calibrations known when the cluster worker ends."""

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
    """A finished cell, as its host sends it to the client."""

    cell: str
    host: str
    files: Mapping[str, bytes]
    """Contents by path below the cell's directory."""
    attempts: Sequence[Mapping[str, bytes]]
    calibrations: Sequence[str]
    """Each as JSON."""
