"""Test suites in a scenario: their directories, conflicts, and the steps that copy them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.core.yaml import SET, Document
from lab.model.execution.procedure import GuestCommand, SendDirectory, Step, words
from lab.model.plugin import Problem
from lab.model.scenario.document import Array, Cell, Workload
from lab.model.scenario.filesystem import Filesystem
from lab.model.scenario.suite import LARGEST, LEFT_OUT, Suite, SuiteParameters
from lab.plugins import catalog

LISTED = "tests"
"""Raw output of a suite's listing: ``WORKLOAD.tests.txt``."""


def suite_of(workload: Workload) -> tuple[Suite, SuiteParameters] | None:
    """Return the suite of a workload and its parameters; ``None``: the tool is no suite."""
    tool = catalog.workload(workload.tool)
    if not isinstance(tool, Suite):
        return None
    parameters = catalog.parameters_of(workload)
    assert isinstance(parameters, SuiteParameters)
    return tool, parameters


def with_directories(document: Document, beside: Path) -> Document:
    """Return the scenario with absolute suite directories.

    Relative paths begin at the scenario's file, or for ``--set`` at the working directory.
    """
    workloads, matrix = (document.data.get(key) for key in ("workloads", "matrix"))
    if not isinstance(workloads, list):
        return document
    suites = [_is_suite(entry) for entry in workloads]
    if not any(suites):
        return document

    def whole(given: object, *path: str | int) -> object:
        if not isinstance(given, str) or not given:
            return given
        typed = any(
            path[: len(at)] == at and place.startswith(SET)
            for at, place in document.overrides.items()
        )
        named = Path(given)
        with suppress(RuntimeError):  # the home of an unknown user
            named = named.expanduser()
        return str(((Path() if typed else beside) / named).absolute())

    found = [
        {**entry, "directory": whole(entry["directory"], "workloads", number, "directory")}
        if suites[number] and "directory" in entry
        else entry
        for number, entry in enumerate(workloads)
    ]
    axes = [f"workloads.{e['name']}.directory" for e in workloads if _is_suite(e)]
    data = {**document.data, "workloads": found}
    if isinstance(matrix, dict):
        data["matrix"] = {
            name: [whole(value, "matrix", name) for value in values]
            if name in axes and isinstance(values, list)
            else values
            for name, values in matrix.items()
        }
    return replace(document, data=data)


def _is_suite(entry: Any) -> bool:
    """Return whether a workload as written is a suite."""
    tool = entry.get("tool") if isinstance(entry, dict) and "name" in entry else None
    if not isinstance(tool, str) or catalog.missing_plugin("workloads", tool):
        return False
    return isinstance(catalog.workload(tool), Suite)


def suite_problems(
    workloads: Sequence[Workload], array: Array | None, filesystem: Filesystem | None
) -> Iterator[Problem]:
    """Yield sections that conflict with suites, which make their own arrays."""
    names = [w.name for w in workloads if isinstance(catalog.workload(w.tool), Suite)]
    if not names:
        return
    its = f"the suite '{names[0]}' makes its own arrays and file systems"
    if array is not None:
        yield Problem(key="array", message=f"{its} on bare disks: write array: none")
    if filesystem is not None:
        yield Problem(key="filesystem", message=f"{its} on bare disks: remove it")


def takes_all_disks(workloads: Sequence[Workload]) -> bool:
    """Return whether every workload takes all bare disks, as suites and commands do."""
    return bool(workloads) and all(map(_takes_all, workloads))


def searches_disks(workloads: Sequence[Workload]) -> bool:
    """Return whether a workload may find and use disks that are not the cell's."""
    return any(map(_takes_all, workloads))


def needs_disks(workloads: Sequence[Workload]) -> bool:
    """Return whether a workload cannot run without a disk."""
    return not all(catalog.workload(w.tool).any_disks for w in workloads)


def _takes_all(workload: Workload) -> bool:
    tool = catalog.workload(workload.tool)
    return isinstance(tool, Suite) or tool.any_disks


def named_by(workloads: Sequence[Workload], claim: str) -> bool:
    """Return whether a claim's id is that of one of these suites or of one of its tests."""
    names = [w.name for w in workloads if suite_of(w) is not None]
    return any(claim == n or claim.startswith((f"{n}.", f"{n}@")) for n in names)


def suite_steps(cell: Cell) -> Iterator[Step]:
    """Copy and unpack each suite in the guest, and list the chosen tests."""
    for workload in cell.workloads:
        suite = suite_of(workload)
        if suite is None:
            continue
        tool, p = suite
        packed = f"{p.place}.tar"
        yield GuestCommand(
            label=f"room for {workload.name}",
            script=words("mkdir", "-p", p.place),
            undo=words("rm", "-rf", p.place, packed),
        )
        yield SendDirectory(
            workload=workload.name,
            source=p.directory,
            target=packed,
            left_out=LEFT_OUT,
            most=LARGEST,
        )
        yield GuestCommand(
            label=f"unpacking {workload.name}",
            script=f"{words('tar', '-x', '--no-same-owner', '-C', p.place, '-f', packed)}\n"
            + words("rm", packed),
            timeout=120.0,
        )
        yield GuestCommand(
            label=f"choosing {workload.name}'s tests",
            script=tool.listing(p),
            capture=f"{workload.name}.{LISTED}",
        )
