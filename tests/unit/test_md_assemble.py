"""Steps that build an array, with mdadm's own parser, a shell and a fake sysfs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.core.units import GIB
from lab.md.facts.rules import array_problems
from lab.md.facts.sizes import geometry_of
from lab.md.steps.create import create_command
from lab.model.execution.procedure import GuestCommand, Step, Verify, WaitFor
from lab.model.scenario.document import Array
from lab.plugins.arrays.md import ARRAY

EXTERNAL = {"bitmap": "external", "bitmap_file": "/var/lib/lab/bench-bitmap"}


def _array(**fields: Any) -> Array:
    return Array.model_validate(fields)


def _paths(count: int) -> list[str]:
    return [f"/dev/disk/by-id/virtio-disk{index}" for index in range(1, count + 1)]


def _steps(count: int = 5, **fields: Any) -> tuple[Step, ...]:
    return ARRAY.assemble(_array(**fields), _paths(count), [GIB] * count, None)


def _create(count: int = 5, **fields: Any) -> GuestCommand:
    (step,) = (s for s in _steps(count, **fields) if getattr(s, "label", "").startswith("create "))
    assert isinstance(step, GuestCommand)
    return step


def _mdadm(count: int = 5, **fields: Any) -> list[str]:
    array = _array(**fields)
    shape = geometry_of(array, [GIB] * count)
    used = _paths(count)[: shape.members + shape.spares]
    return shlex.split(create_command(array, shape, ARRAY.target(array), used))


def _expect(count: int = 5, **fields: Any) -> dict[str, str]:
    last = _steps(count, **fields)[-1]
    assert isinstance(last, Verify)
    return last.expect


def _kinds(**fields: Any) -> list[str]:
    return [step.kind for step in _steps(**fields)]


# --- the procedure ------------------------------------------------------------------------------


def test_the_target_is_the_arrays_name() -> None:
    assert ARRAY.target(_array(name="fast_one")) == "/dev/md/fast_one"


def test_assume_clean_takes_two_round_trips() -> None:
    assert _kinds() == ["guest_command", "verify"]
    assert _kinds(sysfs={"stripe_cache_size": 4096}) == ["guest_command", "verify"]
    assert _kinds(level=0, initial_sync="wait") == ["guest_command", "verify"]
    assert _kinds(initial_sync="none") == ["guest_command", "verify"]


def test_a_sync_or_an_all_ones_bitmap_is_waited_for() -> None:
    waited = ["guest_command", "wait_for", "guest_command", "verify"]
    assert _kinds(initial_sync="wait") == waited
    assert _kinds(bitmap="internal") == waited
    assert _kinds(**EXTERNAL) == waited
    assert _kinds(bitmap="internal", initial_sync="none") == ["guest_command", "verify"]
    assert _kinds(bitmap="lockless") == ["guest_command", "verify"]


def test_the_wait_asks_twice_and_allows_for_a_slow_disk() -> None:
    wait = _steps(initial_sync="wait", bitmap="internal")[1]
    assert isinstance(wait, WaitFor)
    assert wait.hits == 2
    assert wait.timeout > GIB / (1024 * 1024)
    assert wait.expect == {
        "state": "running",
        "sync_action": "idle",
        "degraded": "0",
        "resync_start": "none",
        "dirty_bits": "0",
    }


def test_limits_that_were_lifted_for_the_wait_stand_again_afterwards() -> None:
    sysfs = {"sync_speed_max": 5000, "bitmap/time_base": 7}
    steps = _steps(initial_sync="wait", bitmap="internal", sysfs=sysfs)
    before, after = steps[0], steps[2]
    assert isinstance(before, GuestCommand)
    assert isinstance(after, GuestCommand)
    assert '\' 1000000 > "$md/sync_speed_min"' in before.script
    assert '\' 1 > "$md/bitmap/time_base"' in before.script
    assert "5000" not in before.script
    lines = after.script.splitlines()
    for key, values in {
        "sync_speed_max": ("system", "5000"),
        "bitmap/time_base": ("5", "7"),
    }.items():
        order = [line.split()[2] for line in lines if f"$md/{key}" in line]
        assert tuple(order) == values
    assert '\' system > "$md/sync_speed_min"' in after.script


def test_undo_stops_what_was_made_and_leaves_disks_alone() -> None:
    undo = _create(members=3, spares=1, **EXTERNAL).undo
    assert "mdadm --stop /dev/md/bench" in undo
    assert "rm -f /dev/md/bench /var/lib/lab/bench-bitmap" in undo
    assert "virtio-disk" not in undo  # each is a file of the cell, and is removed with it


def test_a_bitmap_on_a_disk_of_its_own_has_a_file_system_before_the_array_and_after_it() -> None:
    fields = {"bitmap": "external", "bitmap_disk": 2}
    steps = _steps(**fields)
    made, verified, created = steps[0], steps[1], steps[2]
    assert isinstance(made, GuestCommand)
    assert isinstance(verified, Verify)
    assert isinstance(created, GuestCommand)
    assert "mkfs.ext4" in made.script
    assert "virtio-disk2" in made.script
    assert made.undo == "umount /mnt/bitmap"
    assert verified.expect == {"type": "ext4", "on_its_disk": "yes"}
    assert "--bitmap=/mnt/bitmap/bench" in created.script
    assert "virtio-disk2" not in created.script
    assert "--raid-devices=4" in created.script
    assert "rm -f /dev/md/bench /mnt/bitmap/bench" in created.undo
    without = _steps(**{**fields, "bitmap": "none"})
    assert "mkfs" not in "".join(getattr(s, "script", "") for s in without)
    assert "virtio-disk2" not in "".join(getattr(s, "script", "") for s in without)


def test_a_journals_disk_is_no_member_and_is_named_after_the_members() -> None:
    fields = {"journal_disk": 2}
    created, verified = _create(**fields), _steps(**fields)[-1]
    assert isinstance(verified, Verify)
    members, _, journal = created.script.partition(" --write-journal=")
    assert journal.startswith("/dev/disk/by-id/virtio-disk2 <")
    assert "virtio-disk2" not in members
    assert "--raid-devices=4" in members
    assert verified.expect["consistency_policy"] == "journal"
    assert verified.expect["journal_disk.slot"] == "journal"
    assert "journal_disk.slot=$slot" in verified.script
    unused = {"consistency_policy": "ppl"}
    without = "".join(getattr(s, "script", "") for s in _steps(**fields, **unused))
    assert "virtio-disk2" not in without
    assert "--raid-devices=4" in without
    assert _expect(**fields, **unused)["consistency_policy"] == "ppl"


def test_an_array_without_bad_block_lists_is_made_and_verified_so() -> None:
    created = _create(bad_block_list=False).script
    line = "echo 'CREATE bbl=no' >/run/lab-mdadm.conf"
    assert created.index(line) < created.index("mdadm --create")
    assert "--config=/run/lab-mdadm.conf" in created
    assert _expect(bad_block_list=False)["disk5.bad_block_lists"] == "0"
    assert "lab-mdadm.conf" not in _create().script
    assert not any("bad_block" in key for key in _expect())


def test_every_script_is_posix_shell() -> None:
    elsewhere = {"bitmap": "external", "bitmap_disk": 1}
    for fields in (
        {},
        {"journal_disk": 1},
        {"bad_block_list": False},
        {"bitmap": "internal"},
        EXTERNAL,
        elsewhere,
        {"level": 1, "write_mostly": [2]},
    ):
        for step in _steps(**fields, initial_sync="wait"):
            for script in (getattr(step, "script", ""), getattr(step, "undo", "")):
                subprocess.run(["sh", "-n"], input=script, text=True, check=True)


# --- mdadm's command line -----------------------------------------------------------------------


def test_the_command_of_the_fourth_post() -> None:
    words = _mdadm(layout="parity-last", component_size="1GiB", data_offset="8KiB")
    assert words == [
        *("mdadm", "--create", "/dev/md/bench", "--run", "--homehost=any", "--name=bench"),
        *("--metadata=1.2", "--level=raid5", "--layout=parity-last", "--raid-devices=5"),
        *("--size=1048576K", "--data-offset=8K", "--bitmap=none", "--assume-clean"),
        *_paths(5),
    ]


def test_nothing_is_asked_and_nothing_is_waited_for_in_vain() -> None:
    script = _create().script
    assert "MDADM_NO_UDEV=1 mdadm --create" in script
    assert "</dev/null" in script


def test_every_option_of_the_model_reaches_mdadm() -> None:
    words = _mdadm(
        level="mirror",
        members=2,
        spares=2,
        bitmap="internal",
        bitmap_chunk="64KiB",
        consistency_policy="bitmap",
        write_mostly=[2],
        write_behind=256,
        failfast=True,
        metadata="1.1",
        initial_sync="wait",
    )
    for option in (
        *("--level=raid1", "--raid-devices=2", "--spare-devices=2", "--bitmap=internal"),
        *("--bitmap-chunk=64K", "--consistency-policy=bitmap", "--write-behind=256"),
        *("--failfast", "--metadata=1.1"),
    ):
        assert option in words
    assert "--assume-clean" not in words
    assert "--force" not in words
    assert words[-4:] == _paths(4)
    assert "--chunk=64K" in _mdadm(chunk="64KiB")
    assert "--bitmap=/var/lib/lab/bench-bitmap" in _mdadm(**EXTERNAL)
    assert "--bitmap=lockless" in _mdadm(bitmap="lockless")


def test_levels_without_redundancy_get_neither_bitmap_nor_assume_clean() -> None:
    for level in ("0", "linear"):
        words = _mdadm(level=level)
        assert not [w for w in words if w.startswith(("--bitmap", "--assume-clean"))]


def test_a_single_member_is_forced() -> None:
    assert "--force" in _mdadm(count=1, level=1)
    assert "--force" not in _mdadm(count=2, level=1)


def test_write_mostly_members_are_marked_by_their_own_number() -> None:
    script = _create(level=1, write_mostly=[1, 3]).script
    assert script.count("echo writemostly") == 2
    assert "readlink -f /dev/disk/by-id/virtio-disk3" in script


PARSED = [
    {},
    {"layout": "parity-last", "component_size": "256MiB", "data_offset": "8KiB"},
    {"level": 6, "layout": "left-symmetric-6", "chunk": "4KiB", "spares": 1},
    {"level": 10, "layout": "o3", "failfast": True},
    {"level": 0, "layout": "alternate", "chunk": "48KiB"},
    {"level": "linear"},
    {"level": 4, "initial_sync": "wait"},
    {"level": 1, "members": 1},
    {"level": 1, "bitmap": "internal", "bitmap_chunk": "1GiB", "write_mostly": [5]},
    {"level": 1, "bitmap": "internal", "write_mostly": [5], "write_behind": 16383},
    {"consistency_policy": "ppl"},
    {"consistency_policy": "resync"},
    {"bitmap": "internal", "consistency_policy": "bitmap"},
    {"metadata": "1.0", "name": "other_name"},
]


@pytest.fixture
def mdadm(tmp_path: Path) -> Callable[[list[str]], str]:
    """mdadm with disks that do not exist: it parses all options and then opens the first disk."""
    program = shutil.which("mdadm") or shutil.which("mdadm", path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip("mdadm is not installed")
    if os.geteuid() != 0:
        pytest.skip("mdadm reads no further for anyone but root")

    def run(words: list[str]) -> str:
        nowhere = str(tmp_path / "no-such-disk")
        argv = [program, *(nowhere if w.startswith("/dev/disk/") else w for w in words[1:])]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode != 0
        return done.stderr.strip().replace(nowhere, "DISK")

    return run


@pytest.mark.parametrize("fields", PARSED, ids=str)
def test_mdadm_reads_the_command_to_its_end(
    mdadm: Callable[[list[str]], str], fields: dict[str, Any]
) -> None:
    said = mdadm(_mdadm(**fields)).splitlines()
    assert said[-1] == "mdadm: cannot open DISK: No such file or directory"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"level": 4, "layout": "left-symmetric"}, "layout not meaningful"),
        ({"level": 1, "chunk": "64KiB"}, "forbidden for this level"),
        ({"chunk": "2KiB"}, "invalid chunk"),
        ({"level": 6, "members": 3}, "at least 4 raid-devices"),
        ({"level": 10, "layout": "n6"}, "at least 6 devices"),
        ({"level": 0, "consistency_policy": "resync"}, "not meaningful with level raid0"),
        ({"level": 6, "consistency_policy": "ppl"}, "only supported for RAID level 5"),
        ({"bitmap": "internal", "consistency_policy": "ppl"}, "not compatible"),
        ({"bitmap": "internal", "bitmap_chunk": "3MiB"}, "invalid bitmap chunksize"),
    ],
)
def test_what_mdadm_refuses_the_lab_refuses(
    mdadm: Callable[[list[str]], str], fields: dict[str, Any], words: str
) -> None:
    """Negative control: mdadm rejects a wrong command before it opens a disk."""
    assert list(array_problems(_array(**fields), [GIB] * 5))
    command = _mdadm(
        **{k: v for k, v in fields.items() if k not in ("layout", "consistency_policy")}
    )
    extra = [
        f"--{key.replace('_', '-')}={fields[key]}"
        for key in ("layout", "consistency_policy")
        if key in fields
    ]
    said = mdadm([*command[:-5], *extra, *command[-5:]] if extra else command)
    assert words in said


# --- verification -------------------------------------------------------------------------------


class FakeSysfs:
    """``/sys/block/md127/md`` and udev's links, below a temporary directory."""

    def __init__(self, root: Path, disks: int) -> None:
        self.root = root
        self.md = root / "sys/block/md127/md"
        (root / "dev/md").mkdir(parents=True)
        (root / "dev/disk/by-id").mkdir(parents=True)
        (root / "dev/md127").touch()
        (root / "dev/md/bench").symlink_to("../md127")
        for index in range(1, disks + 1):
            name = "vd" + "abcdefgh"[index]
            (root / "dev" / name).touch()
            (root / f"dev/disk/by-id/virtio-disk{index}").symlink_to(f"../../{name}")
            self.member(index, slot=str(index - 1), offset=4096, state="in_sync")

    def write(self, **files: object) -> None:
        for name, value in files.items():
            path = self.md / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")

    def member(self, index: int, **files: object) -> None:
        device = "dev-vd" + "abcdefgh"[index]
        self.write(**{f"{device}__{name}": value for name, value in files.items()})

    def run(self, script: str) -> dict[str, str]:
        moved = script.replace("/sys/block", f"{self.root}/sys/block")
        moved = moved.replace("/dev/md/", f"{self.root}/dev/md/")
        moved = moved.replace("/dev/disk/", f"{self.root}/dev/disk/")
        done = subprocess.run(["sh", "-c", moved], capture_output=True, text=True)
        pairs = [line.partition("=") for line in done.stdout.splitlines()]
        return {key: value for key, _, value in pairs} | {"stderr": done.stderr}


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    fake = FakeSysfs(tmp_path, 5)
    fake.write(
        level="raid5",
        layout=5,
        raid_disks=4,
        chunk_size=524288,
        component_size=262144,
        metadata_version="1.2",
        consistency_policy="resync",
        degraded=0,
        sync_action="idle",
        resync_start="none",
        array_state="clean",
        bitmap__location="none",
        bitmap__chunksize=0,
        bitmap__backlog=0,
        bitmap__time_base=5,
        stripe_cache_size=4096,
        sync_speed_min="5000 (local)",
        safe_mode_delay="0.200",
    )
    fake.member(5, slot="none", state="spare")
    return fake


ASKED = {
    "layout": "parity-last",
    "component_size": "256MiB",
    "spares": 1,
    "sysfs": {"stripe_cache_size": 4096, "sync_speed_min": 5000, "safe_mode_delay": "0.2"},
}


def _wrong(fake: FakeSysfs, /, **fields: Any) -> set[str]:
    """Return keys that differ; only a real device can show that the name is a block device."""
    last = _steps(**fields)[-1]
    assert isinstance(last, Verify)
    found = fake.run(last.script)
    return {k for k, v in last.expect.items() if found.get(k) != v} - {"block_device"}


def test_the_array_that_was_asked_for_is_read_back(sysfs: FakeSysfs) -> None:
    assert _wrong(sysfs, **ASKED) == set()


@pytest.mark.parametrize(
    ("key", "files"),
    [
        ("level", {"level": "raid4"}),
        ("layout", {"layout": 2}),
        ("raid_disks", {"raid_disks": 5}),
        ("chunk_size", {"chunk_size": 65536}),
        ("component_size", {"component_size": 261632}),
        ("metadata_version", {"metadata_version": "1.1"}),
        ("consistency_policy", {"consistency_policy": "bitmap"}),
        ("degraded", {"degraded": 1}),
        ("sync_action", {"sync_action": "recover"}),
        ("resync_start", {"resync_start": 0}),
        ("state", {"array_state": "read-auto"}),
        ("bitmap", {"bitmap__location": "+8"}),
        ("disk3.slot", {"dev-vdd__slot": 3}),
        ("disk5.slot", {"dev-vdf__slot": 4}),
        ("disk2.data_offset", {"dev-vdc__offset": 2048}),
        ("sysfs.stripe_cache_size", {"stripe_cache_size": 256}),
        ("sysfs.sync_speed_min", {"sync_speed_min": "1000 (system)"}),
    ],
)
def test_each_fact_that_disagrees_fails_the_check(
    sysfs: FakeSysfs, key: str, files: dict[str, Any]
) -> None:
    sysfs.write(**files)
    assert _wrong(sysfs, **ASKED) == {key}


@pytest.mark.parametrize("state", ["clean", "active", "active-idle", "write-pending"])
def test_states_in_which_an_array_works_are_one(sysfs: FakeSysfs, state: str) -> None:
    sysfs.write(array_state=state)
    assert _wrong(sysfs, **ASKED) == set()


def test_an_array_that_is_not_there_fails_every_key(sysfs: FakeSysfs) -> None:
    shutil.rmtree(sysfs.md)
    (sysfs.root / "dev/md/bench").unlink()
    wrong = _wrong(sysfs, **ASKED)
    assert wrong >= {"state", "level", "component_size", "disk1.slot", "sysfs.stripe_cache_size"}


def test_newer_kernels_without_a_bitmap_have_fewer_files(sysfs: FakeSysfs) -> None:
    for name in ("chunksize", "backlog", "time_base"):
        (sysfs.md / "bitmap" / name).unlink()
    assert _wrong(sysfs, **ASKED) == set()
    sysfs.write(bitmap__location="+8")
    assert "bitmap" in _wrong(sysfs, **ASKED)
    asked = {**ASKED, "bitmap": "internal"}
    assert "bitmap_chunk" in _wrong(sysfs, **asked, bitmap_chunk="64KiB")


def test_bitmaps_are_told_apart(sysfs: FakeSysfs) -> None:
    sysfs.write(bitmap__location="+8", bitmap__chunksize=65536, consistency_policy="bitmap")
    asked = {**ASKED, "bitmap": "internal"}
    assert _wrong(sysfs, **asked, bitmap_chunk="64KiB") == set()
    assert _wrong(sysfs, **asked) == {"bitmap_chunk"}  # 64 MiB is mdadm's default
    sysfs.write(bitmap__location="file")
    assert _wrong(sysfs, **{**ASKED, **EXTERNAL}) == {"bitmap_chunk"}  # 4 KiB is mdadm's default
    sysfs.write(bitmap__chunksize=4096)
    assert _wrong(sysfs, **{**ASKED, **EXTERNAL}) == set()
    sysfs.write(bitmap_type="none bitmap [llbitmap]")
    assert _wrong(sysfs, **ASKED, bitmap="lockless") == set()
    sysfs.write(bitmap_type="none [bitmap] llbitmap")
    assert _wrong(sysfs, **ASKED, bitmap="lockless") == {"bitmap"}


def test_member_flags_are_read_back(sysfs: FakeSysfs) -> None:
    sysfs.write(level="raid1", layout=0, raid_disks=5, chunk_size=0, consistency_policy="bitmap")
    sysfs.write(bitmap__location="+8", bitmap__chunksize=64 * 1024**2, bitmap__backlog=256)
    for index in range(1, 6):
        state = "in_sync,failfast"
        sysfs.member(index, slot=index - 1, state=state + (",write_mostly" if index == 2 else ""))
    asked: dict[str, Any] = {"level": 1, "component_size": "256MiB", "bitmap": "internal"}
    asked |= {"failfast": True, "write_mostly": [2], "write_behind": 256, "data_offset": "2MiB"}
    assert _wrong(sysfs, **asked) == set()
    sysfs.member(2, state="in_sync,failfast")
    assert _wrong(sysfs, **asked) == {"disk2.write_mostly"}
    sysfs.member(2, state="in_sync,write_mostly")
    assert _wrong(sysfs, **asked) == {"disk2.failfast"}


def test_a_level_without_redundancy_has_less_to_read(sysfs: FakeSysfs) -> None:
    for name in ("degraded", "sync_action", "bitmap/location"):
        (sysfs.md / name).unlink()
    sysfs.write(level="raid0", layout=-1, raid_disks=5, component_size=0, consistency_policy="none")
    sysfs.member(5, slot=4, state="in_sync")
    assert _wrong(sysfs, level=0) == set()
    assert _wrong(sysfs, level=0, chunk="64KiB") == {"chunk_size"}


def test_the_wait_sees_a_sync_end_and_bits_vanish(sysfs: FakeSysfs, tmp_path: Path) -> None:
    wait = _steps(initial_sync="wait", bitmap="internal", spares=1)[1]
    assert isinstance(wait, WaitFor)
    fake = tmp_path / "bin" / "mdadm"
    fake.parent.mkdir()
    bits = tmp_path / "bits"
    fake.write_text(
        "#!/bin/sh\n"
        "echo '        Filename : /dev/vdb'\n"
        f'echo "          Bitmap : 16 bits (chunks), $(cat {bits}) dirty (43.8%)"\n'
    )
    fake.chmod(0o755)
    script = f"PATH={fake.parent}:$PATH\n{wait.script}"

    def ready() -> bool:
        found = sysfs.run(script)
        return all(found.get(k) == v for k, v in wait.expect.items())

    bits.write_text("7")
    assert not ready()
    bits.write_text("0")
    assert ready()
    sysfs.write(sync_action="resync")
    assert not ready()
    sysfs.write(sync_action="idle", degraded=1)
    assert not ready()


def test_settings_are_written_and_a_refused_one_stops_the_step(sysfs: FakeSysfs) -> None:
    step = _steps(initial_sync="wait", spares=1, sysfs={"rmw_level": 0})[2]
    assert isinstance(step, GuestCommand)
    sysfs.run(step.script)
    assert (sysfs.md / "rmw_level").read_text() == "0\n"
    assert (sysfs.md / "sync_speed_max").read_text() == "system\n"
    shutil.rmtree(sysfs.md)
    assert sysfs.run(step.script + "echo reached=yes\n").keys() == {"stderr"}


def _fake_programs(folder: Path, *, mdadm_status: int) -> str:
    """Return a ``PATH`` with a fake mdadm, and a udev that always succeeds."""
    folder.mkdir()
    for name, status in (("mdadm", mdadm_status), ("udevadm", 0)):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $1" >&2\nexit {status}\n')
        program.chmod(0o755)
    return f"PATH={folder}:$PATH\n"


def test_a_create_that_fails_stops_there_and_is_heard(tmp_path: Path) -> None:
    script = _fake_programs(tmp_path / "bin", mdadm_status=1) + _create().script
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == "mdadm --create\n"
    assert done.stderr == ""


def test_undo_is_harmless_where_nothing_was_made(tmp_path: Path) -> None:
    """mdadm returns 4 if it finds no superblock, and there is nothing to stop."""
    undo = _create(name="never_made_here").undo
    script = _fake_programs(tmp_path / "bin", mdadm_status=4) + undo
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--stop" not in done.stderr


# --- uncertain values are not expected ----------------------------------------------------------


def test_a_running_sync_is_not_held_against_the_array() -> None:
    expect = _expect(initial_sync="none")
    assert not {"sync_action", "degraded", "resync_start", "disk5.slot"} & expect.keys()
    assert expect["disk4.slot"] == "3"
    assert _expect(initial_sync="none", level=6)["disk5.slot"] == "4"


def test_a_recovered_member_is_known_only_without_other_spares() -> None:
    assert _expect(initial_sync="wait")["disk5.slot"] == "4"
    with_spare = _expect(initial_sync="wait", spares=1)
    assert "disk4.slot" not in with_spare
    assert "disk5.slot" not in with_spare
    assert _expect(initial_sync="assume_clean", spares=1)["disk5.slot"] == "none"


def test_partial_parity_and_bitmap_are_policies() -> None:
    assert _expect(consistency_policy="ppl")["consistency_policy"] == "ppl"
    assert _expect(bitmap="internal")["consistency_policy"] == "bitmap"
    assert _expect(level=0)["consistency_policy"] == "none"


def test_sizes_are_in_bytes() -> None:
    expect = _expect(component_size="256MiB", data_offset="8KiB", chunk="64KiB")
    assert expect["component_size"] == str(256 * 1024**2)
    assert expect["chunk_size"] == "65536"
    assert expect["disk1.data_offset"] == "8192"
    assert _expect()["component_size"] == str(GIB - 2 * 1024**2)


# --- without a member ---------------------------------------------------------------------------


def _used(steps: tuple[Step, ...]) -> str:
    return " ".join(s.script for s in steps if isinstance(s, GuestCommand | Verify | WaitFor))


def test_a_missing_member_keeps_its_place_and_its_disk_is_left_alone() -> None:
    disks = _create(level=5, missing=2).script.partition("--raid-devices=5")[2].splitlines()[0]
    named = [d for d in disks.split() if d.startswith("/dev/disk") or d == "missing"]
    assert named[:3] == [_paths(5)[0], "missing", _paths(5)[2]]
    assert len(named) == 5
    assert _paths(5)[1] not in _used(_steps(level=5, missing=2))


def test_write_mostly_speaks_of_members_whichever_is_missing() -> None:
    script = _create(level=1, missing=1, write_mostly=(3,)).script
    paths = _paths(5)
    assert f"readlink -f {paths[2]})" in script
    assert f"readlink -f {paths[3]})" not in script


def test_an_array_without_a_member_is_read_back_as_degraded() -> None:
    whole, short = _expect(level=5), _expect(level=5, missing=2)
    assert (whole["degraded"], short["degraded"]) == ("0", "1")
    assert [short[f"disk{n}.slot"] for n in (1, 2, 3, 4)] == ["0", "2", "3", "4"]
    assert "disk5.slot" not in short
    assert whole["disk5.slot"] == "4"
    assert short["raid_disks"] == whole["raid_disks"] == "5"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"level": 0, "missing": 1}, "does not run without a member"),
        ({"level": 5, "missing": 6}, "no member 6: write 1 to 5"),
        ({"level": 5, "missing": 1, "spares": 1}, "set spares to 0"),
        ({"level": 5, "missing": 1, "bitmap": "internal"}, "never clears bits"),
        ({"level": 5, "missing": 1, "initial_sync": "wait"}, "assume_clean"),
        ({"level": 5, "missing": 1}, None),
    ],
)
def test_what_cannot_be_without_a_member_is_refused(fields: dict[str, Any], said: str) -> None:
    found = list(array_problems(_array(**fields), [GIB] * 5))
    assert [p.key for p in found] == (["array.missing"] if said else [])
    assert not said or said in found[0].message


def test_the_missing_disk_does_not_bound_the_others() -> None:
    sizes = [GIB, GIB // 2, GIB]
    assert geometry_of(_array(level=5), sizes).component_size < GIB // 2
    assert geometry_of(_array(level=5, missing=2), sizes).component_size > GIB // 2
