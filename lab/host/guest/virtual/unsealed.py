"""The backend of a guest in virtual time with network and SSH.

Its disks are those of a sealed guest. Each command runs as in a sealed guest, and writes its output
to a file in the guest. During a command the busy process is stopped, so that the clock jumps when
the guest is idle, and nothing is sent over the network. Between two commands the busy process runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from typing_extensions import override

from drive import region, sealed
from lab.compile.guest.program import (
    FUNCTIONS,
    STATISTICS,
    Answer,
    answers,
    attach,
    detach,
    limit,
    order,
    serial_of,
    spoil,
)
from lab.compile.guest.steps import BUSY, UNSEALED
from lab.core.errors import GuestError, LimitError, ToolError, unwritable
from lab.host.guest import registry as guests
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual import limits, suspend
from lab.host.guest.virtual.region_file import need_space
from lab.host.guest.virtual.sealed import (
    SLOWEST,
    counters,
    disk_of,
    lost,
    no_room,
    output_of,
    timed_out,
)
from lab.host.guest.virtual.snapshot import ROOT_SPACE
from lab.host.images.virtual_time import root_disk
from lab.host.system import clock
from lab.model.execution.events import Notice, Sample, TestStarted
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    DetachDisk,
    LimitDisk,
    Output,
    PowerCycle,
    SealDisks,
    SpoilDisk,
    Step,
    UnplugDisk,
    WaitFor,
)

WHOLE: Final = 60.0
"""Seconds of the host that a command may take beyond its own timeout."""
LONGEST: Final = 10**6
"""Timeout, in seconds of the guest, for a workload that another step ends."""
_FUNCTIONS: Final = "/run/lab/functions"
_ROOT_GROUP: Final = "/sys/fs/cgroup/cgroup.procs"
"""The cgroup of a sealed guest's processes. In any other cgroup the kernel accounts each page."""
_BACKGROUND: Final = """\
begin() { # name limit script; another shell waits for it: the lock is held while it runs
  printf '%s\\n' "$3" >$work/$1.script
  : >$work/$1.out
  exec 9>$work/$1.lock
  flock 9
  {
    status=0
    timeout -k 10 "$2" sh -e $work/$1.script </dev/null >$work/$1.out 2>$work/$1.err 9>&- ||
      status=$?
    echo $status >$work/$1.status
  } &
  exec 9>&-
}
finish() { # number name limit
  begun "$1"
  if flock -w "$3" $work/$2.lock true; then status=$(cat $work/$2.status); else status=124; fi
  frame "$1" "$status" "$2"
}
"""


class UnsealedBackend(LiveBackend):
    """A guest that boots anew for each cell."""

    reboots: ClassVar = False  # its disks are in a region that a kernel can use once

    def __init__(
        self,
        record: GuestRecord,
        private_key: str,
        kit: SealedKit,
        *,
        boot: Callable[[], None],
        scale: float = 1.0,
        tell: Callable[[Sample | TestStarted | Notice], None] = lambda _event: None,
    ) -> None:
        super().__init__(record, private_key, scale=scale, tell=tell)
        self._kit = kit
        self._boot = boot
        self._space = 0
        self._step: Step | None = None
        self._waited: Answer | None = None
        self._slots: dict[str, int] = {}
        self._begun: list[str] = []
        """Names of the running workloads."""
        self._cut: dict[str, Output] = {}
        """Output of workloads that a power cut ended."""
        self._guest_now = 0.0
        self._region: region.Region | None = None
        """The region of the cell's disks."""
        self.boot_seconds = 0.0
        """Duration of the last boot, in seconds of the host."""

    @property
    def _file(self) -> Path:
        return self.record.path / limits.REGION

    @property
    def _own_region(self) -> region.Region:
        assert self._region is not None
        return self._region

    def take(self, cell: CellJob) -> None:
        """Set the next cell."""
        self._space = cell.space
        self._step = self._waited = None
        self._begun, self._cut = [], {}
        self.boot_seconds = 0.0

    def at(self, step: Step) -> None:
        """Set the next step."""
        self._step, self._waited = step, None

    # -- the guest's life

    @override
    def seal_disks(self, step: SealDisks) -> None:
        began = clock.now()
        self.destroy_guest()  # the guest of the previous cell uses the old region
        self._guest_now = 0.0
        disks = [root_disk(self._kit), *map(disk_of, step.disks)]
        self._slots = {disk.serial: number for number, disk in enumerate(step.disks, 1)}
        blocks = -(-(self._space + ROOT_SPACE) // region.BLOCK)
        need_space(self.record.path, blocks * region.BLOCK + region.undo_size(disks))
        try:
            self._file.unlink(missing_ok=True)
            self._region = region.create(
                self._file, disks, size=sealed.UNSEALED_REGION, blocks=blocks
            )
            region.reserve(self._region)
        except OSError as error:
            raise unwritable(self._file, error) from error
        except region.RegionError as error:
            raise no_room(error) from error
        self._boot()
        self.boot_seconds = clock.now() - began

    @override
    def wait_for_ssh(self, timeout: float) -> None:
        super().wait_for_ssh(timeout)
        lines = (
            UNSEALED,
            "mkdir -p /run/lab",
            f"printf %s {shlex.quote(FUNCTIONS + _BACKGROUND)} > {_FUNCTIONS}",
        )
        done = super().guest("\n".join(lines), timeout)
        if done.status != 0:
            raise ToolError(f"preparing the guest for commands failed: {done.stderr.strip()}")

    @override
    def power_cycle(self, step: PowerCycle) -> str:
        for name in self._begun:
            self._cut[name] = output_of(self._answer(f"frame 0 0 {name}", 0.0))
        self._begun.clear()
        xml = self._hypervisor.definition()
        guests.kill(self.record.path)
        undo = region.lose_cache if step.lose else region.keep_cache
        try:
            answer = lost(step, undo(self._own_region))
            region.again(self._own_region, b"")
        except region.ForgedError as error:
            raise ToolError(str(error)) from error
        self.close()
        self._hypervisor.forget()
        self._guest_now = 0.0
        self._start(xml)
        return answer

    @override
    def _most_data(self) -> int:
        return limits.allowed(self._region) if self._region is not None else 0

    def suspend(self) -> None:
        """Close the connection, and stop the guest's clock and CPU."""
        self.close()
        suspend.stop(self.record.path)

    # -- commands

    @override
    def guest(self, script: str, timeout: float) -> Output:
        step = self._step
        if isinstance(step, WaitFor) and script == step.script:
            return output_of(self._wait_for(step))
        answer = self._answer(f"item 0 {timeout:.0f} {shlex.quote(script)}", timeout)
        timed_out(answer, script, timeout)
        return output_of(answer)

    def _wait_for(self, step: WaitFor) -> Answer:
        """Repeat the script in the guest until it matches; the step loop then requests each hit."""
        if self._waited is None:
            expected = [f"{key}={value}" for key, value in step.expect.items()]
            given = (f"{step.timeout:.0f}", f"{step.interval:g}", str(step.hits), step.script)
            line = f"wait_for 0 {shlex.join((*given, *expected))}"
            self._waited = self._answer(f"({line})", step.timeout)
            self._guest_now += 1.0  # the guest waits for whole seconds of its clock
        return self._waited

    def _answer(self, line: str, timeout: float) -> Answer:
        if self._shell is None:
            raise GuestError(f"no SSH connection to the guest '{self.record.id}'")
        script = (
            f"busy=$(cat {BUSY})\n"
            "kill -STOP $busy\n"
            f"( echo 0 >{_ROOT_GROUP}; . {_FUNCTIONS}; {line} ) >/run/lab/answer || true\n"
            "kill -CONT $busy\n"
            "cat /run/lab/answer"
        )
        limit = clock.limit(WHOLE + SLOWEST * timeout)
        try:
            status, told, errors = self._shell.raw(script, limit)
        except GuestError as error:
            self._alive(ask=False)
            if error.hint:
                raise
            raise guests.dead(self.record, error.message) from error
        answer = answers(told, 1).get(0)
        if status or answer is None:
            said = errors.decode(errors="replace").strip()[-300:]
            raise ToolError(f"the guest gave no answer (status {status}): {said}")
        self._guest_now = answer.ended
        return answer

    @override
    def begin(self, name: str, script: str) -> None:
        line = f"begin {name} {LONGEST} {shlex.quote(script)}; frame 0 0 none"
        self._answer(line, 0.0)
        self._begun.append(name)

    @override
    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        if cut:
            return self._cut.pop(name)
        self._begun.remove(name)
        answer = self._answer(f"finish 0 {name} {timeout:.0f}", timeout)
        timed_out(answer, name, timeout)
        return output_of(answer)

    @override
    def attach_disk(self, step: AttachDisk) -> None:
        self._plug(step.serial, attach(self._slots[step.serial]))

    @override
    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        # A cell's guest ends with its disks, so only a disk that a fault unplugs is unplugged.
        if isinstance(step, UnplugDisk):
            self._plug(step.serial, detach(self._slots[step.serial]))

    @override
    def ask_server(self, step: AskServer) -> str:
        serial = serial_of(step.socket)
        if step.line == STATISTICS:
            try:
                return counters(region.read(self._own_region).disks[serial])
            except region.ForgedError as error:
                raise ToolError(str(error)) from error
        done = self.guest(order(self._slots[serial], step), 60.0)
        return f"error {done.stderr.strip()}" if done.status else "ok"

    @override
    def limit_disk(self, step: LimitDisk) -> None:
        self._plug(step.serial, limit(self._slots[step.serial], step))

    @override
    def spoil_disk(self, step: SpoilDisk) -> None:
        self._plug(step.serial, spoil(self._slots[step.serial], step))

    def _plug(self, serial: str, script: str) -> None:
        done = self.guest(script, 60.0)
        if done.status:
            raise ToolError(f"changing the disk '{serial}' failed: {done.stderr.strip()}")

    # -- time

    @override
    def now(self) -> float:
        return self._guest_now

    @override
    def pause(self, seconds: float) -> None:
        self._answer(f"item 0 {seconds + 60:.0f} 'sleep {seconds:g}'", seconds)

    @override
    def pressure(self) -> Mapping[str, float]:
        # Nothing waited: the guest's clock stops while its CPU does.
        return {}

    @override
    def expect_io_within(self, patience: float) -> None:
        # Disks cannot hang: the guest computes them.
        pass

    @override
    def _alive(self, *, ask: bool) -> None:
        self._check_limits()
        guests.require_alive(self.record)
        if self._region is not None and (sentence := limits.exceeded(self._region)):
            guests.kill(self.record.path)
            raise LimitError(f"{sentence}; it was ended")
