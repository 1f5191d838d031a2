"""What a session's guest has, what runs in it, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WORK: Final = "/var/lib/lab/work"
"""Working directory of a command in the guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Options of a guest's hardware; ``None``: the scenario's, or the default."""

    disks: int | None = None
    size: str | None = None
    speed: str | None = None
    model: str | None = None
    """A disk model, or a preset of one."""
    level: str | None = None
    image: str | None = None
    kernel: str | None = None
    cpus: int | None = None
    memory: str | None = None
    clock: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command or a script, and what becomes of its files."""

    argv: tuple[str, ...]
    """The command, or the script's arguments."""
    script: str = ""
    """The script's text; empty: a command."""
    limit: float = 900.0
    """Seconds."""
    out: Path | None = None
    """Directory for the files of its working directory."""
    trials: int = 1
    keep: bool = False

    @property
    def title(self) -> str:
        """Its first words."""
        return " ".join(self.argv)[:60] or "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that ended."""

    trial: int
    seed: int
    status: int
    seconds: float
    """By the guest's clock in virtual time, else by the host's."""
    stdout: str = ""
    stderr: str = ""
    files: tuple[str, ...] = ()
    """Paths on the host of what it left in its working directory."""
    guest: str = ""
    """Id of the guest that was left up."""
    shown: bool = field(default=False)
    """Its output went to the terminal as it came."""
