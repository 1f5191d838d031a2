"""blktests, the kernel's tests of its block layer: the group ``md``, or any others.

``check`` prints a line ``GROUP/NNN (what it tests)`` when a test begins, and the same with
``[passed]``, ``[failed]`` or ``[not run]`` when it ends, with indented lines for the reason
(``_output_status``, ``_output_test_run``). A group that cannot run at all is ``GROUP/***``. All of
the cell's disks are its ``TEST_DEVS``, and together the ``TEST_CASE_DEV_ARRAY`` of each group.
Without ``column``, of Debian's ``bsdextrautils``, ``check`` prints errors and continues.

``common/rc`` reads the kernel's version as three numbers, and cannot parse those of Debian's newer
kernels: ``7.3.4+deb13-amd64`` becomes ``7.3.4deb13`` (``_have_kver``). So the suite, and no other
program in the guest, gets a ``uname`` that prints ``7.3.4-deb13-amd64``. During the suite the
kernel's modules and its configuration have links of that name.

Tests that need programs of ``src/`` need them built in the directory, for a libc no newer than the
guest's: images have no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from pydantic import Field, field_validator
from typing_extensions import override

from lab.core.stable import named
from lab.model.plugin import WorkloadTool
from lab.model.scenario.outputs import Outputs
from lab.model.scenario.suite import Ending, Named, Suite, SuiteParameters, Tested
from lab.plugins.workloads._suites import (
    ENDED,
    SuiteCall,
    counted,
    endings,
    listed,
    suite_command,
    suite_output,
)

_CALL: Final = SuiteCall(
    folder="tests",
    find=r"[a-z0-9_]+/[0-9]{3}",
    begins=r"(?m)^([a-z0-9_]+/[0-9]{3})[ \n]",
    fails=r"\[failed\]",
    call=("bash", "./check", "-c", "lab-config"),
    logs=("results/*/%s.out.bad", "results/*/%s.dmesg", "results/*/%s.full"),
)
_LINE: Final = re.compile(
    r"^(?P<group>[a-z0-9_]+)/(?P<test>[0-9]{3}|\*\*\*)"
    r"(?: => (?P<disks>[^(\[ ](?:[^(\[]*[^(\[ ])?))?"
    r"(?: \(.*\))? *(?:\[(?P<ending>passed|failed|not run)\])?$"
)
_FACT: Final = re.compile(r"^ {4}\w+( |$).*\.\.\.")
"""A value of the test, now and in the previous run."""
_WORDS: Final[dict[str, Ending]] = {
    "passed": "passed",
    "failed": "failed",
    "not run": "skipped",
}
_UNAME: Final = """\
release=$(uname -r)
readable=$(echo "$release" | sed 's/[+~]/-/g')
if [ "$readable" != "$release" ]; then
  links="/lib/modules/$readable /boot/config-$readable"
  trap 'rm -f $links' EXIT
  ln -sfn "$release" "/lib/modules/$readable"
  ln -sfn "config-$release" "/boot/config-$readable"
  mkdir -p {place}/lab-bin
  printf '#!/bin/sh\\n%s "$@" | sed "s/%s/%s/"\\n' "$(command -v uname)" "$release" "$readable" \\
    > {place}/lab-bin/uname
  chmod +x {place}/lab-bin/uname
  PATH={place}/lab-bin:$PATH
fi
"""
"""Shell lines before the suite's: they give it a kernel release that it can parse."""
_WORST: Final[tuple[Ending, ...]] = ("failed", "passed", "skipped")
"""Results in order, worst first, for a test that ran several times: on each disk or under each
condition."""


class BlktestsParameters(SuiteParameters):
    """Requested tests, and parameters of every suite."""

    ALWAYS: ClassVar[frozenset[str]] = SuiteParameters.ALWAYS | named("tests")

    tests: tuple[str, ...] = Field(default=("md",), min_length=1, validate_default=True)
    """Groups, tests (``md/001``), or shell patterns of a group's tests (``md/00[1-4]``)."""

    @field_validator("tests")
    @classmethod
    def _of_groups(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        """Replace a group with all its tests."""
        for test in tests:
            if not re.fullmatch(r"[a-z0-9_]+(/[^/\s]+)?", test):
                raise ValueError(f"{test!r} is not a group, such as md, or a test, such as md/001")
        return tuple(test if "/" in test else f"{test}/*" for test in tests)


class Blktests(WorkloadTool, Suite):
    """Number of blktests' tests by result; each test has a result of its own."""

    parameters = BlktestsParameters
    programs = ("bash", "python3")
    metrics = ENDED

    @override
    def marks(self, p: BlktestsParameters) -> Sequence[str]:
        return ("check", "common/rc")

    @override
    def named(self, p: BlktestsParameters) -> Named:
        return Named(folder=_CALL.folder, find=_CALL.find, tests=p.tests)

    @override
    def listing(self, p: BlktestsParameters) -> str:
        return suite_command("list", p, p.tests, _CALL)

    @override
    def script(self, p: BlktestsParameters, target: str) -> str:
        groups = sorted({test.partition("/")[0] for test in p.tests})
        together = [f'  TEST_CASE_DEV_ARRAY[{g}/]="${{TEST_DEVS[*]}}"\n' for g in groups]
        return (
            _UNAME.format(place=p.place) + f"cat > {p.place}/lab-config <<'CONFIG'\n"
            f"TEST_DEVS=($(readlink -f {target}))\n"
            "if declare -p TEST_CASE_DEV_ARRAY > /dev/null 2>&1; then\n"
            + "".join(together)
            + "fi\nCONFIG\n"
            + suite_command("run", p, p.tests, _CALL)
        )

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        tests = self.endings(parameters, "", outputs)
        return counted("blktests", suite_output(outputs.stdout), tests)

    @override
    def endings(self, p: BlktestsParameters, listed_: str, outputs: Outputs) -> tuple[Tested, ...]:
        # A line about a group counts for each of its tests. If the suite stopped during a test,
        # some disks of that test may be missing.
        out = suite_output(outputs.stdout)
        meant = out.tests if out.tests is not None else listed(listed_)
        begun: list[str] = []
        ends: dict[str, list[tuple[Ending, str]]] = {}
        half: set[str] = set()
        for match, below in _lines(out.text):
            name = f"{match['group']}/{match['test']}"
            begun.append(name)
            if not match["ending"]:
                half.add(name)
            else:
                half.discard(name)
                ending = _WORDS[match["ending"]]
                reason = "" if ending == "passed" else _reason(match, below)
                ends.setdefault(name, []).append((ending, reason))
        half |= {name for name, status in out.ends.items() if status is None or status < 0}
        half |= set(begun[-1:]) if not out.over else set()
        found: dict[str, tuple[Ending, str]] = {}
        for name in meant:
            whole = ends.get(f"{name.partition('/')[0]}/***", [])
            own = ends.get(name) or [e for e in whole if e[0] == "skipped"]
            worst = min(own, key=lambda end: _WORST.index(end[0]), default=None)
            if worst is not None and (worst[0] == "failed" or name not in half):
                found[name] = worst
        return endings(meant, out, begun, found)

    @override
    def destroys(self, p: BlktestsParameters) -> bool:
        return True


def _lines(text: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Yield each line about a test, and the indented lines below it."""
    about: re.Match[str] | None = None
    below: list[str] = []
    for line in text.splitlines():
        match = _LINE.match(line.rstrip())
        if match is not None:
            if about is not None:
                yield about, below
            about, below = match, []
        elif line.startswith("    "):
            below.append(line)
    if about is not None:
        yield about, below


def _reason(match: re.Match[str], below: Sequence[str]) -> str:
    """Return the first line that differs from the expected output; for other reasons all lines."""
    kept = (line for line in below if line.strip() and not _FACT.match(line))
    said = [line[4:].rstrip() for line in kept if "run blktests " not in line]
    differs = [s for s in said if s[0] in "+-" and not s.startswith(("+++ ", "--- "))]
    if any(s.startswith("@@ ") for s in said) and differs:
        text = f"its output differs: {differs[0]}"
    else:
        between = "; " if match["ending"] == "not run" else " "
        text = between.join(" ".join(s.split()) for s in said) or "the suite gives no reason"
    return f"{match['disks']}: {text}" if match["disks"] else text


WORKLOAD: WorkloadTool = Blktests()
