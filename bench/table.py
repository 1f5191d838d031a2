"""Makes docs/benchmarks.md from the units of a benchmark. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

Document = dict[str, Any]
"""The benchmark's file: facts, ideal seconds by cell, units."""
Unit = dict[str, Any]
"""One cell by hand or one command of the lab: arm, round, repeat, cell and results."""

LAYOUTS = (
    *("left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric"),
    *("parity-first", "parity-last"),
)
CELLS = tuple(f"{layout}-{disks}" for layout in LAYOUTS for disks in (3, 5))
"""The cells of ``bench/layouts.yaml``."""
ARMS = {
    "by-hand-sync": "by_hand.sh, a cell each, waiting for mdadm's own initial sync",
    "by-hand-clean": "by_hand.sh, a cell each, with --assume-clean",
    "lab-cold": "lab run scenario bench/layouts.yaml --cold: all cells",
    "lab-warm": "lab run scenario bench/layouts.yaml, from a snapshot: all cells",
    "lab-alone": "the same with --jobs 1: one cell at a time",
    "up-cold": "lab up scenario bench/layouts.yaml --no-run --cold: one guest and its array",
    "up-warm": "the same from a snapshot",
    "help": "lab --help",
    "killed": "kill -9 in the middle: of by_hand.sh, and of lab run",
}
BY_HAND = ("by-hand-sync", "by-hand-clean")
COLUMNS = (*BY_HAND, "lab-cold", "lab-warm", "lab-alone")
HEADER = ("", "by hand, sync", "by hand, clean", "lab, cold", "lab, warm", "lab, alone", "target")
MARKS = {"qemu_at", "ssh_at", "array_at", "end_at"} | {
    f"{name}_bytes_per_second" for name in ("write", "read")
}
"""Keys that the script prints."""
NOISY = 0.05
"""Fraction of CPU use by other processes above which the page mentions it."""

HOW = """\
Each value is the median, in brackets the range and the number of samples. Targets are this
project's own; they compare medians.

- **By hand** is `bench/by_hand.sh`: a fresh guest for each cell, booted from the same image with as
  many CPUs and as much memory, disks throttled by QEMU, one cell after another. *Sync* waits for
  mdadm's initial sync, *clean* creates the array with `--assume-clean`.
- **The lab** is its command line on `bench/layouts.yaml`. *Cold*: `--cold`, every guest boots.
  *Warm*: guests start from snapshots, which earlier runs made. *Alone*: warm with `--jobs 1`.
- **First SSH command.** By hand: from the start of QEMU until `ssh root@guest true` has returned.
  The lab: from the start of its worker process until `lab up --verbose` reported the guest's first
  answer; the worker's own start and making the guest's files are counted.
- **Beyond the ideal** is the time of a cell less the predicted time of its two workloads
  (`lab scenario predict`). The first cell of each guest includes the start of the guest. *Without
  waiting*: cells wait for a free CPU until their arrays are built; this time is left out.
- **All cells.** The lab: the command from start to end, if every cell finished. By hand: the sum of
  the cells' times.
- **Memory** is resident memory, sampled twice a second, shared pages counted in each process. Per
  guest: that of the lab's processes at their peak, by the QEMUs of that moment.
- **CPU time** of the lab is that of the command and all children that it waited for.
- **Left** are processes, named sockets, listening ports and files that were not there before the
  command: in the guests' directories, among temporary files, in the cache outside the snapshots.
- The units of all arms are interleaved in each round."""


def page(document: Document) -> str:
    """Return the whole document."""
    rows = [*_rows(document)]
    return "\n".join(
        [
            "# The lab compared with QEMU by hand",
            "",
            "Made by `make bench` from `docs/benchmarks.json`; `python -m bench.run --table` makes"
            " it again. Do not edit.",
            "",
            *_machine(document),
            "",
            *(f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * len(HEADER), *rows)),
            "",
            HOW,
            *_remarks(document),
            "",
        ]
    )


# -- the table


def _rows(document: Document) -> Iterator[tuple[str, ...]]:
    lab = COLUMNS[2:]
    ssh = {a: _each(document, UPS.get(a, a), answer_seconds) for a in COLUMNS}
    hand = ssh["by-hand-sync"] + ssh["by-hand-clean"]
    yield _row("first SSH command", ssh, _times("by hand", hand, ssh["lab-warm"], 20))
    since = {a: _each(document, UPS.get(a, a), _command_seconds) for a in COLUMNS}
    yield _row("the same, from the start of the command", since)
    arrays = {a: _each(document, UPS.get(a, a), _array_seconds) for a in COLUMNS}
    yield _row("guest and its array, until the command returned", arrays)

    beyond = {a: beyond_ideal(document, a) for a in COLUMNS}
    warm, alone = beyond["lab-warm"], beyond["lab-alone"]
    yield _row(
        "a cell beyond its ideal",
        beyond,
        _at_most("alone, median", median, alone, 3, "s"),
        _at_most("alone, worst", max, alone, 3, "s"),
        _at_most("warm, median", median, warm, 3, "s"),
        _at_most("warm, worst", max, warm, 3, "s"),
    )
    active = {a: beyond_ideal(document, a, waiting=False) for a in lab}
    yield _row(
        "the same, without waiting",
        active,
        _at_most("warm, median", median, active["lab-warm"], 3, "s"),
    )
    spans = {a: makespans(document, a) for a in COLUMNS}
    yield _row(
        f"all {len(CELLS)} cells",
        spans,
        _at_most("warm, median", median, spans["lab-warm"], 60, "s"),
        _times("with sync", spans["by-hand-sync"], spans["lab-warm"], 15),
        _times("with clean", spans["by-hand-clean"], spans["lab-warm"], 8),
    )
    off = {a: off_alone(document, a) for a in COLUMNS}
    worst = {a: max(found, key=lambda one: abs(one[1])) for a, found in off.items() if found}
    shares = [100 * abs(worst["lab-warm"][1])] if "lab-warm" in worst else []
    yield (
        "largest difference of a cell's throughput from the same cell alone",
        *(f"{100 * worst[a][1]:+.1f} % ({worst[a][0]})" if a in worst else "–" for a in COLUMNS),
        _at_most("warm", max, shares, 3, "%"),
    )
    for name, key in (("the lab's CPU time", "cpu_seconds"), ("QEMU's CPU time", QEMU)):
        used = {a: [float(unit[key]) for unit in good(document, a)] for a in lab}
        yield _row(f"{name}, all cells", used)
    for name, key in (
        ("the orchestrator", "orchestrator"),
        ("the worker", "worker"),
        ("the lab's processes together", "lab"),
    ):
        peaks = {a: [u["peak_bytes"].get(key, 0) / 1e6 for u in good(document, a)] for a in lab}
        yield _row(f"largest memory, {name}", peaks, unit="MB")
    memory = {a: _each(document, a, memory_per_guest) for a in ("lab-cold", "lab-warm")}
    both = [value for values in memory.values() for value in values]
    target = _at_most("median", median, both, 120, "MB")
    yield _row("the lab's memory per running guest", memory, target, unit="MB")
    guests = {a: [float(unit["guests"]) for unit in good(document, a)] for a in lab}
    yield _row("guests that were started", guests, unit="")
    helps = [seconds for unit in good(document, "help") for seconds in unit["each_seconds"]]
    fast = _at_most("median", median, helps, 0.25, "s")
    yield _row("`lab --help`", {"lab-cold": helps}, fast)

    units = [u for u in document["units"] if u["arm"] not in BY_HAND]
    by_arm = {a: [u["leftovers"] for u in document["units"] if u["arm"] == a] for a in COLUMNS}
    found = sum(len(names) for u in units for names in u["leftovers"].values())
    clean = f"nothing: {found or 'nothing'} in {len(units)} units, {_met(not found)}"
    yield (
        "left when the command has returned",
        *map(_left, by_arm.values()),
        clean if units else "nothing: not measured",
    )
    after = [u["after_kill"] for u in good(document, "killed")]
    told = {who: _left([each[who] for each in after]) for who in ("by hand", "lab", GC)}
    yield "left after kill -9 in the middle", "–", told["by hand"], told["lab"], "–", "–", ""
    yield "left then after `lab gc`", "–", "–", told[GC], "–", "–", ""


GC = "lab, after lab gc"
QEMU = "qemu_cpu_seconds"
UPS = {"lab-cold": "up-cold", "lab-warm": "up-warm"}
"""Arms that start one guest, by the columns that show them."""


def _row(
    name: str, samples: dict[str, list[float]], *targets: str, unit: str = "s"
) -> tuple[str, ...]:
    values = (told(samples.get(column, []), unit) for column in COLUMNS)
    return name, *values, "; ".join(targets)


def told(sample: Sequence[float], unit: str) -> str:
    """Return ``9.80 s (9.61 s to 10.1 s; 6)``: median, range and number of samples."""
    if not sample:
        return "–"
    show = _shown(unit)
    if len(sample) == 1:
        return f"{show(sample[0])} (once)"
    return f"{show(median(sample))} ({show(min(sample))} to {show(max(sample))}; {len(sample)})"


def _shown(unit: str) -> Callable[[float], str]:
    def show(value: float) -> str:
        digits = {"s": 2 if value < 10 else 1, "%": 1}.get(unit, 0)
        return f"{value:.{digits}f} {unit}".rstrip()

    return show


def _at_most(
    what: str,
    of: Callable[[Sequence[float]], float],
    sample: Sequence[float],
    limit: float,
    unit: str,
) -> str:
    target = f"{what} at most {limit:g} {unit}"
    if not sample:
        return f"{target}: not measured"
    return f"{target}: {_shown(unit)(of(sample))}, {_met(of(sample) <= limit)}"


def _times(what: str, slow: Sequence[float], fast: Sequence[float], least: float) -> str:
    target = f"{least:g} times faster than {what}"
    if not slow or not fast:
        return f"{target}: not measured"
    ratio = median(slow) / median(fast)
    return f"{target}: {ratio:.1f} times, {_met(ratio >= least)}"


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _left(found: Sequence[dict[str, list[str]]]) -> str:
    if not found:
        return "–"
    counts: Counter[str] = Counter()
    for each in found:
        counts.update({kind: len(names) for kind, names in each.items()})
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"


# -- samples


def good(document: Document, arm: str) -> list[Unit]:
    """Return the units of an arm that did not fail."""
    return [u for u in document["units"] if u["arm"] == arm and not u.get("error")]


def _each(document: Document, arm: str, value: Callable[[Unit], float]) -> list[float]:
    return (
        [] if arm == "lab-alone" and value in ONE_GUEST else list(map(value, good(document, arm)))
    )


def answer_seconds(unit: Unit) -> float:
    """Return the seconds to the first SSH command."""
    if "marks" in unit:
        return float(unit["marks"]["ssh_at"] - unit["marks"]["qemu_at"])
    return float(unit["worker_to_answer"])


def _command_seconds(unit: Unit) -> float:
    return float(unit["marks"]["ssh_at"] if "marks" in unit else unit["command_to_answer"])


def _array_seconds(unit: Unit) -> float:
    return float(unit["marks"]["array_at"] if "marks" in unit else unit["seconds"])


ONE_GUEST = (answer_seconds, _command_seconds, _array_seconds)


def memory_per_guest(unit: Unit) -> float:
    """Return megabytes of the lab's processes for each running guest, at their peak."""
    return float(unit["peak_bytes"]["lab"] / max(unit["peak_bytes"]["guests"], 1) / 1e6)


def cells_of(document: Document, arm: str) -> list[dict[str, Any]]:
    """Return the cells of the lab's runs that finished."""
    return [c for unit in good(document, arm) for c in unit["cells"] if c["outcome"] == "done"]


def beyond_ideal(document: Document, arm: str, *, waiting: bool = True) -> list[float]:
    """Return seconds of each cell beyond the predicted time of its workloads."""
    if arm in BY_HAND:
        ideal = document["ideal"]
        return [u["marks"]["end_at"] - ideal[u["cell"]] for u in good(document, arm)]
    return [
        c["seconds"]["total"] - c["ideal_seconds"] - (0.0 if waiting else c["seconds"]["waiting"])
        for c in cells_of(document, arm)
    ]


def makespans(document: Document, arm: str) -> list[float]:
    """Return the seconds of all cells, for each round.

    By hand: from the mean, if some cells were not run. The lab: runs in which all cells finished.
    """
    if arm not in BY_HAND:
        return [
            unit["seconds"]
            for unit in good(document, arm)
            if {c["cell"] for c in unit["cells"] if c["outcome"] == "done"} == set(CELLS)
        ]
    rounds: dict[int, list[float]] = {}
    for unit in good(document, arm):
        rounds.setdefault(unit["round"], []).append(unit["seconds"])
    return [sum(each) / len(each) * len(CELLS) for each in rounds.values()]


def off_alone(document: Document, arm: str) -> list[tuple[str, float]]:
    """Return each throughput's relative difference from the median of the same cell alone."""
    alone: dict[str, list[float]] = {}
    for name, value in _throughputs(document, "lab-alone"):
        alone.setdefault(name, []).append(value)
    found = _throughputs(document, arm)
    return [(name, value / median(alone[name]) - 1) for name, value in found if name in alone]


def _throughputs(document: Document, arm: str) -> list[tuple[str, float]]:
    if arm in BY_HAND:
        return [
            (f"{unit['cell']}, {name}", unit["marks"][f"{name}_bytes_per_second"])
            for unit in good(document, arm)
            for name in ("write", "read")
        ]
    return [
        (f"{cell['cell']}, {workload}", value)
        for cell in cells_of(document, arm)
        for workload, value in cell["bytes_per_second"].items()
    ]


# -- the rest


def _machine(document: Document) -> Iterator[str]:
    facts, units = document["facts"], document["units"]
    dates = sorted(u["started"] for u in units) or ["not yet"]
    commits = ", ".join(sorted({u.get("lab", "unknown") for u in units}))
    yield f"- Measured {dates[0]} to {dates[-1]}; {len(units)} units."
    yield (
        f"- Machine: {facts.get('cores')} cores ({facts.get('cpu')}),"
        f" {facts.get('memory_bytes', 0) / 2**30:.1f} GiB, Linux {facts.get('kernel')}."
    )
    yield (
        f"- Accelerator: {facts.get('accelerator')}. QEMU {facts.get('qemu')},"
        f" libvirt {facts.get('libvirt')}, Python {facts.get('python')}, {facts.get('ssh')}."
    )
    yield f"- Image: {facts.get('image')}. Lab: {commits}."


def _remarks(document: Document) -> Iterator[str]:
    """Yield what a reader must know before using the values."""
    for prepared in document["prepared"]:
        runs = ", ".join(f"{seconds:.0f} s" for seconds in prepared["run_seconds"]) or "none"
        yield (
            f"- Before: the first `lab up --no-run`, which boots and saves a guest (and builds a"
            f" missing image), {prepared['first_seconds']:.0f} s; then runs of two cells until no"
            f" snapshot was saved any more: {runs}."
        )
    for arm in (*BY_HAND, "lab-alone"):
        units = good(document, arm)
        cells = {u["cell"] for u in units} if arm in BY_HAND else _names(cells_of(document, arm))
        if 0 < len(cells) < len(CELLS):
            yield (
                f"- {arm}: only {', '.join(sorted(cells))} were run; for all {len(CELLS)} their"
                " mean counts."
            )
    for unit in document["units"]:
        if unit.get("error"):
            yield f"- {unit['arm']}, round {unit['round']}, was not measured: {unit['error']}"
        every = unit.get("cells", ())
        if bad := sorted(_names(c for c in every if c["outcome"] != "done")):
            yield f"- {unit['arm']}, round {unit['round']}: not finished: {', '.join(bad)}."
        if flagged := sorted(_names(c for c in every if c["failed_checks"])):
            yield f"- {unit['arm']}, round {unit['round']}: contended: {', '.join(flagged)}."
    shares = [max(u["busy_elsewhere"] or 0.0, u["stolen"]) for u in document["units"]]
    if noisy := [share for share in shares if share > NOISY]:
        yield (
            f"- During {len(noisy)} of {len(shares)} units other work used more than"
            f" {100 * NOISY:.0f} % of the machine, at most {100 * max(noisy):.0f} %."
        )


def _names(cells: Any) -> set[str]:
    return {cell["cell"] for cell in cells}
