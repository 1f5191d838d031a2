"""dd of GNU coreutils: one stream, one request at a time.

The placeholder ``{target}`` stands for the array (or for the mounted file system) and decides the
direction: ``of: "{target}"`` writes, ``if: "{target}"`` reads.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.core.wording import choice
from lab.model.execution.procedure import words
from lab.model.plugin import Reaching, Stream, WorkloadTool
from lab.model.result.measurement import SECONDS, THROUGHPUT
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads._shared import TARGET

_COPIED: Final = re.compile(
    r"(?P<bytes>\d+) bytes? (?:\([^()]+\) )?copied, (?P<seconds>\d+(?:\.\d+)?(?:e[+-]?\d+)?) s, "
    r"\S+ \S+/s"
)
"""coreutils ``src/dd.c: print_xfer_stats``; small amounts have no parentheses."""

_CONVERSIONS: Final = frozenset(
    ("fdatasync", "fsync", "notrunc", "nocreat", "excl", "noerror", "sync", "sparse", "swab")
)
_FLAGS: Final = frozenset(
    ("append", "direct", "dsync", "sync", "fullblock", "nonblock", "noatime", "nocache")
)


class DdParameters(Stable):
    """dd's operands by dd's names; missing ones have dd's defaults."""

    ALWAYS: ClassVar[frozenset[str]] = named("if_ of bs count iflag oflag conv seek skip")

    if_: str | None = Field(default=None, alias="if")
    """Input; default of a write: /dev/urandom."""
    of: str | None = None
    """Output; default of a read: /dev/null."""
    bs: Size = 512
    """Bytes of one request."""
    count: int | None = Field(default=None, ge=1)
    """Number of blocks; without it, a read goes to the target's end."""
    iflag: str | None = None
    """Comma-separated, such as ``direct`` or ``fullblock``."""
    oflag: str | None = None
    """Comma-separated, such as ``direct``."""
    conv: str | None = None
    """Comma-separated, such as ``fsync``."""
    seek: int | None = Field(default=None, ge=0)
    """Blocks to skip in the output."""
    skip: int | None = Field(default=None, ge=0)
    """Blocks to skip in the input."""

    @field_validator("bs")
    @classmethod
    def _some_bytes(cls, bs: int) -> int:
        if bs < 1:
            raise ValueError("expected 1 byte or more, as in 1MiB")
        return bs

    @field_validator("iflag", "oflag")
    @classmethod
    def _known_flags(cls, flags: str | None) -> str | None:
        return _known(flags, _FLAGS)

    @field_validator("conv")
    @classmethod
    def _known_conversions(cls, conversions: str | None) -> str | None:
        return _known(conversions, _CONVERSIONS)

    @model_validator(mode="after")
    def _one_target(self) -> DdParameters:
        """Check that exactly one operand names the target; it decides the direction."""
        reads, writes = TARGET in (self.if_ or ""), TARGET in (self.of or "")
        if reads == writes:
            found = "both if and of name" if reads else "neither if nor of names"
            raise ValueError(
                f"{found} {TARGET}: write of: '{TARGET}' to write to the array, or if: '{TARGET}' "
                "to read from it"
            )
        if writes and self.count is None:
            raise ValueError(
                "a write needs count, or it ends only when the target is full: give count"
            )
        return self

    @property
    def writes(self) -> bool:
        """Whether data goes to the target."""
        return TARGET in (self.of or "")


def _known(text: str | None, known: frozenset[str]) -> str | None:
    for word in (text or "").split(",") if text is not None else ():
        if word not in known:
            raise ValueError(choice(word, sorted(known)))
    return text


def bytes_moved(parameters: DdParameters) -> int | None:
    """Return the bytes that a complete run moves; ``None``: depends on the target's size."""
    return None if parameters.count is None else parameters.bs * parameters.count


class Dd(WorkloadTool, Reaching):
    """Throughput from dd's bytes and seconds, which are more precise than its own rate."""

    parameters = DdParameters
    programs = ("dd",)
    metrics = (THROUGHPUT, SECONDS)

    @override
    def end(self, p: DdParameters) -> tuple[str, int] | None:
        if p.count is None or TARGET not in (p.if_, p.of):
            return None
        before = (p.seek if p.writes else p.skip) or 0
        return "count", (before + p.count) * p.bs

    @override
    def script(self, p: DdParameters, target: str) -> str:
        # dd prints its result on stderr, in the C locale.
        operands: dict[str, str | int | None] = {
            "if": (p.if_ or "/dev/urandom").replace(TARGET, target),
            "of": (p.of or "/dev/null").replace(TARGET, target),
            "bs": p.bs,
            "count": p.count,
            "iflag": p.iflag,
            "oflag": p.oflag,
            "conv": p.conv,
            "seek": p.seek,
            "skip": p.skip,
        }
        given = (f"{name}={value}" for name, value in operands.items() if value is not None)
        return f"LC_ALL=C {words('dd', *given)}\n"

    @override
    def parse(self, p: DdParameters, outputs: Outputs) -> dict[str, float]:
        lines = outputs.stderr.strip().splitlines()
        match = _COPIED.fullmatch(lines[-1].strip()) if lines else None
        if match is None:
            raise ToolError(f"dd's output cannot be read: {outputs.stderr.strip()!r}")
        copied, seconds = int(match["bytes"]), float(match["seconds"])
        wanted = bytes_moved(p)
        if (wanted is not None and copied < wanted) or copied == 0:
            raise ToolError(
                f"dd copied {copied} bytes, expected {wanted or 'the whole target'}: "
                f"{outputs.stderr.strip()!r}"
            )
        if wanted is not None and copied > wanted:
            raise ToolError(f"dd copied {copied} bytes, expected {wanted}")
        if seconds <= 0:
            raise ToolError(f"dd was too fast to be measured: {lines[-1].strip()!r}; raise count")
        return {THROUGHPUT.name: copied / seconds, SECONDS.name: seconds}

    @override
    def memory(self, p: DdParameters) -> int:
        return p.bs

    @override
    def destroys(self, p: DdParameters) -> bool:
        # A write to a file below the target only adds that file.
        return p.of == TARGET

    @override
    def stream(self, p: DdParameters) -> Stream | None:
        total = bytes_moved(p)
        writes = p.of == TARGET
        flags = (p.oflag if writes else p.iflag) or ""
        if total is None or total == 0 or "direct" not in flags.split(","):
            return None
        if TARGET not in (p.of, p.if_) or p.conv:
            return None
        blocks = (p.seek if writes else p.skip) or 0
        return Stream(
            direction="write" if writes else "read",
            block=p.bs,
            total=total,
            offset=blocks * p.bs,
        )


WORKLOAD: WorkloadTool = Dd()
