"""Known failures of a matrix: refuted claims that are expected, and those that fail the run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from lab.analysis.regressions import systems
from lab.capabilities.matrix.logic.entries import Expected
from lab.capabilities.matrix.model import ClaimEnding, Ending, JobRecord
from lab.core.versions import in_range
from lab.model.result.document import ClaimResult, Result
from lab.model.scenario.claim import Verdict


def endings(
    job: JobRecord, result: Result, expected: Sequence[Expected], today: date
) -> tuple[ClaimEnding, ...]:
    """Return each claim of a job's run, and whether it fails the matrix run.

    An inconclusive or untested claim never fails it.
    """
    return tuple(
        _ending(claim, entries_for(job, result, claim.id, expected), today)
        for claim in result.claims
    )


def entries_for(
    job: JobRecord, result: Result, claim: str, expected: Sequence[Expected]
) -> list[Expected]:
    """Return the matrix's known failures that match this claim."""
    kernel, mdadm = systems(result)
    return [
        entry
        for entry in expected
        if claim in entry.claims
        and entry.scenario in (None, job.scenario)
        and entry.image in (None, job.image)
        and (entry.kernel is None or in_range(kernel, entry.kernel))
        and (entry.mdadm is None or in_range(mdadm, entry.mdadm))
    ]


def _ending(claim: ClaimResult, entries: Sequence[Expected], today: date) -> ClaimEnding:
    valid = [entry for entry in entries if today <= entry.until]
    ending, fails, remark = Ending.UNDECIDED, False, ""
    if claim.verdict is Verdict.REFUTED:
        ending, fails = Ending.FAILED, True
        if valid:
            ending, fails, remark = Ending.EXPECTED, False, valid[0].reason
        elif entries:
            last = max(entries, key=lambda entry: entry.until)
            remark = f"the known failure expired on {last.until}: {last.reason}"
    elif claim.verdict is Verdict.HOLDS:
        ending = Ending.PASSED
        if valid:
            ending = Ending.UNEXPECTED
            fails = any(entry.strict for entry in valid)
            remark = f"it holds, but is a known failure: {valid[0].reason}"
    return ClaimEnding(
        id=claim.id,
        says=claim.says,
        verdict=claim.verdict,
        reason=claim.reason,
        ending=ending,
        fails=fails,
        remark=remark,
    )


def expired(expected: Sequence[Expected], today: date) -> tuple[str, ...]:
    """Return a message for each expired known failure."""
    return tuple(
        f"the known failure of {', '.join(entry.claims)} expired on {entry.until}: renew or remove"
        f" it ({entry.reason})"
        for entry in expected
        if today > entry.until
    )
