"""The error tree, by who must act.

::

    LabError                  never raised itself
    ├── InputError            the user: a scenario, an option, a name is wrong       (exit 2)
    └── TroubleError          the host or the lab could not do it                    (exit 3)
        ├── HostError         a program, a library, space or memory is missing
        │   └── FullError     a disk of the host is full: nothing else can go on either
        ├── GuestError        a guest panicked, hung, or never answered
        └── ToolError         a tool ran and failed, or said what nobody can read

A refuted claim and a failed cell are values in a result, not exceptions: they end with exit 1.
"""

from __future__ import annotations

import errno

from typing_extensions import override

EXIT_DONE = 0
EXIT_REFUTED = 1
EXIT_INPUT = 2
EXIT_TROUBLE = 3
EXIT_STOPPED = 130
"""Ctrl-C, as shells have it: 128 and the number of SIGINT."""
EXIT_UNREAD = 141
"""Whoever read the output went away: 128 and the number of SIGPIPE."""


class LabError(Exception):
    """A sentence that names the thing, and a hint that says what to do about it."""

    exit_status = EXIT_TROUBLE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @override
    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class InputError(LabError):
    """What the user gave cannot be used as it is; nothing was started."""

    exit_status = EXIT_INPUT


class TroubleError(LabError):
    """The lab could not do its work."""


class HostError(TroubleError):
    """Something is missing on the host, or has run out."""


class FullError(HostError):
    """A disk of the host is full: no cell is to blame, and none can go on."""


class GuestError(TroubleError):
    """A guest panicked, hung, or never answered."""


class ToolError(TroubleError):
    """A tool ended with an error, or printed something that cannot be read."""


def full(what: str) -> FullError:
    """The sentence for a full disk; ``what`` could not be done for it."""
    return FullError(
        f"the disk is full: {what}",
        hint="free some space, or move the lab with LAB_HOME; what is finished is kept,"
        " and `lab run … --resume RUN` goes on with it",
    )


def is_full(error: OSError) -> bool:
    """Whether space has run out, on the disk or of the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritable(path: object, error: OSError, done: str = "written") -> HostError:
    """The sentence for something that could not be written, or ``done`` otherwise."""
    if is_full(error):
        return full(f"'{path}' cannot be {done}")
    return HostError(f"'{path}' cannot be {done}: {error.strerror}")
