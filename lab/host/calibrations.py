"""Disks that were calibrated on this host before: one file each, so that it costs a run once."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lab.errors import HostError
from lab.host import accelerator, paths
from lab.model.calibration import Calibration


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
    """Remember a calibration, by rename; one that cannot be kept is measured again."""
    path = _path(key)
    part = path.with_name(f".{key}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(calibration.model_dump_json(indent=1), encoding="utf-8")
        part.rename(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise HostError(f"'{path}' cannot be written: {error.strerror}") from error


def _path(key: str) -> Path:
    return paths.host() / "calibration" / f"{key}.json"
