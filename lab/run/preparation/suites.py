"""Checks that directories of suites exist and have the requested tests."""

from __future__ import annotations

import fnmatch
import re
from difflib import get_close_matches
from pathlib import Path

from lab.compile.guest.suite_steps import suite_of
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import InputError
from lab.host.guest.ssh import directories
from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.suite import LARGEST, LEFT_OUT


def check_suites(compiled: Compiled, *, all_given: bool = True) -> None:
    """Check that every suite's directory can be sent and contains that suite; else ``InputError``.

    ``all_given``: a directory that is not given is an error too. The error names file and key.
    """
    seen: set[tuple[str, str]] = set()
    for cell in (compiled.base, *compiled.cells):
        for index, workload in enumerate(cell.workloads):
            key = workload.tool, workload.model_dump_json(include={"parameters"})
            if key not in seen:
                seen.add(key)
                problem = _problem(workload, all_given=all_given)
                if problem:
                    raise _wrong(compiled, cell, index, "directory", problem)
                problem = _unknown(workload)
                if problem:
                    raise _wrong(compiled, cell, index, "tests", problem)


def wanting(compiled: Compiled) -> tuple[str, ...]:
    """Return a sentence for each directory that the user must give before the scenario can run."""
    return tuple(
        f"before it is run, --set workloads.{workload.name}.directory=DIR names a directory of this"
        f" host with {_files(workload)} in it"
        for workload in compiled.base.workloads
        if (suite := suite_of(workload)) is not None
        and not suite[1].directory
        and f"workloads.{workload.name}.directory" not in compiled.axes
    )


def _files(workload: Workload) -> str:
    suite = suite_of(workload)
    assert suite is not None
    tool, parameters = suite
    return " and ".join(f"'{mark}'" for mark in tool.marks(parameters))


def _wrong(compiled: Compiled, cell: Cell, index: int, key: str, problem: str) -> InputError:
    axis = f"workloads.{cell.workloads[index].name}.{key}"
    places = compiled.point_of(cell).places
    return compiled.document.wrong(places.get(axis, ("workloads", index, key)), problem)


def _unknown(workload: Workload) -> str:
    """Return the name or pattern that matches no test; empty: all match, or it is no suite."""
    suite = suite_of(workload)
    if suite is None or not suite[1].directory:
        return ""
    tool, parameters = suite
    named = tool.named(parameters)
    top = Path(parameters.directory, named.folder)
    names = (path.relative_to(top).as_posix() for path in top.rglob("*"))
    there = sorted(name for name in names if re.fullmatch(named.find, name))
    for wanted in named.tests:
        if not fnmatch.filter(there, wanted):
            near = get_close_matches(wanted, there, n=3, cutoff=0.5)
            guess = " or ".join(f"'{name}'" for name in near)
            some = ", ".join(f"'{name}'" for name in there[:3])
            return (
                f"none of the {len(there)} tests in '{parameters.directory}' is called '{wanted}': "
                + (f"did you mean {guess}?" if near else f"they are called {some} …")
            )
    return ""


def _problem(workload: Workload, *, all_given: bool) -> str:
    """Return what is wrong with a workload's directory; empty: nothing, or it is no suite."""
    suite = suite_of(workload)
    if suite is None:
        return ""
    tool, parameters = suite
    given = parameters.directory
    if not given:
        names = f"--set workloads.{workload.name}.directory=DIR names one of this host"
        missing = f"no directory is given: {names} with {_files(workload)} in it"
        return missing if all_given else ""
    try:
        directories.check(Path(given), LEFT_OUT, LARGEST)
    except InputError as error:
        return error.message
    for mark in tool.marks(parameters):
        if not Path(given, mark).is_file():
            return f"'{given}' is not {workload.tool}'s: there is no file '{mark}' in it"
    return ""
