"""Suites: workloads that are other people's tests, each of which becomes a claim of its own.

A suite comes from a directory of the host, which is copied into the guest; what comes back is text.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from lab.core.base import Model, Seconds
from lab.model.scenario.outputs import Outputs

SUITES: Final = "/var/lib/lab/suites"
"""Where copies of suites lie in the guest."""
LARGEST: Final = 256 * 1024**2
"""Bytes of a directory that is copied: a checkout that was built has a tenth of that."""

LEFT_OUT: Final = (".git", ".svn", ".hg")
"""What version control keeps, which no guest needs."""

Ending = Literal["passed", "failed", "skipped", "unfinished", "not_run"]


class SuiteParameters(Model):
    """What every suite is asked."""

    directory: str = ""
    """A directory of the host with the suite in it: from a scenario's file it is looked for beside
    the file, with ``--set`` from where the lab is called. Empty: it is to be given."""
    tests: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Names of tests, or shell patterns of names; in this order, each once."""
    limit: Seconds = Field(default=300.0, gt=0)
    """How long one test may take; it is ended then, and the next one comes."""

    @property
    def place(self) -> str:
        """Where the suite lies in the guest; one with other parameters lies elsewhere."""
        return f"{SUITES}/{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]}"


class Tested(Model):
    """One test of a suite, and what became of it."""

    name: str
    ending: Ending
    """``unfinished``: it had begun, and nobody knows how it would have ended."""
    reason: str = ""
    seconds: float | None = None
    """``None``: nobody knows."""
    logs: tuple[tuple[str, str], ...] = ()
    """Names and contents: what it has left, and the kernel's messages of its time."""


class Named(Model):
    """Tests by their names."""

    folder: str
    """Relative to the suite's directory."""
    find: str
    """What of a path below it is a test, as a regular expression."""
    tests: tuple[str, ...]
    """Names, or shell patterns of names."""


class Suite(ABC):
    """A workload whose parameters are ``SuiteParameters``, and which gets all of a cell's disks,
    bare: its target is their paths, with spaces between them."""

    @abstractmethod
    def marks(self, parameters: Any) -> Sequence[str]:
        """Files by which its directory is known, relative to it."""

    @abstractmethod
    def named(self, parameters: Any) -> Named:
        """Which files of its directory are tests, and which of them are meant."""

    @abstractmethod
    def listing(self, parameters: Any) -> str:
        """Shell lines that print which tests are meant, before any of them is run."""

    @abstractmethod
    def endings(self, parameters: Any, listed: str, outputs: Outputs) -> tuple[Tested, ...]:
        """Every test that ``listing`` printed, or the suite itself where that is cut off; empty
        where nobody knows which were meant. Never an error: a suite may break off anywhere."""
