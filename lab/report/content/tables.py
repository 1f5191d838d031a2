"""A run's numbers as tables, and its environment as lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lab.core.base import Model
from lab.core.units import (
    format_amount,
    format_seconds,
    format_speed,
    format_value,
    format_values,
)
from lab.model.result.document import CellResult, Outcome
from lab.model.scenario.suite import Ending
from lab.report.content.figures import (
    SHOWN,
    Row,
    axes_text,
    axis_heads,
    axis_value,
    figure_name,
    interval,
    metric_words,
    percent,
    rows_of,
    telling,
    tests_ended,
)
from lab.report.content.page_data import Page

TEST_MARKS: Final[Mapping[Ending, str]] = {
    "failed": "✗",
    "unfinished": "?",
    "not_run": "–",
    "skipped": "–",
    "passed": "✓",
}
"""Marks of a test's results, the worst first."""
BESIDE: Final = "also measured"
_LATENCIES: Final = {"latency": "latency mean", "clat_p99": "p99"}


class Column(Model):
    """A heading; numbers are right-aligned."""

    name: str
    number: bool = False


class Line(Model):
    """One row of a table, as text."""

    values: tuple[str, ...]
    style: str = ""


class Table(Model):
    """Headings and rows."""

    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    caption: str = ""


def columns(words: Sequence[str], numbers: Sequence[str]) -> tuple[Column, ...]:
    """Return headings of texts, then of numbers."""
    return (*(Column(name=w) for w in words), *(Column(name=n, number=True) for n in numbers))


def figures_table(page: Page) -> Table:
    """Return measured, predicted and published values, one row each."""
    axes = list(telling([cell.axes for cell in page.result.cells]))
    lines = []
    for cell in page.result.cells:
        own = [axis_value(a, cell.axes[a]) for a in axes]
        rows = rows_of(cell, page.judged) if cell.measurements else []
        if not rows and not tests_ended(cell):
            lines.append(Line(values=(*own, "–", cell.outcome.value, *[""] * 6), style="doubted"))
        lines += [_line(own, row, _others(cell, row)) for row in rows]
    heads = ["measured", "trials", "from – to", "predicted", "off theory", "published", BESIDE]
    return _filled(
        Table(
            columns=columns([*axis_heads(axes), "workload"], heads),
            rows=tuple(lines),
            caption="Medians of the trials with their 95% intervals; without one, the interval is"
            " unknown or the value is always the same. Each cell below has its other metrics.",
        )
    )


def _filled(table: Table) -> Table:
    """Return the table without empty columns."""
    kept = [n for n, _ in enumerate(table.columns) if any(row.values[n] for row in table.rows)]
    rows = (r.model_copy(update={"values": tuple(r.values[n] for n in kept)}) for r in table.rows)
    return table.model_copy(
        update={"columns": tuple(table.columns[n] for n in kept), "rows": tuple(rows)}
    )


def _others(cell: CellResult, row: Row) -> str:
    """Return throughput, IOPS and latency that are not the main value of a workload."""
    own = (m for m in cell.measurements if m.workload == row.workload)
    found = {m.metric: format_value(m.median, m.unit) for m in own}
    said = [found[m] for m in SHOWN[:2] if m in found and m != row.metric]
    said += [f"{words} {found[m]}" for m, words in _LATENCIES.items() if m in found]
    return ", ".join(said) if row.metric in SHOWN[:2] else ""


def _line(own: Sequence[str], row: Row, others: str) -> Line:
    name = figure_name(row.workload, row.metric)

    def say(value: float | None) -> str:
        return "" if value is None else row.text(value)

    trials, span = "", ""
    if row.measurement is not None:
        trials = str(len(row.measurement.values))
        low, high = interval(row.measurement)
        span = f"{say(low)} – {say(high)}" if say(low) != say(high) else ""
    measured = say(row.measured) + (" ?" if row.doubted else "")
    off = "" if row.off is None else percent(row.off)
    found = (measured, trials, span, say(row.predicted), off, say(row.published), others)
    return Line(values=(*own, name, *found), style="doubted" if row.doubted else "")


def tests_table(page: Page) -> Table:
    """Return the tests of all suites with their results, the worst first."""
    labels = {cell.result.id: axes_text(cell.result.axes) for cell in page.cells}
    tests = [(cell, test) for cell in page.cells for test in cell.tests]
    several = len({test.suite for _, test in tests}) > 1
    counts = Counter(test.ending for _, test in tests)
    said = ", ".join(f"{counts[e]} {_words(e)}" for e in TEST_MARKS if counts[e])
    lines = [
        Line(
            values=(
                f"{TEST_MARKS[test.ending]} {_words(test.ending)}",
                test.suite if several else "",
                test.name,
                labels[cell.result.id] if len(page.cells) > 1 else "",
                test.reason,
                "" if test.seconds is None else format_seconds(test.seconds),
            ),
            style=f"test-{test.ending}",
        )
        for ending in TEST_MARKS
        for cell, test in tests
        if test.ending == ending
    ]
    heads = columns(["result", "suite", "test", "cell", "reason"], ["time"])
    return _filled(Table(columns=heads, rows=tuple(lines), caption=f"{len(tests)} tests: {said}."))


def _words(ending: Ending) -> str:
    return ending.replace("_", " ")


def metrics_table(cell: CellResult) -> Table:
    """Return every metric of a cell, with every trial."""
    lines = []
    for row in rows_of(cell, all_=True):
        if row.measurement is None:
            continue
        said = format_values(row.measurement.values, row.unit)
        expected = "" if row.predicted is None else row.text(row.predicted)
        off = "" if row.off is None else percent(row.off)
        unit = row.measurement.unit.removesuffix("1")  # a count has no unit
        exact = f"{row.measurement.median:.10g} {unit}".strip()
        name = metric_words(row.metric)
        lines.append(Line(values=(row.workload, name, ", ".join(said), exact, expected, off)))
    heads = columns(["workload", "metric"], ["trials", "median, exactly", "theory", "off theory"])
    return _filled(Table(columns=heads, rows=tuple(lines)))


def members_table(page: Page) -> Table:
    """Return each disk's counters in each trial, from the guest's kernel."""
    discards = any(c.discards for cell in page.result.cells for c in cell.counters)
    lines = [
        Line(
            values=(
                axes_text(cell.axes) or cell.id,
                c.workload,
                str(c.trial),
                c.serial,
                f"{c.read_bytes:,}",
                f"{c.written_bytes:,}",
                f"{c.reads:,}",
                f"{c.writes:,}",
                f"{c.flushes:,}",
                *((f"{c.discards:,}", f"{c.discarded_bytes:,}") if discards else ()),
            )
        )
        for cell in page.result.cells
        for c in cell.counters
    ]
    return Table(
        columns=columns(
            ["cell", "workload", "trial", "disk"],
            [
                *("bytes read", "bytes written", "reads", "writes", "flushes"),
                *(("discards", "bytes discarded") if discards else ()),
            ],
        ),
        rows=tuple(lines),
    )


def series_table(page: Page) -> Table:
    """Return each sample of each log."""
    lines = [
        Line(
            values=(
                axes_text(cell.result.axes) or cell.result.id,
                *(s.workload, str(s.trial), s.direction),
                f"{at:g}",
                format_value(value, s.unit),
            )
        )
        for cell in page.cells
        for s in cell.series
        for at, value in zip(s.seconds, s.values, strict=True)
    ]
    heads = columns(["cell", "workload", "trial", "direction"], ["until second", "value"])
    return Table(columns=heads, rows=tuple(lines))


def checks_table(cell: CellResult) -> Table:
    """Return the checks of a cell."""
    lines = [
        Line(
            values=(c.name, "yes" if c.passed else "NO", c.detail),
            style="" if c.passed else "doubted",
        )
        for c in cell.checks
    ]
    return Table(columns=columns(["check", "passed", "detail"], []), rows=tuple(lines))


def calibrations_table(environment: Mapping[str, Any]) -> Table:
    """Return measured and expected values of the disks' calibrations."""
    lines = []
    for found in environment.get("calibrations", ()):
        disk = found.get("disk", {})
        name = " ".join(str(disk[k]) for k in ("model", "preset") if disk.get(k))
        if found.get("problem"):
            lines.append(Line(values=(name, found["problem"], *[""] * 4), style="doubted"))
        for p in found.get("points", ()):
            off = p["measured"] / p["expected"] - 1 if p["expected"] else 0.0
            said = format_values([p["measured"], p["expected"]], p["unit"])
            style = "" if abs(off) <= p["tolerance"] else "doubted"
            values = (
                name,
                p["name"].replace("_", " "),
                *said,
                percent(off),
                f"{p['tolerance']:.0%}",
            )
            lines.append(Line(values=values, style=style))
    heads = columns(["disk", "point"], ["measured", "expected", "off", "allowed"])
    return Table(columns=heads, rows=tuple(lines))


def facts(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the environment as names and values."""
    for name, value in environment.items():
        if name == "calibrations":
            continue
        if name == "noise":
            yield from _noise(value)
            continue
        words = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from facts(value, f"{words} ")
        elif name == "memory_kib":
            yield f"{prefix}memory", format_amount(int(value) * 1024)
        elif name == "memory" and isinstance(value, int):
            yield words, format_amount(value)
        else:
            yield words, str(value)


def _noise(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield noise of the host's earlier runs, by number of disks and metric."""
    for each in found:
        words = f"noise of {metric_words(each['metric'])}, {each['disks']} disks"
        yield words, f"{each['deviation']:.1%} from run to run, by {each['runs']} earlier runs"


def time_of(cell: CellResult) -> str:
    """Return a cell's time by phase, in words."""
    if cell.outcome is Outcome.SKIPPED:
        return ""
    parts = [
        f"{name} {format_seconds(value)}"
        for name, value in cell.seconds.model_dump(exclude={"total"}).items()
        if value >= 0.05
    ]
    guest, total = cell.guest_seconds, cell.seconds.total
    if guest and total:
        parts.append(f"{format_seconds(guest)} of guest time ({format_speed(guest, total)})")
    return f"{format_seconds(total)}" + (f": {', '.join(parts)}" if parts else "")
