"""fio's JSON and logs in the directories that bench-fio makes and fio-plot reads.

::

    TARGET/BLOCKSIZE/MODE-IODEPTH-NUMJOBS.json           as bench-fio 1.1 (supporting.py:
    TARGET/MODEreads/BLOCKSIZE/MODE-IODEPTH-NUMJOBS.json     generate_output_directory)
    …/run-TRIAL/…                                        if there are several trials

TARGET consists of the axes that tell cells apart and are not fio's options, in words, since it is
the label in fio-plot's charts. Cells that differ only in depth or jobs share a directory, as these
charts need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lab.compile.cell.fault_times import cut_short
from lab.core.errors import InputError
from lab.core.printable import as_name
from lab.core.units import is_digits
from lab.model.result.document import Outcome
from lab.model.scenario.document import AxisValue, Cell, Workload
from lab.plugins.fio_options.values import LOGS
from lab.plugins.workloads import fio
from lab.report.content.figures import axes_text, telling
from lab.results.documents import understood
from lab.store.runs import RunStore, StoredCell

MIXED = ("rw", "readwrite", "randrw")


@understood
def fio_tree(run: RunStore, cells: Sequence[Sequence[StoredCell]]) -> dict[str, str]:
    """Return text by path; ``InputError``: no cell used fio; ``ToolError``: output is unreadable.

    Each of ``cells`` is a cell, with ``trials: auto`` followed by its further trials.
    """
    found: dict[str, str] = {}
    names = tuple(telling([_axes(stored.cell) for stored, *_ in cells]))
    for stored, *more in cells:
        ended = [run.load_cell(one.id) for one in (stored, *more)]
        done = [one for one in ended if one and one.outcome.outcome is Outcome.DONE]
        if not done:
            continue
        cut = cut_short(stored.cell)
        for workload in stored.cell.workloads:
            if workload.tool == "fio" and workload.name not in cut and not _has_job(workload):
                trials = [
                    one.raw.get(f"{workload.name}.{trial}.stdout.txt", "")
                    for one in done
                    for trial in range(1, stored.cell.trials + 1)
                ]
                files = list(_files(_target(stored.cell, names), workload, trials))
                if any(path in found for path, _ in files):
                    files = list(_files(f"{stored.id}.{workload.name}", workload, trials))
                found |= dict(files)
    if not found:
        raise InputError(f"'{run.id}' has no output of fio: none of its cells ran it to the end")
    return found


def _has_job(workload: Workload) -> bool:
    """Return whether it has a job file, whose jobs have no one mode and depth to be filed under."""
    return "job" in workload.parameters


def _axes(cell: Cell) -> dict[str, AxisValue]:
    """Return a cell's axes that are not fio's."""
    own = tuple(f"workloads.{w.name}." for w in cell.workloads if w.tool == "fio")
    return {name: value for name, value in cell.axes.items() if not name.startswith(own)}


def _target(cell: Cell, names: Sequence[str]) -> str:
    """Return a directory's name for a cell, from these axes."""
    axes = {name: value for name, value in _axes(cell).items() if name in names}
    return as_name(axes_text(axes).replace(", ", ",").replace(" ", "-") or cell.scenario)


def _files(target: str, workload: Workload, trials: Sequence[str]) -> Iterator[tuple[str, str]]:
    for trial, stdout in enumerate(trials, 1):
        document = fio.document(stdout)
        options = _options(document)
        mode = as_name(options["rw"])
        share = as_name(options.get("rwmixread", "50"))
        mixed = f"{mode}{share}/" if mode in MIXED else ""
        several = f"/run-{trial}" if len(trials) > 1 else ""
        place = f"{target}/{mixed}{_size(options['bs'])}{several}"
        depth, jobs = as_name(options["iodepth"]), as_name(options["numjobs"])
        yield f"{place}/{mode}-{depth}-{jobs}.json", json.dumps(document, indent=2) + "\n"
        asked = any(workload.parameters.get(log) for log in LOGS)
        for name, rows in fio.logs(stdout).items() if asked else ():
            log = as_name(name.partition("_")[2])
            kept = f"{mode}-iodepth-{depth}-numjobs-{jobs}_{log}"
            lines = (", ".join(str(number) for number in row) for row in rows)
            yield f"{place}/{kept}", "".join(f"{line}\n" for line in lines)


def _options(document: dict[str, Any]) -> dict[str, str]:
    """Return the job's options, including fio's defaults that fio-plot needs."""
    job = document["jobs"][0]
    given = {**document.get("global options", {}), **job.get("job options", {})}
    defaults = {"rw": "read", "bs": "4096", "iodepth": "1", "numjobs": "1"}
    job["job options"] = {**defaults, **{k: str(v) for k, v in given.items()}}
    found: dict[str, str] = job["job options"]
    return found


def _size(text: str) -> str:
    """Return bytes as bench-fio writes them: ``4k``, ``1m``."""
    if not is_digits(text):
        return as_name(text.replace(".", "-"))
    size = int(text)
    for unit, name in ((1 << 20, "m"), (1 << 10, "k")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return text
