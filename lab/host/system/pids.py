"""Processes by id, ``proc(5)``: start time, and whether it is stopped."""

from __future__ import annotations

from pathlib import Path


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
