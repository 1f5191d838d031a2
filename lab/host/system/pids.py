"""Processes by id, ``proc(5)``: whose they are, start time, state, signals.

Any user of the host may start a process with any name and any arguments, such as the paths of the
lab. So the lab looks at processes of its own user only.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def is_ours(pid: int) -> bool:
    """Return whether a process is of this user, by its real user id."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        return int(status.partition("\nUid:")[2].split(maxsplit=1)[0]) == os.getuid()
    except (OSError, ValueError, IndexError):
        return False


def send(pid: int, kind: int) -> bool:
    """Send a signal to a process; false: it is gone, or it is another user's."""
    try:
        os.kill(pid, kind)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_to_group(pid: int, kind: int) -> bool:
    """Send a signal to a process group; false: it is gone, or another user's."""
    try:
        os.killpg(pid, kind)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def started_ticks(pid: int) -> int:
    """Return a process's start time in clock ticks since boot; 0: there is none, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        return 0 if state in ("Z", "X") else int(fields[18])
    except (OSError, ValueError, IndexError):
        return 0


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, Ctrl-Z) or traced, ``proc(5)``."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def family(pid: int) -> dict[int, int]:
    """Return a process and all below it, with the bytes of memory that each has."""
    children: dict[int, list[int]] = {}
    memory: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            fields = stat.rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            memory[int(entry.name)] = int(fields[21]) * _PAGE
    found, new = dict[int, int](), [pid]
    while new:
        one = new.pop()
        if one in memory and one not in found:
            found[one] = memory[one]
            new += children.get(one, [])
    return found


def private_memory(pid: int) -> int:
    """Return the bytes of a process's memory that are in no file, with its page tables; 0: there
    is no such process."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        fields = ("\nRssAnon:", "\nVmPTE:")
        return sum(1024 * int(status.partition(f)[2].split(maxsplit=1)[0]) for f in fields)
    return 0


def forms(path: str) -> set[str]:
    """Return a path as command lines of QEMU have it: in options, and in JSON."""
    in_json = {json.dumps(path, ensure_ascii=ascii_)[1:-1] for ascii_ in (False, True)}
    return {path, path.replace(",", ",,"), *in_json}


def used_paths(below: Path) -> set[Path]:
    """Return paths below a directory that a process has open, or has on its command line.

    Open files of other users' processes are seen by root only. Their command lines are ignored.
    """
    found: set[Path] = set()
    begin = f"{below}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    found |= _below(str(descriptor.readlink()), begin)
        if not is_ours(int(process.name)):
            continue
        with suppress(OSError):
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            for form in forms(begin):
                words = (path for word in line.split("\0") for path in _below(word, form))
                found |= {Path(begin + str(path)[len(form) :]) for path in words}
    return found


def _below(text: str, begin: str) -> set[Path]:
    """Return the paths in a text, such as ``file=/a/b,format=raw``, that begin so."""
    _, *parts = text.split(begin)
    return {Path(begin + re.split(r"[,:\"]", part, maxsplit=1)[0]) for part in parts}
