"""What the run loop needs from a guest, as protocols; ``lab.host`` implements them."""

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
    """Result of a command in the guest."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    """Wall time on the host, from sending the command to its exit status."""


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
        """Compile the source if needed, and link to it."""

    def start_server(self, step: StartServer) -> None:
        """Start the process, and return when its socket accepts."""

    def stop_server(self, step: StartServer) -> None:
        """End the process, if it runs."""

    def ask_server(self, step: AskServer) -> str:
        """The server's answer to the line."""

    def start_guest(self, step: StartGuest) -> None:
        """Start the domain."""

    def save_guest(self, step: SaveGuest) -> None:
        """Save the guest as a snapshot. The guest ends."""

    def restore_guest(self, step: RestoreGuest) -> None:
        """Start the guest from a snapshot."""

    def destroy_guest(self) -> None:
        """End the domain at once, and make sure that its process is gone."""

    def wait_for_ssh(self, timeout: float) -> None:
        """Wait for a connection with the pinned key."""

    def attach_disk(self, step: AttachDisk) -> None:
        """Plug a disk in."""

    def pass_disk(self, step: PassDisk) -> None:
        """Claim a real disk and pass it to the guest; ``HostError`` lists the objections."""

    def return_disk(self, step: PassDisk) -> None:
        """Take a real disk back, if it was passed."""

    def wipe_disk(self, step: WipeDisk) -> None:
        """Zero a plugged disk, whatever its limits, and verify that."""

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        """Unplug a disk, and wait until it is gone."""

    def limit_disk(self, step: LimitDisk) -> None:
        """Change the limits of a plugged disk."""

    def spoil_disk(self, step: SpoilDisk) -> None:
        """Write bytes to a plugged disk without the guest's knowledge."""

    def seal_disks(self, step: SealDisks) -> None:
        """Make the disks of a sealed guest."""

    def power_cycle(self, step: PowerCycle) -> str:
        """Kill the guest and start it again; return the servers' answers."""

    def send_directory(self, step: SendDirectory) -> None:
        """Copy a directory of the host into the guest, as one tar."""

    def guest(self, script: str, timeout: float) -> Output:
        """Run shell lines as root in the guest (``sh -e``, no standard input)."""

    def begin(self, name: str, script: str) -> None:
        """Start shell lines as root in a shell of their own; ``end`` uses the same name."""

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        """Wait until they end. With ``cut`` the guest has ended, and the output so far is
        returned."""

    def pressure(self) -> Mapping[str, float]:
        """Seconds that the guest ran and waited; only differences count."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""

    def pause(self, seconds: float) -> None:
        """Wait."""


Save = Callable[[str, str], None]
"""Store a text as raw output under a name."""
