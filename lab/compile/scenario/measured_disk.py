"""``disks.model: profile:NAME``: replaces the model with a measured disk's values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from lab.core.errors import InputError
from lab.core.wording import guess
from lab.core.yaml import ENDINGS, Document, read_file, validate
from lab.model.scenario.profile import Profile
from lab.plugins import catalog

PREFIX: Final = "profile:"


def with_profiles(document: Document, beside: Path) -> Document:
    """Return the scenario with each profile's model and values; the scenario's own values override
    them.

    ``beside``: the directory of relative paths. ``InputError``: the file is missing or no profile.
    """
    return document.with_disks(lambda entry: _filled(entry, beside))


def _filled(entry: Any, beside: Path) -> Any:
    model = entry.get("model") if isinstance(entry, dict) else None
    if not isinstance(model, str) or not model.startswith(PREFIX):
        return entry
    name = model.removeprefix(PREFIX)
    file = _file(name, beside)
    if file.suffix not in ENDINGS:  # errors show lines of the file, and the name may be another's
        raise InputError(
            f"'{PREFIX}{name}' is no file of a profile: expected a path that ends in .yaml"
        )
    profile = validate(Profile, read_file(file))
    own = getattr(profile, profile.kind).model_dump(mode="json", exclude_none=True)
    given = entry.get(profile.kind)
    figures = {**own, **given} if isinstance(given, dict) else own
    return {**entry, "model": profile.kind, profile.kind: figures}


def _file(name: str, beside: Path) -> Path:
    """Return the file of a path, or of a name that ``lab disk fit`` or ``calibrate`` has stored."""
    path = beside / Path(name).expanduser()
    if path.exists() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        return path
    kept = catalog.profiles()
    if name in kept:
        return kept[name]
    if name.endswith(ENDINGS):
        return path
    known = (
        f"known are {', '.join(kept)}{guess(name, kept)}"
        if kept
        else "there is none yet, expected one that `lab disk fit` has stored"
    )
    raise InputError(f"there is no profile '{name}' of a measured disk: {known}")
