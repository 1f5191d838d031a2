"""What a newcomer's one file must offer: a workload, a disk model, an array kind, a fault.

Each file ends with an annotated constant (``WORKLOAD: WorkloadTool = Dd()``), so that mypy checks
it in its own file. Abstract members are demanded of it; what the others return here is what they
mean for most. Plug-ins are pure: they return data, and never touch the world.
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
"""Where a file system is mounted in the guest."""


def checked(kind: type[P], parameters: object) -> P:
    """A plug-in's parameters as its own kind; ``TypeError``: they are another's."""
    if not isinstance(parameters, kind):
        raise TypeError(f"{kind.__name__} are wanted, not {type(parameters).__name__}")
    return parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a scenario, and where: ``array.chunk``."""

    key: str
    """Dotted name of the field that should change."""
    message: str
    """A sentence without the key: what was found, what was expected, what to do."""
    idle_by: str = ""
    """The field whose value leaves this one without a use. Where that is an axis, or was chosen
    with ``--set``, other cells use it, and nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A workload as theory sees it: requests of one size, past the page cache.

    ``depth`` of them are on their way at any moment; each is followed by the next.
    """

    direction: Literal["read", "write", "mixed"]
    block: int
    """Bytes of each request."""
    total: int | None
    """Bytes altogether; ``None``: until the time is over, or the span was covered once."""
    offset: int = 0
    """Byte of the target where it begins."""
    random: bool = False
    """Each request at a place of its own, instead of one after the other."""
    depth: int = 1
    """Requests on their way at once."""
    seconds: float | None = None
    """How long it is measured; ``None``: until ``total`` is reached."""
    rest: float = 0.0
    """Seconds that it runs before it is measured."""
    span: int | None = None
    """Bytes from ``offset`` on that it keeps to; ``None``: to the target's end."""
    read_share: float = 0.5
    """Part of a mixed stream's requests that read."""
    jobs: int = 1
    """Senders that share the depth, each with places of its own."""
    repeats: bool = False
    """Whether a random place may come again before all others had their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement of a bare disk that a disk model must meet before it is believed."""

    workload: Workload
    metric: str
    """Of those that the workload's tool measures."""
    figure: str = ""
    """Which of the drive's own figures (``lab.md.theory.drive.Figures``) it must meet; empty: what
    theory predicts of the workload."""
    guest: str = ""
    """Which of the guest's times (``GuestTimes``) its request takes; empty: it has no figure."""
    per_second: bool = False
    """The figure is a time, and the metric counts how often in a second."""
    tolerance: float = 0.02
    """Share by which the measured value may be off."""


Trace = tuple[tuple[float, float], ...]
"""Seconds since the beginning, at the end of a span of time, and the value in it."""


class WorkloadTool(Protocol):
    """What is done to a target, and how its output is read."""

    @property
    @abstractmethod
    def parameters(self) -> type[Model]:
        """The tool's parameters; unknown ones are refused."""

    @property
    @abstractmethod
    def programs(self) -> Sequence[str]:
        """Programs that must be in the guest."""

    @property
    @abstractmethod
    def metrics(self) -> Sequence[Metric]:
        """Every metric that ``parse`` may return."""

    @abstractmethod
    def script(self, parameters: Any, target: str) -> str:
        """Shell lines, run as root in the guest, aimed at ``target``."""

    @abstractmethod
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Metric name to value in base units; ``ToolError`` where it cannot be read."""

    @abstractmethod
    def destroys(self, parameters: Any) -> bool:
        """Whether the data on the target is gone afterwards."""

    def stream(self, parameters: Any) -> Stream | None:
        """The workload as a stream of like requests, where it is one; theory works with that."""
        return None


@runtime_checkable
class Traced(Protocol):
    """A workload tool that can also tell how fast it was from moment to moment."""

    def series(self, parameters: Any, outputs: Outputs) -> Mapping[tuple[str, str], Trace]:
        """Direction and unit to moments, where it was asked to keep them; ``ToolError`` as
        ``parse``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of acknowledged writes."""

    acknowledged: int
    """Blocks of which the host has been told that they are on the disks."""
    lost: int
    """Of those, the ones that are not as they were written."""


@runtime_checkable
class Keeper(Protocol):
    """A workload that tells the host of each write that the disks have acknowledged.

    A tool that has these methods too is asked after each fault whether its writes are still there.
    """

    def read_back(self, parameters: Any, target: str) -> str:
        """Shell lines that look at every block that it may have written."""

    def kept(self, parameters: Any, told: str, found: str) -> Kept:
        """What it told while it ran, cut off or not, against what ``read_back`` printed."""


class DiskModel(Protocol):
    """How a disk's speed comes about, and how it is realised on the host."""

    @property
    def plain(self) -> bool:
        """Whether it is a file that QEMU itself serves: QEMU can wipe it for the next cell."""
        return True

    @abstractmethod
    def problems(self, disk: Disk) -> Iterable[Problem]:
        """What is wrong with the parameters; keys are relative to the disk."""

    def probes(self, disk: Disk) -> tuple[Probe, ...]:
        """What to measure on the bare disk, in seconds altogether; empty: nothing is promised."""
        return ()

    def drive(self, disk: Disk) -> HardDrive | SolidStateDrive | None:
        """The drive that it models; ``None``: it models none."""
        return None

    def costless(self, disk: Disk, pace: float = 0.0) -> Disk | None:
        """A disk by the same way whose drive takes no time, or ``pace`` seconds for each command;
        ``None``: it models no drive."""
        return None

    @abstractmethod
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Make the disk's file at ``path``, and start what serves it, if something does."""

    @abstractmethod
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        """libvirt's ``<disk>`` element for the ``index``-th disk, from 1."""

    def rotational(self, disk: Disk) -> bool | None:
        """What the guest's kernel is to think of the disk; ``None``: what the bus makes of it."""
        return None

    def bytes_per_second(self, disk: Disk) -> float:
        """The most that the model lets through, beside ``throttle``; 0: it has no limit."""
        return 0.0

    def report(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Steps after the workloads that keep what the model has counted."""
        return ()


class ArrayKind(Protocol):
    """Disks combined in the guest."""

    @abstractmethod
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        """What no mdadm or kernel would take; ``disks`` has one entry for each single disk."""

    @abstractmethod
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        """What of the array an image's kernel or programs cannot do, as far as is known of them."""

    @abstractmethod
    def target(self, array: Array) -> str:
        """Path of the block device in the guest."""

    @property
    def filesystem(self) -> str | None:
        """The type of file system that only this kind makes; ``assemble`` makes and mounts it."""
        return None

    def fresh(self, array: Array) -> str:
        """Shell line that writes out and forgets what the kind itself keeps; empty: nothing."""
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
        """Steps that build the array on the disks (paths in the guest) and read it back.

        With a ``filesystem`` of the kind's own that is mounted at ``MOUNT`` afterwards; else there
        is a block device at ``target``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of a cell's disks, as a fault finds it."""

    serial: str
    disk: Disk
    path: str
    """In the guest."""
    xml: str
    """libvirt's ``<disk>``."""
    xml_path: str
    control: str
    """Socket on which its server takes commands; empty: QEMU itself serves it."""
    ready: Step
    """What is set of it in a guest that finds it new, and read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where and when a fault comes."""

    fault: Fault
    tag: str
    """Its raw output begins so: ``NAME.TRIAL``."""
    array: Array
    device: str
    """The array's path in the guest; empty: the cell has none, and ``array`` says nothing."""
    disks: tuple[Standing, ...]
    earlier: tuple[Fault, ...]
    """The faults that came before it."""
    boot: tuple[Step, ...]
    """What waits for a guest that starts again."""
    mount: str
    """Shell line that mounts the file system; empty: there is none."""


class FaultKind(Protocol):
    """What goes wrong, or what md is told to do about it.

    A fault has two parts: steps, and then shell lines in the guest. Members' counters are read
    between the two, and again when md has nothing more to do.
    """

    @property
    @abstractmethod
    def parameters(self) -> type[Model]:
        """The kind's parameters; unknown ones are refused."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """Every metric that ``parse`` may return, beside those that all faults have."""
        return ()

    @property
    def cuts(self) -> bool:
        """Whether the guest ends with it, and with the guest the workload that runs."""
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
        """What cannot be done here; keys are relative to the fault."""

    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """What is done on the host, and what a guest needs after it."""
        return ()

    def script(self, parameters: Any, scene: Scene) -> str:
        """Shell lines, run as root in the guest; what they print is kept."""
        return ""

    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Metric name to value in base units; ``ToolError`` where it cannot be read."""
        return {}
