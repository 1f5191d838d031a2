"""A workload's output, and what was read around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Raw output of one trial of a workload."""

    stdout: str
    stderr: str
    files: Mapping[str, str]
    """Other files that the tool wrote, by name."""
