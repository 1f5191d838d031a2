"""A procedure: what a guest or a cell compiles to; a plain list of steps that can be printed.

Steps are data. ``lab.run.steps`` interprets them, and takes back whatever a step made when the
procedure ends, in the opposite order.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

from pydantic import Field

from lab.core.base import Model


def words(*argv: str) -> str:
    """One command as a line of shell, quoted where it must be."""
    return shlex.join(argv)


class MakeDirectory(Model):
    """A directory of the lab's own. Undo: remove it with everything in it."""

    kind: Literal["make_directory"] = "make_directory"
    path: str


class WriteFile(Model):
    """A small text file on the host. Undo: remove it."""

    kind: Literal["write_file"] = "write_file"
    path: str
    content: str
    mode: int = 0o644
    secret: bool = False
    """Not shown by ``plan``."""


class HostCommand(Model):
    """A program on the host, run without a shell. Undo: remove what it created."""

    kind: Literal["host_command"] = "host_command"
    label: str
    argv: tuple[str, ...]
    creates: tuple[str, ...] = ()
    lasting: bool = False
    """What it created stays with the guest, whose directory goes with everything in it."""


class StartGuest(Model):
    """A transient domain, started from XML. Undo: destroy it."""

    kind: Literal["start_guest"] = "start_guest"
    name: str
    xml: str
    xml_path: str
    """Where the XML is kept, for people and for evidence."""
    console: str
    """Path of the console log."""


class SaveGuest(Model):
    """Save the guest's memory to a file, which ends the guest; then keep it as a warm state."""

    kind: Literal["save_guest"] = "save_guest"
    key: str
    """Everything that a guest must share with the one that was saved, as a digest."""
    environment: str
    """Script that says what the guest is; its output is kept with the state."""
    zero: str
    """Script that fills the guest's free memory with zeros, so that it takes no room."""
    over: str = ""
    """The image's disk, on which its root disk is put again; empty where it stands on it."""


class RestoreGuest(Model):
    """Start a domain from a warm state, with this guest's own files. Undo: destroy it."""

    kind: Literal["restore_guest"] = "restore_guest"
    key: str
    state: str
    """Path of the saved memory."""
    saved_directory: str
    """Directory of the guest that was saved; its paths become this guest's."""
    directory: str
    console: str


class WaitForSsh(Model):
    """Wait for sshd's banner, connect, and refuse any host key but the pinned one."""

    kind: Literal["wait_for_ssh"] = "wait_for_ssh"
    timeout: float
    """Seconds."""


class BuildPlugin(Model):
    """Compile one of the lab's own C sources, once per host, and link to it. Undo: the link."""

    kind: Literal["build_plugin"] = "build_plugin"
    source: str
    """Path beside the package ``lab``."""
    link: str
    flags: tuple[str, ...]
    """The compiler's."""
    libraries: tuple[str, ...] = ()


class StartServer(Model):
    """A process on the host that serves a unix socket. Undo: end it, and wait until it is gone.

    The guest's directory must be on its command line, by which it is found should all else fail.
    """

    kind: Literal["start_server"] = "start_server"
    label: str
    argv: tuple[str, ...]
    socket: str
    """It is ready when this accepts a connection."""
    log: str
    """Where it may print."""
    timeout: float = 20.0
    """Seconds until it must be ready."""


class AskServer(Model):
    """One line to a server's unix socket; the line that it answers is kept as raw output."""

    kind: Literal["ask_server"] = "ask_server"
    label: str
    socket: str
    line: str
    capture: str = ""
    """Name of the raw output; empty: the answer is not kept. One that begins with ``error``
    fails the cell."""


class AttachDisk(Model):
    """Hot-plug a disk. Undo: unplug it and wait until it is gone."""

    kind: Literal["attach_disk"] = "attach_disk"
    serial: str
    xml: str
    xml_path: str
    lasting: bool = False
    """It stays for the next cell, which wipes it or unplugs it."""


class PassDisk(Model):
    """Claim a real disk, and hand it to the guest if nothing speaks against it. Undo: take it back.

    Nothing of the disk is removed or wiped by that.
    """

    kind: Literal["pass_disk"] = "pass_disk"
    serial: str
    """Its serial in the guest."""
    device: str
    """Its name in ``/dev/disk/by-id``."""
    size: int
    """Bytes that it must have."""
    device_serial: str
    """The serial that it must have."""
    erase: tuple[str, ...] = ()
    """Serials that were typed: the guest may write to a disk with one of these and to no other."""
    xml: str
    """libvirt's ``<disk>``, which says how the guest sees it."""


class WipeDisk(Model):
    """Make a plugged disk all zeros again, as QEMU's block layer sees it, and see that it is."""

    kind: Literal["wipe_disk"] = "wipe_disk"
    serial: str
    path: str
    """Its file."""
    size: int
    """Bytes."""


class DetachDisk(Model):
    """Unplug a disk that a cell before left, wait until it is gone, and remove its file."""

    kind: Literal["detach_disk"] = "detach_disk"
    serial: str
    xml: str
    path: str


class GuestCommand(Model):
    """Shell lines run as root in the guest; failure fails the cell. Undo: other shell lines."""

    kind: Literal["guest_command"] = "guest_command"
    label: str
    script: str
    timeout: float = 60.0
    """Seconds on a host that needs none of them to wait for itself."""
    undo: str = ""
    capture: str = ""
    """Name under which the output is kept as raw output; empty: kept only on failure."""
    waits: bool = False
    """It waits for disks more than it computes: other guests may compute beside it."""


class Verify(Model):
    """Read a precondition back from ``key=value`` lines; each expected one must agree.

    A disagreement fails the cell before anything is measured on it.
    """

    kind: Literal["verify"] = "verify"
    name: str
    script: str
    expect: dict[str, str]
    timeout: float = 60.0


class WaitFor(Model):
    """Run a ``key=value`` script until it prints what is expected, or the time is over."""

    kind: Literal["wait_for"] = "wait_for"
    label: str
    script: str
    expect: dict[str, str]
    timeout: float
    interval: float = 0.1
    hits: int = 1
    """How many times in a row it must agree."""


class SendDirectory(Model):
    """A directory of the host as one tar in the guest."""

    kind: Literal["send_directory"] = "send_directory"
    workload: str
    """For which it is sent."""
    source: str
    """On the host; empty: it was not given."""
    target: str
    """Path of the tar in the guest."""
    left_out: tuple[str, ...]
    """Names of directories that are not sent."""
    most: int
    """Bytes of its files beyond which it is refused."""


class Timed(Model):
    """A workload's own command; nothing else runs while it does. Its output is raw output."""

    kind: Literal["timed"] = "timed"
    workload: str
    trial: int
    before: str = ""
    """Shell lines before it, in the same breath: caches dropped, buckets dry, counters read."""
    script: str
    after: str = ""
    """Shell lines after it: counters read."""
    timeout: float
    expected_seconds: float | None = None
    """For progress only."""


class BeginWorkload(Model):
    """Start a workload's own command in a shell of its own, and go on."""

    kind: Literal["begin_workload"] = "begin_workload"
    workload: str
    trial: int
    before: str = ""
    """Shell lines before it: caches dropped, buckets dry, counters read."""
    script: str


class EndWorkload(Model):
    """Wait for a workload that runs, and keep its output; or for what is left of it."""

    kind: Literal["end_workload"] = "end_workload"
    workload: str
    trial: int
    after: str = ""
    """Shell lines after it: counters read."""
    timeout: float
    cut: bool = False
    """Its guest was ended under it: what it had told by then is all there is."""


class Pause(Model):
    """Let time go by while a workload runs."""

    kind: Literal["pause"] = "pause"
    seconds: float


class PowerCycle(Model):
    """End QEMU as a power cut does (SIGKILL), and start the guest again from the same disks.

    The disks' servers outlive QEMU; those of ``lose`` then lose what is in their volatile cache.
    """

    kind: Literal["power_cycle"] = "power_cycle"
    lose: tuple[str, ...] = ()
    """Control sockets."""
    capture: str
    """Name of the raw output: what each server answered."""


class UnplugDisk(Model):
    """Take a disk out of the running guest, whoever uses it; its file stays."""

    kind: Literal["unplug_disk"] = "unplug_disk"
    serial: str
    xml: str


class LimitDisk(Model):
    """Give a plugged disk other limits, by libvirt's names; those left out are lifted."""

    kind: Literal["limit_disk"] = "limit_disk"
    serial: str
    limits: dict[str, int]


class SpoilDisk(Model):
    """Write bytes to a disk behind the guest's back, as QEMU's block layer sees it."""

    kind: Literal["spoil_disk"] = "spoil_disk"
    serial: str
    offset: int
    length: int
    pattern: int
    """The byte that is written."""


class DiskLimit(Model):
    """One leaky bucket of QEMU's: units per second, a burst's rate, and seconds that it lasts."""

    average: int
    burst: int = 0
    seconds: int = 0


class SealedDisk(Model):
    """A disk of the lab's driver, as a sealed guest finds it."""

    serial: str
    size: int
    """Bytes."""
    rotational: bool = True
    write_back: bool = True
    """It announces a volatile cache, so that the kernel flushes it."""
    group: int = 0
    """Disks of the same number share their limits; 0: a disk's own."""
    operation_size: int = 0
    limits: dict[str, DiskLimit] = {}
    """By names such as ``bytes_total`` and ``operations_write``."""


class SealDisks(Model):
    """All disks of a sealed guest, in a memory region that it shares with the host."""

    kind: Literal["seal_disks"] = "seal_disks"
    disks: tuple[SealedDisk, ...]


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
    """Steps in order. ``name`` says whose they are: a guest's or a cell's."""

    name: str
    steps: tuple[Step, ...]
