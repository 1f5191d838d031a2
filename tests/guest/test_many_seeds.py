"""``faults-modelled`` 20 times with one seed, and once with each of 20 seeds: about 20 minutes.

``-s`` shows a line per run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

RUNS = 20


def lost(cell: dict[str, Any], fault: str) -> float:
    """Return the number of acknowledged blocks that were lost by a power cut."""
    (found,) = (
        m["values"][0]
        for m in cell["measurements"]
        if (m["workload"], m["metric"]) == (fault, "lost")
    )
    return float(found)


def cells(lab_home: Home, seeds: list[int]) -> list[dict[str, Any]]:
    """Return the cell of a fresh run with each seed; two runs at a time."""

    def one(seed: int) -> dict[str, Any]:
        words = (
            "run",
            "scenario",
            "faults-modelled",
            "--seed",
            str(seed),
            "--fresh",
            "--jobs",
            "1",
        )
        (cell,) = lab_home.json(*words)["cells"]
        print(seed, cell["digest"]["results"], cell["seconds"]["total"], flush=True)
        return dict(cell)

    one(1)  # the snapshot, so that two runs do not both make it
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, seeds))


def test_one_seed_has_one_result_and_many_seeds_have_many(lab_home: Home, image: str) -> None:
    same = cells(lab_home, [1] * RUNS)
    assert len({cell["digest"]["results"] for cell in same}) == 1
    assert {lost(cell, "cut") for cell in same} == {0}
    others = cells(lab_home, list(range(1, RUNS + 1)))
    assert len({cell["digest"]["results"] for cell in others}) >= 15
    assert {lost(cell, "cut") for cell in others} == {0}
    assert any(lost(cell, "careless") > 0 for cell in others)
    assert lab_home.left() == []
