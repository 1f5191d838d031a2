"""What a test gets: a guest to run commands in, and an array."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from lab.app.lending import Loan
from lab.errors import LabError, ToolError
from lab.model.ports import Output

CONSOLE_LINES: Final = 40
T = TypeVar("T")


class LabGuest:
    """A guest that runs for this test. Commands are root's; there is no way out of it."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan

    @property
    def name(self) -> str:
        """Its id, as `lab ps` shows it."""
        return self._loan.visit.record.id

    @property
    def disks(self) -> tuple[str, ...]:
        """Paths of its data disks in the guest, in order."""
        return self._loan.disks

    @property
    def alive(self) -> bool:
        """Whether it runs, and has not panicked."""
        return self._loan.visit.alive()

    @property
    def console(self) -> str:
        """The end of what its kernel printed; of a restored guest, since it was restored."""
        return self._loan.visit.console(CONSOLE_LINES)

    def run(self, command: str, *, timeout: float = 300.0) -> Output:
        """Run shell lines in a shell of their own: ``status``, ``stdout``, ``stderr``, ``seconds``.

        A command that fails is a result. ``GuestError`` where the guest dies, or the lines take
        longer than ``timeout`` seconds.
        """
        __tracebackhide__ = True
        return _plainly(lambda: self._loan.visit.run(command, timeout))

    def put(self, source: str | PathLike[str], target: str) -> None:
        """Copy a file into the guest, with its mode; ``ToolError`` says what was refused."""
        __tracebackhide__ = True
        _plainly(lambda: self._loan.visit.put(Path(source), target))

    def get(self, source: str, target: str | PathLike[str]) -> Path:
        """Copy a file out of the guest; where it is now."""
        __tracebackhide__ = True
        _plainly(lambda: self._loan.visit.get(source, Path(target)))
        return Path(target)

    def section(self) -> tuple[str, str]:
        """For a test's report: what became of the guest, and its console."""
        state = "is up" if self.alive else "is dead"
        return f"lab guest {self.name} {state}", self.console or "its console is empty"

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class LabArray(LabGuest):
    """A guest with an array in it."""

    @property
    def device(self) -> str:
        """The array's path in the guest, ``/dev/md/NAME``."""
        return self._loan.target

    def detail(self) -> dict[str, str]:
        """What ``mdadm --detail`` says now, by mdadm's own words: ``Raid Level``, ``State``."""
        __tracebackhide__ = True
        said = self.run(f"mdadm --detail {self.device}")
        if said.status != 0:
            raise ToolError(f"mdadm says nothing of {self.device}: {said.stderr.strip()}")
        return pairs(said.stdout)


def pairs(text: str) -> dict[str, str]:
    """``Key : value`` lines of ``mdadm --detail`` (``Detail.c``); others are passed over."""
    found = (re.fullmatch(r" *(\w.*?) : (.*)", line) for line in text.splitlines())
    return {match[1]: match[2].strip() for match in found if match}


def _plainly(work: Callable[[], T]) -> T:
    """What the work gives; an error without the lab's own frames, which say nothing to a test."""
    __tracebackhide__ = True
    try:
        return work()
    except LabError as error:
        failed = error
    raise failed.with_traceback(None)
