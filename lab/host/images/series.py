"""Reads a patch series and applies it to a source, with git's own tools.

A series is untrusted text. ``git mailsplit`` and ``git mailinfo`` take mails apart, ``git apply``
refuses paths outside of the source, and neither the user's settings nor hooks are used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email import policy
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

from lab.compile.image.series import UNBUILT, hunk_of, in_order, plain
from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import GIB, KIB, MIB, format_size
from lab.host.images import repository
from lab.host.images.repository import GIT, alone, said
from lab.host.system import process
from lab.host.system.process import ProcessResult

MOST: Final = 64 * MIB
"""Most bytes of a series."""
_LONGEST: Final = 998
"""Most characters of a subject; RFC 5322 allows a line of so many."""
_RANGE: Final = re.compile(r"(?P<base>[^-.\s][^\s:]*?)\.\.(?P<tip>[^-.\s][^\s:]*)")
_FAILED: Final = re.compile(r"^error: patch failed: (?P<path>.+):(?P<line>\d+)$", re.MULTILINE)
_ELSE: Final = re.compile(
    r"^error: (?P<path>.+): (?P<why>No such file or directory|does not exist in (?:the )?index"
    r"|already exists in (?:the )?(?:index|working directory))$",
    re.MULTILINE,
)


_LIMITED: Final = ("prlimit", f"--as={2 * GIB}", "--cpu=300")
"""A small binary patch can unpack to gigabytes."""
_PACKS: Final = ("-c", "core.packedGitWindowSize=32m", "-c", "core.packedGitLimit=256m")
"""How much of a repository's packs git maps: by default more than that limit."""
_SUBJECT: Final = 4 * KIB
"""Most characters of a header that are parsed: Python's parser can take time that grows with their
square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch of a series."""

    title: str
    """Its subject without ``[PATCH …]``, or its file's name."""
    file: Path
    """The decoded patch, without its mail."""
    paths: tuple[str, ...]
    """Paths that it changes, old and new."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A patch series, in order."""

    source: str
    """What the user gave."""
    patches: tuple[Patch, ...]
    objects: Path | None = None
    """Object directory of the user's repository, with the files that a range was made from."""


def read(given: str, tree: Path | None, work: Path) -> Series:
    """Return the series in an mbox, a directory of ``*.patch``, or a git range.

    ``tree``: the repository of a range; a range may also be written ``DIR:BASE..TIP``. ``work``: an
    empty directory for the parts. ``InputError``: it is none of these, or has no patch.
    """
    objects = None
    if tree is not None or (not Path(given).exists() and ".." in given):
        mails, objects = _of_range(given, tree, work)
    elif Path(given).is_dir():
        files = sorted(p for p in Path(given).iterdir() if p.name.endswith((".patch", ".diff")))
        if not files:
            raise InputError(f"the directory '{given}' has no file *.patch")
        mails = [mail for n, file in enumerate(files) for mail in _split(file, work / f"mails{n}")]
    elif Path(given).is_file():
        mails = _split(Path(given), work / "mails")
    else:
        raise InputError(
            f"there is no series '{given}': expected an mbox, a directory of *.patch, or a git"
            " range such as ~/linux:v6.12..my-branch"
        )
    found = [one for mail in mails if (one := _patch(*mail)) is not None]
    if not found:
        raise InputError(f"'{given}' has no patch")
    order = in_order([subject for _, subject in found])
    return Series(source=given, patches=tuple(found[i][0] for i in order), objects=objects)


def _of_range(given: str, tree: Path | None, work: Path) -> tuple[list[tuple[Path, str]], Path]:
    directory, colon, words = ("", "", given) if tree is not None else given.rpartition(":")
    match = _RANGE.fullmatch(words)
    if match is None or (tree is None and not colon):
        raise InputError(
            f"'{given}' is no git range: expected DIR:BASE..TIP, or --tree DIR BASE..TIP"
        )
    place = tree if tree is not None else Path(directory).expanduser()
    if not place.is_dir():
        raise InputError(f"the git range '{given}': there is no directory '{place}'")
    mbox = work / "range.mbox"
    words = f"{match['base']}..{match['tip']}"
    options = ("--no-signature", "--full-index", "--binary", "--no-cover-letter")
    with repository.borrowed(place) as own:
        made = ("format-patch", *options, f"--output={mbox.absolute()}", words, "--")
        done = repository.run(own, *made, timeout=120)
        objects = repository.objects(own)
    if done.status:
        raise InputError(f"the git range '{given}' in '{place}': {said(done)}")
    if not mbox.exists() or not mbox.stat().st_size:
        raise InputError(f"the git range '{given}' in '{place}' has no commit")
    return _split(mbox, work / "mails"), objects


def _split(file: Path, out: Path) -> list[tuple[Path, str]]:
    """Return a file's mails, each with the file's name."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error.strerror}") from error
    if size > MOST:
        raise InputError(f"'{file}' has {format_size(size)}: a series has at most 64MiB")
    out.mkdir()
    done = _git(out, "mailsplit", "-b", f"-o{out}", "--", str(file.absolute()), check=False)
    if done.status:
        raise InputError(f"'{file}' cannot be read as mails: {said(done)}")
    return [(mail, file.name) for mail in sorted(out.iterdir())]


def _patch(mail: Path, name: str) -> tuple[Patch, str] | None:
    """Return the patch of a mail with its whole subject; ``None``: a cover letter or a reply."""
    subject = _subject(mail.read_bytes())
    if subject.lower().startswith("re:"):
        return None
    body = mail.with_suffix(".patch")
    script = 'exec git mailinfo -b --encoding=UTF-8 "$1" "$2" <"$3"'
    words = (*_LIMITED, "sh", "-c", script, "-", mail.with_suffix(".message"), body, mail)
    done = process.run(words, check=False, cwd=mail.parent, env=alone(mail.parent))
    title = printable(plain(" ".join(subject.split()))) or name
    if done.status or not body.exists():
        raise InputError(f"the mail '{title}' in '{name}' cannot be read: {said(done)}")
    data = body.read_bytes()
    counted = _git(mail.parent, "apply", "--numstat", "-z", "--allow-empty", str(body), check=False)
    if counted.status:
        raise InputError(f"the patch '{title}' in '{name}' is not valid: {said(counted)}")
    paths = _paths(counted.stdout)
    if not paths:
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    return Patch(title=title, file=body, paths=paths, sha256=sha256), subject


def _subject(mail: bytes) -> str:
    """Return a mail's subject; empty: it has none that can be read."""
    try:
        headers = BytesHeaderParser(policy=policy.default).parsebytes(mail[:MIB]).raw_items()
        raw = next((str(value) for name, value in headers if name.lower() == "subject"), "")
        found = str(policy.default.header_fetch_parse("Subject", raw[:_SUBJECT]))
    except Exception:  # Python's parser of headers raises many kinds of errors
        return ""
    return found[:_LONGEST]


def _paths(numstat: str) -> tuple[str, ...]:
    """Return paths from ``git apply --numstat -z``; a renamed file has two."""
    words = numstat.split("\0")
    found: list[str] = []
    for word in words:
        match = re.match(r"(?:\d+|-)\t(?:\d+|-)\t(.*)", word, re.DOTALL)
        path = match[1] if match else word
        if path:
            found.append(path)
    return tuple(dict.fromkeys(found))


def begin(source: Path, tree: Path) -> None:
    """Unpack ``source``, a tar file of the archive's packages, into a new git repository."""
    tree.mkdir()
    process.run(["tar", "--no-same-owner", "-C", tree, "-xf", source], timeout=300)
    _git(tree, "init", "--quiet", "--template=", "--initial-branch=source")
    _git(tree, "add", "--all", "--force")


def apply(series: Series, tree: Path) -> None:
    """Apply every patch to a repository that `begin` made, or to a copy of it.

    Three ways: a range brings the files that it was made from. ``InputError`` names patch, file and
    hunk that do not apply.
    """
    if series.objects is not None:
        (tree / ".git/objects/info").mkdir(parents=True, exist_ok=True)
        line = f"{series.objects}\n"
        (tree / ".git/objects/info/alternates").write_text(line, encoding="utf-8")
    _git(tree, "update-index", "--refresh", "-q", check=False)  # a copy has other inodes
    of = len(series.patches)
    for number, patch in enumerate(series.patches, 1):
        if all(path.startswith(UNBUILT) for path in patch.paths):
            continue
        left_out = [f"--exclude={name}*" for name in UNBUILT]
        words = ("apply", "--index", "--whitespace=nowarn", *left_out)
        if not _git(tree, *words, str(patch.file), check=False).status:
            continue
        done = _git(tree, *words, "--3way", str(patch.file), check=False)
        if not done.status and "with conflicts" not in done.stderr:
            continue
        # --3way reports conflicts; without it git names file and line
        _git(tree, "reset", "--quiet", "--hard", check=False)
        said = _git(tree, *words, str(patch.file), check=False).stderr + done.stderr
        which = f"patch {number} of {of} ('{patch.title}')"
        raise InputError(f"{which} does not apply to the image's source: {_where(said, patch)}")


def _where(said: str, patch: Patch) -> str:
    text = patch.file.read_text(encoding="utf-8", errors="replace")
    if match := _FAILED.search(said):
        hunk = hunk_of(text, match["path"], int(match["line"])) or f"line {match['line']}"
        return f"'{match['path']}', {hunk}"
    if match := _ELSE.search(said):
        return f"'{match['path']}': {match['why']}"
    return printable(" ".join(said.strip().splitlines()[:2]))


def _git(cwd: Path, *words: str, check: bool = True) -> ProcessResult:
    try:
        argv = [*_LIMITED, *GIT, *_PACKS, *words]
        return process.run(argv, check=check, timeout=120, cwd=cwd, env=alone(cwd))
    except ToolError as error:
        raise HostError(f"git failed: {error.message}") from error


def titles(series: Series) -> dict[str, Sequence[str]]:
    """Return the paths of each patch, by its number and title."""
    return {f"{n}: {patch.title}": patch.paths for n, patch in enumerate(series.patches, 1)}
