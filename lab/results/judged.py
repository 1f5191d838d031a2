"""Results of stored runs, judged once and kept.

A kept document is used as long as nothing has changed that it depends on (`lab.store.judgements`).
A run with unreadable files is judged each time, so that its warnings are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from lab.model.result.document import Result, RunState
from lab.model.result.explanation import CellExplanation
from lab.plugins.catalog import MissingPluginError
from lab.results import documents, explain
from lab.store import judgements
from lab.store.judgements import State
from lab.store.runs import RunStore

T = TypeVar("T")
_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
_EXPLANATIONS: TypeAdapter[tuple[CellExplanation, ...]] = TypeAdapter(tuple[CellExplanation, ...])
_ROW: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def result_of(store: RunStore) -> Result:
    """Return the result, measured and judged from the raw output, now or before.

    Of a run with a plug-in that this lab does not have, return the result recorded at its end, and
    add a warning. ``MissingPluginError``: it has none.
    """
    try:
        return _kept(store, judgements.RESULT, _RESULT, documents.result_of)
    except MissingPluginError as error:
        recorded = store.load_result()
        if recorded is None:
            where = f"nothing can be made of the run '{store.directory}'"
            raise MissingPluginError(f"{where}: {error.message}", hint=error.hint) from error
        store.note(
            f"the run '{store.directory}' has the values and verdicts recorded at its end:"
            f" {error.message}"
        )
        here = recorded.run.model_copy(update={"directory": str(store.directory)})
        return recorded.model_copy(update={"run": here})


def keep(store: RunStore, result: Result) -> None:
    """Keep a result that was judged while this process held the run, and now does not."""
    state = judgements.settled(store.directory)
    _keep(store, state, judgements.RESULT, _RESULT, result)
    _keep(store, state, judgements.SUMMARY, _ROW, _judged_row(result))


def explanation_of_run(store: RunStore) -> tuple[CellExplanation, ...]:
    """Explain every cell of a run, with measured values and the members' counters.

    ``MissingPluginError``: it has a plug-in that this lab does not have.
    """
    return _kept(
        *(store, judgements.EXPLANATION, _EXPLANATIONS),
        lambda run: explain.explanation_of_run(run, result_of),
    )


def summary(store: RunStore, state: State | None = None) -> dict[str, Any]:
    """Return a run's entry for a list. ``state``: of its files, if known.

    ``judged``: this version judged it. A run that was not judged here yet has the verdicts that it
    recorded at its end, if it did.
    """
    if not judgements.path_of(store.directory, judgements.SUMMARY).exists():
        state = state or judgements.settled(store.directory)
        run, ended = store.load_state()
        recorded = store.load_result() if ended is RunState.FINISHED else None
        if recorded is not None:
            about = {"id": run.id, "scenario": run.scenario, "directory": str(store.directory)}
            row = documents.row_of(recorded) | about | {"judged": False}
            _keep(store, state, judgements.RECORDED, _ROW, row)
            return row
    return _judged_row(result_of(store))


def _judged_row(result: Result) -> dict[str, Any]:
    return documents.row_of(result) | {"judged": True}


def _kept(store: RunStore, kind: str, form: TypeAdapter[T], make: Callable[[RunStore], T]) -> T:
    """Return a kept document, or a new one."""
    state = judgements.settled(store.directory)  # before any file is read
    place = state.place(kind) if state is not None else None
    if place is not None and (text := place.read()) is not None:
        with suppress(ValidationError):
            return form.validate_json(text)
    made = make(store)
    _keep(store, state, kind, form, made)
    if isinstance(made, Result):
        _keep(store, state, judgements.SUMMARY, _ROW, _judged_row(made))
    return made


def _keep(
    store: RunStore, before: State | None, kind: str, form: TypeAdapter[T], document: T
) -> None:
    """Keep a document of a run, unless some of its files could not be read.

    ``before``: the state of its files before they were read. If one has changed meanwhile, the
    document is never used.
    """
    place = before.place(kind) if before is not None and not store.warnings() else None
    if place is not None:
        with suppress(PydanticSerializationError):  # the name of a directory that is not UTF-8
            place.write(form.dump_json(document, by_alias=True))
