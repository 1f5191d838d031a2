"""YAML text to validated models, with the file, line and key of everything that is wrong.

The text is read once into plain data and a table of lines; ``--set`` overrides change the data and
remember themselves as the place their value came from; a model validates the data; what it finds
is told with the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from lab.errors import InputError

MAX_BYTES: Final = 1024**2
MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 50

Path_ = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One ``--set PATH=VALUE``."""

    text: str
    path: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data read from one file, and where each part of it stands."""

    source: str
    """The file, as messages name it."""
    data: dict[str, Any]
    lines: Mapping[Path_, int] = field(default_factory=dict)
    """Line, from 1, of each key and list item."""
    overrides: Mapping[Path_, str] = field(default_factory=dict)
    """Paths that a ``--set`` gave their value, with its text."""

    def place(self, path: Path_) -> str:
        """``FILE:LINE`` of a path, or of the nearest part of it that the file has."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return f"--set {self.overrides[path[:end]]}"
            if path[:end] in self.lines:
                return f"{self.source}:{self.lines[path[:end]]}"
        return self.source

    def wrong(self, path: Path_, message: str) -> InputError:
        """One sentence: place, key and what is wrong there."""
        key = dotted(path)
        return InputError(
            f"{self.place(path)}: {key}: {message}" if key else f"{self.place(path)}: {message}"
        )


def dotted(path: Path_) -> str:
    """A path as people write it: ``claims[2].expect.near``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_file(path: Path, *, shown: str | None = None) -> Document:
    """Read a YAML file whose top is a mapping."""
    source = shown or str(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{source}: the file is larger than 1MiB, which no scenario needs")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    return read_text(text, source=source)


def read_text(text: str, *, source: str) -> Document:
    """Read YAML text whose top is a mapping."""
    yaml = YAML(typ="rt", pure=True)
    try:
        tree = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = str(error.problem or error.context or "not YAML").splitlines()[0]
        raise InputError(f"{source}{line}: this is not YAML: {problem}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        problem = (str(error).splitlines() or ["it cannot be read"])[0]
        raise InputError(f"{source}: this is not YAML: {problem}") from error
    if tree is None:
        raise InputError(f"{source}: the file is empty; `lab scenario new NAME` writes a start")
    if not isinstance(tree, CommentedMap):
        raise InputError(f"{source}:1: expected keys and values (`title: …`) at the top")
    _refuse_bomb(tree, source)
    lines: dict[Path_, int] = {}
    data = _plain(tree, (), lines)
    return Document(source=source, data=data, lines=lines)


def _refuse_bomb(tree: Any, source: str) -> None:
    """Aliases share nodes; count what they would grow to before anything walks the copies."""
    grown: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if not isinstance(node, CommentedMap | CommentedSeq):
            return 1
        if id(node) in grown:
            return grown[id(node)]
        if id(node) in open_nodes or depth > MAX_DEPTH:
            where = f"{source}:{node.lc.line + 1}"
            raise InputError(f"{where}: an alias contains itself, or lists lie deeper than 50")
        open_nodes.add(id(node))
        children = node.values() if isinstance(node, CommentedMap) else node
        total = 1 + sum(size(child, depth + 1) for child in children)
        open_nodes.discard(id(node))
        grown[id(node)] = total
        if total > MAX_NODES:
            raise InputError(
                f"{source}:{node.lc.line + 1}: its aliases grow to more than {MAX_NODES} values;"
                " write the list out"
            )
        return total

    size(tree, 0)


def _plain(node: Any, path: Path_, lines: dict[Path_, int]) -> Any:
    """The same data in Python's own types; ruamel's scalars are subclasses of them."""
    if isinstance(node, CommentedMap):
        plain: dict[str, Any] = {}
        for key, value in node.items():
            name = str(key)
            if key in node.lc.data:
                lines[(*path, name)] = node.lc.data[key][0] + 1
            plain[name] = _plain(value, (*path, name), lines)
        return plain
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            if index in node.lc.data:
                lines[(*path, index)] = node.lc.data[index][0] + 1
        return [_plain(value, (*path, i), lines) for i, value in enumerate(node)]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node if node is None else str(node)


def parse_override(text: str) -> Override:
    """``array.chunk=256KiB``; the value is YAML."""
    path, equals, value = text.partition("=")
    names = tuple(path.strip().split("."))
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", n) for n in names):
        raise InputError(f"--set {text}: expected PATH=VALUE, as in --set array.chunk=256KiB")
    try:
        parsed = YAML(typ="rt", pure=True).load(value) if value.strip() else None
    except (YAMLError, ValueError) as error:
        raise InputError(f"--set {text}: the value is not YAML") from error
    _refuse_bomb(parsed, f"--set {names[0]}")
    return Override(text=text, path=names, value=_plain(parsed, (), {}))


def override(document: Document, overrides: Sequence[Override]) -> Document:
    """The document with each ``--set`` done, in order; the original is not touched."""
    data = document.data
    places: dict[Path_, str] = dict(document.overrides)
    for one in overrides:
        path, data = _put(document, data, one)
        places[path] = one.text
    return Document(source=document.source, data=data, lines=document.lines, overrides=places)


def _put(document: Document, data: dict[str, Any], one: Override) -> tuple[Path_, dict[str, Any]]:
    """Set one value; list items go by their ``name`` or by their number from 0."""
    walked: list[str | int] = []

    def put(node: Any, rest: tuple[str, ...]) -> Any:
        if not rest:
            return one.value
        head, tail = rest[0], rest[1:]
        if isinstance(node, list):
            index = _item(node, head)
            if index is None:
                names = [str(i["name"]) for i in node if isinstance(i, dict) and "name" in i]
                known = ", ".join(names) or f"0 to {len(node) - 1}"
                raise InputError(
                    f"--set {one.text}: {dotted(tuple(walked))} has no '{head}' (it has {known})"
                )
            walked.append(index)
            return [put(v, tail) if i == index else v for i, v in enumerate(node)]
        if node is not None and not isinstance(node, dict):
            raise InputError(
                f"--set {one.text}: {dotted(tuple(walked))} is {node!r} in"
                f" {document.source}, and has nothing below it"
            )
        walked.append(head)
        copy = dict(node or {})
        copy[head] = put(copy.get(head), tail)
        return copy

    changed: dict[str, Any] = put(data, one.path)
    return tuple(walked), changed


def _item(items: list[Any], head: str) -> int | None:
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == head:
            return index
    return int(head) if head.isdigit() and int(head) < len(items) else None


def validate(model: type[M], document: Document) -> M:
    """The document as a model; ``InputError`` names file, line and key of what is wrong."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise first_wrong(error, document) from None


def first_wrong(
    error: ValidationError,
    document: Document,
    *,
    below: Path_ = (),
    moved: Callable[[Path_], Path_] = lambda path: path,
) -> InputError:
    """The first thing pydantic found, in a sentence; ``below`` is where its data stands.

    ``moved`` maps a path of the data to the path in the file that gave it its value.
    """
    found = error.errors(include_url=False)
    sentences: list[str] = []
    for one in found:
        loc: Path_ = (*below, *one["loc"])
        path = _written(loc, document.data)
        key = one.get("ctx", {}).get("key") if one["type"] == "unknown_key" else None
        if key is not None:
            path = (*path, str(key))
        sentence = str(document.wrong(moved(path), _words(one)))
        if sentence not in sentences:
            sentences.append(sentence)
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return InputError(sentences[0] + more)


def _written(loc: Iterable[str | int], data: Any) -> Path_:
    """The part of pydantic's location that stands in the file; the last part may be missing."""
    parts = tuple(loc)
    path: list[str | int] = []
    for number, part in enumerate(parts):
        here = isinstance(data, dict) or (isinstance(data, list) and isinstance(part, int))
        if here and part in (data if isinstance(data, dict) else range(len(data))):
            path.append(part)
            data = data[part]
        elif number == len(parts) - 1 and isinstance(part, str) and isinstance(data, dict):
            path.append(part)
    return tuple(path)


def _words(one: Mapping[str, Any]) -> str:
    """Pydantic's message as a sentence about the value that was found."""
    kind, value = one["type"], one.get("input")
    message = str(one["msg"])
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind in ("unknown_key", "missing"):
        return "this key is needed" if kind == "missing" else message
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return f"needs a 'kind': one of {one.get('ctx', {}).get('expected_tags', 'the known ones')}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected keys and values, found {value!r}"
    lowered = message[:1].lower() + message[1:]
    return f"{lowered}; found {value!r}" if not isinstance(value, dict | list) else lowered
