"""How much room many small files take: ``df`` before and after, and their own blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, Field, field_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.model.plugin import Stream, WorkloadTool, checked
from lab.model.result.measurement import SECONDS, Metric, MetricKind
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads import TARGET, aimed, read_json, small, tree_command


def _counted(name: str) -> Metric:
    return Metric(name=name, unit="B", better="lower", kind=MetricKind.COUNTED)


USED: Final = _counted("used")
"""By how much ``df``'s Used grew: data, and what the file system needs to find them."""
USED_TOTAL: Final = _counted("used_total")
"""``df``'s Used afterwards: an empty file system has something in use too."""
ALLOCATED: Final = _counted("allocated")
"""Bytes of the files' own blocks, as ``du`` counts them."""


class SpaceParameters(Model):
    """How many files of what size."""

    directory: str = TARGET
    """Where the files are; it is made where it is not there."""
    files: int = Field(default=10_000, ge=1, le=1_000_000)
    size: Size = 4096
    """Bytes of each file."""
    files_per_directory: int = Field(default=1000, ge=1, le=1_000_000)

    @field_validator("directory")
    @classmethod
    def _below_the_target(cls, directory: str) -> str:
        return aimed(directory, f"write it as '{TARGET}/files'")

    @field_validator("size")
    @classmethod
    def _small(cls, size: int) -> int:
        return small(size)


class _Write(BaseModel):
    seconds: float
    files: int
    bytes: int
    allocated: int
    used_before: int
    used_after: int


class _Phases(BaseModel):
    write: _Write


class _Report(BaseModel):
    phases: _Phases


class Space(WorkloadTool):
    """Bytes in use, which no throttle and no slow host changes."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The files."""
        return SpaceParameters

    @property
    @override
    def programs(self) -> Sequence[str]:
        """Python makes the files and asks the file system."""
        return ("python3",)

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """Three counted figures, and the seconds that the writing took."""
        return (USED, USED_TOTAL, ALLOCATED, SECONDS)

    @override
    def script(self, parameters: Any, target: str) -> str:
        """The program of ``file_tree``, with files of one size that are only written."""
        p = checked(SpaceParameters, parameters)
        tree = {
            "seed": 1,
            "files": p.files,
            "min_size": p.size,
            "max_size": p.size,
            "files_per_directory": p.files_per_directory,
        }
        return tree_command(p.directory.replace(TARGET, target), ["write"], tree)

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """``ToolError``: not all files are there, or they take less room than they hold."""
        p = checked(SpaceParameters, parameters)
        wrote = read_json(_Report, "space", outputs).phases.write
        if wrote.files != p.files or wrote.bytes != p.files * p.size:
            raise ToolError(
                f"space found {wrote.files} files with {wrote.bytes} bytes, and was asked for "
                f"{p.files} files of {p.size}"
            )
        grown = wrote.used_after - wrote.used_before
        if grown < wrote.bytes:
            raise ToolError(
                f"the file system's use grew by {grown} bytes, less than the {wrote.bytes} that "
                "were written: something else was removed meanwhile, or it compresses"
            )
        return {
            USED.name: float(grown),
            USED_TOTAL.name: float(wrote.used_after),
            ALLOCATED.name: float(wrote.allocated),
            SECONDS.name: wrote.seconds,
        }

    @override
    def destroys(self, parameters: Any) -> bool:
        """Files are added to the target, and stay."""
        checked(SpaceParameters, parameters)
        return False

    @override
    def stream(self, parameters: Any) -> Stream | None:
        """Never one: the file system decides what goes where."""
        checked(SpaceParameters, parameters)
        return None


WORKLOAD: WorkloadTool = Space()
