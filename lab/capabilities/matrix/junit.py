"""A matrix run as JUnit XML: a suite per job, a case per claim."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lab.capabilities.matrix.model import ClaimEnding, Ending, JobResult, JobState, MatrixResult
from lab.core.errors import InputError
from lab.results.junit import THE_RUN, Case, Suite, junit_xml, suite_of
from lab.store.runs import RunStore


def matrix_junit(result: MatrixResult) -> str:
    """Return the document of a matrix run so far."""
    return junit_xml(*(_job_suite(job, result.run.started) for job in result.jobs))


def _job_suite(found: JobResult, started: str) -> Suite:
    """Return a suite with the job's claims, and the results that the matrix expects of them."""
    job = found.job
    whole = Suite(name=job.id, started=started, host="", seconds=job.took or 0.0, cases=())
    if job.run is not None:
        try:
            trouble = job.reason if job.state is JobState.BROKEN else ""
            run = suite_of(RunStore(Path(job.run)), trouble)
        except InputError as error:
            return dataclasses.replace(whole, cases=(_broken_job(str(error)),))
        claims = {claim.id: claim for claim in found.claims}
        cases = tuple(_expected(c, claims.get(c.name.partition(":")[0])) for c in run.cases)
        # Leave out the commands of every cell: the runs have them, and they would hide the other
        # text.
        return dataclasses.replace(run, name=job.id, cases=cases, out="")
    if job.state is JobState.LEFT_OUT:
        case = Case(name=THE_RUN, ending="skipped", kind=job.state.value, reason=job.reason)
        return dataclasses.replace(whole, cases=(case,))
    return dataclasses.replace(whole, cases=(_broken_job(job.reason or "it was not run yet"),))


def _broken_job(reason: str) -> Case:
    return Case(name=THE_RUN, ending="error", kind=JobState.BROKEN.value, reason=reason)


def _expected(case: Case, claim: ClaimEnding | None) -> Case:
    """Return the case of a claim with the matrix's verdict on it."""
    if claim is None or not claim.remark:
        return case
    reason = "\n".join(filter(None, (claim.remark, case.reason)))
    if claim.ending is Ending.EXPECTED:
        return dataclasses.replace(case, ending="skipped", kind=claim.ending.value, reason=reason)
    if claim.fails:
        return dataclasses.replace(case, ending="failure", kind=claim.ending.value, reason=reason)
    return dataclasses.replace(case, out=f"{claim.remark}\n{case.out}")
