"""Calibrations of disks on this host: a file each, so that each is measured once."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from pathlib import Path
from typing import Any, Final

from lab.host.system import accelerator, files, paths
from lab.model.result.calibration import Calibration


def key_of(facts: dict[str, Any]) -> str:
    """Return a digest of a disk and of all facts of this host that change its speed."""
    whole = {
        **facts,
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": accelerator.cpus(),
        "qemu": accelerator.qemu_identity(),
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


DOUBTED: Final = 24 * 3600
"""Seconds after which a failed calibration is repeated."""


def find(key: str) -> Calibration | None:
    """Return a stored calibration; ``None``: there is none, or it is unreadable."""
    path = _path(key)
    try:
        found = Calibration.model_validate_json(path.read_bytes())
        if not found.passed and time.time() - path.stat().st_mtime > DOUBTED:
            return None
    except (OSError, ValueError):
        return None
    return found


def keep(key: str, calibration: Calibration) -> None:
    """Store a calibration; ``HostError``: it cannot be written."""
    path = _path(key)
    files.make_directory(path.parent)
    files.write(path, calibration.model_dump_json(indent=1))


def _path(key: str) -> Path:
    return paths.host() / "calibration" / f"{key}.json"
