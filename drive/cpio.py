"""The initramfs of a guest in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def initramfs(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return a cpio archive (newc) of files by path, with their modes. Equal files give equal
    bytes."""

    def member(number: int, name: str, mode: int, data: bytes) -> bytes:
        raw = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + raw
        return _padded(head) + _padded(data)

    directories = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, 0o040755, b"") for name in sorted(directories)]
    entries += [(name, 0o100000 | mode, data) for name, (mode, data) in sorted(files.items())]
    members = [member(n, *entry) for n, entry in enumerate(entries, 1)]
    return b"".join(members) + member(0, "TRAILER!!!", 0, b"")


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)
