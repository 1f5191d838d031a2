"""bonnie++ 2: a large file written, rewritten, read and sought in, and many files made and removed.

Options have bonnie++'s letters, their parts the names of its CSV. What it reads comes from the
page cache where the file fits into it: it wants twice the memory, and ``r: 0`` silences it. Of a
test that ended within half a second it says ``+++++``: that metric is left out. Its K are KiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from lab.core.base import Model, Size
from lab.core.errors import ToolError
from lab.model.execution.procedure import words
from lab.model.plugin import Stream, WorkloadTool, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads import TARGET, aimed

MIB: Final = 1024**2
FORMAT: Final = "1.98"
"""Of the CSV, its first field; ``bon_csv2html(1)`` lists the fields, which are counted from 0."""
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


class BonnieParameters(Model):
    """bonnie++'s options; what is left out is its default, but for the seed."""

    d: str = TARGET
    """The directory; it is made where it is not there."""
    s: Size
    """Bytes of the large file, whole MiB; 0 leaves its tests out."""
    io_chunk_size: Size = 8192
    """Bytes of each read and write."""
    seeks: int = Field(default=8192, ge=1)
    seek_proc_count: int = Field(default=5, ge=1)
    n: int = Field(default=16, ge=0)
    """Files to make, in units of 1024; 0 leaves these tests out."""
    max_size: Size = 0
    """Bytes of the largest of these files."""
    min_size: Size = 0
    num_dirs: int = Field(default=1, ge=1)
    """Directories that they are spread over."""
    r: Size | None = None
    """Memory that the sizes are checked against, whole MiB; 0: no check."""
    c: int = Field(default=1, ge=1)
    """How many copies of each test run at once."""
    f: bool = False
    """Leave out the tests that go character by character."""
    b: bool = False
    """fsync after every write."""
    D: bool = False
    """``O_DIRECT`` for the large file's writes; 2.00a was seen to read from the cache still."""
    z: int = Field(default=1, ge=1)
    """Seed; bonnie++ takes the time of day."""

    @field_validator("d")
    @classmethod
    def _below_the_target(cls, directory: str) -> str:
        return aimed(directory, f"write it as '{TARGET}/bonnie'")

    @field_validator("s", "r")
    @classmethod
    def _whole(cls, size: int | None) -> int | None:
        if size is not None and size % MIB:
            raise ValueError("bonnie++ counts in whole MiB: write it as 512MiB")
        return size

    @field_validator("io_chunk_size")
    @classmethod
    def _power_of_two(cls, size: int) -> int:
        if not 256 <= size <= MIB or size & (size - 1):
            raise ValueError(
                f"{size} bytes are no power of two from 256B to 1MiB, as bonnie++ needs: write 8KiB"
            )
        return size

    @model_validator(mode="after")
    def _something(self) -> BonnieParameters:
        if self.s == 0 and self.n == 0:
            raise ValueError("s: 0 and n: 0 leave every test out")
        if self.min_size > self.max_size:
            raise ValueError(
                f"min_size {self.min_size} is more than max_size {self.max_size}: lower the one or"
                " raise the other"
            )
        if self.s and self.r and self.s < 2 * self.r:
            raise ValueError(
                f"bonnie++ refuses a file of {self.s} bytes with {self.r} bytes of memory: make s "
                "twice as large as r, or switch its check off with r: 0"
            )
        return self


def metric(test: str) -> Metric:
    """Rates of data in bytes per second, others in operations per second."""
    names = {"put_block": "write_throughput", "get_block": "read_throughput"}
    if test in BLOCKS or test in CHARACTERS:
        return Metric(name=names.get(test, f"{test}_throughput"), unit="B/s")
    return Metric(name=test, unit="1/s")


def longest(test: str) -> Metric:
    """The longest time that one operation of a test took."""
    words_ = {"put_block": "write", "get_block": "read"}
    return Metric(name=f"{words_.get(test, test)}_max_latency", unit="s", better="lower")


class Bonnie(WorkloadTool):
    """Rates and longest operations, as bonnie++'s CSV has them."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """bonnie++'s options."""
        return BonnieParameters

    @property
    @override
    def programs(self) -> Sequence[str]:
        """Only bonnie++ itself."""
        return ("bonnie++",)

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """Two of each test."""
        tests = (*BLOCKS, *CHARACTERS, *SEEKS, *FILES)
        return (*(metric(test) for test in tests), *(longest(test) for test in tests))

    @override
    def script(self, parameters: Any, target: str) -> str:
        """As root, whom bonnie++ takes only by name; with ``-q`` the CSV is all of its output."""
        p = checked(BonnieParameters, parameters)
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
            f"LC_ALL=C {words(*argv)}\n"
        )

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """The last line of the CSV.

        ``ToolError``: it is none, of another format, of other sizes, a test that was asked for is
        not in it, or all were too quick to be measured.
        """
        p = checked(BonnieParameters, parameters)
        lines = outputs.stdout.strip().splitlines()
        fields = lines[-1].split(",") if lines else []
        if len(fields) < FIELDS or fields[0] != FORMAT:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[:300]
            raise ToolError(
                f"bonnie++'s output is no CSV of format {FORMAT} with {FIELDS} fields: {said!r}"
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
                "bonnie++ measured nothing: every test was over within half a second, so make s or "
                "n larger"
            )
        return found

    @override
    def destroys(self, parameters: Any) -> bool:
        """Files are added to the target, and taken away again."""
        checked(BonnieParameters, parameters)
        return False

    @override
    def stream(self, parameters: Any) -> Stream | None:
        """Never one: it goes through the page cache and a file system."""
        checked(BonnieParameters, parameters)
        return None


def _asked(p: BonnieParameters) -> Iterator[tuple[str, tuple[int, int]]]:
    """The tests that run, and their fields."""
    if p.s != 0:
        yield from BLOCKS.items()
        yield from SEEKS.items()
        if not p.f:
            yield from CHARACTERS.items()
    if p.n:
        yield from FILES.items()


def _check_asked(p: BonnieParameters, fields: Sequence[str]) -> None:
    """It ran with the sizes that it was given."""
    wanted = {"file_size": (5, f"{p.s // MIB}M" if p.s else ""), "seed": (4, str(p.z))}
    wanted["num_files"] = (21, str(p.n) if p.n else "")
    for name, (index, value) in wanted.items():
        if fields[index] != value and not _same_size(fields[index], value):
            raise ToolError(f"bonnie++ ran with {name} {fields[index]!r} instead of {value!r}")


def _same_size(found: str, wanted: str) -> bool:
    """``1G`` is ``1024M``."""
    return found[-1:] == "G" and found[:-1].isdigit() and f"{int(found[:-1]) * 1024}M" == wanted


def _seconds(test: str, text: str) -> float:
    match = _LATENCY.fullmatch(text)
    if match is None:
        raise ToolError(f"bonnie++ gives {text!r} for the longest {test}, no time")
    return int(match[1]) * _UNITS[match[2]]


WORKLOAD: WorkloadTool = Bonnie()
