"""Reads and changes ext4 file systems that others may have made, with debugfs in a sandbox.

Their bytes are untrusted: a fault of debugfs would run their code. Names and sizes are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import MIB, format_size
from lab.host.images import sandbox
from lab.host.images.sandbox import Box
from lab.host.system import leftovers, process
from lab.host.system.files import move

SECONDS: Final = 120.0
"""Timeout of debugfs."""
_PATH: Final = re.compile(r"/[\w./+=,@~-]{1,1000}", re.ASCII)
"""A path that debugfs reads as one word."""
_LOG: Final = 1 * MIB
"""Least limit of a file: what debugfs prints goes to one too."""
_WORK: Final = "ext4"
_CHANGED_AT: Final = {"E2FSPROGS_FAKE_TIME": "1700000000"}
"""The same bytes each time: ext4 has times of its own."""


def contents(
    disk: Path, paths: Mapping[str, str], work: Path, *, most: int, image: str
) -> dict[str, bytes]:
    """Return the contents of files by the name that they are given; missing ones are left out.

    ``work``: a directory for a while; ``most``: bytes of each file. ``HostError``: a file is
    larger, or the file system is corrupt.
    """
    commands = [f"dump {_checked(path, image)} /out/{name}" for name, path in paths.items()]
    with _Run(work) as run:
        failed = run.debugfs(commands, {"/disk": disk}, {"/out": run.out}, most=most)
        for name in sandbox.names(run.out):
            file = run.out / name
            if file.lstat().st_size > most:
                path = paths.get(name, name)
                raise HostError(f"the image's {path} is larger than {format_size(most)}")
        if failed is not None:
            raise HostError(f"the file system of the image '{image}' cannot be read") from failed
        try:
            return sandbox.take(run.out, paths.keys(), most=most * len(paths))
        except InputError as error:
            raise HostError(f"the image '{image}' cannot be read: {error.message}") from error


def names(disk: Path, directory: str, work: Path, *, image: str) -> frozenset[str]:
    """Return the names in a directory; none if it is missing."""
    with _Run(work) as run:
        commands = [f"ls -p {_checked(directory, image)}"]
        if (failed := run.debugfs(commands, {"/disk": disk}, {})) is not None:
            raise HostError(f"the file system of the image '{image}' cannot be read") from failed
        lines = process.tail(run.log).splitlines()
        return frozenset(line.split("/")[5] for line in lines if line.count("/") >= 6)


def replace(
    disk: Path, files: Mapping[str, bytes], work: Path, *, executable: bool, image: str
) -> None:
    """Replace files by path, with the owner root. ``HostError``: one does not read back."""
    mode = "0100755" if executable else "0100644"
    paths = {f"{number:04}": _checked(path, image) for number, path in enumerate(files)}
    with _Run(work) as run:
        new = run.place / "new"
        new.mkdir()
        commands = []
        for (name, path), data in zip(paths.items(), files.values(), strict=True):
            (new / name).write_bytes(data)
            commands += [f"rm {path}", f"write /new/{name} {path}", f"sif {path} mode {mode}"]
            commands += [f"sif {path} uid 0", f"sif {path} gid 0"]
        size = disk.stat().st_size
        failed = run.debugfs(commands, {"/new": new}, {"/disk": disk}, most=size)
        if failed is not None:
            raise HostError(f"the image '{image}' could not be changed") from failed
    most = max(map(len, files.values()), default=0)
    found = contents(disk, paths, work, most=most + 1, image=image)
    for name, data in zip(paths, files.values(), strict=True):
        if found.get(name) != data:
            raise HostError(f"'{paths[name]}' could not be written to the image '{image}'")


def tree(disk: Path, commands: str, work: Path, *, image: str) -> Path:
    """Run debugfs's commands that copy files to ``/out``; return that untrusted directory.

    Links in it are not to be followed.
    """
    place = work / "read-back"
    with _Run(work) as run:
        lines = commands.splitlines()
        if (failed := run.debugfs(lines, {"/disk": disk}, {"/out": run.out})) is not None:
            raise HostError(f"the file system of the image '{image}' cannot be read") from failed
        move(run.out, place)
    return place


def _checked(path: str, image: str) -> str:
    if not _PATH.fullmatch(path):
        raise HostError(f"the image '{image}' names a file '{printable(path)[:80]}', which is odd")
    return path


class _Run:
    """debugfs in a directory of its own, which is removed afterwards."""

    def __init__(self, work: Path) -> None:
        self.place = work / _WORK
        self.out, self.log = self.place / "out", self.place / "log"

    def __enter__(self) -> _Run:
        self.place.mkdir()
        self.out.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        leftovers.discard(self.place)

    def debugfs(
        self,
        commands: list[str],
        read: Mapping[str, Path],
        write: Mapping[str, Path],
        *,
        most: int = sandbox.FILE,
    ) -> ToolError | None:
        """Run commands on ``/disk``; return the error that ended it."""
        script = self.place / "commands"
        script.write_text("".join(f"{line}\n" for line in commands), encoding="ascii")
        box = Box(
            read={**read, "/commands": script},
            write=write,
            environment=_CHANGED_AT,
            file=max(most + 1, _LOG),
        )
        words = ("debugfs", *(("-w",) if "/disk" in write else ()), "-f", "/commands", "/disk")
        try:
            sandbox.run(box, words, work=self.place, log=self.log, seconds=SECONDS)
        except ToolError as error:
            return error
        return None
