"""The backend of a guest in real time: its files, libvirt domain, SSH shell and clock."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from lab.compile.guest.program import EVIDENCE, evidence
from lab.core import qemu_img
from lab.core.errors import (
    GuestError,
    HostError,
    LabError,
    LimitError,
    SilentError,
    ToolError,
    TroubleError,
    full,
    unwritable,
)
from lab.host.guest import registry as guests
from lab.host.guest import servers, snapshots
from lab.host.guest.console import Watch
from lab.host.guest.fair_time import FairTime
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.host.guest.libvirt.real_disks import RealDisks
from lab.host.guest.registry import GuestRecord
from lab.host.guest.sampling import Sampler
from lab.host.guest.ssh import directories, restored, shell
from lab.host.guest.ssh.channels import Running
from lab.host.guest.ssh.shell import Shell, banner, reach
from lab.host.guest.ssh.suite_tests import SuiteTests
from lab.host.guest.watchdog import IN_FLIGHT, Watchdog, read_in_flight
from lab.host.system import clock, files, load, process
from lab.model.execution.events import Notice, Sample, TestStarted
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BuildPlugin,
    DetachDisk,
    LimitDisk,
    Output,
    PassDisk,
    PowerCycle,
    RestoreGuest,
    SaveGuest,
    SealDisks,
    SendDirectory,
    SpoilDisk,
    StartGuest,
    StartServer,
    UnplugDisk,
    WipeDisk,
)

KNOW_ARRAYS: Final = "mdadm --detail --scan >> /etc/mdadm/mdadm.conf 2>/dev/null || true"
"""Shell line that lets udev assemble the guest's arrays when it boots again: the image's
``AUTO -all`` leaves all others alone."""
SILENCE: Final = 30.0
"""Seconds without output of a command after which the guest is checked for a hang."""
PING: Final = 10.0
"""Seconds between two queries of QEMU's monitor while the guest boots."""


def _notice(text: str) -> Notice:
    return Notice(cell=None, message=text)


class LiveBackend:
    """One guest in real time, with its processes and files on this host."""

    reboots: ClassVar = True
    """It can start again after a reboot of its own."""

    def __init__(
        self,
        record: GuestRecord,
        private_key: str,
        *,
        silence: float = SILENCE,
        scale: float = 1.0,
        tell: Callable[[Sample | TestStarted | Notice], None] = lambda _event: None,
    ) -> None:
        self.record = record
        self._silence = clock.limit(silence * scale)
        self._scale = scale
        self._private_key = private_key
        self._fair = FairTime(lambda: self.record.pid, lambda text: tell(_notice(text)))
        self._hypervisor = Hypervisor(record.path, scale=scale)
        self._lost: GuestError | None = None
        """Why the guest hangs; later calls fail at once."""
        self._real = RealDisks(self._hypervisor)
        shell.prepare()
        self._shell: Shell | None = None
        self._answered = self._answering = self._started = self._fair.now()
        self._restored = False
        self._servers: dict[str, servers.Server] = {}
        self._troubles: list[str] = []
        """Errors of servers that failed before they were ended. They are needed after the cell was
        undone, to explain its error."""
        self._running: dict[str, Running] = {}
        sampler = Sampler(lambda: load.processor(self.record.pid), tell)
        self._tell = tell
        self._watchdog = Watchdog(self._hypervisor.completed, self._in_flight, sampler.take)
        self._asking = False
        self._console: Watch | None = None

    def expect_io_within(self, patience: float) -> None:
        """Set the watchdog's limit in seconds: longest time without a completed request while
        requests are in flight."""
        self._watchdog.patience = clock.limit(patience * self._scale)

    # -- files and programs of the host

    def make_directory(self, path: str) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error, "made") from error

    def write_file(self, path: str, content: str, mode: int) -> None:
        """Write a small file. At no time is its mode wider than ``mode``."""
        files.write(Path(path), content, mode=mode, durable=False)

    def remove(self, path: str) -> None:
        """Remove a file or directory, if it exists."""
        try:
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path)
            else:
                Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"'{path}' cannot be removed: {error.strerror}") from error

    def host_command(self, argv: tuple[str, ...]) -> None:
        process.run(argv, timeout=120)

    def build_plugin(self, step: BuildPlugin) -> None:
        """Compile the source if it is not in the cache, and link to the result."""
        servers.link(step)

    def start_server(self, step: StartServer) -> None:
        """Start the process, and return when its socket accepts a connection."""
        self._servers[step.socket] = servers.Server(step)

    def stop_server(self, step: StartServer) -> None:
        """End the process, if it runs."""
        server = self._servers.pop(step.socket, None)
        if server is not None:
            if server.failed():
                self._troubles.append(server.trouble())
            server.stop()

    def ask_server(self, step: AskServer) -> str:
        """Send the line, and return the server's reply."""
        return servers.ask(step)

    # -- the guest's life

    def start_guest(self, step: StartGuest) -> None:
        """Start the domain, and record its process and port."""
        self._start(step.xml)

    def _start(self, xml: str) -> None:
        self._started = self._fair.now()
        self._lost = None
        self._hypervisor.start(xml)
        self._watch_console()
        self.record = replace(self.record, pid=self._hypervisor.pid, port=self._hypervisor.port())
        guests.write(self.record)

    def _watch_console(self) -> None:
        if self._console is not None:
            self._console.end()
        self._console = Watch(self.record.path)

    def save_guest(self, step: SaveGuest) -> None:
        """Save the guest as a snapshot, which ends the guest."""
        captures = {"environment.txt": self.guest(step.environment, 60).stdout}
        self.guest(step.zero, 60)
        self._wake()  # loads programs that a restored guest needs first into its page cache
        self.close()
        with snapshots.making(step.key) as place:
            self._hypervisor.save(place / snapshots.MEMORY)
            if step.over:
                root = self.record.path / snapshots.ROOT
                # A snapshot's root disk must depend only on its image: merge the overlays in
                # between.
                process.run(qemu_img.rebase(root, step.over), timeout=120)
            snapshots.publish(
                place,
                step.key,
                self.record,
                boot_seconds=self._answering - self._started,
                captures=captures,
            )

    def restore_guest(self, step: RestoreGuest) -> None:
        """Start the guest from a snapshot, and record its process and port."""
        self._hypervisor.restore(Path(step.state), step.saved_directory, step.directory)
        self._watch_console()
        self._restored = True
        self.record = replace(self.record, pid=self._hypervisor.pid, port=self._hypervisor.port())
        guests.write(self.record)

    def power_cycle(self, step: PowerCycle) -> str:
        """Kill QEMU, drop the servers' caches, and start the guest again; return the servers'
        replies.

        A server may still write some data to the medium before its cache is dropped, like a drive
        whose power fails a moment after the host's. The guest's record keeps its owner.
        """
        xml = self._hypervisor.definition()
        guests.kill(self.record.path)
        answers = [f"{socket} {servers.order(socket, 'lose')}\n" for socket in step.lose]
        for running in self._running.values():
            running.over()
        self.close()
        self._hypervisor.forget()
        self._restored = False
        self._start(xml)
        return "".join(answers)

    def leave_up(self) -> None:
        """Prepare the guest for its life without the lab: it can reboot, and `poweroff` ends QEMU.

        Its array is assembled again after a reboot. A guest that the lab watches ends with its
        first reboot: what a cell has measured before it would be lost in silence.
        """
        if self.reboots and self._shell is not None:
            self.guest(KNOW_ARRAYS, 60)
        self._hypervisor.leave_up(reboots=self.reboots)

    def attach(self) -> None:
        """Find a guest that another process started."""
        self._hypervisor.attach()

    def destroy_guest(self) -> None:
        """End the domain, and wait until its process is gone."""
        self.close()
        if self._console is not None:
            self._console.end()
        try:
            self._hypervisor.destroy()
        except TroubleError:
            pass  # the next lines kill QEMU by its process id, even after a partial start
        finally:
            guests.end_processes(self.record.path)
            self._hypervisor.forget_calls()
            self._real.release()

    def close(self) -> None:
        """Close the connection; the guest continues."""
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def release(self) -> None:
        """Also release libvirt and the disks' servers; the guest continues.

        From then on another process limits its console log and its memory region.
        """
        self.close()
        if self._console is not None:
            self._console.end()
        process.start_watcher(
            process.python(
                *("-m", "lab.host.guest.console", str(self.record.path), str(self._most_data()))
            )
        )
        for server in self._servers.values():
            server.let_go()
        self._hypervisor.close()

    def _most_data(self) -> int:
        """Return the most bytes of data in the guest's memory region; 0: it has none."""
        return 0

    def wait_for_ssh(self, timeout: float) -> None:
        """Wait for the SSH banner, then connect. ``timeout`` in seconds that the guest gets."""
        asked = began = clock.now()
        deadline = self._fair.now() + timeout
        while (connection := self._reach(self._within(deadline))) is None:
            self._alive(ask=False)
            if clock.now() - asked > PING:
                self._hypervisor.require_answer()
                asked = clock.now()
            if self._fair.now() >= deadline:
                whole = clock.now() - began
                busy = whole - timeout if whole > 1.5 * timeout else 0.0
                why = f", and waited {busy:.0f} more for the host's CPU" if busy else ""
                dead = self._dead(
                    f"the guest '{self.record.id}' did not answer on SSH within"
                    f" {timeout:.0f} seconds{why}"
                )
                raise SilentError(dead.message, hint=dead.hint)
            clock.pause(0.1)
        self._shell = Shell.connect(
            connection,
            private_key=self._private_key,
            host_key=self.record.host_key,
            alive=lambda: self._alive(ask=True),
            timeout=60.0,
            scale=self._scale,
            time=self._fair.now,
        )
        self._answered = self._answering = self._fair.now()
        if self._restored:
            self._wake()

    def _reach(self, timeout: float) -> socket.socket | None:
        return reach(self.record.port, timeout, pid=self.record.pid)

    def _within(self, deadline: float) -> float:
        return min(5.0, max(0.5, deadline - self._fair.now()))

    def _wake(self) -> None:
        done = self.guest(restored.script(), 60)
        if done.status != 0:
            raise ToolError(f"setting the guest's clock failed: {done.stderr.strip()}")

    def attach_disk(self, step: AttachDisk) -> None:
        self._hypervisor.plug(step.xml)
        self._hypervisor.check_limits(step.serial, step.xml)

    def pass_disk(self, step: PassDisk) -> None:
        """Claim a real disk and pass it to the guest; ``HostError`` lists the objections."""
        self._real.hand_over(step, self.record.pid)
        self._hypervisor.check_limits(step.serial, step.xml)

    def return_disk(self, step: PassDisk) -> None:
        """Return a real disk to the host, if it was passed."""
        self._real.take_back(step, alive=bool(guests.qemu_pids(self.record.path)))

    def limits_of(self, serial: str) -> dict[str, int]:
        """Return the limits that QEMU applies to a disk, by libvirt's names."""
        return self._hypervisor.limits(serial)

    def wipe_disk(self, step: WipeDisk) -> None:
        """Zero a disk through QEMU's block layer, and check that its file has no data extents."""
        self._hypervisor.wipe(step.serial, step.size)
        asked = process.run(qemu_img.extents(step.path, qemu_img.format_of(step.path)), timeout=60)
        left = sum(e["length"] for e in json.loads(asked.stdout) if e["data"] or not e["zero"])
        if left:
            raise GuestError(
                f"wiping the disk '{step.serial}' failed: {left} bytes of data are left"
            )

    def seal_disks(self, step: SealDisks) -> None:
        raise AssertionError(f"{len(step.disks)} disks of a sealed guest, for a guest in real time")

    def limit_disk(self, step: LimitDisk) -> None:
        """Change the limits of a plugged disk, and verify them."""
        self._hypervisor.limit(step.serial, step.limits)
        found = {k: v for k, v in self.limits_of(step.serial).items() if k in step.limits}
        if found != step.limits:
            raise ToolError(
                f"the limits of the disk '{step.serial}' are wrong:"
                f" expected {step.limits}, found {found}"
            )

    def spoil_disk(self, step: SpoilDisk) -> None:
        """Write bytes to a plugged disk without the guest's knowledge, and verify its file."""
        self._hypervisor.spoil(step.serial, step.offset, step.length, step.pattern)
        path, form = self._hypervisor.file_of(step.serial)
        argv = qemu_img.compare(path, form, step.pattern, step.offset, step.length)
        asked = process.run(argv, timeout=60, check=False)
        if asked.status or asked.stdout.strip():
            said = (asked.stdout or asked.stderr).strip()
            raise GuestError(
                f"corrupting the disk '{step.serial}' failed: {step.length} bytes from"
                f" {step.offset} on were not written ({said})"
            )

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        """Unplug a disk, if the guest runs."""
        if guests.qemu_pids(self.record.path):
            self._hypervisor.unplug(step.xml, step.serial)

    def begin(self, name: str, script: str) -> None:
        """Start shell lines in their own shell."""
        if self._shell is None:
            raise GuestError(f"no SSH connection to the guest '{self.record.id}'")
        self._running[name] = self._shell.start(script)

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        """Wait until they end, and return their output. ``cut``: the guest was killed; return the
        output so far."""
        running = self._running.pop(name)
        if cut:
            return running.over()
        self._answered = self._fair.now()
        self._watchdog.begin()
        try:
            return running.end(timeout * self._scale)
        finally:
            self._watchdog.end()

    def send_directory(self, step: SendDirectory) -> None:
        if self._shell is None:
            raise GuestError(f"no SSH connection to the guest '{self.record.id}'")
        directories.send(self._shell, step, self.record.path)

    def guest(self, script: str, timeout: float) -> Output:
        """Run shell lines as root in the guest."""
        if self._shell is None:
            raise GuestError(f"no SSH connection to the guest '{self.record.id}'")
        if self._lost is not None:
            raise self._lost
        self._answered = self._fair.now()
        self._watchdog.begin()
        try:
            heard = SuiteTests(self._tell).take
            return self._shell.run(script, timeout * self._scale, heard)
        except GuestError as error:
            self._alive(ask=False)
            if error.hint:
                raise
            dead = self._dead(error.message)
            dead.late = error.late
            raise dead from error
        finally:
            self._watchdog.end()

    def progress(self) -> str:
        """Return ``/proc/mdstat``; empty: the guest does not answer."""
        try:
            assert self._shell is not None
            return self._shell.run("cat /proc/mdstat", self._silence).stdout
        except LabError:
            return ""

    def evidence(self) -> Mapping[str, str]:
        """Return raw output that explains a failure, if the guest still responds."""
        try:
            return evidence(self.guest(EVIDENCE, 60).stdout)
        except LabError:
            return {}

    def _check_limits(self) -> None:
        """``LimitError``: the guest was ended because its console log was too large."""
        if self._console is not None and self._console.sentence:
            raise LimitError(self._console.sentence)

    def _alive(self, *, ask: bool) -> None:
        """Raise ``GuestError`` with the end of the console if the guest has died or hangs."""
        self._check_limits()
        guests.require_alive(self.record)
        if why := self._hypervisor.stopped():
            raise full(why)
        if ask and not self._asking:
            self._watchdog.look()
        if ask and self._fair.now() - self._answered > self._silence:
            if not self._answers():
                self._lost = self._dead(
                    f"the guest '{self.record.id}' hangs: no answer on SSH for"
                    f" {self._silence:.0f} seconds"
                )
                raise self._lost
            self._answered = self._fair.now()

    def _answers(self) -> bool:
        """Return whether the guest's SSH server answers within the limit of silence."""
        deadline = self._fair.now() + self._silence
        while not banner(self.record.port, timeout=self._silence, pid=self.record.pid):
            if self._fair.now() >= deadline:
                return False
        return True

    def _in_flight(self) -> dict[str, int]:
        """Return the number of waiting requests by serial, from the guest's kernel.

        The kernel does not count flushes (``blk_kick_flush`` makes a request without a partition).
        So a disk whose server ended or is stopped counts as one with a waiting request.
        """
        assert self._shell is not None
        self._asking = True
        try:
            found = read_in_flight(self._shell.run(IN_FLIGHT, self._silence).stdout)
        finally:
            self._asking = False
        return found | {place: 1 for place, s in self._servers.items() if s.trouble()}

    def cause(self, error: LabError) -> GuestError | None:
        """Return the end of the guest or of a disk server that caused an error; ``None``: both run.

        A dead guest makes calls of libvirt and of tools fail too. Those errors are only effects.
        """
        now = [trouble for s in self._servers.values() if (trouble := s.trouble())]
        if troubles := [*self._troubles, *now]:
            return GuestError("; ".join([*troubles, error.message]), hint=error.hint)
        if isinstance(error, GuestError):
            return error
        if isinstance(error, LimitError):
            return None
        if self._lost is not None:
            return self._lost
        try:
            self._alive(ask=False)
        except GuestError as found:
            return found
        return None

    def _dead(self, sentence: str) -> GuestError:
        return guests.dead(self.record, sentence)

    def pressure(self) -> Mapping[str, float]:
        """Return the seconds that the guest's QEMU ran and waited, and the host's pressure."""
        return load.pressure(self.record.pid)

    # -- time

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        return clock.now()

    def pause(self, seconds: float) -> None:
        clock.pause(seconds)
