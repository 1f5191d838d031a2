"""Makes the scenario gallery: an index by source, and a page for each scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Source
from lab.plugins import catalog

RUN: Final = re.compile(
    r"^\| (?P<name>[\w-]+) \| \d{4}-\S+ \| [^|]* \| (?P<seconds>\d+) \| [^|]* \| (?P<how>\w+) \|",
    re.MULTILINE,
)
"""A row of the runs in docs/claims.md."""
VERDICTS: Final = "|".join(verdict.value for verdict in Verdict)
CLAIM: Final = re.compile(rf"^\| (?P<id>[\w.-]+) \|.*\| (?P<verdict>{VERDICTS}) \|", re.MULTILINE)
"""A row of the claims in docs/claims.md."""
INTRO: Final = """# Scenarios

Each scenario is one file with one question. They are grouped by the text that they check.
The time is that of one run of all cells on two CPUs{how}, from [the claims](../claims.md).

"""
ACCELERATORS: Final = {"kvm": "with KVM", "tcg": "without KVM"}


def gallery(claims: str) -> dict[str, str]:
    """Return pages by file name, ``index.md`` first; ``claims`` is the text of docs/claims.md."""
    root = catalog.schema_path().parent
    paths = [path for path in catalog.scenarios().values() if path.parent == root]
    compiled = [compile_scenario(path) for path in paths]
    runs = {run["name"]: run for run in RUN.finditer(claims)}
    times = {name: f"{_duration(run)} {_how(run)}" for name, run in runs.items()}
    used = {_how(run) for run in runs.values()}
    common = f" {used.pop()}" if len(used) == 1 else ""
    listed = {name: _duration(run) for name, run in runs.items()} if common else times
    verdicts = {claim["id"]: claim["verdict"].replace("_", " ") for claim in CLAIM.finditer(claims)}
    pages = {"index.md": INTRO.format(how=common) + _index(compiled, listed)}
    for one in compiled:
        pages[f"{one.name}.md"] = _page(one, times.get(one.name, ""), verdicts)
    return pages


def _index(compiled: list[Compiled], times: Mapping[str, str]) -> str:
    groups: dict[str, list[Compiled]] = {}
    for one in compiled:
        groups.setdefault(one.scenario.source.title if one.scenario.source else "", []).append(one)
    text = ""
    for title in sorted(groups, key=lambda title: (-len(groups[title]), title)):
        source = groups[title][0].scenario.source
        text += f"## {_plain(title) or 'No source'}\n\n"
        if source and (words := _details(source)):
            text += f"Published: {words}.\n\n"
        text += "| scenario | question | cells | time |\n|---|---|---|---|\n"
        for one in groups[title]:
            cells, time = len(one.cells), times.get(one.name, "–")
            text += f"| [{one.name}]({one.name}.md) | {_plain(one.scenario.title)} |"
            text += f" {cells} | {time} |\n"
        text += "\n"
    return text


def _page(one: Compiled, time: str, verdicts: Mapping[str, str]) -> str:
    scenario = one.scenario
    facts = [("Source", _about(scenario.source) if scenario.source else "")]
    written = one.document.data
    for axis in scenario.matrix.axes:
        words = ", ".join(f"`{_value(value)}`" for value in written["matrix"][axis])
        facts.append((f"`{axis}`", words))
    facts += [
        ("Cells", str(len(one.cells))),
        ("Time", time),
        ("Claims", ", ".join(f"`{claim.id}`" for claim in scenario.claims)),
    ]
    text = f"# {_plain(scenario.title)}\n\n{_plain(scenario.question)}\n\n"
    text += f"```sh\nlab run scenario {one.name}\n```\n\n"
    text += "".join(f"- **{name}**: {value}\n" for name, value in facts if value)
    if scenario.notes:
        text += f"\n{_plain(scenario.notes)}\n"
    if scenario.claims:
        text += "\n## Claims\n\n| claim | says | published | verdict |\n|---|---|---|---|\n"
        for claim, as_written in zip(scenario.claims, written["claims"], strict=True):
            value = as_written.get("published", "–")
            verdict = verdicts.get(claim.id, "–")
            text += f"| `{claim.id}` | {_plain(claim.says)} | {value} | {verdict} |\n"
        text += "\nVerdicts, with their reasons, are in [the claims](../claims.md).\n"
    file = one.path.read_text(encoding="utf-8").rstrip()
    return f'{text}\n## File\n\n```yaml title="scenarios/{one.path.name}"\n{file}\n```\n'


def _about(source: Source) -> str:
    """Return title with its link, author, date."""
    title = _plain(source.title)
    words = [f"[{title}]({source.url})" if source.url else title, source.author, source.date]
    return ", ".join(word for word in words if word)


def _details(source: Source) -> str:
    """Return details that the title does not have."""
    link = f"[{urlsplit(source.url).netloc}]({source.url})" if source.url else ""
    return ", ".join(word for word in (source.author, source.date, link) if word)


def _duration(run: re.Match[str]) -> str:
    minutes, seconds = divmod(int(run["seconds"]), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _how(run: re.Match[str]) -> str:
    return ACCELERATORS.get(run["how"], run["how"])


def _plain(text: str) -> str:
    """Return the text on one line, with markup characters escaped outside code spans."""
    words = re.split(r"(`[^`]*`)", " ".join(text.split()))
    words[::2] = [re.sub(r"([\[\]<>*_|])", r"\\\1", part) for part in words[::2]]
    return "".join(words)


def _value(value: Any) -> str:
    """Return a value of an axis as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
