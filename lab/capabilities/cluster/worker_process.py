"""The cluster worker: one process on a host, which runs cells of one run as they arrive.

``python -m lab.capabilities.cluster.worker_process`` reads an :class:`Assignment` as one line of
JSON from standard input, then orders, one per line, and reports events as lines of JSON on
standard output. It schedules like a local run, with the same executor. When standard input closes,
it ends its guests and exits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from lab.capabilities.cluster.files import find_image
from lab.capabilities.cluster.model import (
    Assignment,
    CellBack,
    ClusterWorkerEvent,
    ClusterWorkerOrder,
    Finish,
    Known,
    RunCell,
    Said,
)
from lab.compile.scenario.compiler import Compiled, compile_document
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import (
    EXIT_DONE,
    EXIT_STOPPED,
    EXIT_TROUBLE,
    FullError,
    HostError,
    LabError,
    TroubleError,
)
from lab.core.yaml import Document, Path_
from lab.host import images
from lab.host.guest.libvirt import hypervisor
from lab.host.system import accelerator, clock, leftovers, paths, wire
from lab.model.execution.events import CellStarted, Event, Trouble
from lab.model.image.manifest import directory_name
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import System
from lab.run.environment import host_facts, image_facts
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.scheduling.cell_queue import CellQueue
from lab.run.scheduling.executor import Execution
from lab.store.runs import RunStore, StoredCell, StoredRun, now

_ORDER: TypeAdapter[ClusterWorkerOrder] = TypeAdapter(ClusterWorkerOrder)
_EVENT: TypeAdapter[ClusterWorkerEvent] = TypeAdapter(ClusterWorkerEvent)


class _Stop(BaseException):
    """Raised by a signal, or when standard input closes."""


@dataclass(slots=True, kw_only=True)
class ClusterWorker:
    """One run on this host."""

    assignment: Assignment
    teller: wire.Teller

    def tell(self, event: ClusterWorkerEvent) -> None:
        """Report an event."""
        self.teller.tell(_EVENT.dump_json(event))

    def work(self, lifeline: IO[bytes]) -> int:
        """Run cells until no more arrive; return the exit status."""
        directory = paths.outposts() / f".{self.assignment.run}.{os.getpid()}"
        try:
            leftovers.remove(paths.outposts().glob(".*"))
            self._work(directory, lifeline)
        except LabError as error:
            full = isinstance(error, FullError)
            status = error.exit_status
            self.tell(
                Trouble(message=error.message, hint=error.hint, exit_status=status, full=full)
            )
            return status
        except _Stop:
            return EXIT_STOPPED
        finally:
            wire.ignore_signals()
            shutil.rmtree(directory, ignore_errors=True)
        return EXIT_DONE

    def _work(self, directory: Path, lifeline: IO[bytes]) -> None:
        given = self.assignment
        compiled = _compiled(given)
        platforms = {c.guest.system: self._place(c.guest.system) for c in compiled.cells}
        platforms.setdefault(compiled.base.guest.system, self._place(compiled.base.guest.system))
        store = RunStore.create(given.scenario, json.dumps(given.document), directory)
        store.save_run(_stored_run(store, compiled, next(iter(platforms.values()))))
        cells = {cell_id(c): c for c in compiled.cells if _offered(c, given.offered)}

        def watch(_guest: str, event: Event | None) -> None:
            if isinstance(event, CellStarted) and event.cell in cells:
                self.tell(event)

        queue = CellQueue(finished=lambda cell: self.tell(_back(store, cell)))
        execution = Execution(
            store=store,
            compiled=compiled,
            platforms=platforms,
            watch=watch,
            say=lambda text: self.tell(Said(text=text)),
            options=RunOptions(jobs=given.jobs, cold=given.cold, erase=given.erase),
            queue=queue,
        )

        def take(line: bytes) -> None:
            match _ORDER.validate_json(line):
                case RunCell() as order if order.id in cells:
                    queue.put(cells[order.id])
                case RunCell() as order:
                    refuse(_unknown(order.id))
                case Finish():
                    queue.close()

        def refuse(error: TroubleError) -> None:
            self.tell(Trouble(message=error.message, exit_status=EXIT_STOPPED))
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wire.follow, args=(lifeline, take, refuse), daemon=True).start()
        execution.run(tuple(cells.values()))
        self.tell(Known(calibrations=store.load_run().calibrations))

    def _place(self, system: System) -> Platform:
        """Like `platforms.prepare`, but with exactly the client's image."""
        emulator = accelerator.emulator()
        hypervisor.require()
        wanted = self.assignment.images[image_key(system)]
        name = directory_name(wanted.name, wanted.digest)
        image = find_image(name)
        if image is None:
            raise HostError(f"the image '{name}' has gone from this host")
        images.verify(image)
        found = accelerator.find(image.kernel)
        if found.kind != self.assignment.accelerator:
            raise HostError(
                f"this host runs '{name}' with {found.kind.upper()}, and the run is to be made "
                f"with {self.assignment.accelerator.upper()}: {found.reason}"
            )
        return Platform(accelerator=found, image=image, emulator=emulator)


def image_key(system: System) -> str:
    """Return a key for an image with its replaced kernel and mdadm, if any."""
    return "+".join(part for part in system if part)


def _compiled(given: Assignment) -> Compiled:
    """Compile the client's scenario; equal data give equal cells."""
    path = Path(f"{given.scenario}.yaml")
    overridden: dict[Path_, str] = {tuple(name.split(".")): name for name in given.overridden}
    document = Document(source=str(path), data=given.document, overrides=overridden)
    compiled = compile_document(path, document, trials=given.trials)
    return compiled.with_seeds(given.seeds) if given.seeds else compiled


def _offered(cell: Cell, disks: Sequence[str]) -> bool:
    """Return whether this host offers all real disks of a cell."""
    return all(disk.device is None or disk.device in disks for disk in cell.disks)


def _stored_run(store: RunStore, compiled: Compiled, place: Platform) -> StoredRun:
    return StoredRun(
        id=store.id,
        scenario=compiled.name,
        title=compiled.scenario.title,
        question=compiled.scenario.question,
        started=now(),
        environment=host_facts(place.accelerator) | {"image": image_facts(place.image)},
        cells=tuple(
            StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
            for c in compiled.cells
        ),
        claims=(),
    )


def _back(store: RunStore, cell: str) -> CellBack:
    return CellBack(
        cell=cell,
        directory=str(store.cell_directory(cell)),
        attempts=tuple(str(a) for a in store.attempts(cell)),
        calibrations=store.load_run().calibrations,
    )


def _unknown(cell: str) -> TroubleError:
    return TroubleError(
        f"this host has no cell '{cell}' of the scenario: the labs are not the same, or the cell "
        "wants a real disk that is not offered here"
    )


def main() -> int:
    """Run the assignment on standard input; return the exit status."""
    out, lifeline, line = wire.opened()
    if not line.endswith(b"\n"):
        return EXIT_DONE
    assignment = Assignment.model_validate_json(line)
    wire.stop_with(_Stop)
    unread = Trouble(
        message=f"nobody has read what the cluster worker of the run '{assignment.run}' tells for"
        f" {clock.limit(wire.UNREAD):.0f} s: its guests were taken down",
        exit_status=EXIT_STOPPED,
    )
    stuck = Trouble(
        message=f"the cluster worker of the run '{assignment.run}' has computed for"
        f" {clock.limit(wire.COMPUTES):.0f} s without a result, and was ended",
        exit_status=EXIT_TROUBLE,
    )
    teller = wire.Teller(out, _EVENT.dump_json(unread), _EVENT.dump_json(stuck))
    status = ClusterWorker(assignment=assignment, teller=teller).work(lifeline)
    teller.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
