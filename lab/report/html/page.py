"""A run as one HTML page with its charts; it needs no network and no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lab import __version__
from lab.analysis.answer import verdict_counts
from lab.core.printable import printable
from lab.model.result.document import ClaimResult, Outcome, Result, RunState
from lab.model.scenario.claim import Claim, Verdict
from lab.report.charts.cells import cell_charts, shown_cells
from lab.report.charts.key_claims import answer_chart
from lab.report.charts.latency import latency_charts
from lab.report.charts.render import Chart, svg
from lab.report.charts.timeline import timelines
from lab.report.charts.values import value_charts
from lab.report.content.fault_rows import faults_table
from lab.report.content.figures import INSIDE, MARKS, axes_text, claim_text, clock_words, systems_of
from lab.report.content.page_data import Page, PageCell
from lab.report.content.reliability import caveats, reliability
from lab.report.content.tables import (
    calibrations_table,
    checks_table,
    facts,
    figures_table,
    members_table,
    metrics_table,
    series_table,
    tests_table,
    time_of,
)

if TYPE_CHECKING:
    from jinja2 import Environment

BYTES: Final = "Bytes that the guest's kernel counted on each disk."
SPEED: Final = "Speed over time is from the logs of the workloads' tools."


def run_page(page: Page, *, index: str = "", stamp: str = "") -> str:
    """Return the report of one run; ``index``: link to the page of all runs.

    ``stamp``: digest of what it is made from.
    """
    result = page.result
    shown_here, shared = shown_cells(page)
    these = f"those with {shared} are here" if shared else f"{len(shown_here)} of them are here"
    fewer = f"{len(page.cells)} cells are too many for charts of their own: {these}."
    failures = [(_label(c), c.failures) for c in page.cells if c.failures]
    tests = {test.claim for cell in page.cells for test in cell.tests}
    shown = [claim for claim in result.claims if claim.id not in tests]
    series = series_table(page)
    return render(
        "run.html.j2",
        page=page,
        index=index,
        stamp=stamp,
        started=when(result.run.started),
        where=where(result),
        answer=[*map(_tied, result.answer.sentences)],
        answer_chart=drawn(_first(page)),
        caveats=[*caveats(result)],
        counts=verdict_counts(shown),
        mood=mood(result),
        source=_source(page),
        claims=[*_claims(shown, page.claims)],
        tests=tests_table(page) if tests else None,
        timelines=[
            {"chart": drawn([chart])[0], "table": faults_table(page, cell)}
            for cell, chart in timelines(page)
        ],
        charts=drawn((*value_charts(page), *latency_charts(page))),
        cell_charts=drawn(cell_charts(page)),
        note=BYTES + (f" {SPEED}" if series.rows else ""),
        fewer=fewer if len(shown_here) < len(page.cells) else "",
        figures=figures_table(page),
        members=members_table(page),
        series=series,
        trust=[
            *reliability(
                result,
                claims=page.claims,
                notes=page.notes,
                overrides=page.overrides,
                drives=page.drives,
            ),
            *_grounds(result),
        ],
        failures=failures,
        cells=[_cell(c) for c in page.cells],
        environment=[*facts(result.environment)],
        calibrations=calibrations_table(result.environment),
    )


def charts_of(page: Page) -> tuple[Chart, ...]:
    """Return every chart of a run: the answer's, timelines, values, latencies, single cells."""
    timed = (chart for _, chart in timelines(page))
    return (*_first(page), *timed, *value_charts(page), *latency_charts(page), *cell_charts(page))


def _first(page: Page) -> tuple[Chart, ...]:
    chart = answer_chart(page)
    return (chart,) if chart else ()


def render(template: str, **what: object) -> str:
    """Return a rendered template."""
    return str(templates().get_template(template).render(what))


@cache
def templates() -> Environment:
    """Return the templates of this package; values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("lab.report.html")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, _, _ = loader.get_source(environment, "style.css")
    environment.globals |= {"style": Markup(style), "version": __version__}  # noqa: S704  our own
    return environment


def _shown(value: object) -> object:
    """Return a value for templates, without control characters."""
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def drawn(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """Return charts with their SVG, which is markup."""
    from markupsafe import Markup

    return [{"name": c.name, "svg": Markup(svg(c))} for c in charts]  # noqa: S704  Vega escapes


def when(text: str) -> str:
    """Return an ISO 8601 time in short form."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def where(result: Result) -> str:
    """Return accelerator, kernel, mdadm and clock on one line."""
    kernels, mdadm = systems_of(result.environment)
    words = [str(result.environment.get("accelerator", "")).upper()]
    words += [f"Linux {' and '.join(kernels)}"] if kernels else []
    words += [f"mdadm {' and '.join(mdadm)}"] if mdadm else []
    words.append(clock_words(result))
    return ", ".join(filter(None, words))


def mood(result: Result) -> str:
    """Return the worst verdict of the claims that answer, for the colour of the answer.

    Empty: the run has no claims, and nothing is judged.
    """
    unfinished = any(c.outcome is not Outcome.DONE for c in result.cells)
    if not result.claims:
        return Verdict.INCONCLUSIVE.value if unfinished else ""
    given = result.answer.claims or [claim.id for claim in result.claims]
    found = {claim.verdict for claim in result.claims if claim.id in given}
    worst = next((v for v in MARKS if v in found), Verdict.HOLDS)
    if result.run.state is RunState.RUNNING and worst is Verdict.HOLDS:
        worst = Verdict.NOT_TESTED
    if unfinished and worst is Verdict.HOLDS:
        worst = Verdict.INCONCLUSIVE
    return worst.value


def _source(page: Page) -> dict[str, str]:
    """Return the source's title, its link if it is a web address, and author and date."""
    source = page.source
    if source is None:
        return {}
    url = source.url or ""
    link = url if url.startswith(("https://", "http://")) else ""
    rest = (source.author, source.date, "" if link else url)
    return {"title": source.title, "link": link, "rest": ", ".join(filter(None, rest))}


def _tied(text: str) -> str:
    """Return a text in which no line ends inside a value."""
    return INSIDE.sub("\N{NO-BREAK SPACE}", text)


def _claims(found: Sequence[ClaimResult], claims: Sequence[Claim]) -> Iterator[dict[str, str]]:
    made = {claim.id: claim for claim in claims}
    for claim in found:
        text = made.get(claim.id)
        measured = claim_text(claim.shown, claim.measured)
        yield {
            "id": claim.id,
            "verdict": claim.verdict.value,
            "mark": MARKS[claim.verdict],
            "words": claim.verdict.value.replace("_", " "),
            "says": _tied(" ".join(claim.says.split())),
            "reason": "" if claim.reason == f"{measured} was measured" else _tied(claim.reason),
            "measured": measured,
            "published": claim_text(claim.shown_published, claim.published),
            "expected": _tied(claim.expected or ""),
            "ours": "yes" if text and text.ours else "",
            "source": (text and text.source) or "",
            "quote": " ".join(((text and text.quote) or "").split()),
            "why": " ".join(((text and text.why) or "").split()),
        }


def _grounds(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the numbers of finished cells and of passed checks."""
    done = [c for c in result.cells if c.outcome is Outcome.DONE]
    yield "cells", f"{len(done)} of {len(result.cells)} done"
    checks = [check for cell in done for check in cell.checks]
    if checks:
        good = sum(check.passed for check in checks)
        yield "checks", f"{good} of {len(checks)} passed; each cell below lists its own"


def _label(cell: PageCell) -> str:
    return axes_text(cell.result.axes) or cell.result.id


def _cell(cell: PageCell) -> dict[str, Any]:
    return {
        "id": cell.result.id,
        "label": _label(cell),
        "outcome": "pending" if cell.result.pending else cell.result.outcome.value,
        "seconds": time_of(cell.result),
        "reason": cell.result.reason,
        "metrics": metrics_table(cell.result),
        "explanations": cell.explanations,
        "checks": checks_table(cell.result),
        "commands": cell.commands,
        "attempts": cell.attempts,
    }
