"""The published claims: run every scenario, and write each claim's verdict to docs/claims.md.

  python -m bench.claims run DIRECTORY     every scenario without a finished run there; with
                                           --clock virtual also those that are real by default
  python -m bench.claims table DIRECTORY   the table, from the runs there, judged again

``docs/claims-reasons.yaml`` explains results, by claim and verdict. A sentence is printed only with
the verdict that it was written for; the page lists claims that still need one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from bench.stored import LAB, ROOT, Command, arguments, finished, run_missing
from lab.compile.scenario.document import compile_scenario
from lab.core import yaml
from lab.core.errors import LabError
from lab.model.result.document import ClaimResult, Result
from lab.model.scenario.claim import Verdict
from lab.plugins import catalog
from lab.results.documents import result_of
from lab.run.preparation.suites import wanting

OUT = ROOT / "docs/claims.md"
REASONS = ROOT / "docs/claims-reasons.yaml"

POSTS = {
    "S000": ("The Impact of the MDADM Bitmap on RAID Performance", ("1", "2", "3", "4", "5", "6")),
    "S001": (
        "The write intent bitmaps implemented by Linux software RAID seem to suck",
        ("1", "2", "3", "4", "5", "6", "m"),
    ),
    "S002": ("mdadm: Using bitmaps to speed up rebuilds", ("1", "2", "3", "4", "5")),
    "S003": ("Return to RAID: The Ars readers “What If?” edition", ("1", "2", "3", "4", "5")),
    "S004": (
        "mdadm (RAID 5) performance under different parity layouts; Impact of mdadm -c, --chunk",
        tuple(str(number) for number in range(1, 13)),
    ),
}
"""The five posts, and the numbers of their claims; ``m`` is the lab's own claim."""
ROWS = tuple(f"{post}-{number}" for post, (_, numbers) in POSTS.items() for number in numbers)
TESTED = (Verdict.HOLDS, Verdict.REFUTED)

Reasons = dict[str, dict[str, str]]
"""Sentence by claim and verdict."""
Claims = Sequence[tuple[str, ClaimResult]]
"""Claims with their scenarios."""


def reasons_in(path: Path) -> Reasons:
    """Return the sentences in a file; ``ValueError`` names the file and the claim."""
    data = yaml.read_file(path, first=ROWS[0]).data if path.exists() else {}
    for claim, said in data.items():
        if not isinstance(said, dict) or not set(said) <= {v.value for v in Verdict}:
            raise ValueError(f"'{path}': {claim}: expected a sentence below {', '.join(Verdict)}")
    return {str(c): {v: _cell(str(s)) for v, s in said.items()} for c, said in data.items()}


def row_of(claim: str) -> str:
    """Return a claim's row by its id: ``S003-3-read`` belongs to ``S003-3``; empty: to no row."""
    return next((row for row in ROWS if f"{claim}-".startswith(f"{row}-")), "")


def unexplained(claims: Claims, reasons: Reasons) -> list[str]:
    """Return numbered claims that are refuted or inconclusive and have no explaining sentence."""
    return [
        f"{claim.id} ({_plain(claim.verdict)})"
        for _, claim in claims
        if row_of(claim.id)
        and claim.verdict in (Verdict.REFUTED, Verdict.INCONCLUSIVE)
        and claim.verdict not in reasons.get(claim.id, {})
    ]


def untested(claims: Claims) -> dict[str, str]:
    """Return rows without a part that holds or is refuted, each with the reason."""
    missing = {}
    for row in ROWS:
        own = [claim for _, claim in claims if row_of(claim.id) == row]
        if not any(claim.verdict in TESTED for claim in own):
            reasons = dict.fromkeys(claim.reason for claim in own)
            missing[row] = "; ".join(reasons) or "no run has a claim about it"
    return missing


def page(results: Sequence[Result], reasons: Reasons) -> str:
    """Return the whole document."""
    claims = [(result.run.scenario, claim) for result in results for claim in result.claims]
    counts = Counter(_plain(claim.verdict) for _, claim in claims if row_of(claim.id))
    parts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    missing, silent = untested(claims), unexplained(claims, reasons)
    lines = [
        "# The published claims",
        "",
        "Made by `python -m bench.claims table` from stored runs. *Published* is the post's value,"
        " *predicted* the value from theory, *measured* the lab's value. Values are in bytes per"
        " second, bytes (M: millions) or seconds, or are the ratio that the claim names. A claim of"
        " several parts has one row per part.",
        "",
        f"Of {len(ROWS)} rows, {len(ROWS) - len(missing)} have a verdict. Their parts: {parts}.",
    ]
    if missing:
        lines += ["", "Rows without a verdict:", ""]
        lines += [f"- {row}: {_cell(reason)}" for row, reason in missing.items()]
    if silent:
        lines += ["", f"Refuted or inconclusive, and not yet explained: {', '.join(silent)}."]
    for post, (title, _) in POSTS.items():
        own = [each for each in claims if row_of(each[1].id).startswith(post)]
        lines += ["", f"## {title}", "", *_table(own, reasons)]
    if rest := [each for each in claims if not row_of(each[1].id)]:
        title = "Claims of the lab, and unnumbered claims of the posts"
        lines += ["", f"## {title}", "", *_table(rest, reasons)]
    return "\n".join([*lines, "", *_runs(results)]) + "\n"


def _table(claims: Claims, reasons: Reasons) -> Iterator[str]:
    if not claims:
        yield "No run has a claim about it."
        return
    yield "| claim | says | published | predicted | measured | verdict | reason | scenario |"
    yield "|---|---|---|---|---|---|---|---|"
    places = {row: number for number, row in enumerate(ROWS)}
    for scenario, claim in sorted(claims, key=lambda c: places.get(row_of(c[1].id), len(ROWS))):
        reason = claim.reason
        if claim.verdict in TESTED and claim.expected:
            reason += f"; expected {claim.expected}"
        if said := reasons.get(claim.id, {}).get(claim.verdict):
            reason += f". {said}"
        figures = map(_figure, (claim.published, claim.predicted, claim.measured))
        verdict = _plain(claim.verdict)
        cells = (claim.id, _cell(claim.says), *figures, verdict, _cell(reason), scenario)
        yield f"| {' | '.join(cells)} |"


def _runs(results: Sequence[Result]) -> Iterator[str]:
    yield "## The runs"
    yield ""
    yield "| scenario | run | cells | seconds | lab | accelerator | clock | guest |"
    yield "|---|---|---|---|---|---|---|---|"
    total = 0.0
    for result in results:
        run, facts = result.run, result.environment
        seconds = _at(run.finished or run.started) - _at(run.started)
        done = sum(cell.outcome == "done" for cell in result.cells)
        guest = facts.get("guest", {})
        clocks = ", ".join(sorted({cell.clock for cell in result.cells}))
        total += seconds
        yield (
            f"| {run.scenario} | {run.started} | {done} of {len(result.cells)} | {seconds:.0f}"
            f" | {facts.get('lab', '?')} | {facts.get('accelerator', '?')} | {clocks}"
            f" | Linux {guest.get('kernel', '?')}, {guest.get('mdadm', 'mdadm ?')} |"
        )
    yield ""
    yield f"{len(results)} scenarios one after another: {total / 60:.0f} minutes."


def _at(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:.4g} M" if abs(value) >= 1e5 else f"{value:.4g}"


def _plain(verdict: str) -> str:
    return verdict.replace("_", " ")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(words: Sequence[str] | None = None, lab: Command = LAB) -> int:
    """Run the command line; return the exit status."""
    given = arguments(__doc__).parse_args(words)
    try:
        if given.command == "run":
            paths = catalog.scenarios().values()
            able = [path for path in paths if not wanting(compile_scenario(path))]
            return run_missing(given.directory.absolute(), able, given.jobs, lab, given.clock)
        runs = finished([given.directory]).values()
        results = [result for run in runs if (result := result_of(run)).claims]
        if not results:
            raise ValueError(f"'{given.directory}' has no finished run: `run` makes them")
        text = page(results, reasons_in(REASONS))
    except (LabError, ValueError) as error:
        print(f"bench.claims: {error}", file=sys.stderr)
        return 2
    out = given.out or OUT
    out.write_text(text, encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
