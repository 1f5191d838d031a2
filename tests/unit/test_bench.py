"""The benchmark: its statistics, its order, its file, its table, and what it sees of a machine."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import arms, plan, proc, table
from bench.arena import Arena
from bench.document import BenchError, Document, load, save, unit_of
from bench.plan import Unit
from bench.run import commit_of, image_directory, parser, todo, warm_up
from bench.samples import beyond_ideal, first_answers, makespans, memory_per_guest, off
from bench.stats import Summary, deviations, makespan, ratio, summary
from lab.compile.scenario.document import Compiled, compile_scenario
from lab.plugins import catalog

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench/by_hand.sh"


# -- statistics


def test_a_summary_is_median_and_range() -> None:
    assert summary([3.0, 1.0, 2.0, 10.0]) == Summary(count=4, median=2.5, low=1.0, high=10.0)
    assert summary([]) is None


def test_a_summary_says_how_often_it_was_measured() -> None:
    one, four = summary([2.0]), summary([3.0, 1.0, 2.0, 10.0])
    assert one is not None
    assert four is not None
    assert one.text(str) == "2.0 (once)"
    assert four.text(str) == "2.5 (1.0 to 10.0; 4)"


def test_a_ratio_needs_both() -> None:
    assert ratio(summary([30.0, 26.0]), summary([1.4])) == pytest.approx(20.0)
    assert ratio(None, summary([1.0])) is None
    assert ratio(summary([1.0]), None) is None
    assert ratio(summary([1.0]), summary([0.0])) is None


def test_a_makespan_is_a_sum_or_says_that_it_is_not() -> None:
    assert makespan({"a": 90.0, "b": 110.0}, 2) == (200.0, True)
    assert makespan({"a": 90.0, "b": 110.0}, 12) == (1200.0, False)
    with pytest.raises(ValueError, match="no cell"):
        makespan({}, 12)


def test_deviations_have_a_sign_and_need_a_counterpart() -> None:
    found = deviations(
        {("a", "write"): 94.0, ("a", "read"): 103.0, ("b", "read"): 1.0},
        {("a", "write"): [99.0, 100.0, 101.0], ("a", "read"): [100.0], ("b", "read"): []},
    )
    assert found == {("a", "write"): pytest.approx(-0.06), ("a", "read"): pytest.approx(0.03)}


# -- order


def test_a_round_has_every_unit_once() -> None:
    units = plan.one_round(1, plan.ARMS, plan.CELLS, plan.REPEATS)
    assert len({u.key for u in units}) == len(units)
    counts = {arm: sum(u.arm == arm for u in units) for arm in plan.ARMS}
    assert counts.pop("by-hand-sync") == counts.pop("by-hand-clean") == len(plan.CELLS)
    assert counts == {arm: plan.REPEATS.get(arm, 1) for arm in counts}


@pytest.mark.parametrize("arm", ["by-hand-sync", "by-hand-clean", "lab-warm", "up-warm"])
def test_arms_are_interleaved(arm: str) -> None:
    units = plan.one_round(1, plan.ARMS, plan.CELLS, plan.REPEATS)
    at = [i for i, u in enumerate(units) if u.arm == arm]
    half = len(units) / 2
    assert min(at) < half < max(at)
    assert max(b - a for a, b in pairwise(at)) > 1


def test_arms_take_turns_at_being_first() -> None:
    first = {plan.one_round(n, plan.BY_HAND, plan.CELLS, {})[0].arm for n in (1, 2)}
    assert first == set(plan.BY_HAND)


def test_cells_are_those_of_the_scenario(compiled: Compiled) -> None:
    assert {arms.name_of(dict(c.axes)) for c in compiled.cells} == set(plan.CELLS)
    assert set(plan.QUICK_CELLS) < set(plan.CELLS)


def test_cells_must_be_a_product() -> None:
    assert plan.product(["parity-last-5", "parity-last-3"]) == (["parity-last"], [5, 3])
    with pytest.raises(ValueError, match="every combination"):
        plan.product(["parity-last-5", "left-symmetric-3"])


def options(*words: str) -> argparse.Namespace:
    return parser().parse_args(words)


def measured(arm: str, number: int, **more: Any) -> dict[str, Any]:
    common = {"repeat": 1, "cell": None, "started": "2026-01-01T00:00:00Z", "leftovers": {}}
    machine = {"busy_elsewhere": 0.0, "stolen": 0.0, "load_before": 0.0}
    return {"arm": arm, "round": number, **common, **machine, **more}


def test_resume_leaves_what_is_done_and_tries_again_what_failed() -> None:
    document = Document(units=[measured("help", 1), measured("help", 2, error="it broke")])
    wanted = options("--arm", "help", "--arm", "killed", "--rounds", "2", "--resume")
    left = todo(wanted, document, plan.CELLS)
    assert {u.key[:2] for u in left} == {("help", 2), ("killed", 1), ("killed", 2)}


def test_append_adds_rounds_after_those_of_these_arms() -> None:
    document = Document(units=[measured("help", 1), measured("killed", 7)])
    left = todo(options("--arm", "help", "--rounds", "2", "--append"), document, plan.CELLS)
    assert [(u.arm, u.round) for u in left] == [("help", 2), ("help", 3)]


def test_rounds_are_at_least_one() -> None:
    with pytest.raises(BenchError, match="1 or more"):
        todo(options("--rounds", "-1"), Document(), plan.CELLS)


# -- the file


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "b.json"
    document = Document(facts={"cores": 2}, ideal={"a": 9.8}, units=[measured("help", 1)])
    document.prepared = [{"first_seconds": 40.0, "run_seconds": [20.0, 30.0]}]
    save(document, path)
    assert load(path) == document
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]
    assert unit_of(document.units[0]) == Unit(arm="help", round=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "lab.result/1"}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"b\.json"):
        load(path)


def test_units_of_another_machine_or_image_are_not_mixed() -> None:
    document = Document(facts={"qemu": "7", "image": "a"}, units=[measured("help", 1)])
    document.accept({"qemu": "7", "image": "a"}, {})
    with pytest.raises(BenchError, match="image was 'a', is 'b'"):
        document.accept({"qemu": "7", "image": "b"}, {})
    with pytest.raises(BenchError, match="prediction"):
        document.accept({"qemu": "7", "image": "a"}, {"parity-last-3": 1.0})
    empty = Document()
    empty.accept({"qemu": "8"}, {"parity-last-3": 1.0})
    assert empty.facts == {"qemu": "8"}


# -- the script


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_scenario(arms.SCENARIO, overrides=[])


def test_the_script_measures_what_the_scenario_says(compiled: Compiled) -> None:
    """One that is changed without the other would make a comparison of different things."""
    base, text = compiled.base, re.sub(r"\\\n\s*", "", SCRIPT.read_text())
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


def test_the_script_is_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not here")
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [(), ("{image}", "3", "parity-last", "later"), ("{image}/no", "3", "parity-last", "sync")],
)
def test_the_script_says_how_it_is_used(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "disk.qcow2").touch()
    argv = [str(SCRIPT), *(w.format(image=tmp_path) for w in words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: by_hand.sh IMAGE_DIR DISKS LAYOUT" in done.stderr


MARKS = """\
qemu_at=0.171
ssh_at=26.171
array_at=29.000
write_bytes_per_second=10538442
read_bytes_per_second=10658221
end_at=50.000
"""


def test_marks_are_numbers_and_all_there() -> None:
    assert arms.parse_marks(MARKS)["ssh_at"] == 26.171
    with pytest.raises(BenchError, match="array_at"):
        arms.parse_marks(MARKS.replace("array_at=29.000\n", ""))
    for wrong in ("Warning: what?\n", "write_bytes_per_second=\n"):
        with pytest.raises(BenchError, match="key=number"):
            arms.parse_marks(MARKS + wrong)


# -- the machine


def test_a_process_may_have_any_name() -> None:
    numbers = " ".join(str(n) for n in range(4, 53))
    state, parent, cpu, started, rss = proc.parse_stat(f"7 (a) b) (c) S {numbers}\n")
    assert (state, parent) == ("S", 4)
    # proc_pid_stat(5): ppid is field 4, utime is field 14, stime 15, starttime 22, rss 24.
    assert cpu == (14 + 15) / proc.TICKS
    assert (started, rss) == (22 / proc.TICKS, 24 * proc.PAGE)


def test_greatest_memory_is_read() -> None:
    assert proc.parse_greatest("Name:\tx\nVmHWM:\t   66020 kB\nVmRSS:\t 1 kB\n") == 66020 * 1024
    assert proc.parse_greatest("Name:\tx\n") == 0


def test_roles() -> None:
    assert proc.role_of(["/usr/bin/qemu-system-x86_64", "-name", "lab.run.worker"]) == "qemu"
    assert proc.role_of(["python", "-m", "lab.run.worker", ""]) == "worker"
    assert proc.role_of(["python", "-m", "lab"]) == proc.role_of([]) == "other"


def test_a_worker_that_is_about_to_start_a_program_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(pid: int, parent: int, role: str) -> proc.Process:
        return proc.Process(
            pid=pid, parent=parent, started=pid, role=role, rss=80, greatest=80, cpu=0.0
        )

    found = [process(10, 1, "other"), process(20, 10, "worker"), process(30, 10, "worker")]
    forked, machine = process(21, 20, "worker"), process(22, 20, "qemu")
    sampler = proc.Sampler(tmp_path, command=10)
    monkeypatch.setattr(proc, "processes", lambda _work: iter([*found, forked, machine]))
    sampler.look()
    assert set(sampler.workers) == {20, 30}
    assert sampler.peak["lab"] == 3 * 80
    assert sampler.peak["guests"] == 1


def test_busy_is_neither_idle_nor_stolen() -> None:
    busy, stolen = proc.busy_seconds(
        "cpu  100 20 30 9999 888 4 5 60 70 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    )
    assert busy == (100 + 20 + 30 + 4 + 5) / proc.TICKS
    assert stolen == 60 / proc.TICKS


def test_only_listening_ports_count() -> None:
    rest = "00000000:00000000 00:00000000 00000000  0  0"
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout\n"
        f"   0: 0100007F:1F90 00000000:0000 0A {rest} 111 1 0\n"
        f"   1: 0100007F:1F91 0100007F:0016 01 {rest} 222 1 0\n"
    )
    assert proc.listening(text) == {"111": 8080}


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


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena(work=tmp_path / "w", lab=("lab",))
    made.work.mkdir()
    yield made
    made.stop()


def test_what_is_left_is_found_and_nothing_else(arena: Arena) -> None:
    before = proc.snapshot(arena.work)
    argv = [sys.executable, "-c", LEFTOVER, str(arena.work)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            found = proc.snapshot(arena.work).since(before)
        finally:
            child.kill()
    assert found["processes"] == [f"other {child.pid}"]
    assert found["sockets"] == ["s"]
    assert len(found["ports"]) == 1
    # The saved guest in the cache is kept on purpose.
    assert found["files"] == ["state/lab/guests/g1", "tmp", "tmp/forgotten"] or found["files"] == [
        "state/lab/guests/g1",
        "tmp/forgotten",
    ]
    after = proc.snapshot(arena.work).since(before)
    assert after.keys() == {"files"}
    assert proc.snapshot(arena.work).since(proc.snapshot(arena.work)) == {}


def test_a_command_is_timed_and_what_it_left_is_ended(arena: Arena) -> None:
    script = (
        "echo said >&2; (trap '' TERM; exec sleep 60 >/dev/null 2>&1) & sleep 0.3; echo out; exit 5"
    )
    ended = arena.run(["sh", "-c", script])
    assert (ended.status, ended.stdout) == (5, "out\n")
    assert 0.3 <= ended.seconds < 5
    assert ended.last_words() == "said"
    assert ended.started <= ended.stderr[0][0] < ended.started + ended.seconds
    assert len(list(proc.processes(arena.work))) == 1
    arena.sweep()
    assert list(proc.processes(arena.work)) == []


FAKE_LAB = """\
#!/bin/sh
# A lab whose guest answers four tenths of a second after its worker was started.
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
    [("1", "yes", ""), ("1 2", "yes", "2 workers"), ("1", "no", "told of 0 guests")],
)
def test_the_first_answer_is_counted_from_the_workers_start(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, workers: str, says: str, wrong: str
) -> None:
    fake = arena.work.parent / "lab"
    fake.write_text(FAKE_LAB)
    fake.chmod(0o755)
    arena.lab = (str(fake),)
    monkeypatch.setenv("WORKERS", workers)
    monkeypatch.setenv("SAYS", says)
    stored = arms.measure(arena, Unit(arm="up-warm", round=1))
    if wrong:
        assert wrong in stored["error"]
        return
    assert "error" not in stored
    assert 0.38 <= stored["worker_to_answer"] < 0.85
    assert stored["worker_to_answer"] <= stored["command_to_answer"] + 0.02
    assert stored["seconds"] > 0.85
    assert stored["leftovers"] == {}


def test_the_image_is_that_of_the_plan() -> None:
    step = {"argv": ["qemu-img", "create", "-b", "/images/a/disk.qcow2", "-F", "qcow2", "/r"]}
    planned = {"guests": [{"procedure": {"steps": [{"kind": "x"}, step]}}]}
    assert image_directory(planned) == Path("/images/a")
    with pytest.raises(BenchError, match="image is not known"):
        image_directory({"guests": []})


# -- the table


def by_hand_unit(arm: str, cell: str, number: int, seconds: float) -> dict[str, Any]:
    marks = arms.parse_marks(MARKS) | {"end_at": seconds}
    return measured(arm, number, cell=cell, seconds=seconds + 0.1, marks=marks)


def lab_unit(arm: str, number: int, **more: Any) -> dict[str, Any]:
    cells = [
        {
            "cell": cell,
            "outcome": "done",
            "seconds": {"total": 18.0, "waiting": 0.5},
            "ideal_seconds": 16.0,
            "bytes_per_second": {"write": 100.0, "read": 200.0},
            "failed_checks": [],
        }
        for cell in plan.CELLS
    ]
    peak = {"lab": 900_000_000, "guests": 9, "orchestrator": 70_000_000, "worker": 80_000_000}
    watched = {"peak_bytes": peak, "qemu_cpu_seconds": 50.0, "guests": 9, "cpu_seconds": 9.0}
    return measured(arm, number, seconds=59.0, cells=cells, **watched) | more


def whole() -> Document:
    ups = {"worker_to_answer": 1.2, "command_to_answer": 1.6, "seconds": 4.0}
    units = [
        by_hand_unit(arm, cell, 1, seconds)
        for arm, seconds in (("by-hand-sync", 100.0), ("by-hand-clean", 50.0))
        for cell in plan.CELLS
    ]
    units += [lab_unit(arm, 1) for arm in ("lab-cold", "lab-warm", "lab-alone")]
    units += [measured(arm, 1, **ups) for arm in ("up-warm", "up-cold")]
    units.append(measured("help", 1, each_seconds=[0.2, 0.24, 0.3]))
    kill = {"lab": {}, "lab, after lab gc": {}, "by hand": {"processes": ["qemu 1"]}}
    units.append(measured("killed", 1, after_kill=kill) | {"busy_elsewhere": None})
    return Document(ideal=dict.fromkeys(plan.CELLS, 16.0), units=units)


def targets(document: Document) -> dict[str, tuple[str, str]]:
    """Measured and verdict of each row of the first table."""
    rows = [line.strip("| ").split(" | ") for line in table.page(document).splitlines()]
    found = [[*row, ""][:4] for row in rows if len(row) in (3, 4)]
    return {name: (value, verdict.strip("| ")) for name, _, value, verdict in found}


def test_a_table_of_a_whole_benchmark() -> None:
    found = targets(whole())
    assert found["first SSH command, warm, sooner than by hand"] == ("21.7 times", "met")
    assert found["a warm cell beyond its ideal, alone, median"] == ("2.00 s", "met")
    assert found["the same beside others, less its turns, median"] == ("1.50 s", "met")
    assert found["the same beside others, median"] == ("2.00 s", "met")
    assert found["makespan of the 12 cells, warm"] == ("59.0 s (once)", "met")
    assert found["sooner than by hand with mdadm's initial sync"] == ("20.4 times", "met")
    assert found["sooner than by hand with assume-clean"] == ("10.2 times", "met")
    assert found["`lab --help`"] == ("0.24 s (0.20 s to 0.30 s; 3)", "met")
    assert found["memory of the lab per running guest, beside QEMU"][1] == "met"
    assert found["left by the lab when a command has returned"] == ("nothing in 7 units", "met")
    text = table.page(whole())
    assert "kill -9 in the middle, by hand: 1 processes, in 1 units." in text
    assert "- kill -9 in the middle, lab: nothing, in 1 units." in text


def slow_up(document: Document) -> None:
    for unit in document.good("up-warm"):
        unit["worker_to_answer"] = 1.4


def slow_cell(document: Document) -> None:
    document.good("lab-warm")[0]["cells"][7]["seconds"]["total"] = 20.0


def off_cell(document: Document) -> None:
    document.good("lab-warm")[0]["cells"][3]["bytes_per_second"]["read"] = 193.0


def something_left(document: Document) -> None:
    document.good("lab-cold")[0]["leftovers"] = {"files": ["state/lab/guests/g1"]}


def hungry(document: Document) -> None:
    document.good("lab-cold")[0]["peak_bytes"]["guests"] = 5
    document.good("lab-warm")[0]["peak_bytes"]["guests"] = 5


def slow_run(document: Document) -> None:
    document.good("lab-warm")[0]["seconds"] = 61.0


@pytest.mark.parametrize(
    ("spoil", "row"),
    [
        (slow_up, "first SSH command, warm, sooner than by hand"),
        (slow_cell, "the same beside others, worst"),
        (off_cell, "figure of a cell beside others, from the same alone, worst"),
        (something_left, "left by the lab when a command has returned"),
        (hungry, "memory of the lab per running guest, beside QEMU"),
        (slow_run, "makespan of the 12 cells, warm"),
    ],
)
def test_each_target_can_be_missed_alone(spoil: Any, row: str) -> None:
    document = whole()
    assert targets(document)[row][1] == "met"
    spoil(document)
    missed = [name for name, (_, verdict) in targets(document).items() if verdict == "missed"]
    assert missed == [row]


def test_nothing_measured_is_no_target_met() -> None:
    text = table.page(Document())
    assert "not measured" in text
    assert {verdict for _, verdict in targets(Document()).values()} & {"met", "missed"} == set()


def test_a_sample_of_cells_is_never_taken_for_all_of_them() -> None:
    document = whole()
    document.units = [u for u in document.units if u["cell"] in (None, *plan.QUICK_CELLS)]
    assert makespans(document, "by-hand-sync") == ([pytest.approx(1201.2)], False)
    text = table.page(document)
    assert "Of the arm by-hand-sync only left-symmetric-3, left-symmetric-5 were run" in text
    assert text.count("(from a sample)") == 2
    assert "(from a sample)" not in table.page(whole())


def test_rounds_by_hand_are_kept_apart() -> None:
    document = whole()
    document.units += [by_hand_unit("by-hand-sync", cell, 2, 110.0) for cell in plan.CELLS]
    spans, complete = makespans(document, "by-hand-sync")
    assert spans == [pytest.approx(1201.2), pytest.approx(1321.2)]
    assert complete


def test_a_run_with_a_lost_cell_has_no_makespan_and_is_told() -> None:
    document = whole()
    document.good("lab-warm")[0]["cells"][3]["outcome"] = "lost"
    assert makespans(document, "lab-warm") == ([], True)
    assert len(beyond_ideal(document, "lab-warm")) == len(plan.CELLS) - 1
    assert "1 of 12 cells did not finish: right-asymmetric-5" in table.page(document)


def test_a_unit_that_failed_counts_nowhere_and_is_told() -> None:
    document = whole()
    for unit in document.good("up-warm"):
        unit["error"] = "the lab said no"
    assert first_answers(document, "up-warm") is None
    assert "up-warm, round 1, was not measured: the lab said no" in table.page(document)


def test_what_it_took_to_get_warm_is_told() -> None:
    document = whole()
    document.prepared = [{"first_seconds": 40.0, "run_seconds": [20.0, 33.0]}]
    text = table.page(document)
    assert "if it was not there), 40 s; then runs of two cells" in text
    assert ": 20 s, 33 s." in text


SAVING_LAB = """\
#!/bin/sh
# A lab that notes in its first run what was asked for, and saves a guest in each of SAVES more.
warm=$XDG_CACHE_HOME/lab/warm
mkdir -p "$warm"
if [ ! -e "$warm/.asked" ]; then
    touch "$warm/.asked"
elif [ "$(ls "$warm" | wc -l)" -lt "$SAVES" ]; then
    mktemp -d "$warm/XXXXXX" >/dev/null
fi
echo '{"cells": []}'
"""


def test_the_lab_is_run_until_it_saves_no_more_guests(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = arena.work.parent / "lab"
    fake.write_text(SAVING_LAB)
    fake.chmod(0o755)
    arena.lab = (str(fake),)
    monkeypatch.setenv("SAVES", "2")
    assert len(warm_up(arena)) == 4
    assert len(warm_up(arena)) == 1
    monkeypatch.setenv("SAVES", "99")
    with pytest.raises(BenchError, match="still saves guests"):
        warm_up(arena)


def test_a_busy_machine_is_told() -> None:
    document = whole()
    assert "others used more" not in table.page(document)
    document.units[0]["busy_elsewhere"] = 0.2
    assert "During 1 of 31 units others used more than 5 % of the machine, at most 20 %." in (
        table.page(document)
    )


def test_the_worst_figure_of_all_runs_counts() -> None:
    document = whole()
    document.units.append(lab_unit("lab-warm", 2))
    document.good("lab-warm")[0]["cells"][3]["bytes_per_second"]["read"] = 190.0
    assert off(document, "lab-warm")["right-asymmetric-5", "read"] == pytest.approx(-0.05)
    assert "-5.0 % (right-asymmetric-5, read)" in table.page(document)


def test_memory_is_that_of_all_processes_for_each_guest() -> None:
    assert memory_per_guest(whole()) == [1e8, 1e8]


def test_the_table_is_made_from_the_file() -> None:
    path = ROOT / "docs/benchmarks.json"
    if not path.exists():
        pytest.skip("nothing has been measured yet")
    assert (ROOT / "docs/benchmarks.md").read_text() == table.page(load(path))


def test_the_command_line_makes_the_table(tmp_path: Path) -> None:
    save(whole(), tmp_path / "b.json")
    argv = [sys.executable, "-m", "bench.run", "--table-only", "--json", str(tmp_path / "b.json")]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "b.md").read_text() == table.page(whole())
    (tmp_path / "b.json").write_text("{")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: '")


def test_what_the_bench_itself_has_written_is_no_change_of_the_code(tmp_path: Path) -> None:
    """It puts its last results aside before it measures."""

    def git(*asked: str) -> None:
        user = ("-c", "user.name=t", "-c", "user.email=t@example")
        subprocess.run(["git", *user, "-C", str(tmp_path), *asked], check=True, capture_output=True)

    assert commit_of(tmp_path) == "unknown"
    git("init")
    (tmp_path / "docs").mkdir()
    for name in ("docs/benchmarks.json", "docs/benchmarks.md", "docs/other.md", "code.py"):
        (tmp_path / name).write_text("1")
    git("add", "-A")
    git("commit", "-m", "all")
    clean = commit_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "docs/benchmarks.json").unlink()
    (tmp_path / "docs/benchmarks.md").write_text("2")
    assert commit_of(tmp_path) == clean
    (tmp_path / "docs/other.md").write_text("2")
    assert commit_of(tmp_path) == f"{clean}-dirty"
