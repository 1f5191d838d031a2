"""How far a model is from measured values: those it was fitted to, and those it was not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from lab.model.scenario.profile import Point


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of several values."""

    count: int
    rms: float
    worst: float
    """With its sign."""
    where: str
    """Name of the value with the worst error."""

    @override
    def __str__(self) -> str:
        if not self.count:
            return "none"
        return f"{self.rms:.1%} RMS, {self.worst:+.1%} at worst ({self.where})"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a certificate: the values of one group."""

    group: str
    fitted: Errors
    tested: Errors
    """Values that were not fitted."""


def errors(points: Sequence[Point]) -> Errors:
    """Return the errors of these values."""
    if not points:
        return Errors(0, 0.0, 0.0, "")
    worst = max(points, key=lambda p: abs(p.error))
    rms = math.sqrt(sum(p.error**2 for p in points) / len(points))
    return Errors(len(points), rms, worst.error, worst.name)


def certificate(points: Sequence[Point]) -> tuple[Line, ...]:
    """Return a line for each group of values, in order of appearance."""
    return tuple(_lines(points))


def _lines(points: Sequence[Point]) -> Iterator[Line]:
    for group in dict.fromkeys(p.group for p in points):
        own = [p for p in points if p.group == group]
        yield Line(
            group, errors([p for p in own if p.fitted]), errors([p for p in own if not p.fitted])
        )


def in_words(points: Sequence[Point]) -> str:
    """Return the certificate as text: errors by group, where fitted and where not."""
    found = []
    for line in certificate(points):
        parts = []
        for errors_, where in ((line.fitted, "fitted"), (line.tested, "not fitted")):
            if errors_.count:
                depth = errors_.where.partition(", ")[2]
                parts.append(f"{errors_.rms:.1%} RMS {where} ({errors_.worst:+.1%} at {depth})")
        found.append(f"{line.group} {', '.join(parts)}")
    return "; ".join(found)
