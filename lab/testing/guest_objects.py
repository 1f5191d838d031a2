"""Objects for tests: a guest that runs commands, and a guest with an array."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from textwrap import indent
from typing import Final, TypeVar

from typing_extensions import override

from lab.core.errors import CommandError, LabError, last_lines
from lab.core.printable import printable
from lab.host.system import clock
from lab.model.execution.procedure import Output
from lab.run.guest_pool import PooledGuest
from lab.run.scripts import files_from, prepared, stable_names

CONSOLE_LINES: Final = 40
COMMANDS: Final = 10
"""Number of last commands in the report of a failed test."""
PRINTED_LINES: Final = 5
"""Lines of each command's output in the report of a failed test."""
MDSTAT_SECONDS: Final = 5.0
"""Timeout in seconds for reading /proc/mdstat; the guest may hang."""
_WORK: Final = "/var/lib/lab/work"
"""Working directory of scripts in the guest."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command of a test."""

    command: str
    status: int | None
    """``None``: the command did not end, or the guest died."""
    seconds: float
    printed: str

    @override
    def __str__(self) -> str:
        status = "no end" if self.status is None else f"exit {self.status}"
        first, *more = self.command.strip().splitlines() or [""]
        head = f"{status:<7} {self.seconds:6.1f} s  "
        lines = [f"{head}{first}", *(" " * len(head) + line for line in more)]
        if self.printed.strip():
            lines.append(indent(last_lines(self.printed, PRINTED_LINES), "    "))
        return "\n".join(lines)


class LabGuest:
    """A guest of this test. Commands run as root; the guest has no network to the outside."""

    def __init__(self, loan: PooledGuest) -> None:
        self._loan = loan
        self._ran: deque[Ran] = deque(maxlen=COMMANDS)
        self._earlier = 0
        self.in_use = True
        """Whether this test requested the guest, or ran a command in it."""
        self.given_back = False

    @property
    def name(self) -> str:
        """The guest's id, as in `lab ps`."""
        return self._loan.visit.record.id

    @property
    def disks(self) -> tuple[str, ...]:
        """Paths of its data disks in the guest, in order."""
        return self._loan.disks

    @property
    def alive(self) -> bool:
        """Whether the guest runs, and has not panicked."""
        return self._loan.visit.alive()

    @property
    def console(self) -> str:
        """The end of the guest's console log; for a restored guest, since its restore."""
        return self._loan.visit.console(CONSOLE_LINES)

    def run(self, command: str, *, timeout: float = 300.0, check: bool = False) -> Output:
        """Run lines in a new shell; return ``status``, ``stdout``, ``stderr``, ``seconds``.

        With ``check``, an exit status other than 0 raises ``CommandError``. ``GuestError``: the
        guest died, or the lines took longer than ``timeout`` seconds.
        """
        __tracebackhide__ = True
        self.in_use = True
        began = clock.now()
        try:
            found = _plainly(lambda: self._loan.visit.run(command, timeout))
        except LabError as error:
            self._keep(command, None, clock.now() - began, error.message)
            raise
        self._keep(command, found.status, found.seconds, found.stdout + found.stderr)
        if check and found.status != 0:
            raise CommandError(
                command, status=found.status, stdout=found.stdout, stderr=found.stderr
            )
        return found

    def _keep(self, command: str, status: int | None, seconds: float, printed: str) -> None:
        self._earlier -= len(self._ran) == COMMANDS and self._earlier > 0
        self._ran.append(Ran(command=command, status=status, seconds=seconds, printed=printed))

    def script(
        self,
        source: str | PathLike[str],
        *arguments: str,
        timeout: float = 300.0,
        check: bool = False,
        out: str | PathLike[str] | None = None,
    ) -> Output:
        """Run a script of the host in the guest, as ``lab exec`` does; otherwise as ``run``.

        ``$TARGET`` is the array, or all disks, which are ``/dev/lab/disk1`` and so on. ``out``:
        copy the files of its working directory there. The next script finds them too.
        """
        __tracebackhide__ = True
        text = Path(source).read_text(encoding="utf-8")
        environment = {"TARGET": self._loan.target or " ".join(self._loan.disks)}

        def prepare() -> str:
            self._loan.visit.run(stable_names(self._loan.cell), MDSTAT_SECONDS)
            return prepared(self._loan.visit, arguments, text, _WORK, environment)

        found = self.run(_plainly(prepare), timeout=timeout, check=check)
        if out is not None:
            place = Path(out)
            _plainly(lambda: files_from(self._loan.visit, _WORK, place))
        return found

    def put(self, source: str | PathLike[str], target: str) -> None:
        """Copy a file and its mode into the guest; ``ToolError``: copying failed."""
        __tracebackhide__ = True
        _plainly(lambda: self._loan.visit.put(Path(source), target))

    def get(self, source: str, target: str | PathLike[str]) -> Path:
        """Copy a file out of the guest; return its path. ``ToolError``: copying failed."""
        __tracebackhide__ = True
        _plainly(lambda: self._loan.visit.get(source, Path(target)))
        return Path(target)

    def next_test(self) -> None:
        """Count the commands so far as those of earlier tests or fixtures."""
        self._earlier, self.in_use = len(self._ran), False

    def sections(self) -> list[tuple[str, str]]:
        """Return the sections of a failed test's report: last commands, /proc/mdstat, console."""
        found = []
        if self._ran:
            lines = [str(ran) for ran in self._ran]
            if self._earlier:
                lines.insert(self._earlier, "--- this test: ---")
            found.append((f"lab guest {self.name}: last commands", printable("\n".join(lines))))
        if self.given_back:
            return found
        alive = self.alive
        if alive and (mdstat := self._mdstat()):
            found.append((f"lab guest {self.name}: /proc/mdstat", mdstat))
        console = self.console
        if console or not alive:
            state = "is up" if alive else "is dead"
            found.append((f"lab guest {self.name} {state}: console", console or "it is empty"))
        return found

    def _mdstat(self) -> str:
        """Return the text; empty if md is not loaded, or the error if the guest does not
        respond."""
        try:
            said = self._loan.visit.run("cat /proc/mdstat", MDSTAT_SECONDS)
        except LabError as error:
            return error.message
        return printable(said.stdout.rstrip()) if said.status == 0 else ""

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class LabArray(LabGuest):
    """A guest with an array."""

    @property
    def device(self) -> str:
        """The array's path in the guest, ``/dev/md/NAME``."""
        return self._loan.target

    def detail(self) -> dict[str, str]:
        """The output of ``mdadm --detail``, by mdadm's keys: ``Raid Level``, ``State``."""
        __tracebackhide__ = True
        return pairs(self.run(f"mdadm --detail {self.device}", check=True).stdout)


def pairs(text: str) -> dict[str, str]:
    """Parse ``Key : value`` lines of ``mdadm --detail`` (``Detail.c``); skip other lines."""
    found = (re.fullmatch(r" *(\w.*?) : (.*)", line) for line in text.splitlines())
    return {match[1]: match[2].strip() for match in found if match}


def _plainly(work: Callable[[], T]) -> T:
    """Return the result of ``work``; re-raise errors without the lab's frames and causes."""
    __tracebackhide__ = True
    try:
        return work()
    except LabError as error:
        failed = error
    raise failed.with_traceback(None) from None
