"""Converts YAML text to validated models; errors name file, line and key.

The text is parsed once into plain data and a table of lines. ``--set`` overrides change the data,
and are recorded as the source of their values. A model validates the data.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from typing_extensions import override as overrides

from lab.core import regular, wording
from lab.core.errors import InputError
from lab.core.units import is_digits

ENDINGS: Final = (".yaml", ".yml")
"""Of a YAML file's name."""
MAX_BYTES: Final = 256 * 1024
MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 50
SET: Final = "--set"

_CORE: Final = "tag:yaml.org,2002:"
_FOREIGN: Final = "the tag '{}' means nothing here: remove it"

LARGEST: Final = 2**64 - 1
"""Largest whole number in a file."""
Path_ = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One ``--set PATH=VALUE``, or a value that a file gives by its dotted name."""

    text: str
    """``PATH=VALUE``, or the key in the file."""
    path: tuple[str, ...]
    value: Any
    line: str = ""
    """``FILE:LINE``; empty: a ``--set``."""

    @property
    def place(self) -> str:
        """Source of the value, for messages."""
        return self.line or f"{SET} {self.text}"

    @property
    def said(self) -> str:
        """The place with the key."""
        return f"{self.line}: {self.text}" if self.line else self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data from one file, and the line of each value."""

    source: str
    """Name of the file in messages."""
    data: dict[str, Any]
    lines: Mapping[Path_, int] = field(default_factory=dict)
    """Line, from 1, of each key and list item."""
    files: Mapping[Path_, str] = field(default_factory=dict)
    """The file of each line that is not in ``source``."""
    overrides: Mapping[Path_, str] = field(default_factory=dict)
    """Paths whose value was overridden, and where: ``--set TEXT`` or ``FILE:LINE``."""

    def place(self, path: Path_) -> str:
        """Return ``FILE:LINE`` of a path, or of its nearest part in the file."""
        parts = [path[:end] for end in range(len(path), -1, -1)]
        for part in parts:  # first, because a value from --set has no line in the file
            if part in self.overrides:
                return self.overrides[part]
        for part in parts:
            if part in self.lines:
                return f"{self.files.get(part, self.source)}:{self.lines[part]}"
        return f"{self.source}:1" if self.lines else self.source

    def with_disks(self, filled: Callable[[Any], Any]) -> Document:
        """Return the scenario with each entry of ``disks``, one or a list, replaced by
        ``filled``."""
        disks = self.data.get("disks")
        found = [filled(d) for d in disks] if isinstance(disks, list) else filled(disks)
        return self if found == disks else replace(self, data={**self.data, "disks": found})

    def wrong(self, path: Path_, message: str) -> InputError:
        """Return the error: place, key and problem in one sentence."""
        key = dotted(path)
        return InputError(
            f"{self.place(path)}: {key}: {message}" if key else f"{self.place(path)}: {message}"
        )


def dotted(path: Path_) -> str:
    """Return a path such as ``claims[2].expect.near``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_file(path: Path, *, shown: str | None = None, first: str = "title") -> Document:
    """Read a YAML file that contains a mapping; ``first`` is the usual first key of such a file.

    Errors show lines of the file, so a link in another's directory must lead to a YAML file.
    """
    source = shown or str(path)
    if path.is_symlink() and path.resolve().suffix not in ENDINGS:
        raise InputError(
            f"{source}: is a link to '{path.resolve().name}': expected a file that ends in .yaml"
        )
    try:
        text = regular.read(path, MAX_BYTES).decode()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InputError(
                f"{source}: the file is larger than 256KiB, the most that is read"
            ) from error
        raise InputError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    return read_text(text, source=source, first=first)


def written(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML text, which `read_text` reads back."""
    yaml: Any = YAML(typ="safe", pure=True)
    stream = io.StringIO()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 100
    yaml.dump(dict(data), stream)
    return stream.getvalue()


def read_text(text: str, *, source: str, first: str = "title") -> Document:
    """Read YAML text that contains a mapping."""
    root = _compose(text, source)
    expected = f"expected a mapping that begins with a key such as `{first}: …`"
    if root is None or root.tag == f"{_CORE}null":
        start = "; `lab scenario new FILE` writes a scenario" if first == "title" else ""
        raise InputError(f"{source}:1: the file is empty: {expected}{start}")
    if not isinstance(root, MappingNode):
        found = "a list" if isinstance(root, SequenceNode) else f"'{root.value[:40]}'"
        raise InputError(f"{source}:{root.start_mark.line + 1}: {expected}, found {found}")
    lines: dict[Path_, int] = {}
    data = _plain(root, (), lines, source)
    return Document(source=source, data=data, lines=lines)


def _compose(text: str, source: str) -> Node | None:
    """Return the text's nodes with their lines, without expanded aliases; ``None``: empty text."""
    depth = deepest = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket.group() in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > 4 * MAX_DEPTH:  # some brackets may be in quotes
        raise InputError(f"{source}: its brackets lie deeper than {MAX_DEPTH}")
    try:
        root = _nodes(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = _problem(str(error.problem or error.context or "it cannot be read"))
        raise InputError(f"{source}{line}: this is not YAML: {problem}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        problem = (str(error).splitlines() or ["it cannot be read"])[0]
        raise InputError(f"{source}: this is not YAML: {problem}") from error
    if root is not None:
        _refuse_bomb(root, source)
    return root


def _nodes(text: str) -> Node | None:
    """Parse with libyaml if it exists: it takes a sixth of the time of ruamel's own parser.

    ruamel's parser reports errors. It also reads text that both parse differently (tabs, tags,
    directives, names of anchors), and text nested so deep that libyaml would overflow the stack. A
    nested block is further to the right than its parent, or begins with its dash.
    """
    with warnings.catch_warnings():
        # An anchor's name may be repeated: the last one before an alias counts (YAML 1.2, 7.1).
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        if not _SLOW.search(text):
            with contextlib.suppress(YAMLError):
                quick = YAML(typ="safe", pure=False)
                quick.Resolver = _Resolver
                found: Node | None = quick.compose(text)
                return found
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
        return root


class _Resolver(VersionedResolver):
    """Knows the version of YAML once, and not for each value: no text of libyaml names another."""

    @functools.cached_property
    @overrides
    def versioned_resolver(self) -> Any:
        return super().versioned_resolver


_SLOW: Final = re.compile(
    rf"\t|(?:^|[\s\[{{,])!|^%|^[ ?-]{{{4 * MAX_DEPTH}}}"
    r"|(?:^|[\s\[{,:])[&*][\w-]*[^\w\s,\[\]{}-]",  # in `&a:b` libyaml ends the name at the colon
    re.MULTILINE | re.ASCII,
)


_PROBLEMS: Final = {
    "found character '\\t'": "a tab is here, and YAML is indented with spaces: replace it",
    "but found another document": "a second document begins here, and a file holds one: remove the"
    " line ---",
}


def _problem(said: str) -> str:
    """Return the YAML reader's error, with the remedy."""
    known = next((text for part, text in _PROBLEMS.items() if part in said), "")
    return known or f"{said.splitlines()[0]}; check quotes, brackets and indentation here and above"


_HALVES: Final = re.compile("[\ud800-\udfff]")
"""Halves of UTF-16 characters, which are none."""


def _at(source: str, node: Node) -> str:
    return f"{source}:{node.start_mark.line + 1}"


def _refuse_bomb(root: Node, source: str) -> None:
    """Refuse aliases that expand to too many nodes. Count before any code walks the copies."""
    grown: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Node, depth: int) -> int:
        if isinstance(node, ScalarNode):
            return 1
        if id(node) in grown:
            return grown[id(node)]
        if id(node) in open_nodes or depth > MAX_DEPTH:
            raise InputError(
                f"{_at(source, node)}: an alias contains itself, or lists lie deeper than"
                f" {MAX_DEPTH}"
            )
        open_nodes.add(id(node))
        pairs = isinstance(node, MappingNode)
        children = [part for pair in node.value for part in pair] if pairs else node.value
        total = 1 + sum(size(child, depth + 1) for child in children)
        open_nodes.discard(id(node))
        grown[id(node)] = total
        if total > MAX_NODES:
            raise InputError(
                f"{_at(source, node)}: its aliases grow to more than {MAX_NODES} values; write the "
                "list out"
            )
        return total

    size(root, 0)


def _plain(node: Node, path: Path_, lines: dict[Path_, int], source: str) -> Any:
    """Return the node's data in Python's types; store the line of each key and item in
    ``lines``."""
    if isinstance(node, MappingNode):
        plain: dict[str, Any] = {}
        for name, (key, value) in _pairs(node, source, path).items():
            lines[(*path, name)] = key.start_mark.line + 1
            plain[name] = _plain(value, (*path, name), lines, source)
        return plain
    if isinstance(node, SequenceNode):
        if node.tag != f"{_CORE}seq":
            raise InputError(f"{_at(source, node)}: {_FOREIGN.format(node.tag)}")
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
        return [_plain(v, (*path, i), lines, source) for i, v in enumerate(node.value)]
    kind = str(node.tag).removeprefix(_CORE)
    if kind in ("str", "timestamp", "value", "merge"):
        if _HALVES.search(node.value):
            raise InputError(f"{_at(source, node)}: {node.value!r} is not Unicode text")
        return str(node.value)
    if kind not in ("int", "float", "bool", "null"):
        raise InputError(f"{_at(source, node)}: {_FOREIGN.format(node.tag)}")
    try:
        constructor = _scalars()
        constructor.constructed_objects.clear()
        value = constructor.construct_object(node)
    except (YAMLError, ValueError, LookupError) as error:
        raise InputError(f"{_at(source, node)}: '{node.value[:40]}' is no {kind}") from error
    if isinstance(value, int) and abs(value) > LARGEST:
        # Python refuses to print a number of 4300 digits, but reads 0xfff… of any length.
        shown = node.value if len(node.value) <= 40 else f"{node.value[:40]}…"
        raise InputError(f"{_at(source, node)}: '{shown}' is too large: expected at most {LARGEST}")
    return value


@functools.cache
def _scalars() -> SafeConstructor:
    """Return one reader for all files: making one per number takes longer than reading the file."""
    constructor: SafeConstructor = YAML(typ="safe", pure=True).constructor
    return constructor


def _pairs(node: MappingNode, source: str, path: Path_) -> dict[str, tuple[Node, Node]]:
    """Return key and value by name; keys that ``<<`` merges in do not replace others."""
    own: dict[str, tuple[Node, Node]] = {}
    merged: dict[str, tuple[Node, Node]] = {}
    if node.tag != f"{_CORE}map":
        raise InputError(f"{_at(source, node)}: {_FOREIGN.format(node.tag)}")
    for key, value in node.value:
        if key.tag == f"{_CORE}merge":
            for other in value.value if isinstance(value, SequenceNode) else [value]:
                if not isinstance(other, MappingNode):
                    raise InputError(f"{_at(source, key)}: << merges keys and values, not others")
                merged = _pairs(other, source, path) | merged
        elif not isinstance(key, ScalarNode) or not isinstance(key.value, str):
            raise InputError(f"{_at(source, key)}: a key is a word, not a list or a mapping")
        elif key.value in own:
            first = own[key.value][0].start_mark.line + 1
            raise InputError(
                f"{_at(source, key)}: {dotted((*path, key.value))}: the key '{key.value}' is there"
                f" twice, on line {first} too: remove one of them"
            )
        else:
            own[key.value] = (key, value)
    return own | {name: pair for name, pair in merged.items() if name not in own}


def parse_override(text: str) -> Override:
    """Parse ``array.chunk=256KiB``; the value is YAML."""
    path, equals, value = text.partition("=")
    names = tuple(path.strip().split("."))
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_/-]+", n) for n in names):
        raise InputError(f"--set {text}: expected PATH=VALUE, as in --set array.chunk=256KiB")
    try:
        root = _compose(value, "value")
        parsed = None if root is None else _plain(root, (), {}, "value")
    except InputError as error:
        reason = re.sub(r"^value(:\d+)?: ", "", error.message)
        raise InputError(f"--set {text[:200]}: {reason}") from error
    return Override(text=text, path=names, value=parsed)


def override(document: Document, overrides: Sequence[Override]) -> Document:
    """Return the document with each override applied in order; the original is unchanged."""
    data = document.data
    places: dict[Path_, str] = dict(document.overrides)
    for one in overrides:
        path, data = _put(document, data, one)
        places[path] = one.place
    return replace(document, data=data, overrides=places)


def _put(document: Document, data: dict[str, Any], one: Override) -> tuple[Path_, dict[str, Any]]:
    """Set one value; a list item is selected by its ``name`` or by its number from 0."""
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
                near = get_close_matches(head, names, n=1)
                guess = f": did you mean '{near[0]}'?" if near else ""
                raise InputError(
                    f"{one.said}: {dotted(tuple(walked))} has no '{head}' (it has {known})" + guess
                )
            walked.append(index)
            return [put(v, tail) if i == index else v for i, v in enumerate(node)]
        if node is not None and not isinstance(node, dict):
            raise InputError(
                f"{one.said}: {dotted(tuple(walked))} is {node!r} in {document.source}, and has "
                "nothing below it"
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
    return int(head) if is_digits(head) and int(head) < len(items) else None


def validate(model: type[M], document: Document) -> M:
    """Return the document as a model; ``InputError`` names file, line and key of an error."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise first_wrong(error, model, document) from None


def first_wrong(
    error: ValidationError,
    kind: Any,
    document: Document,
    *,
    below: Path_ = (),
    moved: Callable[[Path_], Path_] = lambda path: path,
) -> InputError:
    """Return the error for pydantic's first finding; ``below`` is the path of its data.

    ``kind`` is the validated type. ``moved`` maps a path of the data to the path in the file that
    gave it its value.
    """
    one: Any = error.errors(include_url=False)[0]
    path = _written((*below, *wording.place(one)), document.data)
    direct = path == (*below, *one["loc"])  # not at a key below it
    if direct and (found := _value(document.data, path)) is not _ABSENT:
        one = {**one, "input": found}  # as written: 0s, and not 0.0
    return document.wrong(moved(path), wording.sentence(kind, one))


_ABSENT: Final = object()


def _value(data: Any, path: Path_) -> Any:
    for part in path:
        if isinstance(data, dict) and part not in data:
            return _ABSENT
        data = data[part]
    return data


def _written(loc: Iterable[str | int], data: Any) -> Path_:
    """Return the part of pydantic's location that is in the file; the last part may be missing."""
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
