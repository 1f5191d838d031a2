"""fio: its options by fio's names, its script, its logs, and its stream for theory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.core.base import KEPT
from lab.core.errors import ToolError
from lab.model.plugin import Stream
from lab.model.scenario.outputs import Outputs
from lab.plugins.fio_options import names as options
from lab.plugins.workloads.fio import WORKLOAD, FioParameters, document, logs

GOLDEN = Path(__file__).parent.parent / "golden" / "workloads" / "fio"
RANDOM: dict[str, Any] = {
    "rw": "randwrite",
    "bs": "4k",
    "direct": True,
    "ioengine": "libaio",
    "iodepth": 16,
    "runtime": 15,
    "time_based": True,
}


def parameters(**more: Any) -> FioParameters:
    return FioParameters.model_validate({**RANDOM, **more})


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("bs", "4k", 4096),
        ("bs", "4KiB", 4096),
        ("bs", "8k,4k", "8192,4096"),
        ("bsrange", "4k-64k", "4096-65536"),
        ("size", "50%", "50%"),
        ("size", "1.5GiB", 3 * 2**29),
        ("size", 4096, 4096),
        ("runtime", "2m", 120.0),
        ("runtime", "2min", 120.0),
        ("runtime", "1500ms", 1.5),
        ("runtime", 15, 15.0),
        ("latency_target", 5000, "5000us"),
        ("latency_target", "5ms", "5000us"),
        ("latency_window", "5000us", "5000us"),
        ("direct", "yes", 1),
        ("norandommap", False, 0),
        ("rate_iops", "200,100", "200,100"),
        ("numjobs", 4, 4),
        ("timeout", 20, 20.0),
    ],
)
def test_values_have_one_spelling(name: str, given: object, kept: object) -> None:
    first = options.OTHER_NAMES.get(name, name)
    without = {k: v for k, v in RANDOM.items() if k not in (name, first)}
    found = FioParameters.model_validate({**without, name: given})
    assert found.options[first] == kept
    assert type(found.options[first]) is type(kept)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"iodpth": 4}, "did you mean 'iodepth'"),
        ({"output": "x"}, "set by the lab"),
        ({"blocksize": "4k"}, "blocksize and bs"),
        ({"bs": "4kB"}, "write 4k or 4KiB"),
        ({"bs": "4KB"}, "write 4k or 4KiB"),
        ({"runtime": "soon"}, "not a time"),
        ({"iodepth": "deep"}, "whole number"),
        ({"direct": "perhaps"}, "true or false"),
        ({"filename": "/dev/sda"}, "leave filename out"),
        ({"group_reporting": False}, "one report"),
        ({"unified_rw_reporting": "mixed"}, "merges the directions"),
        ({"rw": "randwrote"}, "is unknown to fio"),
        ({"runtime": None}, "needs a runtime"),
        ({"randseed": 2}, "add randrepeat: 0"),
        ({"randseed": 2, "randrepeat": True}, "add randrepeat: 0"),
        ({"bs": ["4k", "8k"]}, "one value"),
    ],
)
def test_what_is_refused_says_what_to_do(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parameters(**more)


def test_a_run_that_was_made_with_an_idle_seed_is_still_read() -> None:
    asked = {"rw": "randwrite", "bs": 4096, "size": 2**20, "randseed": 2}
    with pytest.raises(ValueError, match="add randrepeat: 0"):
        WORKLOAD.parameters.model_validate(asked)
    kept = WORKLOAD.parameters.model_validate(asked, context=KEPT)
    assert "--randseed=2" in WORKLOAD.script(kept, "/dev/md/bench")
    with pytest.raises(ValueError, match="is unknown to fio"):
        WORKLOAD.parameters.model_validate({**asked, "rw": "randwrote"}, context=KEPT)


def test_a_seed_counts_where_fio_does_not_repeat() -> None:
    script = WORKLOAD.script(parameters(randseed=2, randrepeat=0), "/dev/md/bench")
    assert "--randseed=2" in script
    assert "--randrepeat=0" in script


def test_every_option_has_one_kind() -> None:
    kinds = (options.SIZES, options.TIMES, options.SWITCHES, options.NUMBERS, options.WORDS)
    assert sum(len(kind) for kind in kinds) == len(frozenset().union(*kinds))
    assert set(options.OTHER_NAMES.values()) <= options.OPTIONS
    assert not set(options.OTHER_NAMES) & options.OPTIONS
    assert {"rw", "bs", "iodepth", "write_bw_log", "percentile_list"} <= options.OPTIONS


def test_the_script_hands_sizes_on_in_bytes() -> None:
    script = WORKLOAD.script(parameters(bs="4KiB"), "/dev/md/bench")
    assert "--bs=4096" in script
    assert "--runtime=15s" in script
    assert "--filename=/dev/md/bench" in script
    assert "--group_reporting=1" in script


def test_logs_are_kept_apart_and_cleaned_up() -> None:
    script = WORKLOAD.script(parameters(write_bw_log=True, log_avg_msec=1000), "/dev/md/bench")
    assert "--write_bw_log=log" in script
    assert 'rm -rf "$kept"' in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_script_with_logs_fails_where_fio_fails(tmp_path: Path) -> None:
    script = WORKLOAD.script(parameters(write_bw_log=True), "/dev/md/bench")
    fake = tmp_path / "fio"
    fake.write_text("#!/bin/sh\necho 1, 2, 0, 4096, 0 > log_bw.1.log\nexit 3\n")
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0
    assert logs(done.stdout) == {"log_bw.1.log": ((1, 2, 0, 4096),)}
    assert [path.name for path in tmp_path.iterdir()] == ["fio"]


def test_a_recorded_log_has_a_line_for_each_second_and_direction() -> None:
    stdout = (GOLDEN / "mixed-log" / "stdout").read_text()
    found = logs(stdout)
    assert set(found) == {"log_bw.1.log", "log_iops.1.log"}
    rows = found["log_iops.1.log"]
    assert {row[2] for row in rows} == {0, 1}
    assert [row[1] for row in rows if row[2] == 0] == pytest.approx([200, 200], rel=0.05)
    with pytest.raises(ToolError, match="cut off"):
        logs(stdout.rpartition("--8<--")[0].rpartition("--8<--")[0])
    with pytest.raises(ToolError, match="not numbers"):
        logs(stdout.replace("1000, 201", "1000, many"))


def test_a_run_that_ended_early_is_no_measurement() -> None:
    stdout = (GOLDEN / "random-write" / "stdout").read_text()
    outputs = Outputs(stdout=stdout, stderr="", files={})
    with pytest.raises(ToolError, match=r"2\.0 s, expected 15 s"):
        WORKLOAD.parse(parameters(), outputs)
    size = FioParameters.model_validate({"rw": "randwrite", "bs": "4k", "size": "16m"})
    with pytest.raises(ToolError, match="1638400 bytes, expected 16777216"):
        WORKLOAD.parse(size, outputs)


def test_what_theory_is_told() -> None:
    assert WORKLOAD.stream(parameters()) == Stream(
        direction="write", block=4096, total=None, random=True, depth=16, seconds=15.0
    )
    several = WORKLOAD.stream(parameters(numjobs=4, rw="randrw", rwmixread=70, ramp_time=2))
    assert several is not None
    assert (several.depth, several.read_share, several.rest) == (64, 0.7, 2.0)
    seeded = WORKLOAD.stream(WORKLOAD.seeded(parameters(), 3))
    assert seeded is not None
    assert seeded.seed == 3
    plain = FioParameters.model_validate({"rw": "read", "bs": "1m", "size": "64m", "direct": 1})
    assert WORKLOAD.stream(plain) == Stream(
        direction="read", block=2**20, total=64 * 2**20, span=64 * 2**20
    )


@pytest.mark.parametrize(
    "more",
    [
        {"direct": False},
        {"ioengine": "mmap"},
        {"rw": "randtrim"},
        {"bs": "4k,8k"},
        {"bssplit": "4k/50:8k/50"},
        {"random_distribution": "zipf:1.2"},
        {"rate_iops": 100},
        {"fsync": 1},
        {"iodepth_batch": 8},
        {"size": "50%"},
        {"rw": "write", "numjobs": 2},
        {"rw": "randwrite:8"},
    ],
)
def test_what_theory_is_not_told(more: dict[str, Any]) -> None:
    assert WORKLOAD.stream(parameters(**more)) is None


def test_what_destroys() -> None:
    assert WORKLOAD.destroys(parameters())
    assert not WORKLOAD.destroys(parameters(rw="randread"))


def outputs(case: str) -> Outputs:
    return Outputs(stdout=(GOLDEN / case / "stdout").read_text(), stderr="", files={})


def test_a_percentile_needs_requests_beyond_it() -> None:
    """400 requests support the 99th percentile, 300 do not: mixed-log wrote 300."""
    few = WORKLOAD.too_few(parameters(), outputs("random-write"))  # type: ignore[attr-defined]
    assert few == {"clat_p99_9": (400, 3688), "clat_p99_99": (400, 36887)}
    found = json.loads((GOLDEN / "mixed-log" / "expected.json").read_text())["parameters"]
    asked = FioParameters.model_validate(found)
    few = WORKLOAD.too_few(asked, outputs("mixed-log"))  # type: ignore[attr-defined]
    assert few["write_clat_p99"] == (300, 368)
    assert "read_clat_p99" not in few
    for silent in ({"clat_percentiles": 0}, {"disable_clat": 1}):
        told = WORKLOAD.too_few(parameters(**silent), outputs("random-write"))  # type: ignore[attr-defined]
        assert told == {}


def test_calls_that_flush_have_percentiles_of_their_own() -> None:
    """10029 writes to the page cache take 22 µs, and their fdatasync calls 35 ms."""
    found = json.loads((GOLDEN / "synced" / "expected.json").read_text())["parameters"]
    values = WORKLOAD.parse(FioParameters.model_validate(found), outputs("synced"))
    assert values["clat_p99"] == pytest.approx(21.9e-6, rel=0.01)
    assert values["sync_p99"] == pytest.approx(34.9e-3, rel=0.01)
    assert (values["syncs"], values["iops"]) == (10029, pytest.approx(53.3, rel=0.01))
    few = WORKLOAD.too_few(FioParameters.model_validate(found), outputs("synced"))  # type: ignore[attr-defined]
    assert few["sync_p99_99"] == (10029, 36887)
    assert "sync_p99" not in few


@pytest.mark.parametrize("group", ["lat", "slat"])
def test_other_groups_are_read_if_they_were_asked_for(group: str) -> None:
    text = outputs("random-write").stdout
    report = json.loads(text)
    write = report["jobs"][0]["write"]
    times = {f"{p:.6f}": round(1000 * p) for p in (50, 95, 99, 99.9, 99.99)}
    write[f"{group}_ns"]["percentile"] = times
    changed = Outputs(stdout=json.dumps(report, indent=2), stderr="", files={})
    asked = parameters(runtime="2s", rate_iops=200, **{f"{group}_percentiles": 1})
    values = WORKLOAD.parse(asked, changed)
    assert (values[f"{group}_p50"], values[f"{group}_p99"]) == (50e-6, 99e-6)
    assert values[f"{group}_max"] == write[f"{group}_ns"]["max"] / 1e9
    few = WORKLOAD.too_few(asked, changed)  # type: ignore[attr-defined]
    assert few[f"{group}_p99_9"] == (400, 3688)
    plain = WORKLOAD.parse(parameters(runtime="2s", rate_iops=200), changed)
    assert not any(name.startswith(f"{group}_") for name in plain)


def test_every_group_of_fios_report_is_read_or_left_out_for_a_reason() -> None:
    """A new group in a report of a newer fio is seen here."""
    read = {"read", "write", "trim", "sync"}
    known = {
        *("jobname", "groupid", "job_start", "error", "eta", "elapsed", "job options"),
        *("job_runtime", "usr_cpu", "sys_cpu", "ctx", "majf", "minf"),  # of the guest, not of disks
        *("iodepth_level", "iodepth_submit", "iodepth_complete"),  # how deep the queue was
        *("latency_ns", "latency_us", "latency_ms"),  # histograms of what the percentiles say
        *("latency_depth", "latency_target", "latency_percentile", "latency_window"),
    }
    for case in GOLDEN.iterdir():
        report = (case / "stdout").read_text()
        start = report.find("{\n")
        if start < 0:
            continue
        found = json.JSONDecoder().raw_decode(report[start:])[0]
        for job in found["jobs"]:
            assert set(job) <= read | known, case.name
            for direction in ("read", "write", "trim"):
                groups = {k for k, v in job[direction].items() if isinstance(v, dict)}
                assert groups <= {"slat_ns", "clat_ns", "lat_ns"}


@pytest.mark.parametrize(
    ("directory", "made"),
    [
        ("{target}/a", "mkdir -p /t/a"),
        ("{target}/a:{target}/b c", "mkdir -p /t/a '/t/b c'"),
        ("{target}/a\\:b", "mkdir -p /t/a:b"),
    ],
)
def test_a_directory_is_made(directory: str, made: str) -> None:
    """As by the other tools; fio fails without it."""
    first, second = WORKLOAD.script(parameters(directory=directory), "/t").splitlines()
    assert first == made
    assert "--directory=/t/a" in second
    assert "mkdir" not in WORKLOAD.script(parameters(), "/t")


def test_every_metric_that_may_be_missing_is_a_metric() -> None:
    names = {metric.name: metric for metric in WORKLOAD.metrics}
    assert names["write_clat_p99_99"].step == names["clat_p50"].step == 1 / 64
    assert names["clat_max"].step == names["latency"].step == 0


@pytest.mark.parametrize("end", ["", "]" * 100_000 + "}"])
def test_a_report_nested_without_end_is_a_sentence(end: str) -> None:
    with pytest.raises(ToolError, match="fio did not print JSON"):
        document('{\n"jobs": ' + "[" * 100_000 + end)
