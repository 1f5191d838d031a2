"""Reads ``.deb`` files, and makes a directory of them an archive for apt.

A package is untrusted: its control file is read here, with limits. ``dpkg-deb --field`` would
unpack all of ``control.tar`` on the host, and follow a link of that name.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zlib
from pathlib import Path
from typing import Final

from lab.core.errors import ToolError
from lab.core.units import MIB, format_size, is_digits
from lab.host.system import process, tars


def fields(deb: Path, *names: str) -> tuple[str, ...]:
    """Return fields of a package's control file; ``ToolError``: it is no package."""
    text = _control(deb)
    lines = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
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


_PACKED: Final = 16 * MIB
"""Most bytes of ``control.tar``, packed or unpacked."""
_MOST: Final = 1 * MIB
"""Most bytes of a control file."""


def _control(deb: Path) -> str:
    """Return the control file, one stanza; ``ToolError``: there is none."""
    try:
        name, data = _second(deb)
        with tars.opened(io.BytesIO(_unpacked(name, data)), "r:") as tar:
            found = [one for one in tar if one.name.removeprefix("./") == "control"]
            if len(found) != 1 or not found[0].isreg():
                raise ToolError("its control.tar has no single regular file 'control'")
            if found[0].size > _MOST:
                raise ToolError(f"its control file is larger than {format_size(_MOST)}")
            file = tar.extractfile(found[0])
            text = file.read(_MOST).decode() if file is not None else ""
    except OSError as error:
        raise ToolError(f"it cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, lzma.LZMAError, zlib.error, ValueError) as error:
        raise ToolError(f"its control.tar cannot be read: {error}") from error
    text = text.strip("\n")
    if not all(line.strip() for line in text.split("\n")):
        raise ToolError("its control file has an empty line: expected one stanza")
    return text


def _second(deb: Path) -> tuple[str, bytes]:
    """Return name and bytes of the second member, ``control.tar``, ``deb(5)``."""
    with deb.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ToolError("it is no ar archive")
        for expected in ("debian-binary", "control.tar"):
            header = file.read(60)
            name = header[:16].decode("ascii", "replace").rstrip(" /")
            size = header[48:58].decode("ascii", "replace").strip()
            if header[58:] != b"`\n" or not is_digits(size) or not name.startswith(expected):
                raise ToolError(f"its member {expected} is missing")
            if int(size) > _PACKED:
                raise ToolError(f"its member {name} is larger than {format_size(_PACKED)}")
            data = file.read(int(size) + int(size) % 2)[: int(size)]
    return name, data


def _unpacked(name: str, data: bytes) -> bytes:
    match name.removeprefix("control.tar"):
        case "":
            return data
        case ".gz":
            gzip = zlib.decompressobj(wbits=31)
            found, ended = gzip.decompress(data, _PACKED), gzip.eof
        case ".xz":
            xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=8 * _PACKED)
            found, ended = xz.decompress(data, _PACKED), xz.eof
        case _:
            raise ToolError(f"its {name} is not read here: pack it anew with `dpkg-deb -Zxz`")
    if not ended:
        raise ToolError(f"its {name} is cut off, or unpacked larger than {format_size(_PACKED)}")
    return found
