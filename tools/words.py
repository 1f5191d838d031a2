#!/usr/bin/env python3
"""Report words that texts for people must not use: ``tools/words.py [--all] [--count] [FILE...]``.

It checks help texts, messages, field descriptions, documents and texts in scenarios; with ``--all``
every docstring and comment too. It skips code (spans, blocks, options, paths, quoted names).
``tools/words.txt`` lists the words.
Exit status: 0 no word found, 1 words found, 2 an invalid line in the list.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = ROOT / "tools" / "words.txt"
GENERATED: Final = "docs/reference/"
"""Made from help texts and field descriptions, which are checked in their source files."""
TEXT_KEYS: Final = ("title", "question", "notes", "says", "source", "reason", "description")
DESCRIBED: Final = (
    *("lab/model/scenario/", "lab/capabilities/matrix/", "lab/model/result/"),
    *("lab/plugins/arrays/", "lab/plugins/disks/", "lab/plugins/faults/", "lab/plugins/workloads/"),
)
"""Docstrings of these modules, classes and fields become docs/reference."""
CODE: Final = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)[^\n]*$"  # a code block
    r"|<!--.*?-->|<(?:style|script)\b.*?</(?:style|script)>"
    r"|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}"  # Jinja
    r"|(?<!`)(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)"  # a code span
    r"|</?[a-zA-Z][^<>\n]*>"  # HTML
    r"|(?<=\])\([^()\s]*(?:\s\"[^\"]*\")?\)|https?://\S+"  # a link's target
    r"|(?<![\w'])'[^'\s]+'(?![\w'])"  # a name in quotes
    r"|(?<![\w-])--?[a-z][\w-]*",  # an option
    re.MULTILINE | re.DOTALL,
)


class ListError(Exception):
    """An invalid line in the list."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text in a file, with the number of its first line."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A listed word at its place."""

    file: str
    line: int
    word: str
    instead: str

    @property
    def line_of_text(self) -> str:
        """The finding in the format of compilers' messages."""
        return f"{self.file}:{self.line}: '{self.word}': write {self.instead}"


@dataclass(slots=True)
class Words:
    """The list: one pattern for all words, the replacements, and the exceptions."""

    pattern: re.Pattern[str]
    instead: dict[str, str]
    allowed: list[tuple[str, re.Pattern[str]]]

    def find(self, piece: Text) -> Iterator[Finding]:
        """Yield the words in one text, except in code and in exceptions."""
        text = CODE.sub(_blank, piece.text)
        for files, pattern in self.allowed:
            if fnmatch(piece.file, files):
                text = pattern.sub(_blank, text)
        for found in self.pattern.finditer(text):
            word = " ".join(found[0].lower().split())
            line = piece.line + text.count("\n", 0, found.start())
            yield Finding(piece.file, line, word, self.instead[word])


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of whole words, also across a line break; parts of names and paths don't
    match."""
    longest = sorted(words, key=len, reverse=True)
    either = "|".join(r"\s+".join(map(re.escape, word.split())) for word in longest)
    return re.compile(rf"(?<![\w/.=$@-])(?:{either})(?![\w/=(]|[-.:]\w)", re.IGNORECASE)


def read(path: Path = LIST) -> Words:
    """Read the list; ``ListError`` names an invalid line."""
    instead: dict[str, str] = {}
    allowed = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t")
        if fields[0] == "ok" and len(fields) == 3 and all(fields):
            files, _, words = fields[1].rpartition(": ")
            allowed.append((files or "*", _pattern(words.split("|"))))
        elif fields[0] != "ok" and len(fields) == 2 and all(fields):
            instead |= dict.fromkeys((w.lower() for w in fields[0].split("|")), fields[1])
        else:
            expected = "'word TAB what to write' or 'ok TAB words TAB why'"
            raise ListError(f"{path}:{number}: expected {expected}")
    return Words(_pattern(instead), instead, allowed)


def texts(file: str, text: str, *, everything: bool = False) -> Iterator[Text]:
    """Yield the texts for users in a file; with ``everything`` also those for developers."""
    suffix = file.rpartition(".")[2]
    if suffix == "py":
        yield from _python(file, text, everything=everything)
        if everything:
            for number, line in enumerate(text.splitlines(), 1):
                if comment := re.search(r"(?:^|\s)# (.*)", line):
                    yield Text(file, number, comment[1])
    elif suffix == "yaml":
        yield from _yaml(file, text)
    elif file.rpartition("/")[2] == "Makefile":
        for number, line in enumerate(text.splitlines(), 1):
            if found := re.match(r"[a-z-]+:[^#]*## (.*)", line):
                yield Text(file, number, found[1])
    else:
        yield Text(file, 1, text)


def _python(file: str, text: str, *, everything: bool) -> Iterator[Text]:
    """Yield strings of several words, and docstrings of commands and described fields."""
    tree = ast.parse(text)
    nodes = () if everything else ast.walk(tree)
    hidden = {id(part) for node in nodes for part in _docstrings(node, file)}
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in ast.walk(node) if part is not node}
            words = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
        else:
            continue
        if id(node) not in hidden | inner and re.search(r"[a-z,;:.] +[a-z]", words):
            yield from _at_its_lines(file, text, node, words)


def _at_its_lines(file: str, text: str, node: ast.expr, words: str) -> Iterator[Text]:
    """Yield a string with the line breaks of its source, so that line numbers are right."""
    if "\n" in words or node.end_lineno == node.lineno:
        yield Text(file, node.lineno, words.replace("\0", "0"))
        return
    pieces = [line.strip() for line in text.splitlines()[node.lineno - 1 : node.end_lineno]]
    pieces = [re.sub(r"^[rf]*\"|\"[),]*$", "", piece) for piece in pieces]
    pieces = [re.sub(r"\{[^{}]*\}", "0", piece) for piece in pieces]
    yield Text(file, node.lineno, "\n".join(pieces))


def _docstrings(node: ast.AST, file: str) -> Iterator[ast.expr]:
    """Yield docstrings that only readers of the code see."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    function = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
    command = function and any(isinstance(d, ast.Call) for d in function.decorator_list)
    shown = not function and file.startswith(DESCRIBED)
    if (command and file.startswith("lab/cli/")) or shown:
        return
    for part in body:
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            yield part.value


def _yaml(file: str, text: str) -> Iterator[Text]:
    """Yield values of text keys, with their continuation lines, and comments."""
    kept, indent, keeping = [], 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip(" "))
        key = re.match(r"(\s*(?:- )?)([\w.]+):(?: +|$)(.*)", line)
        comment = re.search(r"(?:^|\s)# (.*)", line)
        if key and not (keeping and depth > indent):
            indent = len(key[1])
            keeping = (
                bool(key[3])
                and key[2] in TEXT_KEYS
                and not _foreign(lines[:number], key[2], indent)
            )
            line = f"\0 {key[3]}"
        elif line.strip() and depth <= indent:
            keeping = False
        kept.append(line if keeping else f"\0 {comment[1]}" if comment else "")
    yield Text(file, 1, "\n".join(kept))


def _foreign(before: list[str], key: str, indent: int) -> bool:
    """Return whether this is the title of another author's text."""
    return key == "title" and indent > 0 and "source:" in before[-3:]


def files(root: Path = ROOT) -> Iterator[str]:
    """Yield the names of all files with text for users."""
    patterns = (
        *("*.md", "Makefile", "docs/**/*.md", "drive/*.md", "lab/**/*.py", "lab/**/*.j2"),
        *("scenarios/*.yaml", "matrices/*.yaml", "images/*.yaml", "docs/*.yaml"),
    )
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            if not name.startswith((GENERATED, "docs/site/")):
                yield name


def main(arguments: list[str]) -> int:
    """Report the words; ``--count`` prints one line per file."""
    count, everything = "--count" in arguments, "--all" in arguments
    named = [Path(name).resolve() for name in arguments if not name.startswith("--")]
    try:
        words = read()
    except ListError as error:
        sys.stderr.write(f"words: {error}\n")
        return 2
    found: list[Finding] = []
    for path in named or [ROOT / name for name in files()]:
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        for piece in texts(name, path.read_text(encoding="utf-8"), everything=everything):
            found += words.find(piece)
    found = sorted(set(found), key=lambda finding: (finding.file, finding.line, finding.word))
    if count:
        each = Counter(finding.file for finding in found)
        sys.stdout.writelines(f"{number:5} {name}\n" for name, number in sorted(each.items()))
    else:
        sys.stdout.writelines(f"{finding.line_of_text}\n" for finding in found)
    if found:
        sys.stderr.write(f"words: {len(found)} found; list and exceptions: tools/words.txt\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
