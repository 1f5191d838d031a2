"""The benchmark: order of units, observation of processes, and the page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import run as bench_run
from bench import table, watch
from bench.run import Bench, BenchError, load, main, measure, missing, one_round, warm_up
from bench.table import ARMS, CELLS, Document, Unit
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.plugins import catalog

UNIT: Unit = {"arm": "up-warm", "round": 1, "repeat": 1, "cell": None}


@pytest.fixture
def document() -> Document:
    return load(bench_run.FILE)


# -- order


def test_a_round_has_every_unit_once_and_interleaves_the_arms() -> None:
    units = one_round(1, [*ARMS], CELLS)
    counts = {arm: sum(u["arm"] == arm for u in units) for arm in ARMS}
    assert counts.pop("by-hand-sync") == counts.pop("by-hand-clean") == len(CELLS)
    assert counts == {arm: bench_run.REPEATS.get(arm, 1) for arm in counts}
    assert len({bench_run.key_of(u) for u in units}) == len(units)
    for arm in ("by-hand-sync", "lab-warm", "up-warm"):
        at = [i for i, u in enumerate(units) if u["arm"] == arm]
        assert min(at) < len(units) / 2 < max(at)
        assert max(b - a for a, b in pairwise(at)) > 1
    assert {one_round(n, table.BY_HAND, CELLS)[0]["arm"] for n in (1, 2)} == set(table.BY_HAND)


def test_resume_leaves_what_is_done_and_measures_again_what_failed() -> None:
    units = one_round(1, ["help"], ()) + one_round(2, ["help", "killed"], ())
    done = {"units": [units[0], {**units[1], "error": "it broke"}]}
    assert missing(done, units) == units[1:]


def test_the_scenario_and_the_script_measure_the_same(compiled: Compiled) -> None:
    """They must be changed together: otherwise they would measure different things."""
    assert {f"{c.axes['array.layout']}-{c.axes['disks.count']}" for c in compiled.cells} == {*CELLS}
    base, text = compiled.base, re.sub(r"\\\n\s*", "", bench_run.SCRIPT.read_text())
    assert base.array is not None
    disk = base.disks[0]
    wanted = [
        f"-smp {base.guest.cpus} -m {base.guest.memory >> 20} ",
        f'"$work/disk$n.qcow2" {disk.size >> 30}G',
        f"throttling.bps-total=$(({(disk.throttle.total_bytes_per_second or 0) >> 20} << 20))",
        f"format={disk.format.value},cache={disk.cache.value},throttling",
        "lazy_refcounts=on",
        f"echo {disk.scheduler} > /sys/block/",
        f"--chunk={(base.array.chunk or 0) >> 10}K ",
        f"--size={(base.array.component_size or 0) >> 20}M ",
        f"--data-offset={(base.array.data_offset or 0) >> 10}K ",
        "--bitmap=none --consistency-policy=resync",
    ]
    by_hand = re.findall(r'"\$fresh; dd ([^"]*) 2>&1"', text)
    for workload, words in zip(base.workloads, by_hand, strict=True):
        tool = catalog.workload(workload.tool)
        parameters = tool.parameters.model_validate(workload.parameters)
        asked = tool.script(parameters, "/dev/md/bench").partition(" dd ")[2].split()
        assert sorted(words.replace("bs=1M", "bs=1048576").split()) == sorted(asked)
    assert [w for w in wanted if w not in text] == []


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_scenario(bench_run.SCENARIO, overrides=[])


# -- commands and processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(work=tmp_path / "w", lab=(str(tmp_path / "lab"),))
    made.work.mkdir()
    yield made
    watch.sweep(made.work)


def fake(bench: Bench, text: str) -> None:
    path = Path(bench.lab[0])
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


LEFTOVER = """\
import os, pathlib, socket, sys, time
os.chdir(sys.argv[1])
port = socket.create_server(("127.0.0.1", 0))
named = socket.socket(socket.AF_UNIX)
named.bind(sys.argv[1] + "/s")
named.listen()
for name in ("state/lab/guests/g1", "cache/lab/warm/w1", "tmp"):
    pathlib.Path(name).mkdir(parents=True)
pathlib.Path("tmp/forgotten").touch()
print("ready", flush=True)
time.sleep(60)
"""


def test_what_is_left_is_found_and_nothing_else(bench: Bench) -> None:
    before = watch.there(bench.work)
    argv = [sys.executable, "-c", LEFTOVER, str(bench.work)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            found = watch.left(bench.work, before)
        finally:
            child.kill()
    assert found["processes"] == [f"other {child.pid}"]
    assert found["sockets"] == ["s"]
    assert len(found["ports"]) == 1
    # A snapshot in the cache is kept on purpose.
    assert found["files"] == ["state/lab/guests/g1", "tmp/forgotten"]
    assert watch.left(bench.work, before).keys() == {"files"}
    assert watch.left(bench.work, watch.there(bench.work)) == {}


def test_a_command_is_timed_and_what_it_left_is_ended(bench: Bench) -> None:
    script = (
        "echo said >&2; (trap '' TERM; exec sleep 60 >/dev/null 2>&1) & sleep 0.3; echo out; exit 5"
    )
    ended = bench.run("sh", "-c", script, wanted=(5,))
    assert (ended.status, ended.stdout, ended.last_words) == (5, "out\n", "said")
    assert 0.3 <= ended.seconds < 10
    assert ended.started <= ended.stderr[0][0] < ended.started + ended.seconds
    assert len(watch.processes(bench.work)) == 1
    watch.sweep(bench.work)
    assert watch.processes(bench.work) == []
    with pytest.raises(BenchError, match="status 5: said"):
        bench.run("sh", "-c", script)


FAKE_UP = """\
# A lab whose guest answers 0.4 s after its worker was started.
case $1 in
up)
    for _ in $WORKERS; do sh -c 'sleep 0.9; :' lab.run.worker & done
    sleep 0.4
    [ "$SAYS" = no ] || echo "    0.4 s  guest g1 is up after 0.4 s" >&2
    wait
    echo '{"cells": []}'
    ;;
ps) echo '{"guests": [{"id": "g1"}]}' ;;
ssh) [ "$2 $3 $4" = "g1 -- true" ] ;;
esac
"""


@pytest.mark.parametrize(
    ("workers", "says", "wrong"),
    [("1", "yes", ""), ("1 2", "yes", "2 workers"), ("1", "no", "0 guests")],
)
def test_the_first_answer_is_counted_from_the_workers_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, workers: str, says: str, wrong: str
) -> None:
    fake(bench, FAKE_UP)
    monkeypatch.setenv("WORKERS", workers)
    monkeypatch.setenv("SAYS", says)
    stored = measure(bench, UNIT)
    assert wrong in stored.get("error", "")
    assert ("error" in stored) == bool(wrong)
    if not wrong:
        assert 0.38 <= stored["worker_to_answer"] <= stored["command_to_answer"] + 0.02
        assert stored["command_to_answer"] < stored["seconds"]
        assert stored["seconds"] > 0.85
        assert stored["leftovers"] == {}


SAVING_LAB = """\
# A lab that makes a note in its first run, and a snapshot in each of SAVES more.
warm=$XDG_CACHE_HOME/lab/warm
mkdir -p "$warm"
if [ ! -e "$warm/.asked" ]; then
    touch "$warm/.asked"
elif [ "$(ls "$warm" | wc -l)" -lt "$SAVES" ]; then
    mktemp -d "$warm/XXXXXX" >/dev/null
fi
echo '{"cells": []}'
"""


def test_the_lab_is_run_until_it_saves_no_more_snapshots(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(bench, SAVING_LAB)
    monkeypatch.setenv("SAVES", "2")
    assert len(warm_up(bench)) == 4
    assert len(warm_up(bench)) == 1
    monkeypatch.setenv("SAVES", "99")
    with pytest.raises(BenchError):
        warm_up(bench)


# -- the page


def test_the_page_is_made_from_the_file(tmp_path: Path) -> None:
    shutil.copy(bench_run.FILE, tmp_path / "b.json")
    assert main(["--table", "--json", str(tmp_path / "b.json")]) == 0
    made = (tmp_path / "b.md").read_text()
    assert made == bench_run.FILE.with_suffix(".md").read_text()
    for text in ("{", "[]", '{"schema": "lab.result/1"}'):
        (tmp_path / "b.json").write_text(text)
        assert main(["--table", "--json", str(tmp_path / "b.json")]) == 1


def first(document: Document, arm: str) -> Any:
    return table.good(document, arm)[0]


def targets(document: Document) -> dict[str, str]:
    """Return ``met`` or ``missed`` for each target."""
    found = re.findall(r"[|;] ([^|;]*): [^:|;]*, (met|\*\*missed\*\*)", table.page(document))
    return {name: verdict.strip("*") for name, verdict in found}


@pytest.mark.parametrize(
    ("spoil", "target"),
    [
        (
            lambda d: [u.update(worker_to_answer=2.0) for u in table.good(d, "up-warm")],
            "20 times faster than by hand",
        ),
        (lambda d: first(d, "lab-alone")["cells"][7]["seconds"].update(total=99.0), "alone, worst"),
        (lambda d: [u.update(seconds=61.0) for u in table.good(d, "lab-warm")], "60 s"),
        (
            lambda d: first(d, "lab-warm")["cells"][3]["bytes_per_second"].update(read=1),
            "warm at most 3 %",
        ),
        (lambda d: [u["peak_bytes"].update(guests=1) for u in d["units"] if "cells" in u], "MB"),
        (lambda d: first(d, "help").update(each_seconds=[0.3]), "0.25 s"),
        (lambda d: first(d, "lab-cold").update(leftovers={"files": ["x"]}), "nothing"),
    ],
)
def test_a_target_can_be_missed(
    document: Document, spoil: Callable[[Document], object], target: str
) -> None:
    good = {name for name, verdict in targets(document).items() if verdict == "met"}
    spoil(document)
    missed = {name for name, verdict in targets(document).items() if verdict == "missed"}
    assert [name for name in good & missed if target in name]


def test_what_was_not_measured_whole_is_said(document: Document) -> None:
    first(document, "lab-warm")["cells"][3]["outcome"] = "lost"
    first(document, "up-warm")["error"] = "it broke"
    first(document, "lab-cold")["busy_elsewhere"] = 0.5
    page = table.page(document)
    assert len(table.makespans(document, "lab-warm")) == 2
    assert "lab-warm, round 1: not finished: right-asymmetric-5" in page
    assert "up-warm, round 1, was not measured: it broke" in page
    assert "at most 50 %" in page


@pytest.mark.parametrize("name", ["claims", "engines", "hardware", "run", "theory"])
def test_each_command_has_a_help(name: str) -> None:
    """An option that is defined twice would end it with a traceback."""
    words = [sys.executable, "-m", f"bench.{name}", "--help"]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("usage: ")
