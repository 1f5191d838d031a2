"""Levels and layouts of md: mdadm's names, the kernel's numbers.

Sources: mdadm ``maps.c`` (names), ``util.c: parse_layout_10``, ``Create.c: Create`` (smallest
counts), kernel ``raid5.h: algorithm_valid_raid5/raid6``, ``raid10.c: setup_geo``.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final


class Level(IntEnum):
    """An md level that the lab builds, by md's number."""

    LINEAR = -1
    RAID0 = 0
    RAID1 = 1
    RAID4 = 4
    RAID5 = 5
    RAID6 = 6
    RAID10 = 10

    @property
    def kernel_name(self) -> str:
        """The level's name in ``md/level`` in sysfs."""
        return "linear" if self is Level.LINEAR else f"raid{int(self)}"

    @property
    def title(self) -> str:
        """The level's name in messages."""
        return "a linear array" if self is Level.LINEAR else f"RAID {int(self)}"

    @property
    def redundant(self) -> bool:
        """Whether a member may fail; only then are there a sync, spares and a bitmap."""
        return self > 0

    @property
    def striped(self) -> bool:
        """Whether the level has a chunk; mdadm forbids ``--chunk`` for RAID 1."""
        return self not in (Level.LINEAR, Level.RAID1)

    @property
    def parity(self) -> int:
        """Parity chunks in each stripe."""
        return {Level.RAID4: 1, Level.RAID5: 1, Level.RAID6: 2}.get(self, 0)

    @property
    def smallest(self) -> int:
        """Fewest members that mdadm and the kernel accept."""
        return {Level.RAID4: 2, Level.RAID5: 2, Level.RAID6: 4, Level.RAID10: 2}.get(self, 1)


NAMES: Final = {
    "linear": Level.LINEAR,
    **dict.fromkeys(("0", "raid0", "stripe"), Level.RAID0),
    **dict.fromkeys(("1", "raid1", "mirror"), Level.RAID1),
    **dict.fromkeys(("4", "raid4"), Level.RAID4),
    **dict.fromkeys(("5", "raid5"), Level.RAID5),
    **dict.fromkeys(("6", "raid6"), Level.RAID6),
    **dict.fromkeys(("10", "raid10"), Level.RAID10),
}
"""mdadm's ``pers`` table, without faulty, multipath and container."""

_RAID5: Final = {
    "left-asymmetric": 0,
    "la": 0,
    "right-asymmetric": 1,
    "ra": 1,
    "left-symmetric": 2,
    "ls": 2,
    "default": 2,
    "right-symmetric": 3,
    "rs": 3,
    "parity-first": 4,
    "parity-last": 5,
    # Single-parity DDF names are md's own layouts under another name.
    "ddf-zero-restart": 1,
    "ddf-N-restart": 0,
    "ddf-N-continue": 2,
}
_RAID6: Final = {
    **_RAID5,
    "ddf-zero-restart": 8,
    "ddf-N-restart": 9,
    "ddf-N-continue": 10,
    "left-asymmetric-6": 16,
    "right-asymmetric-6": 17,
    "left-symmetric-6": 18,
    "right-symmetric-6": 19,
    "parity-first-6": 20,
}
_RAID0: Final = {"dangerous": 0, "original": 1, "1": 1, "alternate": 2, "2": 2}
_RAID10: Final = re.compile(r"([nfo])([0-9]{1,3})")
_NUMBERS: Final = {Level.RAID0: _RAID0, Level.RAID5: _RAID5, Level.RAID6: _RAID6}
_DEFAULTS: Final = {Level.RAID0: 1, Level.RAID5: 2, Level.RAID6: 2}
"""RAID 0: ``super1.c: init_super1`` writes the original layout by default."""


def layout_names(level: Level) -> tuple[str, ...]:
    """Every ``--layout`` that mdadm accepts for a level; RAID 10's are patterns."""
    return ("nN", "fN", "oN") if level is Level.RAID10 else tuple(_NUMBERS.get(level, ()))


def layout_number(level: Level, layout: str | None) -> int:
    """The kernel's number of a layout; ``None`` is the level's default.

    ``ValueError``: mdadm has no such layout for this level.
    """
    if level is Level.RAID10:
        return _raid10_number("n2" if layout is None else layout)
    if layout is None:
        return _DEFAULTS.get(level, 0)
    number = _NUMBERS.get(level, {}).get(layout)
    if number is None:
        raise ValueError(f"{level.title} has no layout {layout!r}")
    return number


def _raid10_number(layout: str) -> int:
    """Near copies in bits 0-7, far copies in 8-15, bit 16 for far copies that are offset."""
    match = _RAID10.fullmatch(layout)
    copies = int(match.group(2)) if match else 0
    if match is None or not 1 <= copies <= 200:
        raise ValueError(f"RAID 10 has no layout {layout!r}")
    if match.group(1) == "n":
        return 1 << 8 | copies
    far = copies << 8 | 1
    return far | 1 << 16 if match.group(1) == "o" else far


def near_copies(number: int) -> int:
    """Adjacent copies of a RAID 10 chunk."""
    return number & 255


def far_copies(number: int) -> int:
    """Copies of a RAID 10 chunk in other parts of the disks, or offset by a chunk."""
    return number >> 8 & 255


def copies(number: int) -> int:
    """Number of copies of a RAID 10 chunk."""
    return near_copies(number) * far_copies(number)
