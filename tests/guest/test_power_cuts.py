"""The power fails under the lab itself: every cell that it said was finished is there afterwards.

A guest stands for the host. It runs the lab's store on an ext4, on a modelled drive with a volatile
write cache. QEMU is killed at a seeded moment: the guest's page cache is lost. Then the drive's
server loses its cache: what was not flushed to the medium is lost too. The next guest mounts the
file system and reads the cells that the first one had reported over SSH.

A long ``commit=`` has the journal keep a cell's name back, and a short one has it write the name
before the data (delayed allocation): what is not synced goes missing in one way or in the other.
"""

from __future__ import annotations

import compileall
import py_compile
import random
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.compile.guest.disks import disk_steps, standing
from lab.compile.scenario.compiler import compile_scenario
from lab.host.guest import registry as guests
from lab.host.guest import servers, snapshots
from lab.host.guest.backend import LiveBackend
from lab.host.system import keys
from lab.model.execution.procedure import AttachDisk, Procedure, SendDirectory, Step
from lab.model.result.measurement import Check
from lab.model.result.stored import StoredCell, StoredRun
from lab.model.scenario.document import Cell
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.preparation.platforms import prepare
from lab.run.steps import Undo, run_procedure
from tests.fakes import SCENARIO

from .conftest import Home

pytestmark = [
    pytest.mark.guest,
    pytest.mark.slow,
    pytest.mark.skipif(bool(servers.missing_programs()), reason=f"needs {servers.PACKAGES}"),
]

CUTS, UNSYNCED_CUTS = 30, 6
SEED = 20261123
CELLS = 40
COMMITS = (300, 1)
"""Seconds between commits of the journal, in turns."""
HOST = """\
title: A host whose power fails
question: Is what was finished still there?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 1, size: 512MiB, model: hdd}
array: none
workloads: [{name: read, tool: dd, if: '{target}', bs: 1MiB, count: 1}]
"""
DISK = "/dev/disk/by-id/virtio-disk1"
PYTHON = "PYTHONPATH=/mnt/python PYTHONDONTWRITEBYTECODE=1 python3 -s /mnt/python/store_in_guest.py"


def python_of_the_store(directory: Path) -> None:
    """What the store imports, as a directory that another Python 3.11 finds it in."""
    import pydantic_core  # noqa: F401

    import lab.store.runs  # noqa: F401

    for name in ("lab", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"):
        source = Path(str(sys.modules[name].__file__)).parent
        more = ("cli", "app", "theory", "report", "inguest") if name == "lab" else ("v1",)
        shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns(*more))
    shutil.copy2(str(sys.modules["typing_extensions"].__file__), directory)
    shutil.copy2(Path(__file__).with_name("store_in_guest.py"), directory)
    # The guest's processor is emulated; the tar keeps no times by which a .pyc is checked.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(directory, quiet=2, force=True, invalidation_mode=unchecked)


def about(cell: Cell) -> StoredRun:
    return StoredRun(
        id="",
        scenario="q",
        title="T",
        question="Q",
        started="2026-11-23T00:00:00+00:00",
        environment={},
        cells=tuple(StoredCell(id=f"c{n}", cell=cell, published=True) for n in range(CELLS)),
        claims=(),
    )


@dataclass(kw_only=True)
class Hosts:
    """One guest after the other, on the same drive."""

    bench: LiveBackend
    start: Procedure
    plug: tuple[Step, ...]
    """Attach the drive, and wait until the guest has it."""
    undo: Undo
    reported: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    """Bytes that the drive's cache lost, cut by cut."""

    def do(self, *steps: Step, undo: Undo | None = None) -> None:
        def on_check(check: Check) -> None:
            assert check.passed, check

        procedure = Procedure(name="host", steps=steps)
        run_procedure(
            procedure, self.bench, undo or Undo(), lambda *_: None, lambda _: None, on_check
        )

    def shell(self, script: str, timeout: float = 120) -> str:
        done = self.bench.guest(f"set -e\n{script}", timeout)
        assert done.status == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def cut(self) -> None:
        """The power is gone: for QEMU, and a moment later for the drive."""
        guests.kill(self.bench.record.path)
        answer = servers.ask_line(self.control, "lose")
        self.dropped.append(int(answer.removeprefix("ok ")))
        self.bench.close()
        self.bench._hypervisor.forget()

    @property
    def control(self) -> str:
        """The socket over which the drive's server is told what to do."""
        (socket,) = self.bench._servers
        return str(Path(socket).with_suffix(".control"))

    def again(self) -> None:
        """The next guest: restored as one that has just booted, with the same drive."""
        self.do(*self.start.steps)
        self.do(*self.plug)

    def round(self, how: str, commit: int, seconds: float) -> None:
        """Write cells until the power goes, and see in the next guest what is there of them."""
        self.shell(f"mount -o commit={commit} {DISK} /mnt\nmkdir -p /mnt/runs")
        self.bench.begin("writer", f"exec env {PYTHON} write /mnt/runs {how}")
        writer = self.bench._running["writer"]
        deadline = time.monotonic() + 120
        while b"ready\n" not in writer._out:
            assert time.monotonic() < deadline, writer._err.decode()
            time.sleep(0.05)
        time.sleep(seconds)
        guests.kill(self.bench.record.path)
        told = self.bench.end("writer", 0, cut=True)
        assert "Traceback" not in told.stderr, told.stderr
        self.cut()
        whole = told.stdout.rpartition("\n")[0].splitlines()[1:]
        self.reported += whole
        self.again()
        state = self.bench.guest(f"fsck.ext4 -p {DISK}", 120)
        assert state.status in (0, 1), state.stdout + state.stderr
        self.shell(f"mount {DISK} /mnt")
        self.lost += self.missing(whole)
        self.shell("umount /mnt")

    def missing(self, cells: list[str]) -> list[str]:
        """Of the cells that were reported, those that are not there whole, and why."""
        lines = "\n".join(cells)
        script = f"{PYTHON} check /mnt/runs <<'END'\n{lines}\nEND" if cells else "true"
        return self.shell(script, 300).splitlines()


@pytest.fixture(scope="module")  # libvirt's embedded driver has one directory for each process
def hosts(lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    tmp_path = tmp_path_factory.mktemp("hosts")
    path = tmp_path / "host.yaml"
    path.write_text(HOST)
    compiled = compile_scenario(path)
    cell = compiled.base
    place = prepare(cell.guest, lambda *_: None)
    kinds = GuestJobs(scenario="host", platforms={cell.guest.system: place}, at_once=1)
    for _ in range(2):  # the first guest may take too long on a busy host, and boots cold then
        done = lab_home.run("up", "scenario", str(path), "--no-run", "-v")
        assert done.returncode == 0, done.stderr
        lab_home.run("down")
        if (state := snapshots.find(kinds.key(cell.guest))) is not None:
            break
    assert state is not None, done.stderr
    job = kinds.job(cell.guest, state)
    undo = Undo()
    undo.add(guests.remove, guests.directory_of(job.guest))
    record = guests.create(
        guest=job.guest,
        scenario="host",
        image=job.image,
        host_key=job.host_key,
        warm=job.warm,
    )
    bench = LiveBackend(record, keys.lab_key().private, scale=job.scale)
    try:
        steps = disk_steps(cell, str(record.path), None)
        (attach,) = [step for step in steps if isinstance(step, AttachDisk)]
        (disk,) = standing(cell, str(record.path))  # what is ready then need not be blank
        found = Hosts(bench=bench, start=job.procedure, plug=(attach, disk.ready), undo=undo)
        found.do(*job.procedure.steps, undo=undo)
        found.do(*steps, undo=undo)
        send_python(found, tmp_path)
        yield found
        if bench._shell is None:
            found.again()
    finally:
        errors = undo.unwind()
    assert errors == []
    assert lab_home.left() == []


def send_python(hosts: Hosts, tmp_path: Path) -> None:
    """Make the file system, with the store and what it imports on it."""
    python = tmp_path / "python"
    python.mkdir()
    python_of_the_store(python)
    scenario = tmp_path / "q.yaml"
    scenario.write_text(SCENARIO)
    (python / "stored_run.json").write_text(
        about(compile_scenario(scenario).base).model_dump_json()
    )
    send = SendDirectory(
        workload="", source=str(python), target="/var/tmp/python.tar", left_out=(), most=64 << 20
    )
    hosts.do(send)
    hosts.shell(
        f"mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 {DISK}\n"
        f"mount {DISK} /mnt\nmkdir /mnt/python /mnt/runs\n"
        "tar -x -f /var/tmp/python.tar -C /mnt/python\n"
        "sync\numount /mnt",
        600,
    )


def cuts(hosts: Hosts, how: str, number: int) -> None:
    draw = random.Random(SEED)
    for n in range(number):
        commit, seconds = COMMITS[n % len(COMMITS)], draw.uniform(0.2, 9.0)
        reported, lost = len(hosts.reported), len(hosts.lost)
        hosts.round(how, commit, seconds)
        print(
            f"{how}, cut {n + 1}: commit={commit}, after {seconds:.1f} s:"
            f" {len(hosts.reported) - reported} cells reported, {len(hosts.lost) - lost} lost,"
            f" {hosts.dropped[-1]} bytes in the drive's cache",
            flush=True,
        )
    ways = Counter(line.partition(": ")[2].split("'")[-1] for line in hosts.lost)
    print(f"{how}: {len(hosts.reported)} reported, {len(hosts.lost)} lost; {dict(ways)}")
    print(shlex.join(hosts.lost[:3]))


@pytest.mark.timeout(3000)
def test_every_cell_that_was_finished_survives_a_power_cut(hosts: Hosts) -> None:
    cuts(hosts, "sync", CUTS)
    assert len(hosts.reported) > CUTS
    assert hosts.lost == []
    hosts.shell(f"mount {DISK} /mnt")
    assert hosts.missing(hosts.reported) == []
    hosts.shell("umount /mnt")


@pytest.mark.timeout(1200)
def test_a_store_that_syncs_nothing_loses_cells(hosts: Hosts) -> None:
    """The test above can fail: the same cuts, and ``os.fsync`` does nothing."""
    reported, lost = len(hosts.reported), len(hosts.lost)  # of the test above
    cuts(hosts, "nosync", UNSYNCED_CUTS)
    assert len(hosts.lost) - lost > (len(hosts.reported) - reported) / 2
