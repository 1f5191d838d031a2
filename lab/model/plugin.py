"""Protocols of plug-ins: workload, disk model, array kind, fault.

Each file ends with an annotated constant (``WORKLOAD: WorkloadTool = Dd()``), so that mypy checks
it there. Abstract members are required; the others have defaults that fit most plug-ins. Plug-ins
are pure: they return data, and use no processes, files or clocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

from lab.core.base import Model
from lab.core.steady_state import Window
from lab.model.execution.procedure import Step
from lab.model.image.manifest import ImageFacts
from lab.model.result.measurement import Metric
from lab.model.scenario.document import Array, Disk, Filesystem, Throttle, Workload
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.model.scenario.fault import Fault
from lab.model.scenario.outputs import Outputs

MOUNT: Final = "/mnt/bench"
"""Mount point of the file system in the guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error in a scenario, with its field, such as ``array.chunk``."""

    key: str
    """Dotted name of the field to change."""
    message: str
    """A sentence without the key: what was found, what was expected, what to do."""
    idle_by: str = ""
    """The field whose value makes this one unused. If that is an axis, or was overridden, other
    cells use this one: it is no error, and this cell is as if it were not given."""
    kept: bool = False
    """With ``idle_by``: the field has an effect even so, and the cell keeps it."""


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
    """Measured seconds; ``None``: until ``total`` is reached."""
    rest: float = 0.0
    """Seconds of the workload before the measurement."""
    span: int | None = None
    """Bytes from ``offset`` on that it uses; ``None``: to the target's end."""
    read_share: float = 0.5
    """Fraction of reads in a mixed stream."""
    jobs: int = 1
    """Number of jobs that share the depth; each has its own random offsets."""
    repeats: bool = False
    """Whether a random offset may repeat before all others were used."""
    seed: int | None = None
    """fio's ``randseed``; ``None``: the offsets of ``randrepeat``."""
    known: bool = True
    """Whether the offsets are those of ``seed``; otherwise each run draws others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A measurement that must match its prediction before results on a disk model count."""

    workload: Workload
    metric: str
    """A metric of the workload's tool; its prediction is the expected value."""
    tolerance: float = 0.02
    """Relative error that is allowed."""


Trace = tuple[tuple[float, float], ...]
"""End of each time span in seconds since the start, and the value in it."""


class WorkloadTool(Protocol):
    """A command on a target, and the parser of its output."""

    parameters: ClassVar[type[Model]]
    """The tool's parameters; unknown ones are refused."""
    programs: ClassVar[Sequence[str]]
    """Programs that the guest must have."""
    metrics: ClassVar[Sequence[Metric]]
    """Every metric that ``parse`` may return."""

    @abstractmethod
    def script(self, parameters: Any, target: str) -> str:
        """Return shell lines for the guest, run as root on ``target``."""

    @abstractmethod
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Return values in base units by metric; ``ToolError``: the output cannot be read."""

    @abstractmethod
    def destroys(self, parameters: Any) -> bool:
        """Return whether the target's data is lost."""

    def seeded(self, parameters: Any, seed: int) -> Model:
        """Return the parameters for a trial's seed, from 2; seed 1 keeps them as written.

        Unchanged parameters mean that the workload uses no random numbers.
        """
        assert isinstance(parameters, Model)
        return parameters

    def needs(self, parameters: Any) -> Sequence[str]:
        """Return the programs that the guest must have for these parameters."""
        return self.programs

    def measures(self, parameters: Any) -> Sequence[Metric]:
        """Return every metric that ``parse`` may return for these parameters."""
        return self.metrics

    files: ClassVar[Mapping[str, str]] = {}
    """Parameters that name a text file of the host, and the parameter that gets its text.

    Relative paths begin at the scenario's file."""
    any_disks: ClassVar[bool] = False
    """Whether it takes any number of bare disks: its target is their paths, separated by
    spaces."""

    def memory(self, parameters: Any) -> int:
        """Return the bytes of its buffers in the guest's memory; 0: few."""
        return 0

    def draws_places(self, parameters: Any) -> bool:
        """Return whether it draws places on the target, by a seed that the scenario leaves open."""
        return False

    def lasts(self, parameters: Any) -> bool:
        """Return whether it runs for a given time, so that what the disks count is no count."""
        return False

    def stream(self, parameters: Any) -> Stream | None:
        """Return the workload as a stream of equal requests, for predictions; ``None``: it is not
        one."""
        return None


@runtime_checkable
class Traced(Protocol):
    """A workload tool that also records its speed over time."""

    def series(self, parameters: Any, outputs: Outputs) -> Mapping[tuple[str, str], Trace]:
        """Return recorded values over time by direction and unit; ``ToolError`` as in ``parse``."""


@runtime_checkable
class Distributed(Protocol):
    """A workload tool that reports how its requests' latencies are distributed."""

    def latencies(self, parameters: Any, outputs: Outputs) -> Mapping[str, Mapping[float, float]]:
        """Return completion latencies in seconds by percent of requests, by direction;
        ``ToolError`` as in ``parse``."""


@runtime_checkable
class Sampled(Protocol):
    """A workload tool with metrics that need a number of requests."""

    def too_few(self, parameters: Any, outputs: Outputs) -> Mapping[str, tuple[int, int]]:
        """Return requests, and how many are needed, of each metric that ``parse`` left out for
        having too few; ``ToolError`` as in ``parse``."""


@runtime_checkable
class InRounds(Protocol):
    """A workload tool that can run a job in rounds until its speed is steady."""

    def window(self, parameters: Any, outputs: Outputs) -> Window | None:
        """Return the rounds whose values ``parse`` returned; ``None``: no rounds were requested;
        ``ToolError`` as in ``parse``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Acknowledged writes after a fault."""

    acknowledged: int
    """Blocks acknowledged as durable before the fault."""
    lost: int
    """Blocks of these that are missing or changed after it."""


@runtime_checkable
class Keeper(Protocol):
    """A workload that reports each write that the disks have acknowledged.

    After each fault the lab verifies its writes.
    """

    def read_back(self, parameters: Any, target: str) -> str:
        """Return shell lines that verify every block that it may have written."""

    def kept(self, parameters: Any, told: str, found: str) -> Kept:
        """Compare its output, possibly cut off, with the output of ``read_back``."""


@runtime_checkable
class Reaching(Protocol):
    """A workload tool that fails if the target is shorter than what its parameters name."""

    def end(self, parameters: Any) -> tuple[str, int] | None:
        """Return the parameter that decides it, and the end of what is read or written, in bytes
        from the target's beginning. ``None``: a file at the target, or as much as there is."""


class DiskModel(Protocol):
    """Simulates a disk's speed, and creates the disk on the host."""

    plain: ClassVar[bool] = True
    """Whether QEMU serves it from a file, so that QEMU can wipe it for the next cell."""

    @abstractmethod
    def problems(self, disk: Disk) -> Iterable[Problem]:
        """Yield errors in the parameters; keys are relative to the disk."""

    def probes(self, disk: Disk) -> tuple[Probe, ...]:
        """Return measurements of the bare disk in real time that must match predictions; empty:
        none."""
        return ()

    def drive(self, disk: Disk) -> HardDrive | SolidStateDrive | None:
        """Return the modelled drive; ``None``: the model has none."""
        return None

    @abstractmethod
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Create the disk's file at ``path``, and start its server, if it has one."""

    @abstractmethod
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        """Return libvirt's ``<disk>`` element for the ``index``-th disk, from 1."""

    def rotational(self, disk: Disk) -> bool | None:
        """Return the value for the guest's kernel; ``None``: the bus implies it."""
        return None

    def bytes_per_second(self, disk: Disk) -> float:
        """Return the model's highest rate, apart from ``throttle``; 0: no limit."""
        return 0.0

    def report(self, disk: Disk, path: str) -> tuple[Step, ...]:
        """Return steps after the workloads that store the model's counters."""
        return ()


SIZES: Final = ("stripe", "chunk", "members", "data_disks")
"""Names of an array's sizes, written in braces in workload parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of the guest that is used until the end, or until a workload's end."""

    key: str
    """The field that decides it, such as ``array.sysfs.stripe_cache_size``."""
    size: int
    """Bytes."""
    what: str
    """What it is, in a message."""


class ArrayKind(Protocol):
    """Disks combined in the guest."""

    @abstractmethod
    def problems(self, array: Array, disks: Sequence[Disk]) -> Iterable[Problem]:
        """Yield what mdadm or the kernel would refuse; ``disks`` has one entry per single disk."""

    def sizes(self, array: Array, disks: Sequence[Disk]) -> Mapping[str, int]:
        """Those of ``SIZES`` that a valid array has: bytes, or a number of disks."""
        return {}

    def capacity(self, array: Array, disks: Sequence[Disk]) -> int | None:
        """Return the bytes of a valid array; ``None``: they are not known before it exists."""
        return None

    def memory(self, array: Array, disks: Sequence[Disk]) -> Iterable[MemoryUse]:
        """Yield the guest's memory that a valid array uses and does not give back."""
        return ()

    @abstractmethod
    def lacks(self, array: Array, facts: ImageFacts) -> Iterable[Problem]:
        """Yield features that an image's kernel or programs are known to lack."""

    @abstractmethod
    def target(self, array: Array) -> str:
        """Return the path of the block device in the guest."""

    filesystem: ClassVar[str | None] = None
    """Type of file system that only this kind makes; ``assemble`` makes and mounts it."""
    partitions: ClassVar[bool] = False
    """Whether it partitions the disks. Others' disks are not searched for a partition table."""

    def fresh(self, array: Array) -> str:
        """Return shell lines that flush and drop the kind's own caches; empty: it has none."""
        return ""

    def rest(self, array: Array, *, waits: bool) -> str:
        """Return shell lines that bring it to the state after its creation, as far as a workload
        can change that; empty: no workload can.

        ``waits``: also wait until it is idle. What stays is said by the shell function `unrest`.
        """
        return ""

    @abstractmethod
    def state(self, array: Array) -> str:
        """Return a shell line that prints the array's state, for the raw output."""

    @abstractmethod
    def assemble(
        self,
        array: Array,
        disks: Sequence[str],
        sizes: Sequence[int],
        filesystem: Filesystem | None,
    ) -> tuple[Step, ...]:
        """Return steps that build the array on the disks (paths in the guest) and verify it.

        If ``filesystem`` is the kind's own, it is then mounted at ``MOUNT``; otherwise a block
        device is at ``target``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of a cell's disks at the time of a fault."""

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
    """Step that sets it up in a guest that does not know it yet, and verifies that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Context of a fault: cell, time and earlier faults."""

    fault: Fault
    tag: str
    """Prefix of its raw output: ``NAME.TRIAL``."""
    array: Array
    device: str
    """The array's path in the guest; empty: the cell has none, and ``array`` is unused."""
    disks: tuple[Standing, ...]
    earlier: tuple[Fault, ...]
    """Faults that came before it."""
    boot: tuple[Step, ...]
    """Steps that wait for a restarted guest."""
    mount: str
    """Shell line that mounts the file system; empty: there is none."""


class FaultKind(Protocol):
    """An injected failure, or a command to md.

    A fault has steps on the host, and then shell lines in the guest. Members' counters are read
    between the two, and again when md is idle.
    """

    parameters: ClassVar[type[Model]]
    """Its parameters; unknown ones are refused."""
    metrics: ClassVar[Sequence[Metric]] = ()
    """Every metric that ``parse`` may return, apart from those of all faults."""
    cuts: ClassVar[bool] = False
    """Whether the guest ends, and with it the running workload."""
    unplugs: ClassVar[bool] = False
    """Whether it unplugs its ``disk`` from the guest."""
    plugs: ClassVar[bool] = False
    """Whether it plugs its ``disk`` into the guest and the array again."""

    def waits(self, parameters: Any) -> bool:
        """Whether what follows waits until md is idle."""
        return True

    def throttle(self, parameters: Any, given: Throttle) -> Throttle:
        """Return the limits that its disk has after it; before it they were ``given``."""
        return given

    @abstractmethod
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """Yield impossible parameters; keys are relative to the fault."""

    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """Return steps on the host, and the steps that a guest needs after them."""
        return ()

    def script(self, parameters: Any, scene: Scene) -> str:
        """Return shell lines for the guest, run as root; their output is stored."""
        return ""

    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Return values in base units by metric; ``ToolError``: the output cannot be read."""
        return {}
