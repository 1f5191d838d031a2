"""The backend of a sealed guest: the guest runs a whole trial, then the step loop reads its
results.

A guest starts from a snapshot of its kit (:mod:`lab.host.guest.virtual.snapshot`). After a power
cut, and without a snapshot, it boots.

While the guest runs, the host only waits. It reads the memory region for progress, and never writes
to it. QEMU is started without libvirt, because libvirt queries the monitor of a running guest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, NoReturn

from drive import region, sealed
from drive.drive import Parameters
from drive.monitor import Console, MonitorError
from drive.native import command as native
from lab.compile.guest.program import (
    CUT,
    FAILED,
    STATISTICS,
    TIMED_OUT,
    Answer,
    Programs,
    Progress,
    answers,
    evidence,
    mdstat,
    programs,
    serial_of,
    trials,
)
from lab.core.errors import (
    FullError,
    GuestError,
    HostError,
    LabError,
    ToolError,
    cause_of_panic,
    lacks_memory,
    unwritable,
)
from lab.core.units import MIB, format_size
from lab.host.guest import registry as guests
from lab.host.guest.fair_time import FairTime
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual import snapshot as sealed_snapshot
from lab.host.guest.virtual.confined import confined, killed_with_us
from lab.host.guest.virtual.inputs import BOOTED, blocks_of, inputs_of, joined
from lab.host.guest.virtual.limits import Limits, tail
from lab.host.guest.virtual.region_file import RegionFile, region_file
from lab.host.guest.virtual.snapshot import BOOT, SealedSnapshot
from lab.host.guest.virtual.system_calls import native_filter
from lab.host.images.sandbox import masked
from lab.host.images.virtual_time import guest_of, native_guest_of, root_disk
from lab.host.system import clock, files, load, pids, process
from lab.model.execution.events import GuestTime
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    DetachDisk,
    LimitDisk,
    Output,
    PowerCycle,
    Procedure,
    SealDisks,
    SealedDisk,
    SpoilDisk,
    Step,
    UnplugDisk,
)
from lab.model.result.document import Digest, SeedDigest
from lab.model.scenario.guest import Engine

SILENCE: Final = 120.0
"""Seconds without CPU use after which QEMU counts as stopped."""
SLOWEST: Final = 20.0
"""Most seconds of the host per second of the guest. A guest second is 10^9 instructions."""
LATE: Final = 86400.0
"""Seconds of the guest's clock beyond its limit after which the clock counts as forged."""
CONSOLE_TEXT: Final = 16 * MIB
"""Most characters of kernel messages of a cell's guests that are kept."""
_GLANCE: Final = 0.5


class SealedBackend:
    """A guest that starts anew for each trial, and accepts no commands while it runs.

    It lacks those methods of :class:`lab.model.execution.procedure.Backend` whose steps
    :func:`lab.compile.guest.program.programs` refuses.
    """

    def __init__(
        self,
        record: GuestRecord,
        kit: SealedKit,
        *,
        tell: Callable[[Step | str], None],
        notice: Callable[[str], None],
        watch: Callable[[GuestTime], None] = lambda _time: None,
        cold: bool = False,
    ) -> None:
        """``tell`` receives each step of the guest, ``notice`` a message about an unusable
        snapshot.

        ``watch`` receives the guest's clock.
        """
        self.record = record
        self._trials: list[Procedure] = []
        """The cell's remaining trials."""
        self._done: list[SeedDigest] = []
        self._snapshots: list[str] = []
        """Digests of the snapshots that its trials started from."""
        self._kit = kit
        self._tell = tell
        self._notice = notice
        self._watch = watch
        self.guest_seconds = 0.0
        """Seconds of the guest's clock, summed over all guests of the last cell so far."""
        self._taken = clock.now()
        self._cold = cold or kit.engine is Engine.NATIVE
        self._program = "the native guest" if kit.engine is Engine.NATIVE else "QEMU"
        self._setup = native.SETUP if kit.engine is Engine.NATIVE else sealed.SETUP
        self._instead = False
        """It boots because there is no usable snapshot."""
        self._programs = Programs(items=(), boots=(), limits=())
        self._procedure = Procedure(name="", steps=())
        self._space = 0
        self._answers: dict[int, Answer] = {}
        self._next = self._asked = 0
        self._now = 0.0
        self._ended: LabError | None = None
        """Why there are no more results."""
        self.log = ""
        """Kernel messages of the last cell's guests so far."""
        self._lost_bytes: list[Mapping[str, int]] = []
        """For each power cut: bytes in the disks' caches that were lost, by serial."""
        self._statistics: Mapping[str, region.Statistics] = {}
        self._daemon: process.Daemon | None = None
        self._descriptors: tuple[int, ...] = ()
        """The open file of the region, which QEMU inherits."""
        self._region: region.Region | None = None
        """The region of the trial that runs."""

    def take(self, cell: CellJob) -> None:
        """Take the next cell; ``InputError``: a sealed guest cannot run it."""
        self._trials = list(trials(cell.procedure))
        for trial in self._trials:
            programs(trial)
        self._space = cell.space
        self._done, self._snapshots = [], []
        self.log = ""
        self.guest_seconds, self._taken = 0.0, clock.now()
        self._take_trial()

    def _take_trial(self) -> None:
        """Begin the next trial: no results yet, and a clock at zero."""
        self._procedure = self._trials[0] if self._trials else Procedure(name="", steps=())
        self._programs = programs(self._procedure)
        self._answers = {}
        self._lost_bytes, self._statistics = [], {}
        self._next = self._asked = 0
        self._now = 0.0
        self._ended = None

    def check_inputs(self, planned: str) -> None:
        """``ToolError`` if the cell's inputs differ from the planned ones, unless a guest had to
        boot."""
        found = self.digest
        if planned and found is not None and found.inputs != planned and not self._instead:
            raise ToolError(
                f"the cell's inputs have the digest {found.inputs}, expected {planned}: the lab or"
                " its files changed while it ran",
                hint="run it again",
            )

    @property
    def digest(self) -> Digest | None:
        """Digest of the last cell; ``None``: none of its trials has ended."""
        if not self._done:
            return None
        return Digest(
            inputs=joined([trial.inputs for trial in self._done]),
            results=joined([trial.results for trial in self._done]),
            seeds=tuple(self._done),
            snapshot=self._snapshots[0] if self._snapshots else "",
        )

    # -- the guest

    def seal_disks(self, step: SealDisks) -> None:
        """Run the guest through a whole trial."""
        self._take_trial()
        self._trials = self._trials[1:]
        blocks = blocks_of(self._space)
        disks = [root_disk(self._kit), *map(disk_of, step.disks)]
        most = blocks * region.BLOCK + region.undo_size(disks)
        with region_file(self.record.path, most) as file:
            self._descriptors = file.descriptors
            inputs, results = self._run(file, disks, blocks)
        self._now = 0.0  # the step loop starts reading at the beginning
        self._done.append(SeedDigest(seed=step.seed, inputs=inputs, results=results))

    def _run(self, file: RegionFile, disks: Sequence[region.Disk], blocks: int) -> tuple[str, str]:
        """Run all boots of a trial; return the digests of its inputs and results."""
        path = file.path
        inputs, results = "", hashlib.sha256()
        guest = guest_of(self._kit, path)
        try:
            for number, program in enumerate(self._programs.boots):
                limit = self._programs.limits[number]
                if number:
                    region.again(self._own_region, (self._setup + program).encode())
                    self._boot(guest, limit)
                else:
                    inputs = self._first(guest, file, disks, blocks, program, limit)
                results.update(region.digest(path).encode())
                last = number == len(self._programs.boots) - 1
                if not self._read(self._own_region, cut=not last):
                    break
                undo = region.lose_cache if self._programs.loses[number] else region.keep_cache
                self._lost_bytes.append(undo(self._own_region))
        except OSError as error:
            raise unwritable(path, error) from error
        except region.ForgedError as error:
            raise ToolError(str(error)) from error
        except region.RegionError as error:
            raise no_room(error) from error
        return inputs, results.hexdigest()

    @property
    def _own_region(self) -> region.Region:
        assert self._region is not None
        return self._region

    def _first(
        self,
        guest: sealed.Guest,
        file: RegionFile,
        disks: Sequence[region.Disk],
        blocks: int,
        program: str,
        limit: float,
    ) -> str:
        """Run the first program, from a snapshot if possible; return the digest of the inputs."""
        path = file.path
        size = region.size_for(disks, blocks)

        def create(commands: str) -> region.Region:
            self._region = region.create(
                path, disks, size=size, commands=commands.encode(), blocks=blocks
            )
            return self._region

        if (snapshot := self._snapshot(size)) is not None:
            made = create(program)
            try:
                snapshot.graft(made)
                file.reserve(made)
                self._boot(guest, limit, snapshot)
                why = "the guest did not run its commands"
            except region.ForgedError:
                raise
            except (MonitorError, region.RegionError, GuestError) as error:
                if isinstance(error, GuestError) and self._begun() is not None:
                    raise
                self.destroy_guest()
                if lacks_memory(f"{error} {self._said()}"):
                    self._ended = HostError(
                        "the host has too little memory for a guest from a snapshot, which stays:"
                        f" {self._said() or error}",
                        hint="end other programs or guests, or give guest.memory less",
                    )
                    raise self._ended from error
                self._ended, why = None, str(error)
            if self._begun() is not None:
                self._snapshots.append(joined(list(snapshot.digests.values())))
                return self._inputs(disks, blocks, snapshot.directory.name)
            sealed_snapshot.discard(snapshot)
            self._cold = self._instead = True
            self._notice(f"a snapshot did not restore and was removed; guests boot instead ({why})")
        file.reserve(create(self._setup + program))
        self._boot(guest, limit)
        return self._inputs(disks, blocks, BOOTED)

    def _snapshot(self, size: int) -> SealedSnapshot | None:
        """Return the snapshot to start from; ``None``: the guest boots."""
        if self._cold:
            return None
        try:
            return sealed_snapshot.prepare(
                self._kit, size, directory=self.record.path, say=self._tell
            )
        except FullError:
            raise
        except LabError as error:
            self._cold = self._instead = True
            self._notice(f"guests with virtual time boot without a snapshot: {error.message}")
            return None

    def _boot(
        self, guest: sealed.Guest, limit: float, snapshot: SealedSnapshot | None = None
    ) -> None:
        """Start QEMU, and wait until it ends. ``MonitorError``: it could not load the snapshot."""
        if snapshot is None:
            if self._kit.engine is Engine.NATIVE:
                self._start_native(guest)
            else:
                self._started(confined(sealed.command(guest), self.record.path))
            self._wait(limit)
            return
        socket = self.record.path / "monitor"
        socket.unlink(missing_ok=True)
        command = sealed.command(snapshot.restored(guest))
        command = confined([*command, *Console.arguments(socket)], self.record.path)
        daemon = self._started(command)
        # The connection stays open: closing it would change QEMU's timing.
        with ExitStack() as stack:
            try:
                console = stack.enter_context(sealed_snapshot.connected(Console, socket, daemon))
                sealed_snapshot.restore(snapshot, console)
            except (MonitorError, OSError) as error:
                self.destroy_guest()
                said = self._said()
                raise MonitorError(f"{error}: {said}" if said else str(error)) from error
            self._wait(limit)

    def _start_native(self, guest: sealed.Guest) -> None:
        calls = files.in_memory(native_filter())
        hidden = [*masked("/proc"), "--seccomp", str(calls)]
        command = native.command(native_guest_of(self._kit, guest.region), hidden)
        try:
            self._started(killed_with_us(command), calls)
        finally:
            os.close(calls)

    def _started(self, command: list[str], *descriptors: int) -> process.Daemon:
        self._daemon = process.Daemon(
            command,
            log=self.record.path / "qemu.log",
            descriptors=(*self._descriptors, *descriptors),
        )
        self.record = replace(self.record, pid=self._daemon.pid)
        guests.write(self.record)
        return self._daemon

    def _said(self) -> str:
        return tail(self.record.path / "qemu.log", 500)

    def _wait(self, limit: float) -> None:
        """Wait until QEMU has ended, and read the guest's output meanwhile."""
        daemon = self._daemon
        assert daemon is not None
        fair = FairTime(lambda: self._busiest(daemon.pid))
        countdown = clock.Countdown(clock.limit(BOOT + SLOWEST * limit), fair.now)
        silence = clock.Countdown(clock.limit(SILENCE))
        used, shown, progress = -1.0, -1, Progress()
        before, start = self.guest_seconds, region.clock(self._own_region)
        log = self.record.path / "qemu.log"
        of_native = daemon.pid if self._kit.engine is Engine.NATIVE else None
        with Limits(daemon, self._own_region, log, native=of_native) as limits:
            while (status := daemon.wait(_GLANCE)) is None:
                now = self._processor(daemon.pid)
                if now != used:
                    used = now
                    silence.again()
                if silence.left() <= 0:
                    self._lost(
                        f"{self._program} used no CPU for {silence.seconds:.0f} s: it is stopped,"
                        f" at '{self._at(shown)}'"
                    )
                if countdown.left() <= 0:
                    self._lost(
                        f"the sealed guest did not end within {countdown.seconds:.0f} s (limit: "
                        f"{limit:.0f} s of its own time): it was at '{self._at(shown)}'"
                    )
                shown = self._show(progress, shown)
                self._count(before, start, limit)
        self._daemon = None
        limits.check()
        self._count(before, start, limit)
        if status and region.read(self._own_region).phase is not region.Phase.PANICKED:
            how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
            self._lost(f"{self._program} {how}: {self._said() or 'it printed nothing'}")

    def _processor(self, pid: int) -> float:
        """Return the CPU seconds of the guest's processes; a native guest has several."""
        if self._kit.engine is Engine.EMULATED:
            return load.processor(pid)
        return sum(map(load.processor, pids.family(pid)))

    def _busiest(self, pid: int) -> int:
        """Return the process that runs the guest's kernel: not the sandbox's."""
        if self._kit.engine is Engine.EMULATED:
            return pid
        return max(pids.family(pid), key=load.processor, default=pid)

    def _lost(self, sentence: str) -> NoReturn:
        error = GuestError(sentence)
        self._ended = error
        raise error

    def _count(self, before: float, start: int, limit: float) -> None:
        """Add the guest clock's progress since ``start``, and report it; ``ForgedError``: it is far
        beyond the program's ``limit``."""
        seconds = max(region.clock(self._own_region) - start, 0) / 1e9
        if seconds > 2 * limit + LATE:
            raise region.ForgedError(
                f"the guest's clock is at {seconds:.0f} s; its commands end within {limit:.0f} s"
            )
        self.guest_seconds = before + seconds
        self._watch(GuestTime(seconds=self.guest_seconds, host_seconds=clock.now() - self._taken))

    def _begun(self, progress: Progress | None = None) -> int | None:
        """Return the number of the item that the guest has reached; ``None``: none."""
        own = self._own_region
        return (progress or Progress()).follow(lambda at, size: region.output(own, at, size))

    def _at(self, shown: int) -> str:
        """Return what the guest does, for messages."""
        items = self._programs.items
        return self._procedure.steps[items[shown].step].progress if shown >= 0 else "its start"

    def _show(self, progress: Progress, shown: int) -> int:
        """Report the step that the guest has reached, from its output."""
        number = self._begun(progress)
        if number is not None and number != shown and 0 <= number < len(self._programs.items):
            self._tell(self._procedure.steps[self._programs.items[number].step])
            return number
        return shown

    def _read(self, own: region.Region, *, cut: bool) -> bool:
        """Read the results of a boot; return whether another boot follows."""
        state = region.read(own)
        self._statistics = state.disks
        log = self.record.path / "console.log"
        log.write_text(state.log, encoding="utf-8")
        self.log = (self.log + state.log)[:CONSOLE_TEXT]
        before = self._now
        for number, answer in answers(state.output, len(self._programs.items)).items():
            self._answers[number] = replace(
                answer, began=before + answer.began, ended=before + answer.ended
            )
        if self._answers:
            self._now = max(a.ended for a in self._answers.values())
        where = "the sealed guest"
        if state.full:
            self._ended = ToolError(
                f"{where} wrote more to its disks than the {format_size(self._space)} that they may"
                " occupy on the host",
                hint="make the workloads smaller or fewer; disks.size limits what they may occupy",
            )
        elif state.output_lost:
            self._ended = ToolError(
                f"{where} printed too much output: {format_size(state.output_lost)} are lost"
            )
        elif state.phase is region.Phase.PANICKED:
            self._ended = ToolError(
                f"the kernel of {where} panicked, and would panic again:"
                f" {cause_of_panic(state.log)}",
                hint="the cell's console.txt has its messages",
            )
        elif cut and state.phase is region.Phase.RUNNING:
            return True
        elif cut and state.phase is region.Phase.POWERED_OFF:
            pass  # a command failed before the power cut; its result has the status
        elif state.phase is not region.Phase.POWERED_OFF or state.status:
            last = (state.log or state.output.decode(errors="replace")).strip().splitlines()[-4:]
            self._ended = GuestError(
                f"{where} ended unexpectedly ({state.phase.name.lower()}, status {state.status}):"
                f" {' / '.join(last) or 'it printed nothing'}"
            )
        return False

    def _inputs(self, disks: Sequence[region.Disk], blocks: int, start: str) -> str:
        return inputs_of(self._kit, self._procedure, disks, blocks=blocks, start=start)

    def destroy_guest(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.end(3.0)

    # -- requests of the step loop

    def _answer(self, script: str) -> Answer:
        """Return the result of the next item, which must be the one in ``script``."""
        if self._next >= len(self._programs.items):
            raise AssertionError(f"the sealed guest's program does not contain {script[:200]!r}")
        item = self._programs.items[self._next]
        assert item.script == script, (item.script[:200], script[:200])
        answer = self._answers.get(self._next)
        if answer is None:
            raise self._ended or GuestError(
                "the sealed guest ended before this command:"
                f" {script.strip().splitlines()[0][:120]}"
            )
        self._asked += 1
        if self._asked >= item.asked:
            self._next, self._asked = self._next + 1, 0
            self._now = answer.ended  # not earlier: the guest has waited for all hits already
        return answer

    def guest(self, script: str, timeout: float) -> Output:
        """Return the recorded output of shell lines."""
        answer = self._answer(script)
        timed_out(answer, script, timeout)
        return output_of(answer)

    def begin(self, name: str, script: str) -> None:
        # The guest has started it itself.
        pass

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        """Return the recorded output of a workload."""
        if not cut:
            done = self._answer(name)
            timed_out(done, name, timeout, begun=True)
            return output_of(done)
        items = enumerate(self._programs.items)
        number = next(n for n, item in items if item.script == name)
        answer = self._answers.get(number)
        if answer is None:
            raise self._ended or GuestError("the sealed guest ended before its power was cut")
        return output_of(answer)

    def power_cycle(self, step: PowerCycle) -> str:
        """Skip the items that the power cut ended: the guest's program did the power cut
        already."""
        items = self._programs.items
        while items[self._next].script != "the power cut":
            self._next += 1
        self._next += 1
        if not any(n >= self._next for n in self._answers) and self._ended:
            raise self._ended
        return lost(step, self._lost_bytes.pop(0) if self._lost_bytes else {})

    def ask_server(self, step: AskServer) -> str:
        """Return the reply that a disk's server would give: ``ok``, or ``error`` and the reason."""
        if step.line == STATISTICS:
            return counters(self._statistics[serial_of(step.socket)])
        answer = self._answer(self._programs.items[self._next].script)
        return f"error {answer.stderr.strip()}" if answer.status else "ok"

    def limit_disk(self, step: LimitDisk) -> None:
        self._plugged(step.serial)

    def spoil_disk(self, step: SpoilDisk) -> None:
        self._plugged(step.serial)

    def progress(self) -> str:
        """Return ``/proc/mdstat`` when the first command failed; empty: none did."""
        return mdstat(self._answers[FAILED].stdout) if FAILED in self._answers else ""

    def evidence(self) -> Mapping[str, str]:
        """Return raw output that explains a failure."""
        return evidence(self._answers[FAILED].stdout) if FAILED in self._answers else {}

    def attach_disk(self, step: AttachDisk) -> None:
        self._plugged(step.serial)

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        # The guest ends with its disks: only an unplugged disk has a result.
        if isinstance(step, UnplugDisk):
            self._plugged(step.serial)

    def _plugged(self, serial: str) -> None:
        answer = self._answer(self._programs.items[self._next].script)
        if answer.status:
            raise ToolError(f"changing the disk '{serial}' failed: {answer.stderr.strip()}")

    def now(self) -> float:
        """Return seconds of the guest's clock at the last result."""
        return self._now

    def pause(self, seconds: float) -> None:
        # The guest has paused itself.
        pass

    def pressure(self) -> Mapping[str, float]:
        # Nothing waited: the guest's clock stops while its CPU does.
        return {}

    def wait_for_ssh(self, timeout: float) -> None:
        # A sealed guest has no SSH.
        pass

    def write_file(self, path: str, content: str, mode: int) -> None:
        # The files are for libvirt, which is not used.
        pass

    def remove(self, path: str) -> None:
        # The files were not created.
        pass

    def cause(self, error: LabError) -> GuestError | None:
        """Return the guest's end that caused an error; ``None``: a step failed, and would fail
        again."""
        return error if isinstance(error, GuestError) else None

    def expect_io_within(self, patience: float) -> None:
        # Disks cannot hang: the guest computes them.
        pass


def timed_out(answer: Answer, script: str, timeout: float, *, begun: bool = False) -> None:
    """``ToolError`` if a command was ended by its time limit; ``begun``: it began earlier."""
    if answer.status == TIMED_OUT and (begun or answer.ended - answer.began >= timeout - 1):
        error = ToolError(
            f"a command in the guest did not end within {timeout:.0f} seconds of its clock:"
            f" {script.strip().splitlines()[0][:120]}"
        )
        said = (answer.stderr.strip() or answer.stdout.rpartition(CUT)[2].strip()).splitlines()
        last = f", after '{said[-1][:120]}'" if said else ""
        error.late = f"{timeout:.0f} seconds of its clock{last}"
        raise error


def output_of(answer: Answer) -> Output:
    """Return a result in the form that the step loop expects."""
    return Output(
        status=answer.status,
        stdout=answer.stdout,
        stderr=answer.stderr,
        seconds=answer.ended - answer.began,
    )


def lost(step: PowerCycle, lost_bytes: Mapping[str, int]) -> str:
    """Return the replies that the servers of a power cut's disks would give."""
    found = ((socket, lost_bytes.get(serial_of(socket), 0)) for socket in step.lose)
    return "".join(f"{socket} ok {count}\n" for socket, count in found)


def counters(statistics: region.Statistics) -> str:
    """Return a disk's counters as its server would print them."""
    return f"ok {json.dumps(statistics.drive)}"


def disk_of(disk: SealedDisk) -> region.Disk:
    """Return a cell's disk as the region stores it."""
    return region.Disk(
        serial=disk.serial,
        size=disk.size,
        flags=(region.ROTATIONAL if disk.rotational else 0)
        | (region.WRITE_BACK if disk.write_back else 0)
        | (region.PARTITIONS if disk.partitions else 0),
        group=disk.group,
        logical=disk.logical,
        physical=disk.physical,
        op_size=disk.operation_size,
        limits={
            name: region.Limit(limit.average, limit.burst, limit.seconds)
            for name, limit in disk.limits.items()
        },
        drive=Parameters(**disk.drive) if disk.drive else None,
    )


def no_room(error: region.RegionError) -> HostError:
    """Return the error for disks that a region cannot hold."""
    return HostError(
        f"the disks do not fit into a guest with virtual time: {error}",
        hint="use fewer or smaller disks, or set guest.clock to real",
    )


def inputs_of_cell(kit: SealedKit, procedure: Procedure, space: int, *, cold: bool) -> str:
    """Return the digest of a cell's inputs before it runs; ``InputError``: it cannot run sealed.

    ``space``: most bytes that its disks may occupy. ``cold``: its guests boot.
    """
    found = []
    blocks = blocks_of(space)
    for trial in trials(procedure):
        step = trial.steps[0]
        assert isinstance(step, SealDisks)
        disks = [root_disk(kit), *map(disk_of, step.disks)]
        try:
            size = region.size_for(disks, blocks)
        except region.RegionError as error:
            raise no_room(error) from error
        start = (
            BOOTED if cold or kit.engine is Engine.NATIVE else sealed_snapshot.name_of(kit, size)
        )
        found.append(inputs_of(kit, trial, disks, blocks=blocks, start=start))
    return joined(found)
