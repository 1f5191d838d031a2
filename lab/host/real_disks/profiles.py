"""Measures real disks by reading; finds the files of their profiles."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from lab.core.errors import HostError, InputError
from lab.core.units import MIB
from lab.host.real_disks import device, measure
from lab.host.real_disks.device import Device
from lab.host.system import clock, files, paths
from lab.model.scenario.profile import Profile

STREAM: Final = 32 * MIB
"""Bytes of a sequential read at each position."""
RANDOM: Final = 400
"""Number of random reads, one at a time."""
LEAST: Final = 64 * MIB
"""Smallest disk in bytes: zones and seek distances of a smaller one would not differ."""


def read_samples(path: str, jumps: int, seed: int) -> tuple[Device, dict[str, Any]]:
    """Return a disk's facts and samples; ``InputError``, ``HostError``: it cannot be read.

    It is opened for reading only.
    """
    if device.number_at(path) is None:
        raise InputError(
            f"'{path}' is not a block device", hint="`lab disk list` shows the disks of this host"
        )
    try:
        disk = measure.OpenDisk.open(path)
    except PermissionError as error:
        raise HostError(
            f"this user may not read '{path}'",
            hint="run it as root, or as a member of the device's group",
        ) from error
    except OSError as error:
        raise HostError(f"'{path}' cannot be read: {error.strerror}") from error
    try:
        facts = disk.facts()
        if disk.size < LEAST:
            raise InputError(
                f"'{path}' is too small: it has {disk.size} bytes, at least {LEAST} are needed"
            )
        effort = measure.Effort(stream=min(STREAM, disk.size // 32), jumps=jumps, random=RANDOM)
        found = measure.measure(
            disk, effort, rotational=facts.rotational, seed=seed, pause=clock.pause
        )
    except OSError as error:
        raise HostError(f"'{path}' cannot be read: {error}") from error
    finally:
        disk.close()
    return facts, found


def path_of(name: str) -> Path:
    """Return the path of the profile with that name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}", name):
        raise InputError(f"'{name}' is not a file name: use letters, digits, '_', '-' and '.'")
    return paths.profiles() / f"{name}.yaml"


def keep(path: Path, profile: Profile) -> None:
    text = io.StringIO()
    yaml = YAML()
    yaml.width = 100
    yaml.dump(profile.model_dump(mode="json", exclude_none=True), text)
    head = (
        "# A measured disk, by `lab disk calibrate` or `lab disk fit`; scenarios use it with\n"
        "# `model: profile:NAME`.\n"
    )
    files.make_directory(path.parent)
    files.write(path, head + text.getvalue())
