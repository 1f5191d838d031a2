"""Space that many small files take: ``df`` before and after, and their own blocks."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import BaseModel, Field, field_validator
from typing_extensions import override

from lab.core.base import Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.model.plugin import Stream, WorkloadTool
from lab.model.result.measurement import SECONDS, Metric, MetricKind
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads._shared import TARGET, aimed, read_json, small, tree_command


def _counted(name: str) -> Metric:
    return Metric(name=name, unit="B", better="lower", kind=MetricKind.COUNTED)


USED: Final = _counted("used")
"""Growth of ``df``'s Used: data and metadata."""
USED_TOTAL: Final = _counted("used_total")
"""``df``'s Used afterwards; an empty file system uses some space too."""
ALLOCATED: Final = _counted("allocated")
"""Bytes of the files' blocks, as ``du`` counts them."""


class SpaceParameters(Stable):
    """Number and size of the files."""

    ALWAYS: ClassVar[frozenset[str]] = named("directory files size files_per_directory")

    directory: str = TARGET
    """Where the files are; created if missing."""
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
    """Bytes in use, independent of throttles and of the host's speed."""

    parameters = SpaceParameters
    programs = ("python3",)
    metrics = (USED, USED_TOTAL, ALLOCATED, SECONDS)

    @override
    def script(self, p: SpaceParameters, target: str) -> str:
        tree = {
            "seed": 1,
            "files": p.files,
            "min_size": p.size,
            "max_size": p.size,
            "files_per_directory": p.files_per_directory,
        }
        return tree_command(p.directory.replace(TARGET, target), ["write"], tree)

    @override
    def parse(self, p: SpaceParameters, outputs: Outputs) -> dict[str, float]:
        wrote = read_json(_Report, "space", outputs).phases.write
        if wrote.files != p.files or wrote.bytes != p.files * p.size:
            raise ToolError(
                f"space found {wrote.files} files with {wrote.bytes} bytes, expected "
                f"{p.files} files of {p.size}"
            )
        grown = wrote.used_after - wrote.used_before
        if grown < wrote.bytes:
            raise ToolError(
                f"the file system's use grew by {grown} bytes, and {wrote.bytes} were written: "
                "another program removed files meanwhile, or the file system compresses"
            )
        return {
            USED.name: float(grown),
            USED_TOTAL.name: float(wrote.used_after),
            ALLOCATED.name: float(wrote.allocated),
            SECONDS.name: wrote.seconds,
        }

    @override
    def destroys(self, p: SpaceParameters) -> bool:
        return False

    @override
    def stream(self, p: SpaceParameters) -> Stream | None:
        return None


WORKLOAD: WorkloadTool = Space()
