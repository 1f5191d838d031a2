"""The published claims: every scenario run, and one table of what became of every claim.

  python -m bench.claims run DIRECTORY [NAME...]   one scenario after the other; can be stopped
  python -m bench.claims table DIRECTORY...        docs/claims.md, from the runs that are kept there

``run`` keeps runs below ``DIRECTORY/runs`` and their times in ``DIRECTORY/times.json``; what has a
finished run is passed over, what was stopped is gone on with. ``table`` judges each run anew
(``lab results show RUN --json``); of several runs of a scenario the newest counts. Why a claim came
out as it did is said in ``docs/claims-reasons.yaml``, by claim and verdict: a sentence is printed
only while the verdict is the one that it was written for, and what lacks one is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/claims.md"
REASONS = ROOT / "docs/claims-reasons.yaml"

POSTS = {
    "S000": ("The Impact of the MDADM Bitmap on RAID Performance", ("1", "2", "3", "4", "5")),
    "S001": (
        "The write intent bitmaps implemented by Linux software RAID seem to suck",
        ("1", "2", "3", "4", "5", "m"),
    ),
    "S002": ("mdadm: Using bitmaps to speed up rebuilds", ("1", "2", "3", "4")),
    "S003": ("Return to RAID: The Ars readers “What If?” edition", ("1", "2", "3", "4", "5")),
    "S004": (
        "mdadm (RAID 5) performance under different parity layouts; Impact of mdadm -c, --chunk",
        tuple(str(number) for number in range(1, 12)),
    ),
}
"""The five posts, and the numbers of what they claim; ``m`` is the lab's own addition."""
VERDICTS = ("holds", "refuted", "inconclusive", "not_tested")
ROWS = tuple(f"{post}-{number}" for post, (_, numbers) in POSTS.items() for number in numbers)

Reasons = dict[str, dict[str, str]]
"""Claim to verdict to sentence."""
Document = dict[str, Any]
"""A ``lab.result/1`` document."""
Ask = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


class ClaimsError(Exception):
    """What was asked for cannot be done: a sentence."""


def lab(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout's lab, its progress on our stderr.

    Ctrl-C reaches it too: it is waited for, and says by its status that it was stopped.
    """
    argv = [sys.executable, "-m", "lab", *words]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while True:
            try:
                said += process.stdout.read()
                return subprocess.CompletedProcess(argv, process.wait(), said, None)
            except KeyboardInterrupt:
                continue


def asked(ask: Ask, words: Sequence[str]) -> Any:
    """The JSON that a command prints; ``ClaimsError`` where it prints none."""
    ended = ask(words)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        told = " ".join(words)
        raise ClaimsError(f"`lab {told}` ended with {ended.returncode} and no JSON") from None


# -- running


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run in a directory."""

    path: Path
    scenario: str
    started: str
    finished: bool
    cells: frozenset[str]
    """Their ids, which change with everything that can change a figure."""


def kept(directory: Path) -> list[Kept]:
    """Runs below ``directory/runs``, the newest first; what is no run is passed over."""
    found = []
    for path in sorted((directory / "runs").glob("*/run.json")):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            started = str(run["started"])
            each = Kept(
                path=path.parent,
                scenario=run["scenario"],
                started=started,
                finished=bool(run.get("finished")),
                cells=frozenset(cell["id"] for cell in run["cells"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found.append((started, path.parent.name, each))
    found.sort(key=lambda one: one[:2], reverse=True)
    return [each for _, _, each in found]


def run(
    directory: Path,
    names: Sequence[str],
    jobs: str | None,
    ask: Ask = lab,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Run what has no finished run of its cells yet; seconds of every scenario, earlier ones too.

    A run of cells that the file has no more is left alone; so is a scenario that wants something
    of the host's.
    """
    rows = asked(ask, ["scenario", "list", "--json"])["scenarios"]
    known = [row["name"] for row in rows]
    whole = [row["name"] for row in rows if not row.get("wanting")]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ClaimsError(f"there is no scenario {wrong[0]!r}; there are {', '.join(known)}")
    times = _times(directory)
    for name in names or whole:
        wanted = frozenset(
            cell["id"] for cell in asked(ask, ["scenario", "predict", name, "--json"])["cells"]
        )
        runs = [k for k in kept(directory) if (k.scenario, k.cells) == (name, wanted)]
        if any(each.finished for each in runs):
            continue
        words = ["run", "scenario", name, "--json"]
        words += ["--resume", str(runs[0].path)] if runs else ["--out", str(directory / "runs")]
        words += ["--jobs", jobs] if jobs else []
        print(f"lab {' '.join(words)}", file=sys.stderr, flush=True)
        began = clock()
        status = ask(words).returncode
        times[name] = round((times.get(name, 0.0) if runs else 0.0) + clock() - began, 1)
        _write(directory / "times.json", json.dumps(times, indent=1) + "\n")
        print(f"{name}: exit status {status}, {times[name]:.0f} s", file=sys.stderr, flush=True)
        if status == 130:
            raise ClaimsError("stopped; the same command goes on with what is left")
    return times


def _times(directory: Path) -> dict[str, float]:
    try:
        data = json.loads((directory / "times.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ClaimsError(f"'{directory}/times.json' cannot be read: {error}") from error
    return {str(name): float(seconds) for name, seconds in data.items()}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


# -- the table


def documents(
    directories: Sequence[Path], ask: Ask = lab
) -> tuple[list[Document], dict[str, float]]:
    """The newest finished run of each scenario, judged now, and the seconds that each took."""
    newest: dict[str, Kept] = {}
    times: dict[str, float] = {}
    """Of the runs that count."""
    for directory in directories:
        if not directory.is_dir():
            raise ClaimsError(f"'{directory}' is no directory: `run` makes it")
        taken = _times(directory)
        for each in reversed(kept(directory)):
            known = newest.get(each.scenario)
            if each.finished and (known is None or known.started <= each.started):
                newest[each.scenario] = each
                times.pop(each.scenario, None)
                times |= {each.scenario: taken[each.scenario]} if each.scenario in taken else {}
    if not newest:
        raise ClaimsError("there is no finished run there: `run` makes them")
    found = [
        asked(ask, ["results", "show", str(each.path.resolve()), "--json"])
        for _, each in sorted(newest.items())
    ]
    return [document for document in found if document["claims"]], times


def reasons_in(path: Path) -> Reasons:
    """The sentences of a file; none where it is not there."""
    try:
        data = YAML(typ="safe").load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, YAMLError) as error:
        raise ClaimsError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ClaimsError(f"'{path}': expected claims, each with its verdicts and a sentence each")
    for claim, said in data.items():
        if not isinstance(said, dict) or not set(said) <= set(VERDICTS):
            raise ClaimsError(
                f"'{path}': {claim}: expected a sentence below one of {', '.join(VERDICTS)}"
            )
    return {str(c): {v: _cell(str(s)) for v, s in said.items()} for c, said in data.items()}


def unexplained(claims: Sequence[tuple[str, Document]], reasons: Reasons) -> list[str]:
    """Parts of rows that are refuted or inconclusive, and nobody has said why."""
    return [
        f"{claim['id']} ({_plain(claim['verdict'])})"
        for _, claim in claims
        if row_of(claim["id"])
        and claim["verdict"] in ("refuted", "inconclusive")
        and claim["verdict"] not in reasons.get(claim["id"], {})
    ]


def row_of(claim: str) -> str | None:
    """The row that a claim belongs to, by its id: ``S003-3-read`` is a part of ``S003-3``."""
    return next((row for row in ROWS if claim == row or claim.startswith(f"{row}-")), None)


def table(found: Sequence[Document], times: dict[str, float], reasons: Reasons) -> str:
    """The whole document."""
    claims = [
        (document["run"]["scenario"], claim) for document in found for claim in document["claims"]
    ]
    lines = [
        "# The published claims",
        "",
        "Made by `python -m bench.claims table` from stored runs. *Published* is the post's figure,"
        " *predicted* what theory makes of the same claim, *measured* what came out; figures are"
        " bytes per second, bytes (M: millions) or seconds, or the ratio that the claim names. A"
        " row of several parts has a line for each.",
        "",
        *_summary(claims, reasons),
    ]
    for post, (title, _) in POSTS.items():
        own = [(s, c) for s, c in claims if (row_of(c["id"]) or "").startswith(post)]
        lines += ["", f"## {title}", "", *_lines(own, reasons)]
    rest = [(s, c) for s, c in claims if row_of(c["id"]) is None]
    if rest:
        lines += [
            "",
            "## The lab's own, and the posts' without a number",
            "",
            *_lines(rest, reasons),
        ]
    return "\n".join([*lines, "", *_runs(found, times)]) + "\n"


def unjudged(claims: Sequence[tuple[str, Document]]) -> list[tuple[str, str]]:
    """Rows no part of which holds or is refuted, each with the reason."""
    missing = []
    for row in ROWS:
        own = [claim for _, claim in claims if row_of(claim["id"]) == row]
        if any(claim["verdict"] in ("holds", "refuted") for claim in own):
            continue
        reasons = list(dict.fromkeys(c["reason"] for c in own)) or ["no run has a claim about it"]
        missing.append((row, "; ".join(reasons)))
    return missing


def _summary(claims: Sequence[tuple[str, Document]], reasons: Reasons) -> Iterator[str]:
    counts: dict[str, int] = {}
    for _, claim in claims:
        if row_of(claim["id"]):
            counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
    told = ", ".join(f"{number} {_plain(verdict)}" for verdict, number in sorted(counts.items()))
    missing = unjudged(claims)
    yield f"Of {len(ROWS)} rows, {len(ROWS) - len(missing)} have a verdict. Their parts: {told}."
    if missing:
        yield ""
        yield "Rows without a verdict:"
        yield ""
        yield from (f"- {row}: {_cell(reason)}" for row, reason in missing)
    silent = unexplained(claims, reasons)
    if silent:
        yield ""
        yield f"Refuted or inconclusive, and not yet explained: {', '.join(silent)}."


def _lines(claims: Sequence[tuple[str, Document]], reasons: Reasons) -> Iterator[str]:
    if not claims:
        yield "No run has a claim about it."
        return
    yield "| claim | says | published | predicted | measured | verdict | reason | scenario |"
    yield "|---|---|---|---|---|---|---|---|"
    places = {row: number for number, row in enumerate(ROWS)}
    last = len(places)
    for scenario, claim in sorted(claims, key=lambda c: places.get(row_of(c[1]["id"]) or "", last)):
        figures = (claim.get(key) for key in ("published", "predicted", "measured"))
        reason = claim["reason"]
        if claim["verdict"] in ("holds", "refuted") and claim.get("expected"):
            reason += f"; expected {claim['expected']}"
        said = reasons.get(claim["id"], {}).get(claim["verdict"])
        if said:
            reason += f". {said}"
        cells = (
            claim["id"],
            _cell(claim["says"]),
            *(_figure(value) for value in figures),
            _plain(claim["verdict"]),
            _cell(reason),
            scenario,
        )
        yield f"| {' | '.join(cells)} |"


def _runs(found: Sequence[Document], times: dict[str, float]) -> Iterator[str]:
    yield "## The runs"
    yield ""
    yield "| scenario | run | cells | seconds | lab | accelerator | guest |"
    yield "|---|---|---|---|---|---|---|"
    for document in found:
        facts, cells = document["environment"], document["cells"]
        done = sum(cell["outcome"] == "done" for cell in cells)
        name = document["run"]["scenario"]
        seconds = f"{times[name]:.0f}" if name in times else "–"
        guest = facts.get("guest", {})
        yield (
            f"| {name} | {document['run']['started']} | {done} of {len(cells)} | {seconds} "
            f"| {facts.get('lab', '?')} | {facts.get('accelerator', '?')} "
            f"| Linux {guest.get('kernel', '?')}, {guest.get('mdadm', 'mdadm ?')} |"
        )
    whole = [times[d["run"]["scenario"]] for d in found if d["run"]["scenario"] in times]
    if whole:
        yield ""
        yield f"{len(whole)} scenarios one after another: {sum(whole) / 60:.0f} minutes."


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:.4g} M" if abs(value) >= 1e5 else f"{value:.4g}"


def _plain(verdict: str) -> str:
    return verdict.replace("_", " ")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run what has no finished run yet")
    runs.add_argument("directory", type=Path)
    runs.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all where none is named")
    runs.add_argument("--jobs", help="guests at once, for `lab run`")
    tables = commands.add_parser("table", help="write the table from the runs that are kept")
    tables.add_argument("directories", type=Path, nargs="+", metavar="DIRECTORY")
    tables.add_argument("--out", type=Path, default=OUT)
    tables.add_argument("--reasons", type=Path, default=REASONS)
    given = parser.parse_args(words)
    try:
        if given.command == "run":
            times = run(given.directory.absolute(), given.names, given.jobs)
            print(f"{len(times)} scenarios, {sum(times.values()) / 60:.0f} minutes")
            return 0
        found, times = documents(given.directories)
        _write(given.out, table(found, times, reasons_in(given.reasons)))
        claims = [(d["run"]["scenario"], claim) for d in found for claim in d["claims"]]
        for row, reason in unjudged(claims):
            print(f"{row} has no verdict: {reason}", file=sys.stderr)
        print(given.out)
    except ClaimsError as error:
        print(f"bench.claims: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
