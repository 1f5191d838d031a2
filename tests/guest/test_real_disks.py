"""Real disks in real guests: loop devices passed through, and the guard beside md and LVM."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lab
from lab.core.units import MIB
from lab.host.guest import registry as guests
from lab.host.real_disks import guard
from lab.host.real_disks import refusals as real
from lab.host.real_disks.guard import Named, Refusal
from tests import loops
from tests.loops import Loop

from .conftest import Home

pytestmark = pytest.mark.guest
SIZE = 64 * MIB

MIXED = """\
title: Real and virtual disks in one array
question: Does it work?
disks:
  - {device: FIRST}
  - {device: SECOND, throttle: {total_bytes_per_second: 2MiB}}
  - {count: 1, size: 64MiB, format: raw}
array: {level: 5, chunk: 64KiB, component_size: 16MiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 128KiB, count: 48, oflag: direct}
  - {name: read, tool: dd, if: '{target}', bs: 128KiB, count: 48, iflag: direct}
matrix: {array.chunk: [64KiB, 128KiB]}
"""
BARE = """\
title: A real disk that is only read
question: Does it stay as it is?
disks: {device: FIRST}
array: none
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 8, iflag: direct}
"""
WRITTEN = BARE + "  - {name: write, tool: mkfs, type: ext4}\n"
SCSI = """\
title: A guest with SCSI disks
question: What does the guard say there?
disks: {count: 2, size: 64MiB, bus: scsi, model: none, format: raw}
array: none
"""


@dataclass
class Disks:
    """Two loop devices with stable names of the system's own."""

    home: Home
    first: Loop
    second: Loop
    path: Path

    @property
    def erase(self) -> tuple[str, ...]:
        return tuple(w for d in (self.first, self.second) for w in ("--erase", str(d.file)))

    def scenario(self, text: str) -> str:
        text = text.replace("FIRST", str(self.first.name)).replace("SECOND", str(self.second.name))
        path = self.path / f"s{hashlib.sha256(text.encode()).hexdigest()[:6]}.yaml"
        path.write_text(text)
        return str(path)

    def digests(self) -> list[str]:
        return [hashlib.sha256(d.file.read_bytes()).hexdigest() for d in (self.first, self.second)]

    def refusal(self, disk: Loop) -> str:
        return real.objections(str(disk.name), SIZE, str(disk.file))


@pytest.fixture
def disks(lab_home: Home, image: str, tmp_path: Path) -> Iterator[Disks]:
    """Blank disks; the names stand where udev's do, and go with the test."""
    for bay in loops.bay(tmp_path):
        made = [d for d in (real.NAMES.parent, real.NAMES) if not d.exists()]
        real.NAMES.mkdir(parents=True, exist_ok=True)
        named = []
        for name in ("a", "b"):
            disk = bay.loop(name, size=SIZE)
            link = real.NAMES / f"lab-test-{os.getpid()}-{name}"
            link.symlink_to(disk.device)
            named.append(Loop(device=disk.device, file=disk.file, name=link))
        try:
            yield Disks(home=lab_home, first=named[0], second=named[1], path=tmp_path)
        finally:
            lab_home.run("down")
            for disk in named:
                disk.name.unlink()
            for directory in reversed(made):
                directory.rmdir()


def figures(document: dict[str, Any]) -> list[dict[str, float]]:
    assert [c["outcome"] for c in document["cells"]] == ["done"] * len(document["cells"]), document
    return [
        {m["workload"]: m["median"] for m in c["measurements"] if m["metric"] == "throughput"}
        for c in document["cells"]
    ]


@pytest.mark.slow
def test_real_and_virtual_disks_in_one_array(disks: Disks) -> None:
    """Two cells, so that each disk is passed, blanked and given back twice."""
    scenario = disks.scenario(MIXED)
    without = disks.home.run("run", "scenario", scenario)
    assert without.returncode == 2
    assert f"--erase {disks.first.file}" in without.stderr
    wrong = disks.home.run("run", "scenario", scenario, "--erase", str(disks.first.file)[:-1])
    assert wrong.returncode == 2
    assert "no real disk of this scenario has that serial" in wrong.stderr
    document = disks.home.json("run", "scenario", scenario, *disks.erase)
    for measured in figures(document):
        # One of three disks moves 2 MiB/s: of full stripes it gets half as many bytes as there are
        # data, and of half stripes as many, for those are read, changed and written.
        assert 1.0 < measured["write"] / MIB < 5.0
    first = disks.first.file.read_bytes()
    assert any(first)  # data was written,
    assert disks.refusal(disks.first) == disks.refusal(disks.second) == ""  # and no signature left
    assert disks.home.left() == []


@pytest.mark.slow
def test_a_disk_that_may_only_be_read_stays_as_it_is(disks: Disks) -> None:
    loops.write(disks.first.device, SIZE // 2, os.urandom(MIB))
    before = disks.digests()
    (measured,) = figures(disks.home.json("run", "scenario", disks.scenario(BARE)))
    assert measured["read"] > 0
    document = disks.home.json("run", "scenario", disks.scenario(WRITTEN))
    (cell,) = document["cells"]
    assert cell["outcome"] == "failed"  # the guest has no way to write to it
    assert disks.digests() == before


@pytest.mark.slow
def test_a_guest_that_stays_up_and_what_becomes_of_its_disks(disks: Disks, tmp_path: Path) -> None:
    scenario = disks.scenario(MIXED)
    up = disks.home.run("up", "scenario", scenario, "--no-run", *disks.erase)
    assert up.returncode == 0, up.stderr
    (record,) = [r for r in guests.every() if guests.is_alive(r)]
    # Nobody else has it: not the kernel, not another lab, which is told who has it.
    assert loops.mount(disks.first.device, tmp_path) == errno.EBUSY
    refused = disks.home.run("run", "scenario", scenario, *disks.erase)
    assert refused.returncode == 2
    assert f"process {record.pid} (/usr/bin/qemu-system" in refused.stderr
    named = Named(path=str(disks.first.name), size=SIZE, serial=str(disks.first.file))
    assert isinstance(guard.take(real.ground(), named), Refusal)
    # The worker is gone, and the lease is not: QEMU has it beside the disk.
    open_files = [p.readlink() for p in Path(f"/proc/{record.pid}/fd").iterdir()]
    assert [p for p in open_files if p.parent == real.LEASES]
    inside = disks.home.run("ssh", record.id, "--root", "--", "sync; cat /proc/mdstat")
    assert "raid5" in inside.stdout
    before = disks.digests()
    disks.home.run("gc")
    assert guests.is_alive(record)
    os.kill(record.pid, signal.SIGKILL)
    disks.home.wait_until_nothing_is_left(1)
    ended = disks.home.run("gc")
    assert record.id in ended.stdout
    assert disks.digests() == before  # what gc removes are the lab's own files
    assert disks.first.file.stat().st_size == SIZE
    assert "linux_raid_member" in disks.refusal(disks.first)
    again = disks.home.run("run", "scenario", scenario, *disks.erase)
    assert again.returncode == 2
    assert "wipefs --all DEVICE" in again.stderr
    assert disks.digests() == before


@pytest.mark.slow
def test_a_clusters_host_passes_the_disks_that_it_offers(
    disks: Disks, lab_process: Callable[..., subprocess.Popen[str]]
) -> None:
    pytest.importorskip("distributed")

    def serving(*words: str) -> tuple[subprocess.Popen[str], str]:
        process = lab_process("cluster", *words)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def host(*offered: Loop) -> subprocess.Popen[str]:
        words = [w for disk in offered for w in ("--disk", str(disk.name))]
        process, line = serving("worker", address, "--name", "host1", *words)
        assert line.startswith(f"joined {address} as"), process.communicate(timeout=5)
        return process

    scheduler, address = serving("scheduler", "--port", "0")
    run = ("run", "scenario", disks.scenario(MIXED), "--cluster", address)
    worker = host(disks.first)
    refused = disks.home.run(*run, *disks.erase)
    assert refused.returncode == 2
    name = disks.second.name
    assert f"it takes the disk {name}; host1 has not the disk {name}" in refused.stderr
    worker.terminate()
    worker.wait(timeout=60)
    worker = host(disks.first, disks.second)
    without = disks.home.run(*run)
    assert without.returncode == 2
    assert f"--erase {disks.first.file}" in without.stderr
    before = disks.digests()
    document = disks.home.json(*run, *disks.erase)
    for measured in figures(document):
        assert 1.0 < measured["write"] / MIB < 5.0  # as without a cluster
    assert {c["host"] for c in document["cells"]} == {"host1"}
    assert disks.digests() != before
    assert disks.refusal(disks.first) == disks.refusal(disks.second) == ""
    for process in (worker, scheduler):
        process.terminate()
        process.wait(timeout=60)
    assert disks.home.left() == []


def package() -> str:
    """The guard's package and the program beside it, as text that a shell unpacks."""
    root, buffer = Path(lab.__file__).parent, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("__init__.py", "host/__init__.py"):
            tar.add(root / name, f"lab/{name}")
        for file in sorted((root / "host" / "realdisks").glob("*.py")):
            tar.add(file, f"lab/host/real_disks/{file.name}")
        tar.add(Path(__file__).with_name("realdisks_in_guest.py"), "try.py")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.slow
def test_the_guard_where_there_are_md_lvm_and_scsi_disks(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    path = tmp_path / "scsi.yaml"
    path.write_text(SCSI)
    up = lab_home.run("up", "scenario", str(path), "--no-run")
    assert up.returncode == 0, up.stderr
    try:
        script = (
            f"mkdir -p /run/try && cd /run/try && echo {package()} | base64 -d | tar xz"
            " && python3 try.py disk1 disk2"
        )
        done = lab_home.run("ssh", "--root", "--", script)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    finally:
        lab_home.run("down")
    print(json.dumps(found, indent=1))  # shown where something below fails
    facts = found.pop("facts")
    assert (facts["serial"], facts["size"]) == ("disk1", SIZE)
    assert found.pop("at first") == []
    pulled = found.pop("pulled")
    assert pulled == {"while held": ["no disk"], "gone": ["gone"], "back": []}
    assert "system disk" in found.pop("system")
    wanted = {
        "md": {"held", "signature"},
        "md on a partition": {"held", "signature"},
        "dm": {"held"},
        "lvm": {"held", "signature"},
        "lvm that is not active": {"signature"},
        "swap": {"swap", "signature"},
        "mounted": {"mounted", "signature"},
        "mounted on LVM": {"held", "signature"},
        "read-only": {"read-only"},
        "swapped": {"changed"},
    }
    assert set(found) == set(wanted)
    for case, (forbidden, afterwards) in found.items():
        assert wanted[case] <= set(forbidden), (case, forbidden)
        assert afterwards == [], case
    assert "md127" in found["md"][0][-1] or "/dev/md" in found["md"][0][-1]
    assert "(t-v), a device of device-mapper" in found["lvm"][0][-1]
