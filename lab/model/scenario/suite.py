"""Suites: workloads that are other projects' tests; each test has a result.

A suite is a directory of the host, which is copied into the guest; its output comes back as text.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from lab.core.base import Model, Seconds
from lab.core.stable import Stable, named
from lab.model.scenario.outputs import Outputs

SUITES: Final = "/var/lib/lab/suites"
"""Directory of the copies in the guest."""
LARGEST: Final = 256 * 1024**2
"""Bytes of a directory that is copied, at most: a built checkout has a tenth of that."""

LEFT_OUT: Final = (".git", ".svn", ".hg")
"""Directories of version control, which are not copied."""

Ending = Literal["passed", "failed", "skipped", "unfinished", "not_run"]


class SuiteParameters(Stable):
    """Parameters of every suite."""

    ALWAYS: ClassVar[frozenset[str]] = named("directory tests limit")

    directory: str = ""
    """Directory of the host with the suite. Relative paths begin at the scenario's file, or with
    ``--set`` at the current directory. Required."""
    tests: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Names of tests, or shell patterns of names; run in this order, each once."""
    limit: Seconds = Field(default=300.0, gt=0)
    """Time limit of one test; after it the test is ended, and the next one starts."""

    @property
    def place(self) -> str:
        """Where the suite is in the guest; it depends on the parameters."""
        return f"{SUITES}/{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]}"


class Tested(Model):
    """One test of a suite, and its result."""

    name: str
    ending: Ending
    """``unfinished``: it began, and its result is unknown."""
    reason: str = ""
    seconds: float | None = None
    """``None``: unknown."""
    logs: tuple[tuple[str, str], ...] = ()
    """Names and contents: its logs, and the kernel's messages of that time."""


class Named(Model):
    """Tests by name."""

    folder: str
    """Relative to the suite's directory."""
    find: str
    """Regular expression for paths below it that are tests."""
    tests: tuple[str, ...]
    """Names, or shell patterns of names."""


class Suite(ABC):
    """A workload whose parameters are ``SuiteParameters``, and which gets all of a cell's bare
    disks: its target is their paths, separated by spaces."""

    @abstractmethod
    def marks(self, parameters: Any) -> Sequence[str]:
        """Files that identify its directory, relative to it."""

    @abstractmethod
    def named(self, parameters: Any) -> Named:
        """Which files of its directory are tests, and which of them are requested."""

    @abstractmethod
    def listing(self, parameters: Any) -> str:
        """Shell lines that print the requested tests before the first one runs."""

    @abstractmethod
    def endings(self, parameters: Any, listed: str, outputs: Outputs) -> tuple[Tested, ...]:
        """The result of every test that ``listing`` printed, or that the suite lists if that is cut
        off; empty: unknown.

        Never an error: a suite may stop anywhere.
        """
