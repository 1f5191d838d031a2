"""A writer that keeps a ledger: blocks whose content is known, each told once it is durable.

One block is written past the page cache and flushed, and only then its number goes to the host, a
line for each. So the host knows what the disks have acknowledged when the guest ends at any moment,
and what must be there afterwards. A fault that comes during or after it has every block read back
and compared; its metrics ``acknowledged``, ``lost`` and ``intact`` say what came of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.model.plugin import Keeper, Kept, WorkloadTool, checked
from lab.model.result.measurement import IOPS, SECONDS, Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins import guest_programs as inguest

TARGET: Final = "{target}"


class LedgerParameters(Model):
    """How many blocks, how large, and where they go."""

    file: str = TARGET
    """What is written to: the target, or a file below it."""
    bs: Size = 4096
    """Bytes of a block, a multiple of 4096."""
    count: int = Field(ge=1, le=1_000_000)
    """How many blocks are written, each once."""
    offset: Size = 0
    """First byte of the part that is written to."""
    size: Size
    """Bytes of that part; the blocks are spread over all of it."""
    flush: bool = True
    """Flush after each block; without, it is told when a volatile cache may still hold it."""
    seed: int = Field(default=1, ge=0)
    """Decides contents, and the first place."""

    @field_validator("bs", "offset")
    @classmethod
    def _pages(cls, value: int) -> int:
        if value % 4096:
            raise ValueError(f"{value} is not a multiple of 4096, as requests past the cache are")
        return value

    @field_validator("file")
    @classmethod
    def _at_the_target(cls, file: str) -> str:
        if TARGET not in file:
            raise ValueError(f"names something else than the target: write it as '{TARGET}'")
        return file

    @model_validator(mode="after")
    def _room(self) -> LedgerParameters:
        if self.bs < 4096:
            raise ValueError("a block of 0 bytes says nothing: write bs as 4KiB")
        if self.count > self.places:
            raise ValueError(
                f"{self.count} blocks do not fit in {self.size} bytes, where {self.places} do: give"
                " a larger size, or a smaller count"
            )
        return self

    @property
    def places(self) -> int:
        """How many blocks the part has room for."""
        return self.size // self.bs


class _Told(BaseModel):
    written: int
    seconds: float


class _Found(BaseModel):
    intact: tuple[tuple[int, int], ...]
    looked_at: int
    errors: int


class Ledger(WorkloadTool, Keeper):
    """Durable writes, and whether they last."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """Blocks and places."""
        return LedgerParameters

    @property
    @override
    def programs(self) -> Sequence[str]:
        """A program for the guest's Python."""
        return ("python3",)

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """How long all took, and how many a second were made durable."""
        return (SECONDS, IOPS)

    @override
    def script(self, parameters: Any, target: str) -> str:
        """One program, whose lines come as they are printed."""
        return self._command(parameters, target, "write")

    @override
    def read_back(self, parameters: Any, target: str) -> str:
        """The same program, looking."""
        return self._command(parameters, target, "read")

    def _command(self, parameters: Any, target: str, mode: str) -> str:
        p = checked(LedgerParameters, parameters)
        arguments = {
            "mode": mode,
            "path": p.file.replace(TARGET, target),
            "places": p.places,
            **p.model_dump(include={"bs", "count", "offset", "seed", "flush"}),
        }
        return inguest.command("ledger", arguments) + "\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Its last line; ``ToolError``: it was cut off, or told less than it wrote."""
        count = checked(LedgerParameters, parameters).count
        lines = outputs.stdout.strip().splitlines()
        try:
            told = _Told.model_validate_json(lines[-1] if lines else "")
        except ValidationError:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
            raise ToolError(f"ledger did not come to its end: {said!r}") from None
        if told.written != count or acknowledged(outputs.stdout) != count or told.seconds <= 0:
            raise ToolError(f"ledger told of {acknowledged(outputs.stdout)} blocks, not of {count}")
        return {SECONDS.name: told.seconds, IOPS.name: told.written / told.seconds}

    @override
    def kept(self, parameters: Any, told: str, found: str) -> Kept:
        """Of the blocks that were told, those that were not found; ``ToolError``: no answer."""
        try:
            answer = _Found.model_validate_json(found)
        except ValidationError:
            raise ToolError(f"ledger did not read its blocks back: {found[-300:]!r}") from None
        if answer.looked_at != checked(LedgerParameters, parameters).count:
            raise ToolError(f"ledger looked at {answer.looked_at} blocks only")
        known = acknowledged(told)
        there = sum(max(0, min(last, known - 1) - first + 1) for first, last in answer.intact)
        return Kept(acknowledged=known, lost=known - there)

    @override
    def destroys(self, parameters: Any) -> bool:
        """It writes to the target itself, or to a file on it."""
        return checked(LedgerParameters, parameters).file == TARGET


def acknowledged(told: str) -> int:
    """How many blocks were told, one after the other from 0; a line that was cut off is none."""
    whole, _, _ = told.rpartition("\n")
    numbers = [line for line in whole.splitlines() if line.isdecimal()]
    if [int(n) for n in numbers] != list(range(len(numbers))):
        raise ToolError("ledger told its blocks in another order than it wrote them")
    return len(numbers)


WORKLOAD: WorkloadTool = Ledger()
