"""A run as one page: HTML with its pictures in it, complete without a network and JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lab import __version__
from lab.core.printable import printable
from lab.model.result.document import Outcome, Result, RunState
from lab.model.scenario.claim import Claim, Verdict
from lab.report.charts import cell_pictures, figure_pictures, shown_cells
from lab.report.charts.draw import Picture, svg
from lab.report.content.answer import answer, reliability
from lab.report.content.document import Page, PageCell
from lab.report.content.figures import axes_text, claim_figure, clock_words
from lab.report.content.tables import (
    calibrations_table,
    checks_table,
    facts,
    figures_table,
    members_table,
    metrics_table,
    series_table,
    time_of,
)

if TYPE_CHECKING:
    from jinja2 import Environment

MARKS: Final = {
    Verdict.HOLDS: "✓",
    Verdict.REFUTED: "✗",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_TESTED: "–",
}
"""Beside the words and colours, for those who see no colours."""
WORST: Final = (Verdict.REFUTED, Verdict.INCONCLUSIVE, Verdict.NOT_TESTED, Verdict.HOLDS)


def run_page(page: Page, *, index: str = "") -> str:
    """The page of one run; ``index``: the page that has all of them."""
    shown = figure_pictures(page)
    single = cell_pictures(page)
    result = page.result
    shown_here, shared = shown_cells(page)
    these = f"those with {shared} are here" if shared else f"{len(shown_here)} of them are here"
    fewer = f"{len(page.cells)} cells are too many for a picture each: {these}."
    failures = [(_label(c), c.failures) for c in page.cells if c.failures]
    return render(
        "run.html.j2",
        page=page,
        index=index,
        started=when(result.run.started),
        where=where(result),
        answer=answer(result, page.claims),
        mood=mood(result),
        source=_source(page),
        claims=[*_claims(result, page.claims)],
        pictures=drawn(shown),
        cell_pictures=drawn(single),
        fewer=fewer if len(shown_here) < len(page.cells) else "",
        figures=figures_table(page),
        members=members_table(page),
        series=series_table(page),
        trust=[*reliability(result, notes=page.notes, overrides=page.overrides), *_grounds(result)],
        failures=failures,
        cells=[_cell(c) for c in page.cells],
        environment=[*facts(result.environment)],
        calibrations=calibrations_table(result.environment),
    )


def render(template: str, **what: object) -> str:
    """A template with what it shows filled in."""
    return str(templates().get_template(template).render(what))


@cache
def templates() -> Environment:
    """The templates beside this file; what they are given is escaped."""
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
    """What a template prints: text of others without control characters."""
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def drawn(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Pictures with their SVG, which is markup."""
    from markupsafe import Markup

    return [{"name": p.name, "svg": Markup(svg(p))} for p in pictures]  # noqa: S704  Vega escapes


def when(text: str) -> str:
    """ISO 8601 as people write it."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def where(result: Result) -> str:
    """Accelerator, kernel, mdadm and clock in a line."""
    guest = result.environment.get("guest", {})
    words = [str(result.environment.get("accelerator", "")).upper()]
    words += [f"Linux {guest['kernel']}"] if guest.get("kernel") else []
    mdadm = guest.get("mdadm", "").removeprefix("mdadm - v").partition(" ")[0]
    words += [f"mdadm {mdadm}"] if mdadm else []
    words.append(clock_words(result))
    return ", ".join(filter(None, words))


def mood(result: Result) -> str:
    """The worst verdict, for the colour of the answer."""
    found = {claim.verdict for claim in result.claims}
    worst = next((v for v in WORST if v in found), Verdict.HOLDS)
    if result.run.state is RunState.RUNNING and worst is Verdict.HOLDS:
        worst = Verdict.NOT_TESTED
    unfinished = any(c.outcome is not Outcome.DONE for c in result.cells)
    if unfinished and worst is Verdict.HOLDS:
        worst = Verdict.INCONCLUSIVE
    return worst.value


def _source(page: Page) -> dict[str, str]:
    """The source's title, its link if it is an address of the web, and author and date."""
    source = page.source
    if source is None:
        return {}
    url = source.url or ""
    link = url if url.startswith(("https://", "http://")) else ""
    rest = (source.author, source.date, "" if link else url)
    return {"title": source.title, "link": link, "rest": ", ".join(filter(None, rest))}


def _claims(result: Result, claims: Sequence[Claim]) -> Iterator[dict[str, str]]:
    made = {claim.id: claim for claim in claims}
    for claim in result.claims:
        yield {
            "id": claim.id,
            "verdict": claim.verdict.value,
            "mark": MARKS[claim.verdict],
            "words": claim.verdict.value.replace("_", " "),
            "says": " ".join(claim.says.split()),
            "reason": claim.reason,
            "measured": claim_figure(made.get(claim.id), claim.measured),
            "published": claim_figure(made.get(claim.id), claim.published),
            "expected": claim.expected or "",
        }


def _grounds(result: Result) -> Iterator[tuple[str, str]]:
    """What stands behind every figure of a run that had nothing to be doubted."""
    done = [c for c in result.cells if c.outcome is Outcome.DONE]
    yield "cells", f"{len(done)} of {len(result.cells)} done"
    checks = [check for cell in done for check in cell.checks]
    if checks:
        good = sum(check.passed for check in checks)
        yield "checks", f"{good} of {len(checks)} as they should be; each cell below lists its own"


def _label(cell: PageCell) -> str:
    return axes_text(cell.result.axes) or cell.result.id


def _cell(cell: PageCell) -> dict[str, Any]:
    return {
        "id": cell.result.id,
        "label": _label(cell),
        "outcome": "to come" if cell.result.pending else cell.result.outcome.value,
        "seconds": time_of(cell.result),
        "reason": cell.result.reason,
        "metrics": metrics_table(cell.result),
        "explanations": cell.explanations,
        "checks": checks_table(cell.result),
        "commands": cell.commands,
    }
