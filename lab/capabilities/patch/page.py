"""The table of a patch series: in Markdown, and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from lab.capabilities.patch.model import Effect, PatchResult, PatchRow
from lab.core.printable import printable
from lab.report.content.plain_table import PlainTable

_FIRST: Final = (Effect.BROKEN, Effect.WORSE, Effect.BETTER, Effect.INCONCLUSIVE, Effect.SAME)
"""Order of the rows."""
SHOWN: Final = 40
"""Most rows with the verdict *same* in Markdown; a table of thousands helps nobody."""


def ordered(rows: Sequence[PatchRow]) -> list[PatchRow]:
    """Return the rows, those that need attention first."""
    return sorted(rows, key=lambda row: _FIRST.index(row.verdict))


def sentence(result: PatchResult) -> str:
    """Return the outcome in a sentence."""
    counts = [f"{result.count(effect)} {effect.value}" for effect in _FIRST if result.count(effect)]
    if not counts:
        return "No check was run."
    verdict = "Something is worse with the series" if result.bad else "Nothing is worse"
    return f"{verdict}: {', '.join(counts)}."


def as_markdown(result: PatchResult) -> str:
    """Return the table in GitHub's Markdown, readable in a mail too."""
    of = f"{result.against} of {_cell(result.image)}"
    versions = [f"Linux {result.kernel}" if result.kernel else ""]
    versions += [f"mdadm {result.mdadm}" if result.mdadm else ""]
    number = len(result.patches)
    lines = [
        f"### lab patch: {sentence(result)}",
        "",
        f"{number} patch{'es' if number != 1 else ''} for {of}"
        f" ({', '.join(filter(None, versions))}); margin {result.margin:.0%}",
        "",
        *(f"{number}. {_cell(patch.title)}" for number, patch in enumerate(result.patches, 1)),
        "",
        *(f"> {_cell(remark)}" for remark in result.remarks),
    ]
    rows = ordered(result.rows)
    same = [row for row in rows if row.verdict is Effect.SAME]
    shown = [row for row in rows if row.verdict is not Effect.SAME] + same[:SHOWN]
    if shown:
        lines += ["| scenario | check | base | patched | difference | verdict |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [f"| {' | '.join(_cells(row))} |" for row in shown]
        lines.append("")
    if len(same) > SHOWN:
        lines += [f"{len(same) - SHOWN} further checks are the same.", ""]
    for row in (row for row in shown if row.reason):
        lines.append(f"- {_cell(row.check)}: {_cell(row.reason)}")
    lines += [f"- not run: {_cell(text)}" for text in result.untested]
    commands = list(dict.fromkeys(row.command for row in shown if row.command))
    if commands:
        note = f"# with the series; for the base set guest.image={result.base.image}"
        lines += ["", "Repeat on this host:", "", "```sh", note]
        lines += [*map(printable, commands), "```"]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: PatchRow) -> tuple[str, ...]:
    verdict = row.verdict.value if row.verdict is Effect.SAME else f"**{row.verdict.value}**"
    texts = (row.scenario, row.check, row.base, row.patched, row.difference)
    return (*map(_cell, texts), verdict)


def _cell(text: str) -> str:
    """Return text of others that is no markup: subjects and reasons come from the series."""
    plain = " ".join(printable(text).split())
    for mark in ("\\", "`", "*", "_", "|", "<", "[", "]", "#", "@", "!"):
        plain = plain.replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return plain.replace("\\@", "&#64;")


def patch_page(result: PatchResult) -> RenderableType:
    """Return the table for a terminal: what changed, and how many checks are the same."""
    table = PlainTable("verdict", "check", "values", prose=True, heads=False)
    changed = [row for row in ordered(result.rows) if row.verdict is not Effect.SAME]
    for row in changed:
        values = ", ".join(filter(None, (f"{row.base} → {row.patched}", row.difference)))
        texts = (row.verdict.value, f"{row.scenario}: {row.check}", values)
        table.add_row(*map(printable, texts))
    parts: list[RenderableType] = [
        Text(f"patch {number}: {printable(patch.title)}", style="bold")
        for number, patch in enumerate(result.patches, 1)
    ]
    if changed:
        parts.append(Padding(table, (1, 0)))
    parts += [Text(f"{printable(r.check)}: {printable(r.reason)}") for r in changed if r.reason]
    parts += [Text(f"not run: {printable(text)}", style="yellow") for text in result.untested]
    parts += [Text(printable(remark)) for remark in result.remarks]
    commands = dict.fromkeys(row.command for row in changed if row.command)
    if commands:
        parts.append(Text("Repeat, with the series:"))
        parts += [Text(f"  {command}", no_wrap=True, overflow="ignore") for command in commands]
    return Group(*parts, Text(sentence(result)))
