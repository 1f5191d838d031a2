"""Reports: from stored runs to pages, pictures and a site; needs neither libvirt nor QEMU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lab import measure
from lab.app.explain import beside
from lab.app.results import result_of, typed_names
from lab.errors import InputError, unwritable
from lab.model.measurement import Check
from lab.model.result import CellResult, Outcome
from lab.predict import explanations
from lab.report.answer import steps
from lab.report.document import Attempt, Evidence, Page, PageCell
from lab.report.plan import cell_script
from lab.store import RunStore, StoredCell, write_whole

LINES: Final = 400
"""Of each piece of evidence, the last ones: a page is to be sent around."""


def page_of(store: RunStore, lab: str = "lab") -> Page:
    """A run's page, gathered; ``lab`` is what the program is called here."""
    run, result = store.load_run(), result_of(store)
    scenario, name = typed_names(store)
    results = {cell.id: cell for cell in result.cells}
    return Page(
        result=result,
        title=run.title,
        question=run.question,
        source=run.source,
        notes=run.notes,
        overrides=run.overrides,
        claims=run.claims,
        cells=tuple(_cell(store, stored, results[stored.id]) for stored in run.cells),
        damage=store.damage(),
        steps=steps(result, lab=lab, scenario=scenario, run=name, reported=True),
    )


def _cell(store: RunStore, stored: StoredCell, result: CellResult) -> PageCell:
    directory = store.cell_directory(stored.id)
    raw = store.raw(directory)
    procedure = store.load_procedure(directory)
    failures = [_attempt(store, path) for path in store.attempts(stored.id)]
    if result.outcome in (Outcome.FAILED, Outcome.LOST):
        failures.append(
            Attempt(
                name="the cell itself",
                outcome=result.outcome,
                reason=result.reason,
                evidence=_evidence(raw),
            )
        )
    return PageCell(
        result=result,
        cell=stored.cell,
        explanations=tuple(beside(e, result) for e in explanations(stored.cell)),
        series=measure.series(stored.cell, raw),
        sync=measure.sync_seen(raw),
        commands=cell_script(procedure) if procedure else "",
        failures=tuple(failures),
    )


def _attempt(store: RunStore, path: Path) -> Attempt:
    ended = store.load_attempt(path)
    return Attempt(
        name=f"attempt {path.suffix[1:]}",
        outcome=ended.outcome,
        reason=ended.reason or _contention(ended.checks),
        evidence=_evidence(store.raw(path)),
    )


def _contention(checks: Sequence[Check]) -> str:
    return "; ".join(f"{c.name}: {c.detail}" for c in checks if not c.passed)


def _evidence(raw: dict[str, str]) -> tuple[Evidence, ...]:
    """Console and kernel messages first, then what the tools said; counters left out."""
    first = ("console.txt", "end.txt", "mdadm-create.txt")
    names = [n for n in first if n in raw]
    names += [n for n in raw if n.endswith(("stderr.txt", "stdout.txt")) and raw[n].strip()]
    return tuple(
        Evidence(name=name, text="\n".join(raw[name].splitlines()[-LINES:])) for name in names
    )


def write_report(store: RunStore, out: Path | None, lab: str) -> Path:
    """One run's page: beside the run, or where it is asked for; its path."""
    from lab.report.html import run_page

    text = run_page(page_of(store, lab))
    if out is None:
        return store.save_report(text)
    place = out / f"{store.id}.html" if out.is_dir() else out
    _write(place, text)
    return place


def write_pictures(store: RunStore, directory: Path) -> tuple[Path, ...]:
    """Each picture of a run as SVG and as PNG; their paths."""
    from lab.report.pictures import pictures_of
    from lab.report.pictures.draw import png, svg

    written = []
    for picture in pictures_of(page_of(store)):
        drawn = svg(picture)
        for path, data in (
            (directory / f"{picture.name}.svg", drawn),
            (directory / f"{picture.name}.png", png(drawn)),
        ):
            _write(path, data)
            written.append(path)
    return tuple(written)


def write_site(
    runs: Sequence[RunStore],
    directory: Path,
    lab: str,
    say: Callable[[str], None],
    *,
    strays: Sequence[str] = (),
) -> Path:
    """A page for each run, and an index with what became of each and how figures moved.

    A run that cannot be read is named, there and through ``say``, and so is what lies among them
    and is none (``strays``); ``InputError``: no run can be read.
    """
    from lab.report.html import run_page
    from lab.report.site import index_page

    pages: list[Page] = []
    broken: list[str] = list(strays)
    for sentence in strays:
        say(sentence)
    for store in runs:
        try:
            page = page_of(store, lab)
        except InputError as error:
            broken.append(str(error))
            say(str(error))
            continue
        _write(directory / f"{store.id}.html", run_page(page, index="index.html"))
        pages.append(page)
        for sentence in page.damage:
            say(sentence)
    if not pages:
        raise InputError("there is no run to report on", hint="`lab up scenario NAME` makes one")
    index = directory / "index.html"
    _write(index, index_page(pages, broken))
    return index


def _write(path: Path, page: str | bytes) -> None:
    """A page, or a picture; what of a file's name is no text is written as escapes."""
    data = page.encode(errors="backslashreplace") if isinstance(page, str) else page
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path.parent, error, "made") from error
    write_whole(path, data)
