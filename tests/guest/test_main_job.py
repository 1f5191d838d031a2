"""The main job, for real: boot, build, measure, judge, and leave nothing behind."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from lab.core.units import MIB
from lab.model.result.document import Result

from .conftest import Home

pytestmark = pytest.mark.guest

PUBLISHED = {
    # layout, disks, workload: MB/s of the post, and by how much it may differ
    ("parity-last", 5, "write"): (10.0, 0.11),
    ("left-symmetric", 5, "write"): (13.4, 0.06),
    ("parity-last", 5, "read"): (21.8, 0.06),
    ("left-symmetric", 5, "read"): (27.6, 0.06),
    ("parity-last", 3, "write"): (10.7, 0.06),
    ("parity-last", 3, "read"): (10.7, 0.06),
}


@pytest.fixture(scope="module")
def document(lab_home: Home, image: str) -> Any:
    found = lab_home.json("run", "scenario", "raid5-parity-last")
    assert lab_home.left() == []
    return found


def cell_of(document: Any, layout: str, disks: int) -> Any:
    (cell,) = [
        c for c in document["cells"] if c["axes"] == {"array.layout": layout, "disks.count": disks}
    ]
    return cell


def throughput(document: Any, layout: str, disks: int, workload: str) -> float:
    (found,) = [
        m
        for m in cell_of(document, layout, disks)["measurements"]
        if (m["workload"], m["metric"]) == (workload, "throughput")
    ]
    assert found["unit"] == "B/s"
    return float(found["median"])


def test_the_document_is_the_one_that_other_programs_expect(document: Any) -> None:
    assert document["schema"] == "lab.result/1"
    Result.model_validate(document)
    assert len(document["cells"]) == 3
    assert {c["outcome"] for c in document["cells"]} == {"done"}
    assert all(check["passed"] for c in document["cells"] for check in c["checks"])
    names = {check["name"] for c in document["cells"] for check in c["checks"]}
    assert {"disks", "array", "programs", "uncontended", "calibrated"} <= names
    for cell in document["cells"]:
        parts = cell["seconds"]
        named = sum(seconds for name, seconds in parts.items() if name != "total")
        assert parts["total"] == pytest.approx(named)
        assert parts["workloads"] > 10


@pytest.mark.parametrize("key", PUBLISHED)
def test_each_published_figure_is_met(document: Any, key: tuple[str, int, str]) -> None:
    published, within = PUBLISHED[key]
    assert throughput(document, *key) / 1e6 == pytest.approx(published, rel=within)


def test_whole_stripes_lift_the_limit_that_the_post_saw(document: Any) -> None:
    last = throughput(document, "parity-last", 5, "write_stripe")
    left = throughput(document, "left-symmetric", 5, "write_stripe")
    assert 0.97 <= last / left <= 1.03
    # and the same disks with the post's block are half as fast: the control
    assert throughput(document, "parity-last", 5, "write") / last < 0.6


def test_each_claim_is_open_since_the_noise_of_this_new_home_is_not_known(document: Any) -> None:
    assert {c["verdict"] for c in document["claims"]} == {"inconclusive"}
    assert all("--clock virtual" in c["reason"] for c in document["claims"])


def test_in_virtual_time_two_trials_decide_most_claims(lab_home: Home) -> None:
    options = ("--clock", "virtual", "--trials", "2")
    found = lab_home.json("run", "scenario", "raid5-parity-last", *options)
    verdicts = Counter(c["verdict"] for c in found["claims"])
    assert verdicts.keys() == {"holds", "inconclusive"}
    assert verdicts["holds"] > 2 * verdicts["inconclusive"]


@pytest.mark.slow
def test_in_virtual_time_every_claim_holds(lab_home: Home) -> None:
    options = ("--clock", "virtual", "--trials", "auto")
    found = lab_home.json("run", "scenario", "raid5-parity-last", *options)
    assert {c["verdict"] for c in found["claims"]} == {"holds"}


def test_theory_is_met(document: Any) -> None:
    for cell in document["cells"]:
        predicted = {(p["workload"], p["metric"]): p["value"] for p in cell["predictions"]}
        for found in cell["measurements"]:
            if found["metric"] != "throughput":
                continue
            expected = predicted[found["workload"], "throughput"]
            assert found["median"] == pytest.approx(expected, rel=0.06)


def test_the_members_moved_the_bytes_that_the_layout_demands(document: Any) -> None:
    """Counted, not timed: parity-last reads nothing from its last disk, left-symmetric does."""

    def counted(layout: str, workload: str) -> dict[str, Any]:
        cell = cell_of(document, layout, 5)
        return {c["serial"]: c for c in cell["counters"] if c["workload"] == workload}

    last, left = counted("parity-last", "read"), counted("left-symmetric", "read")
    assert last["disk5"]["read_bytes"] < MIB
    assert left["disk5"]["read_bytes"] == pytest.approx(20 * MIB, rel=0.02)
    assert sum(c["read_bytes"] for c in last.values()) == pytest.approx(100 * MIB, rel=0.02)
    # Half-stripe writes: each block makes md write the parity again, all of it on the last disk.
    written = counted("parity-last", "write")
    assert written["disk5"]["written_bytes"] == pytest.approx(50 * MIB, rel=0.02)
    assert written["disk1"]["written_bytes"] == pytest.approx(25 * MIB, rel=0.02)
    whole = counted("parity-last", "write_stripe")
    assert whole["disk5"]["written_bytes"] == pytest.approx(25 * MIB, rel=0.02)
    # Nothing is read for them, by udev neither: it does not look at what dd has closed.
    assert sum(c["read_bytes"] for c in whole.values()) == 0
    assert sum(c["read_bytes"] for c in written.values()) == pytest.approx(50 * MIB, rel=0.01)


def test_a_stored_run_is_read_measured_and_judged_again(lab_home: Home, document: Any) -> None:
    again = lab_home.json("results", "show", document["run"]["id"])
    assert again["claims"] == document["claims"]
    assert again["cells"] == document["cells"]
    (run,) = [r for r in lab_home.json("results", "list")["runs"] if r["id"] == again["run"]["id"]]
    assert (run["holds"], run["refuted"], run["state"]) == (0, 0, "finished")
    page = lab_home.run("results", "show", document["run"]["id"]).stdout
    assert re.search(rf"{document['claims'][0]['id']}\s+inconclusive", page)
    assert "3 of 3 cells done" in page
    assert max(len(line) for line in page.splitlines()) <= 80


@pytest.mark.slow
def test_one_cell_of_ones_own_choosing_runs_alone(lab_home: Home, image: str) -> None:
    found = lab_home.json(
        *("run", "scenario", "raid5-parity-last", "--set", "matrix={}"),
        *("--set", "array.layout=left-asymmetric", "--set", "disks.count=6"),
        *("--set", "array.chunk=256KiB"),
        *("--set", "disks.throttle.total_bytes_per_second=4MiB"),
        *("--set", "workloads.write.bs=512KiB"),
    )
    (cell,) = found["cells"]
    assert cell["outcome"] == "done"
    assert cell["axes"] == {}
    detail = next(c["detail"] for c in cell["checks"] if c["name"] == "array")
    assert "layout=0" in detail
    assert "raid_disks=6" in detail
    assert "chunk_size=262144" in detail
    expected = {
        p["workload"]: p["value"] for p in cell["predictions"] if p["metric"] == "throughput"
    }
    for one in cell["measurements"]:
        if one["metric"] == "throughput":
            assert one["median"] == pytest.approx(expected[one["workload"]], rel=0.06)
    assert {c["verdict"] for c in found["claims"]} == {"not_tested"}
    assert lab_home.left() == []
