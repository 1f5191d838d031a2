"""What followed each fault of a cell, in words: for its timeline and the table below it."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.base import Model
from lab.core.units import format_value
from lab.model.result.document import ClaimResult
from lab.model.result.timeline import FaultAt
from lab.model.scenario.claim import Verdict
from lab.model.scenario.fault import Fault
from lab.report.content.figures import MARKS
from lab.report.content.page_data import Page, PageCell
from lab.report.content.tables import Line, Table, columns


class FaultRow(Model):
    """One fault: what it was, and what was found after it."""

    at: FaultAt
    what: str
    found: tuple[str, ...]
    """Acknowledged blocks that are missing; sectors that a check found to differ. Or neither."""
    verdict: Verdict | None
    """The worst of the claims about it; ``None``: there are none."""
    claims: str


def fault_rows(page: Page, cell: PageCell) -> tuple[FaultRow, ...]:
    """Return the faults of a cell with a timeline, in order."""
    if cell.timeline is None:
        return ()
    known = {fault.name: fault for fault in cell.cell.faults}
    return tuple(_row(page, cell, at, known[at.name]) for at in cell.timeline.faults)


def _row(page: Page, cell: PageCell, at: FaultAt, fault: Fault) -> FaultRow:
    values = {m.metric: m.median for m in cell.result.measurements if m.workload == at.name}
    found = []
    if "lost" in values:
        lost = int(values["lost"])
        found.append(f"{lost:,} lost" if lost else "intact")
    if "mismatch_cnt" in values:
        found.append(f"check {values['mismatch_cnt']:,.0f}")
    about = [
        claim
        for claim in page.result.claims
        if any(v.workload == at.name and v.cell == cell.result.id for v in claim.values)
    ]
    verdict = next((v for v in MARKS if v in {c.verdict for c in about}), None)
    return FaultRow(
        at=at,
        what=fault_words(fault),
        found=tuple(found),
        verdict=verdict,
        claims=_verdicts(about, verdict) if verdict else "",
    )


def _verdicts(about: list[ClaimResult], worst: Verdict) -> str:
    """Return how many claims have the worst verdict, such as ``1 of 3 refuted`` or ``3 hold``."""
    count = sum(claim.verdict is worst for claim in about)
    said = "hold" if worst is Verdict.HOLDS and count > 1 else worst.value.replace("_", " ")
    of = (
        ""
        if len(about) == 1
        else f"{count} "
        if count == len(about)
        else f"{count} of {len(about)} "
    )
    return f"{MARKS[worst]} {of}{said}"


_WORDS = {"re_add": "re-add"}


def fault_words(fault: Fault) -> str:
    """Return a fault in words, such as ``replace disk 1 with 5``."""
    given = fault.parameters
    action = given.get("action")
    words = [str(action) if action else _WORDS.get(fault.fault, fault.fault.replace("_", " "))]
    words += [f"disk {given['disk']}"] if given.get("disk") else []
    words += [f"with {given['with']}"] if given.get("with") else []
    return " ".join(words)


def faults_table(page: Page, cell: PageCell) -> Table:
    """Return the faults of a cell with their times, what was found, and the claims' verdicts."""
    return Table(
        columns=columns(["fault", "name", "found", "claims"], ["at", "md idle after"]),
        rows=tuple(_lines(fault_rows(page, cell))),
        caption="Found: acknowledged blocks that are lost, and the check's count of sectors that"
        " differ.",
    )


def _lines(rows: tuple[FaultRow, ...]) -> Iterator[Line]:
    for number, row in enumerate(rows, 1):
        took = format_value(round(max(row.at.idle - row.at.at, 0.0), 2), "s")
        words = (f"{number} {row.what}", row.at.name, ", ".join(row.found), row.claims)
        yield Line(values=(*words, f"{row.at.at:.2f} s", took))
