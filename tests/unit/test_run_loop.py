"""The step loop runs a procedure in order, and undoes it after any error."""

from __future__ import annotations

import pytest

from lab.core.errors import GuestError, HostError, LabError, ToolError
from lab.model.execution.procedure import (
    AttachDisk,
    GuestCommand,
    HostCommand,
    MakeDirectory,
    Procedure,
    StartGuest,
    Step,
    Timed,
    Verify,
    WaitFor,
    WaitForSsh,
    WriteFile,
)
from lab.model.result.measurement import Check
from lab.run.steps import CheckFailedError, Undo, compare, read_pairs, run_procedure
from tests.fakes import FakeBench, said

MAKE = MakeDirectory(path="/g/disks")
SECRET = WriteFile(path="/g/key", content="k", mode=0o600, secret=True)
HOST = HostCommand(label="disk", argv=("qemu-img", "create", "/g/a"), creates=("/g/a", "/g/b"))
START = StartGuest(name="lab", xml="<domain/>", xml_path="/g/domain.xml", console="/g/console")
SSH = WaitForSsh(timeout=60)
ATTACH = AttachDisk(serial="disk1", xml="<disk/>", xml_path="/g/disk1.xml")
BUILD = GuestCommand(label="array", script="mdadm --create", undo="mdadm --stop", capture="made")
READ_BACK = Verify(name="array", script="cat state", expect={"level": "raid5", "disks": "5"})
WRITE = Timed(workload="write", trial=1, script="dd", timeout=9)
ALL: tuple[Step, ...] = (MAKE, SECRET, HOST, START, SSH, ATTACH, BUILD, READ_BACK, WRITE)


class Run:
    """One run of a procedure, with its results."""

    def __init__(self, bench: FakeBench, *steps: Step) -> None:
        self.bench = bench
        self.undo = Undo()
        self.saved: dict[str, str] = {}
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self.error: LabError | None = None
        try:
            run_procedure(
                Procedure(name="p", steps=steps),
                bench,
                self.undo,
                self.saved.__setitem__,
                self.steps.append,
                self.checks.append,
            )
        except LabError as error:
            self.error = error

    def back(self) -> list[tuple[str, ...]]:
        """Return the calls of the undo."""
        before = len(self.bench.log)
        self.errors = self.undo.unwind()
        return self.bench.log[before:]


@pytest.fixture
def bench() -> FakeBench:
    bench = FakeBench()
    bench.answers["cat state"] = said("level=raid5\ndisks=5\nother=1\n")
    bench.answers["dd"] = said("out", stderr="10 bytes copied", seconds=2.5)
    bench.answers["mdadm --create"] = said("made it")
    return bench


def test_steps_are_done_in_order(bench: FakeBench) -> None:
    run = Run(bench, *ALL)
    assert run.error is None
    assert run.steps == list(ALL)
    assert bench.log == [
        ("mkdir", "/g/disks"),
        ("write", "/g/key"),
        ("host", "qemu-img", "create", "/g/a"),
        ("write", "/g/domain.xml"),
        ("start", "lab"),
        ("ssh", "60"),
        ("write", "/g/disk1.xml"),
        ("attach", "disk1"),
        ("guest", "mdadm --create"),
        ("guest", "cat state"),
        ("guest", "dd"),
    ]
    assert run.checks == [Check(name="array", passed=True, detail="level=raid5, disks=5")]


def test_everything_is_taken_back_last_made_first(bench: FakeBench) -> None:
    run = Run(bench, *ALL)
    assert run.back() == [
        ("guest", "mdadm --stop"),
        ("detach", "disk1"),
        ("remove", "/g/disk1.xml"),
        ("destroy",),
        ("remove", "/g/b"),
        ("remove", "/g/a"),
        ("remove", "/g/key"),
        ("remove", "/g/disks"),
    ]
    assert run.errors == []
    assert run.back() == []


@pytest.mark.parametrize(
    ("entry", "undone"),
    [
        (("host", "qemu-img", "create", "/g/a"), ("remove", "/g/a")),
        (("start", "lab"), ("destroy",)),
        (("guest", "mdadm --create"), ("guest", "mdadm --stop")),
        (("attach", "disk1"), ("remove", "/g/disk1.xml")),
        (("mkdir", "/g/disks"), ("remove", "/g/disks")),
    ],
)
def test_a_step_that_stops_half_way_is_taken_back_too(
    bench: FakeBench, entry: tuple[str, ...], undone: tuple[str, ...]
) -> None:
    bench.failures[entry] = HostError("the disk is full")
    run = Run(bench, *ALL)
    assert str(run.error) == "the disk is full"
    assert bench.log[-1] == entry
    back = run.back()
    assert undone in back
    assert back[-1] == ("remove", "/g/disks")
    if entry[0] == "attach":
        assert ("detach", "disk1") not in back


def test_errors_on_the_way_back_are_collected_and_the_rest_is_still_done(bench: FakeBench) -> None:
    bench.failures[("detach", "disk1")] = GuestError("it would not let go")
    bench.failures[("destroy",)] = HostError("it would not end")
    run = Run(bench, *ALL)
    back = run.back()
    assert [str(e) for e in run.errors] == ["it would not let go", "it would not end"]
    assert len(back) == 8


def test_an_undo_in_the_guest_that_fails_is_an_error(bench: FakeBench) -> None:
    bench.answers["mdadm --stop"] = said(stderr="still in use", status=1)
    run = Run(bench, *ALL)
    run.back()
    (error,) = run.errors
    assert "undoing 'array'" in str(error)
    assert "still in use" in str(error)


def test_what_is_to_stay_is_forgotten(bench: FakeBench) -> None:
    run = Run(bench, *ALL)
    run.undo.forget()
    assert run.back() == []


def test_a_mistake_of_the_lab_itself_is_not_swallowed(bench: FakeBench) -> None:
    undo = Undo()
    taken: list[str] = []
    undo.add(taken.append, "the first")
    undo.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        undo.unwind()
    assert taken == ["the first"]


def test_a_secret_file_is_secret_and_others_are_not(bench: FakeBench) -> None:
    Run(bench, SECRET, WriteFile(path="/g/open", content=""))
    assert bench.modes == {"/g/key": 0o600, "/g/open": 0o644}


@pytest.mark.parametrize(
    ("found", "detail"),
    [
        ("level=raid5\ndisks=4\n", "disks is '4', not '5'"),
        ("level=raid5\n", "disks was not found"),
        ("", "the guest did not report 2 values of it"),
        ("level=raid6\ndisks=5\n", "level is 'raid6', not 'raid5'"),
    ],
)
def test_a_read_back_that_differs_ends_the_cell_before_its_first_workload(
    bench: FakeBench, found: str, detail: str
) -> None:
    bench.answers["cat state"] = said(found)
    run = Run(bench, READ_BACK, WRITE)
    assert isinstance(run.error, CheckFailedError)
    assert run.checks == [Check(name="array", passed=False, detail=detail)]
    assert ("guest", "dd") not in bench.log
    assert str(run.error) == f"the check 'array' failed: {detail}"


def test_a_failed_read_back_keeps_what_the_script_complained_of(bench: FakeBench) -> None:
    bench.answers["cat state"] = said("", stderr="cat: state: No such file\n", status=1)
    run = Run(bench, READ_BACK)
    assert "(cat: state: No such file)" in str(run.error)


WAIT = WaitFor(label="the sync", script="sync?", expect={"idle": "yes"}, timeout=10, interval=1)


def test_waiting_ends_when_it_agrees(bench: FakeBench) -> None:
    bench.answers["sync?"] = [said("idle=no"), said("idle=no"), said("idle=yes")]
    assert Run(bench, WAIT).error is None
    assert bench.clock == 2


def test_waiting_gives_up_with_the_reason(bench: FakeBench) -> None:
    bench.answers["sync?"] = said("idle=no")
    run = Run(bench, WAIT)
    assert isinstance(run.error, GuestError)
    assert str(run.error) == (
        "gave up after 10 seconds waiting for the sync: idle is 'no', not 'yes'"
    )
    assert bench.clock == 10


def test_hits_must_come_in_a_row(bench: FakeBench) -> None:
    three = WAIT.model_copy(update={"hits": 3})
    yes, no = said("idle=yes"), said("idle=no")
    bench.answers["sync?"] = [yes, yes, no, yes, yes, yes, no]
    assert Run(bench, three).error is None
    assert bench.clock == 5
    bench.clock = 0
    bench.answers["sync?"] = [yes, no] * 20
    assert Run(bench, three).error is not None


def test_what_a_command_printed_is_kept_even_when_it_failed(bench: FakeBench) -> None:
    bench.answers["mdadm --create"] = said("half", stderr="mdadm: no\n", status=2)
    run = Run(bench, BUILD, WRITE)
    assert run.saved == {"made.txt": "half"}
    assert str(run.error) == "'array' ended with status 2 in the guest: mdadm: no"
    assert ("guest", "dd") not in bench.log


def test_what_a_workload_printed_is_kept_even_when_it_failed(bench: FakeBench) -> None:
    bench.answers["dd"] = said("out", stderr="dd: I/O error\n", status=1, seconds=0.25)
    run = Run(bench, WRITE)
    assert run.saved == {
        "write.1.stdout.txt": "out",
        "write.1.stderr.txt": "dd: I/O error\n",
        "write.1.pressure.txt": "cpu=0.000000\nwait=0.000000\nseconds=0.250000\n",
    }
    assert isinstance(run.error, ToolError)
    assert "dd: I/O error" in str(run.error)


def test_a_command_that_printed_nothing_says_so(bench: FakeBench) -> None:
    bench.answers["dd"] = said(status=137)
    assert str(Run(bench, WRITE).error) == (
        "'write' ended with status 137 in the guest: it printed nothing"
    )


def test_pairs_are_read_and_all_else_is_passed_over() -> None:
    assert read_pairs("a=1\n b=2\nc d=3\n=4\nno\ne=f=g\nspaced= x \n") == {
        "a": "1",
        "e": "f=g",
        "spaced": "x",
    }


def test_every_step_says_what_it_does() -> None:
    assert [s.progress for s in (*ALL, WAIT)] == [
        *("writing /g/disks", "writing /g/key", "disk", "starting the guest", "booting"),
        *("plugging in disk1", "array", "checking array", "write", "the sync"),
    ]


def test_nothing_expected_is_found() -> None:
    assert compare("x", {}, {}).passed
