"""Runs a patch series against the code that it changes: two images, one matrix, one table.

The images are the same image with md's modules or mdadm rebuilt, without and with the series. The
checks are a matrix run over both, so a job that breaks or hangs costs its own limit only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lab.analysis.regressions import systems
from lab.capabilities.matrix.file import CompiledMatrix, compile_matrix
from lab.capabilities.matrix.logic.entries import Expected, Matrix
from lab.capabilities.matrix.model import JobRecord, JobState, MatrixRun
from lab.capabilities.patch.logic import DIFFERENT, Sides, confirmed, differing, rows
from lab.capabilities.patch.model import PatchResult, PatchRow, PatchSide, SeriesPatch
from lab.compile.image.series import Target, target_of
from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_TROUBLE, InputError
from lab.core.versions import in_range
from lab.core.yaml import read_file, validate
from lab.host import images
from lab.host.images import series as image_series
from lab.host.images import workspace as image_workspace
from lab.host.images.series import Series
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.results.compare import side_of
from lab.run.preparation import systems as guest_systems
from lab.run.preparation.patched import source_of
from lab.run.preparation.suites import check_suites
from lab.store.runs import RunStore

VERIFY: Final = ("fio-verify", "fio-verify-raid0")
"""fio with checksums on each level; RAID 0 has no member to lose."""
CLAIMS: Final = ("raid5-parity-last", "degraded", "faults")
"""Scenarios with claims about md that take a minute or two each in virtual time."""
LEVELS: Final = ("0", "1", "4", "5", "6", "10")
_VIRTUAL: Final = ">=6.1"
"""Kernels with virtual time."""
TRIALS: Final = 6
"""Trials in virtual time of a cell in which something differs. The first may differ by chance."""
_SUITES: Final = {"mdadm-tests": "mdadm", "blktests-md": "blktests"}
"""Scenarios of test suites, and the workload whose directory the user gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asks for."""

    series: str
    tree: Path | None = None
    against: str | None = None
    image: str = "debian-12"
    kernel: str | None = None
    claims: tuple[str, ...] = CLAIMS
    levels: tuple[str, ...] = LEVELS
    suites: Mapping[str, Path] | None = None
    """Directories of test suites, by scenario."""
    trials: int | None = None
    accept_expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The two images, and what the series is."""

    target: Target
    series: Series
    base: Image
    patched: Image
    identical: bool
    """The series changes nothing of what is built."""


@contextmanager
def read(asked: Asked) -> Iterator[tuple[Target, Series]]:
    """Yield the series and what it is for; its files are removed at the end.

    ``InputError``: it cannot be read, or is for something else.
    """
    with image_workspace.workspace("series") as work:
        series = image_series.read(asked.series, asked.tree, work)
        yield target_of(image_series.titles(series), asked.against), series


def built(asked: Asked, target: Target, series: Series, progress: images.Progress) -> Built:
    """Return both images; build what is missing.

    ``InputError``: the series does not apply or does not compile, or the image has no headers.
    """
    guest = Guest(image=asked.image, kernel=asked.kernel)
    with source_of(guest, target, progress, accept_expired=asked.accept_expired) as source:
        base, patched = source.unpatched.files, source.built(series)
        return Built(
            target=target,
            series=series,
            base=source.image_with(base),
            patched=source.image_with(patched),
            identical=base == patched,
        )


def matrix_of(
    asked: Asked,
    names: Sequence[str],
    kernel: str | None,
    work: Path,
    tests: Mapping[str, Sequence[str]] | None = None,
) -> CompiledMatrix:
    """Return the checks as a matrix over images of these names; ``work``: a directory for its file.

    ``kernel``: the image's, which decides the clock; ``None``: unknown. ``tests``: only these tests
    of suites, by scenario.
    """
    if tests is not None:
        suites = {name: path for name, path in (asked.suites or {}).items() if name in tests}
        asked = replace(asked, levels=(), claims=(), suites=suites)
    virtual = kernel is None or in_range(kernel, _VIRTUAL)
    clock = "virtual" if virtual else "real"
    trials = {"trials": asked.trials} if asked.trials and not virtual else {}
    scenarios: list[dict[str, Any]] = []
    redundant = [int(level) for level in LEVELS if level in asked.levels and level != "0"]
    if redundant:
        axes = {"array.level": redundant, "array.bitmap": ["internal", "none"]}
        fewer = {"matrix": axes} if len(redundant) < len(LEVELS) - 1 else {}
        scenarios.append({"name": VERIFY[0], "set": {"guest.clock": clock, **fewer}})
    if "0" in asked.levels:
        scenarios.append({"name": VERIFY[1], "set": {"guest.clock": clock}})
    for name in asked.claims:
        full = str(Path(name).absolute()) if name.endswith((".yaml", ".yml")) else name
        catalog.scenario_path(full)
        scenarios.append({"name": full, "set": {"guest.clock": clock}})
    for name, directory in (asked.suites or {}).items():
        suite = f"workloads.{_SUITES[name]}"
        given: dict[str, Any] = {f"{suite}.directory": str(directory.expanduser().absolute())}
        if tests is not None:
            given[f"{suite}.tests"] = list(tests[name])
        scenarios.append({"name": name, "set": {"guest.clock": clock, **given}})
    if not scenarios:
        raise InputError("nothing is to be run: give --levels, --claims or a test suite")
    for one in scenarios:
        if one["name"] not in _SUITES:
            one |= trials
    document = {
        "title": f"lab patch {asked.series}",
        "scenarios": scenarios,
        "images": list(names),
    }
    path = work / "patch.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return compile_matrix(path)


def check(asked: Asked, work: Path) -> CompiledMatrix:
    """Return the checks on the image itself, before anything is built.

    ``InputError``: a scenario or a suite's directory is wrong, or the image has no headers.
    """
    guest_systems.recipe_of(Guest(image=asked.image, kernel=asked.kernel))
    compiled = matrix_of(asked, (asked.image,), None, work)
    for job in compiled.jobs:
        if job.compiled is None:
            raise InputError(job.broken)
        check_suites(job.compiled)
    return compiled


def known_failures(name: str | None) -> tuple[Expected, ...]:
    """Return the known failures that a matrix file lists; ``None``: none."""
    if name is None:
        return ()
    return validate(Matrix, read_file(catalog.matrix_path(name))).expected


def result_of(
    asked: Asked,
    made: Built,
    record: MatrixRun | None,
    directory: Path | None,
    *,
    started: str,
    margin: float,
    expected: Sequence[Expected] = (),
    repeated: MatrixRun | None = None,
) -> PatchResult:
    """Return the table of a series; ``record``: its matrix run (``None``: nothing was run).

    ``repeated``: a second run of the tests that differ.
    """
    today = datetime.fromisoformat(started).date()
    manifest = made.base.manifest
    base, patched = _by_scenario(record, made.base), _by_scenario(record, made.patched)
    untested = [
        f"{job.scenario} on {job.image}: {''.join(job.reason.splitlines()[:1]) or job.state.value}"
        for name in base
        for job in (base[name], patched[name])
        if job.state is not JobState.DONE
    ]
    found: list[PatchRow] = []
    for _, sides in _sides(asked, made, record):
        found += rows(sides, margin=margin, expected=expected, today=today)
    again = {
        (row.scenario, row.check): row
        for _, sides in _sides(asked, made, repeated)
        for row in rows(sides, margin=margin, today=today)
        if row.check.startswith(f"{_SUITES[row.scenario]}.")
    }
    found = [confirmed(row, again.get((row.scenario, row.check))) for row in found]
    return PatchResult(
        series=asked.series,
        patches=tuple(
            SeriesPatch(title=p.title, paths=p.paths, sha256=p.sha256) for p in made.series.patches
        ),
        against=made.target.value,
        image=asked.image,
        kernel=_version(base.values()) or manifest.kernel_version,
        mdadm=manifest.mdadm_version,
        started=started,
        margin=margin,
        base=_side(made.base, base),
        patched=_side(made.patched, patched),
        directory=str(directory) if directory is not None else None,
        rows=tuple(found),
        untested=tuple(untested),
        remarks=(
            (f"the series changes nothing of the {made.target} that is built: nothing was run",)
            if record is None
            else ()
        ),
    )


def _sides(
    asked: Asked, made: Built, record: MatrixRun | None
) -> Iterator[tuple[tuple[JobRecord, JobRecord], Sides]]:
    """Yield the two jobs of each scenario that ran on both sides, and their runs."""
    base, patched = _by_scenario(record, made.base), _by_scenario(record, made.patched)
    own = {Path(name).stem: name for name in asked.claims if name.endswith((".yaml", ".yml"))}
    for name, job in base.items():
        other = patched[name]
        if JobState.DONE is job.state is other.state:
            assert job.run is not None
            assert other.run is not None
            run = RunStore(Path(other.run))
            overrides = run.load_run().overrides
            yield (
                (job, other),
                Sides(
                    job=job.model_copy(update={"image": asked.image}),
                    image=made.patched.name,
                    base=side_of(RunStore(Path(job.run))),
                    patched=side_of(run),
                    path=own.get(name, ""),
                    overrides=tuple(t for t in overrides if not t.startswith("guest.image=")),
                ),
            )


def more_trials(
    asked: Asked, made: Built, record: MatrixRun, margin: float
) -> dict[str, dict[str, int]]:
    """Return by job how many more trials cells need in which something differs."""
    most, found = asked.trials or TRIALS, {}
    for jobs, sides in _sides(asked, made, record):
        cells = differing(sides, margin=margin)
        for job in jobs:
            assert job.run is not None
            points = RunStore(Path(job.run)).load_run().points
            more = {p[0].id: most - len(p) for p in points if p[0].id in cells and most > len(p)}
            if more:
                found[job.id] = more
    return found


def tests_that_differ(
    asked: Asked, made: Built, record: MatrixRun, margin: float, expected: Sequence[Expected]
) -> dict[str, tuple[str, ...]]:
    """Return by scenario the tests of a suite with another verdict on the two sides.

    Known failures are not among them.
    """
    found, today = {}, datetime.fromisoformat(record.started).date()
    for (job, _), sides in _sides(asked, made, record):
        prefix = f"{_SUITES.get(job.scenario, '')}."
        names = tuple(
            row.check.removeprefix(prefix)
            for row in rows(sides, margin=margin, expected=expected, today=today)
            if row.check.startswith(prefix) and row.verdict in DIFFERENT
        )
        if job.scenario in _SUITES and names:
            found[job.scenario] = names
    return found


def _by_scenario(record: MatrixRun | None, image: Image) -> dict[str, JobRecord]:
    jobs = record.jobs if record is not None else ()
    return {job.scenario: job for job in jobs if job.image == image.name}


def _side(image: Image, jobs: Mapping[str, JobRecord]) -> PatchSide:
    runs = {name: Path(job.run).name for name, job in jobs.items() if job.run}
    return PatchSide(image=image.name, digest=image.digest, runs=runs)


def _version(jobs: Any) -> str | None:
    for job in jobs:
        if job.run is not None and job.state is JobState.DONE:
            return systems(side_of(RunStore(Path(job.run))).result)[0]
    return None


def exit_status(result: PatchResult) -> int:
    """Return 1 if a check is worse or broken, 3 if a scenario could not be run, else 0."""
    if result.bad:
        return EXIT_REFUTED
    return EXIT_TROUBLE if result.untested else EXIT_DONE
