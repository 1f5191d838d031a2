"""The claims of five posts: run every scenario, and write each claim's verdict to docs/claims.md.

  python -m bench.claims run DIRECTORY     every scenario that has no finished run of its cells and
                                           claims there; with --clock virtual also those that are
                                           real by default. In virtual time with `trials: auto`;
                                           --seed N: from this seed on; --only: these scenarios;
                                           --set guest.engine=native: by the other engine
  python -m bench.claims table DIRECTORY   docs/claims.json and docs/claims.md from the runs there,
                                           judged again; other scenarios keep the runs that they
                                           have in docs/claims.json
  python -m bench.claims differ RUNS OTHER verdicts that differ between the two, which have other
                                           seeds, where both decided by the same bound.
                                           Each is a directory of runs, or what `table` wrote
                                           (claims.json). Exit status 1: more than one differs
  python -m bench.claims page              docs/claims.md from docs/claims.json

Questions of the posts and differences from their hardware are in ``docs/posts.yaml``. What a claim
says, and its mechanism, are those of the scenario's file. A claim whose expectation was changed
after its run counts as not run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from bench.stored import LAB, ROOT, Command, arguments, finished, run_missing
from lab.analysis.answer import answer
from lab.analysis.judge import in_words
from lab.compile.cell.metrics import metrics_of
from lab.compile.guest.seeds import seeds_of
from lab.compile.scenario.compiler import compile_scenario
from lab.core import yaml
from lab.core.base import Model
from lab.core.errors import LabError
from lab.core.units import format_times, format_value
from lab.model.result.document import Basis, CellClock, ClaimResult, ComparedValue, Part
from lab.model.scenario.claim import Bound, Claim, Expectation, Value, Verdict
from lab.plugins import catalog
from lab.report.content.drives import NOT_MEASURED, unmeasured
from lab.results.documents import result_of
from lab.run.preparation.suites import wanting
from lab.store.runs import RunStore

OUT = ROOT / "docs/claims.md"
DATA = ROOT / "docs/claims.json"
POSTS = ROOT / "docs/posts.yaml"
NO_DIFFERENCE: Final = re.compile(r"no difference: less than [\d.]+ %")
"""Words in the reason of a direction that is refuted (``judge.py``)."""
OF_POST: Final = re.compile(r"S00\d(?=-)")
"""The post at the beginning of a claim's id."""
SURPRISES: Final = 3
VALUES: Final = 6
"""Most values in a table's cell."""
AT_ONCE: Final = 2
"""Trials that run at the same time on a host with two processors, which is what times are for."""
NOT_RUN: Final = "not run"
DECIDED: Final = (Verdict.HOLDS, Verdict.REFUTED)


class Post(Model):
    """One post, in ``docs/posts.yaml``."""

    title: str
    question: str
    answer: Mapping[str, Mapping[str, str]]
    """``if_holds`` and ``if_refuted`` of one or two claims, by id."""
    differs: str
    """How its hardware differs, and what that may change."""
    unchecked: Mapping[str, str] = {}
    """What a check would take, by the sentence that no scenario checks."""


class Row(Model):
    """One claim of a run."""

    claim: ClaimResult
    clocks: tuple[CellClock, ...] = ()
    seeds: tuple[int, ...] = ()
    """Of all cells that it compares."""
    expect: Expectation
    """What was judged."""


class Run(Model):
    """A run with its claims, as in ``docs/claims.json``."""

    scenario: str
    started: str
    seconds: float
    """Host seconds of all trials, ``AT_ONCE`` at a time."""
    cells: int
    done: int
    lab: str = "?"
    accelerator: str = "?"
    clocks: tuple[CellClock, ...]
    kernel: str = "?"
    mdadm: str = "?"
    rows: tuple[Row, ...]


class Data(Model):
    """``docs/claims.json``: the newest finished run of each scenario."""

    runs: tuple[Run, ...]


class Told(Model):
    """A claim of a scenario's file, with its row if it was run."""

    scenario: str
    claim: Claim
    row: Row | None = None
    changed: bool = False
    """Its expectation is not the one that was judged."""
    units: Mapping[tuple[str, str], str] = {}
    """Units by workload and metric."""
    measured_drives: bool = True
    """Whether its scenario has no modelled drive, or measured ones only."""

    def unit(self, value: Value | ComparedValue) -> str:
        """The unit of one of its values."""
        return self.units.get((value.workload, value.metric), "")

    def with_units(self, result: ClaimResult) -> ClaimResult:
        """Return its result with the units of its values, which earlier versions did not store."""
        values = (v.model_copy(update={"unit": self.unit(v)}) for v in result.values)
        return result.model_copy(update={"values": tuple(values)})

    @property
    def verdict(self) -> str:
        """Its verdict in words."""
        return NOT_RUN if self.row is None else self.row.claim.verdict.value.replace("_", " ")

    @property
    def post(self) -> str:
        """The post that says it; empty: none does."""
        found = OF_POST.match(self.claim.id)
        return found[0] if found and self.claim.quote else ""

    @property
    def open(self) -> bool:
        """Whether it is neither held nor refuted."""
        return self.row is None or self.row.claim.verdict not in DECIDED


def posts_in(path: Path) -> dict[str, Post]:
    """Return the posts in a file; ``ValueError`` names the file and the key."""
    data = yaml.read_file(path, first="S000").data
    try:
        return {str(name): Post.model_validate(value) for name, value in data.items()}
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise ValueError(f"'{path}': {at}: {first['msg']}") from None


def run_of(store: RunStore) -> Run:
    """Return a stored run, judged again, without the tests of suites, which are claims too."""
    result, stored = result_of(store), store.load_run()
    cells_ = {cell.id: cell for cell in result.cells}
    judged = {claim.id: claim for claim in stored.claims}
    seeds = {
        first.id: [seed for one in (first, *more) for seed in seeds_of(one.cell)]
        for first, *more in stored.points
    }

    def row(claim: ClaimResult) -> Row:
        compared = [cells_[name] for name in dict.fromkeys(v.cell for v in claim.values)]
        used: set[int] = set()
        for cell in compared:
            trials = max((len(m.values) for m in cell.measurements), default=0)
            used |= set(seeds[cell.id][:trials]) if cell.clock is not CellClock.REAL else set()
        clocks = tuple(sorted({cell.clock for cell in compared}))
        expect = judged[claim.id].expect
        return Row(claim=claim, clocks=clocks, seeds=tuple(sorted(used)), expect=expect)

    facts, guest = result.environment, result.environment.get("guest", {})
    return Run(
        scenario=stored.scenario,
        started=stored.started,
        seconds=sum(cell.seconds.total for cell in result.cells) / AT_ONCE,
        cells=len(result.cells),
        done=sum(cell.outcome == "done" for cell in result.cells),
        lab=facts.get("lab", "?"),
        accelerator=facts.get("accelerator", "?"),
        clocks=tuple(sorted({cell.clock for cell in result.cells})),
        kernel=guest.get("kernel", "?"),
        mdadm=guest.get("mdadm", "mdadm ?"),
        rows=tuple(row(found) for found in result.claims if found.id in judged),
    )


def _runs_in(directory: Path) -> Data:
    """Return the newest finished run of each scenario; ``ValueError``: there is none."""
    runs = [run_of(run) for run in finished([directory]).values()]
    data = Data(runs=tuple(run for run in runs if run.rows))
    if not data.runs:
        raise ValueError(f"'{directory}' has no finished run: `run` makes them")
    return data


def _read(path: Path) -> Data:
    if not path.is_file():
        return Data(runs=())
    return Data.model_validate(json.loads(path.read_text(encoding="utf-8")))


def merged(old: Data, new: Data) -> Data:
    """Return the new runs, and old ones of scenarios without a new one."""
    runs = {run.scenario: run for run in (*old.runs, *new.runs)}
    return Data(runs=tuple(run for _, run in sorted(runs.items())))


def differing(one: Data, other: Data) -> tuple[int, list[str]]:
    """Return the number of claims that both decided by one bound, and a line for each that differs.

    A claim whose bound has changed since says something else, and is left out.
    """
    said = [{row.claim.id: row.claim for run in d.runs for row in run.rows} for d in (one, other)]
    both = [
        (claim, said[1][n])
        for n, claim in said[0].items()
        if n in said[1]
        and claim.expected == said[1][n].expected
        and claim.verdict in DECIDED
        and said[1][n].verdict in DECIDED
    ]
    lines = [f"{a.id}: {a.verdict}, {b.verdict}" for a, b in both if a.verdict is not b.verdict]
    return len(both), lines


def told(data: Data) -> list[Told]:
    """Return every claim of the shipped scenarios, with its row."""
    rows = {(run.scenario, row.claim.id): row for run in data.runs for row in run.rows}
    found = []
    for name, path in sorted(catalog.scenarios().items()):
        compiled = compile_scenario(path)
        units = {key: metric.unit for key, metric in metrics_of(compiled.base).items()}
        backed = not unmeasured(compiled.cells)
        for claim in compiled.scenario.claims:
            row = rows.get((name, claim.id))
            changed = row is not None and row.expect != claim.expect
            kept = None if changed else row
            told_ = Told(scenario=name, claim=claim, row=kept, changed=changed, units=units)
            found.append(told_.model_copy(update={"measured_drives": backed}))
    return found


def page(data: Data, every: Sequence[Told], posts: Mapping[str, Post]) -> str:
    """Return the whole document."""
    lines = [
        "# The claims of five posts, and their verdicts",
        "",
        "Made by `python -m bench.claims` from stored runs. A claim holds if the whole interval is"
        " inside its bound, is refuted if the whole interval is outside, and is inconclusive"
        " otherwise, or if so few trials give no interval"
        " ([verdicts](concepts/measurement.md#verdicts)). A direction (at least 1, at most 1, a"
        " falling order) is judged with a margin, which stands behind its bound; a smaller"
        " difference refutes it as “no difference”. *interval* is that of the value in the bound: a"
        " quotient for a ratio, an order and a series. *exact*: a count, or no seed changes it."
        " *counted*: a count, of which one trial is enough. *theory* is the lab's prediction."
        f" *{NOT_MEASURED}*: the scenario's modelled drives are those of data sheets, or some of"
        " them are; [model against hardware](hardware.md) says how far off measured ones are.",
        "",
        *_summary(every, posts),
    ]
    for name, post in posts.items():
        own = [one for one in every if one.post == name]
        lines += ["", f"## {post.title}", "", f"**Question.** {_flat(post.question)}", ""]
        lines += [f"**Answer.** {' '.join(_answered(post, every))}", "", *_table(own), ""]
        lines += [f"**What differs from the post's hardware.** {_flat(post.differs)}"]
        if post.unchecked:
            lines += ["", "**Not checked**, and what a check would take:", ""]
            lines += [f"- “{_flat(s)}” {_flat(takes)}" for s, takes in post.unchecked.items()]
    sourced = [one for one in every if not one.post and not one.claim.ours]
    lines += ["", "## Claims of documentation and data sheets", "", *_table(sourced)]
    lines += ["", "## Our own claims", ""]
    lines += ["No post says these: controls, questions and predictions of the lab.", ""]
    lines += [*_table([one for one in every if one.claim.ours]), "", *_runs(data)]
    return "\n".join(lines) + "\n"


def _summary(every: Sequence[Told], posts: Mapping[str, Post]) -> Iterator[str]:
    own = [one for one in every if one.post]
    counts = _counts(own)
    yield (
        f"{len(own)} claims of the posts are checked. Hold: {counts[0]}. Refuted: {counts[1]}."
        f" Open: {counts[2] + counts[3]}, of which {counts[2]} are inconclusive and {counts[3]}"
        f" were not run or not tested. {sum(len(p.unchecked) for p in posts.values())} more are not"
        " checked; what a check would take stands with their post."
    )
    yield ""
    yield "| post | claims | hold | refuted | inconclusive | not run |"
    yield "|---|---|---|---|---|---|"
    for name, post in posts.items():
        mine = [one for one in own if one.post == name]
        numbers = " | ".join(map(str, (len(mine), *_counts(mine))))
        yield f"| {_cell(post.title)} | {numbers} |"
    if surprising := surprises(own):
        yield ""
        yield (
            "The most surprising: the refuted claims whose interval is farthest from its bound, as"
            " a factor; one of each scenario."
        )
        yield ""
        for one, factor in surprising:
            why = f" {_flat(one.claim.why)}" if one.claim.why else ""
            yield (
                f"- **{one.claim.id}**, “{_flat(one.claim.says).rstrip('.')}”, by a factor of"
                f" {format_times(factor)}: {_measured(one)}.{why}"
            )


def _counts(claims: Sequence[Told]) -> tuple[int, int, int, int]:
    """Return how many hold, are refuted, are inconclusive, and were not run or not tested."""
    words = [one.verdict for one in claims]
    decided = [words.count(v.value) for v in (*DECIDED, Verdict.INCONCLUSIVE)]
    return decided[0], decided[1], decided[2], len(words) - sum(decided)


def surprises(claims: Sequence[Told]) -> list[tuple[Told, float]]:
    """Return refuted claims with the factor by which the interval misses the bound, largest first.

    One of each scenario. A value or bound of 0 has no factor.
    """
    best: dict[str, tuple[Told, float]] = {}
    for one in claims:
        if one.row is None or one.row.claim.verdict is not Verdict.REFUTED:
            continue
        part = deciding(one.row.claim)
        factor = exp(_beyond(part)) if part and part.holds is False else 1.0
        if factor > best.get(one.scenario, (one, 1.0))[1]:
            best[one.scenario] = one, factor
    return sorted(best.values(), key=lambda each: -each[1])[:SURPRISES]


def _answered(post: Post, every: Sequence[Told]) -> tuple[str, ...]:
    """Return the post's two sentences, from the verdicts of its claims."""
    claims, found = [], []
    for one in every:
        sentences = {"if_holds": None, "if_refuted": None, **post.answer.get(one.claim.id, {})}
        claims.append(Claim.model_validate({**dict(one.claim), **sentences}))
        missing = ClaimResult(
            id=one.claim.id,
            says=one.claim.says,
            verdict=Verdict.NOT_TESTED,
            reason="it was not run",
        )
        found.append(one.with_units(one.row.claim) if one.row else missing)
    order = list(post.answer)
    claims.sort(key=lambda claim: order.index(claim.id) if claim.id in order else len(order))
    return answer(post.question, claims, found).sentences


HEADS: Final = (
    *("claim", "says", "published", "measured", "interval", "holds if", "verdict"),
    *("trials", "seeds", "clock", "theory", "mechanism", "scenario"),
)


def _table(claims: Sequence[Told]) -> Iterator[str]:
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    for one in sorted(claims, key=lambda each: _place(each.claim.id)):
        yield f"| {' | '.join(_cell(text) for text in cells(one))} |"


def _place(name: str) -> list[tuple[int, str]]:
    """Return a claim's place: numbers in ids by size."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def cells(one: Told) -> tuple[str, ...]:
    """Return a claim's row as text."""
    claim, row = one.claim, one.row
    quote = f"“{_flat(claim.quote)}”" if claim.quote else ""
    source = ": ".join(text for text in (claim.source, quote) if text)
    says = claim.says + (f" ({source})" if source else "")
    published = "" if claim.published is None else _of_claim(one, claim.published)
    why = _flat(claim.why or "")
    if row is None:
        changed = "Its bound was changed after its last run. " if one.changed else ""
        first = (claim.id, says, published, "", "", in_words(claim, one.units), one.verdict)
        return (*first, "", "", "", "", changed + why, _where(one))
    result = row.claim
    part = deciding(result)
    theory = "" if result.predicted is None else _of_claim(one, result.predicted)
    if result.verdict not in DECIDED:
        why = f"Open: {result.reason}. {why}".strip()
    elif same := NO_DIFFERENCE.search(result.reason or ""):
        why = f"{same[0].capitalize()}. {why}".strip()
    return (
        *(claim.id, says, published, _measured(one)),
        interval_text(one, part) if part else "",
        *((result.expected or "") + margin_text(claim, part), one.verdict),
        trials_text(part) if part else "",
        _ranges(row.seeds),
        ", ".join("virtual" if clock is CellClock.SEALED else clock.value for clock in row.clocks),
        *(theory, why, _where(one)),
    )


def _where(one: Told) -> str:
    return one.scenario if one.measured_drives else f"{one.scenario} ({NOT_MEASURED})"


def margin_text(claim: Claim, part: Part | None) -> str:
    """Return the margin with which a direction was judged; empty: it was judged without one."""
    expect = claim.expect
    if part is None or not (
        (expect.kind == "order" and not expect.margin)
        or (expect.kind == "ratio" and 1 in (expect.at_least, expect.at_most))
    ):
        return ""
    margin = min((max(v, 1 / v) - 1 for v in (part.at_least, part.at_most) if v), default=0.0)
    return f", by {100 * margin:.2g} %" if margin else ""


def deciding(result: ClaimResult) -> Part | None:
    """Return the comparison that the verdict stands on: the farthest outside its bound, else an
    undecided one, else the nearest to its bound; ``None``: nothing was compared."""
    order = {False: 0, None: 1, True: 2}
    return min(result.parts, key=lambda p: (order[p.holds], -_beyond(p)), default=None)


def _beyond(part: Part) -> float:
    """Return how far an interval is beyond its bound, as a logarithm; < 0: it is inside."""
    if part.low is None or part.high is None:
        return 0.0
    outside = part.holds is False
    pairs = (
        (part.at_least, part.high if outside else part.low),
        (part.low if outside else part.high, part.at_most),
    )
    logs = [log(a / b) for a, b in pairs if a is not None and b is not None and a > 0 and b > 0]
    return max(logs, default=0.0)


def interval_text(one: Told, part: Part) -> str:
    """Return a comparison's interval with its unit."""
    if part.low is None or part.high is None:
        return "unknown"
    if part.low == part.high and part.basis in (Basis.COUNTED, Basis.FIXED):
        return "exact"
    if isinstance(one.claim.expect, Bound):
        unit = one.unit(one.claim.expect.value)
        low, high = (format_value(v, unit) for v in (part.low, part.high))
        return low if low == high else f"{low} – {high}"
    low, high = format_times(part.low), format_times(part.high)
    return f"{low} times" if low == high else f"{low} – {high} times"


def trials_text(part: Part) -> str:
    """Return the trials of a comparison, and why one is enough."""
    words = {Basis.COUNTED: ", counted", Basis.FIXED: ", no seed changes it"}
    return f"{part.trials}{words.get(part.basis, '')}"


def _measured(one: Told) -> str:
    """Return the measured values with their units."""
    if one.row is None or one.row.claim.measured is None:
        return ""
    values = [format_value(v.measured, one.unit(v)) for v in one.row.claim.values]
    said = ", ".join(values[:VALUES]) + (", …" if len(values) > VALUES else "")
    if one.claim.expect.kind == "ratio":
        return f"{format_times(one.row.claim.measured)} times ({said})"
    return said


def _of_claim(one: Told, value: float) -> str:
    if one.claim.expect.kind == "ratio":
        return f"{format_times(value)} times"
    return format_value(value, one.unit(one.claim.values[0]))


def _ranges(seeds: Sequence[int]) -> str:
    """Return numbers in short form: ``1–4, 9``."""
    groups: list[list[int]] = []
    for seed in seeds:
        if groups and groups[-1][-1] == seed - 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return ", ".join(f"{g[0]}–{g[-1]}" if len(g) > 1 else str(g[0]) for g in groups)


def _runs(data: Data) -> Iterator[str]:
    yield "## The runs"
    yield ""
    yield "| scenario | run | cells | seconds | lab | accelerator | clock | guest |"
    yield "|---|---|---|---|---|---|---|---|"
    for run in data.runs:
        yield (
            f"| {run.scenario} | {run.started} | {run.done} of {run.cells} | {run.seconds:.0f}"
            f" | {run.lab} | {run.accelerator} | {', '.join(run.clocks)}"
            f" | Linux {run.kernel}, {run.mdadm} |"
        )
    yield ""
    minutes = sum(run.seconds for run in data.runs) / 60
    yield (
        f"{len(data.runs)} scenarios, two trials at a time: {minutes:.0f} minutes. Trials that were"
        " at hand from an earlier run are counted. The boot before each snapshot, and the wait for"
        " the last trial of a round, are not."
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|") or "–"


def main(words: Sequence[str] | None = None, lab: Command = LAB) -> int:
    """Run the command line; return the exit status."""
    given = arguments(__doc__, "page", "differ").parse_args(words)
    try:
        if given.command == "run":
            paths = [catalog.scenario_path(n) for n in given.only or catalog.scenarios()]
            able = [path for path in paths if not wanting(compile_scenario(path))]
            directory, how = given.directory.absolute(), (given.jobs, lab, given.clock)
            more = {"seed": given.seed, "settings": given.set}
            return run_missing(directory, able, *how, claims=True, **more)
        out = given.out or OUT
        data_at = DATA if given.out is None else out.with_suffix(".json")
        if given.command == "differ":
            if given.other is None:
                raise ValueError("differ needs two directories or claims.json files")
            both = [
                _read(p) if p.is_file() else _runs_in(p) for p in (given.directory, given.other)
            ]
            common, found = differing(*both)
            print(*found, f"{len(found)} of {common} decided verdicts differ", sep="\n")
            return int(len(found) > 1)
        if given.command == "table":
            data = merged(_read(data_at), _runs_in(given.directory))
            text = data.model_dump_json(indent=1, exclude_defaults=True)
            data_at.write_text(text + "\n", encoding="utf-8")
        else:
            data = _read(data_at)
        out.write_text(page(data, told(data), posts_in(POSTS)), encoding="utf-8")
    except (LabError, ValueError, OSError) as error:
        print(f"bench.claims: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
