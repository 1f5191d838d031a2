"""What killed processes were making is counted and removed, and kept judgements too."""

from __future__ import annotations

import pytest

from lab.capabilities.prune import run as prune
from lab.capabilities.prune.model import Kind
from lab.host.system import leftovers, paths
from lab.results import judged
from tests import kept
from tests.unit.test_leftovers import MAKERS, SIZE, stopped

pytestmark = pytest.mark.usefixtures("lab_home")


@pytest.mark.parametrize("name", ["a file", "an image as a raw file", "a removed image"])
def test_what_a_killed_maker_leaves_is_counted_and_removed(name: str) -> None:
    make, large = MAKERS[name]
    with stopped(make):
        pass
    there = leftovers.every()
    assert there
    found = prune.plan(10**12, with_runs=False)  # there is room for everything else
    gone = [item for item in found.items if item.remove]
    assert [item.kind for item in gone] == [Kind.LEFTOVER] * len(there)
    space = sum(item.bytes for item in gone)
    assert space >= (SIZE if large else 0)
    assert found.before - found.after == space
    done = prune.carry_out(found, lambda _: None)
    assert (done.before - done.after, leftovers.every()) == (space, [])


def test_kept_judgements_are_removed() -> None:
    run = kept.unpacked("raid5-parity-last", paths.runs())
    judged.result_of(run)
    planned = prune.plan(0, with_runs=False)
    assert [item.name for item in planned.items if item.kind == "judgement"] == ["judged"]
    prune.carry_out(planned, lambda item: None)
    assert list(paths.judged().iterdir()) == []
