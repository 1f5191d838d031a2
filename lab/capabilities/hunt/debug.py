"""Runs a stored sealed cell again up to a time of its guest's clock, and shows the guest there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drive import requests
from lab.capabilities.hunt.model import Debugged
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.program import trials
from lab.compile.guest.virtual_time import is_sealed
from lab.core.errors import InputError
from lab.host.guest import registry as guests
from lab.host.guest.virtual.stopping import Stopped, StoppingBackend
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import files
from lab.host.system.process import uninterrupted
from lab.model.execution.job import CONSOLE, CellJob
from lab.model.execution.procedure import SealDisks, SealedDisk
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Engine
from lab.run.preparation.platforms import Platform
from lab.run.task import need_of
from lab.run.worker_pool import Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to do with the stopped guest."""

    nanoseconds: int
    """Time of the guest's clock at which it stops."""
    log: Path | None = None
    """File for the log of requests."""
    core: Path | None = None
    """File for the guest's memory."""
    gdb: Callable[[Path], None] | None = None
    """Called with the socket on which QEMU waits for gdb; the guest is kept until gdb ends it."""


def debug(
    run: str,
    cell: Cell,
    seed: int,
    stored_log: str,
    place: Platform,
    wanted: Wanted,
    *,
    cold: bool,
    say: Say,
) -> Debugged:
    """Run the trial with this seed up to a time; ``InputError``: it ends before.

    ``stored_log``: the kernel's messages of the stored cell; empty: they were not kept.
    """
    if not is_sealed(cell):
        raise InputError("the cell ran in real time: only a sealed guest stops at a time")
    procedure = cell_procedure(cell, str(guests.directory_of("debug")))
    trial = next((t for t in trials(procedure) if _seed_of(t.steps[0]) == seed), None)
    if trial is None:
        raise InputError(f"--seed {seed}: the cell has no trial with this seed")
    if cell.guest.engine is Engine.NATIVE:
        raise InputError("guest.engine: a native guest cannot be stopped yet: set it to emulated")
    kit = sealed_kit.prepare(cell.guest, place.image, stops=True)
    record = guests.create(
        guest=guests.new_id(), scenario=cell.scenario, image=place.image.directory.name, host_key=""
    )
    found: list[Debugged] = []

    def then(stopped: Stopped) -> None:
        say(f"the guest has stopped at {stopped.found.nanoseconds / 1e9:.9f} s of its clock")
        names = {n: disk.serial for n, disk in enumerate(_disks(trial.steps[0]), 1)}
        if wanted.log is not None:
            lines = requests.lines(stopped.found.events, names)
            files.write(wanted.log, "".join(f"{line}\n" for line in lines))
        if wanted.core is not None:
            stopped.core(wanted.core)
        found.append(
            Debugged(
                run=run,
                seed=seed,
                seconds=stopped.found.nanoseconds / 1e9,
                events=len(stopped.found.events),
                forgotten=stopped.found.total - len(stopped.found.events),
                log=str(wanted.log) if wanted.log else None,
                core=str(wanted.core) if wanted.core else None,
                same=is_beginning(stopped.log, stored_log),
                kernel=stopped.log,
                output=stopped.found.output.decode(errors="replace"),
            )
        )
        if wanted.gdb is not None:
            socket = record.path / "gdb"
            stopped.serve_gdb(socket)
            wanted.gdb(socket)
            stopped.wait()

    bench = StoppingBackend(
        record,
        kit,
        stop=wanted.nanoseconds,
        then=then,
        tell=lambda step: say(step) if isinstance(step, str) else None,
        notice=say,
        cold=cold,
    )
    try:
        space = need_of(cell).space
        job = CellJob(id="debug", procedure=trial, directory="", target="", space=space)
        bench.take(job)
        step = trial.steps[0]
        assert isinstance(step, SealDisks)
        bench.seal_disks(step)
    finally:
        with uninterrupted():
            bench.destroy_guest()
            guests.remove(record.path)
    return found[0]


def is_beginning(log: str, stored: str) -> bool | None:
    """Return whether a stored log begins with these messages; ``None``: there is none.

    The stored log's end may be missing, and its beginning is not: a cell that is disturbed keeps
    all messages.
    """
    return stored.startswith(log.rstrip("\n")) if stored else None


def stored_log(cell: Cell, raw: dict[str, str]) -> str:
    """Return a stored cell's kernel messages; empty: only their end was kept, or none."""
    return raw.get(CONSOLE, "") if cell.guest.disturb else ""


def _seed_of(step: object) -> int | None:
    return step.seed if isinstance(step, SealDisks) else None


def _disks(step: object) -> tuple[SealedDisk, ...]:
    return step.disks if isinstance(step, SealDisks) else ()
