"""Turns pydantic's findings into sentences: expected value, found value, what to type.

pydantic's own messages are not shown. The expected values come from the field's annotation, or from
a ``Says`` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from lab.core.base import AT_KEY, Says
from lab.core.units import as_yaml

Field_ = tuple[Any, tuple[Any, ...]]
"""An annotation and its metadata: limits, ``Says``."""
Finding = Mapping[str, Any]
"""One item of ``ValidationError.errors()``."""


def sentence(kind: Any, one: Finding) -> str:
    """Return the error in the value at the finding's place; ``kind`` is the validated type."""
    found, field = one.get("input"), field_at(kind, one["loc"])
    context = one.get("ctx", {})
    match one["type"]:
        case "value_error":
            return str(one["msg"]).removeprefix("Value error, ")
        case type_ if type_ == AT_KEY:
            return str(context["message"])
        case "missing":
            return f"this key is missing: expected {phrase(*field)}"
        case "union_tag_not_found":
            return f"this key is missing: expected {_one_of(_tags(field))}"
        case "union_tag_invalid":
            key = place(one)[-1]
            return choice(found.get(key) if isinstance(found, Mapping) else found, _tags(field))
        case "json_invalid":
            return "it is cut off, or not JSON"
        case _:
            options = _options(field[0])
            if isinstance(found, str) and options:
                return choice(found, options)
            return f"expected {phrase(*field)}, found {shown(found)}{_advice(field[0], found)}"


def place(one: Finding) -> tuple[str | int, ...]:
    """Return the location of the finding, with its key."""
    context = one.get("ctx", {})
    if one["type"] == AT_KEY:
        return (*one["loc"], *context["keys"])
    if one["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return (*one["loc"], str(context["discriminator"]).strip("'"))
    return tuple(one["loc"])


def reason(error: ValidationError, kind: Any) -> str:
    """Return the first error in data without a file, as ``KEY: SENTENCE``."""
    one: Any = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in place(one))
    return f"{key}: {sentence(kind, one)}" if key else sentence(kind, one)


def choice(found: object, options: Iterable[object]) -> str:
    """Return the error for a value that is none of the options."""
    words = [as_yaml(option) for option in options]
    return f"expected {_one_of(words)}, found {shown(found)}{guess(found, words)}"


def guess(found: object, words: Iterable[str]) -> str:
    """Return ``: did you mean 'WORD'?``; empty: no word is similar."""
    near = get_close_matches(str(found), list(words), n=1)
    return f": did you mean '{near[0]}'?" if near else ""


def shown(value: object) -> str:
    """Return a value as written, with its type unless it is plain: ``a list ([1, 2])``."""
    if value is None:
        return "nothing (null)"
    text = as_yaml(value)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    if isinstance(value, Mapping):
        return f"a mapping ({text})"
    if isinstance(value, list | tuple):
        return f"a list ({text})"
    return f"'{text}'" if isinstance(value, str) else text


def phrase(kind: Any, beside: Sequence[Any] = ()) -> str:
    """Return the description of a field's values: ``a whole number from 1 to 64``."""
    kind, beside = _plain(kind, beside)
    for one in beside:
        if isinstance(one, Says):
            limits = _limits(beside).lstrip(",")
            return f"{one.text},{limits}" if limits else one.text
    if options := _options(kind):
        return _one_of(as_yaml(option) for option in options)
    origin: Any = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        if tags := _tags((kind, ())):
            return f"a mapping with a kind, {_one_of(tags)}"
        if str in inner:
            return "one value: text, a number, true or false"
        return " or ".join(dict.fromkeys(phrase(k, b) for k, b in _members(kind)))
    if origin in (tuple, list, frozenset, set):
        least = next((b.min_length for b in beside if isinstance(b, MinLen)), 0)
        listed = f"a list of {_plural(inner[0] if inner else Any)}"
        return f"{listed} with at least {least} of them" if least > 1 else listed
    if origin is dict:
        return f"a mapping of names to {phrase(inner[1])}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"a mapping with {_keys(kind)}"
    plain = {bool: "true or false", date: "a date such as 2026-12-31", Any: "a value"}
    if kind in plain:
        return plain[kind]
    if kind in (int, float):
        return f"{'a whole number' if kind is int else 'a number'}{_limits(beside)}"
    return "text" if kind is str else "a value"


def field_at(kind: Any, loc: Sequence[str | int]) -> Field_:
    """Return the field at one of pydantic's locations; tags of unions in it are skipped."""
    field: Field_ = (kind, ())
    for part in loc:
        field = _below(field, part)
    return field


def _below(field: Field_, part: str | int) -> Field_:
    kind, beside = _plain(*field)
    origin: Any = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        for member in _members(kind):
            if part in (_tag(member[0]), *(b.tag for b in member[1] if isinstance(b, Tag))):
                return member
        for member in _members(kind):
            if (found := _below(member, part)) != member:
                return found
        return kind, beside
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        known: dict[str, FieldInfo] = {f.alias or n: f for n, f in kind.model_fields.items()}
        one = known.get(str(part)) or kind.model_fields.get(str(part))
        return (one.annotation, tuple(one.metadata)) if one else (Any, ())
    if origin in (tuple, list, frozenset, set) and isinstance(part, int):
        return inner[0], ()
    return (inner[1], ()) if origin is dict else (kind, beside)


def _plain(kind: Any, beside: Sequence[Any]) -> Field_:
    """Return the type without ``Annotated`` and without the ``None`` of an optional field."""
    found = tuple(beside)
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            found = (*found, *more)
            continue
        if get_origin(kind) in (Union, UnionType):
            members = [k for k in get_args(kind) if k is not NoneType]
            if len(members) == 1:
                kind = members[0]
                continue
        return kind, found


def _members(kind: Any) -> list[Field_]:
    return [_plain(member, ()) for member in get_args(kind) if member is not NoneType]


def _tag(kind: Any) -> object:
    """Return the ``kind`` that identifies a model in its union."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and "kind" in kind.model_fields:
        return next(iter(get_args(kind.model_fields["kind"].annotation)), None)
    return None


def _options(kind: Any) -> tuple[object, ...]:
    kind, _ = _plain(kind, ())
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(member.value for member in kind)
    return ()


def _tags(field: Field_) -> list[str]:
    """Return every ``kind`` of a union's models."""
    return [str(tag) for member, _ in _members(_plain(*field)[0]) if (tag := _tag(member))]


def _one_of(words: Iterable[str]) -> str:
    listed = list(words)
    return f"one of {', '.join(listed)}" if len(listed) > 1 else "".join(listed)


def _plural(kind: Any) -> str:
    kind, beside = _plain(kind, ())
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"mappings, each with {_keys(kind)}"
    if options := _options(kind):
        return f"words out of {', '.join(as_yaml(option) for option in options)}"
    says = next((one.text for one in beside if isinstance(one, Says)), "")
    if says:
        return f"entries, each {says}"
    names = {str: "words, as in [one, two]", int: "whole numbers, as in [1, 2]"}
    return names.get(kind, "values, as in [1, 2]")


def _keys(model: type[BaseModel]) -> str:
    """Return keys of a mapping: the required ones, else the first allowed ones."""
    fields = {f.alias or name: f for name, f in model.model_fields.items()}
    needed = [name for name, field in fields.items() if field.is_required()]
    if needed:
        return f"the key{'s' * (len(needed) > 1)} {', '.join(needed)}"
    few = list(fields)[:4]
    return f"keys such as {', '.join(few)}" if few else "keys and their values"


def _limits(beside: Sequence[Any]) -> str:
    low = next((b.ge for b in beside if isinstance(b, Ge)), None)
    high = next((b.le for b in beside if isinstance(b, Le)), None)
    above = next((b.gt for b in beside if isinstance(b, Gt)), None)
    below = next((b.lt for b in beside if isinstance(b, Lt)), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    said = [f", {low} or more"] if low is not None else []
    said += [f", {high} or less"] if high is not None else []
    said += [f" above {above}"] if above is not None else []
    said += [f" below {below}"] if below is not None else []
    return "".join(said)


def _advice(kind: Any, found: object) -> str:
    """Return what to type instead, if that is clear from the found value."""
    kind, _ = _plain(kind, ())
    if found is None:
        return ": give one, or remove the key"
    if found in ([], ()):
        return ": write at least 1"
    if kind is str and isinstance(found, int | float):
        return f": put it in quotes, '{as_yaml(found)}'"
    if get_origin(kind) in (tuple, list) and not isinstance(found, list | tuple | Mapping):
        return f": write [{as_yaml(found)}]"
    if get_origin(kind) in (tuple, list) and isinstance(found, Mapping):
        return ": begin it with a dash (- )"
    return ""
