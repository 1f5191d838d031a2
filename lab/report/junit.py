"""A run as JUnit's XML, which CI servers read: a test case for each claim.

There is no standard. What Jenkins' xUnit plug-in takes (``junit-10.xsd``) is the narrowest of those
in use: a case has a name, a class name and a time; facts about the run stand on its suite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from xml.etree import ElementTree as ET

Ending = Literal["passed", "failure", "error", "skipped"]
_NO_CHARACTER: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What may not stand in a document (XML 1.0, 2.2), not even escaped; consoles print it."""


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


def junit_xml(suite: Suite) -> str:
    """The whole document."""
    counts = {
        "tests": str(len(suite.cases)),
        "failures": _count(suite, "failure"),
        "errors": _count(suite, "error"),
    }
    root = ET.Element("testsuites", {"name": "lab", **counts, "time": _time(suite.seconds)})
    within = ET.SubElement(
        root,
        "testsuite",
        {
            "name": _clean(suite.name),
            **counts,
            "skipped": _count(suite, "skipped"),
            "time": _time(suite.seconds),
            "timestamp": _clean(suite.started),
            "hostname": _clean(suite.host),
        },
    )
    facts = ET.SubElement(within, "properties")
    for name, value in suite.properties.items():
        ET.SubElement(facts, "property", {"name": _clean(name), "value": _clean(value)})
    for case in suite.cases:
        within.append(_case(case, suite.name))
    if suite.out:
        ET.SubElement(within, "system-out").text = _clean(suite.out)
    ET.indent(root, " ")
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(case: Case, suite: str) -> ET.Element:
    name = " ".join(_clean(case.name).split())
    made = ET.Element(
        "testcase", {"classname": _clean(suite), "name": name, "time": _time(case.seconds)}
    )
    if case.ending != "passed":
        reason = _clean(case.reason)
        first = (reason.splitlines() or [""])[0]
        ended = ET.SubElement(made, case.ending, {"type": case.kind, "message": first})
        ended.text = reason
    if case.out:
        ET.SubElement(made, "system-out").text = _clean(case.out)
    return made


def _count(suite: Suite, ending: Ending) -> str:
    return str(sum(case.ending == ending for case in suite.cases))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _clean(text: str) -> str:
    return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)
