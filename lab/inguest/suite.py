"""Runs a suite's tests, with a limit for each, and goes on behind one that hangs or ends the suite.

``{"mode": "list", …}`` prints the tests that are meant, as one JSON object. ``{"mode": "run", …}``
passes on what the suite prints, and adds lines of its own, ``--lab-- {…}``: ``tests`` before the
first one; ``status`` whenever the suite has ended, with the test that had begun ``last``, and
``hung``, the one for which it was ended; ``log`` for each log that a test has left; and ``over``.

``find`` says what is a test, ``begins`` how the suite says that one begins, as regular expressions
with the name as their group; ``call`` how it is called, with the names joined by ``join`` at the
end of its last word, or as words of their own; ``logs`` where it puts a test's logs.
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
"""Characters of the end of a log that are passed on."""


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


class Suite:
    """One call of the suite, for some of its tests."""

    def __init__(self, given: dict[str, Any], tests: list[str]) -> None:
        names = [given["call"][-1] + given["join"].join(tests)] if given["join"] else tests
        words = given["call"][: -1 if given["join"] else None]
        self.begun: list[str] = []
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
        self._text += got.decode(errors="replace")
        for match in self._begins.finditer(self._text):
            name = match.group(1)
            if name in self._tests and name not in self.begun:
                self.begun.append(name)
                self._since = time.monotonic()
        self._text = self._text[-1000:]
        return True

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


def logs(given: dict[str, Any], test: str) -> None:
    """The ends of what a test has left."""
    for pattern in given["logs"]:
        for path in sorted(glob.glob(os.path.join(given["directory"], pattern % test))):
            with open(path, errors="replace") as file:
                text = file.read()
            if text.strip():
                tell(log=test, file=os.path.relpath(path, given["directory"]), text=text[-TAIL:])


def run(given: dict[str, Any]) -> str | int:
    """All tests; a sentence where the suite ended before its first one."""
    tests = chosen(given)
    tell(tests=tests, version=version(given))
    left = tests
    while left:
        suite = Suite(given, left)
        suite.run()
        left = [test for test in left if test not in suite.begun]
        if suite.ended_well():
            break
        if not suite.begun:
            if left == tests:
                return f"the suite ended before its first test: {suite.said()}"
            break
    for test in tests:
        logs(given, test)
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
