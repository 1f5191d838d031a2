"""A badge: a small SVG for a README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lab.model.matrix.record import Ending
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


def matrix_badge(label: str, endings: Iterable[Ending], fails: int, broken: int) -> str:
    """Return the badge of a matrix run; known failures count as neither good nor bad."""
    found = list(endings)
    held = found.count(Ending.PASSED) + found.count(Ending.UNEXPECTED)
    said = [f"{held} hold"]
    said += [f"{fails} failed"] if fails else []
    said += [f"{broken} broken"] if broken else []
    open_ = found.count(Ending.UNDECIDED)
    said += [f"{open_} open"] if open_ else []
    if not found and not broken:
        return badge(label, "nothing was run", "empty")
    mood = "bad" if fails or broken else "doubtful" if open_ else "good"
    return badge(label, ", ".join(said), mood)
