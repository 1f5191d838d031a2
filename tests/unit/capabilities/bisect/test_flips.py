"""A matrix run bisects what held in the run before and is refuted now, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.bisect import after_matrix as bisecting
from lab.capabilities.bisect import question as planning
from lab.capabilities.bisect import run as bisect_run
from lab.capabilities.bisect.logic.flips import Judgement, axes_between, held_before
from lab.capabilities.bisect.model import Bisection, Ending, Pair
from lab.capabilities.bisect.record import BISECTIONS
from lab.capabilities.matrix import run as running
from lab.capabilities.matrix.file import CompiledMatrix, compile_matrix
from lab.capabilities.matrix.jobs import host_of, plan_of
from lab.capabilities.matrix.model import JobState, MatrixRun
from lab.capabilities.matrix.page import flip_sentence, remarkable
from lab.capabilities.matrix.record import MATRIX_RUNS
from lab.core.errors import HostError
from lab.host.images import packages
from lab.host.system import paths
from lab.model.image.axis import Axis
from lab.model.image.package import PackageFile, PackageIndex, Version
from lab.model.scenario.claim import Verdict
from lab.results.documents import result_of
from tests.runs import SMALL, theory_run

CLAIM = """claims:
  - id: FAST
    says: With parity-last it reads 7 MB/s or more
    ours: true
    why: A fixture.
    expect:
      kind: bound
      value: {workload: read, where: {array.layout: parity-last}}
      at_least: 7MB/s
"""
KERNELS = ("6.12.107", "6.12.111", "6.12.113")


def judged(verdict: Verdict, day: int, **other: str) -> Judgement:
    its = {"scenario": "s", "claim": "C", "image": "debian-13", "cells": "x", "mdadm": "4.4-1"}
    its |= {"kernel": "6.12.107", "started": f"2026-03-{day:02}"} | other
    return Judgement(verdict=verdict, **its)


HOLDS, REFUTED, OPEN = Verdict.HOLDS, Verdict.REFUTED, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("earlier", "day"),
    [
        ([(HOLDS, 1)], 1),
        ([(REFUTED, 1), (HOLDS, 2)], 2),
        ([(HOLDS, 1), (OPEN, 2)], 1),
        ([(HOLDS, 1), (REFUTED, 2)], None),  # it was refuted before: bisected then
        ([(OPEN, 1)], None),
        ([], None),
        ([(HOLDS, 9)], None),  # a later run
    ],
)
def test_only_a_verdict_that_held_last_time_counts(
    earlier: list[tuple[Verdict, int]], day: int | None
) -> None:
    now = judged(REFUTED, 5, kernel="6.12.111")
    found = held_before(now, [judged(*one) for one in earlier])
    assert (found and found.started) == (day and f"2026-03-{day:02}")
    assert held_before(replace(now, verdict=HOLDS), [judged(HOLDS, 1)]) is None


@pytest.mark.parametrize("field", ["scenario", "claim", "image", "cells"])
def test_verdicts_of_other_questions_are_not_compared(field: str) -> None:
    other = judged(HOLDS, 1, **{field: "other"})
    assert held_before(judged(REFUTED, 5), [other]) is None


def test_what_differs_is_bisected_the_kernel_first() -> None:
    good = judged(HOLDS, 1)
    both = judged(REFUTED, 2, kernel="6.12.111", mdadm="4.6-3")
    assert axes_between(good, both) == [
        (Axis.KERNEL, "6.12.107", "6.12.111"),
        (Axis.MDADM, "4.4-1", "4.6-3"),
    ]
    assert axes_between(good, judged(REFUTED, 2)) == []


# -- a matrix run, with runs of theory and a bisection that is not run


def compiled(place: Path) -> CompiledMatrix:
    (place / "small.yaml").write_text(SMALL + CLAIM)
    (place / "m.yaml").write_text("title: M\nscenarios: [small.yaml]\nimages: [debian-13]\n")
    return compile_matrix(place / "m.yaml")


def stored(matrix: CompiledMatrix, night: int, kernel: str, drift: float, mdadm: str) -> Path:
    """Store a run of the matrix's only job; return the matrix run's directory."""
    job = matrix.jobs[0]
    assert job.compiled is not None
    run = theory_run(
        paths.runs(),
        job.compiled.path.read_text(),
        name="small",
        stamp=f"202603{night:02}-010000",
        compiled=job.compiled,
        drift=drift,
    )
    about = run.load_run()
    image = {"name": "debian-13", "kernel": kernel, "mdadm": mdadm}
    environment = {**about.environment, "image": image, "guest": {"kernel": kernel}}
    run.save_run(about.model_copy(update={"environment": environment}))
    for said in run.directory.glob("cells/*/raw/environment.txt"):
        said.write_text(f"kernel={kernel}\nmdadm=mdadm - v4.4\n")
    run.save_result(result_of(run))
    planned = plan_of(matrix, host_of(None), runs=())
    directory = running.begin(matrix, planned)
    record = MATRIX_RUNS.load(directory)
    done = {"state": JobState.DONE, "run": str(run.directory)}
    jobs = tuple(one.model_copy(update=done) for one in record.jobs)
    MATRIX_RUNS.save(directory, record.model_copy(update={"jobs": jobs}))
    return directory


@pytest.fixture
def asked(lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Bisection]:
    """Versions of the archives, and the bisections that are begun; each finds 6.12.111."""
    del lab_home
    its = [version(name) for name in KERNELS]
    index = PackageIndex(read="2999-01-01T00:00:00+00:00", releases=(), versions=tuple(its))
    paths.packages().mkdir(parents=True)
    (paths.packages() / packages.INDEX).write_text(index.model_dump_json(by_alias=True))
    begun = list[Bisection]()

    def run(directory: Path, _options: Any) -> Bisection:
        record = BISECTIONS.load(directory)
        begun.append(record)
        pair = Pair(good=record.versions[0].name, bad=record.versions[1].name)
        found = record.model_copy(update={"ending": Ending.FOUND, "pair": pair})
        BISECTIONS.save(directory, found)
        return found

    monkeypatch.setattr(bisect_run, "run", run)
    return begun


def version(number: str) -> Version:
    name = f"linux-image-{number}-cloud-amd64"
    file = PackageFile(name=name, version=f"{number}-1", size=4, sha256="0" * 64)
    return Version(
        axis=Axis.KERNEL,
        name=name,
        version=f"{number}-1",
        branch="6.12",
        release="trixie",
        packages=(file,),
    )


def after(matrix: CompiledMatrix, directory: Path) -> MatrixRun:
    bisecting.bisect_flips(matrix, directory, None)  # type: ignore[arg-type]
    return MATRIX_RUNS.load(directory)


def test_a_claim_that_became_refuted_is_bisected_and_in_the_report(
    tmp_path: Path, asked: list[Bisection]
) -> None:
    matrix = compiled(tmp_path)
    first = stored(matrix, 1, "6.12.107-cloud-amd64", 1.0, "4.4-1")
    assert after(matrix, first).bisections == ()
    second = stored(matrix, 2, "6.12.113-cloud-amd64", 0.5, "4.4-1")
    (flip,) = after(matrix, second).bisections
    (record,) = asked
    assert (record.claim, record.axis) == ("FAST", Axis.KERNEL)
    assert [one.version for one in record.versions] == ["6.12.107-1", "6.12.111-1", "6.12.113-1"]
    assert "guest.image=debian-13" in record.overrides
    assert not any(text.startswith("guest.kernel") for text in record.overrides)
    assert "The first bad version is Linux 6.12.111-1" in flip.result
    lines = [line for line, _ in remarkable(running.matrix_result(second))]
    assert flip_sentence(flip) in lines
    # a second call does nothing, and in the next run nothing has become refuted
    after(matrix, second)
    third = stored(matrix, 3, "6.12.113-cloud-amd64", 0.5, "4.4-1")
    assert after(matrix, third).bisections == ()
    assert len(asked) == 1


def test_what_cannot_be_bisected_says_why(tmp_path: Path, asked: list[Bisection]) -> None:
    matrix = compiled(tmp_path)
    stored(matrix, 1, "6.12.43-cloud-amd64", 1.0, "4.4-1")
    (flip,) = after(matrix, stored(matrix, 2, "6.12.113-cloud-amd64", 0.5, "4.4-1")).bisections
    assert "could not be bisected over kernel" in flip.result
    assert "linux-image-6.12.43-cloud-amd64" in flip.result
    assert flip.bisection is None
    assert asked == []


def test_the_same_versions_are_not_the_reason(tmp_path: Path, asked: list[Bisection]) -> None:
    matrix = compiled(tmp_path)
    stored(matrix, 1, "6.12.113-cloud-amd64", 1.0, "4.4-1")
    (flip,) = after(matrix, stored(matrix, 2, "6.12.113-cloud-amd64", 0.5, "4.4-1")).bisections
    assert "Linux and mdadm are the same" in flip.result
    assert asked == []


def test_an_interrupted_bisection_is_continued(
    tmp_path: Path, asked: list[Bisection], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = compiled(tmp_path)
    stored(matrix, 1, "6.12.107-cloud-amd64", 1.0, "4.4-1")
    second = stored(matrix, 2, "6.12.113-cloud-amd64", 0.5, "4.4-1")

    def stop(*_: object) -> Bisection:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bisect_run, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            after(matrix, second)
    (begun,) = MATRIX_RUNS.load(second).bisections
    assert begun.result == ""
    monkeypatch.setattr(planning, "begun", stop)  # no second one begins
    (flip,) = after(matrix, second).bisections
    assert flip.bisection == begun.bisection
    assert flip.result
    assert len(asked) == 1


def test_the_packages_of_a_run_are_kept(
    tmp_path: Path, asked: list[Bisection], monkeypatch: pytest.MonkeyPatch
) -> None:
    del asked
    matrix = compiled(tmp_path)
    directory = stored(matrix, 1, "6.12.107-cloud-amd64", 1.0, "4.4-1")
    kept = list[str]()

    def fetch(one: Version, *_: object, **__: object) -> None:
        kept.append(one.name)
        if len(kept) > 1:
            raise HostError("no archive")

    monkeypatch.setattr(packages, "fetch", fetch)
    problems = bisecting.keep_packages(directory, lambda *_: None, accept_expired=False)
    assert kept == ["linux-image-6.12.107-cloud-amd64"]
    assert len(problems) == 1  # mdadm 4.4-1 is in no list here
    assert "4.4-1" in problems[0]
