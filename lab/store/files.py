"""A run's files as texts and documents; what cannot be read is passed over, and remembered."""

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
"""Bytes that are read of a cell's raw output, all files together."""
_NAMED: Final = 3
"""Files that are named where more cannot be read."""
M = TypeVar("M", bound=Model)


class RunFiles:
    """The files of one run, or of one run of a matrix."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unread: dict[str, str] = {}

    def require(self, model: type[M], name: str, what: str) -> M:
        """The document without which this is no ``what``; ``InputError`` says what is wrong."""
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
        """A document; ``None`` where there is none, or none that can be read.

        ``instead`` is what the lab does then, for the sentence about it.
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
        """Whether there is such a file, and it could not be read."""
        return "/".join(names) in self._unread

    def texts(self, *names: str) -> dict[str, str]:
        """Every file of a directory by its name, but for hidden ones."""
        left, found = RAW, dict[str, str]()
        for name in self.entries(*names):
            if not name.startswith("."):
                text = self.text(*names, name, limit=left)
                if text is not None:
                    found[name] = text
                    left = max(0, left - len(text))
        return found

    def text(self, *names: str, limit: int = untrusted.DOCUMENT) -> str | None:
        """A file, with U+FFFD for bytes that are not UTF-8; ``None`` where it cannot be read."""
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
        """The names in a directory; none where there is none."""
        try:
            return untrusted.entries(self.root, *names)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._unread["/".join(names)] = f"cannot be read: {error.strerror}"
            return []

    def damage(self) -> tuple[str, ...]:
        """What could not be read so far, in one sentence; none where everything could."""
        named = [f"'{self.root / _line(n)}' {why}" for n, why in sorted(self._unread.items())]
        more = f"; and {len(named) - _NAMED} more files" if len(named) > _NAMED else ""
        return ("; ".join(named[:_NAMED]) + more,) if named else ()


def _line(name: str) -> str:
    """A name on one line: the next one would look like a sentence of the lab's."""
    return name.replace("\n", "\\n")


def _other_form(data: bytes, model: type[Model]) -> str:
    """Which other form a document says it has than the model's; empty: it says no such thing."""
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
