"""Programs for sealed guests, run by a shell of this host, and the answers in their output."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from drive import region
from lab.compile.guest.program import PARAMETERS, answers, begun, programs
from lab.core.errors import InputError, LabError, ToolError
from lab.host.guest.virtual.sealed import SealedBackend
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import (
    AskServer,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    LimitDisk,
    Pause,
    PowerCycle,
    Procedure,
    SealDisks,
    SealedDisk,
    SpoilDisk,
    Step,
    Timed,
    Verify,
    WaitFor,
)
from lab.run.steps import CheckFailedError, Undo, run_procedure
from tests.fakes import guest_record

DISKS = SealDisks(disks=(SealedDisk(serial="d1", size=1 << 30),))


def run(
    steps: Sequence[Step],
    work: Path,
    *,
    cut_at: Callable[[bytes], bytes] = bytes,
    lost: Sequence[Mapping[str, int]] = (),
) -> Replay:
    """The steps' programs in a shell of this host, and then the run loop over what they left."""
    procedure = Procedure(name="p", steps=(DISKS, *steps))
    found = {}
    for text in programs(procedure).boots:
        script = text.replace("/run/lab", str(work)).replace("/proc/sysrq-trigger", f"{work}/cut")
        script = script.replace(PARAMETERS, str(work)).replace("PATH=", f"PATH={work}:")
        # The power is cut by the line after which nothing is done any more.
        script = script.replace("sleep 60\nexit 1", "exit 0")
        done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60, check=True)
        assert done.stderr == b""
        found.update(answers(cut_at(done.stdout)))
    return Replay(procedure, found, lost)


class Replay:
    def __init__(
        self,
        procedure: Procedure,
        found: dict,  # type: ignore[type-arg]
        lost: Sequence[Mapping[str, int]] = (),
    ) -> None:
        record = guest_record(Path("/nowhere"))
        kit = SealedKit(emulator="", kernel="", initramfs="", base="", memory=512)
        self.bench = SealedBackend(record, kit, tell=print, notice=print)
        self.bench.take(CellJob(id="c", procedure=procedure, directory="", target=""))
        self.bench._answers = found
        self.bench._lost_bytes = list(lost)
        self.bench.seal_disks = lambda step: None  # type: ignore[method-assign]
        self.saved: dict[str, str] = {}
        self.checks: list[str] = []
        self.steps = 0
        self.error: LabError | None = None

        def step(_step: Step) -> None:
            self.steps += 1

        try:
            run_procedure(
                procedure,
                self.bench,  # type: ignore[arg-type]
                Undo(),
                self.saved.__setitem__,
                step,
                lambda check: self.checks.append(check.name),
            )
        except LabError as error:
            self.error = error


def command(script: str, **more: object) -> GuestCommand:
    return GuestCommand(label="it", script=script, capture="it", **more)  # type: ignore[arg-type]


def test_what_commands_print_arrives_as_they_printed_it(tmp_path: Path) -> None:
    steps = [
        command("printf 'no end of line'; echo to-stderr >&2"),
        Verify(name="v", script="echo a=1; echo b=two words", expect={"a": "1", "b": "two words"}),
        Timed(
            workload="w",
            trial=1,
            before="echo before",
            script="cd /; printf '@lab end 0 0 0 99 99\\n'; echo 'it'\"'\"'s'",
            after="echo after",
            timeout=20,
        ),
    ]
    found = run(steps, tmp_path)
    assert found.error is None
    assert found.saved["it.txt"] == "no end of line"
    assert found.checks == ["v"]
    assert found.saved["w.1.before.txt"] == "before\n"
    assert found.saved["w.1.stdout.txt"] == "@lab end 0 0 0 99 99\nit's\n"
    assert found.saved["w.1.after.txt"] == "after\n"


def test_nothing_is_done_after_a_command_that_failed(tmp_path: Path) -> None:
    marker = tmp_path / "done"
    found = run([command("echo said >&2; exit 3"), command(f"touch {marker}")], tmp_path)
    assert isinstance(found.error, ToolError)
    assert "'it' ended with status 3 in the guest: said" in found.error.message
    assert not marker.exists()


def test_a_check_that_disagrees_fails_the_cell(tmp_path: Path) -> None:
    found = run([Verify(name="v", script="echo a=2", expect={"a": "1"}), command(":")], tmp_path)
    assert isinstance(found.error, CheckFailedError)
    assert "a is '2', not '1'" in found.error.message


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found = run([command("sleep 30", timeout=1)], tmp_path)
    assert isinstance(found.error, ToolError)
    assert found.error.message == "'it' did not end within 1 seconds of its clock"


@pytest.mark.parametrize(("hits", "rounds"), [(1, 3), (3, 5)])
def test_it_is_waited_for_until_it_agrees_often_enough(
    tmp_path: Path, hits: int, rounds: int
) -> None:
    count = tmp_path / "count"
    script = f"echo x >> {count}; n=$(wc -l < {count}); [ $n -lt 3 ] || echo ready=yes"
    waiting = WaitFor(
        label="it", script=script, expect={"ready": "yes"}, timeout=20, interval=0.01, hits=hits
    )
    found = run([waiting, command("echo on")], tmp_path)
    assert found.error is None
    assert len(count.read_text().splitlines()) == rounds
    assert found.saved["it.txt"] == "on\n"


def test_waiting_is_given_up(tmp_path: Path) -> None:
    waiting = WaitFor(label="more", script="echo a=0", expect={"a": "1"}, timeout=1, interval=0.2)
    found = run([waiting, command("echo on")], tmp_path)
    assert found.error is not None
    assert "gave up after 1 seconds waiting for more: a is '0', not '1'" in found.error.message
    assert "it.txt" not in found.saved


def test_a_workload_runs_while_something_happens(tmp_path: Path) -> None:
    steps = [
        BeginWorkload(workload="w", trial=1, before="echo first", script="sleep 0.5; echo last"),
        Pause(seconds=0.1),
        command("echo meanwhile"),
        EndWorkload(workload="w", trial=1, after="echo counted", timeout=20),
    ]
    found = run(steps, tmp_path)
    assert found.error is None
    assert found.saved["it.txt"] == "meanwhile\n"
    assert found.saved["w.1.stdout.txt"] == "last\n"
    assert found.saved["w.1.after.txt"] == "counted\n"


def test_a_power_cut_ends_a_boot_and_keeps_what_was_told_by_then(tmp_path: Path) -> None:
    steps = [
        BeginWorkload(workload="w", trial=1, script="echo told; sleep 0.6; echo too late"),
        Pause(seconds=0.3),
        PowerCycle(capture="power"),
        command("echo again"),
        EndWorkload(workload="w", trial=1, timeout=20, cut=True),
        command("echo on"),
    ]
    found = run(steps, tmp_path)
    assert found.error is None
    assert (tmp_path / "cut").read_text() == "b\n"
    assert found.saved["w.1.stdout.txt"] == "told\n"
    assert found.saved["it.txt"] == "on\n"
    assert len(programs(Procedure(name="p", steps=(DISKS, *steps))).boots) == 2


def test_output_that_breaks_off_is_an_end_of_the_guest(tmp_path: Path) -> None:
    steps = [command("echo first"), command("echo second, which is cut off")]
    found = run(steps, tmp_path, cut_at=lambda out: out[:-8])
    assert found.error is not None
    assert "guest ended before" in found.error.message
    assert ": echo second" in found.error.message


def test_the_item_under_way_is_seen_in_half_an_output(tmp_path: Path) -> None:
    assert begun(b"") is None
    assert begun(b"@lab begin 0 1.0\n") == 0
    assert begun(b"@lab begin 0 1.0\n@lab end 0 0 1.1 3 0\nabc@lab begin 1 1.2\n@lab e") == 1


def ordered(line: str, serial: str = "d1") -> AskServer:
    return AskServer(label="it", socket=f"/guest/disks/{serial}.control", line=line, capture="it")


@pytest.mark.parametrize(
    ("step", "file", "words"),
    [
        (ordered("error read 4096 512 2"), "bad", "1 4096 512 1 2"),
        (ordered("error write 0 4096"), "bad", "1 0 4096 2"),
        (ordered("rot 1024 512 165"), "rot", "1 1024 512 165"),
        (ordered("misread 1024 1"), "bad", "1 1024 1 4 255"),
        (ordered("stall 2.5"), "stall", "1 2500000000"),
        (ordered("stall release"), "stall", f"1 {2**64 - 1}"),
        (ordered("release"), "stall", "1 0"),
        (SpoilDisk(serial="d1", offset=8, length=512, pattern=165), "rot", "1 8 512 165"),
        (
            LimitDisk(serial="d1", limits={"total_bytes_sec": 5, "write_iops_sec": 7}),
            "limit",
            "1 5 0 0 0 0 7",
        ),
        (LimitDisk(serial="d1", limits={"read_iops_sec": 9}), "limit", "1 0 0 0 0 9 0"),
    ],
)
def test_faults_are_commands_to_the_driver(
    tmp_path: Path, step: Step, file: str, words: str
) -> None:
    found = run([step, command("echo on")], tmp_path)
    assert found.error is None
    assert (tmp_path / file).read_text() == f"{words}\n"
    assert found.saved["it.txt"] == "on\n"


def test_what_the_driver_answers_is_what_a_server_answers(tmp_path: Path) -> None:
    found = run([ordered("rot 0 512")], tmp_path)
    assert found.saved["it.txt"] == "ok\n"
    (tmp_path / "rot").unlink()
    (tmp_path / "rot").mkdir()  # the driver refuses
    found = run([ordered("rot 0 512"), command("echo on")], tmp_path)
    assert isinstance(found.error, ToolError)
    assert found.saved["it.txt"].startswith("error ")


def test_what_the_driver_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match=r"guest\.clock: .*'dance 1'"):
        programs(Procedure(name="p", steps=(DISKS, ordered("dance 1"))))


def test_counters_are_read_by_the_host() -> None:
    procedure = Procedure(name="p", steps=(DISKS, ordered("stats")))
    assert not programs(procedure).items
    drive = {"reads": 7}
    statistics = region.Statistics(requests={}, bytes={}, fua=0, errors=0, waited=0, drive=drive)
    bench = Replay(Procedure(name="p", steps=(DISKS,)), {}).bench
    bench._statistics = {"d1": statistics}
    assert bench.ask_server(ordered("stats")) == 'ok {"reads": 7}'


@pytest.mark.parametrize("lose", [True, False])
def test_each_power_cut_says_whether_caches_are_lost(tmp_path: Path, lose: bool) -> None:
    sockets = ("/guest/disks/d1.control", "/guest/disks/d2.control") if lose else ()
    steps = [PowerCycle(capture="power", lose=sockets), command("echo on")]
    assert programs(Procedure(name="p", steps=(DISKS, *steps))).loses == (lose,)
    found = run(steps, tmp_path, lost=[{"d1": 4096}])
    assert found.error is None
    expected = f"{sockets[0]} ok 4096\n{sockets[1]} ok 0\n" if lose else ""
    assert found.saved["power.txt"] == expected


BROKEN = Verify(name="v", script="echo a=2", expect={"a": "1"})


@pytest.mark.parametrize(
    "steps",
    [
        [command("echo said >&2; exit 3")],
        [BROKEN],
        [BROKEN, command("exit 4")],
        [WaitFor(label="w", script=":", expect={"a": "1"}, timeout=1, interval=0.2)],
    ],
)
def test_superblocks_and_the_kernels_log_are_kept_after_a_failure(
    tmp_path: Path, steps: list[Step]
) -> None:
    tools(tmp_path)
    found = run(steps, tmp_path)
    assert found.error is not None
    kept = found.bench.evidence()
    assert kept["kernel.txt"] == "the kernel's log\n"
    assert "superblock of /dev/" in kept["superblocks.txt"]
    # What failed first.
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_nothing_is_kept_of_a_cell_that_is_done(tmp_path: Path) -> None:
    tools(tmp_path)
    found = run([command("true"), Verify(name="v", script="echo a=1", expect={"a": "1"})], tmp_path)
    assert found.error is None
    assert found.bench.evidence() == {}
    assert not (tmp_path / "calls").exists()


def tools(work: Path) -> None:
    """Programs of a guest that this host may lack."""
    for name, line in (
        ("mdadm", 'echo "superblock of $2"'),
        ("dmesg", f'echo called >> {work}/calls; echo "the kernel\'s log"'),
    ):
        (work / name).write_text(f"#!/bin/sh\n{line}\n")
        (work / name).chmod(0o755)
