"""Faults become steps at their time; output of md, disks and ledger becomes metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import measure
from lab.analysis.predict import predictions, silences
from lab.compile.cell.fault_times import cut_short, in_order, undisturbed
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.disks import NO_DISKS, Plugged, lasting
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError, ToolError
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    LimitDisk,
    Pause,
    PowerCycle,
    Procedure,
    SpoilDisk,
    Step,
    Timed,
    UnplugDisk,
    Verify,
    WipeDisk,
)
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from lab.plugins.faults._shared import BEGAN, check, common, glance, reshaped, settle, state
from lab.report.export.shell import as_script
from lab.run.plan import plan_of
from lab.run.steps import Undo, run_procedure
from tests.fakes import FAULTS, SCENARIO, FakeBench, compiled_text, said
from tests.unit.test_measure import counters

BASE = (
    SCENARIO
    + """\
  - name: book
    tool: ledger
    size: 1MiB
    count: 64
"""
)
CUT = "  - {name: cut, fault: power_cut, during: book, at: 2s, check: true}\n"


def compiled(directory: Path, faults: str, *sets: str, model: str = "throttle") -> Compiled:
    text = f"{BASE}faults:\n{faults}" if faults else BASE
    if model != "throttle":
        limit = "  throttle:\n    total_bytes_per_second: 5MiB\n"
        assert limit in text
        text = text.replace(limit, f"  model: {model}\n")
    return compiled_text(directory, text, *sets)


def steps_of(directory: Path, faults: str, *sets: str) -> list[Step]:
    return list(cell_procedure(compiled(directory, faults, *sets).base, "/state/g1").steps)


def named(steps: Sequence[Step], name: str) -> Timed:
    return next(s for s in steps if isinstance(s, Timed) and s.workload == name)


# --- compiled steps --------------------------------------------------------------------------


def test_a_power_cut_comes_while_its_workload_runs_and_the_guest_boots_again(
    tmp_path: Path,
) -> None:
    steps = steps_of(tmp_path, CUT)
    begin = next(i for i, s in enumerate(steps) if isinstance(s, BeginWorkload))
    kinds = [s.kind for s in steps[begin:]]
    assert kinds[:6] == [
        *("begin_workload", "pause", "guest_command", "power_cycle", "wait_for_ssh"),
        "guest_command",
    ]
    assert kinds[6:10] == ["verify"] * 4  # each disk's settings, new to the kernel
    ended, assembled = steps[begin + 10], steps[begin + 11]
    assert isinstance(ended, EndWorkload)
    assert ended.cut
    assert isinstance(assembled, Timed)
    assert assembled.workload == "cut"
    assert "mdadm --assemble /dev/md/bench" in assembled.script
    assert "--run" not in assembled.script  # md decides whether it starts
    assert "[ $was != read-auto ] || mdadm --readwrite /dev/md/bench" in assembled.script
    captures = [s.capture for s in steps[begin:] if isinstance(s, GuestCommand) and s.capture]
    assert captures == ["cut.1.at", "cut.1.book.kept", "cut.1.state", "cut.1.check", "end"]
    assert steps[begin + 1] == Pause(seconds=2.0)


def test_disks_of_a_guest_that_starts_again_are_not_asked_whether_they_are_blank(
    tmp_path: Path,
) -> None:
    steps = steps_of(tmp_path, CUT)
    again = [s for s in steps if isinstance(s, Verify) and s.name.endswith("again")]
    assert [s.name for s in again] == [f"disk{n} again" for n in (1, 2, 3, 4)]
    assert not any("leftovers" in s.expect or "leftovers" in s.script for s in again)
    first = next(s for s in steps if isinstance(s, Verify) and s.name == "disks")
    assert first.expect["leftovers"] == "0"


def test_faults_come_in_the_order_of_their_workloads(tmp_path: Path) -> None:
    faults = """\
  - {name: late, fault: fail, after: read, disk: 2}
  - {name: third, fault: sync_action, during: write, at: 3s, action: check}
  - {name: first, fault: sync_action, before: write, action: check}
  - {name: second, fault: sync_action, during: write, at: 1s, action: check}
"""
    cell = compiled(tmp_path, faults).base
    assert [f.name for f in in_order(cell)] == ["first", "second", "third", "late"]
    steps = list(cell_procedure(cell, "/g").steps)
    told = [
        getattr(s, "workload", None) or f"{s.seconds:g} s"
        for s in steps
        if isinstance(s, Timed | BeginWorkload | EndWorkload | Pause)
    ]
    assert told == [
        *("first", "write", "1 s", "second", "2 s", "third", "write", "read", "late", "book")
    ]
    assert [w.name for w in undisturbed(cell)] == []
    assert cut_short(cell) == set()


def test_theory_is_silent_from_the_first_fault_on(tmp_path: Path) -> None:
    longer = ("workloads.write.count=400", "workloads.read.count=400")
    quiet = compiled(tmp_path, "", *longer).base
    late = "  - {name: late, fault: fail, after: write, disk: 2}\n"
    later = compiled(tmp_path, late, *longer).base
    assert {p.workload for p in predictions(quiet)} == {"write", "read"}
    assert {p.workload for p in predictions(later)} == {"write"}
    assert "after a fault" in silences(later)["read"]
    assert "after a fault" not in silences(quiet).get("book", "")


def test_disks_that_faults_have_met_are_no_other_cells(tmp_path: Path) -> None:
    quiet, cut = compiled(tmp_path, "").base, compiled(tmp_path, CUT).base
    assert len(lasting(quiet).disks) == 4
    assert lasting(cut) == NO_DISKS
    steps = cell_procedure(cut, "/g", plugged=lasting(quiet)).steps
    assert not [s for s in steps if isinstance(s, WipeDisk)]
    assert [s.kind for s in steps][:4] == ["detach_disk"] * 4
    assert {s.lasting for s in steps if isinstance(s, AttachDisk)} == {False}
    assert {
        s.lasting
        for s in cell_procedure(quiet, "/g", plugged=Plugged()).steps
        if isinstance(s, AttachDisk)
    } == {True}


def test_a_cell_without_faults_keeps_its_name(tmp_path: Path) -> None:
    assert cell_id(compiled_text(tmp_path, SCENARIO).base) == "base-544505eb"
    other = compiled(tmp_path, CUT).base
    assert cell_id(other) != cell_id(compiled(tmp_path, "").base)
    assert identity(other) != identity(compiled(tmp_path, "").base)


STEPS = {
    "  - {name: f, fault: pull, after: book, disk: 2}": UnplugDisk,
    "  - {name: f, fault: slow, during: book, disk: 2, total_bytes_per_second: 1MiB}": LimitDisk,
    "  - {name: f, fault: rot, after: book, disk: 2}": SpoilDisk,
    "  - {name: f, fault: power_cut, after: book}": PowerCycle,
}


@pytest.mark.parametrize(("fault", "kind"), STEPS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_what_happens_on_the_host_is_a_step(tmp_path: Path, fault: str, kind: type) -> None:
    steps = steps_of(tmp_path, f"{fault}\n")
    (found,) = [s for s in steps if isinstance(s, kind)]
    assert getattr(found, "serial", "disk2") == "disk2"
    after = steps.index(found)
    assert any(isinstance(s, Timed) and s.workload == "f" for s in steps[after:])
    assert not any(isinstance(s, Timed) and s.workload == "f" for s in steps[:after])


def test_limits_are_told_by_libvirts_names(tmp_path: Path) -> None:
    fault = (
        "  - {name: f, fault: slow, after: book, disk: 3, read_operations_per_second: 20,"
        " write_bytes_per_second: 1MiB}\n"
    )
    (limit,) = [s for s in steps_of(tmp_path, fault) if isinstance(s, LimitDisk)]
    assert limit.limits == {"read_iops_sec": 20, "write_bytes_sec": 1048576}


def test_modelled_disks_are_told_over_their_sockets(tmp_path: Path) -> None:
    faults = """\
  - {name: bad, fault: io_error, before: book, disk: 2, offset: 8KiB, length: 4KiB, times: 2}
  - {name: rotten, fault: rot, before: book, disk: 3, offset: 4KiB}
  - {name: still, fault: slow, during: book, disk: 1, stall: 2s}
  - {name: cut, fault: power_cut, after: book, lose_cache: true}
"""
    steps = cell_procedure(compiled(tmp_path, faults, model="hdd").base, "/state/g1").steps
    offset = 2 * 1024**2  # of 1 GiB members: 12 KiB, 4 KiB for a bitmap, 1 MiB; rounded up
    lines = [s.line for s in steps if isinstance(s, AskServer) and s.line != "stats"]
    assert lines == [
        f"error read {offset + 8192} 4096 2",
        f"rot {offset + 4096} 4096 165",
        "stall 2",
    ]
    (cycle,) = [s for s in steps if isinstance(s, PowerCycle)]
    assert cycle.lose == tuple(f"/state/g1/disks/disk{n}.control" for n in (1, 2, 3, 4))


def test_a_pulled_disk_is_plugged_in_before_it_is_added(tmp_path: Path) -> None:
    faults = """\
  - {name: out, fault: pull, after: write, disk: 2}
  - {name: in, fault: re_add, after: read, disk: 2}
"""
    steps = steps_of(tmp_path, faults)
    attached = [s.serial for s in steps if isinstance(s, AttachDisk)]
    assert attached == ["disk1", "disk2", "disk3", "disk4", "disk2"]
    only = steps_of(tmp_path, "  - {name: in, fault: re_add, after: read, disk: 2}\n")
    assert [s.serial for s in only if isinstance(s, AttachDisk)] == attached[:4]
    cut = steps_of(tmp_path, faults + "  - {name: cut, fault: power_cut, before: read}\n")
    assembled = named(cut, "cut").script
    assert "virtio-disk1" in assembled
    assert "virtio-disk2" not in assembled


def test_settings_are_made_again_of_an_array_that_is_assembled(tmp_path: Path) -> None:
    scripts = [
        named(steps_of(tmp_path, CUT, *sets), "cut").script
        for sets in ((), ("array.sysfs={stripe_cache_size: 512}",))
    ]
    assert "stripe_cache_size" not in scripts[0]
    assert "printf '%s\\n' 512 > $md/stripe_cache_size" in scripts[1]


def test_a_bitmaps_own_disk_is_no_member_and_is_mounted_before_the_array_is_assembled(
    tmp_path: Path,
) -> None:
    aside = "array={level: 5, bitmap: external, bitmap_disk: 1, chunk: 64KiB}"
    script = named(steps_of(tmp_path, CUT, aside), "cut").script
    assembled = next(line for line in script.splitlines() if "mdadm --assemble" in line)
    mounted, _, command = assembled.partition("MDADM_NO_UDEV=1")
    assert "mount -t ext4 -o noatime /dev/disk/by-id/virtio-disk1 /mnt/bitmap" in mounted
    assert "--bitmap=/mnt/bitmap/bench" in command
    assert "virtio-disk1" not in command
    assert "virtio-disk2" in command
    assert "mdadm --examine-bitmap /mnt/bitmap/bench" in script
    with pytest.raises(InputError, match=r"faults\[0\]\.disk: disk 1 .*bitmap"):
        compiled(tmp_path, "  - {name: f, fault: fail, after: book, disk: 1}\n", aside)
    compiled(tmp_path, "  - {name: f, fault: slow, after: book, disk: 1, stall: 1s}\n", model="hdd")


def test_a_journals_disk_is_assembled_with_the_members_and_is_none_of_them(tmp_path: Path) -> None:
    aside = "array={level: 5, journal_disk: 1, chunk: 64KiB}"
    script = named(steps_of(tmp_path, CUT, aside), "cut").script
    command = next(line for line in script.splitlines() if "mdadm --assemble" in line)
    assert command.count("/dev/disk/by-id/virtio-disk") == 4
    assert command.index("virtio-disk2") < command.index("virtio-disk1")
    with pytest.raises(InputError, match=r"faults\[0\]\.disk: disk 1 .*journal"):
        compiled(tmp_path, "  - {name: f, fault: fail, after: book, disk: 1}\n", aside)
    with pytest.raises(InputError, match=r"faults\[0\]\.chunk: .*write journal"):
        compiled(tmp_path, "  - {name: g, fault: grow, after: book, chunk: 128KiB}\n", aside)


def test_a_missing_member_is_none_until_it_is_added(tmp_path: Path) -> None:
    short = "array.missing=2"
    script = named(steps_of(tmp_path, CUT, short), "cut").script
    command = next(line for line in script.splitlines() if "mdadm --assemble" in line)
    assert "virtio-disk2" not in command
    assert "virtio-disk3" in command
    fails = "  - {name: f, fault: fail, after: book, disk: 2}\n"
    with pytest.raises(InputError, match="disk 2 is not a member of the array"):
        compiled(tmp_path, fails, short)
    back = "  - {name: b, fault: re_add, after: write, disk: 2, add: true}\n"
    compiled(tmp_path, back + fails, short)


def test_an_array_without_redundancy_survives_a_power_cut_too(tmp_path: Path) -> None:
    text = CUT.replace(", check: true", "")
    assert "--assemble" in named(steps_of(tmp_path, text, "array={level: 0}"), "cut").script


def test_after_a_power_cut_a_bare_disk_is_mounted_again(tmp_path: Path) -> None:
    """Otherwise the next workload wrote to the guest's root disk, and measured that."""
    one = BASE.replace("count: 4\n", "count: 1\n", 1)
    head = one[: one.index("array:")] + "filesystem: {type: ext4}\nworkloads:\n"
    plain = CUT.replace(", check: true", "")
    steps = cell_procedure(
        compiled_text(tmp_path, f"{head}{one[one.index('  - name: book') :]}faults:\n{plain}").base,
        "/guest",
    ).steps
    assert (
        "mount -t ext4 -o noinit_itable /dev/disk/by-id/virtio-disk1 /mnt/bench"
        in named(steps, "cut").script
    )


BAD = {
    "  - {name: f, fault: melt, after: book}": (
        "faults[0].fault: there is no 'melt' in lab/plugins/faults"
    ),
    "  - {name: f, fault: fail, disk: 1}": "found none",
    "  - {name: f, fault: fail, after: book, before: read, disk: 1}": "found before and after",
    "  - {name: f, fault: fail, after: book, at: 2s, disk: 1}": "at needs during",
    "  - {name: f, fault: fail, after: booking, disk: 1}": "after: there is no workload 'booking'",
    "  - {name: book, fault: fail, after: book, disk: 1}": "faults[0].name: 'book' is already",
    "  - {name: f, fault: fail, after: book, disk: 5}": "there is no disk 5: the cell has 4",
    "  - {name: f, fault: fail, after: book, disk: 0}": "from 1 to 64, found 0",
    "  - {name: f, fault: fail, after: book, disc: 1}": "faults[0].disc",
    "  - {name: f, fault: rot, during: book, disk: 1}": "f, fault: rot",
    "  - {name: f, fault: rot, after: book, disk: 1, length: 100}": "not whole sectors",
    "  - {name: f, fault: rot, after: book, disk: 1, offset: 300MiB}": "beyond the member's data",
    "  - {name: f, fault: io_error, after: book, disk: 1}": "io_error needs a modelled disk",
    "  - {name: f, fault: slow, after: book, disk: 1, stall: 2s}": "cannot stall",
    "  - {name: f, fault: slow, after: book, disk: 1}": "no limit is given",
    "  - {name: f, fault: power_cut, after: book, lose_cache: true}": "have no volatile cache",
    "  - {name: f, fault: replace, after: book, disk: 1, with: 2}": "disk 2 is not a spare",
    "  - {name: f, fault: sync_action, after: book, action: mend}": "one of check, repair",
}


@pytest.mark.parametrize(("fault", "message"), BAD.items(), ids=range(len(BAD)))
def test_what_cannot_be_done_is_said_with_its_place(
    tmp_path: Path, fault: str, message: str
) -> None:
    if "fault: rot, during" in fault:
        message = "faults[0].during: the array is stopped"
    with pytest.raises(InputError) as caught:
        compiled(tmp_path, f"{fault}\n")
    assert message in caught.value.message
    line = len(BASE.splitlines()) + 2
    assert f"q.yaml:{line}: faults[0]" in caught.value.message


def test_what_follows_a_fault_is_held_against_it(tmp_path: Path) -> None:
    pulled = "  - {name: out, fault: pull, after: write, disk: 2}\n"
    with pytest.raises(InputError, match="disk 2 is unplugged by an earlier fault"):
        compiled(tmp_path, pulled + "  - {name: f, fault: fail, after: read, disk: 2}\n")
    cut = "  - {name: cut, fault: power_cut, during: book, at: 1s}\n"
    with pytest.raises(InputError, match=r"'book' has ended by then.* 'cut'"):
        compiled(tmp_path, cut + "  - {name: f, fault: fail, during: book, at: 2s, disk: 2}\n")
    with pytest.raises(InputError, match=r"one trial.* trials is 3"):
        compiled(tmp_path, cut, "trials=3")
    with pytest.raises(InputError, match="needs an md array with redundancy"):
        compiled(tmp_path, pulled, "array={level: 0}")
    with pytest.raises(InputError, match="its file system is mounted"):
        compiled(
            tmp_path, "  - {name: f, fault: rot, after: book, disk: 2}\n", "filesystem={type: xfs}"
        )


def test_an_axis_may_be_a_faults_and_is_named_where_it_is_wrong(tmp_path: Path) -> None:
    matrix = "matrix={faults.cut.force: [true, false]}"
    cells = compiled(tmp_path, CUT, matrix).cells
    assert [c.axes for c in cells] == [{"faults.cut.force": True}, {"faults.cut.force": False}]
    assert [c.faults[0].parameters["force"] for c in cells] == [True, False]
    with pytest.raises(InputError, match=r"faults\.cut\.lose_cache: True: disks of the model"):
        compiled(tmp_path, CUT, "matrix={faults.cut.lose_cache: [true, false]}")


def test_claims_may_speak_of_a_faults_metrics_and_of_no_others(tmp_path: Path) -> None:
    claim = (
        "claims:\n  - id: a\n    says: b\n"
        "    expect: {kind: bound, value: {workload: cut, metric: METRIC}, at_most: 0}\n"
    )
    for metric in ("lost", "mismatch_cnt", "dirty_bits"):
        compiled(tmp_path, CUT + claim.replace("METRIC", metric))
    with pytest.raises(InputError, match="power_cut gives no 'noticed'"):
        compiled(tmp_path, CUT + claim.replace("METRIC", "noticed"))


def test_a_plan_has_the_faults_in_shell(tmp_path: Path) -> None:
    faults = CUT + (
        "  - {name: dry, fault: slow, before: read, disk: 1, total_bytes_per_second: 1MiB}\n"
        "  - {name: out, fault: pull, after: read, disk: 2}\n"
        "  - {name: in, fault: re_add, before: book, disk: 2}\n"
        "  - {name: rot, fault: rot, before: book, disk: 3}\n"
    )
    text = as_script(plan_of(compiled(tmp_path, faults)))
    for words in (
        'kill -9 "$PID"',
        "dumpxml lab --inactive",
        "sleep 2",
        "blkdeviotune lab",
        "detach-device lab /dev/stdin --live",
        "write -P 165",
        'wait "$WORKLOAD"' if "cut" not in text else "WORKLOAD=$!",
        "mdadm /dev/md/bench --re-add",
    ):
        assert words in text, words
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.stderr == ""


GROW = (
    "  - {name: grown, fault: grow, after: write, raid_devices: 4, level: 6,"
    " layout: ddf-zero-restart, wait: WAIT}\n"
)


def test_a_reshape_is_asked_of_mdadm_and_waited_for_only_if_the_scenario_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.plugins.faults.grow._refused", lambda *_: ())  # the words are tested
    waited = named(
        steps_of(tmp_path, GROW.replace("WAIT", "true"), "array.spares=1"), "grown"
    ).script
    asked = "MDADM_NO_SYSTEMCTL=1 mdadm --grow /dev/md/bench --level=6 --raid-devices=4"
    assert f"{asked} --layout=ddf-zero-restart </dev/null" in waited
    assert settle("/dev/md/bench", 600).splitlines()[3] in waited
    left = named(
        steps_of(tmp_path, GROW.replace("WAIT", "false"), "array.spares=1"), "grown"
    ).script
    assert asked in left
    assert "while" not in left
    for wait, seen in (("false", True), ("true", False)):
        script = named(
            steps_of(tmp_path, GROW.replace("WAIT", wait) + CUT, "array.spares=1"), "cut"
        ).script
        assert ("Reshape pos'n" in script) == seen  # read before md goes on
        if seen:
            assert script.index("Reshape pos'n") < script.index("--assemble")
    assert "Reshape pos'n" not in named(steps_of(tmp_path, CUT), "cut").script


def test_a_reshape_is_waited_for_up_to_a_share_of_it(tmp_path: Path) -> None:
    grown = "  - {name: grown, fault: grow, after: write, chunk: 128KiB, until: 12.5%}\n"
    script = named(steps_of(tmp_path, grown), "grown").script
    assert "quiet" not in script  # md is still busy
    assert "Reshape pos'n" in named(steps_of(tmp_path, grown + CUT), "cut").script
    part = script[script.index("reached=\n") : script.index("read -r now")].split("d=$(")[0]
    md, mdstat = tmp_path / "md", tmp_path / "mdstat"
    md.mkdir()
    bar = "      [=>....]  reshape =%s (%s/32768) finish=0.1min speed=9K/sec\n"
    part = part.replace("/proc/mdstat", str(mdstat)).replace("sleep 0.2", "echo on; exit")
    for action, line, waits in (
        ("reshape", bar % ("  2.0%", "655"), True),
        ("reshape", bar % (" 12.4%", "4095"), True),
        ("reshape", bar % (" 12.5%", "4096"), False),
        ("reshape", bar % ("100.0%", "32768"), False),
        ("reshape", "      \treshape=DELAYED\n", True),
        ("idle", "", False),
        ("frozen", "", None),
        ("", "", None),
    ):
        (md / "sync_action").write_text(f"{action}\n")
        (md / "reshape_position").write_text("none\n" if action == "idle" else "512\n")
        mdstat.write_text(f"md127 : active raid5 vdc[2] vdb[1] vda[0]\n{line}")
        said = subprocess.run(
            ["sh", "-euc", f"md={md}\n{part}"], capture_output=True, text=True, check=False
        )
        assert said.returncode == (waits is None), line
        assert said.stdout == ("on\n" if waits else ""), line
        assert ("stopped the reshape at sector 512" in said.stderr) == (waits is None)


BAD_GROW = {
    "raid_devices: 5": r"raid_devices: 5 members need as many disks, and the cell has 4",
    "level: 11": r"level",
    "chunk: 100": r"not a multiple of 4096",
    "wait: false": r"nothing changes",
    "chunk: 8KiB, wait: false, check: true": r"check: md cannot check an array that it reshapes",
    "chunk: 8KiB, until: 10%, check: true": r"check: md cannot check .* until",
    "chunk: 8KiB, wait: false, until: 10%": r"wait is false",
    "chunk: 8KiB, until: 100%": r"until",
}


@pytest.mark.parametrize(("words", "message"), BAD_GROW.items(), ids=range(len(BAD_GROW)))
def test_a_reshape_that_cannot_be_is_refused(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled(tmp_path, f"  - {{name: g, fault: grow, after: write, {words}}}\n")


def test_after_a_reshape_the_place_of_the_members_data_is_unknown(tmp_path: Path) -> None:
    grown = "  - {name: g, fault: grow, WHEN: read, chunk: 128KiB}\n"
    rot = "  - {name: r, fault: rot, after: read, disk: 1}\n"
    with pytest.raises(InputError, match=r"\.offset: .*which 'g' has moved"):
        compiled(tmp_path, grown.replace("WHEN", "before") + rot)
    compiled(tmp_path, rot + grown.replace("WHEN", "after"))


# --- what runs -------------------------------------------------------------------------------


def run(steps: Sequence[Step], bench: FakeBench) -> dict[str, str]:
    saved: dict[str, str] = {}
    procedure = Procedure(name="p", steps=tuple(steps))
    run_procedure(
        procedure, bench, Undo(), saved.__setitem__, lambda step: None, lambda check: None
    )
    return saved


def test_a_workload_that_is_cut_short_is_no_failure_and_one_that_fails_is() -> None:
    steps = (
        BeginWorkload(workload="w", trial=1, before="look", script="work"),
        Pause(seconds=2),
        PowerCycle(lose=("/s",), capture="c.1.power"),
        EndWorkload(workload="w", trial=1, timeout=9, cut=True),
    )
    bench = FakeBench()
    bench.answers["work"] = said("0\n1\n", status=-1)
    saved = run(steps, bench)
    assert saved["w.1.stdout.txt"] == "0\n1\n"
    assert saved["c.1.power.txt"] == "/s ok 512\n"
    assert bench.clock == 2
    order = [entry[0] for entry in bench.log]
    assert order == ["guest", "begin", "power cycle", "end"]
    with pytest.raises(ToolError, match="'w' ended with status -1"):
        run((*steps[:2], steps[3].model_copy(update={"cut": False, "after": "look"})), bench)


def test_a_workload_that_outlives_a_fault_is_read_around() -> None:
    bench = FakeBench()
    bench.answers["look"] = said("counters\n")
    bench.answers["work"] = said("done\n")
    saved = run(
        (
            BeginWorkload(workload="w", trial=1, before="look", script="work"),
            LimitDisk(serial="disk1", limits={"total_bytes_sec": 5}),
            SpoilDisk(serial="disk2", offset=512, length=512, pattern=1),
            UnplugDisk(serial="disk3", xml="<disk/>"),
            EndWorkload(workload="w", trial=1, after="look", timeout=9),
        ),
        bench,
    )
    assert saved == {
        "w.1.before.txt": "counters\n",
        "w.1.stdout.txt": "done\n",
        "w.1.stderr.txt": "",
        "w.1.after.txt": "counters\n",
    }
    assert ("limit", "disk1", "total_bytes_sec=5") in bench.log
    assert ("spoil", "disk2", "512", "512") in bench.log
    assert ("detach", "disk3") in bench.log


# --- the scripts, in a shell, over files in place of sysfs -----------------------------------


@pytest.fixture
def md(tmp_path: Path) -> Path:
    """An array's directory with the kernel's files."""
    directory = tmp_path / "sys" / "bench" / "md"
    directory.mkdir(parents=True)
    for name, text in {
        "array_state": "clean",
        "raid_disks": "4",
        "degraded": "0",
        "sync_action": "idle",
        "mismatch_cnt": "8",
    }.items():
        (directory / name).write_text(f"{text}\n")
    for disk, (slot, member) in {
        "vdc": ("0", "in_sync"),
        "vdd": ("1", "in_sync,want_replacement"),
        "vde": ("none", "faulty"),
        "vdf": ("3", "in_sync"),
    }.items():
        (directory / f"dev-{disk}").mkdir()
        for name, text in {"slot": slot, "state": member, "errors": "8"}.items():
            (directory / f"dev-{disk}" / name).write_text(f"{text}\n")
        (directory / f"dev-{disk}" / "bad_blocks").write_text("")
    (directory / "dev-vdc/bad_blocks").write_text("256 8\n1024 16\n")
    (directory / "dev-vdf/bad_blocks").write_text("256 8\n")
    return directory


def in_shell(script: str, md: Path) -> subprocess.CompletedProcess[str]:
    ours = script.replace("/sys/block", str(md.parent.parent)).replace("/run/lab", str(md))
    ours = ours.replace("dmesg >", "printf 'old\\nlab: fault cut.1\\nnew\\n' >")
    return subprocess.run(
        ["sh", "-e"], input=ours, capture_output=True, text=True, check=False, timeout=30
    )


def change(md: Path, **files: str) -> None:
    """Replace files, since a shell must not read one that is being written."""
    for name, text in files.items():
        (md / "new").write_text(f"{text}\n")
        (md / "new").replace(md / name)


def later(seconds: float, md: Path, **files: str) -> threading.Thread:
    def write() -> None:
        time.sleep(seconds)
        change(md, **files)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_waiting_for_md_takes_as_long_as_md_does(md: Path) -> None:
    (md / "sync_action").write_text("recover\n")
    (md / "degraded").write_text("1\n")
    thread = later(0.6, md, sync_action="idle", degraded="0")
    done = in_shell(BEGAN + settle("/dev/bench", 20), md)
    thread.join()
    assert done.returncode == 0, done.stderr
    found = common(done.stdout, {})
    assert 0.4 < found["seconds"] < 3
    assert found["degraded_most"] == 1


def test_an_idle_array_has_synced_nothing_in_no_time(md: Path) -> None:
    found = common(in_shell(BEGAN + settle("/dev/bench", 20), md).stdout, {})
    assert found == {"seconds": pytest.approx(0, abs=0.2), "degraded_most": 0, "synced": 0}


def test_md_that_is_never_done_is_given_up(md: Path) -> None:
    (md / "sync_action").write_text("resync\n")
    done = in_shell(BEGAN + settle("/dev/bench", 0.5), md)
    assert done.returncode != 0
    assert "still busy with resync" in done.stderr


def test_a_reshape_that_nothing_waits_for_is_looked_at_once(md: Path) -> None:
    (md / "sync_action").write_text("reshape\n")
    (md / "degraded").write_text("1\n")
    done = in_shell(BEGAN + glance("/dev/bench"), md)
    assert done.returncode == 0, done.stderr
    assert common(done.stdout, {})["degraded_most"] == 1


def test_an_array_that_was_not_started_has_no_state_to_wait_for(md: Path) -> None:
    shutil.rmtree(md)
    done = in_shell(f"{BEGAN}sleep 0.3\n{settle('/dev/bench', 20)}", md)
    assert done.returncode == 0
    found = common(done.stdout, {"state.txt": ""})
    assert found["synced"] == 0
    assert found["seconds"] >= 0.25  # the attempt to start it
    assert in_shell(check("/dev/bench", 9), md).stdout == ""


def test_a_wait_whose_array_goes_away_is_an_error_and_not_its_start(md: Path) -> None:
    (md / "sync_action").write_text("recover\n")
    for script in (BEGAN + settle("/dev/bench", 20), check("/dev/bench", 20)):
        aside = md.with_name("aside")
        thread = threading.Timer(0.4, lambda: md.rename(aside))  # noqa: B023
        thread.start()
        done = in_shell(script, md)
        thread.join()
        aside.rename(md)
        assert done.returncode == 1
        assert "/dev/bench is gone" in done.stderr
        assert "ended=" not in done.stdout


LEVELS = (0, 1, 4, 5, 6, 10)
CHANGES = [(old, new) for old in LEVELS[1:] for new in LEVELS if old != new]


@pytest.mark.parametrize("first", [True, False], ids=["level first", "level last"])
def test_each_change_of_level_takes_until_md_has_the_level_and_is_idle(
    tmp_path: Path, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mdadm sets the level before the reshape or after it; a RAID 0 has no ``sync_action``."""
    found = []
    for old, new in CHANGES:
        grown = f"  - {{name: grown, fault: grow, after: write, level: {new}}}\n"
        sets = ("array.layout=null", "array.bitmap=none", f"array.level={old}")
        sets += ("array.chunk=null",) if old == 1 else ()
        with monkeypatch.context() as patch:  # also levels that mdadm cannot reach
            patch.setattr("lab.plugins.faults.grow._refused", lambda *_: ())
            script = named(steps_of(tmp_path, grown, *sets), "grown").script
        md = tmp_path / f"{old}-{new}" / "bench" / "md"
        md.mkdir(parents=True)
        level = new if first else old
        for name, text in {"level": f"raid{level}", "array_state": "clean"}.items():
            (md / name).write_text(f"{text}\n")
        for name, text in {"sync_action": "reshape", "degraded": "1"}.items():
            if level or not first:
                (md / name).write_text(f"{text}\n")
        ours = script.replace("/sys/block", str(md.parent.parent)).replace("/dev/md/", "/dev/")
        shell = subprocess.Popen(
            ["sh", "-ec", f"mdadm() {{ :; }}\n{ours}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        found.append((old, new, md, shell))
    time.sleep(0.5)
    for _old, new, md, _shell in found:
        if first and new:
            change(md, degraded="0", sync_action="idle")
        elif not first:
            change(md, sync_action="idle", level=f"raid{new}")
            if not new:
                (md / "sync_action").unlink()
                (md / "degraded").unlink()
    for old, new, _md, shell in found:
        out, err = shell.communicate(timeout=30)
        assert shell.returncode == 0, (old, new, err)
        seconds = common(out, {})["seconds"]
        assert seconds < 0.5 if first and not new else seconds > 0.3, (old, new, out)


def test_a_change_that_mdadm_never_finishes_is_an_error(md: Path, tmp_path: Path) -> None:
    grown = "  - {name: grown, fault: grow, after: write, level: 0}\n"
    script = named(steps_of(tmp_path, grown), "grown").script.replace("/dev/md/", "/dev/")
    (md / "level").write_text("raid5\n")
    done = in_shell(f"mdadm() {{ :; }}\n{script.replace('lt 300', 'lt 3')}", md)
    assert done.returncode == 1
    assert "still raid5: mdadm did not make it raid0" in done.stderr


def test_nothing_needs_redundancy_of_an_array_that_became_a_raid_0(tmp_path: Path) -> None:
    grown = "  - {name: grown, fault: grow, after: write, level: 0}\n"
    later = "  - {name: late, fault: fail, after: read, disk: 2}\n"
    with pytest.raises(InputError, match=r"'grown' made it a RAID 0"):
        compiled(tmp_path, grown + later)
    with pytest.raises(InputError, match=r"check: a RAID 0 has no redundancy"):
        compiled(tmp_path, grown.replace("}", ", check: true}"))


def test_the_state_counts_members_by_what_md_calls_them(md: Path) -> None:
    (md / "degraded").write_text("1\n")
    shown = in_shell(state("/dev/bench", "cut.1").replace("/proc/mdstat", "/dev/null"), md)
    assert shown.returncode == 0, shown.stderr
    assert "old" not in shown.stdout  # the kernel's log begins with the fault
    assert shown.stdout.endswith("lab: fault cut.1\nnew\n")
    settled = in_shell(BEGAN + settle("/dev/bench", 20), md).stdout
    found = common(settled, {"state.txt": shown.stdout})
    assert (found["in_sync"], found["faulty"], found["missing"]) == (3, 1, 1)
    assert (found["degraded"], found["errors"], found["bad_sectors"]) == (1, 32, 32)


def test_a_check_is_waited_for(md: Path) -> None:
    whole = in_shell(check("/dev/bench", 0.5), md)
    assert "does not end" in whole.stderr  # no kernel reacts to sync_action here
    assert (md / "sync_action").read_text() == "check\n"
    thread = later(0.3, md, sync_action="idle")
    assert (
        "mismatch_cnt=8\n" in in_shell(check("/dev/bench", 9).replace("echo check", ":"), md).stdout
    )
    thread.join()
    (md / "sync_action").unlink()  # a RAID 0 has none
    assert in_shell(check("/dev/bench", 9), md).stdout == ""


COMPARED = [  # level, layout of RAID 10, members, missing: whether md compares
    *((level, "", 4, missing, False) for level in (4, 5) for missing in ((0,), (3,))),
    *((level, "", 4, (), True) for level in (1, 4, 5, 6)),
    *((6, "", 5, missing, True) for missing in ((0,), (2,), (4,))),
    *((6, "", 5, missing, False) for missing in ((0, 1), (3, 4))),
    (1, "", 2, (0,), False),
    *((1, "", 3, missing, True) for missing in ((0,), (2,))),
    *((1, "", 3, missing, False) for missing in ((0, 1), (1, 2))),
    *((10, "2 near", 4, missing, True) for missing in ((), (0,), (3,))),
    *((10, "2 near", 4, missing, False) for missing in ((0, 2), (1, 2), (1, 3))),
    (10, "2 near", 6, (0, 2), True),
    (10, "3 near", 3, (1,), True),
    (10, "3 near", 3, (1, 2), False),
    *((10, f"2 {kind}", 4, (1,), True) for kind in ("far", "offset")),
    *((10, f"2 {kind}", 4, (0, 2), False) for kind in ("far", "offset")),
    (10, "2 far", 5, (0, 2), True),
    (10, "2 near", 3, (0,), True),
    (10, "2 far", 2, (0,), False),
    # md gives up after as many pieces of 64 KiB as there are members, each with one copy.
    (10, "2 near 512K", 4, (), True),
    (10, "2 near 512K", 4, (0,), False),
    (10, "2 near 512K", 4, (2,), None),
    (10, "2 near 128K", 4, (2,), True),
    (10, "2 far 256K", 4, (2,), None),
]
"""``raid5_sync_request``, ``raid1_sync_request`` and ``raid10_sync_request``; ``None``: a part, so
that 0 is not known."""


@pytest.mark.parametrize("action", ["check", "repair", ""])
def test_a_check_counts_where_md_has_two_copies_or_parity_to_spare(
    tmp_path: Path, action: str
) -> None:
    for level, layout, members, missing, compares in COMPARED:
        marks = "".join("_" if n in missing else "U" for n in range(members))
        disks = [f"vd{'cdefghij'[n]}" for n in range(members) if n not in missing]
        copies, how, chunk = [*layout.split(), "64K"][:3] if layout else ("", "", "")
        more = f" {chunk} chunks {copies} {how}-copies" if level == 10 else ""
        more = " level 5, 64k chunk, algorithm 2" if level in (4, 5, 6) else more
        shown = (
            f"degraded={len(missing)}\nmismatch_cnt=8\nraid_disks={members}\n"
            + "".join(f"member {disk} 0 0 in_sync\n" for disk in disks)
            + "Personalities : [raid1] [raid10] [raid6] [raid5] [raid4]\n"
            "md126 : active raid1 vdz[1] vdy[0]\n      1024 blocks super 1.2 [2/2] [UU]\n      \n"
            f"md127 : active (read-only) raid{level} "
            + " ".join(f"{disk}[{n}]" for n, disk in enumerate(disks))
            + f"\n      98304 blocks super 1.2{more} [{members}/{len(disks)}] [{marks}]\n      \n"
        )
        for count, known in ((8, compares is not False), (0, compares is True)):
            now = shown.replace("mismatch_cnt=8", f"mismatch_cnt={count}")
            files = {"state.txt": now, "check.txt": f"mismatch_cnt={count}\n"}
            if action:
                kind = catalog.fault_kind("sync_action")
                outputs = Outputs(stdout="", stderr="", files=files)
                found = kind.parse(kind.parameters.model_validate({"action": action}), outputs)
                assert found == ({"action_mismatch_cnt": count} if known else {}), now
                continue
            assert ("mismatch_cnt" in common(SETTLED, files)) == known, now


@pytest.mark.parametrize("state", ["read-auto", "clean"])
def test_an_array_that_starts_read_only_is_made_writable(
    tmp_path: Path, md: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """mdadm refuses to make an array writable that is writable already."""
    (md / "array_state").write_text(f"{state}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mdadm", "udevadm"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $1" >> {tmp_path}/log\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    script = named(steps_of(tmp_path, CUT), "cut").script.replace("/dev/md/bench", "/dev/bench")
    done = in_shell(script.replace("/dev/kmsg", "/dev/null"), md)
    assert done.returncode == 0, done.stderr
    assert "assembled=1" in done.stdout
    called = (tmp_path / "log").read_text().splitlines()
    assert called[0] == "mdadm --assemble"
    assert ("mdadm --readwrite" in called) == (state == "read-auto")


# --- what is measured ------------------------------------------------------------------------

STATE = """\
array_state=clean
raid_disks=4
degraded=0
sync_action=idle
mismatch_cnt=0
member vdc 0 0 in_sync
member vdd 1 8 in_sync
member vde 2 0 in_sync
member vdf 3 0 in_sync
[   11.100000] md: resync of RAID array md127
[   12.350000] md: md127: resync done.
[   20.100000] md/raid:md127: read error corrected (8 sectors at 16 on vdd)
"""
SETTLED = "began=10.50\nended=14.00\ndegraded_most=0\nassembled=1\ndirty_bits=7\n"


def raw(told: str = "0\n1\n2\n", intact: str = "[[0, 1], [3, 9]]") -> dict[str, str]:
    found = {
        "cut.1.stdout.txt": SETTLED,
        "cut.1.stderr.txt": "",
        "cut.1.before.txt": counters(0),
        "cut.1.after.txt": counters(1),
        "cut.1.state.txt": STATE,
        "cut.1.check.txt": "mismatch_cnt=0\n",
        "cut.1.power.txt": "",
        "cut.1.book.kept.txt": f'{{"intact": {intact}, "looked_at": 64, "errors": 0}}\n',
        "book.1.before.txt": counters(0),
        "book.1.stdout.txt": told,
    }
    for name, seconds in (("write", 0.5), ("read", 0.25)):
        found[f"{name}.1.stdout.txt"] = ""
        found[f"{name}.1.stderr.txt"] = (
            "10+0 records in\n10+0 records out\n"
            f"1966080 bytes (2.0 MB) copied, {seconds} s, 4 MB/s\n"
        )
    return found


def measured(directory: Path, raw: dict[str, str], name: str = "cut") -> dict[str, float]:
    cell = compiled(directory, CUT).base
    found = measure.measurements(cell, raw)
    return {m.metric: m.median for m in found if m.workload == name}


def test_a_fault_measures_md_the_disks_and_what_was_acknowledged(tmp_path: Path) -> None:
    found = measured(tmp_path, raw())
    assert found["seconds"] == 3.5
    assert found["sync_seconds"] == 1.25
    assert (found["synced"], found["assembled"], found["forced"]) == (1, 1, 0)
    assert (found["dirty_bits"], found["errors"], found["mismatch_cnt"]) == (7, 8, 0)
    assert found["read_bytes"] == 512 * 8 * (1 + 2 + 3 + 4)
    assert found["written_bytes"] == 512 * 16 * 4
    assert (found["acknowledged"], found["lost"], found["intact"]) == (3, 1, 0)
    assert measured(tmp_path, raw(), "book") == {}
    assert set(measured(tmp_path, raw(), "write")) == {"throughput", "seconds"}


def test_blocks_that_were_never_told_are_not_missed(tmp_path: Path) -> None:
    assert measured(tmp_path, raw(told="0\n1\n"))["lost"] == 0
    assert measured(tmp_path, raw(told="0\n1\n2"))["acknowledged"] == 2  # the last line is cut off
    assert measured(tmp_path, raw(intact="[]"))["lost"] == 3


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("cut.1.stdout.txt", "nothing\n", "the output has no 'ended'"),
        ("cut.1.book.kept.txt", "Traceback\n", "did not verify its blocks"),
        ("cut.1.book.kept.txt", '{"intact": [], "looked_at": 3, "errors": 0}', "verified 3 blocks"),
        ("book.1.stdout.txt", "0\n2\n1\n", "in the wrong order"),
    ],
)
def test_what_cannot_be_read_is_no_figure(
    tmp_path: Path, key: str, text: str, message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        measured(tmp_path, {**raw(), key: text})


def test_a_disk_that_was_pulled_has_no_counters_and_others_have(tmp_path: Path) -> None:
    gone = "\n".join(line for line in counters(1).splitlines() if " vdd " not in line) + "\n"
    cell = compiled(tmp_path, CUT).base
    found = measure.counters(cell, {**raw(), "cut.1.after.txt": gone})
    assert [c.serial for c in found] == ["disk1", "disk3", "disk4"]
    quiet = compiled(tmp_path, "").base
    texts = {"book.1.before.txt": counters(0), "book.1.after.txt": gone}
    with pytest.raises(ToolError, match="no line for disk2"):
        measure.counters(quiet, texts)


PARSED: dict[str, tuple[dict[str, Any], Outputs, dict[str, float]]] = {
    "io_error": (
        {"disk": 1},
        Outputs(stdout="", stderr="", files={"state.txt": STATE}),
        {"corrected": 1},
    ),
    "pull": ({"disk": 1}, Outputs(stdout="noticed=1\n", stderr="", files={}), {"noticed": 1}),
    "re_add": (
        {"disk": 1},
        Outputs(stdout="mdadm: re-added\nre_added=1\n", stderr="", files={}),
        {"re_added": 1},
    ),
    "spare_group": (
        {"disk": 1, "second": [3, 4, 5]},
        Outputs(
            stdout="mdadm: hot removed\nmoved=1\nsecond_spares=0\nsecond_degraded=0\n",
            stderr="",
            files={},
        ),
        {"moved": 1, "second_spares": 0, "second_degraded": 0},
    ),
    "sync_action": (
        {"action": "check"},
        Outputs(stdout="", stderr="", files={"state.txt": STATE}),
        {"action_mismatch_cnt": 0},
    ),
    "power_cut": (
        {},
        Outputs(
            stdout="assembled=0\nforced=1\n",
            stderr="",
            files={"power.txt": "/a ok 512\n/b ok 1024\n"},
        ),
        {"assembled": 0, "forced": 1, "cache_lost_bytes": 1536, "reshaped": 0},
    ),
    "fail": ({"disk": 1}, Outputs(stdout="", stderr="", files={}), {}),
    "grow": ({"chunk": 65536}, Outputs(stdout="", stderr="", files={}), {"reshaped": 0}),
    "replace": ({"disk": 1, "with": 2}, Outputs(stdout="", stderr="", files={}), {}),
    "rot": ({"disk": 1}, Outputs(stdout="", stderr="", files={}), {}),
    "slow": ({"disk": 1}, Outputs(stdout="", stderr="", files={}), {}),
}


@pytest.mark.parametrize("name", catalog.plugin_names("faults"))
def test_every_kind_reads_what_is_its_own(name: str) -> None:
    given, outputs, expected = PARSED[name]
    kind = catalog.fault_kind(name)
    parameters = kind.parameters.model_validate(given)
    assert kind.parse(parameters, outputs) == expected
    declared = [m.name for m in kind.metrics]
    assert set(expected) <= set(declared)
    if expected and name not in ("grow", "io_error", "power_cut"):
        first = next(iter(expected)).removeprefix("action_")
        with pytest.raises(ToolError, match=re.escape(f"'{first}'")):
            kind.parse(parameters, Outputs(stdout="", stderr="", files={}))


@pytest.mark.parametrize(
    ("parameters", "spares", "message"),
    [
        ("disk: 1, second: [3, 4, 5]", 0, r"second: disk 3 is a member of the array"),
        ("disk: 1, second: [4, 5, 5]", 0, r"second: it names a disk twice"),
        ("disk: 1, second: [4, 5, 9]", 0, r"second: there is no disk 9: the cell has 6"),
        ("disk: 4, second: [4, 5, 6]", 0, r"disk: disk 4 is not a member of the array"),
        ("disk: 1, second: [4, 5, 6]", 1, r"has spares of its own"),
        ("disk: 1, second: [4, 5]", 0, r"second.*at least 3"),
    ],
)
def test_a_spare_group_needs_disks_that_no_array_uses(
    tmp_path: Path, parameters: str, spares: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        spare_group(tmp_path, parameters, spares)


def test_a_spare_group_has_one_name_or_two(tmp_path: Path) -> None:
    one = spare_group(tmp_path, "disk: 1, second: [4, 5, 6]")
    two = spare_group(tmp_path, "disk: 1, second: [4, 5, 6], groups: different")
    assert one.count("spare-group=one") == 2
    assert two.count("spare-group=one") == two.count("spare-group=other") == 1


def spare_group(directory: Path, parameters: str, spares: int = 0) -> str:
    """Return the command of the fault on three of six disks."""
    text = BASE.replace("count: 4", "count: 6").replace(
        "  level: 5\n", f"  level: 5\n  members: 3\n  spares: {spares}\n"
    )
    steps = cell_procedure(
        compiled_text(
            directory,
            f"{text}faults:\n  - {{name: g, fault: spare_group, before: book, {parameters}}}\n",
            name="spares",
        ).base,
        "/state/g1",
    ).steps
    return next(s.script for s in steps if "lab-spares" in getattr(s, "script", ""))


RESHAPED = """\
raid_disks=4
Personalities : [raid6] [raid5] [raid4]
md127 : active raid6 vde[4] vdd[3] vdc[1] vdb[0]
      65536 blocks super 1.2 level 6, 128k chunk, algorithm 2 [4/4] [UUUU]
      bitmap: 0/1 pages [0KB], 65536KB chunk

[    1.000000] md: resync of RAID array md127
[    5.000000] md: reshape of RAID array md127
[    9.000000] md: md127: reshape done.
"""


def test_the_shape_after_a_reshape_is_the_kernels(tmp_path: Path) -> None:
    outputs = Outputs(stdout="", stderr="", files={"state.txt": RESHAPED})
    assert reshaped(outputs) == {
        "reshaped": 1,
        "raid_disks": 4,
        "array_bytes": 64 * 1024**2,
        "array_level": 6,
        "array_chunk_bytes": 128 * 1024,
        "array_layout": 2,
    }
    during = {"state.txt": STATE.replace("raid_disks=4", "raid_disks=4 (3)")}
    assert common(SETTLED, during)["missing"] == 0
    mirror = "raid_disks=2\n      65536 blocks super 1.2 [2/2] [UU]\n"
    found = reshaped(Outputs(stdout="", stderr="", files={"state.txt": mirror}))
    assert found == {"reshaped": 0, "raid_disks": 2, "array_bytes": 64 * 1024**2}
    assert reshaped(Outputs(stdout="", stderr="", files={"state.txt": ""})) == {"reshaped": 0}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("raid0 vdc[1] vdb[0]\n      65536 blocks super 1.2 512k chunks", (0, 512, None)),
        ("raid1 vdc[1] vdb[0]\n      65536 blocks super 1.2 [2/2] [UU]", (1, None, None)),
        (
            "raid10 vdc[1] vdb[0]\n      65536 blocks super 1.2 512K chunks 2 near-copies"
            " [2/2] [UU]",
            (10, 512, 0x102),
        ),
        (
            "raid10 vdc[1] vdb[0]\n      65536 blocks super 1.2 64K chunks 2 far-copies [2/2] [UU]",
            (10, 64, 0x201),
        ),
        (
            "raid10 vdc[1] vdb[0]\n      65536 blocks super 1.2 64K chunks 2 offset-copies"
            " [2/2] [UU]",
            (10, 64, 0x10201),
        ),
    ],
)
def test_other_levels_have_a_shape_too(
    line: str, expected: tuple[int, int | None, int | None]
) -> None:
    """As ``raid0.c``, ``raid1.c`` and ``raid10.c`` print them."""
    text = f"raid_disks=2\nmember vdb 0 0 in_sync\nmd127 : active {line}\n"
    found = reshaped(Outputs(stdout="", stderr="", files={"state.txt": text}))
    level, chunk, layout = expected
    assert (found["array_bytes"], found["array_level"]) == (64 * 1024**2, level)
    assert found.get("array_chunk_bytes") == (chunk and chunk * 1024)
    assert found.get("array_layout") == layout


def test_a_power_cut_tells_how_far_the_reshape_was(tmp_path: Path) -> None:
    files = raw()
    assert "reshaped_bytes" not in measured(tmp_path, files)
    files["cut.1.stdout.txt"] += "reshape_at=12288\n"
    assert measured(tmp_path, files)["reshaped_bytes"] == 12 * 1024**2


# --- what disks share -------------------------------------------------------------------------


SLOW = "  - {name: slowed, fault: slow, after: write, disk: 2, total_bytes_per_second: 1MiB}\n"


def test_one_disk_of_a_group_does_not_become_slow_alone(tmp_path: Path) -> None:
    for clock in ("real", "virtual"):
        sets = (f"guest.clock={clock}", "disks.throttle.group=cable")
        with pytest.raises(InputError, match=r"disk: disk 2 shares its limits with disks 1, 3, 4"):
            compiled(tmp_path, SLOW, *sets)
        limit = next(s for s in steps_of(tmp_path, SLOW, sets[0]) if isinstance(s, LimitDisk))
        assert limit.limits == {"total_bytes_sec": 1048576}


def test_only_a_group_with_other_disks_is_shared(tmp_path: Path) -> None:
    own = BASE.replace("disks:\n  count: 4\n", "disks:\n  - {count: 3, size: 1GiB}\n  - count: 1\n")
    own = own.replace("  size: 1GiB\n  throttle:\n", "    size: 1GiB\n    throttle:\n", 1)
    own = own.replace(
        "    total_bytes_per_second: 5MiB\n",
        "      total_bytes_per_second: 5MiB\n      group: alone\n    serial: 'b{index}'\n",
    )
    steps = cell_procedure(
        compiled_text(
            tmp_path, own + "faults:\n" + SLOW.replace("disk: 2", "disk: 4"), name="own"
        ).base,
        "/g",
    ).steps
    assert [s.serial for s in steps if isinstance(s, LimitDisk)] == ["b4"]


def test_what_counts_as_an_operation_stays_for_a_slow_disk(tmp_path: Path) -> None:
    """The driver of virtual time keeps it; libvirt would set it to nothing."""
    slow = SLOW.replace("total_bytes_per_second: 1MiB", "total_operations_per_second: 5")
    sets = ("disks.throttle.total_operations_per_second=9", "disks.throttle.operation_size=8KiB")
    (limit,) = [s for s in steps_of(tmp_path, slow, *sets) if isinstance(s, LimitDisk)]
    assert limit.limits == {"total_iops_sec": 5, "size_iops_sec": 8192}
    (limit,) = [s for s in steps_of(tmp_path, SLOW, *sets) if isinstance(s, LimitDisk)]
    assert limit.limits == {"total_bytes_sec": 1048576}  # QEMU takes no size without such a limit


def test_a_disk_that_became_slow_comes_back_slow(tmp_path: Path) -> None:
    """The driver of virtual time keeps a disk's limits, and QEMU's new disk has the file's."""
    faults = (
        SLOW
        + "  - {name: out, fault: pull, before: read, disk: 2}\n"
        + "  - {name: back, fault: re_add, after: read, disk: 2}\n"
    )
    steps = steps_of(tmp_path, faults)
    limits = [n for n, s in enumerate(steps) if isinstance(s, LimitDisk)]
    (plug,) = [n for n, s in enumerate(steps) if isinstance(s, AttachDisk) and n > limits[0]]
    assert len(limits) == 2
    assert limits[0] < plug < limits[1]
    assert steps[limits[0]] == steps[limits[1]]


ARRAYS = {
    "md": "level: 5, chunk: 64KiB",
    "md with a spare": "level: 5, chunk: 64KiB, spares: 1",
    "md of a few disks": "level: 5, chunk: 64KiB, members: 3",
    "RAID 0": "level: 0, chunk: 64KiB",
    "segments": "kind: segments, segments: 2, level: 5, chunk: 64KiB, bitmap: none",
    "a pool of mirrors": "kind: zfs, level: mirror",
    "raidz2 with a spare": "kind: zfs, level: raidz2, spares: 1",
}
DISKS = ("throttle: 5MiB/s", "throttle: {total_bytes_per_second: 5MiB, group: g}", "model: hdd")


@pytest.mark.parametrize("clock", ["real", "virtual"])
@pytest.mark.parametrize("array", ARRAYS)
def test_each_fault_of_each_array_compiles_or_says_why_not(
    tmp_path: Path, array: str, clock: str
) -> None:
    assert set(FAULTS) == set(catalog.plugin_names("faults"))
    path, refused = tmp_path / "q.yaml", []
    for disks in DISKS:
        for name, words in FAULTS.items():
            more = "".join(f", {key}: {value}" for key, value in words.items())
            path.write_text(
                f"title: T\nquestion: Q?\nguest: {{clock: {clock}}}\n"
                f"disks: {{count: 6, size: 512MiB, {disks}}}\narray: {{{ARRAYS[array]}}}\n"
                "workloads:\n  - {name: w, tool: dd, if: '{target}', bs: 64KiB, count: 9}\n"
                f"faults:\n  - {{name: f, fault: {name}, after: w{more}}}\n"
            )
            try:
                steps = cell_procedure(compile_scenario(path).base, "/g").steps
            except InputError as error:
                refused.append((name, error.message))
                continue
            changed = {s.serial for s in steps if isinstance(s, LimitDisk | SpoilDisk)}
            assert changed <= {"disk2"}
            assert not changed or "group" not in disks or name != "slow"
    for name, message in refused:
        assert re.search(r"q\.yaml:\d+: faults\[0\]\.\w+: .{20,}", message), (name, message)
