"""Scenario files as tests: a scenario runs once, and each of its claims is a test."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest
from typing_extensions import override

from lab.compile.guest.suite_steps import named_by, suite_of
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.core.errors import LabError
from lab.host.system.once import once
from lab.model.result.document import CellResult, ClaimResult, Outcome, Result
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Workload
from lab.run import execute
from lab.run.options import RunOptions
from lab.store.runs import RunStore
from lab.testing import SHARED

KEYS: Final = frozenset(
    ("title", "question", "guest", "disks", "array", "workloads", "matrix", "claims")
)
"""Top-level keys of a scenario."""
ENOUGH: Final = 3
"""Number of these keys in a file that looks like a scenario; other YAML files have none or one."""
CELLS: Final = "cells"
"""Name of the test that all cells finished. Without it a run without measurements would pass."""


def looks_like_one(path: Path) -> bool:
    """Return whether a YAML file is meant to be a scenario, valid or not."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return len(KEYS & set(re.findall(r"^([a-z]+):", text, re.MULTILINE))) >= ENOUGH


class NotSoError(Exception):
    """A claim was refuted, or a cell failed. pytest shows the message without a traceback."""


class ScenarioFile(pytest.File):
    """A scenario."""

    compiled: Compiled
    _result: Result | None = None
    _trouble: str = ""

    @override
    def collect(self) -> Iterator[pytest.Item]:
        try:
            self.compiled = compile_scenario(self.path)
        except LabError as error:
            raise self.CollectError(str(error)) from None
        if self.config.pluginmanager.hasplugin("xdist"):  # unknown markers may be forbidden
            self.add_marker(pytest.mark.xdist_group(self.nodeid))
        for claim in self.compiled.scenario.claims:
            yield ClaimItem.from_parent(self, name=claim.id, claim=claim)
        for workload in self.compiled.scenario.workloads:
            if suite_of(workload) is not None:
                yield SuiteItem.from_parent(self, name=workload.name)
        yield CellsItem.from_parent(self, name=CELLS)

    def result(self) -> Result:
        """The result of the run, by this process or another worker of pytest-xdist."""
        if self._result is None and not self._trouble:
            shared: str | None = getattr(self.config, "workerinput", {}).get(SHARED)
            if shared is None:
                told = self._run()
            else:
                digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
                told = once(Path(shared), digest, self._run)
            self._learn(told)
        if self._result is None:
            raise NotSoError(self._trouble)
        return self._result

    def _run(self) -> str:
        """Run the scenario; return JSON with the run's id, or with the error."""
        try:
            done = execute.run_scenario(
                self.compiled,
                texts=(),
                out=None,
                options=RunOptions(),
                executor=execute.LocalExecutor(
                    options=RunOptions(), watch=lambda _guest, _event: None, say=lambda _text: None
                ),
                resume=None,
                progress=lambda _text, _fraction: None,
                ready=lambda _store, _place: None,
            )
        except LabError as error:
            return json.dumps({"trouble": str(error)})
        return json.dumps({"run": str(done.store.directory)})

    def _learn(self, told: str) -> None:
        found = json.loads(told)
        if "trouble" in found:
            self._trouble = found["trouble"]
            return
        self._result = RunStore(Path(found["run"])).load_result()
        if self._result is None:
            self._trouble = f"the run '{found['run']}' has no readable result"


class _ScenarioItem(pytest.Item):
    @property
    def file(self) -> ScenarioFile:
        """The scenario."""
        assert isinstance(self.parent, ScenarioFile)
        return self.parent

    @override
    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        if isinstance(excinfo.value, NotSoError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))


class ClaimItem(_ScenarioItem):
    """A claim: passes if it holds, fails if it is refuted, is skipped otherwise."""

    def __init__(self, *, claim: Claim, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type] # pytest's own, from from_parent
        self._claim = claim

    @override
    def runtest(self) -> None:
        result = self.file.result()
        (found,) = [c for c in result.claims if c.id == self._claim.id]
        self.user_properties += [
            (name, value)
            for name, value in (
                ("verdict", found.verdict.value),
                ("measured", found.measured),
                ("predicted", found.predicted),
                ("published", found.published),
                ("run", result.run.directory),
            )
            if value is not None
        ]
        if found.verdict is Verdict.REFUTED:
            _refuted(found, result)
        if found.verdict is not Verdict.HOLDS:
            why = f"{found.verdict.value.replace('_', ' ')}: {found.reason}"
            raise pytest.skip.Exception(why, _use_item_location=True)

    @override
    def reportinfo(self) -> tuple[Path, int, str]:
        ids = [claim.id for claim in self.file.compiled.scenario.claims]
        at = ("claims", ids.index(self._claim.id))
        document = self.file.compiled.document
        line = 1 if at in document.files else document.lines.get(at, 1)
        return self.path, line - 1, f"{self.path.stem}: {self._claim.id}"


class SuiteItem(_ScenarioItem):
    """All tests of a suite: fails if one fails, and names it; skipped if none passed."""

    @override
    def runtest(self) -> None:
        result = self.file.result()
        found = [c for c in result.claims if named_by((self._workload,), c.id)]
        self.user_properties += [(claim.id, claim.verdict.value) for claim in found]
        refuted = [claim for claim in found if claim.verdict is Verdict.REFUTED]
        if refuted:
            lines = [f"{len(refuted)} of {len(found)} tests of {self.name} failed:"]
            lines += [f"  {claim.id}: {claim.reason}" for claim in refuted]
            raise NotSoError("\n".join([*lines, _where(result)]))
        if not any(claim.verdict is Verdict.HOLDS for claim in found):
            reasons = "; ".join(dict.fromkeys(claim.reason for claim in found)) or "it has none"
            raise pytest.skip.Exception(f"none of its tests passed: {reasons}")

    @property
    def _workload(self) -> Workload:
        workloads = self.file.compiled.scenario.workloads
        return next(w for w in workloads if w.name == self.name)

    @override
    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.stem}: {self.name}"


class CellsItem(_ScenarioItem):
    """Passes if all cells finished."""

    @override
    def runtest(self) -> None:
        result = self.file.result()
        broken = [cell for cell in result.cells if cell.outcome is not Outcome.DONE]
        if broken:
            lines = [f"{len(broken)} of {len(result.cells)} cells did not finish:"]
            raise NotSoError("\n".join([*lines, *map(_of_cell, broken), _where(result)]))

    @override
    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.stem}: {CELLS}"


def _refuted(claim: ClaimResult, result: Result) -> NoReturn:
    lines = [f"refuted: {claim.says}", f"  {claim.reason}"]
    if claim.expected:
        lines.append(f"  expected: {claim.expected}")
    raise NotSoError("\n".join([*lines, _where(result)]))


def _of_cell(cell: CellResult) -> str:
    return f"  {cell.id} is {cell.outcome.value}: {cell.reason}"


def _where(result: Result) -> str:
    return f"  the whole run: lab results show {result.run.id} ({result.run.directory})"
