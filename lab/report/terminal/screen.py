"""A run on one screen: the question, the answer, values, verdicts and notes.

Readable at 50 columns and without colour. Long runs are summarised; ``whole`` prints everything. No
line ends inside a value. If a table does not fit, it takes another form instead of dropping a
column as `PlainTable` does, because a result must not lose a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lab.analysis.answer import shown_values
from lab.model.result.document import CellResult, ClaimResult, Outcome, Result
from lab.model.scenario.claim import Verdict
from lab.report.content.answer import value_names
from lab.report.content.figures import (
    INSIDE,
    Row,
    axes_text,
    axis_heads,
    axis_value,
    clock_words,
    figure_name,
    rows_of,
    spread,
    systems_of,
    telling,
    tests_ended,
)
from lab.report.content.page_data import judged
from lab.report.content.reliability import caveats, reliability
from lab.report.terminal.summary import Overview, overview

if TYPE_CHECKING:
    from lab.model.scenario.claim import Claim

STYLES: Final = {
    Verdict.HOLDS: "green",
    Verdict.REFUTED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_TESTED: "dim",
}
FIGURES: Final = 16
"""Most values with a line each; more are summarised."""
CLAIMS: Final = 9
"""Most claims with reasons; if there are more, only the names of those that hold are printed."""
UNFINISHED: Final = 4
"""Most unfinished cells with their reasons."""
WORDS: Final = 320
"""Most characters of a note; a longer one is cut at the end of a sentence or an item."""
BARS: Final = 6
"""Most values of the answer that are drawn as bars."""
BAR: Final = 24
"""Width of the longest bar; below half of it none is drawn."""
NARROW: Final = 60
"""Width below which columns are printed below each other."""
NAMES: Final = 7
"""Fraction of the width that claim ids may take; a longer id gets its own line."""
GAP: Final = 2

_JOINT: Final = "\ue000"
"""No-break space from a private use area: rich breaks lines at U+00A0 too."""
_SENTENCE: Final = re.compile(r"(?<=[.:]) +(?=[A-Z])")
_SCALED: Final = re.compile(r"\bscaled\b|time scale|(?:multiply|divide) every", re.IGNORECASE)


def together(text: str) -> str:
    """Keep values, units and error bars on one line."""
    return INSIDE.sub(_JOINT, text)


@dataclass(frozen=True, slots=True)
class Unparted:
    """Prints no-break spaces as spaces."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the content, with spaces."""
        for part in console.render(self.inner, options):
            yield Segment(part.text.replace(_JOINT, " "), part.style, part.control)


def result_page(
    result: Result,
    *,
    title: str,
    question: str,
    measured: bool = True,
    claims: Sequence[Claim] = (),
    notes: str = "",
    overrides: Sequence[str] = (),
    drives: str = "",
    whole: bool = True,
    height: int | None = None,
) -> RenderableType:
    """Return question, answer, cells, verdicts and notes; with ``height``, as much of them as fits
    into so many lines."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    if question:
        parts.append(Padding(_text(question.strip()), (0, 2)))
    if measured:
        parts.append(_answer([*result.answer.sentences, *caveats(result)]))
        parts.append(AnswerBars(result))
    top = Group(*parts)
    parts.append(Text())
    rows = [rows_of(cell, judged(result, claims)) for cell in result.cells]
    if whole or not measured or sum(map(len, rows)) <= FIGURES:
        parts.append(Cells(result.cells, rows, measured))
    else:
        parts.append(Summed(overview(result.cells, rows)))
    if not measured:
        return Unparted(Group(*parts))
    values = Group(*parts[-2:])
    unfinished = list(_unfinished(result.cells, whole=whole))
    parts += unfinished
    if height is not None:
        said = " ".join(result.answer.sentences)
        names, reasons = (
            Group(*_claims(result.claims, said, whole=False, reasons=r)) for r in (False, True)
        )
        always = (top, Group(*unfinished))
        return Unparted(OneScreen(always, values, names, reasons, _where(result), height))
    parts += _claims(result.claims, " ".join(result.answer.sentences), whole=whole)
    points = list(
        reliability(result, claims=claims, notes=notes, overrides=overrides, drives=drives)
    )
    parts += [Text()] * bool(points)
    parts += [_point(*(point if whole else _short(*point))) for point in points]
    parts.append(_where(result))
    return Unparted(Group(*parts))


@dataclass(frozen=True, slots=True)
class OneScreen:
    """A result in at most ``height`` lines, as long as question, answer and verdicts fit."""

    always: Sequence[RenderableType]
    values: RenderableType
    verdicts: RenderableType
    """Names of the claims by verdict."""
    reasons: RenderableType
    """The claims with the reasons of their verdicts."""
    where: RenderableType
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render values and reasons if they fit, the values first."""
        always, values, verdicts, reasons, where = (
            [line for part in parts for line in console.render_lines(part, options, pad=False)]
            for parts in (
                self.always,
                *([p] for p in (self.values, self.verdicts, self.reasons, self.where)),
            )
        )
        room = self.height - len(always) - len(verdicts) - len(where)
        shown = values if len(values) <= room else []
        room -= len(shown)
        chosen = reasons if len(reasons) - len(verdicts) <= room else verdicts
        for line in (*always, *shown, *chosen, *where):
            yield from line
            yield Segment.line()


def abridged(result: Result, *, notes: str = "", overrides: Sequence[str] = ()) -> bool:
    """Return whether one screen omits some of the result."""
    unfinished = sum(c.outcome is not Outcome.DONE and not c.pending for c in result.cells)
    return (
        sum(len(rows_of(cell)) for cell in result.cells) > FIGURES
        or len(result.claims) > CLAIMS
        or unfinished > UNFINISHED
        or any(_short(*p) != p for p in reliability(result, notes=notes, overrides=overrides))
    )


def _text(words: str, style: str = "") -> Text:
    return Text(together(words), style=style)


def _answer(sentences: Sequence[str]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for number, sentence in enumerate(sentences):
        first = number == 0
        grid.add_row("→" if first else "", _text(sentence, "bold" if first else ""))
    return Padding(grid, (1, 2, 0, 2))


@dataclass(frozen=True, slots=True)
class AnswerBars:
    """The values of the answer that have the first one's metric, as bars; nothing if there is one
    alone, too many, or no room."""

    result: Result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render a line for each value: its name, a bar, the value."""
        every = self.result.answer.values
        values = [v for v in every if v.metric == every[0].metric]
        names = value_names(self.result, values)
        texts = shown_values(values)
        most = max((v.measured for v in values), default=0.0)
        left, right = (max(map(cell_len, words), default=0) for words in (names, texts))
        room = min(options.max_width - left - right - 4 * GAP, BAR)
        if most > 0 and 1 < len(values) <= BARS and room >= BAR // 2:
            yield Text()
            for name, text, value in zip(names, texts, values, strict=True):
                bar = "█" * max(round(room * value.measured / most), 1)
                line = f"    {name:<{left}}  {bar:<{room}}  {text:>{right}}"
                yield Text(line, no_wrap=True)


# -- values


@dataclass(frozen=True, slots=True)
class Cells:
    """Each value of each cell: as a table, a table by cells, or sentences."""

    cells: Sequence[CellResult]
    rows: Sequence[Sequence[Row]]
    measured: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the first form that fits."""
        axes = list(telling([cell.axes for cell in self.cells]))
        heads = self._heads()
        right = len(heads)
        table, tables = [[*axis_heads(axes), "workload", *heads]], [["", *heads]]
        sentences: list[RenderableType] = []
        for cell, rows in zip(self.cells, self.rows, strict=True):
            own = [axis_value(axis, cell.axes[axis]) for axis in axes]
            above = axes_text(cell.axes) or cell.id
            lines = self._lines(cell, rows, heads)
            tables.append([above])
            sentences.append(_text(above))
            for number, line in enumerate(lines):
                shown = own if number == 0 else [""] * len(own)
                table.append([*shown, *line])
                tables.append([f"  {line[0]}", *line[1:]])
                beside = [f"{h} {f}" for h, f in zip(heads[1:], line[2:], strict=True) if f]
                said = f"{line[0]}: {', '.join([line[1], *beside])}"
                sentences.append(Padding(_text(said), (0, 0, 0, 2)))
        for form in (table, tables):
            laid = _laid(form, right)
            if max(cell_len(line) for line in laid) <= options.max_width:
                yield Text(laid[0], style="bold", no_wrap=True)
                yield Text("─" * max(map(cell_len, laid)), style="dim", no_wrap=True)
                yield from (Text(line, no_wrap=True) for line in laid[1:])
                return
        yield from sentences

    def _heads(self) -> list[str]:
        """The columns that have values."""
        if not self.measured:
            return ["predicted"]
        rows = [row for each in self.rows for row in each]
        return [
            "measured",
            *["predicted"] * any(row.predicted is not None for row in rows),
            *["published"] * any(row.published is not None for row in rows),
        ]

    def _lines(
        self, cell: CellResult, rows: Sequence[Row], heads: Sequence[str]
    ) -> Iterator[list[str]]:
        for workload, ended in tests_ended(cell).items():
            yield [workload, ended, *[""] * (len(heads) - 1)]
        if tests_ended(cell) and not rows:
            return
        if not rows or (self.measured and not cell.measurements):
            ended = "to come" if cell.pending else cell.outcome.value
            words = ended if self.measured else "theory cannot say"
            yield ["–", words, *[""] * (len(heads) - 1)]
            return
        for row in rows:
            said = {
                "measured": measured_text(row),
                "predicted": "" if row.predicted is None else row.text(row.predicted),
                "published": "" if row.published is None else row.text(row.published),
            }
            yield [figure_name(row.workload, row.metric), *(said[head] for head in heads)]


def measured_text(row: Row) -> str:
    """Return a median and its error bar; ``?`` if it is doubtful."""
    if row.measurement is None:
        return ""
    found = f"{row.text(row.measurement.median)} {spread(row.measurement)}".rstrip()
    return f"{found}{'?' if row.doubted else ''}"


def _laid(form: Sequence[Sequence[str]], right: int) -> list[str]:
    """Return lines of a table; the last ``right`` columns are right-aligned, a row of one is a
    heading."""
    full = [row for row in form if len(row) > 1]
    widths = [max(cell_len(row[n]) for row in full) for n in range(len(full[0]))]
    left = len(widths) - right
    lines = []
    for row in form:
        if len(row) == 1:
            lines.append(row[0])
            continue
        cells = [
            text.rjust(width) if number >= left else text.ljust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * GAP).join(cells).rstrip())
    return lines


@dataclass(frozen=True, slots=True)
class Summed:
    """Many values: lowest, median and highest of each workload, and medians per axis value."""

    found: Overview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render tables if they fit, else sentences."""
        found, width = self.found, options.max_width
        yield _text(f"{found.figures} values of {found.cells} cells; from each workload:", "bold")
        for each in found.extremes:
            yield Padding(_text(each.workload), (0, 0, 0, 2))
            for word, said, where in each.lines:
                line = f"{word:<8} {said}{f'  {where}' if where else ''}"
                yield Padding(_text(line), (0, 0, 0, 4))
        if not found.medians:
            return
        yield _text("medians over all other axes:", "bold")
        form = [["", *found.workloads], *([f"  {m.name}", *m.figures] for m in found.medians)]
        laid = _laid(form, len(found.workloads))
        if max(map(cell_len, laid)) <= width:
            yield from (Text(line, no_wrap=True) for line in laid)
            return
        for median in found.medians:
            pairs = zip(found.workloads, median.figures, strict=True)
            said = ", ".join(f"{name} {value}" for name, value in pairs if value)
            yield Padding(_text(f"{median.name}: {said}" if said else median.name), (0, 0, 0, 2))


# -- verdicts and notes


def _unfinished(cells: Sequence[CellResult], *, whole: bool) -> Iterator[RenderableType]:
    found = [c for c in cells if c.outcome is not Outcome.DONE and not c.pending]
    shown = found if whole else found[:UNFINISHED]
    if shown:
        yield Text()
    for cell in shown:
        reason = cell.reason if whole else "\n".join(cell.reason.splitlines()[:3])
        yield _text(f"{cell.id}: {cell.outcome.value}: {reason}", "yellow")
    if len(found) > len(shown):
        yield _text(f"and {len(found) - len(shown)} more cells did not finish", "yellow")


def _claims(
    claims: Sequence[ClaimResult], said: str, *, whole: bool, reasons: bool = True
) -> Iterator[RenderableType]:
    """Yield claims with verdict and reason; if there are too many, only names of those that
    hold. Without ``reasons``: names alone."""
    if not claims:
        return
    yield Text()
    shown = list(claims) if reasons else []
    if not whole and len(shown) > CLAIMS:
        open_ = (Verdict.REFUTED, Verdict.INCONCLUSIVE)
        first = [c for verdict in open_ for c in claims if c.verdict is verdict]
        shown = first[:CLAIMS]
    names_ = max((len(c.id) for c in shown), default=0)
    width = max((len(c.verdict.value) for c in shown), default=0)
    yield from (Judged(c, names_, width, bool(c.reason) and c.reason in said) for c in shown)
    kept = {claim.id for claim in shown}
    for verdict in Verdict:
        names = [c.id for c in claims if c.verdict is verdict and c.id not in kept]
        if names:
            words = verdict.value.replace("_", " ")
            line = Text(words, style=STYLES[verdict]).append(f"  {', '.join(names)}", style="none")
            yield line


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim and its verdict: next to each other, or below each other."""

    claim: ClaimResult
    name: int
    """Length of the longest claim id, and below of the longest verdict."""
    width: int
    said: bool
    """The answer above states its reason."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the form that fits the width."""
        claim = self.claim
        words = claim.verdict.value.replace("_", " ")
        verdict = Text(words, style=STYLES[claim.verdict])
        says = _text(claim.says.strip())
        reason = "as said above" if self.said else claim.reason
        if claim.expected and claim.verdict is not Verdict.NOT_TESTED:
            reason += f"; expected {claim.expected}"
        says.append(f"\n{together(reason)}", style="dim")
        if options.max_width < NARROW or self.name > options.max_width // NAMES:
            yield Text(f"{claim.id} ").append(verdict)
            yield Padding(says, (0, 0, 0, 2))
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=max(self.name, 6))
        grid.add_column(width=self.width)
        grid.add_column(overflow="fold")
        grid.add_row(claim.id, verdict, says)
        yield grid


def _point(head: str, text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=9)
    grid.add_column(overflow="fold")
    grid.add_row(Text(head, style="bold"), _text(text))
    return grid


def _short(head: str, text: str) -> tuple[str, str]:
    """Return a note cut to its limit; of the author's notes, sentences about scaling come first."""
    if len(text) <= WORDS:
        return head, text
    if head != "notes":
        return head, _whole_parts(text.split("; "), "; ") + "; and more"
    sentences = _SENTENCE.split(text)
    first = next((n for n, s in enumerate(sentences) if _SCALED.search(s)), 0)
    return head, ("… " if first else "") + _whole_parts(sentences[first:], " ") + " …"


def _whole_parts(parts: Sequence[str], between: str) -> str:
    """Return as many parts as fit, at least one."""
    said = parts[0]
    for part in parts[1:]:
        if len(said) + len(between) + len(part) > WORDS:
            break
        said += between + part
    return said


def _where(result: Result) -> RenderableType:
    done = sum(c.outcome is Outcome.DONE for c in result.cells)
    accelerator = str(result.environment.get("accelerator", "?")).upper()
    kernels, mdadm = systems_of(result.environment)
    where = (
        f"{accelerator}, Linux {' and '.join(kernels) or '?'}, mdadm {' and '.join(mdadm) or '?'}"
    )
    where += f", {words}" if (words := clock_words(result)) else ""
    return _text(f"\n{done} of {len(result.cells)} cells done, under {where}.", "dim")


def next_steps(
    steps: Sequence[tuple[str, str]], directory: str, *, short: bool = False
) -> RenderableType:
    """Return the run's directory and the next commands, one per line, to be printed unwrapped.

    ``short``: the first two commands, each with its purpose in its line.
    """
    if short:
        pairs = steps[:2]
        width = max((cell_len(command) for command, _ in pairs), default=0)
        found = [Text(f"{c:<{width}}  ").append(w, style="dim") for c, w in pairs]
        return Text("\n").join(found)
    lines = [Text(f"Kept in {directory}", style="dim")]
    for command, what in steps:
        lines += [Text(f"{what}:", style="dim"), Text(f"  {command}")]
    return Text("\n").join(lines)
