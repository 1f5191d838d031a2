"""Runs as JUnit's XML, which CI servers read: a suite for each, a test case for each claim.

There is no standard. What Jenkins' xUnit plug-in takes (``junit-10.xsd``) is the narrowest of those
in use: a case has a name, a class name and a time; facts about the run stand on its suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree as ET

from lab.core.printable import printable

Ending = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test case."""

    name: str
    ending: Ending = "passed"
    kind: str = ""
    """What it ended as, in the lab's words; empty: it passed."""
    reason: str = ""
    """Why; its first line is shown beside the name."""
    seconds: float = 0.0
    out: str = ""
    """What stands behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All cases of one run."""

    name: str
    started: str
    """ISO 8601."""
    host: str
    seconds: float
    cases: tuple[Case, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    out: str = ""


def junit_xml(*suites: Suite) -> str:
    """The whole document."""
    time = _time(sum(suite.seconds for suite in suites))
    root = ET.Element("testsuites", {"name": "lab", **_counts(*suites), "time": time})
    root.extend(_suite(suite) for suite in suites)
    ET.indent(root, " ")
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _counts(*suites: Suite) -> dict[str, str]:
    return {
        "tests": str(sum(len(suite.cases) for suite in suites)),
        "failures": _count("failure", *suites),
        "errors": _count("error", *suites),
    }


def _suite(suite: Suite) -> ET.Element:
    within = ET.Element(
        "testsuite",
        {
            "name": printable(suite.name),
            **_counts(suite),
            "skipped": _count("skipped", suite),
            "time": _time(suite.seconds),
            "timestamp": printable(suite.started),
            "hostname": printable(suite.host),
        },
    )
    facts = ET.SubElement(within, "properties")
    for name, value in suite.properties.items():
        ET.SubElement(facts, "property", {"name": printable(name), "value": printable(value)})
    for case in suite.cases:
        within.append(_case(case, suite.name))
    if suite.out:
        ET.SubElement(within, "system-out").text = printable(suite.out)
    return within


def _case(case: Case, suite: str) -> ET.Element:
    name = " ".join(printable(case.name).split())
    made = ET.Element(
        "testcase", {"classname": printable(suite), "name": name, "time": _time(case.seconds)}
    )
    if case.ending != "passed":
        reason = printable(case.reason)
        first = (reason.splitlines() or [""])[0]
        ended = ET.SubElement(made, case.ending, {"type": case.kind, "message": first})
        ended.text = reason
    if case.out:
        ET.SubElement(made, "system-out").text = printable(case.out)
    return made


def _count(ending: Ending, *suites: Suite) -> str:
    return str(sum(case.ending == ending for suite in suites for case in suite.cases))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
