"""A badge: a small SVG for a README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lab.model.scenario.claim import Verdict
from lab.report.html.page import render

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
