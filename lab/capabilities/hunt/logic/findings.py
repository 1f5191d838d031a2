"""What went wrong in a cell, for ``lab hunt``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from lab.analysis import measure
from lab.capabilities.hunt.model import Finding, FindingKind
from lab.core.errors import ToolError
from lab.model.execution.job import CONSOLE
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell

MISMATCHES: Final = ("mismatch_cnt", "action_mismatch_cnt")
KERNEL: Final = re.compile(
    r"""^(?:\[[^\]\n]{0,80}\][ \t]*+){0,4}(?P<says>
      WARNING: .*            # WARN, and lockdep: kernel/panic.c, kernel/locking/lockdep.c
    | BUG: .*                # KASAN, NULL pointers, sleeping in atomic context, workqueue lockups
    | kernel\ BUG\ at\ .*
    | Oops.* | general\ protection\ fault.* | (?:unable\ to\ handle|Unable\ to\ handle)\ .*
    | UBSAN: .*
    | INFO: \ (?:task\ .*\ blocked\ for\ more\ than .* | .*\ detected\ (?:expedited\ )?stalls?\ .*
                | possible\ .*\ detected .* | inconsistent\ lock\ state .*)
    | .*\ possible\ (?:circular|recursive)\ locking .*
    | list_(?:add|del)\ corruption.* | refcount_t: .*
    | Kernel\ panic\ .*
    )$""",
    re.MULTILINE | re.VERBOSE,
)
"""A line of the kernel's log that reports a mistake in the kernel."""
HANGS: Final = "Kernel panic - not syncing: lab: the guest hangs"
"""``drive/lab_hunt.c: lab_limit_fire``."""
_CHECK: Final = re.compile(r"the check '[^']*' failed")
_SLOW: Final = re.compile(r"did not end within|gave up after|was still busy with|it does not end")


def findings(
    cell: Cell, outcome: Outcome, reason: str, raw: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return what went wrong in a finished cell; empty: nothing.

    A guest that the host lost shows nothing, unless it waited in vain.
    """
    return tuple(_findings(cell, outcome, reason, raw))


def _findings(
    cell: Cell, outcome: Outcome, reason: str, raw: Mapping[str, str]
) -> Iterator[Finding]:
    log = raw.get(CONSOLE, "")
    hangs = HANGS in log or _SLOW.search(reason) is not None
    first = (reason.strip().splitlines() or [""])[0]
    if hangs and outcome is not Outcome.DONE:
        yield Finding(kind=FindingKind.HANG, says=first)
    elif outcome is Outcome.FAILED:
        kind = FindingKind.CHECK if _CHECK.search(reason) else FindingKind.FAILED
        yield Finding(kind=kind, says=first)
    elif outcome is Outcome.DONE:
        yield from _measured(cell, raw)
    said = [match["says"].strip() for match in KERNEL.finditer(log)]
    if worst := next((line for line in said if HANGS not in line), None):
        yield Finding(kind=FindingKind.KERNEL, says=worst)


def _measured(cell: Cell, raw: Mapping[str, str]) -> Iterator[Finding]:
    try:
        measured = measure.measurements(cell, raw)
    except ToolError as error:
        yield Finding(kind=FindingKind.FAILED, says=error.message)
        return
    for one in measured:
        worst = max(one.values, default=0.0)
        if one.metric == "lost" and worst > 0:
            says = f"{one.workload}: {worst:.0f} acknowledged blocks are lost"
            yield Finding(kind=FindingKind.LOST, says=says)
        elif one.metric in MISMATCHES and worst > 0:
            says = f"{one.workload}: md's check found {worst:.0f} mismatched sectors"
            yield Finding(kind=FindingKind.MISMATCH, says=says)
