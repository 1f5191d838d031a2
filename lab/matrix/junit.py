"""A night as JUnit: a suite for each part, and what the matrix expected of its claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lab.core.errors import InputError
from lab.model.matrix.record import ClaimEnding, Ending, NightResult, PartResult, State
from lab.report.export.junit import Case, Suite, junit_xml
from lab.results.junit import THE_RUN, suite_of
from lab.store.runs import RunStore


def night_junit(result: NightResult) -> str:
    """The whole document; it can be made while the night goes on."""
    return junit_xml(*(_suite(part, result.night.started) for part in result.parts))


def _suite(found: PartResult, started: str) -> Suite:
    part = found.part
    whole = Suite(name=part.id, started=started, host="", seconds=part.took or 0.0, cases=())
    if part.run is not None:
        try:
            trouble = part.reason if part.state is State.BROKEN else ""
            run = suite_of(RunStore(Path(part.run)), trouble)
        except InputError as error:
            return dataclasses.replace(whole, cases=(_broken(str(error)),))
        claims = {claim.id: claim for claim in found.claims}
        cases = tuple(_case(case, claims.get(case.name.partition(":")[0])) for case in run.cases)
        # Every command of every cell is in the runs; here it would be all that there is to see.
        return dataclasses.replace(run, name=part.id, cases=cases, out="")
    if part.state is State.LEFT_OUT:
        case = Case(name=THE_RUN, ending="skipped", kind=part.state.value, reason=part.reason)
        return dataclasses.replace(whole, cases=(case,))
    return dataclasses.replace(whole, cases=(_broken(part.reason or "it was not run yet"),))


def _broken(reason: str) -> Case:
    return Case(name=THE_RUN, ending="error", kind=State.BROKEN.value, reason=reason)


def _case(case: Case, claim: ClaimEnding | None) -> Case:
    """The case of a claim, as the matrix takes it."""
    if claim is None or not claim.remark:
        return case
    reason = "\n".join(filter(None, (claim.remark, case.reason)))
    if claim.ending is Ending.EXPECTED:
        return dataclasses.replace(case, ending="skipped", kind=claim.ending.value, reason=reason)
    if claim.fails:
        return dataclasses.replace(case, ending="failure", kind=claim.ending.value, reason=reason)
    return dataclasses.replace(case, out=f"{claim.remark}\n{case.out}")
