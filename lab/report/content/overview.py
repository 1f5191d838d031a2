"""What a page of several runs shows at its top."""

from __future__ import annotations

from dataclasses import dataclass

from lab.model.result.regression import Regression
from lab.report.content.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Several runs that belong together: a table of them, sentences, and the words of a badge."""

    title: str
    table: Table
    sentences: tuple[str, ...] = ()
    regressions: tuple[Regression, ...] = ()
    label: str
    """The badge's left field."""
    words: str
    """The badge's right field."""
    mood: str
    """Colour of the badge: ``good``, ``doubtful``, ``bad`` or ``empty``."""
