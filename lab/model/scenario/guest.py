"""A guest, as in a scenario."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator

from lab.core.base import Says, Size
from lab.core.stable import Stable, named
from lab.core.units import format_size
from lab.model.image.manifest import IMAGE

KERNEL: Final = Says("a kernel's package such as linux-image-amd64, or a file such as ./bzImage")

MDADM: Final = Says("a version of mdadm such as 4.2-5, or a file such as ./mdadm.deb")


def kernel_name(kernel: str | None) -> str | None:
    """A valid ``guest.kernel``; ``ValueError``: it is not a package or a file."""
    if kernel is None or re.fullmatch(r"linux-image-[a-z0-9.+-]+", kernel):
        return kernel
    if is_file(kernel) and not any(c.isspace() for c in kernel):
        return kernel
    raise ValueError(
        f"'{kernel}' is not a kernel's package, such as linux-image-amd64; write a file with a "
        f"slash: ./{kernel.strip() or 'bzImage'}"
    )


def is_file(name: str) -> bool:
    """Whether ``guest.kernel`` or ``guest.mdadm`` names a file."""
    return "/" in name or name.endswith(".deb")


System = tuple[str, str | None, str | None]
"""What a guest boots: image, kernel and mdadm."""


class Clock(StrEnum):
    """What a guest's clock counts."""

    REAL = "real"
    """Seconds of the host."""
    VIRTUAL = "virtual"
    """The guest's instructions (QEMU's ``-icount``), independent of the host's load."""


class Engine(StrEnum):
    """What runs a guest with virtual time."""

    EMULATED = "emulated"
    """QEMU's emulated processor, with the image's own kernel."""
    NATIVE = "native"
    """Linux as a program of the host, built from the source of the image's kernel. Its processor
    takes no time."""
    AUTO = "auto"
    """Native if image, guest and host allow it, else emulated."""


class Guest(Stable):
    """The virtual machine with the array."""

    ALWAYS: ClassVar[frozenset[str]] = named("image cpus memory kernel_arguments")

    image: Annotated[str, IMAGE] = Field(default="debian-12", pattern=r"^[a-z0-9][a-z0-9.+-]*$")
    """Name of a file in ``images/``, or of an imported image."""
    kernel: Annotated[str | None, KERNEL] = Field(default=None, pattern=r"^\S+$")
    """Another kernel than the image's: a package of its archive (``linux-image-amd64``), a
    ``.deb``, or a file that QEMU loads (``./bzImage``); ``None``: the image's own."""
    mdadm: Annotated[str | None, MDADM] = Field(default=None, pattern=r"^\S+$")
    """Another mdadm than the image's: a version that `lab kernel fetch --axis mdadm` has fetched
    (``4.2-5``), or a ``.deb``; ``None``: the image's own."""
    cpus: int = Field(default=1, ge=1, le=64)
    """Virtual CPUs."""
    memory: Size = 512 * 1024**2
    """Guest memory; at least 256 MiB."""
    kernel_arguments: tuple[str, ...] = ()
    """Words added to the kernel's command line."""
    clock: Clock = Clock.REAL
    """What the guest's clock counts: the host's seconds, or with ``virtual`` its instructions."""
    engine: Engine = Engine.EMULATED
    """With ``clock: virtual``: what runs the guest. ``native`` is faster, and its processor takes
    no time; ``emulated`` runs the image's own kernel and modules; ``auto`` is native where that is
    possible."""
    disturb: bool = False
    """With ``clock: virtual``: the trial's seed delays requests to disks, preempts threads, and
    takes the CPU away from them, as `lab hunt` does."""

    @property
    def native(self) -> bool:
        """Whether Linux runs as a program of the host."""
        return self.clock is Clock.VIRTUAL and self.engine is Engine.NATIVE

    @property
    def system(self) -> System:
        """What it boots: image, kernel and mdadm."""
        return self.image, self.kernel, self.mdadm

    @field_validator("kernel")
    @classmethod
    def _package_or_file(cls, kernel: str | None) -> str | None:
        return kernel_name(kernel)

    @field_validator("mdadm")
    @classmethod
    def _version_or_file(cls, mdadm: str | None) -> str | None:
        if mdadm is None or (is_file(mdadm) and mdadm.endswith(".deb")):
            return mdadm
        if not re.fullmatch(r"\d[A-Za-z0-9.+~-]*", mdadm):
            raise ValueError(f"'{mdadm}' is not a version such as 4.2-5, or a file ./mdadm.deb")
        return mdadm

    @field_validator("memory")
    @classmethod
    def _enough_memory(cls, memory: int) -> int:
        if memory < 256 * 1024**2:
            raise ValueError(
                f"{format_size(memory)} is too little: a Debian guest needs at least 256MiB to boot"
            )
        if memory % 1024**2:
            raise ValueError(f"{memory} bytes: expected whole MiB, as in 512MiB")
        return memory

    @field_validator("kernel_arguments")
    @classmethod
    def _words(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            if not argument or any(c.isspace() or not c.isprintable() for c in argument):
                raise ValueError(
                    f"{argument!r} is not one word: write each apart, as in [quiet, ro]"
                )
        return arguments
