"""Runs a command or script in a fresh guest, in either clock."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.capabilities.session.logic import workloads_of
from lab.capabilities.session.model import WORK, Ended, Job
from lab.compile.scenario.bare import bare
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import ToolError, TroubleError
from lab.core.yaml import written
from lab.host import images
from lab.host.guest import registry
from lab.host.system import clock, keys, tars
from lab.model.execution.events import Event
from lab.model.result.document import Outcome
from lab.model.scenario.guest import Clock
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from lab.plugins.workloads.command import MARK
from lab.run import execute, guests, scripts
from lab.run.guest_pool import GuestPool, PooledGuest
from lab.run.options import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Runs jobs in guests of one scenario."""

    compiled: Compiled
    """A guest with disks; its workloads, matrix and claims are not used."""
    job: Job
    streams: bool
    """The command has this terminal; otherwise its output is returned."""
    say: Callable[[str], None]
    progress: images.Progress
    begins: Callable[[], object]
    """Called when the command gets the terminal."""

    def run(self) -> Iterator[Ended]:
        """Yield each trial when its guest is gone; ``LabError``: no guest could run it."""
        if self.compiled.base.guest.clock is Clock.VIRTUAL:
            yield from self._virtual()
        else:
            yield from self._real()

    # -- real time: a guest of the pool

    def _real(self) -> Iterator[Ended]:
        with TemporaryDirectory(prefix="lab-exec-") as place:
            for trial in range(1, self.job.trials + 1):
                directory = Path(place) / str(trial)
                directory.mkdir()
                pool = GuestPool(directory=directory, say=self.say, progress=self.progress)
                try:
                    ended = self._in(pool, pool.acquire(self.compiled, fresh=True), trial)
                finally:
                    pool.close()
                yield ended

    def _in(self, pool: GuestPool, loan: PooledGuest, trial: int) -> Ended:
        job, cell = self.job, loan.cell
        loan.visit.run(scripts.stable_names(cell), 60.0)
        seed = cell.seed + trial - 1
        environment = {"TARGET": loan.target or " ".join(loan.disks), "SEED": str(seed)}
        line = scripts.prepared(loan.visit, job.argv, job.script, WORK, environment)
        began = clock.now()
        if self.streams:
            limited = ["timeout", "-k", "10", f"{job.limit:g}", "sh", "-c", f"'{_quoted(line)}'"]
            self.begins()
            status = guests.attached(
                loan.visit.record, guests.ssh_argv(loan.visit.record, limited, user="root")
            )
            registry.require_alive(loan.visit.record)  # ssh's own status does not tell
            done = Ended(
                trial=trial, seed=seed, status=status, seconds=clock.now() - began, shown=True
            )
        else:
            output = loan.visit.run(line, job.limit)
            done = Ended(
                trial=trial,
                seed=seed,
                status=output.status,
                seconds=output.seconds,
                stdout=output.stdout,
                stderr=output.stderr,
            )
        files: tuple[str, ...] = ()
        if job.out is not None:
            files = scripts.files_from(loan.visit, WORK, _place(job, trial))
        guest = pool.keep(loan) if job.keep else ""
        return replace(done, files=files, guest=guest)

    # -- virtual time: a cell with the command as its workload

    def _virtual(self) -> Iterator[Ended]:
        job = self.job
        with TemporaryDirectory(prefix="lab-exec-") as place:
            path = Path(place) / "exec.yaml"
            whole = bare(
                path,
                "lab exec",
                {},
                title=job.title,
                base=self.compiled,
                workloads=workloads_of(job),
                more={"trials": job.trials},
            )
            path.write_text(written(whole.document.data), encoding="utf-8")
            options = RunOptions(keep=job.keep, fresh=True, remember=False)
            done = execute.run_scenario(
                whole,
                texts=(),
                out=Path(place),
                options=options,
                executor=execute.LocalExecutor(options=options, watch=_unwatched, say=self.say),
                resume=None,
                progress=self.progress,
                ready=lambda _run, _platform: None,
            )
            (cell,) = whole.cells
            finished = done.store.load_cell(cell_id(cell))
            if finished is None or finished.outcome.outcome is not Outcome.DONE:
                reason = finished.outcome.reason if finished else "the cell did not end"
                raise TroubleError(reason or "the guest ended")
            tool = catalog.workload("command")
            parameters = catalog.parameters_of(cell.workloads[0])
            for trial in range(1, job.trials + 1):
                stdout = finished.raw.get(f"run.{trial}.stdout.txt", "")
                stderr = finished.raw.get(f"run.{trial}.stderr.txt", "")
                outputs = Outputs(stdout=stdout, stderr=stderr, files={})
                values = tool.parse(parameters, outputs)
                packed = finished.raw.get(f"files.{trial}.stdout.txt", "").rpartition(MARK)[0]
                yield Ended(
                    trial=trial,
                    seed=cell.seed_of(trial),
                    status=int(values["status"]),
                    seconds=values["seconds"],
                    stdout=stdout.rpartition(MARK)[0],
                    stderr=stderr,
                    files=_unpacked(packed, _place(job, trial)) if job.out else (),
                    guest=done.kept or "",
                )


def started(
    compiled: Compiled, say: Callable[[str], None], progress: images.Progress
) -> registry.GuestRecord:
    """Start a guest with its disks, which stays up; its disks have names of the same kind in both
    clocks, also after a reboot."""
    options = RunOptions(keep=True, workloads=False)
    with TemporaryDirectory(prefix="lab-up-") as place:
        path = Path(place) / compiled.path.name
        path.write_text(written(compiled.document.data), encoding="utf-8")
        done = execute.run_scenario(
            replace(compiled, path=path),
            texts=(),
            out=Path(place),
            options=options,
            executor=execute.LocalExecutor(options=options, watch=_unwatched, say=say),
            resume=None,
            progress=progress,
            ready=lambda _run, _platform: None,
        )
    assert done.kept is not None
    record = registry.find(done.kept)
    naming = scripts.stable_names(compiled.base)
    guests.attached(record, guests.ssh_argv(record, [naming], user="root"))
    return record


def facts_of(record: registry.GuestRecord, compiled: Compiled) -> dict[str, Any]:
    """Return what other programs need to use a guest."""
    return {
        "id": record.id,
        "image": record.image,
        "clock": compiled.base.guest.clock.value,
        "port": record.port,
        "pid": record.pid,
        "key": str(keys.lab_key_path()),
        "known_hosts": str(record.path / "known_hosts"),
        "array": record.target if compiled.base.array else None,
        "disks": [
            {"name": f"/dev/lab/disk{number}", "serial": serial, "size": disk.size}
            for number, (serial, disk) in enumerate(compiled.base.each_disk, 1)
        ],
        "network": "none",
    }


def _unwatched(_guest: str, _event: Event | None) -> None:
    """Show nothing of a guest's steps."""


def _quoted(line: str) -> str:
    return line.replace("'", "'\\''")


def _place(job: Job, trial: int) -> Path:
    assert job.out is not None
    return job.out / str(trial) if job.trials > 1 else job.out


def _unpacked(text: str, into: Path) -> tuple[str, ...]:
    with TemporaryDirectory(prefix="lab-files-") as place:
        packed = Path(place) / "files.tar.gz"
        try:
            packed.write_bytes(base64.b64decode("".join(text.split()), validate=True))
        except binascii.Error as error:
            raise ToolError(f"the files of the guest cannot be read: {error}") from error
        return tars.unpack(packed, into, "r:gz")
