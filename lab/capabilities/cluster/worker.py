"""A host of a cluster: dask's worker, and a cluster worker process for each run.

dask's worker waits in threads, one for each cell that the host may run at once. A cluster worker is
a process of the lab. It ends with dask's worker, and ends its guests first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from lab.capabilities.cluster import files as cluster_files
from lab.capabilities.cluster.model import (
    OUTCOME,
    Assignment,
    CellBack,
    ClusterWorkerEvent,
    ClusterWorkerOrder,
    Finish,
    HostFacts,
    Known,
    Returned,
    RunCell,
    Said,
)
from lab.core.errors import EXIT_DONE, FullError, HostError, LabError, TroubleError
from lab.host.system import paths
from lab.host.system.process import Child, python
from lab.host.system.wire import SILENCE
from lab.model.execution.events import CellStarted, Trouble

_EVENT: TypeAdapter[ClusterWorkerEvent] = TypeAdapter(ClusterWorkerEvent)
STOP_SECONDS: Final = 90.0
"""Timeout in seconds for a cluster worker to end its guests; then it is killed."""
BEGINNINGS: Final = 3
"""Attempts to give a cell to a cluster worker: an idle one may exit just as the cell arrives."""
ANSWER_SECONDS: Final = 60.0
"""Timeout in seconds for one reply of the scheduler."""


# -- called by dask, under these names


def run_cell(run: str, cell: str, shared: bool = False) -> Returned:
    """The task: one cell of one run, on the host that dask chose.

    ``shared``: a sealed cell, for which the clients of other runs may wait too.
    """
    from distributed import get_worker

    hosted: ClusterHost = get_worker().lab_hosted
    return hosted.cell(run, cell, shared=shared)


async def tell_facts(dask_worker: Any) -> dict[str, Any] | None:
    """Return the host's facts as plain JSON, which other versions of the lab can read."""
    hosted: ClusterHost | None = getattr(dask_worker, "lab_hosted", None)
    return hosted.facts.model_dump(mode="json") if hosted else None


async def finish_run(run: str, dask_worker: Any) -> tuple[str, tuple[str, ...]] | None:
    """End a run without further cells; return the host's name, and its calibrations as JSON."""
    hosted: ClusterHost | None = getattr(dask_worker, "lab_hosted", None)
    if hosted is None:
        return None
    return hosted.facts.name, await asyncio.to_thread(hosted.end, run, kindly=True)


async def abandon_run(run: str, dask_worker: Any) -> None:
    """Drop a run at once."""
    hosted: ClusterHost | None = getattr(dask_worker, "lab_hosted", None)
    if hosted is not None:
        await asyncio.to_thread(hosted.end, run, kindly=False)


# -- the host


class Wire:
    """Requests to the scheduler, from threads other than dask's loop."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def _ask(self, operation: str, **words: Any) -> Any:
        call = getattr(self._worker.scheduler, operation)(**words)
        loop = self._worker.loop.asyncio_loop
        try:
            return asyncio.run_coroutine_threadsafe(call, loop).result(ANSWER_SECONDS)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise HostError(f"the scheduler does not answer '{operation}': {error}") from error

    def has(self, image: str, sums: Mapping[str, str]) -> bool:
        """Whether the scheduler's machine has an image with exactly these files."""
        return bool(self._ask("lab_has_image", image=image, sums=dict(sums)))

    def read(self, image: str, file: str, offset: int) -> bytes:
        """Return a piece of an image's file."""
        return bytes(self._ask("lab_read_image", image=image, file=file, offset=offset) or b"")

    def assignment(self, run: str) -> Assignment:
        """Return the run's assignment, which the client stored with the scheduler."""
        text = self._ask("get_metadata", keys=[f"lab-{run}"], default="")
        if not text:
            raise HostError(f"nothing is known of the run '{run}': its client has gone")
        return Assignment.model_validate_json(text)

    def say(self, run: str, event: dict[str, Any]) -> None:
        """Report an event to the clients of a run."""
        self._worker.loop.add_callback(self._worker.log_event, f"lab-{run}", event)

    def leave(self) -> None:
        """Leave the cluster; dask gives this host's cells to others."""
        self._worker.loop.add_callback(self._worker.close_gracefully)


class WorkerHandle:
    """The cluster worker process of one run, from its host's side."""

    def __init__(self, assignment: Assignment, wire: Wire) -> None:
        self._wire = wire
        self._run = assignment.run
        self._waiting: dict[str, Future[CellBack]] = {}
        self._lock = threading.Lock()
        self._over = self._dropped = False
        self.trouble: LabError | None = None
        self.known: tuple[str, ...] = ()
        """Calibrations that it knew when it ended, as JSON."""
        paths.outposts().mkdir(parents=True, exist_ok=True)
        self._log = paths.outposts() / f"{assignment.run}.{os.getpid()}.log"
        self._child = Child(
            python("-m", "lab.capabilities.cluster.worker_process"),
            first_line=assignment.model_dump_json(),
            log=self._log,
            env={},
            silence=SILENCE,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, cell: str) -> Future[CellBack] | None:
        """Request a cell; each cell runs once. ``None``: the process has ended."""
        with self._lock:
            if self._over:
                return None
            if cell not in self._waiting:
                self._waiting[cell] = Future()
                self._tell(RunCell(id=cell))
            return self._waiting[cell]

    def end(self, *, kindly: bool) -> None:
        """End it and its guests: at once, or if ``kindly`` after its cells."""
        with self._lock:
            if not self._over and kindly:
                self._tell(Finish())
        if not kindly:
            self._dropped = True
            self._child.hang_up()
        self._listener.join(STOP_SECONDS)
        self._child.hang_up()
        self._listener.join(STOP_SECONDS)

    def _tell(self, order: ClusterWorkerOrder) -> None:
        self._child.tell(order.model_dump_json())

    def _listen(self) -> None:
        try:
            self._hear()
        finally:  # end the waiting of all callers
            self._ended()

    def _hear(self) -> None:
        for line in self._child.lines():
            try:
                event = _EVENT.validate_json(line)
            except ValidationError:
                self.trouble = TroubleError(
                    f"the cluster worker of the run '{self._run}' printed a line that this host"
                    f" cannot read, and was ended: {line[:120]!r}"
                )
                self._child.hang_up(STOP_SECONDS)
                return
            match event:
                case CellBack():
                    with self._lock:
                        waiting = self._waiting.get(event.cell)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(event)
                case Known():
                    self.known = tuple(c.model_dump_json() for c in event.calibrations)
                case Said() | CellStarted():
                    self._wire.say(self._run, event.model_dump(mode="json"))
                case Trouble():
                    kind = FullError if event.full else TroubleError
                    self.trouble = kind(event.message, hint=event.hint)

    def _ended(self) -> None:
        self._child.hang_up()
        status = self._child.end(STOP_SECONDS)
        with self._lock:
            self._over = True
            left = [f for f in self._waiting.values() if not f.done()]
        if self._dropped:
            self.trouble = DroppedError("nobody waits for the run any more")
        elif self.trouble is None and self._child.fate:
            self.trouble = TroubleError(
                f"the cluster worker of the run '{self._run}' {self._child.fate}"
            )
        elif self.trouble is None and status != EXIT_DONE:
            words = _words_of(self._log)
            self.trouble = TroubleError(
                f"the cluster worker of the run '{self._run}' ended with status {status}",
                hint=f"its last words in '{self._log}': {words[-1] if words else 'none'}",
            )
        if status == EXIT_DONE or self._dropped:
            self._log.unlink(missing_ok=True)
        for future in left:
            future.set_exception(self.trouble or EndedError("its cluster worker had nothing to do"))


def _words_of(log: Path) -> list[str]:
    """Return the lines of a log; none if it cannot be read."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []


class EndedError(TroubleError):
    """An idle cluster worker ended just as a cell arrived."""


class DroppedError(TroubleError):
    """The host ended a cluster worker: its run is over, or the host leaves."""


class ClusterHost:
    """Runs cells on this host for dask's worker."""

    def __init__(self, facts: HostFacts, wire: Wire) -> None:
        self.facts = facts
        self._wire = wire
        self._handles: dict[str, Future[WorkerHandle]] = {}
        """By run; pending while its images are fetched."""
        self._lock = threading.Lock()
        self._leaving = False
        self._abandoned: set[str] = set()
        """Runs that were given up; cells of them may still arrive."""
        self.why = ""
        """Why the host leaves the cluster; empty: it stays."""

    def cell(self, run: str, cell: str, *, shared: bool = False) -> Returned:
        """Run one cell and return its files. A host that fails by itself leaves the cluster.

        A ``shared`` cell of an abandoned run is started again, if dask still has a client that
        waits for it.
        """
        try:
            for _ in range(BEGINNINGS):
                handle = self._handle(run, shared=shared)
                asked = handle.ask(cell)
                if asked is not None:
                    with contextlib.suppress(EndedError):
                        return self._packed(asked.result())
                self._forget(run, handle)
            raise TroubleError(
                f"cluster workers of the run '{run}' ended without running the cell '{cell}'"
            )
        except DroppedError as error:
            if not self._leaving and not shared:
                raise
            from distributed import Reschedule

            raise Reschedule from error
        except (LabError, OSError) as error:
            self.why = str(error)
            self._wire.say(run, Said(text=f"{self.facts.name} leaves: {error}").model_dump())
            self._wire.leave()
            raise TroubleError(f"on the host '{self.facts.name}': {error}") from error

    def end(self, run: str, *, kindly: bool) -> tuple[str, ...]:
        """End a run; return JSON of the calibrations known then."""
        with self._lock:
            started = self._handles.pop(run, None)
            if not kindly:
                self._abandoned.add(run)
        if started is None or not started.done() or started.exception() is not None:
            return ()
        handle = started.result()
        handle.end(kindly=kindly)
        return handle.known

    def end_all(self) -> None:
        """End every run at once; dask reassigns their cells."""
        self._leaving = True
        for run in list(self._handles):
            self.end(run, kindly=False)

    def _handle(self, run: str, *, shared: bool = False) -> WorkerHandle:
        """Return the run's cluster worker; start it after fetching its images.

        One thread does that for a run. The lock is not held meanwhile: other runs go on.
        """
        with self._lock:
            if self._leaving or (run in self._abandoned and not shared):
                raise DroppedError("nobody waits for the run any more")
            started = self._handles.get(run)
            mine = started is None
            if started is None:
                started = self._handles[run] = Future()
        if mine:
            try:
                self._start(run, started)
            except BaseException as error:
                with self._lock:
                    if self._handles.get(run) is started:
                        del self._handles[run]
                started.set_exception(error)
        return started.result()

    def _start(self, run: str, started: Future[WorkerHandle]) -> None:
        """Fetch a run's images, and start its cluster worker if the run is still wanted."""
        offered = {"offered": self.facts.disks}
        assignment = self._wire.assignment(run).model_copy(update=offered)
        self._require_same(assignment.programs)
        for manifest in assignment.images.values():
            cluster_files.fetch_image(self._wire, manifest, self._sayer(run))
        with self._lock:
            if self._leaving or self._handles.get(run) is not started:
                raise DroppedError("nobody waits for the run any more")
            started.set_result(WorkerHandle(assignment, self._wire))

    def _forget(self, run: str, handle: WorkerHandle) -> None:
        """Forget a cluster worker that has ended, so that the next cell starts another."""
        with self._lock:
            started = self._handles.get(run)
            if started is not None and started.done() and started.result() is handle:
                del self._handles[run]

    def _require_same(self, programs: Mapping[str, str]) -> None:
        """``HostError``: the client has another lab. The host may have joined after the client's
        check."""
        mine = self.facts.programs
        if wrong := [
            f"{n} {mine.get(n)}, not {v}" for n, v in programs.items() if mine.get(n) != v
        ]:
            raise HostError(f"the run's client is of another version: here is {', '.join(wrong)}")

    def _sayer(self, run: str) -> Callable[[str], None]:
        return lambda text: self._wire.say(
            run, Said(text=f"{self.facts.name}: {text}").model_dump()
        )

    def _packed(self, back: CellBack) -> Returned:
        files = _files(Path(back.directory))
        if OUTCOME not in files:
            raise HostError(f"the finished cell '{back.cell}' has gone from '{back.directory}'")
        return Returned(
            cell=back.cell,
            host=self.facts.name,
            files=files,
            attempts=tuple(_files(Path(a)) for a in back.attempts),
            calibrations=tuple(c.model_dump_json() for c in back.calibrations),
        )


def _files(directory: Path) -> dict[str, bytes]:
    """Return every complete file below a directory, by relative path."""
    found: Iterable[Path] = sorted(directory.rglob("*"))
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in found
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    }
