"""``lab disk fit``: what is read of fio's JSON, and what is refused with which sentence."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.disks.fio_results import Results
from lab.capabilities.disks.run import fit
from lab.core.errors import InputError
from lab.md.theory.load_fit import chosen, halves


def report(mode: str = "randread", depth: int = 1, **more: Any) -> dict[str, Any]:
    """Return fio's JSON of one job; ``more``: its options."""
    side = {
        "total_ios": 6000,
        "runtime": 60_000,
        "clat_ns": {
            "mean": 9.0e6,
            "percentile": {"50.000000": 8_000_000, "99.000000": 20_000_000},
        },
    }
    options = {"rw": mode, "bs": "4k", "iodepth": str(depth), "numjobs": "1"}
    return {
        "fio version": "fio-3.36",
        "timestamp": 1_700_000_000,
        "global options": {"filename": "/dev/sdq", "direct": "1", "ioengine": "libaio"},
        "jobs": [
            {
                "jobname": "j",
                "error": 0,
                "job options": options | {k: str(v) for k, v in more.items()},
                "read": side if mode != "randwrite" else {"total_ios": 0},
                "write": side if mode != "randread" else {"total_ios": 0},
                "sync": {"total_ios": 0},
            }
        ],
        "disk_util": [{"name": "sdq"}],
    }


def added(*documents: Any) -> Results:
    results = Results()
    for number, document in enumerate(documents):
        text = document if isinstance(document, str) else json.dumps(document, indent=1)
        results.add(text, f"f{number}.json")
    return results


def test_a_job_becomes_a_load() -> None:
    results = added(
        report("randread", 4), report("randrw", 2, rwmixread=70), "noise\n" + json.dumps(report())
    )
    read, mixed, _ = results.loads
    assert (read.read_share, read.depth, read.jobs, read.block) == (1.0, 4, 1, 4096)
    assert read.rate == 100
    assert read.mean == 0.009
    assert read.percentiles == {50.0: 0.008, 99.0: 0.020}
    assert read.begins == 1_700_000_000 - 60
    assert (mixed.read_share, mixed.rate, mixed.percentiles) == (0.7, 200, {})
    assert results.target == "/dev/sdq"


def test_flushes_are_fios_sync_times() -> None:
    document = report("randwrite", 1, fsync=8)
    document["jobs"][0]["sync"] = {
        "total_ios": 0,
        "lat_ns": {"N": 700, "percentile": {"50.000000": 110_000_000}},
    }
    (load,) = added(document).loads
    assert (load.flush_every, load.flushes) == (8, {50.0: 0.110})
    assert not added(report("randwrite", 8, fsync=8)).loads


def test_processes_of_one_job_are_one_load() -> None:
    document = report("randread", 2, numjobs=3)
    document["jobs"] = [deepcopy(document["jobs"][0]) for _ in range(3)]
    (load,) = added(document).loads
    assert (load.jobs, load.total, load.rate) == (3, 6, 300)
    assert load.percentiles[50.0] == pytest.approx(0.008)


def test_what_is_not_random_is_counted_and_passed_over() -> None:
    results = added(report("read"), report("randread", rate_iops=50), report())
    assert len(results.loads) == 1
    assert sum(results.passed_over.values()) == 2


def changed(**more: Any) -> dict[str, Any]:
    return {**report(), **more}


def failed() -> dict[str, Any]:
    document = report()
    document["jobs"][0]["error"] = 5
    return document


def of_array() -> dict[str, Any]:
    return changed(
        **{"global options": {"filename": "/dev/md127", "direct": "1"}},
        disk_util=[{"name": "md127"}],
    )


def in_file_on_array() -> dict[str, Any]:
    return changed(
        **{"global options": {"filename": "t", "direct": "1"}}, disk_util=[{"name": "md0"}]
    )


def without(*path: str) -> dict[str, Any]:
    document = report()
    part = document["jobs"][0]
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return document


def two_at_once() -> dict[str, Any]:
    document = report()
    document["jobs"] += report("randwrite")["jobs"]
    return document


REFUSED = [
    pytest.param("", "is empty: expected the output of fio", id="empty"),
    pytest.param(json.dumps(report(), indent=1)[:300], "is cut off: expected the whole", id="cut"),
    pytest.param("hello", "has no jobs: expected", id="text"),
    pytest.param("[" * 100_000, "", id="deep"),
    pytest.param('{"a":' * 100_000, "is cut off", id="deeper"),
    pytest.param(json.dumps({"jobs": 3}), "has no jobs", id="other JSON"),
    pytest.param(
        changed(**{"fio version": "fio-2.16"}), "JSON of fio-2.16: expected fio 3.0", id="2"
    ),
    pytest.param(changed(**{"fio version": None}), "expected fio 3.0 or later", id="no version"),
    pytest.param(failed(), "ended with error 5: expected a job that ended well", id="failed"),
    pytest.param(of_array(), "fio ran on an array, /dev/md127: expected a single disk", id="array"),
    pytest.param(in_file_on_array(), "fio ran on an array, md0", id="file on an array"),
    pytest.param(without("read", "clat_ns"), "no number clat_ns.mean", id="no latencies"),
    pytest.param(two_at_once(), "several loads at once: expected one at a time", id="two at once"),
    pytest.param(report(iodepth="many"), "iodepth='many': expected a whole number", id="depth"),
    pytest.param(report(direct="0"), "used the page cache", id="buffered"),
]


@pytest.mark.parametrize(("document", "said"), REFUSED)
def test_other_input_gets_a_sentence(document: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        added(report(), document)
    assert said in caught.value.message
    assert caught.value.message.startswith("f1.json")
    assert "expected" in caught.value.message
    assert "\n" not in caught.value.message


def test_results_of_two_disks_are_refused() -> None:
    other = changed(**{"global options": {"filename": "/dev/sdz", "direct": "1"}})
    with pytest.raises(InputError, match="fio ran on /dev/sdz, and on /dev/sdq in other files"):
        added(report(), other)


@pytest.mark.parametrize("depths", [[4], [4, 8]])
def test_one_depth_or_two_do_not_make_a_model(depths: list[int]) -> None:
    results = added(*(report("randread", depth) for depth in depths))
    with pytest.raises(
        InputError, match=f"(one depth|two depths) only, {depths[0]}.*: expected three"
    ):
        chosen(results.loads)
    with pytest.raises(InputError, match="no random reads were found: expected"):
        chosen(added(report("randwrite")).loads)


def test_directories_and_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no \.json files"):
        fit([tmp_path], name=None, size=None, rpm=None)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        fit([tmp_path / "x.json"], name=None, size=None, rpm=None)
    (tmp_path / "a.json").write_text(json.dumps(report("read")))
    with pytest.raises(InputError, match="no random load was found in 1 files"):
        fit([tmp_path], name=None, size=None, rpm=None)
    with pytest.raises(InputError, match="is not a file name"):
        fit([tmp_path], name="../x", size=None, rpm=None)


def test_half_of_each_operations_depths_is_fitted() -> None:
    modes = [(mode, depth) for mode in ("randread", "randwrite") for depth in (1, 2, 4, 8)]
    loads = chosen(added(*(report(mode, depth) for mode, depth in modes)).loads)
    assert [x.depth for x, fitted in zip(loads, halves(loads), strict=True) if fitted] == [
        1,
        4,
        1,
        4,
    ]


def test_a_cache_is_full_if_writes_came_directly_before() -> None:
    documents = [report("randread"), report("randwrite", 1), report("randwrite", 2)]
    documents += [report("randwrite", 4), report("randread", 2), report("randread", 4)]
    for number, document in enumerate(documents):
        document["timestamp"] += 61 * number + (600 if number >= 3 else 0)
    loads = chosen(added(*documents).loads)
    assert {(x.read_share, x.depth): x.full for x in loads} == {
        (1.0, 1): False,
        (1.0, 2): True,
        (1.0, 4): False,
        (0.0, 1): False,
        (0.0, 2): True,
        (0.0, 4): False,
    }


HUGE: int = 10**400
ABSURD: dict[str, dict[str, Any]] = {
    "requests": {"total_ios": HUGE},
    "a rate": {"total_ios": 1e17},
    "milliseconds": {"runtime": HUGE},
    "no time": {"runtime": 5e-324},
    "little time": {"runtime": 1e-300},
    "infinity": {"total_ios": float("inf")},
    "a mean": {"clat_ns": {"mean": HUGE}},
    "a mean below zero": {"clat_ns": {"mean": -1}},
}


@pytest.mark.parametrize("which", ABSURD)
def test_what_no_fio_measured_is_a_sentence(which: str) -> None:
    document = report()
    document["jobs"][0]["read"] |= ABSURD[which]
    with pytest.raises(InputError, match=r"f0\.json: fio"):
        added(document)


def test_absurd_values_that_are_not_needed_are_left_out() -> None:
    document = report()
    percentiles = {"1.1.1": 5, "50": HUGE, "9" * 400: 5, "99": 20_000_000, "95": -1}
    document["jobs"][0]["read"]["clat_ns"]["percentile"] = percentiles
    document |= {"timestamp_ms": HUGE, "timestamp": -(10**308), "disk_util": 5}
    (load,) = added(document).loads
    assert (load.percentiles, load.begins) == ({99.0: 0.02}, None)
    with pytest.raises(InputError, match=r"fio 3\.0 or later"):
        added(report() | {"fio version": "fio-" + "9" * 5000 + ".1"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bs": "999999999t"}, "block: expected a whole number"),
        ({"size": "999999999t"}, "span: expected a whole number"),
        ({"bs": "4k", "size": "1k"}, "no drive that can be modelled"),
        ({"bs": "512m", "size": "1m"}, "no drive that can be modelled"),
    ],
)
def test_a_request_without_a_place_does_not_end_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], said: str
) -> None:
    """In C a division by zero ends the process, and a place beyond the disk is another's memory."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    for depth in (1, 2, 4, 8, 16, 32):
        document = report("randread", depth, **options)
        document["global options"]["filename"] = "file"
        (tmp_path / f"{depth}.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=said):
        fit([tmp_path], name="x", size=None, rpm=None)
