"""Notes after an interrupt: the finished cells, and the command that resumes the run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from lab.cli.options import home, own_name
from lab.core.errors import LabError

if TYPE_CHECKING:
    from lab.store.runs import RunStore

LEFT_OUT = frozenset({"resume", "plan", "shard", "budget"})
"""Options that the resume command leaves out."""
NOTHING = "no cell was finished: nothing is kept"


@contextmanager
def told(kept: Callable[[BaseException], str]) -> Iterator[None]:
    """Add the text from ``kept`` as a note (`notes_of`) to an error or Ctrl-C in the block."""
    try:
        yield
    except typer.Exit:
        raise
    except BaseException as error:
        from lab.host.system.process import uninterrupted

        with uninterrupted(), suppress(LabError, OSError):  # report the first error
            said = kept(error) or (NOTHING if isinstance(error, KeyboardInterrupt) else "")
            if said:
                error.add_note(said)
        raise


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an exception and of its causes."""
    found: list[str] = []
    at: BaseException | None = error
    while at is not None:
        found += getattr(at, "__notes__", ())
        at = at.__cause__ or at.__context__
    return list(dict.fromkeys(found))


def kept_of_run(context: typer.Context, store: RunStore, *, discard: bool = False) -> str:
    """Return the number of finished cells, and how to resume.

    ``discard``: remove a run without a finished cell: it was stopped before it had anything. One
    that lost a guest stays as evidence.
    """
    from lab.results.documents import typed_names

    cells = store.load_run().cells
    ended = sum(store.has_cell(cell.id) for cell in cells)
    if not ended:
        if discard and not store.has_lost_attempts():
            store.discard()
            return NOTHING
        return f"no cell was finished; what is known of the attempts is in {home(store.directory)}"
    _, name = typed_names(store)
    return (
        f"{ended} of {counted(len(cells), 'cell')} finished and kept in {home(store.directory)}."
        f" Resume with:\n  {command(context, name, {*LEFT_OUT, 'out'})}"
    )


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def command(context: typer.Context, run: str | None, but: Collection[str]) -> str:
    """Return the current command with ``--resume`` (``None``: without), without the options in
    ``but``."""
    at: Any = context
    words, options = [context.info_name or ""], list[str]()
    while at.parent is not None and at.parent.parent is not None:
        at = at.parent
        words.insert(0, at.info_name or "")
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in but or value == parameter.get_default(context):
            continue
        values = value if isinstance(value, list | tuple) else [value]
        for one in values:
            if parameter.param_type_name == "argument":
                words.append(str(one))
            elif one is True:
                options.append(max(parameter.opts, key=len))
            elif one not in (None, False):
                options += [max(parameter.opts, key=len), str(one)]
    resumed = f" --resume {run}" if run is not None else ""
    return f"{shlex.join([own_name(), *words, *options])}{resumed}"
