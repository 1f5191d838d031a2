"""A patch series as JUnit XML: a suite per scenario, a case per check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lab.capabilities.matrix.model import JobState
from lab.capabilities.patch.model import Effect, PatchResult, PatchRow
from lab.results.junit import THE_RUN, Case, CaseEnding, Suite, junit_xml

_EFFECTS: Final[Mapping[Effect, CaseEnding]] = {
    Effect.SAME: "passed",
    Effect.BETTER: "passed",
    Effect.WORSE: "failure",
    Effect.BROKEN: "failure",
    Effect.INCONCLUSIVE: "skipped",
}


def patch_junit(result: PatchResult) -> str:
    """Return the document of a patch series: a suite per scenario, a case per check."""
    properties = {"series": result.series, "base": result.base.image}
    properties |= {"patched": result.patched.image}
    suites = [
        Suite(
            name=name,
            started=result.started,
            host="",
            seconds=0.0,
            cases=tuple(_row_case(row) for row in result.rows if row.scenario == name),
            properties=properties,
        )
        for name in dict.fromkeys(row.scenario for row in result.rows)
    ]
    if result.untested or not suites:
        cases = [
            Case(name=THE_RUN, ending="error", kind=JobState.BROKEN.value, reason=reason)
            for reason in result.untested
        ] or [Case(name=THE_RUN, out="\n".join(result.remarks))]
        suites.append(
            Suite(name="patch", started=result.started, host="", seconds=0.0, cases=tuple(cases))
        )
    return junit_xml(*suites)


def _row_case(row: PatchRow) -> Case:
    ending = _EFFECTS[row.verdict]
    values = f"base {row.base}, patched {row.patched}"
    difference = f" ({row.difference})" if row.difference else ""
    reason = "\n".join(filter(None, (f"{row.verdict.value}: {values}{difference}", row.reason)))
    return Case(
        name=row.check,
        ending=ending,
        kind="" if ending == "passed" else row.verdict.value,
        reason=reason if ending != "passed" else "",
        out="\n".join(filter(None, (reason if ending == "passed" else "", row.command))),
    )
