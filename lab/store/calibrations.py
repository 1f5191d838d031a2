"""Disks that were calibrated on this host before: one file each, so that it costs a run once."""

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
    """Name for a disk and everything of this host that can make it faster or slower."""
    whole = {
        **facts,
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": accelerator.cpus(),
        "qemu": accelerator.qemu_identity(),
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


DOUBTED: Final = 24 * 3600
"""Seconds for which a disk that was off stays so: then the host gets another chance."""


def find(key: str) -> Calibration | None:
    """What was measured before; ``None`` where nothing was, or nobody can read it."""
    path = _path(key)
    try:
        found = Calibration.model_validate_json(path.read_bytes())
        if not found.passed and time.time() - path.stat().st_mtime > DOUBTED:
            return None
    except (OSError, ValueError):
        return None
    return found


def keep(key: str, calibration: Calibration) -> None:
    """Remember a calibration; ``HostError`` where it cannot be written."""
    path = _path(key)
    files.make_directory(path.parent)
    files.write(path, calibration.model_dump_json(indent=1))


def _path(key: str) -> Path:
    return paths.host() / "calibration" / f"{key}.json"
