"""A step that reaches its time limit is named, with how far it was; a panic by its cause."""

from __future__ import annotations

import pytest

from lab.compile.guest.program import CUT, TIMED_OUT, Answer, evidence, how_far, mdstat
from lab.core.errors import GuestError, LabError, ToolError, cause_of_panic
from lab.host.guest.virtual.sealed import timed_out
from lab.model.execution.procedure import (
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    Output,
    Procedure,
    Step,
    Timed,
    Verify,
    WaitFor,
)
from lab.run.steps import Undo, run_procedure
from tests.fakes import FakeBench

SCRIPT = 'read -r line < /proc/stat; echo "$line"\nwhile :; do sleep 1; done\n'
STEPS: dict[str, Step] = {
    "'build it' did not": GuestCommand(label="build it", script=SCRIPT),
    "'checking array' did not": Verify(name="array", script=SCRIPT, expect={"a": "1"}),
    "'write' did not": Timed(workload="write", trial=1, script=SCRIPT, timeout=600.0),
    "'md to be idle' did not": WaitFor(
        label="md to be idle", script=SCRIPT, expect={"a": "1"}, timeout=600.0
    ),
    "'load' did not": BeginWorkload(workload="load", trial=1, before=SCRIPT, script=":"),
    "'long' did not": EndWorkload(workload="long", trial=1, timeout=600.0),
}
MDSTAT = """\
Personalities : [raid6] [raid5] [raid4]
md127 : active raid5 vdd[3] vdc[1] vdb[0]
      131072 blocks super 1.2 level 5, 64k chunk, algorithm 2 [3/2] [UU_]
      [=======>.............]  recovery = 37.5% (24576/65536) finish=0.9min speed=700K/sec

md126 : active (auto-read-only) raid1 vdf[1] vde[0]
      1024 blocks super 1.2 [2/2] [UU]
      \tresync=PENDING

md125 : active raid0 vdh[1] vdg[0]
      1024 blocks super 1.2 64k chunks

unused devices: <none>
"""


class Late(FakeBench):
    """A guest whose commands all reach their limit."""

    mdstat = MDSTAT

    def guest(self, script: str, timeout: float) -> Output:
        error = GuestError(f"a command did not end: {script.splitlines()[0]}")
        error.late = f"{timeout:.0f} seconds"
        raise error

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        return self.guest(SCRIPT, timeout)


@pytest.mark.parametrize("start", STEPS)
def test_a_step_that_reaches_its_limit_is_named_with_how_far_it_was(start: str) -> None:
    procedure = Procedure(name="cell", steps=(STEPS[start],))
    with pytest.raises(LabError) as error:
        run_procedure(procedure, Late(), Undo(), lambda *_: None, lambda _: None, lambda _: None)
    message = error.value.message
    assert message.startswith(start)
    assert "recovery 37.5%, 24576 of 65536 KiB" in message
    assert "/proc/stat" not in message


def test_an_undo_that_reaches_its_limit_is_named_too() -> None:
    undo = Undo()
    bench = Late()
    step = GuestCommand(label="build it", script=":", undo=SCRIPT)
    with pytest.raises(LabError):
        run_procedure(Procedure(name="c", steps=(step,)), bench, undo, *[lambda *_: None] * 3)
    (error,) = undo.unwind()
    assert error.message.startswith("undoing 'build it' did not end within")


def test_how_far_md_is() -> None:
    assert how_far(MDSTAT) == (
        "md127 (raid5): recovery 37.5%, 24576 of 65536 KiB; md126 (raid1): resync PENDING;"
        " md125 (raid0) is idle"
    )
    assert how_far("") == how_far("unused devices: <none>\n") == ""
    text = f"{MDSTAT}{CUT}\n== vda\nsuper\n\n{CUT}\n[ 1.0] md\n"
    assert mdstat(text) == MDSTAT
    assert evidence(text) == {"superblocks.txt": "== vda\nsuper\n", "kernel.txt": "[ 1.0] md\n"}


def test_a_sealed_command_tells_its_last_line() -> None:
    out = f"counters\n{CUT}\n12\n13\n"
    late = Answer(status=TIMED_OUT, out=out.encode(), err=b"", began=1.0, ended=601.0)
    with pytest.raises(ToolError) as error:
        timed_out(late, SCRIPT, 600.0)
    assert error.value.late == "600 seconds of its clock, after '13'"
    timed_out(Answer(status=TIMED_OUT, out=b"", err=b"", began=1.0, ended=2.0), SCRIPT, 600.0)


def test_counters_after_a_workload_that_cannot_be_read_are_an_error() -> None:
    bench = FakeBench()
    bench.begun = ("long.1", "")
    bench.answers["counters"] = Output(status=1, stdout="", stderr="no disk", seconds=0.1)
    step = EndWorkload(workload="long", trial=1, timeout=9.0, after="counters")
    with pytest.raises(ToolError, match=r"the counters after long' ended with status 1.*no disk"):
        run_procedure(Procedure(name="c", steps=(step,)), bench, Undo(), *[lambda *_: None] * 3)


REGISTERS = """\
[    3.589569] RIP: 0033:0x41c71b
[    3.589619] RSP: 002b:00007fffffffe620 EFLAGS: 00000246
[    3.589637] RAX: 00000000004a8820 RBX: 0000000000001010 RCX: 0000000000007030
[    3.589744] Kernel Offset: disabled
"""
PANICS = {
    "Out of memory and no killable processes... / Kernel panic - not syncing: System is deadlocked"
    " on memory": "[    3.589187] Out of memory and no killable processes...\n"
    "[    3.589201] Kernel panic - not syncing: System is deadlocked on memory\n",
    "Out of memory: Killed process 312 (fio) total-vm:2048kB": "[    9.1] Out of memory: Killed"
    " process 312 (fio) total-vm:2048kB\n",
    "BUG: kernel NULL pointer dereference, address: 0000000000000010 / Oops: 0000 [#1]": "[  1.5]"
    " BUG: kernel NULL pointer dereference, address: 0000000000000010\n[  1.6] Oops: 0000 [#1]\n",
    "kernel BUG at drivers/md/raid5.c:771!": "[ 12.0] kernel BUG at drivers/md/raid5.c:771!\n",
}


@pytest.mark.parametrize("cause", PANICS)
def test_a_panic_is_named_by_its_cause_and_not_by_its_registers(cause: str) -> None:
    log = f"[    0.1] Linux version 6.1\n{PANICS[cause]}{REGISTERS}"
    assert cause_of_panic(log) == cause
    assert "Kernel Offset" in cause_of_panic(REGISTERS)  # nothing else is known
