"""A run's values as OpenMetrics text, for Prometheus and what reads its format. Pure.

Names follow Prometheus' rules: base units, and the unit is the end of the name. There are no time
stamps: the collector of the text adds them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from lab.core.printable import printable
from lab.model.result.document import CellResult, Result

TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_UNITS: Final = {"B/s": "bytes_per_second", "1/s": "per_second", "s": "seconds", "B": "bytes"}
Sample = tuple[dict[str, str], float]


def openmetrics(result: Result) -> str:
    """Return gauges: a family for each metric with its unit, and one for claims."""
    families: dict[tuple[str, str], list[Sample]] = {}
    for cell in result.cells:
        for key, sample in _of_cell(result, cell):
            families.setdefault(key, []).append(sample)
    claims = [
        ({**_run(result), "claim": claim.id, "verdict": claim.verdict.value}, 1.0)
        for claim in result.claims
    ]
    lines = []
    for (name, unit), samples in sorted(families.items()):
        lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else [])]
        lines += [f"# HELP {name} Median of a cell's trials, and its 95 % interval."]
        lines += [_line(name, *sample) for sample in samples]
    if claims:
        lines += ["# TYPE lab_claim gauge", "# HELP lab_claim Verdict of a claim; always 1."]
        lines += [_line("lab_claim", *sample) for sample in claims]
    return "\n".join([*lines, "# EOF", ""])


def _of_cell(result: Result, cell: CellResult) -> Iterator[tuple[tuple[str, str], Sample]]:
    labels = {**_run(result), "cell": cell.id}
    for axis, value in cell.axes.items():
        labels.setdefault(f"axis_{_name(axis)}", "default" if value is None else str(value))
    for one in cell.measurements:
        unit = _UNITS.get(one.unit, "")
        name = f"lab_{_name(one.metric)}"
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
        for what, number in (("median", one.median), ("low", one.low), ("high", one.high)):
            if number is not None:
                yield (name, unit), ({**labels, "workload": one.workload, "value": what}, number)


def _run(result: Result) -> dict[str, str]:
    return {"run": result.run.id, "scenario": result.run.scenario}


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "none"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}"


def _escaped(text: str) -> str:
    shown = printable(text).replace("\\", r"\\").replace('"', r"\"")
    return shown.replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
