"""A host of a cluster makes the same cells, and a stopped run resumes on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.capabilities.cluster import tls, worker_process
from lab.capabilities.cluster.model import Assignment
from tests.fakes import Cli, with_matrix
from tests.unit.test_go_on import again, ended_by, files
from tests.unit.test_scenario_forms import BITMAPS, compiled, ids

BOTH = with_matrix(
    "  array.level: [1, 10]\n  array.layout: [n2, f2]\n"
    "cases:\n  - {guest.cpus: 2}\n  - {}\n"
    "profiles: {p: {disks.size: 2GiB, workloads.write.bs: 1MiB}}\n",
    BITMAPS.replace("workloads:", "  bitmap: internal\n  bitmap_chunk: 4MiB\nworkloads:"),
)


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("profile=p",),
        ("array.level=1",),
        ("array.bitmap=none",),
        ("profile=p", "guest.cpus=3", "array.layout=o2"),
        ("matrix={}",),
    ],
)
def test_a_portable_document_makes_the_same_cells(tmp_path: Path, sets: tuple[str, ...]) -> None:
    found = compiled(tmp_path, BOTH, *sets)
    given = Assignment.model_construct(
        scenario="q",
        document=json.loads(json.dumps(found.portable)),
        overridden=tuple(".".join(map(str, path)) for path in found.document.overrides),
        trials=1,
    )
    theirs = worker_process._compiled(given)
    assert theirs.cells == found.cells
    assert ids(theirs) == ids(found)


CLUSTER = """
from lab.capabilities.cluster import run as cluster
cluster.joined = joined
"""


def test_the_command_that_resumes_names_the_cluster(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = files(cli, monkeypatch)
    tls.make(base / "tls")
    words = ("run", "scenario", "./question.yaml", "--cluster", "127.0.0.1:8786")
    words += ("--tls", str(base / "tls"))
    assert again(ended_by(cli, CLUSTER)("SIGTERM", 1, *words))[: len(words)] == [*words]
