"""Stored measured runs: complete, without traces of their host, and judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.model.result.document import Basis, ClaimResult, Part, Result
from lab.model.scenario.claim import Verdict
from lab.results.documents import result_of
from tests import kept


@pytest.mark.parametrize("name", kept.NAMES)
def test_a_kept_run_gives_its_result_again_and_says_nothing_of_its_place(
    name: str, tmp_path: Path
) -> None:
    store = kept.unpacked(name, tmp_path)
    assert store.warnings() == ()
    run = store.load_run()
    assert {cell.id for cell in run.cells} == {p.name for p in store.directory.glob("cells/[!.]*")}
    assert json.loads(run.model_dump_json())["environment"]["host"]["name"] == "host"
    before, now = store.load_result(), result_of(store)
    assert before is not None
    assert before.run.directory == f"/lab/runs/{store.id}"
    withdrawn = {(c.id, u.workload, u.metric) for c in now.cells for u in c.unsupported}
    kept_ones = {k: v for k, v in figures(before).items() if k not in withdrawn}
    assert kept_ones.items() <= figures(now).items()  # this version may measure more
    assert all("clat_p" in metric for _, _, metric in withdrawn)
    assert [(c.id, c.verdict, c.measured) for c in now.claims] == [
        (c.id, c.verdict, c.measured) for c in before.claims
    ]
    for path in store.directory.rglob("*"):
        assert path.is_dir() or not kept.TELLTALE.search(path.read_bytes()), path


@pytest.mark.parametrize("name", kept.NAMES)
def test_no_verdict_stands_on_an_interval_that_crosses_its_bound(name: str, tmp_path: Path) -> None:
    claims = result_of(kept.unpacked(name, tmp_path)).claims
    assert [why for claim in claims if (why := kept.unfounded(claim))] == []
    assert any(claim.parts for claim in claims)


def test_a_verdict_without_ground_is_found() -> None:
    """The check's own controls."""
    inside = Part(measured=2, low=1.5, high=3, at_least=1, trials=4, basis=Basis.SEEDS)
    crossing = inside.model_copy(update={"low": 0.5})
    outside = inside.model_copy(update={"low": 0.1, "high": 0.9})
    single = inside.model_copy(update={"trials": 1, "low": 2.0, "high": 2.0})
    holds, refuted = Verdict.HOLDS, Verdict.REFUTED

    def claim(verdict: Verdict, *parts: Part) -> ClaimResult:
        return ClaimResult(id="a", says="b", verdict=verdict, parts=parts)

    assert (
        kept.unfounded(claim(holds, inside))
        == kept.unfounded(claim(refuted, inside, outside))
        == ""
    )
    assert kept.unfounded(claim(Verdict.INCONCLUSIVE, crossing)) == ""
    for wrong in (
        claim(holds, inside, crossing),
        claim(holds, outside),
        claim(refuted, crossing),
        claim(holds, single),
        claim(holds, single.model_copy(update={"basis": Basis.TRIALS})),
        claim(holds),
    ):
        assert kept.unfounded(wrong)
    fixed = single.model_copy(update={"basis": Basis.FIXED})
    assert kept.unfounded(claim(holds, fixed)) == ""


def figures(result: Result) -> dict[tuple[str, str, str], tuple[float, ...]]:
    return {(c.id, m.workload, m.metric): m.values for c in result.cells for m in c.measurements}


def test_there_are_runs_of_layouts_and_of_a_bitmap() -> None:
    assert {"raid5-layouts", "bitmap-random-write"} <= set(kept.NAMES)
    assert all(path.stat().st_size < 1.5e6 for path in kept.PLACE.iterdir())


def test_a_run_is_kept_the_same_each_time_and_not_with_a_secret(tmp_path: Path) -> None:
    name = "raid5-parity-last"
    store = kept.unpacked(name, tmp_path)
    (store.directory / "worker-g1.log").write_text("hostname: its own name")
    again = kept.keep(store.directory, tmp_path / "kept")
    assert again.read_bytes() == (kept.PLACE / again.name).read_bytes()
    places = store.directory / "cells" / "note"
    places.write_text('"/some/where/lab/guests/g123456/disk", "directory": "/x/y/RUN"')
    [note] = [data for file, data in kept.files_of(store.directory) if file == "cells/note"]
    assert note == b'"/lab/guests/g123456/disk", "directory": "/lab/runs/RUN"'
    for secret in ("/".join(["", "root", ".ssh"]), "BEGIN OPENSSH PRIVATE KEY"):
        places.write_text(secret)
        with pytest.raises(ValueError, match="note"):
            kept.keep(store.directory, tmp_path / "kept")
