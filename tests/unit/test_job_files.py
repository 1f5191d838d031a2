"""fio's job files: sections, what is aimed at the target, and their metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from lab.plugins.fio_options.jobs import jobs_of, names_a_file, with_target

TOOL = catalog.workload("fio")
GOLDEN = Path(__file__).parent.parent / "golden" / "workloads" / "fio" / "job-file"
TEXT = """\
; comment
[global]
direct=1
time_based
blocksize = 4k

[first]
rw=randwrite
runtime=2m
[global]
direct=0
[Second job]
rw=read
# comment
filename=/dev/sda:/dev/sdb
"""


def parameters(text: str) -> object:
    return TOOL.parameters.model_validate({"job": text})


def test_a_job_has_the_globals_before_it() -> None:
    first, second = jobs_of(TEXT)
    assert (first.name, first.tag) == ("first", "first")
    assert first.options == {
        "direct": 1, "time_based": 1, "bs": 4096, "rw": "randwrite", "runtime": 120.0
    }  # fmt: skip
    assert (second.name, second.tag) == ("Second job", "Second_job")
    assert second.options["direct"] == 0
    assert "runtime" not in second.options


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[global]\nrw=read\n", "has no job"),
        ("", "has no job"),
        ("[a]\nrw=read\nblocksise=4k\n", "line 3.*blocksize"),
        ("[a b]\nrw=read\n[a-b]\nrw=read\n", "line 3.*a_b.*line 1"),
        ("[a]\ninclude other.fio\n", "line 2.*include"),
    ],
)
def test_a_wrong_file_names_its_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parameters(text)


def test_options_next_to_a_file_are_refused() -> None:
    with pytest.raises(ValueError, match="job_file has all options: write bs there"):
        TOOL.parameters.model_validate({"job": "[a]\nrw=read\n", "bs": "4k"})
    with pytest.raises(ValueError, match="exclude each other"):
        TOOL.parameters.model_validate({"job": "[a]\nrw=read\n", "rounds": 5})


def test_only_places_are_replaced() -> None:
    found = with_target(TEXT, "/dev/md/bench")
    assert found == TEXT.replace("filename=/dev/sda:/dev/sdb", "filename=/dev/md/bench")
    text = "[a]\ndirectory=/mnt/x\nfilename=log\n"
    assert with_target(text, "/dev/md/bench") == "[a]\n# directory=/mnt/x\nfilename=/dev/md/bench\n"
    assert with_target(text, "/mnt/t") == "[a]\ndirectory=/mnt/t\nfilename=log\n"
    assert with_target("[a]\nfilename=/x/log\n", "/mnt/t") == "[a]\nfilename=/mnt/t.log\n"


def test_a_file_without_places_gets_the_target() -> None:
    assert not names_a_file(TEXT, "/dev/md/bench")
    assert "--filename=/dev/md/bench" in TOOL.script(parameters(TEXT), "/dev/md/bench")
    whole = "[a]\nrw=read\nfilename=/dev/md0\n"
    assert "--filename" not in TOOL.script(parameters(whole), "/dev/md/bench")
    in_directory = TOOL.script(parameters("[a]\nrw=read\ndirectory=/x\n"), "/mnt/t")
    assert "mkdir -p /mnt/t\n" in in_directory
    assert "--filename" not in in_directory


def test_metrics_have_the_job_s_name_if_there_are_several() -> None:
    several = {m.name for m in TOOL.measures(parameters(TEXT))}
    assert {"first_throughput", "Second_job_read_iops"} <= several
    assert "throughput" not in several
    one = {m.name for m in TOOL.measures(parameters("[a]\nrw=read\n"))}
    assert {"throughput", "clat_p99"} <= one


def test_processes_of_one_job_are_added() -> None:
    job = json.loads((GOLDEN / "expected.json").read_text())["parameters"]["job"]
    text = (GOLDEN / "stdout").read_text()
    each = [j for j in json.loads(text)["jobs"] if j["jobname"] == "rand-read"]
    assert len(each) == 2
    found = TOOL.parse(parameters(job), Outputs(stdout=text, stderr="", files={}))
    assert found["rand_read_iops"] == pytest.approx(sum(j["read"]["iops"] for j in each), rel=1e-3)
    assert not [name for name in found if name.startswith("rand_read_clat_p")]
    assert found["rand_read_clat_max"] == max(j["read"]["clat_ns"]["max"] for j in each) / 1e9


def test_a_job_that_fio_did_not_report_is_an_error() -> None:
    job = json.loads((GOLDEN / "expected.json").read_text())["parameters"]["job"]
    text = (GOLDEN / "stdout").read_text().replace('"mixed"', '"other"')
    with pytest.raises(ToolError, match="no job 'mixed'"):
        TOOL.parse(parameters(job), Outputs(stdout=text, stderr="", files={}))


def test_seeds_places_and_time_of_a_job_file() -> None:
    given = parameters(TEXT)
    assert TOOL.draws_places(given)
    assert TOOL.destroys(given)
    assert TOOL.lasts(given)
    seeded = TOOL.seeded(given, 3)
    assert "--randseed=3" in TOOL.script(seeded, "/dev/md/bench")
    assert not TOOL.draws_places(seeded)
    reads = parameters("[a]\nrw=read\nsize=1m\n")
    assert not TOOL.destroys(reads)
    assert not TOOL.lasts(reads)
