"""CPU slots: guests in them run at low priority, also by their kernel session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.host.system.accelerator import Accelerator
from lab.model.execution.procedure import BeginWorkload, PowerCycle, WaitForSsh
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.worker import SlotUse
from tests.fakes import SCENARIO, compiled_text

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.usefixtures("lab_home")

PROGRAM = """\
import os, sys
from pathlib import Path
from lab.host.system import cpu_slots
from lab.host.system.cpu_slots import LOW

def seen():
    group = Path("/proc/self/autogroup")
    words = group.read_text().split() if group.exists() else []
    return f"{words[-1] if words else 'none'} {os.getpriority(os.PRIO_PROCESS, 0)}"

slot, said = getattr(cpu_slots, sys.argv[1])(), [seen()]
slot.acquire()
said.append(seen())
slot.release()
said.append(seen())
print(LOW, *said, sep=", ")
"""


NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
"""Niceness of these tests and of their child processes."""


def told(*, session: bool, more: int = 0, kind: str = "CpuSlot") -> list[str]:
    """Niceness of the session's group and of the thread: before, with a turn, after it.

    The session of the first process has no group of its own: its file is there, and is empty.
    """
    done = subprocess.run(
        ["nice", "-n", str(more), sys.executable, "-c", PROGRAM, kind],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=session,
        timeout=30,
    )
    low, *said = done.stdout.strip().split(", ")
    assert low == "15"
    return said


def test_a_worker_that_computes_steps_back_as_a_session_and_comes_forward_again() -> None:
    before, during, after = told(session=True)
    group = Path("/proc/self/autogroup").exists()
    assert before == after
    assert before.endswith(f" {NICENESS}")
    low = max(15, NICENESS) if os.geteuid() == 0 else NICENESS
    assert during == f"{'15' if group else 'none'} {low}"


@pytest.mark.skipif(os.geteuid() != 0 or NICENESS > 2, reason="changes no niceness")
@pytest.mark.parametrize(("more", "low"), [(3, 15), (17 - NICENESS, 17)])
def test_a_worker_that_was_started_with_a_low_priority_gets_it_back(more: int, low: int) -> None:
    said = [words.split()[1] for words in told(session=True, more=more)]
    assert said == [str(NICENESS + more), str(low), str(NICENESS + more)]


def test_a_guest_that_a_person_waits_for_keeps_its_priority() -> None:
    before, during, after = told(session=True, kind="Foreground")
    assert before == during == after
    assert told(session=True)[1] != during  # control


@pytest.mark.parametrize("save", ["", "key"])
def test_the_first_boot_of_a_run_is_waited_for(
    save: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing measures yet. A guest that boots for a cell steps back behind those that measure."""
    cell = compiled_text(tmp_path, SCENARIO).base
    image = SimpleNamespace(directory=tmp_path / "i", kernel=None, initrd=None, disk=tmp_path / "d")
    kind = Accelerator(kind="tcg", reason="")
    place = SimpleNamespace(image=image, accelerator=kind, emulator="qemu")
    jobs = GuestJobs(scenario="q", platforms={cell.guest.system: place}, at_once=1)  # type: ignore[dict-item]
    assert jobs.job(cell.guest, None, save=save).foreground == bool(save)


def test_the_session_of_whoever_started_it_is_left_alone() -> None:
    groups = {said.split()[0] for said in told(session=False)}
    assert len(groups) == 1


COVERED = """\
import os, subprocess, sys
from pathlib import Path
from lab.host.system import cpu_slots

def seen(pid):
    group = Path(f"/proc/{pid}/autogroup")
    words = group.read_text().split() if group.exists() else []
    print(words[-1] if words else "none", os.getpriority(os.PRIO_PROCESS, pid))

slot = cpu_slots.CpuSlot()
slot.acquire()
guest = subprocess.Popen(["sleep", "60"], start_new_session=True)
seen(guest.pid)
slot.cover(0)  # it is not known yet
seen(guest.pid)
getattr(slot, sys.argv[1])(guest.pid)
seen(guest.pid)
slot.release(guest.pid)
seen(guest.pid)
guest.kill()
"""


@pytest.mark.parametrize("how", ["cover", "acquire"])
def test_a_guest_that_is_started_during_a_turn_steps_back_as_a_session_too(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COVERED, how],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        timeout=30,
    )
    group = Path("/proc/self/autogroup").exists()
    root = os.geteuid() == 0
    own = max(15, NICENESS) if root else NICENESS
    new, low, high = (
        f"{session if group else 'none'} {nice}"
        for session, nice in ((0, own), (15, own), (0, NICENESS))
    )
    assert done.stdout.splitlines() == [new, new, low, high]


SERVED = """\
import os, sys
from lab.host.system import cpu_slots
from lab.host.guest.servers import Server
from lab.model.execution.procedure import StartServer

socket, log = sys.argv[1:]
listen = (
    "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
    " time.sleep(60)"
)
slot = cpu_slots.CpuSlot()
slot.acquire()
argv = (sys.executable, "-c", listen, socket)
server = Server(StartServer(label="disk1", argv=argv, socket=socket, log=log, timeout=20))
print(os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, server.pid))
server.stop()
"""


def test_a_disk_that_is_started_during_a_turn_does_not_step_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path / "s"), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        timeout=60,
    )
    assert done.stdout.split() == [
        str(max(15, NICENESS) if os.geteuid() == 0 else NICENESS),
        str(NICENESS),
    ]


def test_a_fault_in_the_middle_of_a_workload_waits_for_nobodys_turn() -> None:
    """The power is cut at its moment; the boot that follows is computing again."""
    compiled = compile_scenario(ROOT / "scenarios/bitmap-resync.yaml")
    procedure = cell_procedure(compiled.cells[0], "/guests/g1", None)
    slot_use = SlotUse()
    told = [(step, slot_use.at(step)) for step in procedure.steps]
    (began,) = [n for n, (step, _) in enumerate(told) if isinstance(step, BeginWorkload)]
    (cut,) = [n for n, (step, _) in enumerate(told) if isinstance(step, PowerCycle)]
    assert "acquire" in {wants for _, wants in told[:began]}
    assert {wants for _, wants in told[began : cut + 1]} == {"release", "leave"}
    assert told[cut][1] == "leave"
    assert "acquire" in [wants for step, wants in told[cut + 1 :] if isinstance(step, WaitForSsh)]
