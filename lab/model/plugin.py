"""What a plug-in file must offer: a workload, a disk model, an array kind, a fault.

Each file ends with an annotated constant (``WORKLOAD: WorkloadTool = Dd()``), so that mypy checks
it there. Abstract members are required; the others have defaults that fit most plug-ins. Plug-ins
are pure: they return data, and use no processes, files or clocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from lab.core.base import Model
from lab.model.execution.procedure import Step
from lab.model.image.manifest import ImageFacts
from lab.model.result.measurement import Metric
from lab.model.scenario.document import Array, Disk, Filesystem, Workload
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.model.scenario.fault import Fault
from lab.model.scenario.outputs import Outputs

P = TypeVar("P", bound=BaseModel)

MOUNT: Final = "/mnt/bench"
"""Mount point of the file system in the guest."""


def checked(kind: type[P], parameters: object) -> P:
    """A plug-in's parameters with their own type; ``TypeError``: they belong to another."""
    if not isinstance(parameters, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(parameters).__name__}")
    return parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error in a scenario, and where: ``array.chunk``."""

    key: str
    """Dotted name of the field that should change."""
    message: str
    """A sentence without the key: what was found, what was expected, what to do."""
    idle_by: str = ""
    """The field whose value makes this one unused. If that is an axis, or was set with ``--set``,
    other cells use this one, and it is not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A workload as theory models it: requests of one size, without the page cache, ``depth`` in
    flight."""

    direction: Literal["read", "write", "mixed"]
    block: int
    """Bytes of each request."""
    total: int | None
    """Bytes of all requests; ``None``: until the time is over, or the span was covered once."""
    offset: int = 0
    """First byte of the target."""
    random: bool = False
    """Random offsets instead of sequential ones."""
    depth: int = 1
    """Requests in flight."""
    seconds: float | None = None
    """How long it is measured; ``None``: until ``total`` is reached."""
    rest: float = 0.0
    """Seconds that it runs before it is measured."""
    span: int | None = None
    """Bytes from ``offset`` on that it uses; ``None``: to the target's end."""
    read_share: float = 0.5
    """Share of reads in a mixed stream."""
    jobs: int = 1
    """Jobs that share the depth, each with random offsets of its own."""
    repeats: bool = False
    """Whether a random offset may repeat before all others were used."""
    seed: int | None = None
    """fio's ``randseed``; ``None``: the offsets of ``randrepeat``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement that a bare disk must pass before its model is trusted."""

    workload: Workload
    metric: str
    """A metric of the workload's tool; its prediction is the expected value."""
    tolerance: float = 0.02
    """Relative error that is allowed."""


Trace = tuple[tuple[float, float], ...]
"""End of each time span in seconds since the start, and the value in it."""


class WorkloadTool(Protocol):
    """What is done to a target, and how its output is read."""

    @property
    @abstractmethod
    def parameters(self) -> type[Model]:
        """The tool's parameters; unknown ones are refused."""

    @property
    @abstractmethod
    def programs(self) -> Sequence[str]:
        """Programs that the guest must have."""

    @property
    @abstractmethod
    def metrics(self) -> Sequence[Metric]:
        """Every metric that ``parse`` may return."""

    @abstractmethod
    def script(self, parameters: Any, target: str) -> str:
        """Shell lines for the guest, run as root on ``target``."""

    @abstractmethod
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Metric name to value in base units; ``ToolError``: the output cannot be read."""

    @abstractmethod
    def destroys(self, parameters: Any) -> bool:
        """Whether the target's data is lost."""

    def seeded(self, parameters: Any, seed: int) -> Model:
        """The parameters as a trial's seed draws them, from 2; those of seed 1 are as written.

        Unchanged ones: the workload draws nothing.
        """
        assert isinstance(parameters, Model)
        return parameters

    def stream(self, parameters: Any) -> Stream | None:
        """The workload as a stream of like requests, for predictions; ``None``: it is not one."""
        return None


@runtime_checkable
class Traced(Protocol):
    """A workload tool that also records its speed over time."""

    def series(self, parameters: Any, outputs: Outputs) -> Mapping[tuple[str, str], Trace]:
        """Direction and unit to values over time, if they were recorded; ``ToolError`` as
        ``parse``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Acknowledged writes after a fault."""

    acknowledged: int
    """Blocks acknowledged as durable before the fault."""
    lost: int
    """Those of them that are missing or changed after it."""


@runtime_checkable
class Keeper(Protocol):
    """A workload that reports each write that the disks have acknowledged.

    After each fault the lab verifies its writes.
    """

    def read_back(self, parameters: Any, target: str) -> str:
        """Shell lines that verify every block that it may have written."""

    def kept(self, parameters: Any, told: str, found: str) -> Kept:
        """Compare its output, possibly cut off, with the output of ``read_back``."""


class DiskModel(Protocol):
    """How a disk gets its speed, and how it is built on the host."""

    @property
    def plain(self) -> bool:
        """Whether QEMU serves it from a file: then QEMU can wipe it for the next cell."""
        return True

    @abstractmethod
    def problems(self, disk: Disk) -> Iterable[Problem]:
        """Errors in the parameters; keys are relative to the disk."""

    def probes(self, disk: Disk) -> tuple[Probe, ...]:
        """Measurements that the bare disk must pass in real time against their predictions; empty:
        none."""
        return ()

    def drive(self, disk: Disk) -> HardDrive | SolidStateDrive | None:
        """The drive that it models; ``None``: none."""
        return None

    @abstractmethod
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Create the disk's file at ``path``, and start its server, if it has one."""

    @abstractmethod
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        """libvirt's ``<disk>`` element for the ``index``-th disk, from 1."""

    def rotational(self, disk: Disk) -> bool | None:
        """What the guest's kernel is told; ``None``: what the bus implies."""
        return None

    def bytes_per_second(self, disk: Disk) -> float:
        """The model's highest rate, apart from ``throttle``; 0: no limit."""
        return 0.0

    def report(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Steps after the workloads that store the model's counters."""
        return ()


class ArrayKind(Protocol):
    """Disks combined in the guest."""

    @abstractmethod
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        """What mdadm or the kernel would refuse; ``disks`` has one entry per single disk."""

    @abstractmethod
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        """What an image's kernel or programs cannot do, as far as known."""

    @abstractmethod
    def target(self, array: Array) -> str:
        """Path of the block device in the guest."""

    @property
    def filesystem(self) -> str | None:
        """The type of file system that only this kind makes; ``assemble`` makes and mounts it."""
        return None

    @property
    def partitions(self) -> bool:
        """Whether it partitions the disks. Others' disks are not searched for a partition table."""
        return False

    def fresh(self, array: Array) -> str:
        """Shell lines that flush and drop the kind's own caches; empty: it has none."""
        return ""

    @abstractmethod
    def state(self, array: Array) -> str:
        """Shell line that prints the array's state, for the record."""

    @abstractmethod
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        """Steps that build the array on the disks (paths in the guest) and verify it.

        A ``filesystem`` of the kind's own is mounted at ``MOUNT`` then; otherwise a block device is
        at ``target``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of a cell's disks, when a fault comes."""

    serial: str
    disk: Disk
    path: str
    """Its path in the guest."""
    xml: str
    """libvirt's ``<disk>``."""
    xml_path: str
    control: str
    """Socket on which its server accepts commands; empty: it has no server."""
    ready: Step
    """The step that sets it up in a guest that sees it for the first time, and verifies that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where and when a fault comes."""

    fault: Fault
    tag: str
    """Prefix of its raw output: ``NAME.TRIAL``."""
    array: Array
    device: str
    """The array's path in the guest; empty: the cell has none, and ``array`` means nothing."""
    disks: tuple[Standing, ...]
    earlier: tuple[Fault, ...]
    """Faults that came before it."""
    boot: tuple[Step, ...]
    """Steps that wait for a guest that starts again."""
    mount: str
    """Shell line that mounts the file system; empty: there is none."""


class FaultKind(Protocol):
    """What goes wrong, or a command to md.

    A fault has steps on the host, and then shell lines in the guest. Members' counters are read
    between the two, and again when md is idle.
    """

    @property
    @abstractmethod
    def parameters(self) -> type[Model]:
        """Its parameters; unknown ones are refused."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """Every metric that ``parse`` may return, apart from those of all faults."""
        return ()

    @property
    def cuts(self) -> bool:
        """Whether the guest ends, and with it the workload that runs."""
        return False

    @property
    def unplugs(self) -> bool:
        """Whether it takes its ``disk`` out of the guest."""
        return False

    @property
    def plugs(self) -> bool:
        """Whether it puts its ``disk`` back into the guest and the array."""
        return False

    @abstractmethod
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """What is impossible here; keys are relative to the fault."""

    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """Steps on the host, and what a guest needs after them."""
        return ()

    def script(self, parameters: Any, scene: Scene) -> str:
        """Shell lines for the guest, run as root; their output is stored."""
        return ""

    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Metric name to value in base units; ``ToolError``: the output cannot be read."""
        return {}
