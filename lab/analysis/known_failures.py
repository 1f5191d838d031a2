"""What verdicts mean for a matrix: which refuted claims were expected, and which are not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from lab.core.versions import in_range
from lab.model.matrix.file import Expected
from lab.model.matrix.record import ClaimEnding, Ending, JobRecord
from lab.model.result.document import ClaimResult, Result
from lab.model.scenario.claim import Verdict


def systems(result: Result) -> tuple[str | None, str | None]:
    """Versions of Linux, as the guest said it, and of mdadm's package; ``None``: nobody knows."""
    guest, image = (result.environment.get(name) or {} for name in ("guest", "image"))
    words = str(guest.get("mdadm") or "").removeprefix("mdadm - v").split()
    return guest.get("kernel") or image.get("kernel"), image.get("mdadm") or next(iter(words), None)


def endings(
    job: JobRecord, result: Result, expected: Sequence[Expected], today: date
) -> tuple[ClaimEnding, ...]:
    """Each claim of a job's run, and whether it fails the matrix.

    An inconclusive claim, or one that was not tested, neither fails nor excuses anything.
    """
    return tuple(
        _ending(claim, _entries(job, result, claim.id, expected), today) for claim in result.claims
    )


def _entries(
    job: JobRecord, result: Result, claim: str, expected: Sequence[Expected]
) -> list[Expected]:
    """Entries of the matrix that speak of this claim here."""
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
            remark = f"this was expected until {last.until}, which is over: {last.reason}"
    elif claim.verdict is Verdict.HOLDS:
        ending = Ending.PASSED
        if valid:
            ending = Ending.UNEXPECTED
            fails = any(entry.strict for entry in valid)
            remark = f"it holds, though expected to fail: {valid[0].reason}"
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
    """A sentence for each entry that excuses nothing any more."""
    return tuple(
        f"the expectation that {', '.join(entry.claims)} fail is over since {entry.until}, and"
        f" excuses nothing: renew or remove it ({entry.reason})"
        for entry in expected
        if today > entry.until
    )
