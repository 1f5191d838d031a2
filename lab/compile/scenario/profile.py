"""``disks.model: profile:FILE``: replaces the model with a measured disk's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lab.core.yaml import Document, read_file, validate
from lab.model.scenario.profile import Profile

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
    file = beside / Path(model.removeprefix(PREFIX)).expanduser()
    profile = validate(Profile, read_file(file))
    own = getattr(profile, profile.kind).model_dump(mode="json", exclude_none=True)
    given = entry.get(profile.kind)
    figures = {**own, **given} if isinstance(given, dict) else own
    return {**entry, "model": profile.kind, profile.kind: figures}
