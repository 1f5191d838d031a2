"""Makes a profile of a real disk: measure it or read fio's results, fit, test, store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lab.capabilities.disks.fio_results import Results
from lab.core import regular
from lab.core.errors import InputError
from lab.core.printable import printable
from lab.core.units import MIB
from lab.host.real_disks import profiles, timing
from lab.md.theory.load_fit import fit_loads
from lab.md.theory.profile import fit as fit_samples
from lab.model.scenario.profile import Profile, Samples
from lab.plugins.disks import hdd, ssd
from lab.store.runs import now


def calibrate(path: str, *, name: str, jumps: int, seed: int) -> tuple[Path, Profile]:
    """Read a disk for about a minute; return its profile and the profile's path."""
    kept = profiles.path_of(name)
    facts, found = profiles.read_samples(path, jumps, seed)
    profile = fit_samples(
        Samples.model_validate(found), hdd.PRESETS[hdd.DEFAULT], ssd.PRESETS[ssd.DEFAULT]
    )
    disk: dict[str, str | int] = {
        "name": path,
        "model": facts.model,
        "serial": facts.serial,
        "size": facts.size,
    }
    profile = profile.model_copy(update={"disk": disk, "measured_at": now()})
    profiles.keep(kept, profile)
    return kept, profile


_LARGEST: Final = 16 * MIB
"""Most bytes of a file of fio's; one of a job without logs has 10 KiB."""
_MOST: Final = 5000
"""Most files; a bench-fio tree has about a hundred."""


def fit(
    paths: Sequence[Path], *, name: str | None, size: int | None, rpm: float | None
) -> tuple[Path, Profile, dict[str, int]]:
    """Read fio's results; return the profile's path, the profile, and the number of jobs that were
    not used by reason.

    ``InputError``: they are no results of a single disk.
    """
    if name is not None:
        profiles.path_of(name)
    results = Results()
    files = list(_files(paths))
    for file in files:
        results.add(_text(file), printable(str(file)))
    if not results.loads:
        why = "; ".join(f"{n} jobs: {reason}" for reason, n in results.passed_over.items())
        raise InputError(
            f"no random load was found in {len(files)} files ({why}): expected rw=randread",
            hint="measure random reads at depths 1, 2, 4, 8, 16 and 32, and writes if you may",
        )
    kept = profiles.path_of(name or _name(results.target, files[0]))
    try:
        profile = fit_loads(
            timing.core(),
            results.loads,
            hdd=hdd.PRESETS[hdd.DEFAULT],
            ssd=ssd.PRESETS[ssd.DEFAULT],
            size=size,
            rpm=rpm,
        )
    except ValueError as error:
        raise InputError(
            f"the results are of no drive that can be modelled: {error}",
            hint="leave out requests that are larger than their part of the disk",
        ) from error
    disk: dict[str, str | int] = {"name": results.target}
    if size is not None:
        disk["size"] = size
    profile = profile.model_copy(update={"disk": disk, "measured_at": now()})
    profiles.keep(kept, profile)
    return kept, profile, results.passed_over


def _name(target: str, file: Path) -> str:
    """Return a profile's name from the disk's, or the file's."""
    stem = target.rpartition("/")[2] or file.stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:100] or "disk"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    count = 0
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(p for p in path.rglob("*.json") if not p.is_symlink())
            if not found:
                raise InputError(
                    f"'{path}' has no .json files: expected a directory of bench-fio, or files of "
                    "fio --output-format=json"
                )
        count += len(found)
        if count > _MOST:
            raise InputError(f"'{path}' has {len(found)} files: at most {_MOST} are read")
        yield from found


def _text(file: Path) -> str:
    try:
        return regular.read(file, _LARGEST).decode(errors="replace")
    except OSError as error:
        raise InputError(
            f"'{file}' cannot be read: {error.strerror}: expected a file of fio "
            "--output-format=json, or a directory of them"
        ) from error
