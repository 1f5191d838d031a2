"""The command line: parse, call, print, choose the exit status.

A command imports its modules when it runs, so that ``lab --help`` and completion stay fast.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lab.cli.shown import Shown
from lab.core.errors import (
    EXIT_INPUT,
    EXIT_STOPPED,
    EXIT_TROUBLE,
    EXIT_UNREAD,
    LabError,
    is_full,
    unwritable,
)
from lab.host.system import clock


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; print tracebacks only with ``--debug``."""
    gc.set_threshold(50_000)  # most commands end before a collection would free anything
    from lab.cli.commands import app

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it, as in `lab doctor >&-`
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        if isinstance(getattr(sys, name), TextIOWrapper):  # file names may be invalid UTF-8
            getattr(sys, name).reconfigure(errors="backslashreplace")
        setattr(sys, name, Shown(getattr(sys, name)))
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, _interrupt)
    os.umask(os.umask(0) | 0o002)  # `paths` refuses directories that all users can write to
    try:
        clock.limit(1.0)  # a wrong LAB_LIMITS is refused before anything waits
        app(standalone_mode=True)
    except LabError as error:
        if _debug():
            raise
        sys.stderr.write(f"lab: {error}\n")
        _tell_notes(error)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, SystemExit) as end:
        # typer turns an interrupt and a broken pipe into silent exits.
        if isinstance(end.__context__, BrokenPipeError):
            _unread()
        if isinstance(end, SystemExit) and end.code != EXIT_STOPPED:
            raise
        sys.stderr.write("lab: stopped; all guests of this command are removed\n")
        _tell_notes(end)
        sys.exit(EXIT_STOPPED)
    except BrokenPipeError:
        _unread()
    except Exception as error:
        if _debug():
            raise
        if isinstance(error, OSError) and is_full(error):
            sys.stderr.write(f"lab: {unwritable(error.filename or 'a file', error)}\n")
            _tell_notes(error)
            sys.exit(EXIT_TROUBLE)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)
            shown = name if len(name) <= 60 else f"{name[:60]}…"
            sys.stderr.write(f"lab: '{shown}' is too long for a name of a file\n")
            _tell_notes(error)
            sys.exit(EXIT_INPUT)
        words = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"lab: bug in the lab: {words}\n")
        sys.stderr.write("  run it again with --debug for a traceback\n")
        _tell_notes(error)
        sys.exit(EXIT_TROUBLE)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # a short output stays in the buffer until here
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _tell_notes(error: BaseException) -> None:
    """Print the notes of an error: finished cells, and how to resume."""
    from lab.cli.display.again import notes_of

    for note in notes_of(error):
        sys.stderr.write(f"lab: {note}\n")


def _unread() -> NoReturn:
    """Exit quietly: the reader of stdout closed the pipe, as in ``lab results list | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(EXIT_UNREAD)


def _debug() -> bool:
    return "--debug" in sys.argv[1:] or bool(os.environ.get("LAB_DEBUG"))
