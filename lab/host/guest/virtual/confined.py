"""How a sealed guest's QEMU is started: with a filter of system calls, and without capabilities.

Neither changes what the guest sees, so the digest of a cell's inputs does not have them. libvirt
does both for the QEMU that it starts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""``-sandbox``: no programs, no other users, no scheduling, no system calls of long ago."""
_SECCOMP: Final = Path("/proc/sys/kernel/seccomp/actions_avail")


def confined(command: Sequence[str], directory: Path) -> list[str]:
    """Return the command line of a QEMU that gains no privileges, for a guest's directory.

    Root's QEMU has no capabilities, except that it may open files of other users if one of those in
    the command line needs it. A process is found by its guest's directory in its arguments.
    """
    words = ["setpriv", "--no-new-privs"]
    if os.geteuid() == 0:
        kept = "" if _opens(_paths(command, directory)) else ",+dac_override"
        words += ["--inh-caps=-all", f"--bounding-set=-all{kept}"]
    sandbox = ("-sandbox", SANDBOX) if _SECCOMP.exists() else ()
    return [*words, "--", *command, *sandbox, "-pidfile", str(directory / "qemu.pid")]


def killed_with_us(command: Sequence[str]) -> list[str]:
    """Return the command line of a native guest, which ends with the lab. It makes its sandbox
    itself."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


def _paths(command: Sequence[str], directory: Path) -> list[Path]:
    """Return the paths in QEMU's command line."""
    parts = [part.rpartition("=")[2] for word in command for part in word.split(",")]
    return [directory, *(Path(part) for part in parts if part.startswith("/"))]


def _opens(paths: Iterable[Path]) -> bool:
    """Return whether root may open all of these without a capability."""
    places = {place for path in paths for place in (path, *path.parents)}
    return all(_readable(place) for place in places)


def _readable(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return True  # QEMU makes it
    wanted = stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH
    shift = 6 if found.st_uid == 0 else 3 if found.st_gid == 0 else 0
    return found.st_mode >> shift & wanted == wanted
