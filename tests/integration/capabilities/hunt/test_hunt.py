"""`lab hunt`: the disturbance, findings, smaller scenarios, and the order of seeds."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drive import requests
from lab.capabilities.hunt import debug as debugging
from lab.capabilities.hunt.logic.findings import findings
from lab.capabilities.hunt.logic.smaller import only, proposals
from lab.capabilities.hunt.model import FindingKind
from lab.capabilities.hunt.run import SETS, Hunting, HuntOptions, rounds
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.disturbance import NEVER, disturbance
from lab.compile.guest.program import programs
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_INPUT, InputError
from lab.core.yaml import read_text, written
from lab.host.system.accelerator import Accelerator
from lab.model.execution.job import CONSOLE
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellClock, Outcome
from lab.model.scenario.document import Cell
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.store.runs import RunStore, StoredOutcome
from tests.fakes import Cli, compiled_text

DRIVE = Path(__file__).parents[4] / "drive"
TEXT = """\
title: Test fixture
question: Are the mirrors equal?
disks: {count: 3, size: 64MiB, throttle: 16MiB/s}
array: {level: 1, component_size: 32MiB, initial_sync: none}
workloads:
  - {name: first, tool: ledger, size: 4MiB, count: 64}
  - {name: second, tool: dd, of: '{target}', bs: 1MiB, count: 8, oflag: direct}
faults:
  - {name: checked, fault: sync_action, action: check, after: second}
"""
MATRIX = "matrix: {disks.count: [2, 3]}\n"


def compiled(tmp_path: Path, text: str = TEXT, *sets: str) -> Compiled:
    return compiled_text(tmp_path, text, *sets, *SETS, name="pair")


# --- the disturbance ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disturb") / "disturb"
    source = DRIVE / "tests" / "disturb.c"
    words = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(path), str(source))
    subprocess.run(words, check=True, timeout=60)
    return path


def drawn(program: Path, seed: int, count: int) -> tuple[list[int], list[list[int]]]:
    """Return exponents, and rows: delay, time away, time apart, time from an end to a point, and
    from a wake-up to one."""
    done = subprocess.run(
        [program, str(seed), str(count)], capture_output=True, text=True, check=True, timeout=60
    )
    head, *rest = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    return head, rest


RECORDED: Mapping[int, tuple[list[int], list[list[int]]]] = {
    1: (
        [20, 14],
        [[0, 0, 218811, 3093, 1682], [3728, 0, 1979, 8045, 0], [2047, 14011, 2571, 11749, 0]],
    ),
    2: (
        [19, 14],
        [[280080, 0, 110667, 15106, 10211], [17018, 0, 3169, 3722, 0], [0, 19791, 168208, 1476, 0]],
    ),
    200: ([16, 15], [[0, 0, 3372464, 1574, 0], [0, 0, 2056, 0, 0], [3219, 0, 9243, 0, 5831]]),
}
"""A change of these numbers makes every seed another one."""


@pytest.mark.parametrize("seed", [1, 2, 200])
def test_a_seed_has_the_recorded_numbers(program: Path, seed: int) -> None:
    assert drawn(program, seed, 3) == RECORDED[seed]


def test_seeds_differ_and_stay_in_their_ranges(program: Path) -> None:
    many = {seed: drawn(program, seed, 400) for seed in range(1, 41)}
    assert len({json.dumps(one) for one in many.values()}) == len(many)
    assert {head[0] for head, _ in many.values()} == set(range(14, 25))
    assert {head[1] for head, _ in many.values()} == set(range(13, 17))
    for (late, soon), rows in many.values():
        delays = [row[0] for row in rows if row[0]]
        assert 150 < len(delays) < 250, "half of the requests are late"
        assert min(delays) >= 1 << 10
        assert 1 << (late - 1) <= max(delays) < 1 << late
        assert all(1 << 10 <= row[2] < 1 << 22 for row in rows)
        assert all(row[3] < 1 << soon and row[4] < 1 << soon for row in rows)
        assert 150 < sum(row[4] > 0 for row in rows) < 250, "half of the wake-ups move the point"
        away = [row[1] for row in rows if row[1]]
        assert 60 < len(away) < 140, "a quarter of the points takes the CPU away"
        assert max(away) < 1 << 22


def test_the_line_has_one_length_for_all_times() -> None:
    lines = [disturbance(7, 900.0, stop) for stop in (1, 12_300_000_000, NEVER)]
    assert len({len(line) for line in lines}) == 1
    words = lines[1].split()
    assert [int(word) for word in words[1:4]] == [7, 900_000_000_000, 12_300_000_000]


def boots(cell: Cell) -> str:
    return programs(cell_procedure(cell, "/guest")).boots[0]


def test_only_a_disturbed_cell_has_the_line_and_another_id(tmp_path: Path) -> None:
    (cell,) = compiled(tmp_path).cells
    calm = cell.model_copy(update={"guest": cell.guest.model_copy(update={"disturb": False})})
    assert boots(cell) != boots(calm)
    assert boots(cell).replace("echo 1 ", "echo 9 ").count("parameters/disturb") == 1
    assert "parameters/disturb" not in boots(calm)
    assert "disturb" not in calm.model_dump(mode="json")["guest"]
    assert cell_id(cell) != cell_id(calm)
    # The seed is the trial's.
    ninth = cell.model_copy(update={"seed": 9})
    assert "\necho 9 " in boots(ninth)


def test_real_time_cannot_be_disturbed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pair.yaml:\d+: guest.disturb: .*guest.clock"):
        compiled_text(tmp_path, TEXT + "guest: {disturb: true}\n", name="pair")


# --- findings -------------------------------------------------------------------------------------

WARNINGS = {
    "WARNING: CPU: 0 PID: 217 at drivers/md/raid5.c:4801 break_stripe_batch_list+0xbd/0x200": True,
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": True,
    "kernel BUG at drivers/md/raid1.c:918!": True,
    "INFO: task md0_raid5:312 blocked for more than 120 seconds.": True,
    "WARNING: possible circular locking dependency detected": True,
    "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT": True,
    "list_del corruption. next->prev should be ffff, but was dead": True,
    "refcount_t: underflow; use-after-free.": True,
    "md/raid:md0: not clean -- starting background reconstruction": False,
    "NOHZ tick-stop error: local softirq work is pending, handler #202!!!": False,
    "block device autoloading is deprecated and will be removed.": False,
    "md: Warning: the disk was not clean": False,
    "EXT4-fs (lab0): re-mounted. Quota mode: none.": False,
}


@pytest.fixture
def bare(tmp_path: Path) -> Cell:
    """A cell whose results need no output: what counts is its end."""
    text = TEXT.replace("faults:\n", "").replace(TEXT.splitlines()[-1] + "\n", "")
    return compiled(tmp_path, text).cells[0].model_copy(update={"workloads": ()})


@pytest.mark.parametrize(("line", "is_one"), WARNINGS.items())
def test_the_kernels_warnings(bare: Cell, line: str, is_one: bool) -> None:
    log = f"[    1.0] Linux version 6.1\n[    4.056656] {line}\n[    5.0] md: resync done.\n"
    found = findings(bare, Outcome.DONE, "", {CONSOLE: log})
    assert [(one.kind, one.says) for one in found] == ([(FindingKind.KERNEL, line)] * is_one)


@pytest.mark.parametrize(
    ("outcome", "reason", "log", "kinds"),
    [
        (Outcome.DONE, "", "", []),
        (Outcome.FAILED, "the check 'array' failed: degraded is '1', not '0'", "", ["check"]),
        (Outcome.FAILED, "'write' ended with status 1 in the guest: verify failed", "", ["failed"]),
        (
            Outcome.FAILED,
            "a command in the guest did not end within 60 seconds of its clock: echo check",
            "",
            ["hang"],
        ),
        (Outcome.LOST, "gave up after 60 seconds waiting for md to be idle: x is 1", "", ["hang"]),
        (
            Outcome.FAILED,
            "the kernel of the sealed guest panicked, and would panic again",
            "[9.0] Kernel panic - not syncing: lab: the guest hangs: its commands did not end",
            ["hang"],
        ),
        (
            Outcome.FAILED,
            "the kernel of the sealed guest panicked, and would panic again: ...",
            "[9.0] kernel BUG at drivers/md/raid1.c:918!\n[9.1] Kernel panic - not syncing: Fatal",
            ["failed", "kernel"],
        ),
        (Outcome.LOST, "QEMU used no CPU for 120 s: it is stopped", "", []),
    ],
)
def test_how_a_cell_ended(
    bare: Cell, outcome: Outcome, reason: str, log: str, kinds: list[str]
) -> None:
    found = findings(bare, outcome, reason, {CONSOLE: log})
    assert [one.kind.value for one in found] == kinds


STATE = "array_state=clean\nraid_disks=2\ndegraded=0\nsync_action=idle\nmismatch_cnt={}\n"
CHECKED = {
    "checked.1.stdout.txt": "began=1.0\nended=2.0\ndegraded_most=0\n",
    "checked.1.stderr.txt": "",
    "checked.1.before.txt": "",
    "checked.1.after.txt": "",
    "second.1.stdout.txt": "",
    "second.1.stderr.txt": "8+0 records out\n8388608 bytes copied, 1.0 s, 8.4 MB/s\n",
}


@pytest.mark.parametrize("mismatches", [0, 128])
def test_mismatches_are_found_in_the_measurements(tmp_path: Path, mismatches: int) -> None:
    whole = TEXT.replace("  - {name: first, tool: ledger, size: 4MiB, count: 64}\n", "")
    (cell,) = compiled(tmp_path, whole).cells
    raw = {**CHECKED, "checked.1.state.txt": STATE.format(mismatches)}
    found = findings(cell, Outcome.DONE, "", raw)
    assert [one.kind for one in found] == [FindingKind.MISMATCH] * (mismatches > 0)
    assert all("128" in one.says for one in found)


# --- smaller scenarios ----------------------------------------------------------------------------


def test_the_failing_cell_alone_is_a_scenario_of_its_own(tmp_path: Path) -> None:
    whole = compiled(tmp_path, TEXT + MATRIX)
    cell = whole.cells[0].model_copy(update={"seed": 17})
    text = written(only(whole, cell, 17))
    (tmp_path / "one.yaml").write_text(text)
    alone = compile_scenario(tmp_path / "one.yaml")
    (found,) = alone.cells
    assert found.disks == cell.disks
    assert (found.guest, found.array, found.workloads) == (cell.guest, cell.array, cell.workloads)
    assert (found.faults, found.seed, found.trials) == (cell.faults, 17, 1)


def test_each_proposal_is_smaller_and_most_are_valid(tmp_path: Path) -> None:
    whole = compiled(tmp_path)
    data = only(whole, whole.cells[0], 3)
    before = json.dumps(data)
    made = dict(proposals(data))
    assert json.dumps(data) == before, "the data stays as it was"
    assert list(made)[:4] == ["no checked", "no first", "no second", "disks.count: 2"]
    # Without its workload a fault is not possible either.
    assert made["no second"]["faults"] == []
    assert len(made["no first"]["faults"]) == 1
    assert made["workloads.first.count: 32"]["workloads"][0]["count"] == 32
    assert made["array.component_size: 16MiB"]["array"]["component_size"] == "16MiB"
    valid = 0
    for less in made.values():
        source = read_text(written(less), source="less.yaml")
        assert source.data == less
        try:
            compile_text(tmp_path, written(less))
        except InputError:
            continue
        valid += 1
    assert valid >= len(made) - 1


def compile_text(tmp_path: Path, text: str) -> Compiled:
    (tmp_path / "less.yaml").write_text(text)
    return compile_scenario(tmp_path / "less.yaml")


def test_proposals_end(tmp_path: Path) -> None:
    """Always taking the first one that is valid ends with nothing left to leave out."""
    whole = compiled(tmp_path)
    data, steps = only(whole, whole.cells[0], 1), 0
    while True:
        for _, less in proposals(data):
            try:
                compile_text(tmp_path, written(less))
            except InputError:
                continue
            data, steps = less, steps + 1
            break
        else:
            break
        assert steps < 200
    assert data["workloads"] == []
    assert data["faults"] == []


# --- seeds ----------------------------------------------------------------------------------------


def test_rounds_cover_all_seeds_once_and_grow() -> None:
    found = list(rounds(5, 100, 1, 2))
    assert [seed for some in found for seed in some] == list(range(5, 105))
    assert [len(some) for some in found] == [2, 4, 8, 16, 16, 16, 16, 16, 6]
    assert [len(some) for some in rounds(1, 3, 40, 2)] == [1, 1, 1]


class Played:
    """An executor whose cells fail by a rule, instead of running in guests."""

    def __init__(self, fails: Callable[[Cell], str]) -> None:
        self.fails = fails
        self.at_once = 2
        self.ran: list[Cell] = []
        self.said: list[str] = []
        self.say = self.said.append

    def place(self, guest: Any, progress: Any) -> Platform:
        nothing: Any = None
        tcg = Accelerator(kind="tcg", reason="TCG, because this is a test")
        return Platform(accelerator=tcg, image=nothing, emulator="")

    def check_disks(self, cells: Sequence[Cell], erase: Sequence[str]) -> bool:
        return False

    def environment(self, place: Platform) -> dict[str, Any]:
        return {}

    def take(self, store: RunStore, platforms: Any, cells: Sequence[Cell]) -> set[str]:
        return set()

    def run(
        self,
        store: RunStore,
        compiled: Compiled,
        platforms: Any,
        cells: Sequence[Cell],
        *,
        real: bool,
    ) -> str | None:
        for cell in cells:
            assert cell.guest.disturb
            self.ran.append(cell)
            attempt = store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
            reason = self.fails(cell)
            outcome = Outcome.LOST if "QEMU" in reason else Outcome.FAILED
            store.finish_cell(
                cell_id(cell),
                attempt,
                StoredOutcome(outcome=outcome, reason=reason or OTHER, clock=CellClock.SEALED),
            )
        return None


OTHER = "'write' ended with status 1 in the guest: it always does here"
HANG = "a command in the guest did not end within 60 seconds of its clock: echo check"


def hunted(tmp_path: Path, played: Played, text: str = TEXT, **options: Any) -> Hunting:
    """Only hangs are hunted: cells of this test have no other output, and fail without it."""
    hunting = Hunting(
        compiled=compiled(tmp_path, text),
        options=HuntOptions(**{"seeds": 40, "kinds": frozenset({FindingKind.HANG}), **options}),
        say=played.say,
    )
    hunting.run(
        played,
        texts=SETS,
        run_options=RunOptions(),
        out=None,
        progress=lambda _text, _part: None,
        ready=lambda _store, _place: None,
    )
    return hunting


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_hunt_stops_at_the_first_seed_with_a_finding(tmp_path: Path) -> None:
    played = Played(lambda cell: HANG if cell.seed in (11, 13) else "")
    hunting = hunted(tmp_path, played, TEXT + MATRIX)
    found = hunting.result()
    assert found.found is not None
    assert (found.found.seed, found.found.findings[0].kind) == (11, FindingKind.HANG)
    assert found.found.cell in {cell_id(c) for c in played.ran if c.seed == 11}
    # The round ran to its end, and no further one began.
    assert max(cell.seed for cell in played.ran) == found.last < 24
    assert len(RunStore(Path(found.directory)).load_run().cells) == len(played.ran)


def test_a_hunt_that_finds_nothing_runs_all_seeds(tmp_path: Path) -> None:
    played = Played(lambda _cell: "")
    found = hunted(tmp_path, played, first=7, seeds=30).result()
    assert found.found is None
    assert [cell.seed for cell in played.ran] == list(range(7, 37))
    assert (found.first, found.last, found.lost) == (7, 36, ())


def test_lost_guests_are_no_finding_and_are_named(tmp_path: Path) -> None:
    played = Played(lambda cell: "QEMU ended with status 1: " if cell.seed == 3 else "")
    found = hunted(tmp_path, played, seeds=5).result()
    assert (found.found, found.lost) == (None, (3,))


def test_a_finding_is_made_smaller(tmp_path: Path, home: Path) -> None:
    """It needs `first`, two disks and at least 16 blocks, and another seed once it is smaller."""

    def fails(cell: Cell) -> str:
        first = next((w for w in cell.workloads if w.name == "first"), None)
        enough = first is not None and first.parameters["count"] >= 16
        seed = 2 if len(cell.workloads) == 2 else 4
        return HANG if enough and cell.disks[0].count >= 2 and cell.seed == seed else ""

    played = Played(fails)
    hunting = hunted(tmp_path, played, shrink=400)
    assert hunting.found is not None
    assert hunting.found.seed == 2
    before = len(played.ran)
    hunting.shrink(played, RunOptions())
    smaller = hunting.result().smaller
    assert smaller is not None
    assert smaller.tried == len(played.ran) - before <= 400
    assert smaller.seed == 4
    (cell,) = compile_scenario(Path(smaller.file)).cells
    assert fails(cell) == HANG
    assert [w.name for w in cell.workloads] == ["first"]
    assert cell.workloads[0].parameters["count"] == 16
    assert (cell.disks[0].count, cell.faults) == (2, ())
    assert not list((home / "data" / "runs").glob(".hunt.*")), "nothing is left"


@pytest.mark.parametrize("shrink", [1, 10])
def test_the_limit_of_guests_is_kept(tmp_path: Path, shrink: int) -> None:
    played = Played(lambda cell: HANG if cell.seed == 1 else "")
    hunting = hunted(tmp_path, played, shrink=shrink)
    before = len(played.ran)
    hunting.shrink(played, RunOptions())
    assert len(played.ran) - before <= shrink
    assert hunting.smaller is not None


# --- lab debug ------------------------------------------------------------------------------------


def entry(when: int, tag: int, event: bytes, operation: int, flags: int = 0) -> bytes:
    """One entry as the driver writes it: 4 KiB at sector 2048 of the second disk."""
    return struct.pack("<QQIHHcBHI", when, 2048, 4096, 2, tag, event, operation, flags, 0)


LOG = b"".join(
    [
        entry(1_000_000_000, 7, b"D", 1, 3),
        entry(1_000_002_000, 8, b"D", 0),
        entry(1_000_500_000, 7, b"R", 1, 3),
        entry(1_001_000_000, 7, b"C", 1, 3),
        entry(1_001_000_001, 8, b"E", 0),
    ]
)


def stopped(log: bytes, kept: int = 5) -> bytes:
    return b"@lab begin 0 0.91\nhalf a li\n@lab requests 1002000000 70000 %d\n" % kept + log


def test_the_log_of_requests() -> None:
    found = requests.stop_of(stopped(LOG))
    assert found is not None
    assert (found.nanoseconds, found.total, len(found.events)) == (1_002_000_000, 70_000, 5)
    assert found.output == b"@lab begin 0 0.91\nhalf a li"
    lines = list(requests.lines(found.events, {2: "disk2"}))
    assert lines[0] == "1.000000000 disk2 issued write 2048 8 fua,sync"
    assert lines[1] == "1.000002000 disk2 issued read 2048 8 -"
    assert lines[2].startswith("1.000500000 disk2 received write")
    assert lines[3].split()[-1] == "0.001000000"
    assert lines[4] == "1.001000001 disk2 failed read 2048 8 - 0.000998001"


@pytest.mark.parametrize(
    "output", [b"", b"@lab begin 0 0.91\n", stopped(LOG[:-1]), stopped(LOG, 6), b"@lab requests 1"]
)
def test_output_without_a_whole_log_is_no_stop(output: bytes) -> None:
    assert requests.stop_of(output) is None


def test_python_and_c_agree_on_an_entry(tmp_path: Path) -> None:
    """The structure is in the driver's file, which cannot be compiled here: it is taken out."""
    text = (DRIVE / "lab_hunt.c").read_text()
    source = tmp_path / "entry.c"
    declared = text[text.index("struct lab_seen {") :].partition("};\n")[0] + "};\n"
    fields = ("when", "sector", "bytes", "disk", "tag", "event", "op", "flags")
    offsets = "".join(f'printf(" %zu", offsetof(struct lab_seen, {name}));' for name in fields)
    source.write_text(
        "#include <stdint.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        "typedef uint64_t u64; typedef uint32_t u32; typedef uint16_t u16; typedef uint8_t u8;\n"
        f'{declared}int main(void) {{ printf("%zu", sizeof(struct lab_seen)); {offsets} }}'
    )
    words = ("gcc", "-o", str(tmp_path / "entry"), str(source))
    subprocess.run(words, check=True, timeout=60)
    done = subprocess.run([tmp_path / "entry"], capture_output=True, text=True, check=True)
    size, *found = map(int, done.stdout.split())
    at, expected = 0, []
    for kind in requests.ENTRY.format.removeprefix("<")[: len(fields)]:
        expected.append(at)
        at += struct.calcsize(f"<{kind}")
    assert (size, found) == (requests.ENTRY.size, expected)


def test_a_stop_changes_one_number_of_the_first_boot_only(tmp_path: Path) -> None:
    (cell,) = compiled(tmp_path).cells
    procedure = cell_procedure(cell, "/guest")
    plain, stopping = programs(procedure), programs(procedure, 4_056_000_000)
    (before, after) = plain.boots[0], stopping.boots[0]
    assert len(before) == len(after)
    assert before.replace(f"{NEVER:019}", f"{4_056_000_000:019}") == after
    assert plain.boots[1:] == stopping.boots[1:]
    # A cell that is not disturbed gets the line for its stop alone, with seed 0.
    calm = cell.model_copy(update={"guest": cell.guest.model_copy(update={"disturb": False})})
    boot = programs(cell_procedure(calm, "/guest"), 5).boots[0]
    assert "\necho 0 " in boot
    assert f" {5:019} > " in boot


@pytest.mark.parametrize(
    ("log", "stored", "same"),
    [
        ("[1.0] a\n[2.0] b\n", "[1.0] a\n[2.0] b\n[3.0] c\n", True),
        ("[1.0] a\n[2.0] x\n", "[1.0] a\n[2.0] b\n[3.0] c\n", False),
        ("[1.0] a\n", "", None),
    ],
)
def test_messages_are_compared_with_the_stored_ones(
    log: str, stored: str, same: bool | None
) -> None:
    assert debugging.is_beginning(log, stored) is same


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--until", "foo"), "--until foo"),
        (("--from", "999999", "--seeds", "10"), "--from 999999"),
        (("--set", "workloads=[]", "--set", "faults=[]"), "nothing to hunt"),
        (("--set", "guest.cpus=2"), "guest.cpus"),
        (("--set", "disks.bus=scsi"), "disks.bus"),
    ],
)
def test_bad_input_of_a_hunt_ends_with_a_sentence(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    ended = cli("hunt", cli.file(TEXT), *words)
    assert ended.status == EXIT_INPUT
    assert said in ended.stderr
    assert not list(cli.home.glob("data/runs/*")), "nothing is left"


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nosuch", "--at", "1s"), "nosuch"), (("last", "--at", "soon"), "--at soon")],
)
def test_bad_input_of_debug_ends_with_a_sentence(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    ended = cli("debug", *words)
    assert ended.status == EXIT_INPUT
    assert said in ended.stderr
