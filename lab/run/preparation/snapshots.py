"""Makes snapshots of guests before a run's first cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from lab.core.errors import FullError
from lab.host.guest import snapshots
from lab.host.system import accelerator
from lab.host.system.locks import LockedError
from lab.model.execution.events import GuestStarted
from lab.model.execution.job import End, GuestJob
from lab.model.scenario.guest import Guest
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.worker_pool import PooledWorker, WorkerEvent, WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMaker:
    """Makes the snapshots for a run."""

    pool: WorkerPool
    jobs: GuestJobs
    say: Callable[[str], None]
    receive: Callable[[], WorkerEvent]
    """Returns the next event of any worker."""

    def guests(self, guests: Iterable[Guest]) -> set[Guest]:
        """Make a snapshot of each configuration that has none; return those for which it failed.

        ``HostError``: its guest never answered.
        """
        cold = set()
        for guest in guests:
            key = self.jobs.key(guest)
            if snapshots.find(key) is not None:
                continue
            try:
                with snapshots.exclusive(key):
                    if snapshots.find(key) is not None:
                        continue
                    self.say("booting a guest once and making a snapshot of it")
                    worker = self._make(self.jobs.job(guest, None, save=key), guest)
                    snapshot = snapshots.find(key)
            except LockedError as error:
                self.say(f"guests boot cold: {error.message}")
                cold.add(guest)
                continue
            if snapshot is None and worker.silent and worker.trouble is not None:
                raise worker.trouble  # no guest of this configuration would answer
            if snapshot is None:
                cold.add(guest)
                why = worker.trouble.message if worker.trouble else "no reason was given"
                self.say(f"no snapshot could be made, so each guest boots: {why}")
            else:
                platform = self.jobs.platforms[guest.system]
                accelerator.remember_boot(platform.accelerator.kind, snapshot.boot_seconds)
        return cold

    def disks(self, *, cold: Set[Guest]) -> None:
        """Make snapshots with cells' disks plugged in, at the second request.

        A snapshot with disks saves 1.5 s per guest under TCG and takes 7 s to make, which does not
        pay for a single run. Cells whose disks are a subset share one. ``cold`` configurations get
        none.
        """
        wide = [c for c in self.jobs.wide.values() if c.guest not in cold]
        by_key = {self.jobs.key_with_disks(cell): cell for cell in wide}
        for key, cell in by_key.items():
            if not key or snapshots.find(key) is not None or not snapshots.requested_before(key):
                continue
            try:
                with snapshots.exclusive(key):
                    snapshot = snapshots.find(self.jobs.key(cell.guest))
                    if snapshots.find(key) is not None or snapshot is None:
                        continue
                    count = len(cell.each_disk)
                    self.say(f"making a snapshot with {count} disk{'s' * (count > 1)} plugged in")
                    job = self.jobs.job_with_disks(cell, snapshot, save=key)
                    self._make(job, cell.guest)
            except LockedError as error:
                self.say(f"no snapshot with disks is made: {error.message}")

    def _make(self, job: GuestJob, guest: Guest) -> PooledWorker:
        """Run a job that ends with a snapshot; return its worker."""
        worker = self.pool.start(job, guest)
        while worker in self.pool.workers:
            _, event = self.receive()
            if isinstance(event, GuestStarted):
                worker.order(End())
        snapshots.collect_garbage()  # removes an unfinished file of a killed worker
        if isinstance(worker.trouble, FullError):
            raise worker.trouble
        return worker
