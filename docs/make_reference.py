"""Make ``docs/reference`` and the scenarios' JSON Schema from the models: ``make reference``.

Nothing in these pages is written by hand. Field descriptions are the models' docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.make_man import man_page, metavar
from lab.cli import capabilities
from lab.cli.app import examples_of
from lab.cli.commands import app
from lab.core import errors
from lab.core.units import format_size, parse_rate, parse_seconds, parse_size
from lab.model import documented
from lab.model.result import measurement
from lab.model.result.document import Result
from lab.model.scenario import claim
from lab.model.scenario.document import Matrix, Scenario, Workload
from lab.model.scenario.drive import HddParameters, SsdParameters
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.disks import hdd, ssd
from lab.plugins.faults._shared import COMMON
from lab.report.content.drives import NOT_MEASURED
from lab.results.schema import as_text, scenario_schema
from lab.results.tables import COLUMNS

ROOT: Final = Path(__file__).resolve().parents[1]
HEAD: Final = "<!-- Made from the models by `make reference`. Do not edit. -->\n"
KINDS: Final = {
    parse_size: "size",
    parse_rate: "rate",
    parse_seconds: "time",
    claim.Quantity.__metadata__[0].func: "quantity",  # type: ignore[attr-defined]
    claim.Share.__metadata__[0].func: "share",  # type: ignore[attr-defined]
}
UNITS: Final = """
- **size**: bytes. Written `5MiB`, `250MB` or `4096`. A bare `K` or `M` is refused.
- **rate**: bytes per second, or operations per second. Written `5MiB`, `5MiB/s` or `100`.
- **time**: seconds. Written `90`, `90s`, `5min` or `200ms`.
- **quantity**: a number in the metric's own unit; rates may be written `10.7MB/s`,
  sizes `64KiB`, times `5ms`, shares `7%`.
- **share**: a fraction. Written `7%`, `about` (10 %) or `negligible` (5 %).
"""
LIMITS: Final = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))


def plain(text: str | None) -> str:
    """Return a docstring as Markdown on one line, with YAML's ``null`` for ``None``."""
    words = inspect.cleandoc(text or "").replace("``", "`").replace("`None`", "`null`")
    return " ".join(words.split())


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield every model in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return a type in words, with the allowed values if there are few."""
    for one in metadata:
        if (name := KINDS.get(getattr(one, "func", None))) is not None:
            return name
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind(p) for p in parts if p is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is tuple:
        return f"list of {kind(parts[0])}"
    if origin is dict:
        return f"{kind(parts[0])} → {kind(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{value.value}`" for value in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    names = {str: "text", int: "number", float: "number", bool: "`true`, `false`", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def limits(metadata: Iterable[Any]) -> str:
    """Return the limits of a value, in addition to its type."""
    found = []
    for one in metadata:
        for name, words in LIMITS:
            if (limit := getattr(one, name, None)) is not None:
                found.append(f"{words} {limit}")
        if getattr(one, "pattern", None):
            found.append(f"as `{one.pattern}`")
        if getattr(one, "min_length", None):
            found.append("not empty")
    return ", ".join(found)


def default(field: FieldInfo, words: str) -> str:
    """Return the default as in a file; empty: there is none to write."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "**required**"
    if value is None or value in ((), {}, "") or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        return "" if isinstance(value[0], BaseModel) else f"`{list(value)}`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{format_size(value)}`" if words == "size" else f"`{value}`"


def table(model: type[BaseModel], hidden: Iterable[str] = ()) -> str:
    """Return the fields of a model, one line each."""
    documented.document()
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if name in hidden:
            continue
        words = kind(field.annotation, field.metadata)
        allowed = limits(field.metadata)
        cells = (
            f"`{field.alias or name}`",
            f"{words}; {allowed}" if allowed else words,
            default(field, words),
            plain(field.description),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "None of its own.\n"


def chapters(first: type[BaseModel], hidden: Mapping[type[BaseModel], Iterable[str]]) -> str:
    """Return the tables of a model and of every model that it uses, each once."""
    waiting, seen, text = [first], {first}, ""
    while waiting:
        model = waiting.pop(0)
        text += f"\n## {model.__name__}\n\n{plain(model.__doc__)}\n\n"
        text += table(model, hidden.get(model, ()))
        for field in model.model_fields.values():
            for below in models_in(field.annotation):
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
    return text


def scenario_page() -> str:
    """Return the page with every field of a scenario file."""
    hidden: dict[type[BaseModel], tuple[str, ...]] = {
        Workload: ("parameters",),
        Fault: ("parameters",),
        Matrix: ("axes",),
        HddParameters: ("slower",),
        SsdParameters: ("slower",),
    }
    about = (
        "`--set`, matrix axes and results name a field with dots: `array.chunk`. "
        "A workload's parameters follow its name and tool, and are in "
        "[workloads](workloads.md); those of a fault are in [faults](faults.md). Every key of a "
        "matrix but `exclude` and `include` is an axis: a dotted name with a list of values. "
        "`'{stripe}'`, `'{chunk}'`, `'{members}'` and `'{data_disks}'` in a workload's parameters "
        "are those of the cell's array."
    )
    return f"# Scenario files\n\n{HEAD}\n{about}\n{UNITS}{chapters(Scenario, hidden)}"


def matrix_page() -> str:
    """Return the page with every field of a matrix file."""
    entries = capabilities.part("matrix", "logic.entries")
    about = (
        "A file in `matrices/`, run by `lab run matrix NAME`. A scenario, image or kernel is a"
        " name, or a mapping with a `set`. Budgets, shards and exit statuses:"
        " [guide](../howto/ci.md).\n"
    )
    return f"# Matrices of scenarios\n\n{HEAD}\n{about}\n{chapters(entries.Matrix, {})}"


def about_file(package: str, name: str) -> str:
    """Return the docstring of a plug-in's file."""
    module = inspect.getmodule(type(_plugin(package, name)))
    assert module is not None
    return re.sub(r"``", "`", inspect.cleandoc(module.__doc__ or ""))


def _plugin(package: str, name: str) -> Any:
    finders = {
        "workloads": catalog.workload,
        "disks": catalog.disk_model,
        "arrays": catalog.array_kind,
        "faults": catalog.fault_kind,
    }
    return finders[package](name)


def metrics(found: Iterable[measurement.Metric]) -> str:
    """Return metrics with their units, one line each."""
    lines = [f"- `{m.name}`: {m.unit}, {m.better} is better, {m.kind.value}" for m in found]
    return "\n".join(lines) + "\n" if lines else "None of its own.\n"


def workloads_page() -> str:
    """Return the page of tools, their parameters and their metrics."""
    text = f"# Workloads\n\n{HEAD}{UNITS}"
    for name in catalog.plugin_names("workloads"):
        tool = catalog.workload(name)
        text += f"\n## {name}\n\n{about_file('workloads', name)}\n\n{table(tool.parameters)}"
        text += f"\nMetrics:\n\n{metrics(tool.metrics)}"
    text += f"\n## Of every workload\n\n{plain(measurement.__doc__)}\n\nWhat the disks counted:\n\n"
    text += metrics(measurement.COUNTERS)
    text += "\nThe shape of an md array when the workload begins, and after each fault:\n\n"
    return text + metrics(measurement.SHAPE)


def faults_page() -> str:
    """Return the page of faults, their parameters and their metrics."""
    text = f"# Faults\n\n{HEAD}{UNITS}\nEvery fault has these:\n\n{table(Fault, ('parameters',))}"
    text += f"\nMetrics of every fault, as far as it has them:\n\n{metrics(COMMON)}"
    for name in catalog.plugin_names("faults"):
        fault = catalog.fault_kind(name)
        text += f"\n## {name}\n\n{about_file('faults', name)}\n\n{table(fault.parameters)}"
        text += f"\nMetrics:\n\n{metrics(fault.metrics)}"
    return text


PRESETS: Final = {
    "hdd": {preset: asdict(drive) for preset, drive in hdd.PRESETS.items()},
    "ssd": {preset: asdict(drive) for preset, drive in ssd.PRESETS.items()},
}


def disks_page() -> str:
    """Return the page of disk models and their presets."""
    text = f"# Disk models\n\n{HEAD}\nTheir fields are in [scenario files](scenario.md#disk).\n"
    for name in catalog.plugin_names("disks"):
        text += f"\n## {name}\n\n{about_file('disks', name)}\n"
        presets = PRESETS.get(name)
        if presets:
            text += "\nPresets, in seconds, bytes and bytes per second:\n\n"
            text += "| parameter | " + " | ".join(f"`{p}`" for p in presets) + " |\n"
            text += "|---" * (len(presets) + 1) + "|\n"
            for key in next(iter(presets.values())):
                if key not in ("source", "certificate"):
                    values = " | ".join(f"{drive[key]}" for drive in presets.values())
                    text += f"| `{key}` | {values} |\n"
            text += "\nSources:\n\n"
            for preset, drive in presets.items():
                said = drive["certificate"] or f"**{NOT_MEASURED}**"
                text += f"- `{preset}`: {drive['source']}. Errors of the model: {said}.\n"
    return text


def arrays_page() -> str:
    """Return the page of array kinds."""
    text = f"# Array kinds\n\n{HEAD}\nTheir fields are in [scenario files](scenario.md#array).\n"
    for name in catalog.plugin_names("arrays"):
        text += f"\n## {name}\n\n{about_file('arrays', name)}\n"
    return text


def result_page() -> str:
    """Return the page of the result document."""
    about = (
        "`lab run scenario … --json`, `lab results show RUN --json` and `lab scenario predict "
        "NAME --json` print this document; `lab schema result` prints its JSON Schema. Times are "
        "in seconds, sizes in bytes, throughput in bytes per second."
    )
    return f"# The result document\n\n{HEAD}\n{about}\n{chapters(Result, {})}"


def table_page() -> str:
    """Return the page of the columns of ``lab results export --format csv`` and ``parquet``."""
    about = (
        "`lab results export RUN --format csv` and `parquet` write this table: a row for each "
        "trial of each metric, and one for a cell without values. The columns are also in "
        "`FILE.datapackage.json`, in the form of [Table Schema]"
        "(https://specs.frictionlessdata.io/table-schema/). The axes of the scenario, such as "
        "`disks.count`, are columns between `outcome` and `workload`; sizes are in bytes. "
        "[Metrics with their units](workloads.md)."
    )
    text = f"# The table of values\n\n{HEAD}\n{about}\n\n"
    text += "| column | type | unit | |\n|---|---|---|---|\n"
    for column in COLUMNS:
        text += f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |\n"
    return text


STATUSES: Final = (
    (errors.EXIT_DONE, "done, and nothing was refuted"),
    (errors.EXIT_REFUTED, "a claim was refuted, or a cell failed"),
    (errors.EXIT_INPUT, "bad input: a scenario, an option or a name. Nothing was booted"),
    (errors.EXIT_TROUBLE, "this host or the lab failed"),
    (
        errors.EXIT_DIFFERENT,
        "a cell in virtual time did not repeat: `lab reproduce`, `lab results compare`",
    ),
    (errors.EXIT_STOPPED, "stopped by Ctrl-C; all guests of the command are removed"),
    (errors.EXIT_UNREAD, "the reader of stdout closed the pipe"),
)


def commands_page() -> str:
    """Return the page of every command with its options, and of exit statuses."""
    text = f"# Commands\n\n{HEAD}\n## Exit statuses\n\n| status | means |\n|---|---|\n"
    text += "".join(f"| {status} | {words} |\n" for status, words in STATUSES)
    for path, command in commands(typer.main.get_command(app), "lab"):
        about, examples = examples_of(command.help)
        text += f"\n## {path}\n\n{plain(about)}\n\n"
        if examples:
            text += "```sh\n" + "\n".join(examples) + "\n```\n\n"
        for option in command.params:
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            if option.param_type_name == "argument":
                names = f"`{option.metavar or option.name}`"
            elif value := metavar(option):
                names += f" `{value}`"
            text += f"- {names}: {plain(getattr(option, 'help', ''))}\n"
    return text


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below one, with the words to type for it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name in sorted(below):
        yield from commands(below[name], f"{path} {name}")


def pages() -> dict[Path, str]:
    """Return the text of every generated file by path."""
    place = ROOT / "docs" / "reference"
    made = {
        "commands": commands_page,
        "scenario": scenario_page,
        "matrix": matrix_page,
        "workloads": workloads_page,
        "disks": disks_page,
        "arrays": arrays_page,
        "faults": faults_page,
        "result": result_page,
        "table": table_page,
    }
    if "matrix" not in capabilities.names():
        del made["matrix"]
    found = {place / f"{name}.md": make() for name, make in made.items()}
    man = man_page(typer.main.get_command(app), dict(STATUSES))
    schema = as_text(scenario_schema())
    return {**found, place / "lab.1": man, catalog.schema_path(): schema}


def main() -> None:
    """Write all files."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
