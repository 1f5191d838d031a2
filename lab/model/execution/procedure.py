"""Steps and procedures. A guest and a cell each compile to a procedure, a list of steps.

Steps are data. Each renders itself as shell lines, and names the calls of `Backend` that run and
undo it. ``lab.run.steps`` runs them, and undoes them in reverse order when the procedure ends.
"""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Protocol

from pydantic import Field
from typing_extensions import override

import lab
from lab.core.base import Model

READING: Final = 120.0
"""Timeout in seconds for what comes before a workload: drop caches, read counters."""
UNREST: Final = "unrest"
"""First word of the line that says what was not at rest when a workload began."""
SOURCES: Final = Path(lab.__file__).resolve().parents[1]
_ASK: Final = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline(), end='')"
)
"""Program that sends one line to a server's socket, and prints the reply."""
_PORT: Final = (
    "PORT=$(virsh -q -c \"$URI\" qemu-monitor-command lab --hmp 'info usernet' |",
    "  sed -n 's/.*HOST_FORWARD\\] *[0-9]* *127.0.0.1 *\\([0-9]*\\).*/\\1/p')",
)
_ENDED: Final = 'while kill -0 "$PID" 2>/dev/null; do sleep 0.1; done'
Undo = Callable[..., None]
"""Registers a function and its arguments; it is called when the procedure ends."""


def words(*argv: str) -> str:
    """Return the command as a line of shell, quoted where necessary."""
    return shlex.join(argv)


def plain(text: str) -> str:
    """Return the text on one line, for use in a shell comment."""
    return " ".join(text.split())


def comment(text: str) -> str:
    """Return the text as one line of shell comment."""
    return f"# {plain(text)}"


def here(
    command: str, text: str, *, variables: bool = False, background: bool = False
) -> Iterator[str]:
    """Yield a command with the text as here-document. ``variables``: the shell expands them."""
    mark = "END"
    while f"\n{mark}\n" in f"\n{text}\n":
        mark += "_"
    end = " &" if background else ""
    yield f"{command} <<{mark}" if variables else f"{command} <<'{mark}'{end}"
    yield text.rstrip("\n")
    yield mark


def _expected(expect: dict[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in expect.items())


SSH_FILES: Final = "-o 'IdentityFile=${LAB_KEY}' -o 'UserKnownHostsFile=${LAB_KNOWN_HOSTS}'"
"""Options of ssh and scp in scripts. ssh reads these variables of its environment; in an option a
blank, ``%`` or quote of a path has a meaning (``ssh_config(5)``)."""


class BaseStep(Model):
    """Common interface of all steps."""

    doing: ClassVar[str]
    """Template of `progress`; its placeholders are the step's fields."""

    @property
    def progress(self) -> str:
        """Description of the running step, for the progress display."""
        return self.doing.format_map(dict(self))

    @abstractmethod
    def shell(self) -> Iterator[str]:
        """Yield the step as shell lines; ``guest`` in them runs its stdin as root in the guest."""

    def shell_undo(self) -> Iterator[str]:
        """Yield the shell lines that undo the step."""
        yield from ()


class HostStep(BaseStep):
    """A step that `Backend` does directly, and that has no result."""

    @abstractmethod
    def apply(self, bench: Backend, undo: Undo) -> None:
        """Do the step. It calls ``undo`` before each action that can fail half-way."""


class MakeDirectory(HostStep):
    """Create a directory of the lab. Undo: remove it with its contents."""

    kind: Literal["make_directory"] = "make_directory"
    doing: ClassVar = "writing {path}"
    path: str

    @override
    def shell(self) -> Iterator[str]:
        yield f"mkdir -p {shlex.quote(self.path)}"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.remove, self.path)
        bench.make_directory(self.path)


class WriteFile(HostStep):
    """Write a small text file on the host. Undo: remove it."""

    kind: Literal["write_file"] = "write_file"
    doing: ClassVar = "writing {path}"
    path: str
    content: str
    mode: int = 0o644
    secret: bool = False
    """``plan`` does not print the content."""

    @override
    def shell(self) -> Iterator[str]:
        path = shlex.quote(self.path)
        yield f"install -m {self.mode:o} /dev/null {path}"
        yield from here(f"cat > {path}", self.content, variables=self.secret)

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.remove, self.path)
        bench.write_file(self.path, self.content, self.mode)


class HostCommand(HostStep):
    """Run a program on the host without a shell. Undo: remove the files that it created."""

    kind: Literal["host_command"] = "host_command"
    doing: ClassVar = "{label}"
    label: str
    argv: tuple[str, ...]
    creates: tuple[str, ...] = ()
    lasting: bool = False
    """Keep the created files until the guest's directory is removed."""

    @override
    def shell(self) -> Iterator[str]:
        yield shlex.join(self.argv)

    @override
    def shell_undo(self) -> Iterator[str]:
        if self.creates:
            yield f"rm -f {shlex.join(self.creates)}"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        for path in () if self.lasting else self.creates:
            undo(bench.remove, path)
        bench.host_command(self.argv)


class StartGuest(HostStep):
    """Start a transient domain from XML. Undo: destroy it."""

    kind: Literal["start_guest"] = "start_guest"
    doing: ClassVar = "starting the guest"
    name: str
    xml: str
    xml_path: str
    """File in which the XML is stored, for diagnosis."""
    console: str
    """Path of the console log."""

    @override
    def shell(self) -> Iterator[str]:
        path = shlex.quote(self.xml_path)
        yield from here(f"cat > {path}", self.xml)
        yield f'virsh -q -c "$URI" create {path}'
        yield from _PORT

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.write_file(self.xml_path, self.xml, 0o644)
        undo(bench.destroy_guest)
        bench.start_guest(self)


class SaveGuest(HostStep):
    """Save the guest's memory to a file, which ends the guest, and store it as a snapshot."""

    kind: Literal["save_guest"] = "save_guest"
    doing: ClassVar = "saving a snapshot of the guest"
    key: str
    """Digest of all properties that the guest must share with those restored from the snapshot."""
    environment: str
    """Script that prints the guest's environment; its output is stored with the snapshot."""
    zero: str
    """Script that fills the guest's free memory with zeros, so that the snapshot is small."""
    over: str = ""
    """Disk of the image to rebase its root disk onto; empty: it is based on that already."""

    @override
    def shell(self) -> Iterator[str]:
        yield "# a snapshot saves the boot; by hand the guest boots"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.save_guest(self)


class RestoreGuest(HostStep):
    """Start a domain from a snapshot, with this guest's own files. Undo: destroy it."""

    kind: Literal["restore_guest"] = "restore_guest"
    doing: ClassVar = "restoring the guest"
    key: str
    state: str
    """Path of the saved memory."""
    saved_directory: str
    """Directory of the guest that was saved. Its paths are replaced with this guest's."""
    directory: str
    console: str

    @override
    def shell(self) -> Iterator[str]:
        yield "# a snapshot saves the boot; by hand the guest boots"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.destroy_guest)
        bench.restore_guest(self)


class WaitForSsh(HostStep):
    """Wait for sshd's banner and connect. Only the pinned host key is accepted."""

    kind: Literal["wait_for_ssh"] = "wait_for_ssh"
    doing: ClassVar = "booting"
    timeout: float
    """Seconds."""

    @override
    def shell(self) -> Iterator[str]:
        yield 'echo "[127.0.0.1]:$PORT $HOST_KEY_PUBLIC" > "$DIRECTORY/known_hosts"'
        yield f"# at most {self.timeout:.0f} seconds:"
        yield 'until timeout 10 ssh-keyscan -p "$PORT" 127.0.0.1 2>/dev/null | grep -q ed25519'
        yield "do sleep 1; done"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.wait_for_ssh(self.timeout)


class BuildPlugin(HostStep):
    """Compile a C source of the lab once per host, and link to the result. Undo: unlink it."""

    kind: Literal["build_plugin"] = "build_plugin"
    doing: ClassVar = "compiling {source}"
    source: str
    """Path, relative to the directory that contains the package ``lab``."""
    headers: tuple[str, ...] = ()
    """Paths of the lab's headers that it includes."""
    link: str
    flags: tuple[str, ...]
    """Flags of the compiler."""
    libraries: tuple[str, ...] = ()

    @override
    def shell(self) -> Iterator[str]:
        source = str(SOURCES / self.source)
        yield shlex.join(("gcc", *self.flags, "-o", self.link, source, *self.libraries))

    @override
    def shell_undo(self) -> Iterator[str]:
        yield f"rm -f {shlex.quote(self.link)}"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.remove, self.link)
        bench.build_plugin(self)


class StartServer(HostStep):
    """Start a process on the host that serves a unix socket. Undo: end it and wait for its exit.

    Its command line must contain the guest's directory: garbage collection finds it by that.
    """

    kind: Literal["start_server"] = "start_server"
    doing: ClassVar = "{label}"
    label: str
    argv: tuple[str, ...]
    socket: str
    """The server is ready when this socket accepts a connection."""
    log: str
    """File for its output."""
    timeout: float = 20.0
    """Seconds until it must be ready."""

    @override
    def shell(self) -> Iterator[str]:
        log, socket = shlex.quote(self.log), shlex.quote(self.socket)
        yield f"nohup {shlex.join(self.argv)} > {log} 2>&1 < /dev/null &"
        yield f"echo $! > {socket}.pid"
        yield f"until [ -S {socket} ]; do sleep 0.1; done"

    @override
    def shell_undo(self) -> Iterator[str]:
        socket = shlex.quote(self.socket)
        yield f'PID=$(cat {socket}.pid) && kill "$PID"'
        yield f"{_ENDED}; rm -f {socket}.pid"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.stop_server, self)
        bench.start_server(self)


class AskServer(BaseStep):
    """Send one line to a server's unix socket. The reply, one line, can be stored as raw output."""

    kind: Literal["ask_server"] = "ask_server"
    doing: ClassVar = "{label}"
    label: str
    socket: str
    line: str
    capture: str = ""
    """Name of the raw output; empty: the reply is not stored. A reply that begins with ``error``
    fails the cell."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"{self.label}:")
        yield f"python3 -c {shlex.quote(_ASK)} {shlex.join((self.socket, self.line))}"


class AttachDisk(HostStep):
    """Hot-plug a disk. Undo: unplug it and wait until it is gone."""

    kind: Literal["attach_disk"] = "attach_disk"
    doing: ClassVar = "plugging in {serial}"
    serial: str
    xml: str
    xml_path: str
    lasting: bool = False
    """Leave it for the next cell, which wipes it or unplugs it."""

    @override
    def shell(self) -> Iterator[str]:
        path = shlex.quote(self.xml_path)
        yield from here(f"cat > {path}", self.xml)
        yield f'virsh -q -c "$URI" attach-device lab {path} --live'

    @override
    def shell_undo(self) -> Iterator[str]:
        path = shlex.quote(self.xml_path)
        yield f'virsh -q -c "$URI" detach-device lab {path} --live'
        yield f"rm -f {path}"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.write_file(self.xml_path, self.xml, 0o644)
        if not self.lasting:
            undo(bench.remove, self.xml_path)
        bench.attach_disk(self)
        if not self.lasting:
            undo(bench.detach_disk, self)


class PassDisk(HostStep):
    """Claim a real disk, and pass it to the guest if all safety checks pass. Undo: return it.

    The disk's data is neither removed nor wiped.
    """

    kind: Literal["pass_disk"] = "pass_disk"
    doing: ClassVar = "passing {device}"
    serial: str
    """Its serial in the guest."""
    device: str
    """Its name in ``/dev/disk/by-id``."""
    size: int
    """Expected size in bytes."""
    device_serial: str
    """Expected serial."""
    erase: tuple[str, ...] = ()
    """Serials that the user typed. Only disks with one of them are writable for the guest."""
    xml: str
    """libvirt's ``<disk>`` element."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"the lab's guard claims {self.device} and hands QEMU what it opened:")
        yield comment("no command here does that, for the disk's sake")

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        undo(bench.return_disk, self)
        bench.pass_disk(self)


class WipeDisk(HostStep):
    """Zero a plugged disk through QEMU's block layer, and verify it."""

    kind: Literal["wipe_disk"] = "wipe_disk"
    doing: ClassVar = "wiping {serial}"
    serial: str
    path: str
    """Its file."""
    size: int
    """Bytes."""

    @override
    def shell(self) -> Iterator[str]:
        yield "# by hand each cell has fresh disks"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.wipe_disk(self)


class DetachDisk(HostStep):
    """Unplug a disk that an earlier cell left, wait until it is gone, and remove its file."""

    kind: Literal["detach_disk"] = "detach_disk"
    doing: ClassVar = "unplugging {serial}"
    serial: str
    xml: str
    path: str

    @override
    def shell(self) -> Iterator[str]:
        yield "# by hand each cell has fresh disks"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.detach_disk(self)
        bench.remove(self.path)


class GuestCommand(BaseStep):
    """Run shell lines as root in the guest; failure fails the cell. Undo: other shell lines."""

    kind: Literal["guest_command"] = "guest_command"
    doing: ClassVar = "{label}"
    label: str
    script: str
    timeout: float = 60.0
    """Seconds on the reference host."""
    undo: str = ""
    capture: str = ""
    """Name of the raw output for its output; empty: the output is stored only on failure."""
    waits: bool = False
    """It mostly waits for disks, so other guests may compute concurrently."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"{self.label}:")
        yield from here("guest", self.script)

    @override
    def shell_undo(self) -> Iterator[str]:
        if self.undo:
            yield from here("guest", self.undo)


class Verify(BaseStep):
    """Verify a precondition: run a script, and compare its ``key=value`` lines with ``expect``.

    A difference fails the cell before its first measurement.
    """

    kind: Literal["verify"] = "verify"
    doing: ClassVar = "checking {name}"
    name: str
    script: str
    expect: dict[str, str]
    timeout: float = 60.0

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"must print {_expected(self.expect)}:")
        yield from here("guest", self.script)


class WaitFor(BaseStep):
    """Run a ``key=value`` script until it prints the expected values or the timeout is over."""

    kind: Literal["wait_for"] = "wait_for"
    doing: ClassVar = "{label}"
    label: str
    script: str
    expect: dict[str, str]
    timeout: float
    interval: float = 0.1
    hits: int = 1
    """How many times in a row the values must agree."""

    @override
    def shell(self) -> Iterator[str]:
        limit = f"{self.timeout:.0f} seconds"
        yield comment(f"again until it prints {_expected(self.expect)}, at most {limit}:")
        yield from here("guest", self.script)


class SendDirectory(HostStep):
    """Copy a directory of the host into the guest, as one tar file."""

    kind: Literal["send_directory"] = "send_directory"
    doing: ClassVar = "copying {workload} into the guest"
    workload: str
    """Name of the workload that reads it."""
    source: str
    """Path on the host; empty: not given."""
    target: str
    """Path of the tar file in the guest."""
    left_out: tuple[str, ...]
    """Names of directories to leave out."""
    most: int
    """Most bytes of its files; a larger directory is refused."""

    @override
    def shell(self) -> Iterator[str]:
        given = self.source or "a directory that is not given"
        yield comment(f"{self.workload}, from {given}:")
        packed, target = '"$DIRECTORY/suite.tar"', f"root@127.0.0.1:{self.target}"
        source = shlex.quote(self.source) if self.source else '"$SUITE"'
        out = " ".join(f"--exclude={name}" for name in self.left_out)
        yield f"tar -c {out} -C {source} -f {packed} ."
        yield (
            f'scp -q -F none -P "$PORT" {SSH_FILES} -o LogLevel=ERROR {packed}'
            f" {shlex.quote(target)}"
        )

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.send_directory(self)


class Timed(BaseStep):
    """Run a workload's command, with no other step at the same time. Its output is raw output."""

    kind: Literal["timed"] = "timed"
    doing: ClassVar = "{workload}"
    workload: str
    trial: int
    before: str = ""
    """Shell lines immediately before it: drop caches, drain throttle buckets, read counters."""
    script: str
    after: str = ""
    """Shell lines after it: read counters."""
    timeout: float
    expected_seconds: float | None = None
    """For progress only."""

    @override
    def shell(self) -> Iterator[str]:
        if self.before:
            yield comment(f"before workload {self.workload}, trial {self.trial}:")
            yield from here("guest", self.before)
        yield comment(f"workload {self.workload}, trial {self.trial}:")
        yield from here("guest", self.script)
        if self.after:
            yield comment("and after it:")
            yield from here("guest", self.after)


class BeginWorkload(BaseStep):
    """Start a workload's command in its own shell, without waiting for it."""

    kind: Literal["begin_workload"] = "begin_workload"
    doing: ClassVar = "{workload}"
    workload: str
    trial: int
    before: str = ""
    """Shell lines before it: drop caches, drain throttle buckets, read counters."""
    before_timeout: float = Field(default=READING, exclude_if=lambda seconds: seconds == READING)
    """Limit of ``before`` in seconds."""
    script: str

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"before workload {self.workload}, trial {self.trial}:")
        yield from here("guest", self.before)
        yield comment(f"workload {self.workload}, trial {self.trial}, while the rest goes on:")
        yield from here("guest", self.script, background=True)
        yield "WORKLOAD=$!"


class EndWorkload(BaseStep):
    """Wait for a running workload, and store its output."""

    kind: Literal["end_workload"] = "end_workload"
    doing: ClassVar = "{workload}"
    workload: str
    trial: int
    after: str = ""
    """Shell lines after it: read counters."""
    timeout: float
    cut: bool = False
    """Its guest was killed while it ran. The output is what had arrived before."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"the end of workload {self.workload}, trial {self.trial}:")
        yield 'wait "$WORKLOAD"'
        if self.after:
            yield from here("guest", self.after)


class Pause(HostStep):
    """Wait while a workload runs."""

    kind: Literal["pause"] = "pause"
    doing: ClassVar = "{seconds:g} seconds into it"
    seconds: float

    @override
    def shell(self) -> Iterator[str]:
        yield f"sleep {self.seconds:g}"

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.pause(self.seconds)


class PowerCycle(BaseStep):
    """End QEMU as in a power cut (SIGKILL), and start the guest again with the same disks.

    The disks' servers outlive QEMU. The servers of ``lose`` then discard their volatile caches. In
    virtual time the guest ends itself, and all disks discard their caches if ``lose`` has any.
    """

    kind: Literal["power_cycle"] = "power_cycle"
    doing: ClassVar = "cutting the power"
    lose: tuple[str, ...] = ()
    """Control sockets of the servers."""
    capture: str
    """Name of the raw output: the servers' replies."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment("the power fails, and comes back:")
        yield 'virsh -q -c "$URI" dumpxml lab --inactive > "$DIRECTORY/again.xml"'
        yield 'PID=$(cat "$DIRECTORY/run/qemu/lab.pid") && kill -9 "$PID"'
        for socket in self.lose:
            yield f"python3 -c {shlex.quote(_ASK)} {shlex.join((socket, 'lose'))}"
        yield _ENDED
        yield 'virsh -q -c "$URI" create "$DIRECTORY/again.xml"'
        yield from _PORT


class UnplugDisk(HostStep):
    """Unplug a disk from the running guest even if it is in use; its file stays."""

    kind: Literal["unplug_disk"] = "unplug_disk"
    doing: ClassVar = "unplugging {serial}"
    serial: str
    xml: str

    @override
    def shell(self) -> Iterator[str]:
        yield from here('virsh -q -c "$URI" detach-device lab /dev/stdin --live', self.xml)

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.detach_disk(self)


class LimitDisk(HostStep):
    """Set a plugged disk's limits, by libvirt's names; limits that are left out are removed."""

    kind: Literal["limit_disk"] = "limit_disk"
    doing: ClassVar = "limiting {serial}"
    serial: str
    limits: dict[str, int]

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"other limits for {self.serial}, whose name `virsh domblklist` has:")
        limits = (f"--{k.replace('_', '-')} {v}" for k, v in self.limits.items())
        command = " ".join(("blkdeviotune lab", f'"$NAME_OF_{self.serial}"', *limits))
        yield f'virsh -q -c "$URI" {command} --live'

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.limit_disk(self)


class SpoilDisk(HostStep):
    """Write bytes to a disk through QEMU's block layer, without the guest's knowledge.

    In virtual time the block driver changes the bytes, by exclusive or with the pattern.
    """

    kind: Literal["spoil_disk"] = "spoil_disk"
    doing: ClassVar = "corrupting {serial}"
    serial: str
    offset: int
    length: int
    pattern: int
    """Value of each written byte."""

    @override
    def shell(self) -> Iterator[str]:
        yield comment(f"bytes of {self.serial}, whose device `info block` has:")
        write = f"write -P {self.pattern} {self.offset} {self.length}"
        command = f'qemu-io -d $DEVICE_OF_{self.serial} \\"{write}\\"'
        yield f'virsh -q -c "$URI" qemu-monitor-command lab --hmp "{command}"'

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.spoil_disk(self)


class DiskLimit(Model):
    """One leaky bucket of QEMU: units per second, rate of a burst, and its length in seconds."""

    average: int
    burst: int = 0
    seconds: int = 0


class SealedDisk(Model):
    """A disk of the lab's block driver, in a sealed guest."""

    serial: str
    size: int
    """Bytes."""
    rotational: bool = True
    write_back: bool = True
    """It announces a volatile cache, so the kernel sends flushes."""
    partitions: bool = False
    """The kernel reads its partition table when the disk appears."""
    group: int = 0
    """Disks with the same number share their limits; 0: the disk has its own."""
    logical: int = Field(default=512, exclude_if=lambda size: size == 512)
    """Logical block size in bytes."""
    physical: int = Field(default=512, exclude_if=lambda size: size == 512)
    """Physical block size in bytes."""
    operation_size: int = 0
    limits: dict[str, DiskLimit] = {}
    """By names such as ``bytes_total`` and ``operations_write``."""
    drive: dict[str, int] = {}
    """Parameters of a modelled drive, by names of ``struct lab_drive_parameters``; empty: none."""


class SealDisks(HostStep):
    """Create all disks of a sealed guest, in a memory region that it shares with the host.

    The guest starts here, and runs all steps up to the next step of this class: one trial.
    """

    kind: Literal["seal_disks"] = "seal_disks"
    doing: ClassVar = "running the sealed guest"
    disks: tuple[SealedDisk, ...]
    seed: int = 1
    """Seed of the trial."""
    disturb: bool = False
    """The seed disturbs requests and threads."""

    @override
    def shell(self) -> Iterator[str]:
        trial = f", with seed {self.seed}" if self.seed > 1 else ""
        trial += ", which disturbs requests and threads" if self.disturb else ""
        yield comment(f"a sealed guest has these disks from its start, by the lab's driver{trial}:")
        yield from (comment(disk.model_dump_json()) for disk in self.disks)

    @override
    def apply(self, bench: Backend, undo: Undo) -> None:
        bench.seal_disks(self)


Step = Annotated[
    MakeDirectory
    | WriteFile
    | HostCommand
    | StartGuest
    | SaveGuest
    | RestoreGuest
    | WaitForSsh
    | BuildPlugin
    | StartServer
    | AskServer
    | AttachDisk
    | PassDisk
    | WipeDisk
    | DetachDisk
    | GuestCommand
    | Verify
    | WaitFor
    | SendDirectory
    | Timed
    | BeginWorkload
    | EndWorkload
    | Pause
    | PowerCycle
    | UnplugDisk
    | LimitDisk
    | SpoilDisk
    | SealDisks,
    Field(discriminator="kind"),
]


class Procedure(Model):
    """Steps in order. ``name`` is the name of the guest or cell."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Result of a command in the guest."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    """Wall time on the host, from sending the command to receiving its exit status."""


class Backend(Protocol):
    """One live guest. Each method raises a ``LabError`` with the cause."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""

    def write_file(self, path: str, content: str, mode: int) -> None:
        """Write a small file; its mode is never wider than ``mode``."""

    def remove(self, path: str) -> None:
        """Remove a file or directory, if it exists."""

    def host_command(self, argv: tuple[str, ...]) -> None:
        """Run a program on the host."""

    def build_plugin(self, step: BuildPlugin) -> None:
        """Compile the source if needed, and link to the result."""

    def start_server(self, step: StartServer) -> None:
        """Start the process, and return when its socket accepts a connection."""

    def stop_server(self, step: StartServer) -> None:
        """End the process, if it runs."""

    def ask_server(self, step: AskServer) -> str:
        """Send the line, and return the server's reply."""

    def start_guest(self, step: StartGuest) -> None:
        """Start the domain."""

    def save_guest(self, step: SaveGuest) -> None:
        """Save the guest as a snapshot, which ends the guest."""

    def restore_guest(self, step: RestoreGuest) -> None:
        """Start the guest from a snapshot."""

    def destroy_guest(self) -> None:
        """End the domain at once, and wait until its process is gone."""

    def wait_for_ssh(self, timeout: float) -> None:
        """Wait for a connection; only the pinned host key is accepted."""

    def attach_disk(self, step: AttachDisk) -> None:
        """Plug a disk in."""

    def pass_disk(self, step: PassDisk) -> None:
        """Claim a real disk and pass it to the guest; ``HostError`` lists the failed checks."""

    def return_disk(self, step: PassDisk) -> None:
        """Return a real disk to the host, if it was passed."""

    def wipe_disk(self, step: WipeDisk) -> None:
        """Zero a plugged disk without its limits, and verify it."""

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        """Unplug a disk, and wait until it is gone."""

    def limit_disk(self, step: LimitDisk) -> None:
        """Change the limits of a plugged disk."""

    def spoil_disk(self, step: SpoilDisk) -> None:
        """Write bytes to a plugged disk without the guest's knowledge."""

    def seal_disks(self, step: SealDisks) -> None:
        """Create the disks of a sealed guest."""

    def power_cycle(self, step: PowerCycle) -> str:
        """Kill the guest and start it again; return the servers' replies."""

    def send_directory(self, step: SendDirectory) -> None:
        """Copy a directory of the host into the guest, as one tar file."""

    def guest(self, script: str, timeout: float) -> Output:
        """Run shell lines as root in the guest (``sh -e``, no standard input)."""

    def begin(self, name: str, script: str) -> None:
        """Start shell lines as root in their own shell; ``end`` takes the same name."""

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        """Wait until they end, and return their output. ``cut``: the guest was killed; return the
        output so far."""

    def pressure(self) -> Mapping[str, float]:
        """Return the seconds that the guest ran and waited; only differences are meaningful."""

    def progress(self) -> str:
        """Return ``/proc/mdstat`` after a command reached its time limit; empty: unknown."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""

    def pause(self, seconds: float) -> None:
        """Wait for this many seconds."""


Save = Callable[[str, str], None]
"""Stores a text as raw output under a name."""
