"""The worker process: one guest, which runs cells one after another.

``python -m lab.run.worker`` reads a :class:`GuestJob` as one line of JSON from standard input, then
orders, one per line, and reports events as lines of JSON on standard output. Standard input closes
when the main process exits; then the worker ends its guest and exits.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, cast

from pydantic import TypeAdapter

from lab.core.errors import EXIT_DONE, EXIT_TROUBLE, FullError, LabError, SilentError, TroubleError
from lab.host.guest import registry as guests
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual.sealed import SealedBackend
from lab.host.guest.virtual.unsealed import UnsealedBackend
from lab.host.system import clock, network, wire
from lab.host.system.cpu_slots import CpuSlot, Foreground
from lab.model.execution.events import (
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestGone,
    GuestKept,
    GuestStarted,
    Notice,
    StepStarted,
    Trouble,
)
from lab.model.execution.job import CONSOLE, CellJob, End, GuestJob, Keep, Order
from lab.model.execution.procedure import (
    Backend,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    PassDisk,
    Pause,
    PowerCycle,
    SealDisks,
    Step,
    Timed,
    WaitFor,
)
from lab.model.result.document import CellClock, Outcome, PhaseSeconds
from lab.run.steps import Undo, run_procedure
from lab.store.runs import save_raw

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_ORDER: TypeAdapter[Order] = TypeAdapter(Order)


CLEANING: Final = 90.0
"""Timeout in seconds for ending the guest; then the worker kills QEMU by its process id."""


class StopWorker(BaseException):
    """Raised by a signal, or when standard input closes."""


class _Stopwatch:
    """Measures a cell's seconds by phase."""

    def __init__(self) -> None:
        self.array = self.workloads = self.teardown = self.waiting = 0.0
        self._since = clock.now()

    def lap(self, phase: str) -> None:
        """Add the time since the previous lap to a phase."""
        now = clock.now()
        setattr(self, phase, getattr(self, phase) + now - self._since)
        self._since = now

    def seconds(self, boot: float) -> PhaseSeconds:
        """Return the phases and their sum."""
        total = boot + self.array + self.workloads + self.teardown + self.waiting
        return PhaseSeconds(
            boot=boot,
            array=self.array,
            workloads=self.workloads,
            teardown=self.teardown,
            waiting=self.waiting,
            total=total,
        )


class Worker:
    """Runs one job."""

    def __init__(
        self, job: GuestJob, teller: wire.Teller, orders: SimpleQueue[Order | LabError]
    ) -> None:
        self.job = job
        self._teller = teller
        self._orders = orders
        self._began = clock.now()
        self._boot = 0.0
        self._captured: dict[str, str] = dict(job.captures)
        self._cell_job: CellJob | None = None
        self._slot = Foreground() if job.foreground else CpuSlot()
        self._assembled = Undo()
        """Undoes the last cell."""
        self._booted = Undo()
        """Undoes the guest that the last cell booted."""
        self._whole = False
        """The last cell finished, and its guest still responds."""

    def emit(self, event: Event) -> None:
        """Report an event. Cleaning up continues even if the main process no longer reads."""
        told = event.model_copy(update={"at": round(clock.now() - self._began, 3)})
        self._teller.tell(_EVENT.dump_json(told))

    def _tell_trouble(self, error: LabError) -> None:
        self.emit(
            Trouble(
                message=error.message,
                hint=error.hint,
                exit_status=error.exit_status,
                full=isinstance(error, FullError),
                silent=isinstance(error, SilentError),
            )
        )

    def work(self) -> int:
        """Start the guest, follow orders, end the guest; return the exit status."""
        undo = Undo()
        undo.add(guests.remove, guests.directory_of(self.job.guest))
        bench: LiveBackend | SealedBackend | None = None
        undo.add(self._take_down)
        status, kept = EXIT_TROUBLE, False
        try:
            try:
                bench = self._move_in()
                if self.job.sealed is None:
                    assert not isinstance(bench, SealedBackend)
                    self._slot.acquire()
                    started = clock.now()
                    self._bring_up(bench, undo)
                    self._boot = clock.now() - started
                    self._slot.release(bench.record.pid)
                self.emit(GuestStarted(guest=self.job.guest, seconds=self._boot))
                kept = self._follow(bench)
                status = EXIT_DONE
            except LabError as error:
                status = error.exit_status
                self._tell_trouble(error)
            except Exception as error:  # the guest is removed whatever happens
                traceback.print_exc()
                why = f"{type(error).__name__}: {error}"
                self._tell_trouble(
                    TroubleError(f"bug in the lab: the worker of '{self.job.guest}': {why}")
                )
            finally:
                wire.ignore_signals()
        except StopWorker:  # also a signal that arrived just before the worker ignored them
            kept = False
        if kept and bench is not None and not isinstance(bench, SealedBackend):
            self._keep(bench)
            return status
        errors = self._give_back()
        cleaned = threading.Event()
        threading.Thread(target=self._end_by_force, args=(cleaned,), daemon=True).start()
        left = "; ".join(e.message for e in (*errors, *undo.unwind()))
        cleaned.set()
        self.emit(GuestGone(guest=self.job.guest, left=left))
        return status

    def _end_by_force(self, cleaned: threading.Event) -> None:
        """Exit if cleaning up takes too long, after killing QEMU by its process id."""
        countdown = clock.Countdown(clock.limit(CLEANING))
        while countdown.left() > 0:
            if cleaned.wait(clock.LOOK):
                return
        left = f"cleaning up had not ended after {countdown.seconds:.0f} s"
        try:
            guests.remove(guests.directory_of(self.job.guest))
        except (LabError, OSError) as error:
            left += f"; {error}"
        self.emit(GuestGone(guest=self.job.guest, left=left))
        self._teller.close()
        wire.leave(EXIT_TROUBLE)

    def _move_in(self) -> LiveBackend | SealedBackend:
        """Create the guest's directory and record; return the backend."""
        path = self.job.private_key
        key = Path(path).read_text(encoding="ascii") if path or self.job.sealed is None else ""
        record = guests.create(
            guest=self.job.guest,
            scenario=self.job.scenario,
            image=self.job.image,
            host_key=self.job.host_key,
            warm=self.job.warm,
            unsealed=self.job.unsealed,
        )
        if self.job.sealed is not None and not self.job.unsealed:
            return SealedBackend(
                record,
                self.job.sealed,
                tell=self._tell_step,
                notice=self._notice,
                watch=self.emit,
                cold=self.job.cold,
            )
        if self.job.sealed is not None:
            unsealed = UnsealedBackend(
                *(record, key, self.job.sealed),
                boot=lambda: self._boot_again(unsealed),
                scale=self.job.scale,
                tell=self.emit,
            )
            return unsealed
        return LiveBackend(record, key, scale=self.job.scale, tell=self.emit)

    def _tell_step(self, step: Step | str) -> None:
        """Report a step of a sealed guest, or its preparation."""
        if self._cell_job is not None:
            label = step if isinstance(step, str) else step.progress
            self.emit(StepStarted(cell=self._cell_job.id, label=label))

    def _notice(self, message: str) -> None:
        self.emit(Notice(cell=self._cell_job.id if self._cell_job else None, message=message))

    def _boot_again(self, bench: UnsealedBackend) -> None:
        """Boot a guest in virtual time for a cell, after ending the previous cell's guest."""
        self._take_down()
        run_procedure(
            *(self.job.procedure, bench, self._booted),
            *(self._captured.__setitem__, self._tell_step, lambda _check: None),
        )

    def _take_down(self) -> None:
        """End the guest that the previous cell booted."""
        if errors := self._booted.unwind():
            raise errors[0]

    def _bring_up(self, bench: LiveBackend, undo: Undo) -> None:
        """Run the guest's procedure; its raw output is stored with each cell's."""

        def on_step(step: Step) -> None:
            self._slot.cover(bench.record.pid)
            self.emit(StepStarted(cell=None, label=step.progress))

        run_procedure(
            self.job.procedure,
            bench,
            undo,
            self._captured.__setitem__,
            on_step,
            lambda check: self.emit(Checked(cell=None, check=check)),
        )

    def _follow(self, bench: LiveBackend | SealedBackend) -> bool:
        """Follow orders; return whether to leave the guest running.

        A cell is undone only when the next one begins, so that the last array can be kept. A last
        cell with real disks is undone too, so that they are returned blank. The guest ends after a
        cell that is not done.
        """
        boot = self._boot
        while True:
            order = self._orders.get()
            match order:
                case LabError():
                    raise order
                case CellJob():
                    self._cell_job = order
                    self._whole = False
                    if isinstance(bench, SealedBackend):
                        finished = self._sealed_cell(bench, order)
                    elif isinstance(bench, UnsealedBackend):
                        finished = self._unsealed_cell(bench, order)
                    else:
                        finished = self._cell(bench, order, self._assembled, boot)
                    self._whole = finished.outcome is not Outcome.LOST
                    boot = 0.0
                    self.emit(finished)
                    if finished.outcome is not Outcome.DONE:
                        return False
                case Keep():
                    return self._cell_job is not None
                case End():
                    return False

    def _give_back(self) -> list[LabError]:
        """Undo the previous cell if it has real disks."""
        steps = self._cell_job.procedure.steps if self._cell_job else ()
        if not self._whole or not any(isinstance(s, PassDisk) for s in steps):
            return []
        return self._assembled.unwind()

    def _cell(
        self, bench: LiveBackend, cell: CellJob, assembled: Undo, boot: float
    ) -> CellFinished:
        """Undo the previous cell and run this one; ``assembled`` undoes it later."""
        self.emit(CellStarted(cell=cell.id))
        watch = _Stopwatch()
        self._slot.acquire(bench.record.pid)
        watch.lap("waiting")
        errors = assembled.unwind()
        watch.lap("teardown")
        phase, slot_use = "array", SlotUse()
        bench.expect_io_within(cell.patience)

        def on_step(step: Step) -> None:
            nonlocal phase
            watch.lap(phase)
            if isinstance(step, Timed | BeginWorkload):
                phase = "workloads"
            match slot_use.at(step):
                case "release":
                    self._slot.release(bench.record.pid)
                case "acquire":
                    self._slot.acquire(bench.record.pid)
                    watch.lap("waiting")
                case "leave":
                    pass
            expected = step.expected_seconds if isinstance(step, Timed) else None
            self.emit(StepStarted(cell=cell.id, label=step.progress, expected_seconds=expected))

        for name, text in self._captured.items():
            save_raw(Path(cell.directory), name, text)

        def do() -> None:
            if errors:
                raise errors[0]
            self._run(cell, bench, assembled, on_step)

        outcome, reason = self._outcome(bench, cell, do)
        watch.lap(phase)
        self._slot.release(bench.record.pid)
        return CellFinished(
            cell=cell.id, outcome=outcome, reason=reason, seconds=watch.seconds(boot)
        )

    def _run(
        self, cell: CellJob, bench: Backend, assembled: Undo, on_step: Callable[[Step], None]
    ) -> None:
        """Run a cell's procedure; write its raw output to the cell's directory."""
        run_procedure(
            cell.procedure,
            bench,
            assembled,
            partial(save_raw, Path(cell.directory)),
            on_step,
            lambda check: self.emit(Checked(cell=cell.id, check=check)),
        )

    def _outcome(
        self, bench: LiveBackend | SealedBackend, cell: CellJob, do: Callable[[], None]
    ) -> tuple[Outcome, str]:
        """Run a cell with ``do``; return its outcome and the reason. ``FullError`` is not caught.

        If the cell is not done, the end of the console log, its disks' superblocks and the kernel
        log are stored.
        """
        try:
            do()
        except FullError:
            raise
        except LabError as error:
            lost = bench.cause(error)
            if lost is None or isinstance(bench, SealedBackend):
                for name, text in bench.evidence().items():
                    save_raw(Path(cell.directory), name, text)
            console = guests.console_tail(bench.record.path, lines=200)
            save_raw(Path(cell.directory), CONSOLE, console)
            return (Outcome.LOST if lost else Outcome.FAILED), str(lost or error)
        return Outcome.DONE, ""

    def _sealed_cell(self, bench: SealedBackend, cell: CellJob) -> CellFinished:
        """Run a cell in a sealed guest; it reports nothing before its end."""
        self.emit(CellStarted(cell=cell.id))
        watch = _Stopwatch()

        def on_step(step: Step) -> None:
            if isinstance(step, SealDisks):
                self._tell_step(step)

        def do() -> None:
            bench.take(cell)
            self._run(cell, cast(Backend, bench), Undo(), on_step)
            bench.check_inputs(cell.inputs)

        try:
            outcome, reason = self._outcome(bench, cell, do)
        finally:
            bench.destroy_guest()
        if disturbed(cell):  # a warning of the kernel is a finding, however the cell ended
            save_raw(Path(cell.directory), CONSOLE, bench.log)
        watch.lap("workloads")
        return CellFinished(
            cell=cell.id,
            outcome=outcome,
            reason=reason,
            seconds=watch.seconds(0.0),
            guest_seconds=bench.guest_seconds,
            clock=CellClock.SEALED,
            digest=bench.digest,
        )

    def _unsealed_cell(self, bench: UnsealedBackend, cell: CellJob) -> CellFinished:
        """Boot a guest with the cell's disks, run the cell, and suspend the guest.

        It needs no CPU slot: the guest's clock stops while the guest waits for a CPU.
        """
        self.emit(CellStarted(cell=cell.id))
        watch = _Stopwatch()
        phase = "array"

        def on_step(step: Step) -> None:
            nonlocal phase
            watch.lap(phase)
            if isinstance(step, Timed | BeginWorkload):
                phase = "workloads"
            bench.at(step)
            self._tell_step(step)

        def do() -> None:
            self._run(cell, bench, Undo(), on_step)
            bench.suspend()

        bench.take(cell)
        outcome, reason = self._outcome(bench, cell, do)
        watch.lap(phase)
        watch.array -= bench.boot_seconds
        return CellFinished(
            cell=cell.id,
            outcome=outcome,
            reason=reason,
            seconds=watch.seconds(bench.boot_seconds),
            clock=CellClock.VIRTUAL,
        )

    def _keep(self, bench: LiveBackend) -> None:
        """Leave the guest running without an owner."""
        bench.leave_up()
        bench.release()
        record: GuestRecord = bench.record
        cell = self._cell_job
        assert cell is not None
        guests.own(guests.change(record, target=cell.target, cell=cell.id), 0)
        self.emit(GuestKept(guest=self.job.guest))


def disturbed(cell: CellJob) -> bool:
    """Return whether a seed disturbs the cell's guests."""
    return any(isinstance(step, SealDisks) and step.disturb for step in cell.procedure.steps)


@dataclass(slots=True)
class SlotUse:
    """Tells for each step whether it needs a CPU slot (``lab.host.system.cpu_slots``)."""

    under_way: bool = False
    """A workload runs, so a fault does not wait for a slot."""

    def at(self, step: Step) -> Literal["release", "acquire", "leave"]:
        """Return the change of the slot before a step."""
        waits = Timed | BeginWorkload | Pause | EndWorkload | WaitFor
        begins, ends = isinstance(step, BeginWorkload), isinstance(step, EndWorkload | PowerCycle)
        in_the_middle, self.under_way = self.under_way, begins or (self.under_way and not ends)
        if isinstance(step, waits) or (isinstance(step, GuestCommand) and step.waits):
            return "release"  # the workload waits for disks, and so does md's sync
        return "leave" if in_the_middle else "acquire"


def main() -> int:
    """Run the job on standard input; return the exit status."""
    out, lifeline, line = wire.opened()
    if not line.endswith(b"\n"):
        return EXIT_DONE
    job = GuestJob.model_validate_json(line)
    if job.own_network:
        network.leave()  # QEMU is started by this process
    wire.stop_with(StopWorker)
    orders: SimpleQueue[Order | LabError] = SimpleQueue()
    stopped = Trouble(
        message=f"the lab has not read what the worker of the guest '{job.guest}' tells for"
        f" {clock.limit(wire.UNREAD):.0f} s: the guest was taken down",
        hint="a lab that is stopped (Ctrl-Z) keeps its guests for so long",
        exit_status=EXIT_TROUBLE,
        unread=True,
    )
    stuck = Trouble(
        message=f"the worker of the guest '{job.guest}' has computed for"
        f" {clock.limit(wire.COMPUTES):.0f} s without a result, and was ended",
        hint="this is a bug in the lab, or the guest printed what the lab cannot read",
        exit_status=EXIT_TROUBLE,
    )
    teller = wire.Teller(out, _EVENT.dump_json(stopped), _EVENT.dump_json(stuck))

    def take(order: bytes) -> None:
        orders.put(_ORDER.validate_json(order))

    threading.Thread(target=wire.follow, args=(lifeline, take, orders.put), daemon=True).start()
    status = Worker(job, teller, orders).work()
    teller.close()
    return status


if __name__ == "__main__":
    wire.leave(main())
