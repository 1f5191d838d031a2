"""Writes the site of all runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from lab import __version__
from lab.capabilities.site.page import badge, index_page, verdicts_badge
from lab.core.base import KEPT
from lab.core.errors import InputError
from lab.core.printable import as_name, printable
from lab.core.units import shortened
from lab.host.system import untrusted
from lab.model.result.document import Result, RunState
from lab.model.result.stored import StoredCell
from lab.plugins import catalog
from lab.report.content.overview import Overview
from lab.report.content.page_data import Page, PageCell
from lab.results.documents import typed_names, understood
from lab.results.report import LOG_SHOWN, OUTPUT_SHOWN, page_of, page_text, write
from lab.results.trend import regressions_of
from lab.store import bundles
from lab.store.runs import RunStore


def write_site(
    runs: Sequence[RunStore],
    directory: Path,
    lab: str,
    say: Callable[[str], None],
    *,
    overview: Overview | None = None,
    added: Sequence[Path] = (),
) -> Path:
    """Write the site of all runs: a report of each, each cell's raw output, a page to explore all
    values, and a badge. Return the page's path.

    With ``overview``, page and badge show that matrix run. Otherwise the badge shows each
    scenario's last run on each image. ``added``: bundles, and results that are only explored; badge
    and change points leave both out. The page and ``say`` report unreadable runs. ``InputError``:
    no run can be read, or a file of ``added`` cannot.
    """
    pages: list[Page] = []
    broken: list[str] = []
    others = _others(added, {store.id for store in runs}, directory, lab)
    for store in runs:
        try:
            page = _published(store, page_of(store, lab), directory)
        except InputError as error:
            broken.append(str(error))
            say(str(error))
            continue
        pages.append(page)
    for page in (*pages, *(one for one in others if isinstance(one, Page))):
        for sentence in page.warnings:
            say(sentence)
    if not pages and not added:
        raise InputError("there is no run to report on", hint="`lab up scenario NAME` makes one")
    index = directory / "index.html"
    worse = overview.regressions if overview else regressions_of(runs)
    write(index, index_page(pages, broken, worse, overview, others))
    write(directory / "badge.svg", _badge(pages, overview))
    return index


def _others(
    files_: Sequence[Path], taken: set[str], directory: Path, lab: str
) -> list[Page | Result]:
    """Return the runs of bundles, with their reports written, and the results of other files.

    ``taken``: ids of the site's runs; those of the files are added.
    """
    found: list[Page | Result] = []
    for file in files_:
        if not bundles.is_bundle(file.name):
            result = result_from(file)
            _take(result.run.id, taken, file)
            found.append(result)
            continue
        with bundles.opened(str(file)) as store:
            _take(store.id, taken, file)
            place, typed = shlex.quote(str(file.absolute())), typed_names(store)[0]
            if typed not in catalog.scenarios():
                typed = shlex.quote(str(directory / f"{store.id}.files" / "scenario.yaml"))
            page = page_of(store, lab, (typed, place))
            run = page.result.run.model_copy(update={"directory": str(file.absolute())})
            steps_ = ((f"{lab} results import {place}", "store this run with the others"),)
            update: dict[str, Any] = {
                "result": page.result.model_copy(update={"run": run}),
                "steps": steps_,
            }
            found.append(_published(store, page.model_copy(update=update), directory))
    return found


def _take(id_: str, taken: set[str], file: Path) -> None:
    if id_ in taken:
        raise InputError(
            f"--add: '{file}' is the run '{id_}', and a run with this id is in the site",
            hint=f"compare them: lab results compare {id_} {file}",
        )
    taken.add(id_)


def _published(store: RunStore, page: Page, directory: Path) -> Page:
    """Write a run's report and raw output into a site, unless they are there; return the page with
    its links.

    A report is drawn from the page and this version alone, so equal ones give the same report.
    """
    name = f"{store.id}.html"
    page, outputs = _with_outputs(store, page.model_copy(update={"link": _link(name)}))
    stamp = _stamp(page, outputs)
    there = all((directory / path).is_file() for path in outputs)
    if there and _stamp_of(directory / name) == stamp:
        return page
    text = page_text(store, page, index="index.html", stamp=stamp)
    for path, output in outputs.items():
        write(directory / path, output, durable=False)
    write(directory / name, text)
    return page


def _stamp(page: Page, outputs: Mapping[str, str]) -> str:
    """Return a digest of all that a report and its files are made from."""
    made_from = hashlib.sha256(_drawn_by())
    made_from.update(json.dumps(page.model_dump(mode="json")).encode())
    for path, output in outputs.items():
        made_from.update(f"\n{path} {len(output)}\n{output}".encode(errors="replace"))
    return made_from.hexdigest()


@cache
def _drawn_by() -> bytes:
    """Return the version of the lab, and a digest of the code and templates that draw reports."""
    import lab.report

    code = hashlib.sha256()
    for file in sorted(Path(lab.report.__path__[0]).rglob("*")):
        if file.suffix in (".py", ".j2", ".css"):
            code.update(file.read_bytes())
    return f"{__version__} {code.hexdigest()}\n".encode()


def _stamp_of(report: Path) -> str:
    """Return the stamp in a report of a site; empty: there is none."""
    try:
        with report.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    found = _STAMP.search(head)
    return found[1].decode() if found else ""


_HEAD: Final = 1024
"""Bytes of a report until its stamp, at most."""
_STAMP: Final = re.compile(rb'<meta name="lab-stamp" content="([0-9a-f]{64})">')


def _link(name: str) -> str:
    """Return a file's URL; colons too are escaped, since they would end a scheme."""
    return quote(os.fsencode(name))


@understood
def _with_outputs(store: RunStore, page: Page) -> tuple[Page, dict[str, str]]:
    """Return the page with links to its scenario file and to each cell's raw output, and these
    files by their paths in the site."""
    place = f"{store.id}.files"
    outputs = {f"{place}/scenario.yaml": printable(store.scenario_text())}
    cells = []
    for number, (seeds, cell) in enumerate(zip(store.load_run().points, page.cells, strict=True)):
        path = f"{place}/{number}-{as_name(cell.result.id)}.txt"
        outputs[path] = printable(_output(store, seeds, cell))
        cells.append(cell.model_copy(update={"output": _link(path)}))
    file = _link(f"{place}/scenario.yaml")
    return page.model_copy(update={"cells": tuple(cells), "scenario_file": file}), outputs


def _output(store: RunStore, seeds: Sequence[StoredCell], cell: PageCell) -> str:
    """Return a cell's commands and the raw output of each of its seeds."""
    parts = [f"# run {store.id}, cell {cell.result.id}\n# commands\n\n{cell.commands}"]
    for seed in seeds:
        trial = f"seed {seed.cell.seed}: " if len(seeds) > 1 else ""
        parts += [
            f"# ==== {trial}{name}\n\n{shortened(text, LOG_SHOWN)}"
            for name, text in store.raw(store.cell_directory(seed.id)).items()
        ]
    return shortened("\n".join(parts), OUTPUT_SHOWN)


def result_from(path: Path) -> Result:
    """Return a result document from a file; ``InputError``: it has none."""
    try:
        data = untrusted.read(path.parent, path.name)
        return Result.model_validate_json(data, context=KEPT)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--add: '{path}' cannot be read: {reason}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"--add: '{path}' has no result: {where}{': ' if where else ''}{first['msg']}",
            hint="`lab results show RUN --json` prints one",
        ) from error


def _badge(pages: Sequence[Page], overview: Overview | None) -> str:
    if overview is not None:
        return badge(overview.label, overview.words, overview.mood)
    last: dict[tuple[str, str], Page] = {}
    for page in pages:
        image = (page.result.environment.get("image") or {}).get("name", "")
        if page.result.run.state is not RunState.RUNNING:
            last.setdefault((page.result.run.scenario, image), page)
    verdicts = [claim.verdict for page in last.values() for claim in page.result.claims]
    return verdicts_badge("raid-lab", verdicts)
