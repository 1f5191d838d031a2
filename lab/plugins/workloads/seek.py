"""seekmark's measurement, done by fio: one thread, one random request after the other, seeks per
second.

``iops`` is seekmark's seeks per second. seekmark uses any byte offset, through the page cache,
which reads whole pages. With its ``-w`` each write is on the disks before the next. Here that is
``O_DIRECT``, offsets that are multiples of a page (``blockalign``) and ``sync``. The offset decides
how often a request crosses from one chunk, and so from one disk, to the next: with ``blockalign``
as large as ``bs`` it never does, and small chunks cost nothing.

On a file system the target is a file: give its ``size``, and fio writes it before it measures.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.model.execution.procedure import words
from lab.model.plugin import Stream, WorkloadTool
from lab.model.result.measurement import IOPS, LATENCY, SECONDS, THROUGHPUT
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads._shared import TARGET, aimed


class SeekParameters(Stable):
    """fio's options by fio's names; the others are fixed."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "filename rw bs number_ios blockalign size direct sync randseed"
    )

    filename: str = TARGET
    """For example ``"{target}.seek"``, if the target is a directory of other workloads."""
    rw: Literal["randread", "randwrite"] = "randread"
    bs: Size = 512
    """Bytes of each request: seekmark's ``-i``, and its default."""
    number_ios: int = Field(default=1000, ge=1)
    """Number of requests: seekmark's ``-s``."""
    blockalign: Size = 4096
    """Requests start at multiples of this."""
    size: Size | None = None
    """Bytes of the target that the requests are distributed over; ``None``: all."""
    direct: bool = True
    """``O_DIRECT``: without the guest's page cache."""
    sync: bool = True
    """``O_SYNC``, for writes."""
    randseed: int = Field(default=1, ge=1)
    """Seed of the offsets of the first trial; the same in every cell."""

    @model_validator(mode="after")
    def _possible(self) -> SeekParameters:
        aimed(self.filename, "leave filename out to aim at the array")
        if self.bs < 1 or self.blockalign < 1:
            raise ValueError("bs and blockalign are at least one byte: write bs as 32KiB")
        if self.direct and (self.bs % 512 or self.blockalign % 512):
            raise ValueError("direct needs bs and blockalign in multiples of 512 bytes")
        if self.size is not None and self.size < self.bs:
            raise ValueError(f"size {self.size} is smaller than one request of {self.bs} bytes")
        return self


class _Side(BaseModel):
    """fio's values for one direction: ``runtime`` in milliseconds, ``lat_ns`` in nanoseconds."""

    class _Latency(BaseModel):
        mean: float

    io_bytes: int
    total_ios: int
    runtime: int
    lat_ns: _Latency


class _Job(BaseModel):
    error: int
    read: _Side
    write: _Side


class _Report(BaseModel):
    jobs: tuple[_Job, ...] = Field(min_length=1, max_length=1)


class Seek(WorkloadTool):
    """Random requests per second, one at a time."""

    parameters = SeekParameters
    programs = ("fio",)
    metrics = (IOPS, THROUGHPUT, LATENCY, SECONDS)

    @override
    def script(self, p: SeekParameters, target: str) -> str:
        # io_size: otherwise, with number_ios, fio would end after `size` bytes.
        options: dict[str, str | int | None] = {
            "name": "seek",
            "output-format": "json",
            "filename": p.filename.replace(TARGET, target),
            "ioengine": "psync",
            "rw": p.rw,
            "bs": p.bs,
            "blockalign": p.blockalign,
            "norandommap": 1,
            "randrepeat": 0,  # otherwise fio 3.33 ignores the seed
            "randseed": p.randseed,
            "size": p.size,
            "io_size": p.bs * p.number_ios,
            "direct": int(p.direct),
            "sync": "sync" if p.sync and p.rw == "randwrite" else None,
            "overwrite": 1 if p.rw == "randwrite" else None,
        }
        given = (f"--{name}={value}" for name, value in options.items() if value is not None)
        return f"LC_ALL=C {words('fio', *given)}\n"

    @override
    def parse(self, p: SeekParameters, outputs: Outputs) -> dict[str, float]:
        start = outputs.stdout.find("{\n")
        try:
            job = _Report.model_validate_json(outputs.stdout[max(start, 0) :]).jobs[0]
        except ValidationError:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
            raise ToolError(f"fio did not print JSON, but {said!r}") from None
        if job.error:
            raise ToolError(f"fio ended with error {job.error}: {outputs.stderr.strip()[-300:]!r}")
        side, other = (job.read, job.write) if p.rw == "randread" else (job.write, job.read)
        if (side.total_ios, side.io_bytes) != (p.number_ios, p.number_ios * p.bs):
            raise ToolError(
                f"fio did {side.total_ios} requests with {side.io_bytes} bytes, expected "
                f"{p.number_ios} of {p.bs}"
            )
        if other.total_ios:
            raise ToolError(
                f"fio did {other.total_ios} requests in the other direction than {p.rw}"
            )
        seconds = side.runtime / 1000
        if seconds <= 0:
            raise ToolError("fio was too fast to be measured: raise number_ios")
        return {
            IOPS.name: side.total_ios / seconds,
            THROUGHPUT.name: side.io_bytes / seconds,
            LATENCY.name: side.lat_ns.mean / 1e9,
            SECONDS.name: seconds,
        }

    @override
    def seeded(self, p: SeekParameters, seed: int) -> Model:
        return p.model_copy(update={"randseed": p.randseed + seed - 1})

    @override
    def draws_places(self, p: SeekParameters) -> bool:
        return p.randseed == 1

    @override
    def destroys(self, p: SeekParameters) -> bool:
        # A write to a file next to the target only adds that file.
        return p.rw == "randwrite" and p.filename == TARGET

    @override
    def stream(self, p: SeekParameters) -> Stream | None:
        flushed = p.sync and p.rw == "randwrite"
        if p.blockalign != p.bs or not p.direct or flushed or p.filename != TARGET:
            return None
        return Stream(
            direction="read" if p.rw == "randread" else "write",
            block=p.bs,
            total=p.bs * p.number_ios,
            random=True,
            span=p.size,
            repeats=True,
            seed=p.randseed,
        )


WORKLOAD: WorkloadTool = Seek()
