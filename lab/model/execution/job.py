"""Input of a worker: one guest to boot, then one order after another."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.execution.procedure import Procedure


class SealedKit(Model):
    """What sealed guests of one configuration boot from: paths on this host, and digests of the
    files."""

    emulator: str
    kernel: str
    initramfs: str
    base: str
    """The image as a raw file; never written to."""
    memory: int
    """MiB."""
    arguments: str = ""
    """Additions to the kernel's command line."""
    digests: dict[str, str] = {}
    """SHA-256 by name: image, kernel, driver, init, emulator, firmware."""


class GuestJob(Model):
    """One guest; the first line that a worker reads."""

    guest: str
    scenario: str
    image: str
    warm: str = ""
    """Key of the snapshot that it is restored from; empty: it boots."""
    host_key: str
    """Public line of the guest's host key."""
    private_key: str
    """Path of the lab's private key."""
    procedure: Procedure
    scale: float = 1.0
    """How much slower than the reference this host is; timeouts grow with it."""
    sealed: SealedKit | None = None
    """Each cell has a guest with virtual time; ``procedure`` is empty for sealed ones."""
    unsealed: bool = False
    """That guest has network and SSH; ``procedure`` boots it."""
    cold: bool = False
    """Sealed guests boot, without a snapshot."""
    captures: dict[str, str] = {}
    """Raw output that was captured when the snapshot was made."""


class CellJob(Model):
    """One cell, compiled. The cell before it is taken apart first."""

    kind: Literal["cell"] = "cell"
    id: str
    procedure: Procedure
    directory: str
    """Directory for its raw output; it exists and is empty."""
    target: str
    """The array's path in the guest."""
    patience: float = 0.0
    """Seconds for which requests may wait while no disk completes any; 0: for ever."""
    space: int = 0
    """Bytes that a sealed guest's disks may come to hold."""
    inputs: str = ""
    """Digest of a sealed cell's inputs, as planned."""


class Keep(Model):
    """Leave the guest up, with the array of its last cell, and end."""

    kind: Literal["keep"] = "keep"


class End(Model):
    """End the guest, then the worker."""

    kind: Literal["end"] = "end"


Order = Annotated[CellJob | Keep | End, Field(discriminator="kind")]
