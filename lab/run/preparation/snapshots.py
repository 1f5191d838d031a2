"""Saving guests, before a run's cells begin, for all others of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from lab.core.errors import FullError
from lab.host.guest import saved as warm
from lab.host.system import accelerator
from lab.host.system.locks import LockedError
from lab.model.execution.events import GuestStarted
from lab.model.execution.job import End, GuestJob
from lab.model.scenario.guest import Guest
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.worker_pool import PooledWorker, WorkerEvent, WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMaker:
    """Makes the warm states that a run will use."""

    crew: WorkerPool
    kinds: GuestJobs
    say: Callable[[str], None]
    heard: Callable[[], WorkerEvent]
    """The next event of any worker."""

    def guests(self, kinds: Iterable[Guest]) -> set[Guest]:
        """Boot a guest of each kind that has no state and save it; those that could not be."""
        cold = set()
        for kind in kinds:
            key = self.kinds.key(kind)
            if warm.find(key) is not None:
                continue
            try:
                with warm.baking(key):
                    if warm.find(key) is not None:
                        continue
                    self.say("booting a guest once, and saving it for all others of its kind")
                    worker = self._bake(self.kinds.job(kind, None, bake=key), kind)
                    state = warm.find(key)
            except LockedError as error:
                self.say(f"guests boot cold: {error.message}")
                cold.add(kind)
                continue
            if state is None:
                cold.add(kind)
                why = worker.trouble.message if worker.trouble else "no reason was given"
                self.say(f"the guest could not be saved, so each boots cold: {why}")
            else:
                place = self.kinds.platforms[kind.system]
                accelerator.remember_boot(place.accelerator.kind, state.boot_seconds)
        return cold

    def disks(self, *, cold: Set[Guest]) -> None:
        """Save guests with cells' disks plugged in, the second time that a run asks for them.

        It spares each such guest 1.5 seconds under TCG, and takes 7 to make: too much for a
        question that is asked once. One that cannot be saved so has its disks plugged in later.
        Cells share the guest of the one among them that has all their disks. None is saved of the
        kinds that are ``cold``.
        """
        wide = [c for c in self.kinds.wide.values() if c.guest not in cold]
        by_key = {self.kinds.key_with_disks(cell): cell for cell in wide}
        for key, cell in by_key.items():
            if not key or warm.find(key) is not None or not warm.asked_before(key):
                continue
            try:
                with warm.baking(key):
                    state = warm.find(self.kinds.key(cell.guest))
                    if warm.find(key) is not None or state is None:
                        continue
                    disks = len(cell.each_disk)
                    self.say(f"saving a guest with {disks} such disk{'s' * (disks > 1)} plugged in")
                    self._bake(self.kinds.job_with_disks(cell, state, save=key), cell.guest)
            except LockedError as error:
                self.say(f"no guest is saved with its disks: {error.message}")

    def _bake(self, job: GuestJob, kind: Guest) -> PooledWorker:
        """Run a job that ends with its guest being saved."""
        worker = self.crew.start(job, kind)
        while worker in self.crew.workers:
            _, event = self.heard()
            if isinstance(event, GuestStarted):
                worker.order(End())
        if isinstance(worker.trouble, FullError):
            raise worker.trouble
        return worker
