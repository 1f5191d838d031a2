"""A run's result as Markdown, for GitHub's step summary and for comments. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lab.core.printable import printable
from lab.core.units import format_value, shortened
from lab.model.result.document import CellMeasurement, CellResult, Outcome, Result
from lab.report.content.figures import (
    MARKS,
    SHOWN,
    axes_text,
    claim_text,
    metric_words,
    rows_of,
    tests_ended,
)

LINES: Final = 100
"""Most rows of a table: a step's summary may have 1 MiB."""
TEXT: Final = 500
"""Most characters of a text of the run."""
_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>()|~&#!$@:]|(?<=www)\.", re.IGNORECASE)
"""GitHub makes a link of ``www.`` too."""


def summary(result: Result, *, title: str) -> str:
    """Return question, answer, claims, cells that did not end well, and values.

    Texts of the run are text: no markup, link or mention comes from them.
    """
    about = f"Run `{_code(result.run.id)}`, {result.run.state.value}."
    lines = [f"## {_text(title)}", "", _text(result.answer.question), ""]
    lines += [f"**{_text(sentence)}**" for sentence in result.answer.sentences]
    lines += ["", about, ""]
    lines += _table(
        ("claim", "verdict", "measured", "expected"),
        [
            (
                f"{claim.id}: {claim.says}",
                f"{MARKS[claim.verdict]} {claim.verdict.value.replace('_', ' ')}",
                claim_text(claim.shown, claim.measured),
                claim.expected or claim.reason,
            )
            for claim in sorted(result.claims, key=lambda c: list(MARKS).index(c.verdict))
        ],
    )
    bad = [cell for cell in result.cells if cell.outcome is not Outcome.DONE and not cell.pending]
    if bad:
        rows = [(_cell(cell), cell.outcome.value, cell.reason) for cell in bad]
        lines += _table(("cell", "outcome", "reason"), rows)
    if values := _values(result):
        lines += ["<details><summary>Values</summary>", ""]
        lines += _table(("cell", "workload", "metric", "median", "95 % interval"), values)
        lines += ["</details>", ""]
    return "\n".join(lines)


def _values(result: Result) -> list[tuple[str, ...]]:
    """Return the main value of each workload in each cell, and how the tests of suites ended."""
    found: list[tuple[str, ...]] = []
    for cell in result.cells:
        for row in rows_of(cell):
            if (one := row.measurement) is not None and one.metric in SHOWN:
                words = metric_words(one.metric)
                value = format_value(one.median, one.unit)
                found.append((_cell(cell), one.workload, words, value, _interval(one)))
        for workload, ended in tests_ended(cell).items():
            found.append((_cell(cell), workload, "tests", ended, ""))
    return found


def _interval(one: CellMeasurement) -> str:
    if one.no_seed_changes_it:
        return "no seed changes it"
    if one.low is None or one.high is None:
        return "not known"
    return f"{format_value(one.low, one.unit)} to {format_value(one.high, one.unit)}"


def _cell(cell: CellResult) -> str:
    return axes_text(cell.axes) if cell.axes else "base"


def _table(heads: Sequence[str], rows: Sequence[Iterable[str]]) -> list[str]:
    if not rows:
        return []
    shown = list(_rows(rows[:LINES]))
    left = len(rows) - len(shown)
    more = [f"{left} more rows are in the report.", ""] if left else []
    head = f"| {' | '.join(heads)} |"
    return [head, f"|{'---|' * len(heads)}", *shown, "", *more]


def _rows(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    for row in rows:
        yield f"| {' | '.join(_text(value) for value in row)} |"


def _text(text: str) -> str:
    """Return a text on one line, with a backslash before everything that could be markup."""
    line = " ".join(printable(text).split())
    return _MARKUP.sub(lambda found: f"\\{found[0]}", shortened(line, TEXT))


def _code(text: str) -> str:
    return printable(text).replace("`", "'").replace("\n", " ")
