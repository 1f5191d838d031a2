"""The worker: one process, one guest, its cells one after another.

``python -m lab.worker`` reads a :class:`GuestJob` as one line of JSON from standard input and tells
what happens as lines of JSON on standard output. Standard input stays open as its lifeline: when
it closes, because the lab that started the worker is gone however it went, the worker takes its
guest down and ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter

from lab.errors import EXIT_DONE, EXIT_TROUBLE, GuestError, LabError
from lab.host import clock, guests
from lab.host.bench import LiveBench
from lab.host.guests import GuestRecord
from lab.model.events import (
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestGone,
    GuestKept,
    GuestStarted,
    StepStarted,
    Trouble,
)
from lab.model.job import CellJob, GuestJob
from lab.model.measurement import Check
from lab.model.procedure import GuestCommand, Step, Timed
from lab.model.result import Outcome, PhaseSeconds
from lab.run import Undo, label_of, run_procedure

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class StopWorker(BaseException):
    """Somebody wants the worker to end: a signal, or the lifeline."""


class _Stopwatch:
    """Where a cell's time goes."""

    def __init__(self) -> None:
        self.array = self.workloads = self.teardown = 0.0
        self._since = clock.now()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap to a phase."""
        now = clock.now()
        setattr(self, phase, getattr(self, phase) + now - self._since)
        self._since = now

    def seconds(self, boot: float) -> PhaseSeconds:
        """The phases and their sum."""
        total = boot + self.array + self.workloads + self.teardown
        return PhaseSeconds(
            boot=boot,
            array=self.array,
            workloads=self.workloads,
            teardown=self.teardown,
            total=total,
        )


class Worker:
    """Runs one job."""

    def __init__(self, job: GuestJob, out: int) -> None:
        self.job = job
        self._out = out
        self._began = clock.now()
        self._boot = 0.0

    def emit(self, event: Event) -> None:
        """Tell one thing; a lab that no longer listens is no reason to stop cleaning up."""
        told = event.model_copy(update={"at": round(clock.now() - self._began, 3)})
        line = _EVENT.dump_json(told) + b"\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._out, line)

    def work(self) -> int:
        """Boot, run every cell, take down; the exit status."""
        key = Path(self.job.private_key).read_text(encoding="ascii")
        record = guests.create(
            guest=self.job.guest,
            scenario=self.job.scenario,
            image=self.job.image,
            host_key=self.job.host_key,
        )
        undo = Undo()
        undo.add(guests.remove, record.path)
        bench = LiveBench(record, key)
        status, kept = EXIT_TROUBLE, False
        try:
            try:
                started = clock.now()
                self._environment(bench, undo)
                self._boot = clock.now() - started
                self.emit(GuestStarted(guest=self.job.guest, seconds=self._boot))
                status, kept = self._cells(bench)
            except LabError as error:
                status = error.exit_status
                self.emit(Trouble(message=error.message, hint=error.hint, exit_status=status))
            finally:
                _deaf()
        except StopWorker:  # also where it came in the last moment before the worker went deaf
            kept = False
        if kept:
            self._keep(bench)
            return status
        left = "; ".join(e.message for e in undo.unwind())
        self.emit(GuestGone(guest=self.job.guest, left=left))
        return status

    def _environment(self, bench: LiveBench, undo: Undo) -> None:
        """The guest's own procedure; its captures go beside each cell's raw output."""
        run_procedure(
            self.job.procedure,
            bench,
            undo,
            self._save_everywhere,
            lambda step: self.emit(StepStarted(cell=None, label=label_of(step))),
            lambda check: self.emit(Checked(cell=None, check=check)),
        )

    def _save_everywhere(self, name: str, text: str) -> None:
        for cell in self.job.cells:
            _save(Path(cell.directory), name, text)

    def _cells(self, bench: LiveBench) -> tuple[int, bool]:
        """Every cell; the first that fails ends it, for its guest is not to be trusted."""
        for number, cell in enumerate(self.job.cells):
            last = number == len(self.job.cells) - 1
            finished = self._cell(bench, cell, boot=self._boot if number == 0 else 0.0, last=last)
            self.emit(finished)
            if finished.outcome is not Outcome.DONE:
                return EXIT_DONE, False
        return EXIT_DONE, self.job.keep

    def _cell(self, bench: LiveBench, cell: CellJob, *, boot: float, last: bool) -> CellFinished:
        self.emit(CellStarted(cell=cell.id))
        undo = Undo()
        watch = _Stopwatch()
        outcome, reason = Outcome.DONE, ""
        phase = "array"

        def on_step(step: Step) -> None:
            nonlocal phase
            watch.lap(phase)
            counting = isinstance(step, GuestCommand) and step.capture.endswith(".before")
            if isinstance(step, Timed) or counting:
                phase = "workloads"
            expected = step.expected_seconds if isinstance(step, Timed) else None
            self.emit(StepStarted(cell=cell.id, label=label_of(step), expected_seconds=expected))

        def on_check(check: Check) -> None:
            self.emit(Checked(cell=cell.id, check=check))

        def save(name: str, text: str) -> None:
            _save(Path(cell.directory), name, text)

        try:
            run_procedure(cell.procedure, bench, undo, save, on_step, on_check)
        except LabError as error:
            lost = isinstance(error, GuestError)
            outcome, reason = (Outcome.LOST if lost else Outcome.FAILED), str(error)
        watch.lap(phase)
        if last or outcome is Outcome.LOST:
            undo.forget()  # goes with the guest, or stays with it
        else:
            errors = undo.unwind()
            if errors and outcome is Outcome.DONE:
                outcome = Outcome.FAILED
                reason = f"it could not be taken apart: {errors[0].message}"
        if outcome is not Outcome.DONE:
            save("console.txt", guests.console_tail(bench.record.path, lines=200))
        watch.lap("teardown")
        return CellFinished(
            cell=cell.id, outcome=outcome, reason=reason, seconds=watch.seconds(boot)
        )

    def _keep(self, bench: LiveBench) -> None:
        """Leave the guest to whoever asked for it."""
        bench.release()
        record: GuestRecord = bench.record
        cell = self.job.cells[-1]
        guests.own(guests.change(record, target=cell.target, cell=cell.id), 0)
        self.emit(GuestKept(guest=self.job.guest))


def _save(directory: Path, name: str, text: str) -> None:
    raw = directory / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    part = raw / f".{name}.part"
    part.write_text(text, encoding="utf-8")
    part.rename(raw / name)


def _deaf() -> None:
    """Cleaning up is not interrupted."""
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    _deaf()
    raise StopWorker


def _watch_lifeline() -> None:
    """Standard input closes when the lab that started this worker is gone."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the job that comes on standard input."""
    # Standard output carries events only: whatever a library prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(os.dup(0), "rb", buffering=0) as file:
        line = file.readline()  # unbuffered: what comes after it is the lifeline's
    if not line.endswith(b"\n"):
        return EXIT_DONE
    job = GuestJob.model_validate_json(line)
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, _stop)
    threading.Thread(target=_watch_lifeline, daemon=True).start()
    return Worker(job, out).work()


if __name__ == "__main__":
    sys.exit(main())
