"""Features of an image's kernel and mdadm, by their versions and the kernel's options.

Sources: kernel ``drivers/md/Kconfig``; mdadm's ``ChangeLog``. ``linear`` was removed in Linux 6.8
(849d18e27be9) and came back in 6.14 (127186cfb184); lockless bitmaps are in Linux from 6.18 on
(``md-llbitmap.c``), and mdadm makes them from 4.6 on; mdadm took a file as a bitmap up to 4.3
(``mdadm.c: set_bitmap_value``), and Linux has an option for that since 6.5 (0ae1c9d38426).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lab.md.facts.levels import NAMES, Level
from lab.model.image.manifest import ImageFacts
from lab.model.plugin import Problem
from lab.model.scenario.document import Array

LOCKLESS_OPTION: Final = "CONFIG_MD_LLBITMAP"
LOCKLESS_KERNEL: Final = (6, 18)
LOCKLESS_MDADM: Final = (4, 6)

FILE_OPTION: Final = "CONFIG_MD_BITMAP_FILE"
FILE_OPTION_KERNEL: Final = (6, 5)
"""The first kernel with this option."""
NO_FILE_MDADM: Final = (4, 4)
"""The first mdadm that refuses a bitmap in a file."""

LINEAR_GONE: Final = (6, 8)
LINEAR_BACK: Final = (6, 14)

LEVEL_OPTIONS: Final = {
    Level.LINEAR: "CONFIG_MD_LINEAR",
    Level.RAID0: "CONFIG_MD_RAID0",
    Level.RAID1: "CONFIG_MD_RAID1",
    Level.RAID4: "CONFIG_MD_RAID456",
    Level.RAID5: "CONFIG_MD_RAID456",
    Level.RAID6: "CONFIG_MD_RAID456",
    Level.RAID10: "CONFIG_MD_RAID10",
}

_ON: Final = ("y", "m")


def version_of(text: str | None) -> tuple[int, int] | None:
    """Return ``(6, 12)`` for ``6.12.57+deb13-cloud-amd64``; ``None``: unknown."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def unsupported(array: Array, facts: ImageFacts) -> Iterable[Problem]:
    """Yield features that the image's kernel or mdadm lacks for an array; unknown versions:
    none."""
    level = NAMES.get(array.level)
    kernel, mdadm = version_of(facts.kernel_version), version_of(facts.mdadm_version)
    if facts.packages is not None and "mdadm" not in facts.packages:
        yield Problem(key="array.kind", message="it has no mdadm")
    if level is not None:
        yield from _level(level, kernel, facts)
    if array.bitmap == "lockless":
        if kernel is not None and kernel < LOCKLESS_KERNEL:
            yield _bitmap("lockless bitmaps need Linux 6.18 or newer")
        elif _off(facts, LOCKLESS_OPTION):
            yield _bitmap(f"its kernel was built without {LOCKLESS_OPTION}")
        if mdadm is not None and mdadm < LOCKLESS_MDADM:
            yield _bitmap("`--bitmap=lockless` needs mdadm 4.6 or newer")
    if array.bitmap == "external":
        if mdadm is not None and mdadm >= NO_FILE_MDADM:
            yield _bitmap("a bitmap in a file needs mdadm 4.3 or older")
        if (kernel is None or kernel >= FILE_OPTION_KERNEL) and _off(facts, FILE_OPTION):
            yield _bitmap(f"its kernel was built without {FILE_OPTION}")


def _bitmap(message: str) -> Problem:
    return Problem(key="array.bitmap", message=message)


def _level(level: Level, kernel: tuple[int, int] | None, facts: ImageFacts) -> Iterable[Problem]:
    option = LEVEL_OPTIONS[level]
    gone = kernel is not None and LINEAR_GONE <= kernel < LINEAR_BACK
    if level is Level.LINEAR and gone:
        message = "Linux 6.8 to 6.13 has no linear arrays"
    elif _off(facts, option):
        message = f"its kernel was built without {option}"
    else:
        return
    yield Problem(key="array.level", message=message)


def _off(facts: ImageFacts, option: str) -> bool:
    options = facts.kernel_options
    return options is not None and options.get(option) not in _ON
