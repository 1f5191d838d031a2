"""seek: fio measures as seekmark does; offsets, and the stream for theory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.plugin import Stream
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads.seek import WORKLOAD, SeekParameters

GOLDEN = Path(__file__).parent.parent / "golden" / "workloads" / "seek" / "unaligned-reads"
READS: dict[str, Any] = {"bs": "32KiB", "number_ios": 400}


def _parameters(**changes: Any) -> SeekParameters:
    return SeekParameters.model_validate({**READS, **changes})


def _parse(change: dict[str, Any], **changes: Any) -> dict[str, float]:
    report = json.loads((GOLDEN / "stdout").read_text())
    job = report["jobs"][0]
    for path, value in change.items():
        *above, last = path.split(".")
        node = job
        for key in above:
            node = node[key]
        node[last] = value
    outputs = Outputs(stdout=json.dumps(report, indent=1), stderr="", files={})
    return WORKLOAD.parse(_parameters(**changes), outputs)


def test_reads_begin_at_pages_and_not_at_multiples_of_their_size() -> None:
    assert WORKLOAD.script(_parameters(size="1GiB"), "/dev/md/bench") == (
        "LC_ALL=C fio --name=seek --output-format=json --filename=/dev/md/bench --ioengine=psync"
        " --rw=randread --bs=32768 --blockalign=4096 --norandommap=1 --randrepeat=0"
        " --randseed=1 --size=1073741824 --io_size=13107200 --direct=1\n"
    )


def test_writes_are_on_the_disks_one_by_one_unless_that_is_switched_off() -> None:
    synced = WORKLOAD.script(_parameters(rw="randwrite"), "/t")
    assert "--sync=sync --overwrite=1" in synced
    assert "--sync" not in WORKLOAD.script(_parameters(rw="randwrite", sync=False), "/t")


def test_seeks_are_requests_by_seconds() -> None:
    found = _parse({"read.runtime": 2500})
    assert found["iops"] == 160.0
    assert found["throughput"] == 160.0 * 32768
    assert found["seconds"] == 2.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"error": 5}, "fio ended with error 5"),
        ({"read.total_ios": 399}, "did 399 requests"),
        ({"read.io_bytes": 1}, "with 1 bytes"),
        ({"write.total_ios": 1}, r"1 requests in the other .*randread"),
        ({"read.runtime": 0}, "raise number_ios"),
        ({"read.runtime": "long"}, "did not print JSON"),
    ],
)
def test_a_run_that_was_another_is_noticed(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        _parse(change)


def test_reads_are_no_writes() -> None:
    with pytest.raises(ToolError, match="did 0 requests"):
        _parse({}, rw="randwrite")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bs": 0}, "at least one byte"),
        ({"bs": 1000}, "multiples of 512"),
        ({"blockalign": 100}, "multiples of 512"),
        ({"size": "16KiB"}, "smaller than one request"),
        ({"rw": "read"}, "randread"),
        ({"filename": "/dev/sda"}, "does not contain"),
        ({"number_ios": 0}, "greater than or equal to 1"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _parameters(**changes)


def test_any_byte_will_do_through_the_page_cache() -> None:
    assert "--blockalign=1 " in WORKLOAD.script(_parameters(direct=False, blockalign=1), "/t")


def test_theory_hears_only_of_what_it_has_rules_for() -> None:
    aligned = {"blockalign": "32KiB"}
    assert WORKLOAD.stream(_parameters(**aligned)) == Stream(
        direction="read", block=32768, total=32768 * 400, random=True, repeats=True, seed=1
    )
    assert WORKLOAD.stream(_parameters()) is None
    assert WORKLOAD.stream(_parameters(**aligned, direct=False)) is None
    assert WORKLOAD.stream(_parameters(**aligned, rw="randwrite")) is None
    unsynced = WORKLOAD.stream(_parameters(**aligned, rw="randwrite", sync=False))
    assert unsynced is not None
    assert unsynced.direction == "write"


def test_only_writes_destroy() -> None:
    assert WORKLOAD.destroys(_parameters(rw="randwrite"))
    assert not WORKLOAD.destroys(_parameters())
    beside = _parameters(rw="randwrite", filename="{target}.seek", blockalign="32KiB", sync=False)
    assert not WORKLOAD.destroys(beside)
    assert WORKLOAD.stream(beside) is None
    assert "--filename=/mnt/bench/data.seek " in WORKLOAD.script(beside, "/mnt/bench/data")
