"""The result of `lab clean`: what is removed, and what stays."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model


class Kind(StrEnum):
    """What an item is, in the order of removal: least work to make again first."""

    LEFTOVER = "leftover"
    """What a killed process was making. It is removed whatever space there is."""
    JUDGEMENTS = "judgement"
    """Results of runs, judged once."""
    SNAPSHOT = "snapshot"
    KERNEL = "kernel"
    KIT = "kit"
    """Boot files for virtual time."""
    TREE = "build tree"
    """Compiler, headers and objects for `lab patch` and `lab kernel build`."""
    IMAGE = "image"
    RUN = "run"


class Item(Model):
    """One file or directory of the lab's."""

    kind: Kind
    name: str
    path: str
    bytes: int
    """On disk; holes do not count."""
    used: str
    """Last access or change, ISO 8601, UTC."""
    remove: bool
    """It is removed, or was."""
    why: str


class Pruning(Model):
    """A plan, or what was done."""

    schema_: Literal["lab.prune/1"] = Field(default="lab.prune/1", alias="schema")
    keep: int
    """Wanted bytes of all items together."""
    before: int
    after: int
    """Bytes with all items of the plan removed."""
    done: bool
    """``False``: it is a plan."""
    items: tuple[Item, ...]
    """Removed ones in their order, then those that stay."""
