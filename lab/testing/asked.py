"""What a test asks for: the marker's words as a scenario of one cell, checked as all are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from lab.compile.scenario.document import Compiled, compile_document
from lab.core.errors import InputError
from lab.core.wording import choice
from lab.core.yaml import Document, Override, override
from lab.model.scenario.document import as_throttle

GUEST: Final = ("image", "kernel", "cpus", "memory", "kernel_arguments")
DISKS: Final = ("size", "format", "bus", "cache", "scheduler", "model", "preset", "hdd", "ssd")
ARRAY: Final = (
    *("level", "layout", "chunk", "component_size", "members", "missing", "spares", "metadata"),
    *("bitmap", "bitmap_chunk", "data_offset", "consistency_policy", "initial_sync", "sysfs"),
)
FIELDS: Final[Mapping[str, str]] = {
    **{word: f"guest.{word}" for word in GUEST},
    "disks": "disks.count",
    **{word: f"disks.{word}" for word in DISKS},
    "throttle": "disks.throttle",
    **{word: f"array.{word}" for word in ARRAY},
}
"""Word of the marker to the scenario's field that it stands for."""
SCOPES: Final = ("function", "class", "module", "session")
OWN: Final = ("scope", "fresh", "set")
"""Words that no scenario has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A guest, as a test asks for it."""

    compiled: Compiled
    scope: str
    fresh: bool
    words: Mapping[str, Any]
    """As they were given; two that are alike may share a guest."""


def asked_for(words: Mapping[str, Any], *, array: bool, place: str, path: Path) -> Asked:
    """Check the marker's words; ``InputError`` says where, which word, and what was expected.

    ``place`` is what messages call the test; without ``array`` there are the disks alone.
    """
    for word in words:
        if word not in FIELDS and word not in OWN:
            near = get_close_matches(word, (*FIELDS, *OWN), n=1)
            known = ", ".join((*FIELDS, *OWN))
            guess = f"did you mean '{near[0]}'?" if near else f"known are {known}"
            raise _wrong(place, word, f"there is no such word: {guess}")
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
                raise _wrong(place, word, "is needed: lab_array builds an array of that level")
        return
    for word in words:
        section = FIELDS.get(word, "").partition(".")[0]
        if section == "array":
            raise _wrong(
                place, word, "speaks of an array: take lab_array, or leave it out for lab_guest"
            )
        if section == "disks" and "disks" not in words:
            raise _wrong(place, word, "speaks of disks: say how many with disks=N")


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
    """The same sentence, with the marker's word for the field that is wrong, where one is."""
    message = error.message.removeprefix(f"{place}: ")
    field, colon, rest = message.partition(": ")
    for word, name in FIELDS.items():
        if colon and word in words and (field == name or field.startswith(f"{name}.")):
            return InputError(str(_wrong(place, word, rest)), hint=error.hint)
    return InputError(f"{place}: @pytest.mark.lab: {message}", hint=error.hint)


def _wrong(place: str, word: str, message: str) -> InputError:
    return InputError(f"{place}: @pytest.mark.lab: {word}: {message}")
