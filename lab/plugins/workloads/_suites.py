"""Code for test suites: the command, its output, and the results of their tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from lab.core.errors import ToolError
from lab.model.result.measurement import Metric, MetricKind
from lab.model.scenario.suite import Ending, SuiteParameters, Tested
from lab.plugins.guest_programs._source import command


def _count(name: str, better: str) -> Metric:
    return Metric(name=name, unit="1", better=better, kind=MetricKind.COUNTED)


ENDED: Final = (
    _count("passed", "higher"),
    _count("failed", "lower"),
    _count("skipped", "lower"),
    _count("unfinished", "lower"),
)
"""Number of a suite's tests by result; tests that did not run count as unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCall:
    """Command line and output format of a suite: ``guest_programs/suite.py``."""

    folder: str
    find: str
    begins: str
    fails: str
    call: tuple[str, ...]
    join: str = ""
    logs: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()


def suite_command(mode: str, p: SuiteParameters, tests: Sequence[str], call: SuiteCall) -> str:
    """Return the command that lists a suite's tests, or runs them."""
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
    return command("suite", arguments) + "\n"


COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
KERNEL: Final = "kernel"
"""Name of the kernel's messages among a test's logs (``lab/plugins/guest_programs/suite.py``)."""
LONGEST_REASON: Final = 300
"""Longest reason for a result, in characters."""
_MARKED: Final = re.compile(r"\n--lab-- (.*)\n")
"""A line of the lab's program. It begins with a newline, since the suite may have printed a part of
a line."""


@dataclass(slots=True)
class SuiteOutput:
    """The suite's output and the lab's lines in it, possibly cut off."""

    text: str = ""
    """The suite's own output."""
    tests: tuple[str, ...] | None = None
    hung: dict[str, float] = field(default_factory=dict)
    """Tests that reached their time limit, with the limit in seconds."""
    logs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Log files of each test, name and contents; ``KERNEL`` is the kernel's messages of that
    time."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each test that has ended."""
    ends: dict[str, int | None] = field(default_factory=dict)
    """Exit status of each call of the suite, by the last test that had started; empty: none had."""
    over: bool = False
    """The output is complete."""

    def log(self, test: str, name: str = "") -> str:
        """Return a test's log of that name, or its first one; empty: it has none."""
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
    """Separate the suite's output from the lab's lines; unreadable lines belong to the suite."""
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
            own.append("" if before.endswith("\n") else "\n")  # the suite stopped within a line
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
    """Return the tests listed before the first one ran; empty: the list cannot be read."""
    return _listed(text).tests


def tested_version(text: str) -> str:
    """Return the mdadm version when tests were listed, such as ``v4.4`` of ``mdadm - v4.4 -
    2024-11-07``; empty: unknown."""
    said = _listed(text).version
    return said.removeprefix("mdadm - ").partition(" - ")[0] if said.startswith("mdadm - ") else ""


def endings(
    meant: Sequence[str],
    out: SuiteOutput,
    begun: Sequence[str],
    found: Mapping[str, tuple[Ending, str]],
) -> tuple[Tested, ...]:
    """Return the result of every requested test; ``found`` has those that the suite reported."""
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
        reason = f"it did not end within {out.hung[name]:g} seconds and was ended"
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
    """Return its printable characters, at most :data:`LONGEST_REASON`."""
    shown = "".join(c if c.isprintable() else " " for c in COLOUR.sub("", text))
    return shown.strip()[:LONGEST_REASON]


def _over(out: SuiteOutput, test: str = "") -> str:
    """Return how the suite ended; with a test, how it ended if that was the last one."""
    if test not in out.ends and (test or not out.over):
        return "the suite's output is cut off"
    status = out.ends.get(test, next(reversed(out.ends.values()), None))
    if status is None:
        return "the suite could not be ended"
    if status < 0:
        return f"the suite was killed by signal {-status}"
    return f"the suite ended with status {status}"


def counted(suite: str, out: SuiteOutput, tests: Sequence[Tested]) -> dict[str, float]:
    """Return the number of tests by result; ``ToolError``: output incomplete, or no test ran."""
    if not out.over or not tests:
        shown = [x for x in COLOUR.sub("", out.text).splitlines() if not x.startswith("--lab-- {")]
        said = "\n".join(shown).strip()[-300:]
        raise ToolError(f"{suite} did not finish, or ran nothing: {said!r}")
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
    """Return the last line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
