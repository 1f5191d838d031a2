"""Reads ``.deb`` files, and makes a directory of them an archive for apt."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lab.core.errors import ToolError
from lab.host.system import process


def fields(deb: Path, *names: str) -> tuple[str, ...]:
    """Return fields of a package's control file; ``ToolError``: it is no package."""
    text = _control(deb)
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if missing := [name for name in names if name not in lines]:
        raise ToolError(f"it has no field '{missing[0]}'")
    return tuple(lines[name].strip() for name in names)


def write_archive(directory: Path) -> None:
    """Write the file ``Packages``, with which apt takes the directory for an archive."""
    text = ""
    for deb in sorted(directory.glob("*.deb")):
        with deb.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        text += f"{_control(deb)}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\n"
        text += f"SHA256: {sha256}\n\n"
    (directory / "Packages").write_text(text, encoding="utf-8")


def changelog(deb: Path, script: Path) -> str:
    """Return the Debian changelog in a package, by the lab's script; empty: it has none."""
    return process.run(("sh", str(script), str(deb)), timeout=120).stdout


def _control(deb: Path) -> str:
    return process.run(("dpkg-deb", "--field", str(deb)), timeout=60).stdout.rstrip("\n")
