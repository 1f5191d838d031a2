"""ZFS pools: configurations that zpool would refuse, its command line, and verification."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import InputError
from lab.core.units import GIB, MIB
from lab.model.execution.procedure import GuestCommand, Step, Timed, Verify
from lab.model.image.manifest import ImageFacts
from lab.model.scenario.document import Array, Filesystem
from lab.plugins.arrays.zfs import ARRAY, create_command
from lab.plugins.guest_programs import flush_arc
from tests.fakes import compiled_text

DATASET = Filesystem(type="zfs")


def pool(**fields: Any) -> Array:
    return Array.model_validate({"kind": "zfs", "level": "raidz2", **fields})


def paths(count: int) -> list[str]:
    return [f"/dev/disk/by-id/virtio-disk{index}" for index in range(1, count + 1)]


def steps(array: Array, count: int = 6, filesystem: Filesystem | None = DATASET) -> list[Step]:
    return list(ARRAY.assemble(array, paths(count), [GIB] * count, filesystem))


def vdevs(array: Array, count: int) -> list[str]:
    argv = shlex.split(create_command(array, paths(count)))
    return [a.removeprefix("/dev/disk/by-id/virtio-") for a in argv[argv.index("bench") + 1 :]]


def test_each_level_has_its_vdevs() -> None:
    disks = ["disk1", "disk2", "disk3", "disk4"]
    assert vdevs(pool(), 4) == ["raidz2", *disks]
    assert vdevs(pool(level="raidz3"), 4) == ["raidz3", *disks]
    assert vdevs(pool(level="stripe"), 4) == disks
    assert vdevs(pool(level="mirror"), 4) == ["mirror", *disks[:2], "mirror", *disks[2:]]
    assert vdevs(pool(level="mirror", zfs={"width": 4}), 4) == ["mirror", *disks]
    assert vdevs(pool(level="raidz", zfs={"width": 2}), 4) == [
        "raidz", "disk1", "disk2", "raidz", "disk3", "disk4",
    ]  # fmt: skip
    assert vdevs(pool(spares=1), 4) == ["raidz2", *disks[:3], "spare", "disk4"]


def test_every_property_is_named_and_expected() -> None:
    array = pool(
        zfs={"ashift": 13, "recordsize": "1MiB", "compression": "lz4", "sync": "disabled",
             "atime": True, "primarycache": "metadata", "arc_max": "64MiB"}
    )  # fmt: skip
    create, verify = steps(array)[:2]
    assert isinstance(create, GuestCommand)
    assert isinstance(verify, Verify)
    for word in ("ashift=13", "recordsize=1048576", "compression=lz4", "sync=disabled",
                 "atime=on", "primarycache=metadata"):  # fmt: skip
        assert f" {word} " in create.script
        key, _, value = word.partition("=")
        assert verify.expect[key] == value
    assert f"echo {64 * MIB} > " in create.script
    assert verify.expect["arc_max"] == str(64 * MIB)
    plain = steps(pool())[1]
    assert isinstance(plain, Verify)
    assert plain.expect["arc_max"] == "0"


STATUS = """\
  pool: bench
 state: ONLINE
config:

\tNAME                                     STATE     READ WRITE CKSUM
\tbench                                    ONLINE       0     0     0
\t  mirror-0                               ONLINE       0     0     0
\t    /dev/disk/by-id/virtio-disk1-part1   ONLINE       0     0     0
\t    /dev/disk/by-id/virtio-disk2-part1   ONLINE       0     0     0
\t  mirror-1                               ONLINE       0     0     0
\t    /dev/disk/by-id/virtio-disk3-part1   ONLINE       0     0     0
\t    /dev/disk/by-id/virtio-disk4-part1   ONLINE       0     0     0
\tspares
\t  /dev/disk/by-id/virtio-disk5-part1     AVAIL

errors: No known data errors
"""


def read_back(
    tmp_path: Path, array: Array, count: int, status: str
) -> tuple[dict[str, str], Verify]:
    """Return the script's output with fakes of zpool and zfs, and the expected values."""
    for name, text in (
        (
            "zpool",
            f'case "$*" in *health*) echo ONLINE ;; *ashift*) echo 12 ;;\n*) cat <<"E"\n{status}E\n'
            ";; esac\n",
        ),
        (
            "zfs",
            "printf '%s\\t%s\\n' recordsize 131072 compression off sync standard atime off "
            "primarycache all\n",
        ),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "arc_max").write_text("0\n")
    verify = steps(array, count)[1]
    assert isinstance(verify, Verify)
    script = verify.script.replace(
        "/sys/module/zfs/parameters/zfs_arc_max", str(tmp_path / "arc_max")
    )
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines()), verify


def test_a_pool_as_asked_for_is_read_back(tmp_path: Path) -> None:
    array = pool(level="mirror", spares=1)
    said, verify = read_back(tmp_path, array, 5, STATUS)
    assert {key: said.get(key) for key in verify.expect} == verify.expect
    assert said["disk4.vdev"] == "mirror-1"
    assert said["disk5.state"] == "AVAIL"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("mirror-1", "raidz1-1", "disk3.vdev"),
        ("virtio-disk2-part1   ONLINE", "virtio-disk2-part1   FAULTED", "disk2.state"),
        ("virtio-disk4", "virtio-other", "disk4.vdev"),
        ("AVAIL", "INUSE", "disk5.state"),
    ],
)
def test_a_pool_that_is_another_is_seen(tmp_path: Path, old: str, new: str, key: str) -> None:
    said, verify = read_back(tmp_path, pool(level="mirror", spares=1), 5, STATUS.replace(old, new))
    assert said.get(key) != verify.expect[key]


def test_a_dataset_is_mounted_where_file_systems_are_and_a_volume_is_a_device() -> None:
    *_, create, verify = steps(pool())
    assert isinstance(create, GuestCommand)
    assert isinstance(verify, Verify)
    assert create.script == "zfs create -o mountpoint=/mnt/bench bench/data"
    assert verify.expect == {"type": "zfs", "source": "bench/data"}
    *_, create, verify = steps(pool(zfs={"volume_size": "1GiB"}), filesystem=None)
    assert isinstance(create, GuestCommand)
    assert isinstance(verify, Verify)
    assert "size=1073741824\nzfs create -s -b 16384 -V $size bench/volume" in create.script
    assert verify.expect["size"] == str(GIB)
    on_volume = steps(pool(), filesystem=Filesystem(type="xfs"))
    assert on_volume[-1] == steps(pool(), filesystem=None)[-1]
    for step in (*steps(pool()), *steps(pool(), filesystem=None)):
        script = getattr(step, "script", "")
        subprocess.run(["sh", "-n", "-c", script], check=True)
        subprocess.run(["sh", "-n", "-c", getattr(step, "undo", "")], check=True)


def test_an_image_without_zfs_is_named() -> None:
    packages = frozenset({"zfsutils-linux"})
    whole = ImageFacts(packages=packages, own_modules=("zfs", "spl"))
    assert list(ARRAY.lacks(pool(), whole)) == []
    assert list(ARRAY.lacks(pool(), ImageFacts())) == []
    for facts in (ImageFacts(packages=packages), ImageFacts(packages=frozenset())):
        (problem,) = ARRAY.lacks(pool(), facts)
        assert problem.message == "it has no ZFS"


# --- in a scenario --------------------------------------------------------------------------

SCENARIO = """\
title: t
question: q?
guest: {image: debian-12-zfs, memory: 1GiB}
disks: {count: 6, size: 1GiB}
array:
  kind: zfs
  level: raidz2
filesystem: {type: zfs}
workloads:
  - {name: tree, tool: file_tree, files: 100}
"""


def compiled(tmp_path: Path, *sets: str) -> Compiled:
    return compiled_text(tmp_path, SCENARIO, *sets)


def test_file_system_workloads_run_on_the_dataset_with_an_empty_arc(tmp_path: Path) -> None:
    procedure = cell_procedure(compiled(tmp_path).base, "/g")
    (timed,) = (step for step in procedure.steps if isinstance(step, Timed))
    assert "/mnt/bench/data" in timed.script
    before = timed.before
    assert (
        before.index("zfs unmount $1") < before.index("fcntl.ioctl") < before.index("zfs mount $1")
    )
    assert before.index("zfs mount $1") < before.index("echo 3 > ")
    assert not any("mkfs" in getattr(step, "script", "") for step in procedure.steps)


MOUNTS = "/dev/vda / ext4 rw 0 0\n{source} /mnt/bench {type} rw,noatime 0 0\n"


@pytest.mark.parametrize(
    ("source", "type_", "done"),
    [
        (
            "/dev/zd0",
            "xfs",
            ["umount /mnt/bench", "zpool export bench",
             "zpool import -d /dev/disk/by-id -o cachefile=none bench",
             "udevadm settle --timeout=60",
             "mount -t xfs -o rw,noatime /dev/zvol/bench/volume /mnt/bench"],
        ),
        ("bench/data", "zfs", ["zfs unmount bench/data", "python3 -c", "zfs mount bench/data"]),
    ],
)  # fmt: skip
def test_what_is_on_the_volume_is_mounted_anew(
    tmp_path: Path, source: str, type_: str, done: list[str]
) -> None:
    for program in ("zpool", "zfs", "umount", "mount", "udevadm", "python3"):
        shown = "$1" if program == "python3" else "$*"
        (tmp_path / program).write_text(f'#!/bin/sh\necho "${{0##*/}} {shown}"\n')
        (tmp_path / program).chmod(0o755)
    (tmp_path / "mounts").write_text(MOUNTS.format(source=source, type=type_))
    script = ARRAY.fresh(pool()).replace("/proc/mounts", str(tmp_path / "mounts"))
    ran = subprocess.run(
        ["sh", "-euc", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == done


def test_data_that_stays_in_the_arc_are_counted(tmp_path: Path) -> None:
    statistics = tmp_path / "arcstats"
    lines = ["9 1 0x01 147 39984 1 2", "name type data", "mru_evictable_data 4 131072"]
    lines += ["mfu_evictable_data 4 65536", "mfu_evictable_metadata 4 24576"]
    statistics.write_text("\n".join(lines), encoding="utf-8")
    assert flush_arc.kept(str(statistics)) == 131072 + 65536


def test_another_file_system_is_made_on_the_volume(tmp_path: Path) -> None:
    cell = compiled(tmp_path, "filesystem.type=xfs").base
    scripts = [getattr(step, "script", "") for step in cell_procedure(cell, "/g").steps]
    assert any("mkfs.xfs -q -f /dev/zvol/bench/volume" in script for script in scripts)


def test_md_and_a_pool_are_points_of_one_matrix(tmp_path: Path) -> None:
    found = compiled(
        tmp_path,
        "array={level: raid6}",
        "filesystem.type=ext4",
        "matrix={array.level: [raid6, raid10]}",
    )
    assert [c.array.model_dump().get("zfs") for c in found.cells if c.array] == [None, None]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("array.level=5",), "array.level: expected one of stripe, mirror, raidz"),
        (("array.chunk=64KiB",), "array.chunk: a field of md"),
        (("array.bitmap=internal",), "array.bitmap: a field of md"),
        (("array.initial_sync=wait",), "array.initial_sync: a ZFS pool has no"),
        (("array.name=mirror1",), "array.name: ZFS reserves the name 'mirror1'"),
        (("disks.count=2",), "disks.count: raidz2 needs 3 disks, found 2"),
        (("array.spares=7",), "array.members: "),
        (("array.zfs.width=4",), "array.zfs.width: 6 disks cannot be divided into vdevs of 4"),
        (("array.level=mirror", "disks.count=5"), "disks.count: 5 disks cannot be divided"),
        (("array.zfs.width=2",), "array.zfs.width: raidz2 needs at least 3 disks, found 2"),
        (("array.level=stripe", "array.spares=1"), "array.spares: a stripe cannot lose a disk"),
        (("disks.size=64MiB",), "disks.size: 64MiB is too small"),
        (("array.zfs.recordsize=100KiB",), "array.zfs.recordsize: 100KiB is not a power of two"),
        (("array.zfs.recordsize=2MiB",), "array.zfs.recordsize: 2MiB is above"),
        (("array.zfs.compression='on'",), "array.zfs.compression: "),
        (("array.zfs.arc_max=1MiB",), "array.zfs.arc_max: "),
        (("array.kind=md", "array.level=6"), ":8: filesystem.type: 'zfs' needs an array"),
        (("array=none",), ":8: filesystem.type: 'zfs' needs an array"),
        (("filesystem.mount_options=[noatime]",), "filesystem.mount_options: 'zfs' has"),
        (
            ("array={level: 6, zfs: {ashift: 9}}", "filesystem.type=ext4"),
            "array.zfs: only arrays of kind zfs",
        ),
    ],
)
def test_what_no_pool_would_take_is_refused(
    tmp_path: Path, sets: tuple[str, ...], says: str
) -> None:
    compiled(tmp_path)  # valid before the change
    with pytest.raises(InputError) as error:
        compiled(tmp_path, *sets)
    assert says in error.value.message
