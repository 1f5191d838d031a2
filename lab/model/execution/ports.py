"""What the run loop needs of the world, as protocols; the real ones live in ``lab.host``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BuildPlugin,
    DetachDisk,
    LimitDisk,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command in the guest came to."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    """Wall time on the host, from sending the command to its exit status."""


class Backend(Protocol):
    """The live things of one guest. Each method raises a ``LabError`` that says what happened."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""

    def write_file(self, path: str, content: str, mode: int) -> None:
        """Write a small file, readable by nobody else than ``mode`` says at any moment."""

    def remove(self, path: str) -> None:
        """Remove a file or a directory of the lab's own; what is gone already is fine."""

    def host_command(self, argv: tuple[str, ...]) -> None:
        """Run a program on the host."""

    def build_plugin(self, step: BuildPlugin) -> None:
        """Compile the source, unless that is done already, and link to it."""

    def start_server(self, step: StartServer) -> None:
        """Start the process, and return when its socket accepts."""

    def stop_server(self, step: StartServer) -> None:
        """End the process; one that has ended already is fine."""

    def ask_server(self, step: AskServer) -> str:
        """What the server answers to the line."""

    def start_guest(self, step: StartGuest) -> None:
        """Start the domain."""

    def save_guest(self, step: SaveGuest) -> None:
        """Save the guest as a warm state; it is gone then."""

    def restore_guest(self, step: RestoreGuest) -> None:
        """Start the guest from a warm state."""

    def destroy_guest(self) -> None:
        """End the domain at once, and be sure that its process is gone."""

    def wait_for_ssh(self, timeout: float) -> None:
        """Return once a connection with the pinned key stands."""

    def attach_disk(self, step: AttachDisk) -> None:
        """Plug a disk in."""

    def pass_disk(self, step: PassDisk) -> None:
        """Claim a real disk and hand it to the guest, or raise with what speaks against it."""

    def return_disk(self, step: PassDisk) -> None:
        """Take a real disk back from the guest; one that was never passed is fine."""

    def wipe_disk(self, step: WipeDisk) -> None:
        """Make a plugged disk all zeros, whatever its limits, and be sure that it is."""

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        """Unplug a disk, and return when it is gone."""

    def limit_disk(self, step: LimitDisk) -> None:
        """Give a plugged disk other limits."""

    def spoil_disk(self, step: SpoilDisk) -> None:
        """Write bytes to a plugged disk that the guest knows nothing of."""

    def seal_disks(self, step: SealDisks) -> None:
        """Make the disks of a sealed guest."""

    def power_cycle(self, step: PowerCycle) -> str:
        """End the guest as a power cut does and start it again; what the servers answered."""

    def send_directory(self, step: SendDirectory) -> None:
        """Copy a directory of the host into the guest, as one tar."""

    def guest(self, script: str, timeout: float) -> Output:
        """Run shell lines as root in the guest (``sh -e``, no standard input)."""

    def begin(self, name: str, script: str) -> None:
        """Start shell lines as root in a shell of their own, to be ended under that name."""

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        """Wait until they have ended; with ``cut`` the guest did, and what they told is all."""

    def pressure(self) -> Mapping[str, float]:
        """How long the guest ran and had to wait, in seconds; only differences count."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def pause(self, seconds: float) -> None:
        """Wait a moment."""


Save = Callable[[str, str], None]
"""Keep a text as raw output under a name."""
