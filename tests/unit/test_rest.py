"""Workloads begin at rest: buckets are empty, md is idle, and each draws its own places."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import measure
from lab.analysis.predict import works
from lab.compile.cell.procedure import cell_procedure
from lab.compile.cell.rest import LARGEST, LONGEST_REST, drain, rest_before
from lab.compile.guest.seeds import FIRST, OWN, of_trial, own_places
from lab.core.units import KIB, MIB
from lab.md.facts.levels import NAMES
from lab.md.steps.rest import LIMIT, rest_script
from lab.md.theory.bucket import Direction, Limits, Meter
from lab.md.theory.fio_random import places, seed_of
from lab.md.theory.paths import Load
from lab.model.execution.procedure import BeginWorkload, Timed
from lab.model.result.document import DOUBTS
from lab.model.result.measurement import AT_REST
from lab.model.scenario.document import Array, Cell, Throttle
from lab.plugins import catalog
from tests.fakes import compiled_text

READ, WRITE = Direction.READ, Direction.WRITE
LOADS = {
    "small reads": [(READ, 4 * KIB)] * 8000,
    "small writes": [(WRITE, 4 * KIB)] * 8000,
    "large writes": [(WRITE, LARGEST)] * 60,
    "both": [(READ, 64 * KIB), (WRITE, MIB)] * 200,
}
BURSTS = {"none": {}, "a second": {"_max": 5}, "a minute": {"_max": 5, "_max_seconds": 60}}
LIMITS = [f"{way}_{unit}" for unit in ("bytes", "operations") for way in ("total", "read", "write")]


def throttle(name: str, burst: str, operation_size: int | None) -> Throttle:
    average = 5 * MIB if name.endswith("bytes") else 100
    fields: dict[str, Any] = {f"{name}_per_second": average, "operation_size": operation_size}
    for suffix, value in BURSTS[burst].items():
        fields[f"{name}_per_second{suffix}"] = value * average if suffix == "_max" else value
    return Throttle(**fields)


def took(meter: Meter, start: float, load: list[tuple[Direction, int]], depth: int = 16) -> float:
    """Return the seconds of a load with requests in flight; they end when they are admitted."""
    ends = [start] * depth
    for number, (direction, size) in enumerate(load):
        slot = number % depth
        ends[slot] = meter.admit(ends[slot], direction, size)
    return max(ends) - start


@pytest.mark.parametrize("operation_size", [None, 4 * KIB, 64 * KIB])
@pytest.mark.parametrize("burst", BURSTS)
@pytest.mark.parametrize("name", LIMITS)
def test_any_load_is_as_fast_after_any_other(
    name: str, burst: str, operation_size: int | None
) -> None:
    given = throttle(name, burst, operation_size)
    limits = Limits.from_throttle(given)
    alone = {load: took(Meter(limits), 0.0, LOADS[load]) for load in LOADS}
    assert max(alone.values()) > 0
    for first, second in product(LOADS, LOADS):
        meter = Meter(limits)
        now = took(meter, 0.0, LOADS[first]) + drain(given)
        assert took(meter, now, LOADS[second]) == pytest.approx(alone[second], rel=1e-9, abs=1e-9)


def test_the_pause_is_not_longer_than_the_fullest_bucket_needs() -> None:
    given = throttle("total_bytes", "a minute", None)
    meter = Meter(Limits.from_throttle(given))
    at = 0.0
    while not meter.wait(at, READ):  # until it is as full as it can be
        meter.pour(READ, LARGEST)
        at += 1e-9 + LARGEST / (25 * MIB) * 1.01
    level = meter.signature(at)[0] / 1e6  # seconds at the average rate
    assert drain(given) - 2 * LARGEST / (5 * MIB) <= level <= drain(given)


def test_a_shorter_pause_is_not_enough() -> None:
    given = throttle("total_operations", "a minute", 4 * KIB)
    limits = Limits.from_throttle(given)
    load = LOADS["small reads"] * 8
    alone, meter = took(Meter(limits), 0.0, load), Meter(limits)
    now = took(meter, 0.0, load)
    assert took(meter, now + 60.0, load) > 1.3 * alone  # the former limit of the pause


def test_the_limits_of_a_throttle_are_in_order() -> None:
    given = Throttle(
        write_operations_per_second=7,
        read_operations_per_second=9,
        read_operations_per_second_max=90,
        read_operations_per_second_max_seconds=3,
        total_bytes_per_second=5,
    )
    assert [tuple(limit) for limit in given.limits()] == [
        ("total_bytes_per_second", "total", "bytes", 5, None, None),
        ("read_operations_per_second", "read", "operations", 9, 90, 3),
        ("write_operations_per_second", "write", "operations", 7, None, None),
    ]
    names = [name for name in Throttle.model_fields if name.endswith("_per_second")]
    assert [limit.name for name in names for limit in Throttle(**{name: 3}).limits()] == names


BURST = """\
title: A burst
question: Is it twice the same?
guest: {clock: CLOCK, memory: 512MiB}
disks:
  count: 1
  size: 1GiB
  throttle: {total_operations_per_second: 100, total_operations_per_second_max: 1000,
    total_operations_per_second_max_seconds: SECONDS}
array: none
workloads:
  - {name: first, tool: fio, rw: randread, bs: 4KiB, direct: 1, runtime: 50s, time_based: 1}
  - {name: second, tool: fio, rw: randread, bs: 4KiB, direct: 1, runtime: 50s, time_based: 1}
"""


def compiled(tmp_path: Path, text: str, *sets: str) -> Cell:
    return compiled_text(tmp_path, text, *sets).base


def timed(cell: Cell) -> list[Timed]:
    return [s for s in cell_procedure(cell, "/guest").steps if isinstance(s, Timed)]


def pause(script: str) -> float:
    return float(re.findall(r"sleep ([\d.]+)\n(?:read -r line|set --)", script)[0])


def slept(directory: Path, step: Timed, moved: str) -> tuple[float, str]:
    """Run the pause of a step after a disk's counters became ``moved``: seconds, and what was not
    at rest."""
    (directory / "disk").touch()
    (directory / "sys" / "disk").mkdir(parents=True, exist_ok=True)
    (directory / "sys" / "disk" / "stat").write_text(f"  {moved} 0 0 0 0\n")
    lines = re.findall(r"(?:rm -f /run|rest=\d).*sleep [^\n]*\n", step.before, re.DOTALL)[0]
    for real, fake in (
        ("/sys/class/block", "sys"),
        ("/run/lab-counted", "counted"),
        (re.findall(r"^moved (.*)$", lines, re.MULTILINE)[0], "disk"),
    ):
        lines = lines.replace(real, str(directory / fake))
    script = f"set -e\nwhy=\nsleep() {{ echo $1; }}\nunrest() {{ why=$*; }}\n{lines}echo $why"
    done = subprocess.run(["dash"], input=script, text=True, check=True, capture_output=True)
    seconds, _, why = done.stdout.partition("\n")
    return float(seconds), why.strip()


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_a_long_pause_is_as_long_as_what_the_disk_did_needs(tmp_path: Path, clock: str) -> None:
    cell = compiled(tmp_path, BURST.replace("CLOCK", clock).replace("SECONDS", "60"))
    first, second = timed(cell)
    assert slept(tmp_path, first, "30 0 800 5 10 0 80 5") == (pytest.approx(0.4, abs=0.01), "")
    assert slept(tmp_path, second, "50130 0 401600 5 10 0 80 5") == (
        pytest.approx(501, abs=0.1),
        "",
    )
    full, why = slept(tmp_path, second, "950130 0 7601600 5 10 0 80 5")
    assert (full, why) == (pytest.approx(drain(cell.disks[0].throttle), abs=0.02), "")
    assert full == pytest.approx(600, abs=0.1)
    for step in (first, second):
        assert step.timeout >= cell.timeout + 600


def test_in_real_time_a_pause_that_is_too_long_is_cut_and_the_value_is_marked(
    tmp_path: Path,
) -> None:
    real, virtual = (
        compiled(tmp_path, BURST.replace("CLOCK", clock).replace("SECONDS", "600"))
        for clock in ("real", "virtual")
    )
    much = "250000 0 2000000 5 0 0 0 5"
    seconds, why = slept(tmp_path, timed(real)[0], much)
    assert seconds == LONGEST_REST
    assert "900 of 2500 seconds" in why
    assert slept(tmp_path, timed(virtual)[0], much) == (pytest.approx(2500, abs=0.1), "")
    assert slept(tmp_path, timed(real)[0], "800 0 6400 5 0 0 0 5") == (
        pytest.approx(8, abs=0.01),
        "",
    )


def test_requests_of_several_operations_need_a_longer_pause(tmp_path: Path) -> None:
    text = BURST.replace("CLOCK", "virtual").replace("SECONDS", "60, operation_size: 4KiB")
    step = timed(compiled(tmp_path, text))[0]
    assert slept(tmp_path, step, "10 0 20480 5 0 0 0 5")[0] == pytest.approx(25.7, abs=0.01)


def test_a_slow_fault_makes_the_later_pauses_longer(tmp_path: Path) -> None:
    faults = (
        "faults:\n  - {name: slow, fault: slow, disk: 1, after: first,"
        " total_operations_per_second: 1}\n"
    )
    text = BURST.replace("CLOCK", "virtual").replace(
        "total_operations_per_second: 100, total_operations_per_second_max: 1000,\n"
        "    total_operations_per_second_max_seconds: SECONDS",
        "total_operations_per_second: 100",
    )
    assert [pause(step.before) for step in timed(compiled(tmp_path, text))] == [0.2, 0.2]
    steps = timed(compiled(tmp_path, text + faults))
    before = {step.workload: step.before for step in steps if "sleep" in step.before}
    assert pause(before["second"]) == pytest.approx(2.1)


def test_what_was_not_at_rest_is_a_doubt(tmp_path: Path) -> None:
    cell = compiled(tmp_path, BURST.replace("CLOCK", "real").replace("SECONDS", "600"))
    raw = {"second.1.before.txt": "disk disk1 vda\nunrest md9 was busy with resync\n"}
    (check,) = measure.at_rest(cell, raw)
    assert (check.name, check.passed, check.workload) == (AT_REST, False, "second")
    assert "busy with resync" in check.detail
    assert AT_REST in DOUBTS
    assert measure.at_rest(cell, {"second.1.before.txt": "disk disk1 vda\n"}) == ()


ARRAY = """\
title: An array
question: Is it at rest?
guest: {clock: virtual, memory: 512MiB}
disks: {count: 4, size: 1GiB, throttle: {total_operations_per_second: 150}}
array: {level: 5, chunk: 64KiB, component_size: 256MiB, bitmap: internal}
workloads:
  - {name: one, tool: fio, rw: randwrite, bs: 4KiB, direct: 1, size: 100MiB, runtime: 8s,
     time_based: 1}
  - {name: two, tool: fio, rw: randwrite, bs: 4KiB, direct: 1, size: 100MiB, runtime: 8s,
     time_based: 1}
  - {name: three, tool: seek, bs: 4KiB, size: 100MiB, number_ios: 500}
"""


def test_only_a_workload_after_another_one_is_brought_to_rest(tmp_path: Path) -> None:
    steps = timed(compiled(tmp_path, ARRAY))
    assert "stripe_cache_size" not in steps[0].before
    for step in steps[1:]:
        for file in ("stripe_cache_size", "bitmap/time_base", "array_state", "sync_action"):
            assert f"$md/{file}" in step.before
        assert step.timeout >= 900.0 + LIMIT
    mirrored = timed(compiled(tmp_path, ARRAY, "array.level=10", "array.bitmap=none"))
    assert "array_state" in mirrored[1].before
    assert not {"stripe_cache_size", "time_base"} & set(re.findall(r"\w+", mirrored[1].before))
    striped = timed(
        compiled(tmp_path, ARRAY, "array.level=0", "array.bitmap=none", "array.component_size=null")
    )
    assert "/sys/block/md" not in striped[1].before


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("bitmap", ["none", "internal", "external", "lockless"])
@pytest.mark.parametrize("level", ["linear", "0", "1", "4", "5", "6", "10"])
def test_the_lines_are_shell(level: str, bitmap: str, *, waits: bool) -> None:
    script = rest_script(Array(level=level, bitmap=bitmap), waits=waits)
    redundant = NAMES[level].redundant
    assert bool(script) == redundant
    subprocess.run(["dash", "-n"], input=script, text=True, check=True)


def test_a_workload_after_a_fault_does_not_wait_for_the_sync(tmp_path: Path) -> None:
    cell = compiled(
        tmp_path,
        ARRAY + "faults:\n  - {name: gone, fault: fail, disk: 1, during: two, at: 1s}\n",
    )
    two, three = (rest_before(cell, w, "/dev/md/bench", later=True) for w in cell.workloads[1:])
    waiting = "while read -r action"
    assert waiting in two.script
    assert waiting not in three.script
    steps = cell_procedure(cell, "/guest").steps
    begun = next(s for s in steps if isinstance(s, BeginWorkload))
    assert begun.before_timeout > LIMIT


def drawn(cell: Cell) -> dict[str, list[int]]:
    """Return the first places of each workload of theory's loads."""
    found = {}
    for name, load in works(cell).items():
        assert isinstance(load, Load)
        order = places(seed_of(load.seed), 100 * 256, repeats=True)
        found[name] = [next(order) for _ in range(100)]
    return found


@pytest.mark.parametrize("trial", [1, 2, 5])
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_no_two_workloads_draw_the_same_places(tmp_path: Path, clock: str, trial: int) -> None:
    cell = compiled(tmp_path, ARRAY, f"guest.clock={clock}", "trials=5")
    one = of_trial(cell, trial)
    scripts = [
        (tool := catalog.workload(w.tool)).script(tool.parameters.model_validate(w.parameters), "x")
        for w in one.workloads
    ]
    seeds = [int(found[0]) if (found := re.findall(r"randseed=(\d+)", s)) else 1 for s in scripts]
    assert len(set(seeds)) == 3
    assert seeds[0] == one.seed_of(trial) or (trial, seeds[0]) == (1, FIRST)
    assert all(OWN <= seed < 2**31 for seed in seeds[1:])
    said = drawn(one)
    for a, b in combinations(said, 2):
        assert len(set(said[a]) & set(said[b])) < 5


def test_the_seed_depends_on_the_name_and_on_nothing_else(tmp_path: Path) -> None:
    cell = compiled(tmp_path, ARRAY)
    turned = cell.model_copy(update={"workloads": (*cell.workloads[:1], *cell.workloads[:0:-1])})
    seeds = {w.name: w.parameters for w in own_places(cell).workloads}
    assert {w.name: w.parameters for w in own_places(turned).workloads} == seeds
    assert own_places(own_places(cell)) == own_places(cell)


def test_a_cell_without_two_open_draws_stays_as_it_is(tmp_path: Path) -> None:
    alone = compiled(tmp_path, ARRAY, "workloads.two.rw=write", "workloads.three.randseed=9")
    assert own_places(alone) is alone
    written = compiled(
        tmp_path, ARRAY, "workloads.two.randrepeat=0", "workloads.two.randseed=5",
        "workloads.three.randseed=5",
    )  # fmt: skip
    assert own_places(written) is written
    # fio 3.33: percentage_random=0 makes a random job sequential.
    for more in ("percentage_random=0", "percentage_random=50"):
        other = compiled(
            tmp_path, ARRAY, f"workloads.two.{more}", "workloads.three.randseed=9"
        )  # fmt: skip
        assert (own_places(other) is other) == more.endswith("=0")
    kept = compiled(tmp_path, ARRAY, "workloads.two.keep_cache=true", "workloads.three.randseed=9")
    assert own_places(kept) is kept


def test_an_open_seed_is_not_a_written_one(tmp_path: Path) -> None:
    cell = compiled(
        tmp_path, ARRAY, "workloads.two.randrepeat=0", "workloads.two.randseed=1",
        "workloads.three.randseed=9",
    )  # fmt: skip
    one, two = of_trial(cell.model_copy(update={"seed": 4}), 1).workloads[:2]
    assert two.parameters["randseed"] == 4
    assert one.parameters["randseed"] >= OWN
