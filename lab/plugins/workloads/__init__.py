"""Workloads: what is done to a target, and how its output is read. One file each.

How to add one
--------------
1. Write ``lab/plugins/workloads/NAME.py``. Scenarios then say ``tool: NAME``; nothing is
   registered.
2. Declare the tool's parameters as a ``lab.core.base.Model``, under the tool's own names (a
   field alias where the name is a word of Python's). Sizes are ``Size``, so that people write
   ``1MiB``. Refuse in a validator what the tool would refuse, in a sentence that says what to do.
3. Give the file a class that has what ``lab.model.plugin.WorkloadTool`` demands, and end it with
   ``WORKLOAD: WorkloadTool = YourClass()``, so that mypy checks it there:

   * ``script(parameters, target)`` returns shell lines for the guest's ``/bin/sh`` (dash), with
     every value quoted by ``lab.model.execution.procedure.words``. On a file system ``target`` is a
     path that is not there yet: a file for some tools, a directory for others. Workloads that share
     a cell keep apart by ``{target}.NAME``.
   * ``parse(parameters, outputs)`` returns every metric in base units (bytes per second, seconds).
     Where it cannot read the output, or the tool did less than it was asked to, it raises
     ``ToolError`` with the text; it never returns 0. A metric is left out only where the tool says
     itself that it has none.
   * ``parameters`` come to each of them as ``Any``: ``checked`` makes them the tool's own again.
   * ``destroys(parameters)`` says whether the data on the target are gone afterwards.

4. Record real outputs: ``tests/golden/workloads/NAME/CASE/`` holds ``stdout`` and ``stderr`` as
   the tool printed them, and ``expected.json`` with ``parameters`` and either ``metrics`` or
   ``error`` (words of the message). ``tests/unit/test_workloads.py`` finds the case by itself;
   it wants at least one of each kind.

A suite of tests (``mdadm_tests``, ``blktests``) offers what ``lab.model.scenario.suite.Suite``
demands too: then each of its tests is a claim. What suites share is at the end of this file.

A variant of a tool (a block size, a queue depth) is a value in a scenario, never a new file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lab.core.errors import ToolError
from lab.model.result.measurement import Metric, MetricKind
from lab.model.scenario.outputs import Outputs
from lab.model.scenario.suite import Ending, SuiteParameters, Tested
from lab.plugins import guest_programs as inguest

TARGET: Final = "{target}"
"""What stands for the target in a tool's parameters."""
LARGEST_SMALL_FILE: Final = 64 * 1024**2
"""Bytes of a file in a tree: the program in the guest makes each in memory."""

P = TypeVar("P", bound=BaseModel)


def aimed(path: str, advice: str) -> str:
    """A path that names the target; ``ValueError`` says what to do where it does not."""
    if TARGET not in path:
        raise ValueError(f"names something else than the target: {advice}")
    return path


def read_json(kind: type[P], tool: str, outputs: Outputs) -> P:
    """What one of the lab's own programs printed; ``ToolError`` where that is something else."""
    try:
        return kind.model_validate_json(outputs.stdout)
    except ValidationError:
        said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
        raise ToolError(f"{tool}'s output is not the JSON that it prints: {said!r}") from None


def small(size: int) -> int:
    """Bytes of a small file; ``ValueError``: it is a large one."""
    if size > LARGEST_SMALL_FILE:
        raise ValueError("the files are small, 64MiB at most: dd and fio write large ones")
    return size


def tree_command(directory: str, phases: Sequence[str], tree: Mapping[str, int]) -> str:
    """The command that does these phases to a tree of files, ``guest_programs/tree.py``."""
    arguments = {
        "directory": directory,
        "phases": list(phases),
        "tree": dict(tree),
        "scratch": "/var/tmp",  # noqa: S108  in the guest, on its own disk
        "drop_caches": "/proc/sys/vm/drop_caches",
    }
    return inguest.command("tree", arguments) + "\n"


# -- suites


def _count(name: str, better: str) -> Metric:
    return Metric(name=name, unit="1", better=better, kind=MetricKind.COUNTED)


ENDED: Final = (
    _count("passed", "higher"),
    _count("failed", "lower"),
    _count("skipped", "lower"),
    _count("unfinished", "lower"),
)
"""How many of a suite's tests ended so; what was not run at all is unfinished here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCall:
    """How a suite is called, and how it tells of its tests: ``guest_programs/suite.py``."""

    folder: str
    find: str
    begins: str
    fails: str
    call: tuple[str, ...]
    join: str = ""
    logs: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()


def suite_command(mode: str, p: SuiteParameters, tests: Sequence[str], call: SuiteCall) -> str:
    """The command that lists a suite's tests, or runs them."""
    arguments: dict[str, Any] = {
        "mode": mode,
        "directory": p.place,
        "tests": list(tests),
        "limit": p.limit,
        "version": ["mdadm", "--version"],
        "folder": call.folder,
        "find": call.find,
        "begins": call.begins,
        "fails": call.fails,
        "call": list(call.call),
        "join": call.join,
        "logs": list(call.logs),
        "unsaved": list(call.unsaved),
    }
    return inguest.command("suite", arguments) + "\n"


COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
KERNEL: Final = "kernel"
"""Name of the kernel's messages among a test's logs (``lab/plugins/guest_programs/suite.py``)."""
LONGEST_REASON: Final = 300
"""Characters of what a suite says of a test."""
_MARKED: Final = re.compile(r"\n--lab-- (.*)\n")
"""A line of the lab's own: it begins with a line end, wherever in a line the suite was."""


@dataclass(slots=True)
class SuiteOutput:
    """What a suite printed, and what was added to it, as far as it goes."""

    text: str = ""
    """The suite's own."""
    tests: tuple[str, ...] | None = None
    hung: dict[str, float] = field(default_factory=dict)
    """Tests that were ended, to the seconds that they had."""
    logs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Test to files and what is in them; ``KERNEL`` has the kernel's messages of its time."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test took that has ended."""
    ends: dict[str, int | None] = field(default_factory=dict)
    """The test that had begun last, or nothing, to the status with which the suite then ended."""
    over: bool = False
    """Nothing is cut off."""

    def log(self, test: str, name: str = "") -> str:
        """A test's log of that name, or its first one; empty where it has left none."""
        found = self.logs.get(test, ())
        return next((text for file, text in found if name in ("", file.rpartition("/")[2])), "")


class _Told(BaseModel):
    """A line of ``lab/plugins/guest_programs/suite.py``."""

    model_config = ConfigDict(extra="forbid")

    tests: tuple[str, ...] | None = None
    version: str = ""
    test: str = ""
    number: int = 0
    of: int = 0
    ended: str = ""
    seconds: float = 0.0
    status: int | None = None
    last: str | None = None
    hung: str = ""
    limit: float = 0.0
    log: str = ""
    file: str = ""
    text: str = ""
    over: bool = False


def suite_output(stdout: str) -> SuiteOutput:
    """The suite's words and the lab's taken apart; what cannot be read is the suite's."""
    found = SuiteOutput()
    own: list[str] = []
    since = 0
    for line in _MARKED.finditer(stdout):
        told = _told(line[1])
        if told is None:
            continue
        own.append(stdout[since : line.start()])
        since = line.end()
        if told.tests is not None:
            found.tests = told.tests
        elif told.log:
            found.logs.setdefault(told.log, []).append((told.file, told.text))
        elif told.ended:
            found.seconds[told.ended] = told.seconds
        elif told.last is not None:
            before = next((piece for piece in reversed(own) if piece), "\n")
            own.append("" if before.endswith("\n") else "\n")  # it broke off within a line
            found.ends[told.last] = told.status
            if told.hung:
                found.hung[told.hung] = told.limit
        found.over = found.over or told.over
    found.text = "".join([*own, stdout[since:]])
    return found


def _told(line: str) -> _Told | None:
    try:
        return _Told.model_validate_json(line)
    except ValidationError:
        return None


class _Listed(BaseModel):
    tests: tuple[str, ...] = ()
    version: str = ""


def _listed(text: str) -> _Listed:
    try:
        return _Listed.model_validate_json(text)
    except ValidationError:
        return _Listed()


def listed(text: str) -> tuple[str, ...]:
    """The tests that were listed before the first one ran; none where the list cannot be read."""
    return _listed(text).tests


def tested_version(text: str) -> str:
    """The mdadm that was there when tests were listed: ``v4.4`` of ``mdadm - v4.4 - 2024-11-07``;
    empty where nobody knows."""
    said = _listed(text).version
    return said.removeprefix("mdadm - ").partition(" - ")[0] if said.startswith("mdadm - ") else ""


def endings(
    meant: Sequence[str],
    out: SuiteOutput,
    begun: Sequence[str],
    found: Mapping[str, tuple[Ending, str]],
) -> tuple[Tested, ...]:
    """Every test that is meant; ``found`` are those that the suite itself told the end of."""
    tests = out.tests if out.tests is not None else meant
    return tuple(
        _ending(name, out, begun, found).model_copy(
            update={"seconds": out.seconds.get(name), "logs": tuple(out.logs.get(name, ()))}
        )
        for name in tests
    )


def _ending(
    name: str, out: SuiteOutput, begun: Sequence[str], found: Mapping[str, tuple[Ending, str]]
) -> Tested:
    if name in out.hung:
        reason = f"it had not ended after {out.hung[name]:g} seconds, and was ended"
        return Tested(name=name, ending="unfinished", reason=reason)
    if name in found:
        ending, reason = found[name]
        return Tested(name=name, ending=ending, reason=_plain(reason))
    if name in begun:
        return Tested(name=name, ending="unfinished", reason=f"while it ran, {_over(out, name)}")
    said = _plain(last_line(out.text))
    reason = f"{_over(out)} before it" + (f": {said}" if said else "")
    return Tested(name=name, ending="not_run", reason=reason)


def _plain(text: str) -> str:
    """What can be shown of it, in a sentence's length."""
    shown = "".join(c if c.isprintable() else " " for c in COLOUR.sub("", text))
    return shown.strip()[:LONGEST_REASON]


def _over(out: SuiteOutput, test: str = "") -> str:
    """How the suite ended; with a test, how it ended when that was its last one."""
    if test not in out.ends and (test or not out.over):
        return "what the suite printed is cut off"
    status = out.ends.get(test, next(reversed(out.ends.values()), None))
    if status is None:
        return "the suite could not be ended"
    if status < 0:
        return f"the suite was killed by signal {-status}"
    return f"the suite ended with status {status}"


def counted(suite: str, out: SuiteOutput, tests: Sequence[Tested]) -> dict[str, float]:
    """How many tests ended how; ``ToolError`` where the output is not whole, or no test was run."""
    if not out.over or not tests:
        said = out.text.strip()[-300:]
        raise ToolError(f"{suite} did not come to its end, or ran nothing: {said!r}")
    if all(test.ending == "skipped" for test in tests):
        whys = dict.fromkeys(test.reason for test in tests)
        said = "; ".join(
            f"{why} ({', '.join(test.name for test in tests if test.reason == why)})"
            for why in whys
        )
        raise ToolError(f"{suite} ran no test, all {len(tests)} were skipped: {said}")
    so: list[str] = [t.ending if t.ending != "not_run" else "unfinished" for t in tests]
    return {metric.name: float(so.count(metric.name)) for metric in ENDED}


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
