"""bonnie++ 2: a large file written, rewritten, read and seeked in, and many files created and
removed.
Options are bonnie++'s letters; their parts have the names of its CSV. If the file fits into the
page cache, reads come from there: bonnie++ requires twice the memory, and ``r: 0`` disables that
check. For a test of less than half a second it prints ``+++++``: that metric is left out. Its K are
KiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.model.execution.procedure import words
from lab.model.plugin import Stream, WorkloadTool
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads._shared import TARGET, aimed

MIB: Final = 1024**2
FORMAT: Final = "1.98"
"""Version of the CSV, its first field; ``bon_csv2html(1)`` lists the fields, counted from 0."""
FIELDS: Final = 50

BLOCKS: Final = {"put_block": (11, 39), "rewrite": (13, 40), "get_block": (17, 42)}
CHARACTERS: Final = {"putc": (9, 38), "getc": (15, 41)}
SEEKS: Final = {"seeks": (19, 43)}
FILES: Final = {
    "seq_create": (26, 44),
    "seq_stat": (28, 45),
    "seq_del": (30, 46),
    "ran_create": (32, 47),
    "ran_stat": (34, 48),
    "ran_del": (36, 49),
}
"""Test to the fields of its rate and of its longest operation."""
TOO_QUICK: Final = re.compile(r"\+{3,}")
_LATENCY: Final = re.compile(r"(\d+)(us|ms|s)")
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class BonnieParameters(Stable):
    """bonnie++'s options; missing ones have its defaults, except the seed."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "d s io_chunk_size seeks seek_proc_count n max_size min_size num_dirs r c f b D", "z"
    )

    d: str = TARGET
    """The directory; created if missing."""
    s: Size
    """Bytes of the large file, whole MiB; 0 skips its tests."""
    io_chunk_size: Size = 8192
    """Bytes of each read and write."""
    seeks: int = Field(default=8192, ge=1)
    seek_proc_count: int = Field(default=5, ge=1)
    n: int = Field(default=16, ge=0)
    """Files to create, in units of 1024; 0 skips these tests."""
    max_size: Size = 0
    """Bytes of the largest of these files."""
    min_size: Size = 0
    num_dirs: int = Field(default=1, ge=1)
    """Directories for these files."""
    r: Size | None = None
    """Memory that the sizes are checked against, whole MiB; 0: no check."""
    c: int = Field(default=1, ge=1)
    """Concurrent copies of each test."""
    f: bool = False
    """Skip the tests of single characters."""
    b: bool = False
    """fsync after every write."""
    D: bool = False
    """``O_DIRECT`` for the large file's writes; 2.00a still read from the cache."""
    z: int = Field(default=1, ge=1)
    """Seed; bonnie++'s default is the time of day."""

    @field_validator("d")
    @classmethod
    def _below_the_target(cls, directory: str) -> str:
        return aimed(directory, f"write it as '{TARGET}/bonnie'")

    @field_validator("s", "r")
    @classmethod
    def _whole(cls, size: int | None) -> int | None:
        if size is not None and size % MIB:
            raise ValueError("expected whole MiB, as in 512MiB")
        return size

    @field_validator("io_chunk_size")
    @classmethod
    def _power_of_two(cls, size: int) -> int:
        if not 256 <= size <= MIB or size & (size - 1):
            raise ValueError(f"{size} bytes: expected a power of two from 256B to 1MiB, as in 8KiB")
        return size

    @model_validator(mode="after")
    def _something(self) -> BonnieParameters:
        if self.s == 0 and self.n == 0:
            raise ValueError("s: 0 and n: 0 skip every test: remove one of them")
        if self.min_size > self.max_size:
            raise ValueError(
                f"min_size {self.min_size} is above max_size {self.max_size}: change one of them"
            )
        if self.s and self.r and self.s < 2 * self.r:
            raise ValueError(
                f"bonnie++ refuses a file of {self.s} bytes with {self.r} bytes of memory: make s "
                "twice as large as r, or switch its check off with r: 0"
            )
        return self


def metric(test: str) -> Metric:
    """Return a test's rate: of data in bytes per second, else in operations per second."""
    names = {"put_block": "write_throughput", "get_block": "read_throughput"}
    if test in BLOCKS or test in CHARACTERS:
        return Metric(name=names.get(test, f"{test}_throughput"), unit="B/s")
    return Metric(name=test, unit="1/s")


def longest(test: str) -> Metric:
    """Return the longest time of one operation of a test."""
    words_ = {"put_block": "write", "get_block": "read"}
    return Metric(name=f"{words_.get(test, test)}_max_latency", unit="s", better="lower")


_TESTS: Final = (*BLOCKS, *CHARACTERS, *SEEKS, *FILES)


class Bonnie(WorkloadTool):
    """Rates and longest operations, from bonnie++'s CSV."""

    parameters = BonnieParameters
    programs = ("bonnie++",)
    metrics = (*map(metric, _TESTS), *map(longest, _TESTS))

    @override
    def script(self, p: BonnieParameters, target: str) -> str:
        # bonnie++ runs as root only with a user's name; with -q it prints only the CSV.
        directory = p.d.replace(TARGET, target)
        file = f"{p.s // MIB}:{p.io_chunk_size}:{p.seeks}:{p.seek_proc_count}" if p.s else "0"
        files = f"{p.n}:{p.max_size}:{p.min_size}:{p.num_dirs}" if p.n else "0"
        argv = [
            "bonnie++",
            "-q",
            "-u",
            "root",
            "-m",
            "lab",
            "-d",
            directory,
            "-s",
            file,
            "-n",
            files,
        ]
        argv += [f"-{letter}" for letter in "fbD" if getattr(p, letter)]
        argv += ["-c", str(p.c), "-z", str(p.z)]
        argv += [] if p.r is None else ["-r", str(p.r // MIB)]
        refusal = f"bonnie++ needs a file system, which 'filesystem' makes: {directory} is none"
        return (
            f"{words('mkdir', '-p', directory)} || {{ {words('echo', refusal)} >&2; exit 1; }}\n"
            # A thread's stack is as large as this limit, which a seed raises: seeds.addresses.
            "ulimit -S -s 8192\n"
            f"LC_ALL=C {words(*argv)}\n"
        )

    @override
    def parse(self, p: BonnieParameters, outputs: Outputs) -> dict[str, float]:
        lines = outputs.stdout.strip().splitlines()
        fields = lines[-1].split(",") if lines else []
        if len(fields) < FIELDS or fields[0] != FORMAT:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[:300]
            raise ToolError(
                f"bonnie++ did not print CSV of format {FORMAT} with {FIELDS} fields, but {said!r}"
            )
        _check_asked(p, fields)
        found: dict[str, float] = {}
        for test, (rate, latency) in _asked(p):
            if fields[latency]:
                found[longest(test).name] = _seconds(test, fields[latency])
            if TOO_QUICK.fullmatch(fields[rate]):
                continue
            try:
                value = float(fields[rate])
            except ValueError:
                raise ToolError(f"bonnie++ gives {fields[rate]!r} for {test}, no rate") from None
            if not value > 0:
                raise ToolError(f"bonnie++ gives {value:g} for {test}, which is no rate")
            found[metric(test).name] = value * 1024 if metric(test).unit == "B/s" else value
        if not any(metric(test).name in found for test, _ in _asked(p)):
            raise ToolError(
                "bonnie++ measured nothing: every test took less than half a second; make s or n "
                "larger"
            )
        return found

    @override
    def seeded(self, p: BonnieParameters, seed: int) -> Model:
        return p.model_copy(update={"z": p.z + seed - 1})

    @override
    def destroys(self, p: BonnieParameters) -> bool:
        return False

    @override
    def stream(self, p: BonnieParameters) -> Stream | None:
        return None


def _asked(p: BonnieParameters) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the tests that run, and their fields."""
    if p.s != 0:
        yield from BLOCKS.items()
        yield from SEEKS.items()
        if not p.f:
            yield from CHARACTERS.items()
    if p.n:
        yield from FILES.items()


def _check_asked(p: BonnieParameters, fields: Sequence[str]) -> None:
    """``ToolError`` if it ran with other sizes than requested."""
    wanted = {"file_size": (5, f"{p.s // MIB}M" if p.s else ""), "seed": (4, str(p.z))}
    wanted["num_files"] = (21, str(p.n) if p.n else "")
    for name, (index, value) in wanted.items():
        if fields[index] != value and not _same_size(fields[index], value):
            raise ToolError(f"bonnie++ ran with {name} {fields[index]!r} instead of {value!r}")


def _same_size(found: str, wanted: str) -> bool:
    """Return whether two sizes are equal: ``1G`` is ``1024M``."""
    return found[-1:] == "G" and found[:-1].isdigit() and f"{int(found[:-1]) * 1024}M" == wanted


def _seconds(test: str, text: str) -> float:
    match = _LATENCY.fullmatch(text)
    if match is None:
        raise ToolError(f"bonnie++ gives {text!r} for the longest {test}, no time")
    return int(match[1]) * _UNITS[match[2]]


WORKLOAD: WorkloadTool = Bonnie()
