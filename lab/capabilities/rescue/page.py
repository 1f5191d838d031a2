"""The answer as one HTML page, without contents of files. Pure."""

from __future__ import annotations

from importlib import resources

from lab.capabilities.rescue.logic.diagnosis import named
from lab.capabilities.rescue.logic.repair import names
from lab.capabilities.rescue.model import Report
from lab.core.units import format_size


def page(answer: Report) -> str:
    """Return the page; all text is escaped."""
    from jinja2 import Environment, StrictUndefined

    name = names(answer.diagnosis)
    rows = []
    for ranked in answer.ranking:
        outcome = ranked.outcome
        written = {
            part: sum(extent.length for extent in extents)
            for part, extents in outcome.written.items()
        }
        rows.append(
            {
                "title": named(outcome.attempt.title, name),
                "commands": "\n".join(named(line, name) for line in outcome.attempt.commands),
                "reasons": named("; ".join(ranked.reasons), name),
                "files": outcome.files,
                "written": ", ".join(
                    f"{name(part)}: {format_size(total)}" for part, total in written.items()
                ),
            }
        )
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    text = (resources.files(__package__) / "page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        happened=list(zip(answer.diagnosis.findings, answer.happened, strict=True)),
        ranking=rows,
        hopeless=answer.hopeless,
        risks=answer.at_risk,
        steps=answer.steps,
    )
