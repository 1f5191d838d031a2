"""The tree of errors. The class says who must act: the user, or the operator of the host.

::

    LabError                  never raised itself
    ├── InputError            the user: a scenario, an option, a name is wrong       (exit 2)
    └── TroubleError          the host or the lab could not do it                    (exit 3)
        ├── HostError         a program, a library, space or memory is missing
        │   └── FullError     a disk of the host is full; nothing can continue
        ├── GuestError        a guest panicked, hung, or never answered
        │   └── SilentError   it booted and never answered; the next of its kind will not either
        └── ToolError         a tool failed, or its output cannot be read
            └── CommandError  a command in a guest ended with an exit status other than 0

A refuted claim and a failed cell are values in a result, not exceptions: they end with exit 1.
"""

from __future__ import annotations

import errno
import re
from textwrap import indent
from typing import Final

from typing_extensions import override

EXIT_DONE = 0
EXIT_REFUTED = 1
EXIT_INPUT = 2
EXIT_TROUBLE = 3
EXIT_DIFFERENT = 4
"""Exit status: a cell in virtual time has equal inputs and other results in two runs."""
EXIT_STOPPED = 130
"""Exit status after Ctrl-C: 128 + SIGINT."""
EXIT_UNREAD = 141
"""Exit status: the reader of stdout closed the pipe, 128 + SIGPIPE."""
PRINTED_LINES = 20
"""Lines of a failed command's stdout, and of its stderr, in its error."""


class LabError(Exception):
    """A sentence with the problem, and a hint with the remedy."""

    exit_status = EXIT_TROUBLE
    late: str | None = None
    """Of a command that reached its time limit: the limit, and the command's last line."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @override
    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class InputError(LabError):
    """The user's input is wrong; nothing was started."""

    exit_status = EXIT_INPUT


class TroubleError(LabError):
    """The lab could not do its work."""


class HostError(TroubleError):
    """The host lacks a program, a library, memory or space."""


class FullError(HostError):
    """A disk of the host is full; no cell can continue."""


class GuestError(TroubleError):
    """A guest panicked, hung, or never answered."""


class SilentError(GuestError):
    """A guest has booted and never answered: it lacks a server or cloud-init."""


class ToolError(TroubleError):
    """A tool failed, or its output cannot be read."""


class LimitError(ToolError):
    """A guest took more of the host than a limit allows. It would do so again."""


class CommandError(ToolError):
    """A command in a guest ended with an exit status other than 0."""

    def __init__(self, command: str, *, status: int, stdout: str, stderr: str) -> None:
        printed = [
            f"{name}:\n{indent(last_lines(text, PRINTED_LINES), '    ')}"
            for name, text in (("stderr", stderr), ("stdout", stdout))
            if text.strip()
        ]
        super().__init__(
            f"exit status {status}: {first_line(command)}",
            hint="\n  ".join(printed) or "it printed nothing",
        )
        self.command, self.status = command, status
        self.stdout, self.stderr = stdout, stderr


_CAUSES: Final = re.compile(
    r"Out of memory|Kernel panic - not syncing|\bBUG: |kernel BUG at|\bOops:|general protection|"
    r"VFS: Unable to mount|soft lockup|hung_task"
)


def cause_of_panic(log: str) -> str:
    """Return the lines of a kernel's log that say why it panicked; else its last lines."""
    lines = [re.sub(r"^\[ *[\d.]+\] ", "", line.strip()) for line in log.strip().splitlines()]
    found = [line for line in lines if _CAUSES.search(line)]
    return " / ".join(list(dict.fromkeys(found))[-4:] or lines[-4:])


def first_line(script: str) -> str:
    """Return a script's first non-blank line, with ``…`` if there are more."""
    lines = script.strip().splitlines() or [""]
    return f"{lines[0]} …" if len(lines) > 1 else lines[0]


def last_lines(text: str, lines: int) -> str:
    """Return the last lines of a text, and before them the number of those left out."""
    found = text.strip("\n").splitlines()
    left_out = len(found) - lines
    return "\n".join([f"(… {left_out} lines)", *found[-lines:]] if left_out > 0 else found)


def full(what: str) -> FullError:
    """Return the error for a full disk; ``what`` could not be done."""
    return FullError(
        f"the disk is full: {what}",
        hint="free some space, or move the lab with LAB_HOME; what is finished is kept, and `lab "
        "run … --resume RUN` goes on with it",
    )


def lacks_memory(said: str) -> bool:
    """Return whether QEMU or libvirt says that the host has too little memory for a guest."""
    return re.search(r"[Cc]annot allocate memory|cannot set up guest memory", said) is not None


def is_full(error: OSError) -> bool:
    """Return whether the disk or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritable(path: object, error: OSError, done: str = "written") -> HostError:
    """Return the error for a path that could not be written (or ``done``)."""
    if is_full(error):
        return full(f"'{path}' cannot be {done}")
    return HostError(f"'{path}' cannot be {done}: {error.strerror}")
