"""Durable writes with a ledger: each block is reported to the host once the disks have acknowledged
it.

The program writes one block without the page cache, flushes it, and sends its number to the host,
one line per block. So at any time the host knows which blocks must survive the end of the guest.
After a fault during or after the workload, every block is read and compared. The fault's metrics
``acknowledged``, ``lost`` and ``intact`` have the result.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.core.units import is_digits
from lab.model.plugin import Keeper, Kept, Reaching, WorkloadTool
from lab.model.result.measurement import IOPS, SECONDS
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs._source import command

TARGET: Final = "{target}"


class LedgerParameters(Stable):
    """Number, size and place of the blocks."""

    ALWAYS: ClassVar[frozenset[str]] = named("file bs count offset size flush seed")

    file: str = TARGET
    """The target, or a file below it."""
    bs: Size = 4096
    """Bytes of a block, a multiple of 4096."""
    count: int = Field(ge=1, le=1_000_000)
    """Number of blocks; each is written once."""
    offset: Size = 0
    """First byte of the range that is written to."""
    size: Size
    """Bytes of that range; the blocks are spread over it."""
    flush: bool = True
    """Flush after each block. Otherwise a block may still be in a volatile cache when it is
    reported."""
    seed: int = Field(default=1, ge=0)
    """Decides contents, and the first block's place."""

    @field_validator("bs", "offset")
    @classmethod
    def _pages(cls, value: int) -> int:
        if value % 4096:
            raise ValueError(f"{value}: direct requests need a multiple of 4096: write 4KiB")
        return value

    @field_validator("file")
    @classmethod
    def _at_the_target(cls, file: str) -> str:
        if TARGET not in file:
            raise ValueError(f"does not contain {TARGET}: write it as '{TARGET}'")
        return file

    @model_validator(mode="after")
    def _room(self) -> LedgerParameters:
        if self.bs < 4096:
            raise ValueError("bs is 0: write bs as 4KiB")
        if self.count > self.places:
            raise ValueError(
                f"{self.count} blocks do not fit in {self.size} bytes, which hold {self.places}:"
                " raise size, or lower count"
            )
        return self

    @property
    def places(self) -> int:
        """Number of blocks that fit in the range."""
        return self.size // self.bs


class _Told(BaseModel):
    written: int
    seconds: float


class _Found(BaseModel):
    intact: tuple[tuple[int, int], ...]
    looked_at: int
    errors: int


class Ledger(WorkloadTool, Keeper, Reaching):
    """Durable writes that are verified after faults."""

    parameters = LedgerParameters
    programs = ("python3",)
    metrics = (SECONDS, IOPS)

    @override
    def end(self, p: LedgerParameters) -> tuple[str, int] | None:
        return ("size", p.offset + p.size) if p.file == TARGET else None

    @override
    def script(self, parameters: Any, target: str) -> str:
        return self._command(parameters, target, "write")

    @override
    def read_back(self, parameters: Any, target: str) -> str:
        return self._command(parameters, target, "read")

    def _command(self, p: LedgerParameters, target: str, mode: str) -> str:
        arguments = {
            "mode": mode,
            "path": p.file.replace(TARGET, target),
            "places": p.places,
            **p.model_dump(include={"bs", "count", "offset", "seed", "flush"}),
        }
        return command("ledger", arguments) + "\n"

    @override
    def parse(self, p: LedgerParameters, outputs: Outputs) -> dict[str, float]:
        count = p.count
        lines = outputs.stdout.strip().splitlines()
        try:
            told = _Told.model_validate_json(lines[-1] if lines else "")
        except ValidationError:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
            raise ToolError(f"ledger did not finish: {said!r}") from None
        if told.written != count or acknowledged(outputs.stdout) != count or told.seconds <= 0:
            raise ToolError(
                f"ledger reported {acknowledged(outputs.stdout)} blocks, expected {count}"
            )
        return {SECONDS.name: told.seconds, IOPS.name: told.written / told.seconds}

    @override
    def kept(self, p: LedgerParameters, told: str, found: str) -> Kept:
        try:
            answer = _Found.model_validate_json(found)
        except ValidationError:
            raise ToolError(f"ledger did not verify its blocks: {found[-300:]!r}") from None
        count = p.count
        if answer.looked_at != count:
            raise ToolError(f"ledger verified {answer.looked_at} blocks, expected {count}")
        known = acknowledged(told)
        there = sum(max(0, min(last, known - 1) - first + 1) for first, last in answer.intact)
        return Kept(acknowledged=known, lost=known - there)

    @override
    def seeded(self, p: LedgerParameters, seed: int) -> Model:
        # A seed uses the previous seed's positions, moved by 7919 blocks.
        return p.model_copy(update={"seed": p.seed + 7919 * (seed - 1)})

    @override
    def memory(self, p: LedgerParameters) -> int:
        return p.bs

    @override
    def destroys(self, p: LedgerParameters) -> bool:
        return p.file == TARGET


def acknowledged(told: str) -> int:
    """Return the number of reported blocks, in order from 0, without an incomplete last line."""
    whole, _, _ = told.rpartition("\n")
    numbers = [line for line in whole.splitlines() if is_digits(line)]
    if [int(n) for n in numbers] != list(range(len(numbers))):
        raise ToolError("ledger reported its blocks in the wrong order")
    return len(numbers)


WORKLOAD: WorkloadTool = Ledger()
