"""Runs a suite's tests, with a limit for each, and goes on behind one that hangs or ends the suite.

``{"mode": "list", …}`` prints the tests that are meant, as one JSON object. ``{"mode": "run", …}``
passes on what the suite prints, and adds lines of its own, ``--lab-- {…}``: ``tests`` before the
first one; ``test`` when one begins, with its ``number``; ``ended`` when it has ended, with its
``seconds``; ``log`` for each log that it has left, and for the kernel's messages of its time, whole
where the test failed; ``status`` whenever the suite has ended, with the test that had begun
``last``, and ``hung``, the one for which it was ended; and ``over``.

``find`` says what is a test, ``begins`` how the suite says that one begins, as regular expressions
with the name as their group, ``fails`` how it says that one failed; ``call`` how it is called, with
the names joined by ``join`` at the end of its last word, or as words of their own; ``logs`` where
it puts a test's logs, and ``unsaved`` where the log lies of a test that has not ended.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from typing import Any

MARK = "--lab--"
GRACE = 10.0
"""Seconds that a suite has to clean up when it is interrupted."""
TAIL = 4000
"""Characters of the end of a log that are passed on, of a test that did not fail."""
WHOLE = 256 * 1024
"""Characters of a log of a test that failed; of a longer one the middle is left out."""
ALL = 32 * 1024**2
"""Characters of all logs together; of those after that ends are passed on."""
KERNEL = "kernel"
"""Name of the kernel's messages among a test's logs."""


def shortened(text: str, most: int) -> str:
    """The text; of a longer one beginning and end, and between them how much was left out."""
    if len(text) <= most:
        return text
    half = most // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[lab: {left} characters are left out here]\n{text[-half:]}"


def chosen(given: dict[str, Any]) -> list[str]:
    """Tests that fit what is wanted; ``LookupError`` names what none fits."""
    top = os.path.join(given["directory"], given["folder"])
    found = []
    for where, _, names in os.walk(top):
        paths = (os.path.relpath(os.path.join(where, name), top) for name in names)
        found += [path for path in paths if re.fullmatch(given["find"], path)]
    meant: dict[str, None] = {}
    for wanted in given["tests"]:
        fitting = fnmatch.filter(sorted(found), wanted)
        if not fitting:
            raise LookupError(f"none of the {len(found)} tests in {top} is '{wanted}'")
        meant.update(dict.fromkeys(fitting))
    return list(meant)


def version(given: dict[str, Any]) -> str:
    """What the program under test says of itself; empty where it says nothing."""
    try:
        said = subprocess.run(
            given["version"],
            cwd=given["directory"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.decode(errors="replace").strip().partition("\n")[0]


def tell(**what: Any) -> None:
    """A line of its own."""
    os.write(1, f"\n{MARK} {json.dumps(what)}\n".encode())


class Kernel:
    """The kernel's messages from now on; ``dmesg --clear``, which suites call, takes none away."""

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def told(self) -> str:
        """What came since the last time, as dmesg prints it."""
        lines = []
        while self._file is not None:
            try:
                record = os.read(self._file, 8192).decode(errors="replace")
            except BrokenPipeError:
                lines.append("[lab: messages were overwritten before they were read]")
                continue
            except OSError:  # there is no further one
                break
            # PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT, Documentation/ABI/testing/dev-kmsg
            about, _, text = record.partition(";")
            fields = about.split(",")
            seconds = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else 0.0
            said = text.partition("\n")[0].replace("\\x0a", "\n")
            lines.append(f"[{seconds:12.6f}] {said}")
        return "".join(f"{line}\n" for line in lines)


class Tests:
    """What is told of each test: that it begins, that it has ended, and what it has left."""

    def __init__(self, given: dict[str, Any], tests: list[str]) -> None:
        self.all = tests
        self.begun: list[str] = []
        self._given = given
        self._top = given["directory"]
        self._fails = re.compile(given["fails"])
        self._kernel = Kernel()
        self._room = ALL
        self._now = ""
        self._since = 0.0
        self._text = ""

    def begin(self, test: str) -> None:
        """One begins, so that the one before it has ended."""
        self.end()
        self._kernel.told()
        self.begun.append(test)
        self._now, self._since, self._text = test, time.monotonic(), ""
        tell(test=test, number=self.all.index(test) + 1, of=len(self.all))

    def print(self, text: str) -> None:
        """What the suite prints during it; of much the end."""
        self._text = (self._text + text)[-TAIL:]

    def end(self, *, ended: bool = True) -> None:
        """It has ended, or was ended, or took the suite down (``ended``: ``False``)."""
        if not self._now:
            return
        test, self._now = self._now, ""
        tell(ended=test, seconds=round(time.monotonic() - self._since, 1))
        whole = not ended or self._fails.search(self._text) is not None
        seen: set[str] = set()
        patterns = [pattern % test for pattern in self._given["logs"]]
        for pattern in patterns + ([] if ended else self._given["unsaved"]):
            for path in sorted(glob.glob(os.path.join(self._top, pattern))):
                with open(path, errors="replace") as file:
                    name = pattern if os.path.isabs(pattern) else os.path.relpath(path, self._top)
                    text = file.read()
                if text not in seen:  # an unsaved one may have been saved all the same
                    seen.add(text)
                    self._log(test, name, text, whole=whole)
        told = self._kernel.told()
        if whole:
            self._log(test, KERNEL, told, whole=True)

    def _log(self, test: str, name: str, text: str, *, whole: bool) -> None:
        if text.strip():
            whole = whole and self._room >= WHOLE
            text = shortened(text, WHOLE) if whole else text[-TAIL:]
            self._room -= len(text)
            tell(log=test, file=name, text=text)


class Suite:
    """One call of the suite, for some of its tests."""

    def __init__(self, given: dict[str, Any], tests: list[str], told: Tests) -> None:
        names = [given["call"][-1] + given["join"].join(tests)] if given["join"] else tests
        words = given["call"][: -1 if given["join"] else None]
        self.begun: list[str] = []
        self._told = told
        self._tests = tests
        self._begins = re.compile(given["begins"])
        self._limit = given["limit"]
        self._text = ""
        self._since = time.monotonic()
        self._process = subprocess.Popen(
            [*words, *names],
            cwd=given["directory"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()

    def run(self) -> None:
        """Pass on what it prints until it has ended, or one test has taken too long."""
        hung = None
        while self._listen(1.0) or self._process.poll() is None:
            if time.monotonic() - self._since > self._limit:
                hung = self.begun[-1] if self.begun else ""
                self._end()
                break
        self._told.end(ended=hung is None and self.ended_well())
        told = {"status": self._process.returncode, "last": self.begun[-1] if self.begun else ""}
        tell(**told if hung is None else {**told, "hung": hung, "limit": self._limit})

    def ended_well(self) -> bool:
        """Whether the suite says so."""
        return self._process.returncode == 0

    def said(self) -> str:
        """The last thing that it printed."""
        return (self._text.strip().splitlines() or ["it printed nothing"])[-1]

    def _listen(self, seconds: float) -> bool:
        """Whether it printed something; programs that outlive it may hold its output open."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        got = os.read(self._pipe, 65536)
        if not got:
            time.sleep(0.1)  # it has closed its output, and goes on
            return False
        os.write(1, got)
        self._hear(got.decode(errors="replace"))
        return True

    def _hear(self, text: str) -> None:
        """Take in what it printed: tests that begin, and what stands behind each."""
        known = len(self._text)
        self._text += text
        for match in self._begins.finditer(self._text):
            name = match.group(1)
            if name in self._tests and name not in self.begun:
                self._told.print(self._text[known : match.start()])
                known = max(known, match.end())
                self.begun.append(name)
                self._since = time.monotonic()
                self._told.begin(name)
        self._told.print(self._text[known:])
        self._text = self._text[-1000:]

    def _end(self) -> None:
        """Interrupt it, so that it cleans up; then be sure that it is gone, as far as one can."""
        for kind in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, kind)
            except ProcessLookupError:
                break
            until = time.monotonic() + GRACE
            while time.monotonic() < until and self._process.poll() is None:
                if select.select([self._pipe], [], [], 0.2)[0]:
                    os.write(1, os.read(self._pipe, 65536))


def run(given: dict[str, Any]) -> str | int:
    """All tests; a sentence where the suite ended before its first one."""
    tests = chosen(given)
    tell(tests=tests, version=version(given))
    told = Tests(given, tests)
    left = tests
    while left:
        suite = Suite(given, left, told)
        suite.run()
        left = [test for test in left if test not in suite.begun]
        if suite.ended_well():
            break
        if not suite.begun:
            if left == tests:
                return f"the suite ended before its first test: {suite.said()}"
            break
    tell(over=True)
    return 0


def main(given: dict[str, Any]) -> str | int:
    """List, or run."""
    try:
        if given["mode"] == "run":
            return run(given)
        print(json.dumps({"tests": chosen(given), "version": version(given)}))
    except LookupError as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
