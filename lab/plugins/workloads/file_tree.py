"""A tree of small files, made from a seed: written, read, unpacked, removed.

Each phase begins with an empty page cache and ends when everything is on the disks. The tree
depends only on the parameters, so one workload may write it and another read it, each with the
disks' counters of its own. ``unpack`` takes the same tree from a tarball on the guest's own disk.
Everything that is read is compared with what was written.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import BaseModel, Field, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.model.plugin import Stream, WorkloadTool
from lab.model.result.measurement import SECONDS, Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads._shared import TARGET, aimed, read_json, small, tree_command

Phase = Literal["write", "read", "unpack", "remove"]
PHASES: Final[tuple[Phase, ...]] = ("write", "read", "unpack", "remove")


class FileTreeParameters(Stable):
    """Number of files, their sizes, and the phases."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "directory files min_size max_size files_per_directory seed phases"
    )

    directory: str = TARGET
    """Where the tree is; created if missing."""
    files: int = Field(default=2000, ge=1, le=1_000_000)
    min_size: Size = 1024
    """Bytes of the smallest file; sizes are distributed evenly."""
    max_size: Size = 32 * 1024
    """Bytes of the largest file."""
    files_per_directory: int = Field(default=100, ge=1, le=100_000)
    seed: int = Field(default=1, ge=0)
    """Decides sizes and contents."""
    phases: tuple[Phase, ...] = PHASES
    """The phases in this order; each is timed."""

    @field_validator("directory")
    @classmethod
    def _below_the_target(cls, directory: str) -> str:
        return aimed(directory, f"write it as '{TARGET}/tree'")

    @field_validator("max_size")
    @classmethod
    def _small(cls, size: int) -> int:
        return small(size)

    @field_validator("phases")
    @classmethod
    def _in_order(cls, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        if not phases or list(phases) != sorted(set(phases), key=PHASES.index):
            raise ValueError(f"expected some of {', '.join(PHASES)}, in this order, each once")
        return phases

    @model_validator(mode="after")
    def _sizes(self) -> FileTreeParameters:
        if self.min_size > self.max_size:
            raise ValueError(
                f"min_size {self.min_size} is above max_size {self.max_size}: change one of them"
            )
        return self


class _Phase(BaseModel):
    seconds: float
    files: int
    bytes: int | None = None
    wrong: int = 0
    first_wrong: tuple[str, ...] = ()


class _Report(BaseModel):
    files: int
    bytes: int
    phases: dict[str, _Phase]


class FileTree(WorkloadTool):
    """Seconds of each phase."""

    parameters = FileTreeParameters
    programs = ("python3", "tar", "rm")
    metrics = (
        SECONDS,
        *(Metric(name=f"{phase}_seconds", unit="s", better="lower") for phase in PHASES),
    )

    @override
    def script(self, p: FileTreeParameters, target: str) -> str:
        # One Python program, because starting a process per file would be measured too.
        tree = p.model_dump(exclude={"directory", "phases"})
        return tree_command(p.directory.replace(TARGET, target), p.phases, tree)

    @override
    def parse(self, p: FileTreeParameters, outputs: Outputs) -> dict[str, float]:
        report = read_json(_Report, "file_tree", outputs)
        if report.files != p.files or tuple(report.phases) != p.phases:
            raise ToolError(
                f"file_tree did {list(report.phases)} with {report.files} files, expected "
                f"{list(p.phases)} with {p.files}"
            )
        found: dict[str, float] = {}
        for name, phase in report.phases.items():
            if phase.wrong:
                raise ToolError(
                    f"file_tree found {phase.wrong} of {p.files} files changed or missing: "
                    f"{', '.join(phase.first_wrong)}"
                )
            if name != "remove" and phase.files != p.files:
                raise ToolError(f"file_tree's {name} found {phase.files} of {p.files} files")
            if phase.bytes not in (None, report.bytes) and name != "remove":
                raise ToolError(f"file_tree's {name} left {phase.bytes} of {report.bytes} bytes")
            if phase.seconds <= 0:
                raise ToolError(f"file_tree's {name} was too fast to be measured: raise files")
            found[f"{name}_seconds"] = phase.seconds
        return {SECONDS.name: sum(found.values()), **found}

    @override
    def seeded(self, p: FileTreeParameters, seed: int) -> Model:
        return p.model_copy(update={"seed": p.seed + seed - 1})

    @override
    def destroys(self, p: FileTreeParameters) -> bool:
        return False

    @override
    def stream(self, p: FileTreeParameters) -> Stream | None:
        return None


WORKLOAD: WorkloadTool = FileTree()
