"""Makes a profile of a real disk: measure, fit, score, store."""

from __future__ import annotations

from pathlib import Path

from lab.host.real_disks import profiles
from lab.md.theory.profile import fit
from lab.model.scenario.profile import Profile, Samples
from lab.plugins.disks import hdd, ssd
from lab.store.runs import now


def calibrate(path: str, *, name: str, jumps: int, seed: int) -> tuple[Path, Profile]:
    """Read a disk for about a minute; return its profile and the profile's path."""
    kept = profiles.path_of(name)
    facts, found = profiles.read_samples(path, jumps, seed)
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
