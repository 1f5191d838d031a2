"""From stored units to samples: which figures of the file each question is about; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.document import Document
from bench.plan import BY_HAND, CELLS
from bench.stats import Key, Summary, deviations, makespan, summary


def first_answers(document: Document, *arms: str) -> Summary | None:
    """Seconds to the first SSH command."""
    return summary(
        [
            u["marks"]["ssh_at"] - u["marks"]["qemu_at"] if "marks" in u else u["worker_to_answer"]
            for u in document.good(*arms)
        ]
    )


def beyond_ideal(document: Document, arm: str, *, turns: bool = True) -> list[float]:
    """Seconds of each cell beyond what its workloads take in theory.

    ``turns=False``: without those for which it waited until others had computed.
    """
    if arm in BY_HAND:
        units = document.good(arm)
        return [u["marks"]["end_at"] - document.ideal[u["cell"]] for u in units]
    return [
        c["seconds"]["total"] - c["ideal_seconds"] - (0 if turns else c["seconds"]["waiting"])
        for c in lab_cells(document, arm)
    ]


def makespans(document: Document, arm: str) -> tuple[list[float], bool]:
    """Seconds for all cells, round by round, and whether every cell was run in each."""
    if arm not in BY_HAND:
        return [u["seconds"] for u in document.good(arm) if _whole(u)], True
    rounds: dict[int, dict[str, float]] = {}
    for unit in document.good(arm):
        rounds.setdefault(unit["round"], {})[unit["cell"]] = unit["seconds"]
    spans = [makespan(seconds, len(CELLS)) for seconds in rounds.values()]
    return [s for s, _ in spans], all(whole for _, whole in spans)


def _whole(unit: dict[str, Any]) -> bool:
    done = {c["cell"] for c in unit["cells"] if c["outcome"] == "done"}
    return done == set(CELLS)


def alone(document: Document) -> dict[Key, list[float]]:
    """Figures of cells that ran alone in the lab."""
    found: dict[Key, list[float]] = {}
    for cell in lab_cells(document, "lab-alone"):
        for workload, value in cell["bytes_per_second"].items():
            found.setdefault((cell["cell"], workload), []).append(value)
    return found


def off(document: Document, arm: str) -> dict[Key, float]:
    """The greatest deviation of each figure from the same cell alone, as a share with its sign."""
    worst: dict[Key, float] = {}
    single = alone(document)
    for unit in document.good(arm):
        for key, value in deviations(figures(unit), single).items():
            if abs(value) >= abs(worst.get(key, 0.0)):
                worst[key] = value
    return worst


def figures(unit: dict[str, Any]) -> dict[Key, float]:
    """Bytes per second of each workload of each cell of a unit."""
    if "marks" in unit:
        marks = unit["marks"]
        names = ("write", "read")
        return {(unit["cell"], name): marks[f"{name}_bytes_per_second"] for name in names}
    return {
        (cell["cell"], workload): value
        for cell in unit["cells"]
        if cell["outcome"] == "done"
        for workload, value in cell["bytes_per_second"].items()
    }


def lab_cells(document: Document, arm: str) -> Iterator[dict[str, Any]]:
    """The cells of the lab's runs that came to their end."""
    for unit in document.good(arm):
        yield from (c for c in unit["cells"] if c["outcome"] == "done")


def memory_per_guest(document: Document) -> list[float]:
    """Bytes of the lab's own processes for each guest that ran, at their greatest."""
    units = document.good("lab-warm", "lab-cold")
    peaks = [u["peak_bytes"] for u in units]
    return [p["lab"] / max(p["guests"], 1) for p in peaks if "lab" in p]
