"""The page of all runs: verdicts and answers as tables, and all values to explore."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from lab.capabilities.site.logic import site_of
from lab.capabilities.site.model import Site
from lab.core.printable import printable
from lab.model.result.document import Outcome, Result
from lab.model.result.regression import Regression
from lab.model.scenario.claim import Verdict
from lab.report.content.figures import axes_text, metric_words, rows_of, spread
from lab.report.content.overview import Overview
from lab.report.content.page_data import Page
from lab.report.content.regressions import regression_sentence
from lab.report.content.reliability import caveats
from lab.report.content.tables import Line, Table, columns
from lab.report.html.page import mood, render, templates, when, where


def index_page(
    pages: Sequence[Page],
    broken: Sequence[str],
    regressions: Sequence[Regression] = (),
    overview: Overview | None = None,
    added: Sequence[Page | Result] = (),
) -> str:
    """Return the index; ``pages`` have the newest run first, ``broken`` names unreadable runs.

    ``overview``: the matrix run of the page. ``added``: runs of bundles, and results, from files.
    """
    names = dict.fromkeys(page.result.run.scenario for page in pages)
    own = {n: [p for p in pages if p.result.run.scenario == n] for n in names}
    scripts = (_vega(), _source("site.js"))
    return render(
        "index.html.j2",
        broken=broken,
        regressions=[
            *(overview.sentences if overview else ()),
            *(regression_sentence(one) for one in regressions),
        ],
        matrix=overview,
        verdicts=[v.value.replace("_", " ") for v in Verdict],
        runs=[*map(_run, pages), *(_run(one) for one in added if isinstance(one, Page))],
        scenarios=[_scenario(name, runs) for name, runs in own.items()],
        site_style=_markup(_source("site.css")),
        scripts=[_markup(f"\n{script}\n") for script in scripts],
        hashes=" ".join(map(_hash, scripts)),
        data=_markup(as_json(site_of(pages, added))),
    )


def as_json(site: Site) -> str:
    """Return the data for a ``<script>`` element; control characters are escapes, visible ones."""
    document = _visible(site.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _visible(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(name): _visible(one) for name, one in value.items()}
        case list() | tuple():
            return [_visible(one) for one in value]
        case _:
            return value


@cache
def _vega() -> str:
    """Return vega-embed with Vega-Lite and Vega, which draw the charts; 0.9 MB."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _source(name: str) -> str:
    environment = templates()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash(script: str) -> str:
    """Return the source expression that lets this script run (Content Security Policy 3)."""
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _markup(text: str) -> object:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  our own, or JSON without "<"


def _run(page: Page) -> dict[str, Any]:
    result = page.result
    ended = sum(c.outcome is not Outcome.SKIPPED for c in result.cells)
    counts = [(sum(c.verdict is v for c in result.claims), v.value) for v in Verdict]
    return {
        "id": result.run.id,
        "link": page.link,
        "started": when(result.run.started),
        "cells": f"{ended} of {len(result.cells)}" if ended < len(result.cells) else ended,
        "state": result.run.state.value,
        "verdicts": [(str(n) if n else "", style) for n, style in counts],
        "where": where(result),
    }


def _scenario(name: str, pages: Sequence[Page]) -> dict[str, Any]:
    last, oldest_first = pages[0], pages[::-1]
    return {
        "name": name,
        "title": last.title,
        "question": last.question,
        "last": last.result.run.id,
        "link": last.link,
        "answer": [*last.result.answer.sentences, *caveats(last.result)],
        "mood": mood(last.result),
        "count": len(pages),
        "table": _table(oldest_first),
    }


def _table(pages: Sequence[Page]) -> Table:
    """Return the main values of every run."""
    lines = [
        Line(
            values=(
                page.result.run.id,
                axes_text(cell.axes) or cell.id,
                row.workload,
                metric_words(row.metric),
                row.text(row.measurement.median),
                spread(row.measurement),
            ),
            style="doubted" if row.doubted else "",
        )
        for page in pages
        for cell in page.result.cells
        for row in rows_of(cell, page.judged)
        if row.measurement is not None
    ]
    heads = columns(["run", "cell", "workload", "metric"], ["median", "within"])
    return Table(columns=heads, rows=tuple(lines))


# -- the badge: a small SVG for a README

COLOURS: Final[Mapping[str, str]] = {
    "good": "#2e7d32",
    "doubtful": "#9a6700",
    "bad": "#b3261e",
    "empty": "#5f6368",
}
WIDTH: Final = 6.6
"""Average width in pixels of a character of 11 px Verdana; the text is stretched to fit."""
PADDING: Final = 10.0


def badge(label: str, words: str, mood: str) -> str:
    """Return an SVG of two fields; ``mood`` is a key of `COLOURS`."""
    left, right = (len(text) * WIDTH + 2 * PADDING for text in (label, words))
    return render(
        "badge.svg.j2",
        label=label,
        words=words,
        colour=COLOURS[mood],
        left=round(left, 1),
        right=round(right, 1),
        padding=PADDING,
    )


def verdicts_badge(label: str, verdicts: Iterable[Verdict]) -> str:
    """Return the badge of verdicts."""
    found = list(verdicts)
    held, refuted = found.count(Verdict.HOLDS), found.count(Verdict.REFUTED)
    if not found:
        return badge(label, "nothing was run", "empty")
    if refuted:
        return badge(label, f"{held} hold, {refuted} refuted", "bad")
    open_ = len(found) - held
    return badge(
        label,
        f"{held} hold" + (f", {open_} open" if open_ else ""),
        "doubtful" if open_ else "good",
    )
