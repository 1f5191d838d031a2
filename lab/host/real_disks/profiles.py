"""Real disks measured by reading them, and the files in which their profiles are kept."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from lab.core.errors import HostError, InputError
from lab.core.units import MIB
from lab.host.real_disks import device, gauge
from lab.host.real_disks.device import Device
from lab.host.system import clock, files, paths
from lab.model.scenario.profile import Profile

STREAM: Final = 32 * MIB
"""Bytes that are read at each place of a stream."""
RANDOM: Final = 400
"""Small reads all over the disk, one at a time."""
LEAST: Final = 64 * MIB
"""A smaller disk has no zones and no distances that could be told apart."""


def measure(path: str, jumps: int, seed: int) -> tuple[Device, dict[str, Any]]:
    """A disk's facts and samples; ``InputError`` or ``HostError`` where it cannot be read.

    It is opened for reading only, and never for anything else.
    """
    if device.number_at(path) is None:
        raise InputError(
            f"'{path}' is no block device", hint="`lab disk list` has the disks of this host"
        )
    try:
        disk = gauge.Drive.open(path)
    except PermissionError as error:
        raise HostError(
            f"'{path}' may not be opened by this user, not even for reading",
            hint="as root, or as a member of the group that the device belongs to",
        ) from error
    except OSError as error:
        raise HostError(f"'{path}' cannot be read: {error.strerror}") from error
    try:
        facts = disk.facts()
        if disk.size < LEAST:
            raise InputError(f"'{path}' has {disk.size} bytes, too few: {LEAST} are the least")
        effort = gauge.Effort(stream=min(STREAM, disk.size // 32), jumps=jumps, random=RANDOM)
        found = gauge.measure(
            disk, effort, rotational=facts.rotational, seed=seed, pause=clock.pause
        )
    except OSError as error:
        raise HostError(f"'{path}' cannot be read: {error}") from error
    finally:
        disk.close()
    return facts, found


def path_of(name: str) -> Path:
    """Where a profile of that name is kept."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}", name):
        raise InputError(f"'{name}' is no name of a file: use letters, digits, '_', '-' and '.'")
    return paths.profiles() / f"{name}.yaml"


def keep(path: Path, profile: Profile) -> None:
    """Write a profile."""
    text = io.StringIO()
    yaml = YAML()
    yaml.width = 100
    yaml.dump(profile.model_dump(mode="json", exclude_none=True), text)
    head = (
        "# A disk as `lab disk calibrate` found it; scenarios use it with `model: profile:FILE`.\n"
    )
    files.make_directory(path.parent)
    files.write(path, head + text.getvalue())
