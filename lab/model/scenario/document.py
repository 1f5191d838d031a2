"""A scenario: one question, the guests, disks, array and workloads that answer it, and claims.

The dotted names of these fields (``disks.throttle.total_bytes_per_second``) are a contract:
``--set``, matrix axes, results and other programs use them. Types for the contents of the disks are
in ``lab.model.scenario.array`` and ``lab.model.scenario.filesystem``, and are exported here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from typing_extensions import override

from lab.core.base import NAMED, Model, Rate, RateText, Says, Seconds, Size, wrong_key
from lab.core.stable import Stable, named
from lab.core.units import as_yaml
from lab.model.scenario.array import Array as Array
from lab.model.scenario.array import InitialSync as InitialSync
from lab.model.scenario.claim import Claim, names_in
from lab.model.scenario.drive import HddParameters, SsdParameters
from lab.model.scenario.fault import Fault
from lab.model.scenario.filesystem import Filesystem as Filesystem
from lab.model.scenario.guest import Clock, Guest

AxisValue = str | int | float | bool | None
Values = dict[str, AxisValue]
"""Values by dotted name, as of one cell."""


class DiskFormat(StrEnum):
    """Format of a disk's file on the host."""

    QCOW2 = "qcow2"
    RAW = "raw"


class DiskBus(StrEnum):
    """The bus that the guest sees."""

    VIRTIO = "virtio"
    SCSI = "scsi"
    LAB = "lab"
    """The lab's driver, for every disk of a guest with virtual time and for no other."""


class Sectors(StrEnum):
    """Logical and physical block size of a disk, as manufacturers name them."""

    NATIVE_512 = "512n"
    """Both 512 bytes."""
    EMULATED_512 = "512e"
    """512 bytes on physical blocks of 4 KiB."""
    NATIVE_4K = "4Kn"
    """Both 4 KiB."""

    @property
    def logical(self) -> int:
        """Bytes of the smallest request, and what requests are multiples of."""
        return 4096 if self is Sectors.NATIVE_4K else 512

    @property
    def physical(self) -> int:
        """Bytes that the disk writes at once."""
        return 512 if self is Sectors.NATIVE_512 else 4096


class CacheMode(StrEnum):
    """QEMU's modes of the host's page cache, ``qemu-system(1)`` under ``cache=``."""

    NONE = "none"
    WRITEBACK = "writeback"
    WRITETHROUGH = "writethrough"
    DIRECTSYNC = "directsync"
    UNSAFE = "unsafe"


class Aio(StrEnum):
    """How QEMU passes requests to the host."""

    THREADS = "threads"
    NATIVE = "native"
    IO_URING = "io_uring"


class ThrottleLimit(NamedTuple):
    """One limit of a throttle."""

    name: str
    """The scenario's name of it, such as ``total_bytes_per_second``."""
    direction: Literal["total", "read", "write"]
    unit: Literal["bytes", "operations"]
    average: int
    """Bytes or operations per second."""
    burst: int | None
    """``…_max``, its rate during a burst; ``None``: not set."""
    seconds: int | None
    """``…_max_seconds``, the longest burst; ``None``: not set, which means one second."""


class Throttle(Stable):
    """QEMU's leaky buckets, field by field; rules in ``util/throttle.c: throttle_is_valid``.

    ``None`` means no limit. Names follow libvirt's ``<iotune>``, with units.
    """

    ALWAYS: ClassVar[frozenset[str]] = named(
        "total_bytes_per_second read_bytes_per_second write_bytes_per_second",
        "total_operations_per_second read_operations_per_second",
        "write_operations_per_second total_bytes_per_second_max",
        "read_bytes_per_second_max write_bytes_per_second_max",
        "total_operations_per_second_max read_operations_per_second_max",
        "write_operations_per_second_max total_bytes_per_second_max_seconds",
        "read_bytes_per_second_max_seconds write_bytes_per_second_max_seconds",
        "total_operations_per_second_max_seconds read_operations_per_second_max_seconds",
        "write_operations_per_second_max_seconds operation_size group",
    )

    total_bytes_per_second: Rate | None = None
    read_bytes_per_second: Rate | None = None
    write_bytes_per_second: Rate | None = None
    total_operations_per_second: Rate | None = None
    read_operations_per_second: Rate | None = None
    write_operations_per_second: Rate | None = None
    total_bytes_per_second_max: Rate | None = None
    read_bytes_per_second_max: Rate | None = None
    write_bytes_per_second_max: Rate | None = None
    total_operations_per_second_max: Rate | None = None
    read_operations_per_second_max: Rate | None = None
    write_operations_per_second_max: Rate | None = None
    total_bytes_per_second_max_seconds: int | None = None
    read_bytes_per_second_max_seconds: int | None = None
    write_bytes_per_second_max_seconds: int | None = None
    total_operations_per_second_max_seconds: int | None = None
    read_operations_per_second_max_seconds: int | None = None
    write_operations_per_second_max_seconds: int | None = None
    operation_size: Size | None = None
    """A larger request counts as several operations."""
    group: Annotated[
        str | None, Says("a name such as cable1: letters, digits and '_.-', 32 at most")
    ] = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,32}$")
    """Disks with the same group share one set of buckets, like a shared cable."""

    def limits(self) -> tuple[ThrottleLimit, ...]:
        """Return the limits that are set: bytes first, then operations; total, read, write."""
        units: tuple[Literal["bytes", "operations"], ...] = ("bytes", "operations")
        directions: tuple[Literal["total", "read", "write"], ...] = ("total", "read", "write")
        names = [(f"{way}_{unit}_per_second", way, unit) for unit in units for way in directions]
        return tuple(
            ThrottleLimit(
                name=name,
                direction=way,
                unit=unit,
                average=average,
                burst=getattr(self, f"{name}_max") or None,
                seconds=getattr(self, f"{name}_max_seconds") or None,
            )
            for name, way, unit in names
            if (average := getattr(self, name))
        )


def as_throttle(value: object) -> object:
    """Return a throttle unchanged, and a plain rate as ``total_bytes_per_second``."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return {"total_bytes_per_second": value} if plain else value


MOST_TRIALS: Final = 32
"""Trials of the last look at a claim (``lab/analysis/sequential.py``)."""

KEYS: Final = 2
"""Most key claims of a scenario: a report answers in two sentences."""

SERVED: Final = ("hdd", "ssd")
"""Disk models with a disk server. Their defaults are ``format: raw`` and ``cache: writeback``."""


REAL: Final = {"format": "raw", "cache": "none"}
"""Defaults of a real disk: its own bytes, without the host's page cache."""


_OF_SERVED: Final = frozenset(("preset", "hdd", "ssd"))
_OF_REAL: Final = frozenset(("device", "device_serial", "device_rotational"))


def _plain(schema: dict[str, Any]) -> None:
    """JSON Schema of a drive's values, whose defaults are the preset's."""
    del schema["default"]


class Disk(Stable):
    """``count`` virtual disks of one configuration, or a real disk."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "count size format bus serial cache aio lazy_refcounts scheduler model throttle"
    )

    count: int = Field(default=1, ge=0, le=64)
    """Number of disks of this configuration."""
    size: Size = 20 * 1024**3
    """As the guest sees it; a multiple of 4 KiB. On the host only written data takes space."""
    format: DiskFormat = DiskFormat.QCOW2
    """Format of its file on the host."""
    bus: DiskBus = DiskBus.VIRTIO
    """The bus that the guest sees: virtio-blk, or virtio-scsi."""
    serial: str = "disk{index}"
    """The disk's serial, by which the guest finds it; ``{index}`` counts from 1."""
    cache: CacheMode = CacheMode.UNSAFE
    """QEMU's cache mode, ``qemu-system(1)``; ``unsafe`` ignores flushes."""
    aio: Aio = Aio.THREADS
    """How QEMU passes requests to the host; ``native`` needs ``cache: none`` or ``directsync``."""
    lazy_refcounts: bool = False
    """qcow2 only: delay updates of reference counts, ``qemu-img(1)``."""
    sectors: Sectors = Sectors.NATIVE_512
    """Block sizes that the guest sees: ``512n``, ``512e`` or ``4Kn``. A disk of ``512e`` is as fast
    as one of ``512n``: no read-modify-write of physical blocks is modelled."""
    scheduler: Literal["none", "mq-deadline", "bfq", "kyber"] = "none"
    """The guest's I/O scheduler for this disk; ``none`` passes md's requests on unchanged."""
    model: str = "throttle"
    """A disk model (``lab/plugins/disks/``), or ``profile:NAME``, a measured disk
    (a path works too)."""
    throttle: Annotated[
        Throttle, BeforeValidator(as_throttle, json_schema_input_type=Throttle | int | RateText)
    ] = Throttle()
    """``model: throttle``: limits per disk; a plain rate means ``total_bytes_per_second``."""
    preset: Annotated[str | None, Says("a preset's name, such as hdd_7200")] = Field(
        default=None, pattern=r"^[a-z0-9][a-z0-9_]*$"
    )
    """Values of a real drive, by their name in ``lab/plugins/disks/hdd.py`` or ``ssd.py``."""
    hdd: HddParameters = Field(default=HddParameters(), json_schema_extra=_plain)
    """``model: hdd``: changes to the preset."""
    ssd: SsdParameters = Field(default=SsdParameters(), json_schema_extra=_plain)
    """``model: ssd``: changes to the preset."""
    device: str | None = None
    """A real disk or partition, by its name in ``/dev/disk/by-id``."""
    device_serial: str | None = None
    """Serial that the real disk must have; ``None``, as for its ``size``: the one it has when the
    scenario is read."""
    device_rotational: bool | None = None
    """Whether the real disk rotates, for the guest's kernel; default as for ``device_serial``."""

    @model_validator(mode="before")
    @classmethod
    def _served(cls, value: object) -> object:
        # A disk server uses a raw file, and its flushes take as long as a drive's.
        if isinstance(value, dict) and value.get("device") is not None:
            return {**REAL, **value}
        if isinstance(value, dict) and value.get("model") in SERVED:
            return {"format": "raw", "cache": "writeback", **value}
        return value

    @override
    def always(self) -> frozenset[str]:
        found = self.ALWAYS | (_OF_SERVED if self.model in SERVED else frozenset())
        return found | (_OF_REAL if self.device is not None else frozenset())

    @field_validator("device", mode="before", json_schema_input_type=str | None)
    @classmethod
    def _stable_name(cls, device: object) -> object:
        directory, _, name = str(device).rpartition("/")
        if device is not None and (directory != "/dev/disk/by-id" or name in ("", ".", "..")):
            raise ValueError(
                f"{str(device)!r} is not a stable name: give the disk's name in /dev/disk/by-id,"
                " shown by `lab disk list`"
            )
        return device

    @field_validator("size")
    @classmethod
    def _whole_blocks(cls, size: int) -> int:
        if size < 1024**2 or size % 4096:
            raise ValueError(f"{size} bytes: expected at least 1MiB, and a multiple of 4KiB")
        return size


def _as_disks(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def _any_parameter(schema: dict[str, Any]) -> None:
    """Change the JSON Schema: a workload's file has the tool's parameters next to its name."""
    schema["properties"].pop("parameters", None)
    schema["additionalProperties"] = True


_NAME: Final = r"^[a-z][a-z0-9_-]{0,40}$"


class Sample(Stable):
    """A value of the guest that is read again and again while a workload runs."""

    file: str = Field(default="", max_length=400, pattern=r"^[^\x00\n]*$")
    """A file with a number. A relative path, such as ``md/stripe_cache_active``, is below the
    array's directory in ``/sys/block``."""
    command: str = Field(default="", max_length=2000, pattern=r"^[^\x00]*$")
    """Shell lines that print a number."""
    unit: str = Field(default="1", max_length=16, pattern=r"^[^\s\x00-\x1f]+$")
    """``B``, ``s``, ``1/s``, ``B/s``, ``1`` for a plain number, or a word."""
    every: Seconds = Field(default=1.0, ge=0.1)
    """Seconds of the guest's clock; of several samples the shortest counts."""

    @model_validator(mode="after")
    def _one_source(self) -> Sample:
        if bool(self.file) == bool(self.command):
            raise ValueError("expected file or command: write file: md/stripe_cache_active")
        return self


def _as_sample(value: object) -> object:
    return {"file": value} if isinstance(value, str) else value


class Workload(Stable):
    """One tool with its own parameters, and a name for its results."""

    ALWAYS: ClassVar[frozenset[str]] = named("name tool parameters")

    model_config = ConfigDict(json_schema_extra=_any_parameter)

    name: Annotated[str, NAMED] = Field(pattern=_NAME)
    """Its name in claims, ``--set`` and results."""
    tool: Annotated[str, Says("a tool's name, such as fio or dd")] = Field(
        pattern=r"^[a-z][a-z0-9_]*$"
    )
    """A workload, a file in ``lab/plugins/workloads/``."""
    keep_cache: bool = False
    """Leave the page cache, and the ARC of ZFS, as the workload before it left them. Otherwise they
    are dropped before it."""
    samples: dict[
        str, Annotated[Sample, BeforeValidator(_as_sample, json_schema_input_type=str | Sample)]
    ] = {}
    """Values that are read every second while it runs, by name: a file, or ``file`` or ``command``
    with ``unit`` and ``every``. Metrics are ``NAME_mean``, ``NAME_max`` and ``NAME_end``."""
    parameters: dict[str, Any] = {}
    """Checked by the tool's own file."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: object) -> object:
        # Every other key is a parameter of the tool.
        if not isinstance(value, dict) or "parameters" in value:
            return value
        own = {k: v for k, v in value.items() if k in cls.model_fields}
        return {**own, "parameters": {k: v for k, v in value.items() if k not in own}}

    @field_validator("samples")
    @classmethod
    def _names(cls, samples: dict[str, Sample]) -> dict[str, Sample]:
        for name in samples:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
                raise wrong_key(
                    f"'{name}' is no name of a sample: give small letters, digits and _, such as"
                    " cache",
                    name,
                )
        return samples


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def _any_axis(schema: dict[str, Any]) -> None:
    """Change the JSON Schema: a matrix's file has axes by name, ``exclude`` and ``include``."""
    axis: dict[str, Any] = schema["properties"].pop("axes")["additionalProperties"]
    schema["additionalProperties"] = {**axis, "minItems": 1}


class Matrix(Model):
    """Axes by dotted name, each a list of values; every combination is a cell."""

    model_config = ConfigDict(json_schema_extra=_any_axis)

    axes: dict[str, tuple[AxisValue, ...]] = {}
    exclude: tuple[Values, ...] = ()
    """Combinations with all these values are left out."""
    include: tuple[Values, ...] = ()
    """As in GitHub Actions: after ``exclude``, an entry's values are added to each combination
    whose axes have no other value. If there is none, the entry is a combination of its own."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: object) -> object:
        # Every other key is an axis.
        if not isinstance(value, dict) or "axes" in value:
            return value
        own = {k: v for k, v in value.items() if k in ("exclude", "include")}
        return {**own, "axes": {k: v for k, v in value.items() if k not in own}}

    @model_validator(mode="after")
    def _known_axes(self) -> Matrix:
        for name, values in self.axes.items():
            if not values:
                raise wrong_key(
                    "the axis has no values: write some, as in [1, 2], or remove it", name
                )
            if len(set(values)) != len(values):
                twice = next(v for v in values if values.count(v) > 1)
                raise wrong_key(f"the axis has {as_yaml(twice)} twice: remove one of them", name)
        for number, entry in enumerate(self.exclude):
            for name in entry:
                at = ("exclude", number, name)
                if name not in self.axes:
                    near = get_close_matches(name, self.axes, n=1)
                    guess = f"did you mean '{near[0]}'?" if near else f"known: {_listed(self.axes)}"
                    raise wrong_key(f"exclude names {name}, which is not an axis: {guess}", *at)
                if entry[name] not in self.axes[name]:
                    known = _listed(as_yaml(v) for v in self.axes[name])
                    found = as_yaml(entry[name])
                    raise wrong_key(
                        f"exclude names {name}: {found}, which is not a value of the axis: expected"
                        f" one of {known}",
                        *at,
                    )
        return self


class Source(Model):
    """Where a question or a value comes from."""

    title: str
    author: str | None = None
    date: str | None = None
    url: str | None = None


class AutoTrials(Model):
    """Trials with new seeds until every claim is decided."""

    auto: Literal[True] = True
    most: int = Field(default=MOST_TRIALS, ge=1, le=MOST_TRIALS)
    """Trials of a cell, at most."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """No further trials begin that would end later; ``None``: no limit."""


def _trials(value: object) -> object:
    return {"auto": True} if value == "auto" else value


def _kind_of_trials(value: object) -> str:
    return "rule" if isinstance(value, dict | AutoTrials) else "number"


_Number = Annotated[int, Field(ge=1, le=1000), Says("auto or a whole number from 1 to 1000")]
Trials = Annotated[
    Annotated[_Number, Tag("number")] | Annotated[AutoTrials, Tag("rule")],
    Discriminator(_kind_of_trials),
    BeforeValidator(_trials, json_schema_input_type=_Number | Literal["auto"] | AutoTrials),
]
"""A number of trials, or a rule for it."""


def _inherits(schema: dict[str, Any]) -> None:
    """JSON Schema of a scenario as written: with ``extends`` no key is required."""
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]


def _unknown_value(name: str, other: str, known: Mapping[str, Claim]) -> str:
    if other in known:
        values = _listed(f"{{{other}.{one}}}" for one in known[other].names)
        return f"{{{name}}} is no value of the claim {other}: known are {values}"
    near = get_close_matches(other, known, n=1)
    guess = f"did you mean '{near[0]}'?" if near else f"known are {_listed(known)}"
    return f"{{{name}}}: there is no claim '{other}': {guess}"


class Scenario(Model):
    """One file in ``scenarios/``: one question."""

    model_config = ConfigDict(json_schema_extra=_inherits)

    extends: str | None = None
    """Another scenario whose keys this file takes over: a name, or a path that ends in ``.yaml``,
    relative to this file. Mappings are merged; a list, and ``matrix`` with ``cases``, is
    replaced."""
    set: dict[str, Any] = {}
    """With ``extends``: fields of the other scenario by dotted name, as of ``--set``."""
    title: str = Field(min_length=1)
    """One line, for lists and reports."""
    question: str = Field(min_length=1)
    """The question that it answers."""
    source: Source | None = None
    """First publication of the question."""
    notes: str = ""
    """What was scaled, and whether that matters."""
    guest: Guest = Guest()
    disks: Annotated[
        tuple[Disk, ...],
        BeforeValidator(_as_disks, json_schema_input_type=Disk | tuple[Disk, ...]),
    ] = (Disk(),)
    """One configuration of disks, or a list of several."""
    array: Array | None = None
    """``none``: the bare disks."""
    filesystem: Filesystem | None = None
    """Made on the array; ``None``: workloads use the block device."""
    workloads: tuple[Workload, ...] = ()
    """Run in this order, one after the other."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject, and when."""
    matrix: Matrix = Matrix()
    """Lists of values; each combination is a cell."""
    cases: tuple[Values, ...] = ()
    """Cells one by one: values by dotted name. A field that one of them leaves out has the file's
    own value. With axes in ``matrix``, each case is combined with each of their combinations."""
    profiles: dict[Annotated[str, NAMED, StringConstraints(pattern=_NAME)], dict[str, Any]] = {}
    """Variants by name, such as ``published``: fields by dotted name, as of ``--set``."""
    profile: str | None = None
    """The profile that is used; ``--profile NAME`` is ``--set profile=NAME``."""
    trials: Trials = 1
    """How often each workload is repeated in a cell, in rounds. In virtual time each trial has a
    guest and a seed of its own. ``auto``, in virtual time: until the claims are decided."""
    seed: int = Field(default=1, ge=1, le=1_000_000)
    """Seed of the first trial: drives' angles, places that workloads draw, and in virtual time
    addresses of processes. In virtual time the next trial has the next seed; in real time all
    trials have this one. The first workload that draws places has it as it is; each other one has
    a seed from it and its name, unless the scenario writes one."""
    claims: tuple[Claim, ...] = ()
    """Published statements about the cells' values, in a form that can be checked."""
    timeout: Seconds = 900.0
    """Longest duration of one workload."""

    @field_validator("array", mode="before", json_schema_input_type=Array | Literal["none"] | None)
    @classmethod
    def _no_array(cls, value: object) -> object:
        return None if value == "none" else value

    @field_validator("workloads")
    @classmethod
    def _distinct_workloads(cls, workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
        names = [w.name for w in workloads]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two workloads have the name {name!r}: rename one")
        return workloads

    @field_validator("claims")
    @classmethod
    def _distinct_claims(cls, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        ids = [c.id for c in claims]
        for claim_id in ids:
            if ids.count(claim_id) > 1:
                raise ValueError(f"two claims have the id {claim_id!r}: rename one")
        return claims

    @model_validator(mode="after")
    def _answered(self) -> Scenario:
        known = {claim.id: claim for claim in self.claims}
        keys = [number for number, claim in enumerate(self.claims) if claim.key]
        for number in keys[KEYS:]:
            message = f"{KEYS} other claims answer the question already: remove if_holds from one"
            raise wrong_key(message, "claims", number, "if_holds")
        for number in keys:
            claim = self.claims[number]
            for key, sentence in (("if_holds", claim.if_holds), ("if_refuted", claim.if_refuted)):
                for name in names_in(sentence or ""):
                    other, dot, own = name.rpartition(".")
                    if dot and (other not in known or own not in known[other].names):
                        raise wrong_key(_unknown_value(name, other, known), "claims", number, key)
        return self


class Cell(Stable):
    """One combination of the matrix, with every value fixed."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "scenario axes guest disks array filesystem workloads trials timeout"
    )

    scenario: str
    """Name of its scenario."""
    axes: dict[str, AxisValue]
    """Every axis of the matrix by dotted name; sizes in bytes."""
    guest: Guest
    disks: tuple[Disk, ...]
    array: Array | None
    filesystem: Filesystem | None = None
    workloads: tuple[Workload, ...]
    faults: tuple[Fault, ...] = ()
    trials: int = Field(default=1, ge=1, le=1000)
    seed: int = Field(default=1, ge=1, le=2_000_000)
    """Seed of the first trial."""
    timeout: float = 900.0

    def seed_of(self, trial: int) -> int:
        """The seed of a trial, from 1. In real time all trials have the same."""
        return self.seed + (trial - 1 if self.guest.clock is Clock.VIRTUAL else 0)

    @property
    def each_disk(self) -> tuple[tuple[str, Disk], ...]:
        """Each single disk with its serial, in order; ``{index}`` counts from 1."""
        singles = [disk for disk in self.disks for _ in range(disk.count)]
        return tuple((d.serial.replace("{index}", str(i)), d) for i, d in enumerate(singles, 1))
