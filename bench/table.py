"""From the benchmark's file to `docs/benchmarks.md`; pure, so that it can be made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from bench.document import Document
from bench.plan import ARMS, BY_HAND, CELLS
from bench.samples import (
    beyond_ideal,
    first_answers,
    lab_cells,
    makespans,
    memory_per_guest,
    off,
)
from bench.stats import Key, Summary, ratio, summary

NOISY = 0.05
"""Share of the machine that others may use before the table says so."""

Row = tuple[str, ...]


def page(document: Document) -> str:
    """The whole document."""
    parts = [
        "# The lab beside QEMU by hand",
        "",
        "Made by `make bench` from `docs/benchmarks.json`; `python -m bench.run --table-only` makes"
        " it again. Do not edit.",
        "",
        *_machine(document),
        "",
        "## Targets",
        "",
        "The targets are this project's own. Where a row compares, it compares medians.",
        "",
        *_rows(("", "target", "measured", ""), _targets(document)),
        "",
        "## What was measured",
        "",
        "Median, in brackets least, greatest and how often.",
        "",
        *_rows(("", *COLUMNS), _measured(document)),
        "",
        "## What is left",
        "",
        *_left(document),
        "",
        "## How",
        "",
        *HOW,
        "",
        *_remarks(document),
    ]
    return "\n".join(parts).rstrip() + "\n"


HOW = (
    "- **By hand** is `bench/by_hand.sh`: a fresh guest for each cell, booted from the same image"
    " with as many CPUs and as much memory, disks throttled by QEMU, one cell after another. Twice:"
    " with the initial sync that mdadm does and waiting for it, and with `--assume-clean`.",
    "- **The lab** is its own command line, on `bench/layouts.yaml`. *Cold*: `--cold`, every guest"
    " boots. *Warm*: guests are restored from saved ones; before the first measurement the lab was"
    " run on one 3-disk and one 5-disk cell until it saved no more."
    " *Alone*: warm with `--jobs 1`, so that no cell has another beside it.",
    "- **First SSH command.** By hand: from the start of QEMU until `ssh root@guest true` has"
    " returned; making the seed and the disks is not counted. The lab: from the start of its worker"
    " process (as the kernel has noted it) until `lab up --verbose` told that the guest had"
    " answered its first command; the worker's own start and making the guest's files are counted."
    " A second figure counts from the start of `lab up` itself.",
    "- **Beyond the ideal** is the whole time of a cell less the time that its two workloads take"
    " in theory (`lab scenario predict`). The lab's cell: `cells[].seconds.total`, with the guest's"
    " start in the first cell of each guest. *Turns*: cells take turns at the processors until"
    " their arrays stand, and wait for each other; one that is alone waits for nobody. By hand: the"
    " script's whole run, with its boot and its initial sync.",
    "- **Makespan.** The lab: from the start of the command to its end. By hand: the sum of the"
    " cells' times. A run of the lab in which a cell did not finish does not count.",
    "- **Memory** is resident memory, sampled twice a second, pages that processes share"
    " counted in each; per guest: that of the lab's processes at their greatest, divided by the"
    " QEMUs of that moment. **Processor time** of the lab is what the kernel counted for"
    " the command and all that it waited for, its workers too; QEMU's own is beside it.",
    "- **Left** is what there is after a command has returned and was not there before: processes,"
    " named sockets, listening ports, and files in the guests' directories, among temporary files"
    " or in the cache beside saved guests and facts about the host.",
    "- The units of all arms are interleaved within each round.",
)
COLUMNS = ("by hand, initial sync", "by hand, assume-clean", "lab, cold", "lab, warm")


# -- rows


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _times(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f} times"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def _told(sample: Summary | None, show: Callable[[float], str] = _seconds) -> str:
    return "–" if sample is None else sample.text(show)


def judged(value: float | None, *, at_least: float | None = None, at_most: float = 0.0) -> str:
    """``met`` or ``missed``; nothing where nothing was measured."""
    if value is None:
        return ""
    return "met" if (value >= at_least if at_least is not None else value <= at_most) else "missed"


def _targets(document: Document) -> Iterator[Row]:
    hand = first_answers(document, *BY_HAND)
    times = ratio(hand, first_answers(document, "up-warm"))
    yield (
        "first SSH command, warm, sooner than by hand",
        "20 times",
        _times(times),
        judged(times, at_least=20),
    )
    alone = summary(beyond_ideal(document, "lab-alone"))
    beside = summary(beyond_ideal(document, "lab-warm"))
    active = summary(beyond_ideal(document, "lab-warm", turns=False))
    for name, value in (
        ("a warm cell beyond its ideal, alone, median", alone.median if alone else None),
        ("the same, worst: the start of its guest is in it", alone.high if alone else None),
        ("the same beside others, less its turns, median", active.median if active else None),
        ("the same beside others, median", beside.median if beside else None),
        ("the same beside others, worst", beside.high if beside else None),
    ):
        told = "not measured" if value is None else _seconds(value)
        yield name, "at most 3 s", told, judged(value, at_most=3.0)
    warm = summary(makespans(document, "lab-warm")[0])
    yield (
        f"makespan of the {len(CELLS)} cells, warm",
        "at most 60 s",
        _told(warm),
        judged(warm.median if warm else None, at_most=60.0),
    )
    for arm, name, wanted in (
        ("by-hand-sync", "with mdadm's initial sync", 15),
        ("by-hand-clean", "with assume-clean", 8),
    ):
        times = ratio(summary(makespans(document, arm)[0]), warm)
        yield (
            f"sooner than by hand {name}",
            f"{wanted} times",
            _times(times),
            judged(times, at_least=wanted),
        )
    worst = max((abs(v) for v in off(document, "lab-warm").values()), default=None)
    yield (
        "figure of a cell beside others, from the same alone, worst",
        "at most 3 %",
        "not measured" if worst is None else f"{100 * worst:.1f} %",
        judged(worst, at_most=0.03),
    )
    yield _simple("`lab --help`", "at most 0.25 s", _help(document), 0.25, _seconds)
    yield _simple(
        "memory of the lab per running guest, beside QEMU",
        "at most 120 MB",
        memory_per_guest(document),
        120e6,
        _megabytes,
    )
    units = [u for u in document.units if u["arm"] not in BY_HAND]
    found = sum(len(names) for u in units for names in u["leftovers"].values())
    yield (
        "left by the lab when a command has returned",
        "nothing",
        f"{found or 'nothing'} in {len(units)} units" if units else "not measured",
        judged(float(found)) if units else "",
    )


def _simple(
    name: str, target: str, values: Sequence[float], limit: float, show: Callable[[float], str]
) -> Row:
    sample = summary(values)
    if sample is None:
        return name, target, "not measured", ""
    return name, target, sample.text(show), judged(sample.median, at_most=limit)


def _help(document: Document) -> list[float]:
    return [t for u in document.good("help") for t in u["each_seconds"]]


def _measured(document: Document) -> Iterator[Row]:
    lab = ("lab-cold", "lab-warm")
    arms = (*BY_HAND, *lab)
    ups = ("up-cold", "up-warm")
    yield (
        "first SSH command",
        *(_told(first_answers(document, arm)) for arm in (*BY_HAND, *ups)),
    )
    yield (
        "the same, from the start of the command",
        *(_told(summary([u["marks"]["ssh_at"] for u in document.good(a)])) for a in BY_HAND),
        *(_told(summary([u["command_to_answer"] for u in document.good(a)])) for a in ups),
    )
    yield (
        "guest and its array, until the command returned",
        *(_told(summary([u["marks"]["array_at"] for u in document.good(a)])) for a in BY_HAND),
        *(_told(summary([u["seconds"] for u in document.good(a)])) for a in ups),
    )
    yield "a cell beyond its ideal", *(_told(summary(beyond_ideal(document, a))) for a in arms)
    spans = [makespans(document, a) for a in arms]
    yield (
        f"makespan of the {len(CELLS)} cells",
        *(_told(summary(s)) + ("" if whole else " (from a sample)") for s, whole in spans),
    )
    yield (
        "figures, from the same cell alone in the lab, worst",
        *(_worst(off(document, a)) for a in arms),
    )
    for name, key in (("the lab's processor time", "cpu_seconds"), ("QEMU's", "qemu_cpu_seconds")):
        told = [_told(summary([u[key] for u in document.good(a)])) for a in lab]
        yield f"{name}, all cells", "–", "–", *told
    for name in ("orchestrator", "worker", "lab"):
        values = [
            [u["peak_bytes"][name] for u in document.good(a) if name in u["peak_bytes"]]
            for a in lab
        ]
        label = "the lab's processes together" if name == "lab" else f"the {name}"
        yield (
            f"greatest memory, {label}",
            "–",
            "–",
            *(_told(summary(v), _megabytes) for v in values),
        )
    guests = [_told(summary([u["guests"] for u in document.good(a)]), str) for a in lab]
    yield "guests that were started", "–", "–", *guests


def _worst(found: dict[Key, float]) -> str:
    if not found:
        return "–"
    (cell, workload), value = max(found.items(), key=lambda item: abs(item[1]))
    return f"{_percent(value)} ({cell}, {workload})"


def _rows(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


# -- the rest


def _machine(document: Document) -> Iterator[str]:
    facts = document.facts
    dates = sorted(u["started"] for u in document.units)
    when = "not yet" if not dates else f"{dates[0]} to {dates[-1]}"
    memory = facts.get("memory_bytes", 0) / 2**30
    commits = sorted({u.get("lab", "unknown") for u in document.units})
    yield from (
        f"- Measured {when}; {len(document.units)} units.",
        f"- Machine: {facts.get('cores')} cores ({facts.get('cpu')}), {memory:.1f} GiB,"
        f" Linux {facts.get('kernel')}.",
        f"- Accelerator: {facts.get('accelerator')}. QEMU {facts.get('qemu')},"
        f" libvirt {facts.get('libvirt')}, Python {facts.get('python')}, {facts.get('ssh')}.",
        f"- Image: {facts.get('image')}. Lab: {', '.join(commits)}.",
    )


def _left(document: Document) -> Iterator[str]:
    for arm in ARMS:
        units = [u for u in document.units if u["arm"] == arm]
        if not units:
            continue
        if arm == "killed":
            for who in ("by hand", "lab", "lab, after lab gc"):
                counts = [u["after_kill"][who] for u in units if not u.get("error")]
                yield f"- kill -9 in the middle, {who}: {_counted(counts)}"
        else:
            yield f"- {arm} ({ARMS[arm]}): {_counted([u['leftovers'] for u in units])}"


def _counted(found: Sequence[dict[str, list[str]]]) -> str:
    sums: dict[str, int] = {}
    for one in found:
        for kind, names in one.items():
            sums[kind] = sums.get(kind, 0) + len(names)
    told = ", ".join(f"{count} {kind}" for kind, count in sums.items())
    return f"{told or 'nothing'}, in {len(found)} units."


def _remarks(document: Document) -> Iterator[str]:
    """What a reader must know before believing the figures."""
    for prepared in document.prepared:
        runs = ", ".join(f"{seconds:.0f} s" for seconds in prepared["run_seconds"])
        more = (
            f"; then runs of two cells, until no guest was saved any more: {runs}" if runs else ""
        )
        yield (
            f"- Before: the lab's first `up --no-run`, which boots a guest and saves it (and builds"
            " the image, if it was not there),"
            f" {prepared['first_seconds']:.0f} s{more}."
        )
    for arm in BY_HAND:
        cells = {u["cell"] for u in document.good(arm)}
        if cells and len(cells) < len(CELLS):
            yield (
                f"- Of the arm {arm} only {', '.join(sorted(cells))} were run: its makespan is"
                f" their mean times {len(CELLS)}."
            )
    single = {c["cell"] for c in lab_cells(document, "lab-alone")}
    if single and len(single) < len(CELLS):
        yield (
            f"- Alone ran only {', '.join(sorted(single))}: deviations are known of these alone."
        )
    for unit in document.units:
        if unit.get("error"):
            yield f"- {unit['arm']}, round {unit['round']}, was not measured: {unit['error']}"
    for arm in ("lab-cold", "lab-warm", "lab-alone"):
        units = document.good(arm)
        every = [c for u in units for c in u["cells"]]
        bad = [c["cell"] for c in every if c["outcome"] != "done"]
        flagged = [c["cell"] for c in every if c["failed_checks"]]
        if bad:
            yield f"- {arm}: {len(bad)} of {len(every)} cells did not finish: {', '.join(bad)}."
        if flagged:
            yield (
                f"- {arm}: the lab itself marked {len(flagged)} of {len(every)} cells as measured"
                f" on a busy machine: {', '.join(flagged)}."
            )
    taken = [max(u["busy_elsewhere"] or 0.0, u["stolen"]) for u in document.units]
    noisy = [share for share in taken if share > NOISY]
    if noisy:
        yield (
            f"- During {len(noisy)} of {len(document.units)} units others used more than"
            f" {100 * NOISY:.0f} % of the machine, at most {100 * max(noisy):.0f} %."
        )
