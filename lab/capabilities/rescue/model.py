"""What a rescue reads, concludes, tries and answers. Frozen data; sizes and offsets in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lab.capabilities.rescue.logic.signatures import Content, Table
from lab.capabilities.rescue.logic.superblocks import BadBlocks, Bitmap, Superblock

FORMAT = 1
"""Version of the JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A device that can be a member: a whole disk or a partition of it."""

    disk: int
    """Number of the input."""
    name: str
    """``a``, ``b``, …; partitions ``a1``. Sentences and commands use it until real names are put
    in."""
    path: str
    """What the user gave; of a partition with its number."""
    size: int
    at: int = 0
    """Offset on the disk."""
    superblocks: tuple[Superblock, ...] = ()
    bitmap: Bitmap | None = None
    bad_blocks: BadBlocks | None = None
    journal_blocks: bool = False
    ppl: bool = False
    contents: tuple[Content, ...] = ()
    """What begins at the places where md would put data."""
    table: Table | None = None
    foreign: str = ""
    """``imsm`` or ``ddf``."""
    unread: tuple[tuple[int, int], ...] = ()
    """Ranges (offset, length) that ddrescue could not read, or that the image lacks."""

    @property
    def best(self) -> Superblock | None:
        """The valid superblock that was updated last."""
        valid = [block for block in self.superblocks if block.checksum_ok]
        return max(valid, key=lambda block: (block.created, block.updated), default=None)


class Weight(StrEnum):
    """How much a finding matters."""

    NOTE = "note"
    WARNING = "warning"
    DANGER = "danger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of the diagnosis."""

    kind: str
    """A short name: ``stale``, ``reshape``, ``recreated``, ``foreign-disk``, …"""
    weight: Weight
    sentence: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How an array is laid out on its members."""

    level: int
    disks: int
    chunk: int
    layout: int
    version: str
    data_offset: int
    size: int
    """Bytes used of each member; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A part in an array, as its own superblock says."""

    part: str
    role: int
    events: int
    updated: int
    stale: bool
    recovering: bool = False
    """It is being rebuilt: its data after the recovery offset is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One generation of an array."""

    uuid: str
    name: str
    created: int
    shape: Shape
    members: tuple[Member, ...]
    spares: tuple[str, ...] = ()
    journal: str = ""
    needs_journal: bool = False
    missing: tuple[int, ...] = ()
    """Slots of which no part claims to be."""
    clean: bool = True
    reshaping: bool = False

    @property
    def fresh(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not member.stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Members in slots with a shape, without superblocks; an empty name is a missing member."""

    shape: Shape
    slots: tuple[str, ...]
    offsets: tuple[int, ...] = ()
    """Data offset of each slot, if they differ."""
    evidence: str = ""
    score: float = 0.0
    """Share of the checked structures that are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the inputs say, without an attempt."""

    parts: tuple[Part, ...]
    arrays: tuple[Array, ...]
    """Newest first."""
    findings: tuple[Finding, ...]
    arrangements: tuple[Arrangement, ...] = ()
    """Found from the data itself, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A way to start the array, with commands in which ``{a}`` stands for a part."""

    name: str
    title: str
    commands: tuple[str, ...]
    parts: tuple[str, ...]
    """Parts that it uses, in the order of its members."""
    writes: str
    """What its commands write to the disks, in one phrase; empty: nothing."""
    destructive: bool = False
    """It replaces superblocks."""
    uses_stale: tuple[str, ...] = ()
    freshness: int = 0
    """The smallest event count of its members; 0: unknown."""
    arrangement: Arrangement | None = None
    why: str = ""
    moves_data: bool = False
    """A reshape goes on, although ``--readonly`` is given: it cannot be undone."""
    fallback: bool = False
    """Something of the array's newest state is left out: a journal, a reshape's backup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Bytes of a disk that an attempt wrote."""

    at: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened in the guest."""

    attempt: Attempt
    ran: bool = True
    """Whether the guest answered."""
    assembled: bool = False
    size: int = 0
    state: str = ""
    layers: tuple[str, ...] = ()
    """What lies on the array: ``lvm``, ``luks``, file systems."""
    mounted: int = 0
    unmounted: int = 0
    """File systems that were recognised and could not be mounted."""
    fsck_errors: int = 0
    """File systems in which fsck found errors."""
    files: int = 0
    directories: int = 0
    unreadable: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 by path, if they were asked for."""
    expected_wrong: tuple[str, ...] = ()
    """Paths whose hash is not the one that the user gave."""
    mismatches: float | None = None
    """Share of the sampled rows whose parity or copies differ; ``None``: nothing to compare."""
    written: dict[str, tuple[Extent, ...]] = field(default_factory=dict)
    """By part."""
    locked: bool = False
    """LUKS is there and no passphrase was given."""
    log: str = ""

    @property
    def works(self) -> bool:
        """Whether something on the array can be read."""
        return self.assembled and (self.mounted > 0 or self.locked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An outcome in its place, with the reasons."""

    outcome: Outcome
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do on the real disks."""

    text: str
    command: str = ""
    writes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole answer."""

    diagnosis: Diagnosis
    ranking: tuple[Ranked, ...]
    happened: tuple[str, ...]
    steps: tuple[Step, ...]
    at_risk: tuple[str, ...] = ()
    hopeless: str = ""
    """Why nothing helps; empty: something does."""
