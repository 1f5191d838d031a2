"""Virtual time by both engines: the values of shipped scenarios, native beside emulated.

  python -m bench.engines NATIVE EMULATED

Each is a directory of runs, of `bench.claims run`. Prints the values that differ by more than 1 %,
largest difference first. Exit status 1: there is one.

A difference counts if it is larger than chance makes it: the confidence interval of the two means'
difference at 95 % (Welch) does not contain 0, or no seed changes either value.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Final

from bench.stored import finished
from lab.core.errors import LabError
from lab.core.statistics import t_quantile
from lab.core.units import format_value
from lab.model.result.document import Result
from lab.results.documents import result_of

LIMIT: Final = 0.01
"""Relative difference that needs a cause."""
CONFIDENCE: Final = 0.95
ENGINE: Final = "guest.engine"

Key = tuple[str, str, str]
"""A cell's axes, a workload, a metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A value by both engines."""

    scenario: str
    key: Key
    unit: str
    native: Sequence[float]
    """By trial, in the metric's unit."""
    emulated: Sequence[float]

    @property
    def difference(self) -> float:
        """Of the means, relative to the emulated one."""
        native, emulated = fmean(self.native), fmean(self.emulated)
        return native / emulated - 1 if emulated else (inf if native else 0.0)

    @property
    def chance(self) -> float:
        """Half the width of the difference's confidence interval, relative to the emulated mean;
        infinite if one trial of a value that seeds change stands alone."""
        sizes, parts = [], []
        for values in (self.native, self.emulated):
            if len(values) < 2:
                continue
            sizes.append(len(values))
            parts.append(variance(values) / len(values))
        if len(sizes) < 2:
            return 0.0 if not any(parts) else inf
        if not sum(parts) or not fmean(self.emulated):
            return 0.0
        # Welch and Satterthwaite
        freedom = sum(parts) ** 2 / sum(p * p / (n - 1) for p, n in zip(parts, sizes, strict=True))
        quantile = t_quantile((1 + CONFIDENCE) / 2, max(1, int(freedom)))
        return quantile * sqrt(sum(parts)) / abs(fmean(self.emulated))

    @property
    def differs(self) -> bool:
        """More than :data:`LIMIT`, and more than chance."""
        return abs(self.difference) > LIMIT and abs(self.difference) > self.chance


def pairs(name: str, native: Result, emulated: Result) -> Iterator[Pair]:
    """Yield the values that both runs of a scenario have."""
    own, others = _values(native), _values(emulated)
    for key in own.keys() & others.keys():
        unit, values = own[key]
        yield Pair(scenario=name, key=key, unit=unit, native=values, emulated=others[key][1])


def _values(result: Result) -> Mapping[Key, tuple[str, Sequence[float]]]:
    found = {}
    for cell in result.cells:
        axes = ", ".join(f"{k}={v}" for k, v in cell.axes.items() if k != ENGINE)
        for m in cell.measurements:
            if m.values:
                found[axes, m.workload, m.metric] = m.unit, m.values
    return found


def table(rows: Sequence[Pair]) -> str:
    """Return the values that differ, largest difference first, and a summary."""
    differing = sorted((p for p in rows if p.differs), key=lambda p: -abs(p.difference))
    lines = [
        "| scenario | cell | value | native | emulated | difference |",
        "|---|---|---|---|---|---|",
    ]
    for pair in differing:
        axes, workload, metric = pair.key
        sides = (format_value(fmean(v), pair.unit) for v in (pair.native, pair.emulated))
        lines.append(
            f"| {pair.scenario} | {axes} | {workload}.{metric} | {' | '.join(sides)}"
            f" | {pair.difference:+.1%} ±{pair.chance:.1%} |"
        )
    lines += ["", f"{len(differing)} of {len(rows)} values differ by more than {LIMIT:.0%}."]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("native", type=Path)
    parser.add_argument("emulated", type=Path)
    given = parser.parse_args(words)
    try:
        native, emulated = finished([given.native]), finished([given.emulated])
        rows = [
            pair
            for name in native.keys() & emulated.keys()
            for pair in pairs(name, result_of(native[name]), result_of(emulated[name]))
        ]
    except (LabError, OSError) as error:
        print(f"bench.engines: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return int(any(pair.differs for pair in rows))


if __name__ == "__main__":
    sys.exit(main())
