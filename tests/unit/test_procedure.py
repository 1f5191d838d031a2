"""A guest and a cell become steps: files first, verification before the first workload."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lab.compile.cell.procedure import cell_procedure, patience_of
from lab.compile.guest.cloud_init import Identity
from lab.compile.guest.disks import Plugged, lasting, left_by, spares, widest
from lab.compile.guest.steps import Site, guest_procedure, memory_of, qemu_conf
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.model.execution.procedure import (
    AttachDisk,
    DetachDisk,
    GuestCommand,
    HostCommand,
    Procedure,
    StartGuest,
    Step,
    Timed,
    Verify,
    WaitForSsh,
    WipeDisk,
    WriteFile,
)
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest
from lab.plugins.disks.hdd import drive_of
from tests.fakes import SCENARIO, compiled_text

SITE = Site(
    directory="/state/g1",
    accelerator="tcg",
    emulator="/usr/bin/qemu-system-x86_64",
    machine_type="pc",
    image_disk="/images/disk.qcow2",
    kernel="/images/kernel",
    initrd="/images/initrd",
    as_root=False,
)
IDENTITY = Identity(
    guest="g1",
    host_name="lab",
    host_key_private="HOST KEY",
    host_key_public="ssh-ed25519 A",
    authorized_key="ssh-ed25519 B",
)


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled(tmp_path)


def compiled(directory: Path, *sets: str) -> Cell:
    return compiled_text(directory, SCENARIO, *sets).base


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [s.kind for s in steps]


def guest_steps(guest: Guest | None = None) -> tuple[Step, ...]:
    return guest_procedure(guest or Guest(), SITE, IDENTITY).steps


def test_a_guest_has_its_files_before_it_starts_and_is_up_before_it_is_asked() -> None:
    order = kinds(guest_steps())
    assert order.index("write_file") < order.index("host_command") < order.index("start_guest")
    assert order[-3:] == ["start_guest", "wait_for_ssh", "guest_command"]


def test_the_private_host_key_is_in_one_secret_file_only() -> None:
    holding = [s for s in guest_steps() if "HOST KEY" in s.model_dump_json()]
    (step,) = holding
    assert isinstance(step, WriteFile)
    assert (step.secret, step.mode, step.path) == (True, 0o600, "/state/g1/seed/user-data")


def test_everything_of_a_guest_is_in_its_own_directory() -> None:
    made = [s.path for s in guest_steps() if isinstance(s, WriteFile)]
    made += [p for s in guest_steps() if isinstance(s, HostCommand) for p in s.creates]
    made += [s.xml_path for s in guest_steps() if isinstance(s, StartGuest)]
    assert made
    assert all(p.startswith("/state/g1/") for p in made)


def test_the_guests_own_words_come_last_on_the_kernels_line() -> None:
    steps = guest_steps(Guest(kernel_arguments=("raid6test=1",)))
    (start,) = [s for s in steps if isinstance(s, StartGuest)]
    assert "raid6test=1</cmdline>" in start.xml
    assert "panic=-1" in start.xml


def test_emulation_gets_more_time_to_boot_than_kvm() -> None:
    def limit(site: Site) -> float:
        steps = guest_procedure(Guest(), site, IDENTITY).steps
        return next(s.timeout for s in steps if isinstance(s, WaitForSsh))

    assert limit(SITE) > 2 * limit(replace(SITE, accelerator="kvm"))


def test_libvirt_stays_root_only_where_the_lab_is_root() -> None:
    assert 'user = "root"' in qemu_conf(as_root=True)
    assert "root" not in qemu_conf(as_root=False)


def test_a_guest_costs_more_memory_than_it_has() -> None:
    assert memory_of(Guest()) > Guest().memory


def test_a_cell_plugs_in_every_disk_and_reads_all_back_before_its_first_workload(
    cell: Cell,
) -> None:
    steps = cell_procedure(cell, "/state/g1").steps
    attached = [s.serial for s in steps if isinstance(s, AttachDisk)]
    assert attached == ["disk1", "disk2", "disk3", "disk4"]
    first = next(i for i, s in enumerate(steps) if isinstance(s, Timed))
    verified = [s.name for s in steps[:first] if isinstance(s, Verify)]
    assert verified[0] == "disks"
    assert {"programs"} < set(verified)
    assert len(verified) >= 3
    assert not [s for s in steps[first:] if isinstance(s, Verify | AttachDisk)]


def test_the_disks_are_expected_with_their_sizes_and_schedulers(cell: Cell) -> None:
    steps = cell_procedure(cell, "/state/g1").steps
    disks = next(s for s in steps if isinstance(s, Verify) and s.name == "disks")
    assert disks.expect["disk4.bytes"] == str(1024**3)
    assert disks.expect["disk4.scheduler"] == "none"
    assert disks.expect["leftovers"] == "0"
    assert len(disks.expect) == 9


def test_a_second_cell_wipes_the_disks_that_fit_and_swaps_those_that_do_not(tmp_path: Path) -> None:
    def kinds(cell: Cell, plugged: Plugged | None) -> list[str]:
        steps = cell_procedure(cell, "/state/g1", plugged=plugged).steps
        disks = (AttachDisk, WipeDisk, DetachDisk)
        return [f"{s.kind} {s.serial}" for s in steps if isinstance(s, disks)]

    first = compiled(tmp_path)
    there = lasting(first)
    assert kinds(first, Plugged()) == [f"attach_disk disk{n}" for n in (1, 2, 3, 4)]
    assert kinds(first, there) == [f"wipe_disk disk{n}" for n in (1, 2, 3, 4)]
    assert kinds(first, replace(there, written=frozenset())) == []
    smaller = compiled(tmp_path, "disks.count=3", "array.level=5")
    assert kinds(smaller, there) == [
        "detach_disk disk4",
        *(f"wipe_disk disk{n}" for n in (1, 2, 3)),
    ]
    for change in ("disks.throttle={total_bytes_per_second: 3MiB}", "disks.size=2GiB"):
        assert kinds(compiled(tmp_path, change), there) == [
            *(f"detach_disk disk{n}" for n in (1, 2, 3, 4)),
            *(f"attach_disk disk{n}" for n in (1, 2, 3, 4)),
        ]


def test_other_cells_disks_may_stay_and_are_blank_while_they_do(tmp_path: Path) -> None:
    wide, small = compiled(tmp_path), compiled(tmp_path, "disks.count=3", "array.level=5")

    def of(cell: Cell, plugged: Plugged) -> list[str]:
        steps = cell_procedure(cell, "/state/g1", plugged=plugged, keep_spare=True).steps
        disks = (AttachDisk, WipeDisk, DetachDisk)
        return [f"{s.kind} {s.serial}" for s in steps if isinstance(s, disks)]

    after = left_by(wide, Plugged())
    assert after == lasting(wide)
    assert of(small, after) == [f"wipe_disk disk{n}" for n in (4, 1, 2, 3)]
    five = left_by(compiled(tmp_path, "disks.count=5"), Plugged())
    assert of(small, five) == [f"wipe_disk disk{n}" for n in (4, 5, 1, 2, 3)]
    left = left_by(small, after)
    assert [serial for _, serial, _ in left.disks] == ["disk1", "disk2", "disk3", "disk4"]
    assert left.written == {"disk1", "disk2", "disk3"}  # the spare one is blank
    assert of(wide, left) == [f"wipe_disk disk{n}" for n in (1, 2, 3)]
    assert of(small, left) == [f"wipe_disk disk{n}" for n in (1, 2, 3)]
    script = next(
        s.script
        for s in cell_procedure(small, "/g", plugged=after, keep_spare=True).steps
        if isinstance(s, Verify) and s.name == "disks"
    )
    assert script.count("virtio-disk4") == 1  # the guest's cached pages of it are dropped


def test_a_disk_in_the_way_and_one_that_shares_its_limits_do_not_stay(tmp_path: Path) -> None:
    small = compiled(tmp_path, "disks.count=3", "array.level=5")
    grouped = compiled(tmp_path, "disks.throttle={total_bytes_per_second: 3MiB, group: g}")
    assert spares(small, lasting(grouped)).disks == ()
    (slot, _, disk), *_ = lasting(small).disks
    assert spares(small, Plugged(disks=((slot, "another", disk),))).disks == ()
    assert len(spares(small, Plugged(disks=((9, "another", disk),))).disks) == 1


def test_a_guest_is_saved_with_the_disks_of_its_widest_cell(tmp_path: Path) -> None:
    def cells(*counts: int) -> list[Cell]:
        return [compiled(tmp_path, f"disks.count={n}", "array.level=5") for n in counts]

    def saved_with(*counts: int) -> list[int]:
        found = widest(made := cells(*counts))
        return [len(found[c.guest, lasting(c)].each_disk) for c in made]

    assert saved_with(3, 5, 4) == [5, 5, 5]
    assert saved_with(3, 12, 5) == [5, 12, 12]  # nine more than three: too many
    small, wide = cells(3, 5)
    other = compiled(tmp_path, "disks.count=5", "array.level=5", "guest.memory=768MiB")
    slower = compiled(tmp_path, "disks.count=5", "array.level=5", "disks.size=2GiB")
    found = widest([small, other, slower])
    assert found[small.guest, lasting(small)] is small  # another guest, other disks
    assert widest([small, wide])[wide.guest, lasting(wide)] is wide


def test_what_stays_for_the_next_cell_is_not_taken_back_with_this_one(cell: Cell) -> None:
    def staying(plugged: Plugged | None) -> set[bool]:
        steps = cell_procedure(cell, "/state/g1", plugged=plugged).steps
        return {s.lasting for s in steps if isinstance(s, AttachDisk | HostCommand)}

    assert staying(None) == {False}
    assert staying(Plugged()) == {True}


def test_counters_are_read_around_every_trial_of_every_workload(tmp_path: Path) -> None:
    cell = compiled(tmp_path, "trials=2")
    steps = cell_procedure(cell, "/state/g1", {"write": 1.5}).steps
    timed = [(i, s) for i, s in enumerate(steps) if isinstance(s, Timed)]
    assert [(s.workload, s.trial) for _, s in timed] == [
        *(("write", 1), ("read", 1), ("write", 2), ("read", 2))
    ]
    assert [s.expected_seconds for _, s in timed] == [1.5, None, 1.5, None]
    for _, step in timed:
        for script in (step.before, step.after):
            assert "/proc/diskstats" in script
        assert "blockdev --flushbufs /dev/md/" in step.before
        assert "echo 2 > /proc/sys/vm/drop_caches" in step.before
        assert "drop_caches" not in step.after


def test_a_workload_may_keep_the_caches_that_the_one_before_it_left(tmp_path: Path) -> None:
    for place in ("filesystem={type: ext4}", "filesystem=null"):
        cell = compiled(tmp_path, "workloads.read.keep_cache=true", place)
        steps = cell_procedure(cell, "/g").steps
        write, read = (s.before for s in steps if isinstance(s, Timed))
        assert "drop_caches" in write
        assert "drop_caches" not in read
        assert "flushbufs" not in read
        assert "/proc/diskstats" in read
        assert cell_id(cell) != cell_id(compiled(tmp_path, place))


def test_workloads_are_aimed_at_the_array_or_at_a_file_on_it(tmp_path: Path) -> None:
    def targets(*sets: str) -> set[bool]:
        steps = cell_procedure(compiled(tmp_path, *sets), "/g").steps
        return {"/mnt/bench/data" in s.script for s in steps if isinstance(s, Timed)}

    assert targets() == {False}
    assert targets("filesystem={type: ext4}") == {True}


def test_a_file_system_is_unmounted_again(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path, "filesystem={type: xfs}"), "/g").steps
    (made,) = [s for s in steps if isinstance(s, GuestCommand) and "mkfs.xfs" in s.script]
    assert made.undo == "umount /mnt/bench"
    assert [s.name for s in steps if isinstance(s, Verify)].count("filesystem") == 1


@pytest.mark.parametrize(
    ("filesystem", "command", "waits"),
    [
        ("type: ext4", "-E lazy_itable_init=1,lazy_journal_init=0 /dev", True),
        (
            "type: ext3, options: [-E, nodiscard, -m, '0']",
            "-E nodiscard,lazy_itable_init=0,",
            True,
        ),
        ("type: ext4, lazy_init: true", "-E lazy_itable_init=1,lazy_journal_init=1 /dev", False),
        ("type: xfs, options: [-m, reflink=0]", "mkfs.xfs -q -f -m reflink=0 /dev", False),
    ],
)
def test_no_table_is_zeroed_while_workloads_run(
    tmp_path: Path, filesystem: str, command: str, waits: bool
) -> None:
    steps = cell_procedure(compiled(tmp_path, f"filesystem={{{filesystem}}}"), "/g").steps
    (made,) = [s for s in steps if isinstance(s, GuestCommand) and "mkfs." in s.script]
    assert command in made.script
    assert made.script.count(" -E ") == (0 if "xfs" in filesystem else 1)
    (read,) = [s for s in steps if isinstance(s, Verify) and s.name == "filesystem"]
    assert (read.expect.get("threads") == "0") is waits
    assert ("-o noinit_itable " in made.script) is (filesystem == "type: ext4")


def test_workloads_wait_until_ext4_has_no_thread(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path, "filesystem={type: ext4}"), "/g").steps
    (made,) = [s for s in steps if isinstance(s, GuestCommand) and "mkfs." in s.script]
    (read,) = [s for s in steps if isinstance(s, Verify) and s.name == "filesystem"]
    asked = tmp_path / "asked"
    programs = {
        "sleep": "echo slept $1",
        "pgrep": f"echo $2 >> {asked}; [ $(wc -l < {asked}) -lt 3 ] && echo 7",
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = []
    for script in (made.script.splitlines()[-1], read.script.splitlines()[-1]):
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, env=path)
        said += done.stdout.splitlines()
    assert said == ["slept 0.5", "slept 0.5", "threads=0"]
    assert set(asked.read_text().split()) == {"ext4lazyinit"}


@pytest.mark.parametrize(
    ("filesystem", "said"),
    [
        ("type: xfs, lazy_init: true", "has no lazy initialisation"),
        ("type: ext4, options: [-E, lazy_itable_init=1]", "set filesystem.lazy_init instead"),
        ("type: ext4, mount_options: [noinit_itable]", "set filesystem.lazy_init instead"),
        ("type: ext4, options: [-E]", "-E needs a value"),
        ("type: ext4, options: ['']", "not a command-line word"),
    ],
)
def test_options_that_contradict_the_file_system(
    tmp_path: Path, filesystem: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        compiled(tmp_path, f"filesystem={{{filesystem}}}")


def test_every_script_is_one_that_a_shell_can_read(tmp_path: Path) -> None:
    cell = compiled(tmp_path, "filesystem={type: ext4}", "array.sysfs={stripe_cache_size: 512}")
    steps = (*guest_steps(), *cell_procedure(cell, "/g").steps)
    scripts = [s.script for s in steps if isinstance(s, GuestCommand | Verify | Timed)]
    scripts += [s.undo for s in steps if isinstance(s, GuestCommand)]
    assert unreadable("\n".join(f"(\n{s}\n:\n)" for s in scripts)) == ""
    assert "yntax error" in unreadable("if true; then")


def unreadable(script: str) -> str:
    return subprocess.run(
        ["sh", "-n"], input=script, capture_output=True, text=True, check=False
    ).stderr


def test_a_procedure_survives_being_written_and_read(cell: Cell) -> None:
    for procedure in (
        cell_procedure(cell, "/state/g1"),
        guest_procedure(Guest(), SITE, IDENTITY),
    ):
        assert Procedure.model_validate_json(procedure.model_dump_json()) == procedure


def test_compiling_twice_gives_the_same_steps(cell: Cell) -> None:
    assert cell_procedure(cell, "/g") == cell_procedure(cell, "/g")


def test_a_disk_that_drains_its_cache_is_slow_and_has_not_stopped(tmp_path: Path) -> None:
    """A flush of 64 MiB of small writes takes an arm minutes; without a cache it is fast."""
    words = ("disks.model=hdd", "disks.preset=hdd_7200", "disks.throttle={}")
    assert patience_of(compiled(tmp_path)) == 60
    small = compiled(tmp_path, *words, "disks.hdd.write_cache=0")
    large = compiled(tmp_path, *words, "disks.hdd.write_cache=64MiB")
    assert patience_of(small) == 60
    drive = drive_of(large.disks[0])
    assert patience_of(large) > 2 * 16384 * (drive.average_seek + drive.revolution / 2)
