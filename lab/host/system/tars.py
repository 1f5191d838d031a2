"""Unpacks tar files from guests: regular files and directories, nothing outside of one place."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from lab.core.errors import ToolError


def unpack(archive: Path, into: Path) -> tuple[str, ...]:
    """Unpack regular files below ``into``, which is made; return their paths.

    Links, devices and names that lead elsewhere are refused: ``ToolError``, as if it is no archive.
    A file that exists is replaced.
    """
    into.mkdir(parents=True, exist_ok=True)
    found = []
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                name = PurePosixPath(entry.name)
                if name.is_absolute() or ".." in name.parts:
                    raise ToolError(f"the guest's archive has '{entry.name}', outside of its place")
                target = into / name
                if not target.resolve().is_relative_to(into.resolve()):
                    raise ToolError(f"'{target}' leads out of '{into}': remove the link")
                if entry.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif entry.isreg():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.unlink(missing_ok=True)
                    source = tar.extractfile(entry)
                    assert source is not None
                    with target.open("xb") as file:
                        shutil.copyfileobj(source, file)
                    target.chmod(0o755 if entry.mode & 0o100 else 0o644)
                    found.append(str(target))
    except (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ToolError(f"the guest's archive cannot be read: {error}") from error
    return tuple(sorted(found))
