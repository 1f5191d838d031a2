"""A command or a script of your own, which runs as root in the guest.

Give one of ``argv`` (words, no shell) and ``script`` (its text; a first line ``#!`` names the
interpreter, otherwise it is ``sh -e``). ``script_file`` reads the script from a file next to the
scenario. ``{target}`` in a word stands for the array, the file system's new path, or the bare
disks, one word each; a script finds it in ``$TARGET``. Each disk is also ``/dev/lab/SERIAL`` and
``/dev/lab/diskN``, from 1. ``$SEED`` is the trial's seed.

The exit status fails the cell unless it is one of ``status``. ``metrics`` names the values that it
prints, each with its unit. It prints them as a JSON object, the whole output or its last line, or
as lines ``name value unit``; the last one of a name counts, and other lines do not matter. A value
without a unit has that of ``metrics``. ``status`` and ``seconds`` are always there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from typing_extensions import override

from lab.core.base import KEPT, Model, Says, Seconds, wrong_key
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.core.units import as_yaml
from lab.model.plugin import WorkloadTool
from lab.model.result.measurement import SECONDS, Metric, MetricKind
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs._source import command
from lab.plugins.workloads._shared import TARGET

STATUS: Final = Metric(name="status", unit="1", better="lower", kind=MetricKind.COUNTED)
"""Exit status."""
MARK: Final = "\n--lab-- "
_BYTES: Final = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    f"{prefix}iB": float(1024**power) for power, prefix in enumerate("KMGT", 1)
}
_TIMES: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    **{name: ("B", factor) for name, factor in _BYTES.items()},
    **{f"{name}/s": ("B/s", factor) for name, factor in _BYTES.items()},
    **{name: ("s", factor) for name, factor in _TIMES.items()},
    **dict.fromkeys(("1/s", "/s", "IOPS"), ("1/s", 1.0)),
    **dict.fromkeys(("", "1"), ("1", 1.0)),
    "%": ("1", 0.01),
}
"""Base unit and factor of each unit that is converted. Any other word is a unit of its own."""
_TIMED: Final = ("B/s", "s", "1/s")
_LINE: Final = re.compile(
    r"\s*([A-Za-z_][\w.-]*)\s*[:=]?\s+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*",
    re.ASCII,
)
_WITH_UNIT: Final = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def _word(value: object) -> object:
    """Return a number or ``true`` as the word that YAML has read it from."""
    return as_yaml(value) if isinstance(value, int | float) else value


_Word = Annotated[
    str,
    BeforeValidator(_word, json_schema_input_type=str | int | float),
    StringConstraints(min_length=1, pattern=r"^[^\x00]*$"),
    Says("a word of a command"),
]
_Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}$"),
    Says("a name such as rebuild_seconds: letters, digits and _"),
]


class Printed(Stable):
    """A value that the command prints."""

    unit: str = Field(default="1", max_length=16, pattern=r"^[^\s\x00-\x1f]*$")
    """``MB/s``, ``B``, ``s``, ``ms``, ``1/s``, ``%``, ``1`` for a plain number, or a word."""
    better: Literal["higher", "lower"] = "higher"
    counted: bool | None = None
    """Whether it is a count, on which neither clock nor seed has an influence; default: of units
    other than times, and rates per second."""
    key: str = Field(default="", max_length=200)
    """Its name in the output, if that is another one; of a JSON object inside another one with
    dots, as in ``jobs.0.read.iops``."""

    @property
    def base(self) -> tuple[str, float]:
        """The unit of stored values, and the factor to it."""
        return _UNITS.get(self.unit, (self.unit, 1.0))


def _unit(value: object) -> object:
    return {"unit": value} if isinstance(value, str) else value


class CommandParameters(Stable):
    """What runs, where, and what it prints."""

    ALWAYS: ClassVar[frozenset[str]] = named("argv script")

    argv: tuple[_Word, ...] = ()
    """The program and its arguments; with a script, the arguments."""
    script: str = Field(default="", max_length=65536, pattern=r"^[^\x00]*$")
    """The script's text."""
    directory: str = Field(default="", pattern=r"^(/[^\x00]*|\{target\}[^\x00]*)?$")
    """Working directory in the guest, which is made. Default: a new one, removed at the end."""
    environment: dict[_Name, str] = {}
    """Variables for it."""
    needs: tuple[_Word, ...] = ()
    """Programs that the guest must have."""
    limit: Annotated[Seconds, Field(gt=0)] | None = None
    """Its own time limit; default: the scenario's ``timeout``."""
    status: tuple[Annotated[int, Field(ge=0, le=255)], ...] = (0,)
    """Exit statuses of a command that did its work; ``[]``: any."""
    metrics: dict[
        str,
        Annotated[Printed, BeforeValidator(_unit, json_schema_input_type=str | Printed)],
    ] = {}
    """Values that it prints: name and unit, as in ``rate: MB/s``."""
    reads: bool = False
    """It only reads the target, so that what a workload wrote before it is still there."""
    seed: int = Field(default=1, ge=1)
    """``$SEED`` of the first trial."""

    @model_validator(mode="after")
    def _one_command(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        if not self.argv and not self.script.strip():
            raise ValueError("expected argv, script or script_file: write argv: [lsblk, -b]")
        for name in self.metrics:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,60}", name):
                raise wrong_key(
                    f"'{name}' is no name of a metric: give letters, digits and _, such as rate;"
                    " its name in the output goes to key",
                    "metrics",
                    name,
                )
            if name in (STATUS.name, SECONDS.name):
                raise wrong_key(f"'{name}' is there anyway: remove it", "metrics", name)
        return self


class _Told(BaseModel):
    status: int
    seconds: float


class Command(WorkloadTool):
    """Exit status, duration, and the values that it prints."""

    parameters = CommandParameters
    programs = ("python3",)

    @override
    def needs(self, p: CommandParameters) -> Sequence[str]:
        return (*self.programs, *p.needs)

    metrics = (SECONDS, STATUS)

    @override
    def measures(self, p: CommandParameters) -> Sequence[Metric]:
        printed = p.metrics
        return (*self.metrics, *(_metric(name, one) for name, one in printed.items()))

    files = {"script_file": "script"}
    any_disks = True

    @override
    def script(self, p: CommandParameters, target: str) -> str:
        argv = [
            word.replace(TARGET, target)
            for given in p.argv
            for word in (target.split() if given == TARGET else [given])
        ]
        arguments = {
            "argv": argv,
            "script": p.script,
            "directory": p.directory.replace(TARGET, target),
            "environment": {"TARGET": target, "SEED": str(p.seed), **p.environment},
            "limit": p.limit,
            "accepted": list(p.status),
            "scratch": "/var/tmp",  # noqa: S108  in the guest, on its own disk
        }
        return command("step", arguments) + "\n"

    @override
    def parse(self, p: CommandParameters, outputs: Outputs) -> dict[str, float]:
        text, mark, last = outputs.stdout.rpartition(MARK)
        try:
            told = _Told.model_validate_json(last if mark else "")
        except ValidationError:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
            raise ToolError(f"the command did not end, its last words are {said!r}") from None
        if p.status and told.status not in p.status:
            raise ToolError(f"the command ended with status {told.status}")
        found = {SECONDS.name: told.seconds, STATUS.name: float(told.status)}
        if not p.metrics:
            return found
        values = printed_values(text)
        for name, one in p.metrics.items():
            key = one.key or name
            if key not in values:
                known = ", ".join(list(values)[:12]) or "no value"
                raise ToolError(f"the command did not print '{key}'; it printed {known}")
            found[name] = _converted(name, one, *values[key])
        return found

    @override
    def destroys(self, p: CommandParameters) -> bool:
        return not p.reads

    @override
    def seeded(self, p: CommandParameters, seed: int) -> Model:
        return p.model_copy(update={"seed": p.seed + seed - 1})


def _metric(name: str, printed: Printed) -> Metric:
    unit = printed.base[0]
    counted = printed.counted if printed.counted is not None else unit not in _TIMED
    kind = MetricKind.COUNTED if counted else MetricKind.TIMED
    return Metric(name=name, unit=unit, better=printed.better, kind=kind)


def _converted(name: str, printed: Printed, value: float, unit: str | None) -> float:
    base, factor = printed.base
    if unit is None:
        return value * factor
    own, by = _UNITS.get(unit, (unit, 1.0))
    if own != base:
        raise ToolError(f"the command printed '{name}' in {unit!r}, and metrics says {base!r}")
    return value * by


def printed_values(text: str) -> dict[str, tuple[float, str | None]]:
    """Return numbers and units by name, from a JSON object (the whole text, or its last line) or
    from lines ``name value unit``; ``None``: no unit."""
    lines = [line for line in text.splitlines() if line.strip()]
    for part in (text, *lines[-1:]):
        if part.lstrip().startswith("{"):
            try:
                return dict(_flat("", json.loads(part)))
            except (ValueError, RecursionError):  # JSON can be nested deeply
                continue
    matches = (_LINE.fullmatch(line) for line in lines)
    return {m[1]: (float(m[2]), m[3] or None) for m in matches if m}


def _flat(at: str, value: Any) -> Sequence[tuple[str, tuple[float, str | None]]]:
    if isinstance(value, bool):
        return [(at, (float(value), None))]
    if isinstance(value, int | float):
        return [(at, (float(value), None))]
    if isinstance(value, str):
        match = _WITH_UNIT.fullmatch(value)
        return [(at, (float(match[1]), match[2] or None))] if match else []
    if isinstance(value, dict) and set(value) == {"value", "unit"}:
        return _flat(at, f"{value['value']} {value['unit']}")
    inner = value.items() if isinstance(value, dict) else enumerate(value or ())
    return [one for key, below in inner for one in _flat(f"{at}.{key}" if at else str(key), below)]


WORKLOAD: WorkloadTool = Command()
