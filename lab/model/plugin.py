"""What a newcomer's one file must offer: a workload, a disk model, an array kind.

Each file ends with an annotated constant (``WORKLOAD: WorkloadTool = Dd()``), so that mypy checks
it in its own file. Plug-ins are pure: they return data, and never touch the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lab.model.base import Model
from lab.model.measurement import Metric
from lab.model.procedure import HostCommand, Step
from lab.model.scenario import Array, Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a scenario, and where: ``array.chunk``."""

    key: str
    """Dotted name of the field that should change."""
    message: str
    """A sentence without the key: what was found, what was expected, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Raw output of one trial of a workload."""

    stdout: str
    stderr: str
    files: Mapping[str, str]
    """Other files the tool wrote, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A workload as theory sees it: one block after the other, past the page cache."""

    direction: Literal["read", "write"]
    block: int
    """Bytes of each request."""
    total: int
    """Bytes altogether."""
    offset: int = 0
    """Byte of the target where it begins."""


class WorkloadTool(Protocol):
    """What is done to a target, and how its output is read."""

    @property
    def parameters(self) -> type[Model]:
        """The tool's parameters; unknown ones are refused."""

    @property
    def programs(self) -> Sequence[str]:
        """Programs that must be in the guest."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """Every metric that ``parse`` returns."""

    def script(self, parameters: Any, target: str) -> str:
        """Shell lines, run as root in the guest, aimed at ``target``."""

    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Metric name to value in base units; ``ToolError`` where it cannot be read."""

    def destroys(self, parameters: Any) -> bool:
        """Whether the data on the target is gone afterwards."""

    def stream(self, parameters: Any) -> Stream | None:
        """The workload as one sequential stream, where it is one; theory works with that."""


class DiskModel(Protocol):
    """How a disk's speed comes about, and how it is realised on the host."""

    def problems(self, disk: Disk) -> Iterable[Problem]:
        """What is wrong with the parameters; keys are relative to the disk."""

    def create(self, disk: Disk, path: str) -> tuple[HostCommand, ...]:
        """Make the disk's file at ``path``."""

    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        """libvirt's ``<disk>`` element for the ``index``-th disk, from 1."""


class ArrayKind(Protocol):
    """Disks combined in the guest."""

    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        """What no mdadm or kernel would take; ``disks`` has one entry for each single disk."""

    def target(self, array: Array) -> str:
        """Path of the block device in the guest."""

    def assemble(
        self, array: Array, disks: Sequence[str], sizes: Sequence[int]
    ) -> tuple[Step, ...]:
        """Steps that build the array on the disks (paths in the guest) and read it back."""
