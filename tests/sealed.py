"""Sealed guests for tests: built, started, saved and restored by hand, and by the lab's backend."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from drive import region, sealed
from drive.monitor import Monitor
from lab.compile.guest.program import Answer
from lab.host.guest.virtual.sealed import SealedBackend
from lab.host.images import virtual_time as sealed_kit
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import DiskLimit, Procedure, SealDisks, SealedDisk
from lab.model.result.document import Digest
from tests.fakes import guest_record

DRIVE = Path(__file__).parents[1] / "drive"


@dataclass(frozen=True)
class Ended:
    """Results and costs of a guest that has ended."""

    state: region.State
    digest: str
    host: float
    """Seconds from QEMU's start to its end."""
    cpu: float
    """CPU seconds of QEMU."""

    @property
    def text(self) -> str:
        return self.state.output.decode()

    def line(self) -> str:
        """Return a row for a table of runs."""
        return (
            f"{self.digest[:16]} guest {self.state.clock / 1e9:.9f} s "
            f"host {self.host:.1f} s cpu {self.cpu:.1f} s"
        )


@dataclass(frozen=True)
class Kit:
    """Files that all guests of a test run share."""

    lab: SealedKit
    work: Path

    @property
    def root(self) -> region.Disk:
        return sealed_kit.root_disk(self.lab)

    def guest(self, name: str, extra: Sequence[str] = ()) -> sealed.Guest:
        guest = sealed_kit.guest_of(self.lab, self.work / f"{name}.region")
        return replace(guest, extra=tuple(extra))


def throttled(count: int, size: int = 1 << 30, **limits: int) -> list[region.Disk]:
    """Return disks ``d1`` … with these limits."""
    given = {name: region.Limit(value) for name, value in limits.items()}
    return [
        region.Disk(serial=f"d{n}", size=size, limits=given, flags=region.WRITE_BACK)
        for n in range(1, count + 1)
    ]


REGIONS: dict[Path, region.Region] = {}
"""The regions of this test run, by path."""


def create(
    path: Path, disks: Sequence[region.Disk], *, size: int, commands: bytes
) -> region.Region:
    """Make a region, and remember its layout."""
    REGIONS[path] = region.create(path, disks, size=size, commands=commands)
    return REGIONS[path]


def start(guest: sealed.Guest, extra: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*sealed.command(guest), *extra], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def wait(process: subprocess.Popen[bytes], guest: sealed.Guest, timeout: float) -> Ended:
    """Wait for the guest's own end. It must not be disturbed until then."""
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        _, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, errors.decode()
    return Ended(
        region.read(REGIONS[guest.region]),
        region.digest(guest.region),
        time.monotonic() - began,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def cold(
    kit: Kit,
    commands: str,
    disks: Sequence[region.Disk],
    *,
    size: int = 8 << 30,
    extra: Sequence[str] = (),
    timeout: float = 3600,
) -> Ended:
    """Boot a guest with these commands, and wait until it has powered itself off."""
    guest = kit.guest("cold", extra)
    create(guest.region, [kit.root, *disks], size=size, commands=commands.encode())
    return wait(start(guest), guest, timeout)


def save(
    kit: Kit, prepare: str, disks: Sequence[region.Disk], *, size: int = 8 << 30
) -> sealed.Guest:
    """Boot a guest, prepare it, and save it at the point where it reads its commands."""
    guest = kit.guest("saved", sealed.STOPPABLE)
    commands = f"{prepare}\necho 1 > /sys/module/lab_disk/parameters/stop\nexec sh /dev/lab_io\n"
    create(guest.region, [kit.root, *disks], size=size, commands=commands.encode())
    socket = kit.work / "qmp"
    process = start(replace(guest, saves=True), Monitor.arguments(socket))
    try:
        with _connected(socket, process) as monitor:
            monitor.ask("cont")
            monitor.wait_for("STOP")
            monitor.save(kit.work / "state")
            monitor.ask("quit")
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
    return guest


@contextmanager
def _connected(socket, process):  # type: ignore[no-untyped-def]
    socket.unlink(missing_ok=True)
    for _ in range(600):
        if socket.exists():
            break
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.1)
    with Monitor(socket, 300) as monitor:
        yield monitor


def restored(kit: Kit, saved: sealed.Guest, commands: str, timeout: float = 3600) -> Ended:
    """Continue the saved guest with these commands, until it has powered itself off."""
    guest = replace(saved, region=kit.work / "restored.region")
    region.copy(saved.region, guest.region)
    REGIONS[guest.region] = replace(REGIONS[saved.region], path=guest.region)
    region.set_commands(REGIONS[guest.region], commands.encode())
    socket = kit.work / "qmp"
    process = start(guest, [*Monitor.arguments(socket), "-incoming", "defer"])
    try:
        with _connected(socket, process) as monitor:
            monitor.restore(kit.work / "state")
            monitor.ask("cont")
            return wait(process, guest, timeout)
    finally:
        process.kill()
        process.wait()


def memory(name: str) -> int:
    """Return this process's memory in bytes: ``VmRSS``, or its peak ``VmHWM``."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


LIMITS = {"bytes_total": DiskLimit(average=5 << 20)}
SEALED = SealDisks(
    disks=tuple(SealedDisk(serial=f"d{n}", size=1 << 30, limits=LIMITS) for n in range(1, 6))
)


@dataclass(frozen=True)
class Benched:
    """Results of a cell in the lab's own backend."""

    digest: Digest
    answers: list[Answer]
    notices: list[str]


def backend(
    kit: SealedKit, work: Path, *, notice: Callable[[str], object], cold: bool = False
) -> SealedBackend:
    """A backend as a worker has it, with a directory of its own below ``work``."""
    directory = work / "guest"
    directory.mkdir(exist_ok=True)
    record = guest_record(directory)
    return SealedBackend(record, kit, tell=lambda _: None, notice=notice, cold=cold)


def benched(kit: SealedKit, work: Path, procedure: Procedure, *, cold: bool = False) -> Benched:
    """Run a cell in a sealed guest of the lab's."""
    notices: list[str] = []
    bench = backend(kit, work, notice=notices.append, cold=cold)
    bench.take(CellJob(id="c", procedure=procedure, directory="", target="", space=1 << 30))
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        bench.seal_disks(SEALED)
    finally:
        bench.destroy_guest()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert bench.digest is not None
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{'cold' if cold else 'restored'}: {bench.digest.results[:16]} "
        f"host {time.monotonic() - began:.2f} s cpu {cpu:.2f} s",
        flush=True,
    )
    return Benched(bench.digest, list(bench._answers.values()), notices)
