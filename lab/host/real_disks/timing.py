"""The timing core as a library of this process, compiled once (``drive/loop.py``)."""

from __future__ import annotations

import hashlib
import shutil
from typing import Final

from drive.loop import FLAGS, HEADERS, SOURCE, Core
from lab.core.errors import HostError, ToolError
from lab.host.system import made, paths, process

_COMPILING: Final = 120.0
"""Timeout in seconds."""


def core() -> Core:
    """Return the core; ``HostError``: this host cannot compile it."""
    if shutil.which("gcc") is None:
        raise HostError(
            "the program 'gcc' was not found: it compiles the timing of modelled drives",
            hint="sudo apt-get install gcc libc6-dev",
        )
    version = process.run(["gcc", "-dumpfullversion", "-dumpmachine"], timeout=20).stdout
    texts = [(SOURCE.parent / name).read_bytes() for name in (SOURCE.name, *HEADERS)]
    inputs = b"\0".join((*texts, " ".join(FLAGS).encode(), version.encode()))
    built = paths.plugins() / f"loop-{hashlib.sha256(inputs).hexdigest()[:20]}.so"

    def make(part: object) -> None:
        try:
            process.run(["gcc", *FLAGS, "-o", str(part), str(SOURCE)], timeout=_COMPILING)
        except ToolError as error:
            raise HostError(
                f"compiling the timing of modelled drives failed: {error.message}",
                hint="install what it needs: sudo apt-get install gcc libc6-dev",
            ) from error

    found = made.once(
        built,
        lambda: built if built.exists() else None,
        make,
        seconds=2 * _COMPILING,
        what="another process to compile the timing of modelled drives",
    )
    return Core(found)
