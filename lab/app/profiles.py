"""A real disk to a profile: measured, fitted, scored, kept."""

from __future__ import annotations

from pathlib import Path

from lab.disks import hdd, ssd
from lab.host import profiles
from lab.model.profile import Profile, Samples
from lab.store import now
from lab.theory.profile import fit


def calibrate(path: str, *, name: str, jumps: int, seed: int) -> tuple[Path, Profile]:
    """Read a disk for a minute or so; where its profile is, and what it says."""
    kept = profiles.path_of(name)
    facts, found = profiles.measure(path, jumps, seed)
    profile = fit(Samples.model_validate(found), hdd.PRESETS[hdd.DEFAULT], ssd.PRESETS[ssd.DEFAULT])
    disk: dict[str, str | int] = {
        "name": path,
        "model": facts.model,
        "serial": facts.serial,
        "size": facts.size,
    }
    profile = profile.model_copy(update={"disk": disk, "measured_at": now()})
    profiles.keep(kept, profile)
    return kept, profile
