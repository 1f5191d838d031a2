"""Reads a run's files as texts and documents; skips and records unreadable ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from lab.core import wording
from lab.core.base import Model
from lab.core.errors import InputError
from lab.host.system import untrusted

RAW: Final = 256 << 20
"""Most bytes of a cell's raw output that are read."""
M = TypeVar("M", bound=Model)


class RunFiles:
    """The files of one run, or of a matrix run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unread: dict[str, str] = {}

    def require(self, model: type[M], name: str, what: str) -> M:
        """Return a required document of a ``what``; ``InputError``: it is missing or invalid."""
        try:
            data = untrusted.read(self.root, name)
        except OSError as error:
            raise InputError(
                f"'{self.root}' is no {what}: '{self.root / name}' cannot be read: {error.strerror}"
            ) from error
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            why = _other_form(data, model) or (
                f"is not a {what} that this lab can read: {wording.reason(error, model)}"
            )
            raise InputError(f"'{self.root / name}' {why}") from None

    def document(self, model: type[M], *names: str, instead: str = "") -> M | None:
        """Return a document; ``None``: it is missing or unreadable.

        ``instead``: what the lab does if it is unreadable, for the warning.
        """
        data = b""
        try:
            data = untrusted.read(self.root, *names)
            return model.model_validate_json(data)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        except ValidationError as error:
            other = _other_form(data, model)
            why = other or f"is cut off, or not what it should be: {wording.reason(error, model)}"
        self._unread["/".join(names)] = f"{why}: {instead}" if instead else why
        return None

    def is_unread(self, *names: str) -> bool:
        """Return whether the file exists and could not be read."""
        return "/".join(names) in self._unread

    def texts(self, *names: str) -> dict[str, str]:
        """Return every file of a directory by name, without hidden ones."""
        left, found = RAW, dict[str, str]()
        for name in self.entries(*names):
            if not name.startswith("."):
                text = self.text(*names, name, limit=left)
                if text is not None:
                    found[name] = text
                    left = max(0, left - len(text))
        return found

    def text(self, *names: str, limit: int = untrusted.DOCUMENT) -> str | None:
        """Return a file, with U+FFFD for bytes that are not UTF-8; ``None``: missing or
        unreadable."""
        try:
            data = untrusted.read(self.root, *names, limit=limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unread["/".join(names)] = f"cannot be read: {error.strerror}"
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self._unread["/".join(names)] = f"is no text: byte {error.start} is not UTF-8"
            return data.decode(errors="replace")

    def entries(self, *names: str) -> list[str]:
        """Return the names in a directory; empty: it is missing or unreadable."""
        try:
            return untrusted.entries(self.root, *names)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._unread["/".join(names)] = f"cannot be read: {error.strerror}"
            return []

    def warnings(self) -> tuple[str, ...]:
        """Return one warning: the first unreadable file, and the number of others."""
        if not self._unread:
            return ()
        name, why = next(iter(self._unread.items()))
        more = len(self._unread) - 1
        others = f"; and {more} more unreadable file{'s' if more > 1 else ''}" if more else ""
        # A line feed in a name would make the rest look like a message of the lab.
        return (f"'{self.root / name.replace(chr(10), chr(92) + 'n')}' {why}{others}",)


def _other_form(data: bytes, model: type[Model]) -> str:
    """Return why the document is of another version; empty: it is not, or does not say."""
    mine = model.model_fields.get("schema_")
    if mine is None:
        return ""
    try:
        said = from_json(data)[mine.alias or "schema_"]
    except (ValueError, TypeError, KeyError):
        return ""
    if said == mine.default:
        return ""
    return f"has the form '{said}', and this lab reads '{mine.default}': another version wrote it"
