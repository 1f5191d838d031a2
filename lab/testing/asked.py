"""Converts the arguments of a test's marker to a scenario of one cell, and checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from lab.compile.scenario.compiler import Compiled, compile_document
from lab.core.errors import InputError
from lab.core.wording import choice
from lab.core.yaml import Document, Override, override
from lab.model.scenario.document import Array, Disk, as_throttle
from lab.model.scenario.guest import Guest

FIELDS: Final[Mapping[str, str]] = {
    **{word: f"guest.{word}" for word in Guest.model_fields},
    **{word: f"disks.{word}" for word in Disk.model_fields if word != "count"},
    "disks": "disks.count",
    **{word: f"array.{word}" for word in Array.model_fields},
}
"""Argument of the marker to the scenario's field that it sets: all of guest, disks and array."""
SCOPES: Final = ("function", "class", "module", "session")
OWN: Final = ("scope", "fresh", "set")
"""Arguments that are not fields of a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A guest that a test requests."""

    compiled: Compiled
    scope: str
    fresh: bool
    words: Mapping[str, Any]
    """The arguments as given; tests with equal arguments may share a guest."""


def asked_for(words: Mapping[str, Any], *, array: bool, place: str, path: Path) -> Asked:
    """Check the marker's arguments; ``InputError`` names test, argument and expected values.

    ``place`` names the test in messages. Without ``array`` the guest gets disks only.
    """
    for word in words:
        if word not in FIELDS and word not in OWN:
            near = get_close_matches(word, (*FIELDS, *OWN), n=1)
            known = ", ".join((*FIELDS, *OWN))
            guess = f"did you mean '{near[0]}'?" if near else f"known: {known}"
            raise _wrong(place, word, f"unknown argument: {guess}")
    scope, fresh = words.get("scope", "function"), words.get("fresh", False)
    if scope not in SCOPES:
        raise _wrong(place, "scope", choice(scope, SCOPES))
    if not isinstance(fresh, bool):
        raise _wrong(place, "fresh", f"expected True or False, found {fresh!r}")
    _fits_the_fixture(words, place, array=array)
    return Asked(compiled=_compiled(words, place, path), scope=scope, fresh=fresh, words=words)


def _fits_the_fixture(words: Mapping[str, Any], place: str, *, array: bool) -> None:
    if array:
        for word in ("disks", "level"):
            if word not in words:
                raise _wrong(place, word, "is missing: lab_array needs disks=N and level=N")
        return
    for word in words:
        section = FIELDS.get(word, "").partition(".")[0]
        if section == "array":
            raise _wrong(place, word, "is for arrays: use lab_array, or remove it for lab_guest")
        if section == "disks" and "disks" not in words:
            raise _wrong(place, word, "is for disks: add disks=N")


def _compiled(words: Mapping[str, Any], place: str, path: Path) -> Compiled:
    data: dict[str, Any] = {
        "title": "pytest",
        "question": place,
        "disks": {"count": 0},
    }
    document = Document(source=place, data=data)
    fields = {
        FIELDS[word]: as_throttle(value) if word == "throttle" else value
        for word, value in words.items()
        if word in FIELDS
    }
    given = words.get("set", {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        expected = "expected {'dotted.name': value}, as in {'disks.bus': 'scsi'}"
        raise _wrong(place, "set", f"{expected}, found {given!r}")
    changes = [
        Override(text=f"{name}={value}", path=tuple(name.split(".")), value=value)
        for name, value in {**fields, **given}.items()
    ]
    try:
        changed = override(document, changes).data
        return compile_document(path, Document(source=place, data=changed))
    except InputError as error:
        raise in_the_markers_words(error, place, words) from None


def in_the_markers_words(error: InputError, place: str, words: Mapping[str, Any]) -> InputError:
    """Return the same error with the marker's argument instead of the scenario's field."""
    message = error.message.removeprefix(f"{place}: ")
    field, colon, rest = message.partition(": ")
    for word, name in FIELDS.items():
        if colon and word in words and (field == name or field.startswith(f"{name}.")):
            return InputError(str(_wrong(place, word, rest)), hint=error.hint)
    return InputError(f"{place}: @pytest.mark.lab: {message}", hint=error.hint)


def _wrong(place: str, word: str, message: str) -> InputError:
    return InputError(f"{place}: @pytest.mark.lab: {word}: {message}")
