"""From options to a scenario of one cell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from lab.capabilities.session.model import WORK, Job, Machine
from lab.core.errors import InputError
from lab.core.units import format_size
from lab.core.yaml import Override
from lab.plugins import catalog
from lab.plugins.disks import hdd, ssd

PRESETS: Final[Mapping[str, str]] = {
    **dict.fromkeys(hdd.PRESETS, "hdd"),
    **dict.fromkeys(ssd.PRESETS, "ssd"),
}
"""Disk model of each preset."""
FILES: Final = 11 * 1024**2
"""Most bytes of files from a guest in virtual time, packed: they come as text, with its output."""
TOO_LARGE: Final = "the files are too large"


def fields_of(machine: Machine, sets: Sequence[Override], *, scenario: bool) -> dict[str, object]:
    """Return the fields that the options set, by dotted name; ``InputError`` names the option.

    ``scenario``: there is a scenario, which may have disks already.
    """
    found: dict[str, object] = {}
    if machine.disks is not None:
        found["disks.count"] = machine.disks
    of_disks = {"--size": machine.size, "--speed": machine.speed, "--model": machine.model}
    for option, value in of_disks.items():
        if value is not None and machine.disks is None and not scenario:
            raise InputError(f"{option} is for disks: add --disks 4")
    if machine.size is not None:
        found["disks.size"] = machine.size
    if machine.speed is not None:
        found["disks.throttle"] = {"total_bytes_per_second": machine.speed}
    if machine.model is not None:
        found |= _model(machine.model)
    if machine.level is not None:
        found["array.level"] = int(machine.level) if machine.level.isdecimal() else machine.level
    if machine.kernel is not None:
        found["guest.kernel"] = machine.kernel
    for name in ("image", "cpus", "memory", "clock"):
        if (value := getattr(machine, name)) is not None:
            found[f"guest.{name}"] = value
    if machine.seed is not None:
        found["seed"] = machine.seed
    return found | {".".join(one.path): one.value for one in sets}


def _model(name: str) -> dict[str, object]:
    """Return the fields of a disk model, of a preset, or of a measured disk."""
    if name in PRESETS:
        return {"disks.model": PRESETS[name], "disks.preset": name}
    models = catalog.plugin_names("disks")
    if name in models or name.startswith("profile:"):
        return {"disks.model": name}
    known = (*models, *PRESETS)
    near = get_close_matches(name, known, n=1)
    guess = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    raise InputError(f"--model: there is no disk model or preset '{name}': {guess}")


def workloads_of(job: Job) -> list[dict[str, Any]]:
    """Return the command as a workload of a scenario, and one that prints the files it left."""
    run: dict[str, Any] = {
        "name": "run",
        "tool": "command",
        "argv": list(job.argv),
        "directory": WORK,
        "status": [],
        "limit": job.limit,
    }
    if job.script:
        run["script"] = job.script
    if job.out is None:
        return [run]
    pack = (
        f"tar -C {WORK} -czf /var/tmp/lab-files .\n"  # in the guest
        f'[ "$(stat -c %s /var/tmp/lab-files)" -le {FILES} ] ||'
        f' {{ echo "{TOO_LARGE}: at most {format_size(FILES)}, packed" >&2; exit 1; }}\n'
        "base64 /var/tmp/lab-files\n"
    )
    return [run, {"name": "files", "tool": "command", "script": pack, "needs": ["base64"]}]
