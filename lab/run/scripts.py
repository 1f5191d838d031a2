"""A command or a script in a guest that is up, over SSH, and the files that it leaves."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.compile.cell.procedure import named_disks
from lab.core.errors import ToolError
from lab.host.guest.ssh.connection import GuestConnection
from lab.host.system import tars
from lab.model.execution.procedure import words
from lab.model.scenario.document import Cell
from lab.plugins.disks._drives import guest_path

_SCRIPT: Final = "/var/lib/lab/script"
_PACKED: Final = "/var/tmp/lab-files.tar"  # noqa: S108  in the guest
_RULES: Final = "/etc/udev/rules.d/61-lab-names.rules"


def stable_names(cell: Cell) -> str:
    """Return shell lines that name the disks ``/dev/lab/diskN`` now and after each boot."""
    rules = [
        f'SUBSYSTEM=="block", SYMLINK=="{guest_path(disk, serial).removeprefix("/dev/")}",'
        f' SYMLINK+="lab/{serial} lab/disk{number} disk/by-id/lab-{serial}"'
        for number, (serial, disk) in enumerate(cell.each_disk, 1)
    ]
    aliases = [
        words("ln", "-sfn", path, alias)
        for serial, disk in cell.each_disk
        if (path := guest_path(disk, serial)) != (alias := f"/dev/disk/by-id/lab-{serial}")
    ]
    written = words("printf", r"%s\n", *rules) + f" >{_RULES}"
    return "\n".join([named_disks(cell).script, *aliases, *([written] if rules else [])]) + "\n"


def prepared(
    visit: GuestConnection,
    argv: Sequence[str],
    script: str,
    directory: str,
    environment: Mapping[str, str],
) -> str:
    """Copy a script into a guest; return the shell line that runs it, or a command, in a directory
    that it makes."""
    run = list(argv)
    if script:
        visit.run("mkdir -p /var/lib/lab", 60.0)
        with TemporaryDirectory(prefix="lab-script-") as place:
            file = Path(place) / "script"
            file.write_text(script, encoding="utf-8")
            file.chmod(0o700)
            visit.put(file, _SCRIPT)
        run = [*([] if script.startswith("#!") else ["/bin/sh", "-e"]), _SCRIPT, *argv]
    given = [f"{name}={value}" for name, value in environment.items()]
    place_ = shlex.quote(directory)
    return f"mkdir -p {place_} && cd {place_} && exec {words('env', *given, *run)}"


def files_from(visit: GuestConnection, directory: str, into: Path) -> tuple[str, ...]:
    """Copy what is in a guest's directory; return the paths on the host. ``ToolError``: copying
    failed."""
    done = visit.run(f"tar -C {shlex.quote(directory)} -cf {_PACKED} .", 600.0)
    if done.status != 0:
        raise ToolError(f"the files in '{directory}' cannot be packed: {done.stderr.strip()}")
    with TemporaryDirectory(prefix="lab-files-") as place:
        packed = Path(place) / "files.tar"
        visit.get(_PACKED, packed)
        visit.run(words("rm", "-f", _PACKED), 60.0)
        return tars.unpack(packed, into)
