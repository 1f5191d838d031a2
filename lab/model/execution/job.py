"""Input of a worker: one guest to boot, then a sequence of orders."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.execution.procedure import Procedure
from lab.model.scenario.guest import Engine

CONSOLE: Final = "console.txt"
"""Raw output with the kernel's messages; of a disturbed cell, all of them."""
PROCESSOR: Final = "processor"
"""Name of the host's processor among a kit's digests, if the guest's programs see it."""


class SealedKit(Model):
    """Files that all sealed guests of one guest configuration boot from: paths on this host."""

    engine: Engine = Engine.EMULATED
    emulator: str
    """QEMU's path; empty for a native guest."""
    kernel: str
    initramfs: str
    base: str
    """The image as a raw file; never written to."""
    memory: int
    """MiB."""
    arguments: str = ""
    """Appended to the kernel's command line."""
    digests: dict[str, str] = {}
    """SHA-256 of the files, by name: image, kernel, driver, init, emulator, firmware; and of
    :data:`PROCESSOR`."""


class GuestJob(Model):
    """One guest; the first line that a worker reads."""

    guest: str
    scenario: str
    image: str
    warm: str = ""
    """Key of the snapshot to restore it from; empty: boot it."""
    host_key: str
    """Public line of the guest's host key."""
    private_key: str
    """Path of the lab's private key."""
    procedure: Procedure
    scale: float = 1.0
    """How many times slower this host is than the reference host; it multiplies timeouts."""
    sealed: SealedKit | None = None
    """Set: each cell has its own guest in virtual time, with an empty ``procedure`` if sealed."""
    unsealed: bool = False
    """The guest in virtual time has network and SSH; ``procedure`` boots it."""
    cold: bool = False
    """Boot sealed guests without a snapshot."""
    foreground: bool = False
    """A person waits for it and nothing else measures: it has normal priority."""
    own_network: bool = True
    """Only this user reaches the guest's SSH, if the host has network namespaces."""
    captures: dict[str, str] = {}
    """Raw output that was captured when the snapshot was made."""


class CellJob(Model):
    """One compiled cell. The worker first undoes the previous cell."""

    kind: Literal["cell"] = "cell"
    id: str
    procedure: Procedure
    directory: str
    """Directory for its raw output; it exists and is empty."""
    target: str
    """The array's path in the guest."""
    patience: float = 0.0
    """Longest time in seconds without a completed request while requests wait; 0: no limit."""
    space: int = 0
    """Most bytes that a sealed guest's disks may occupy on the host."""
    inputs: str = ""
    """Digest of a sealed cell's inputs, as planned."""


class Keep(Model):
    """Leave the guest running with the array of its last cell, and exit."""

    kind: Literal["keep"] = "keep"


class End(Model):
    """End the guest, then exit."""

    kind: Literal["end"] = "end"


Order = Annotated[CellJob | Keep | End, Field(discriminator="kind")]
