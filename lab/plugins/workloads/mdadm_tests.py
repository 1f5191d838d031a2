"""mdadm's own test suite, on loop devices whose files are on the cell's first disk.

``test`` and ``tests/func.sh`` in mdadm's sources print ``tests/NAME...`` when a test begins and
``succeeded``, ``FAILED`` or ``skipping`` after it when it ends (``do_test``, ``save_log``). mdadm
4.2's suite runs the ``mdadm`` of its own directory, mdadm 4.4's the first one on ``PATH``; here
both run the guest's, or that of the directory. Its loop devices' files are in ``/var/tmp``, where
an ext4 on the disk is mounted.

Tests that need ``test_stripe``, ``raid6check`` or ``swap_super`` need them built in the directory,
for a libc no newer than the guest's: images have no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from pydantic import Field
from typing_extensions import override

from lab.core.stable import named
from lab.model.execution.procedure import words
from lab.model.plugin import WorkloadTool
from lab.model.scenario.outputs import Outputs
from lab.model.scenario.suite import Ending, Named, Suite, SuiteParameters, Tested
from lab.plugins.workloads._suites import (
    COLOUR,
    ENDED,
    KERNEL,
    SuiteCall,
    SuiteOutput,
    counted,
    endings,
    last_line,
    listed,
    suite_command,
    suite_output,
)

_LOGS: Final = "lab-logs"
_CALL: Final = SuiteCall(
    folder="tests",
    find=r"[0-9][0-9](?!.*\.(broken|inject_error)$)[\w.+-]*",
    begins=r"tests/([0-9][0-9][\w.+-]*)\.\.\. ",
    fails="FAILED",
    call=("bash", "./test", "--keep-going", "--save-logs", f"--logdir={_LOGS}", "--tests="),
    join=",",
    logs=(f"{_LOGS}/%s.log", f"{_LOGS}/fail%s.log"),
    unsaved=("/var/tmp/log",),  # noqa: S108  in the guest, where the suite is
)
_BEGINS: Final = re.compile(_CALL.begins)
_END: Final = re.compile(r"\b(succeeded|FAILED|skipping)\b")
_BROKEN: Final = re.compile(r"\(KNOWN BROKEN TEST: ([^)\n]{0,300})\)")
_SKIPPED: Final = re.compile(r"^[ \t]*SKIPPING, REASON: (.*)", re.MULTILINE)
_SKIPPING: Final = re.compile(r"^skipping\.\.\. ", re.MULTILINE)
_SKIPS: Final = re.compile(r"^\++ (\[.*|'\['.*)\n\++ echo -ne 'skipping\.\.\. '$", re.MULTILINE)
"""The test's own condition before it skips itself or its rest, as bash traces it (``set -x``)."""
_KERNEL_ERROR: Final = re.compile(r"error|call trace|segfault", re.IGNORECASE)
"""The suite's own pattern for errors in the kernel's messages after a test (``do_test``)."""
_OF_KERNEL: Final = "dmesg prints errors"
_CALLED: Final = re.compile(r"^\++ \S*/mdadm (--quiet )?(.*)")
_STATUS: Final = re.compile(r"^\++ rv=(\d+)$")
_LACKS: Final = re.compile(r": ([\w./+-]+): command not found$")
_MEANT: Final = " check opposite_result"
_LONGEST_CALL: Final = 90
"""Longest command in a reason, in characters."""
_WORDS: Final[dict[str, Ending]] = {
    "succeeded": "passed",
    "FAILED": "failed",
    "skipping": "skipped",
}


class MdadmTestsParameters(SuiteParameters):
    """Requested tests, and the mdadm to test."""

    ALWAYS: ClassVar[frozenset[str]] = SuiteParameters.ALWAYS | named("tests mdadm")

    tests: tuple[str, ...] = Field(default=("0[0-7]*",), min_length=1)
    """Names of tests, or shell patterns of names: files in ``tests/``. The default creates,
    assembles and grows small arrays."""
    mdadm: Literal["guest", "directory"] = "guest"
    """The mdadm under test: the guest's, or the one built in the directory."""


class MdadmTests(WorkloadTool, Suite):
    """Number of mdadm's tests by result; each test has a result of its own."""

    parameters = MdadmTestsParameters
    programs = ("bash", "losetup", "mdadm", "mke2fs", "python3")
    metrics = ENDED

    @override
    def marks(self, p: MdadmTestsParameters) -> Sequence[str]:
        return ("test", "tests/func.sh", *(("mdadm",) if p.mdadm == "directory" else ()))

    @override
    def named(self, p: MdadmTestsParameters) -> Named:
        return Named(folder=_CALL.folder, find=_CALL.find, tests=p.tests)

    @override
    def listing(self, p: MdadmTestsParameters) -> str:
        return _path(p) + suite_command("list", p, p.tests, _CALL)

    @override
    def script(self, p: MdadmTestsParameters, target: str) -> str:
        disk = target.split()[0]
        limits = "/proc/sys/dev/raid/speed_limit_m"
        return (
            f"{words('mke2fs', '-q', '-F', '-t', 'ext4', disk)}\n"
            f"{words('mount', disk, '/var/tmp')}\n"  # noqa: S108  in the guest, where the suite is
            f"least=$(cat {limits}in) most=$(cat {limits}ax)\n"
            "clean() {\n"
            "  cd /; mdadm -Ssq || true; losetup -D || true; umount -l /var/tmp || true\n"
            f"  echo $most > {limits}ax; echo $least > {limits}in\n"
            "}\n"
            "trap clean EXIT\n" + _path(p) + suite_command("run", p, p.tests, _CALL)
        )

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        tests = self.endings(parameters, "", outputs)
        return counted("mdadm's suite", suite_output(outputs.stdout), tests)

    @override
    def endings(
        self, p: MdadmTestsParameters, listed_: str, outputs: Outputs
    ) -> tuple[Tested, ...]:
        out = suite_output(outputs.stdout)
        text = COLOUR.sub("", out.text)
        begun = list(_BEGINS.finditer(text))
        last: dict[str, tuple[Ending, str]] = {}  # a test that runs again is judged once
        for number, match in enumerate(begun):
            following = begun[number + 1].start() if number + 1 < len(begun) else len(text)
            said = text[match.end() : following]
            ended = _END.search(said)
            if ended is not None:
                last[match[1]] = (_WORDS[ended[1]], said)
        found = {name: _judged(name, *its, out) for name, its in last.items()}
        return endings(listed(listed_), out, [m[1] for m in begun], found)

    @override
    def destroys(self, p: MdadmTestsParameters) -> bool:
        return True


def _path(p: MdadmTestsParameters) -> str:
    """Return shell lines that make both versions of the suite use the chosen mdadm."""
    if p.mdadm == "directory":
        return f"PATH={p.place}:$PATH\n"
    return f'for name in mdadm mdmon; do ln -sf "$(command -v $name)" {p.place}/$name; done\n'


def _judged(name: str, ending: Ending, said: str, out: SuiteOutput) -> tuple[Ending, str]:
    """Return a result and its reason: the first error in the log, or else its last line.

    A test without kernel support may report that in its log only; the suite counts it as succeeded.
    """
    log = out.log(name, f"{name}.log").partition("\n## ")[0]
    if ending == "passed":
        if not _SKIPPING.search(log):
            return ending, ""
        condition = _SKIPS.search(log)
        if condition is None:
            return "skipped", "its log says that it was skipped, without a reason"
        return "skipped", f"it skips itself or its rest, since {condition[1]}"
    if ending == "skipped":
        reason = _SKIPPED.search(log)
        return ending, reason[1].strip() if reason else last_line(log)
    broken = _BROKEN.search(said)
    known = f" (known to the suite as broken: {broken[1]})" if broken else ""
    return ending, (_why(name, log, said, out) or "FAILED, without a log") + known


def _why(name: str, log: str, said: str, out: SuiteOutput) -> str:
    """Return the first error, and the one at which the suite stopped the test."""
    lines = log.splitlines()
    ends = [n for n, line in enumerate(lines) if line.strip().startswith("ERROR")]
    told = [line.strip() for line in (*(lines[n] for n in ends), *said.splitlines())]
    gave_up = next((t.removeprefix("ERROR:").strip() for t in told if t.startswith("ERROR")), "")
    if gave_up.startswith(_OF_KERNEL):
        kernel = out.log(name, f"fail{name}.log") or out.log(name, KERNEL)
        found = next((line for line in kernel.splitlines() if _KERNEL_ERROR.search(line)), "")
        return f"{gave_up} {found.strip()}".strip()
    first = _first_error(lines[: ends[0]] if ends else lines)
    if not first:
        return gave_up or _at(last_line(log))
    return f"{first}; then: {gave_up}" if gave_up else first


def _first_error(lines: Sequence[str]) -> str:
    """Return the error of the first mdadm call that failed unexpectedly, or the program that the
    guest lacks; empty: no error.

    ``bash -x`` shows each call of mdadm, its status (``rv=1``) and its standard error, up to the
    end of the suite's function for it. Some calls may fail (``-I`` of a first member). So a failing
    call without output counts only if it is the last one.
    """
    silent = call = quiet = ""
    end = talk = -1  # the next lines of their kinds; each is looked for once
    for number, line in enumerate(lines):
        if lacks := _LACKS.search(line):
            return f"the guest has no program '{lacks[1]}'"
        if called := _CALLED.match(line):
            call, silent = called[2].removesuffix(" --auto=yes"), ""
            quiet = ", which the suite calls with --quiet," if called[1] else ""
        status = _STATUS.match(line)
        if status is None or status[1] == "0":
            continue
        rest = range(number, len(lines))
        if end < number:
            end = next((n for n in rest if " return " in lines[n]), len(lines))
        if end + 1 < len(lines) and lines[end + 1].endswith(_MEANT):
            continue
        if talk < number:
            talk = next((n for n in rest if lines[n] and lines[n][0] != "+"), len(lines))
        short = call if len(call) <= _LONGEST_CALL else f"{call[:_LONGEST_CALL]}…"
        if talk < end:
            words = [text.strip() for text in lines[talk:end] if text and text[0] != "+"]
            said = " ".join(words).removeprefix("mdadm: ")
            return f"{said} (mdadm {short}: status {status[1]})"
        silent = f"mdadm {short}{quiet} ended with status {status[1]} and said nothing"
    return silent


def _at(line: str) -> str:
    """Return the command at which a test stopped without an error; ``bash -x`` shows it."""
    return f"it ended at: {line.lstrip('+ ')}" if line.startswith("+") else line


WORKLOAD: WorkloadTool = MdadmTests()
