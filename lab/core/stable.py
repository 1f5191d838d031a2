"""One rule for digests: a field that is newer than the first digests counts only if it is set.

Ids of cells, their identities and the digests of their inputs are made of whole models. A model of
them is :class:`Stable` and names the fields that are always written (``ALWAYS``). Any other field
is left out while it has its default, so a new field changes no digest, and nobody has to remember
that. ``ALWAYS`` never changes.

Other records (of `drive`) have a :class:`Form`, which also keeps the name under which a class was
first written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer
from pydantic.fields import FieldInfo

from lab.core.base import Model


def named(*names: str) -> frozenset[str]:
    """Return the names of fields, each a word of these texts."""
    return frozenset(word for text in names for word in text.split())


def ordered(*texts: str) -> tuple[str, ...]:
    """Return the names of fields in this order, each a word of these texts."""
    return tuple(word for text in texts for word in text.split())


class Stable(Model):
    """A model that is part of digests."""

    ALWAYS: ClassVar[frozenset[str]] = frozenset()
    """Fields that are always written. Add none: a new field is left out while it has its
    default."""

    def always(self) -> frozenset[str]:
        """Return the fields that are always written of this one."""
        return self.ALWAYS

    def never(self) -> frozenset[str]:
        """Return the fields that do not apply to this one, and are never written."""
        return frozenset()

    @model_serializer(mode="wrap")
    def _without_newer(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer fields that have their default."""
        data: dict[str, Any] = whole(self)
        for name in self.never():
            data.pop(name, None)
        for name, field in _others(type(self), self.always()):
            if getattr(self, name) == field.get_default(call_default_factory=True):
                data.pop(name, None)
                data.pop(field.alias or name, None)
        return data


def _others(model: type[Stable], always: frozenset[str]) -> Iterator[tuple[str, FieldInfo]]:
    for name in model.model_fields.keys() - always:
        yield name, model.model_fields[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a record is written in digests, whatever its class is called today."""

    name: str
    """Its first name."""
    always: tuple[str, ...] = ()
    """Fields that are always written, in this order."""


def written(value: Any, forms: Mapping[type, Form]) -> str:
    """Return a value as text for digests: records and enumerations by their forms, all else by
    ``repr``."""
    form = forms.get(type(value))
    if isinstance(value, Enum):
        assert form is not None, f"{type(value)} has no form"
        return f"<{form.name}.{value.name}: {value.value!r}>"
    if form is not None:
        inside = ", ".join(f"{name}={written(getattr(value, name), forms)}"
                           for name in _fields(value, form))  # fmt: skip
        return f"{form.name}({inside})"
    if isinstance(value, Mapping):
        pairs = (f"{written(k, forms)}: {written(v, forms)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return repr(value)
    inside = ", ".join(written(one, forms) for one in value)
    if isinstance(value, tuple):
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"[{inside}]"


def _fields(value: Any, form: Form) -> Iterator[str]:
    yield from form.always
    for field in fields(value):
        if field.name in form.always:
            continue
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if default is MISSING or getattr(value, field.name) != default:
            yield field.name
