"""A bundle: a run, or some of its cells, as one file for somebody else.

::

    RUN/run.json RUN/scenario.yaml RUN/result.json
    RUN/cells/ID/cell.json procedure.json events.jsonl outcome.json raw/…
    RUN/cells/.ID.N/…                                  attempts that are not the cell's result

It is a zip file: every system opens it, a browser can read one member of it without a library, and
its directory has all names and sizes before anything is decompressed. The same run gives the same
bytes.

A bundle may be hostile. Members have exactly the names above, are regular files, occur once, and
stay within limits that are checked before anything is written. Whatever else a zip file can have is
refused: another tool's zip file is no bundle.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from lab.core.errors import InputError, unwritable
from lab.core.printable import printable
from lab.core.units import GIB, MIB, format_size
from lab.host.system import files, paths, unfinished, untrusted
from lab.store import names, runs
from lab.store.run_files import RAW
from lab.store.runs import RunStore, StoredCell

MEMBERS: Final = 60_000
"""Most files of a bundle; from 65 535 on a zip file has another form."""
TOTAL: Final = 4 * GIB
"""Most bytes of all files together."""
RATIO: Final = 200
"""Most bytes that a byte of the bundle may become; those of stored runs become 5 to 15."""
_FREE: Final = 64 * MIB
"""Bytes for which the ratio does not matter."""
_DIRECTORY_ENTRY: Final = 46 + 512
"""Most bytes of an entry of the zip's directory, names included."""
_END: Final = struct.Struct("<4s4H2LH")
"""The end record of a zip file without comment (APPNOTE.TXT 4.3.16)."""
_LOCATOR: Final = 20
_MODE: Final = stat.S_IFREG | 0o644
_UTF8: Final = 0x800
_MEMBER: Final = re.compile(
    r"(?:run\.json|scenario\.yaml|result\.json"
    r"|cells/\.?[A-Za-z0-9][A-Za-z0-9._-]{0,140}"
    r"/(?:cell\.json|procedure\.json|events\.jsonl|outcome\.json|raw/[^./][^/]*))"
)
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,180}")


def is_bundle(name: str) -> bool:
    """Return whether a name on a command line is that of a bundle."""
    return name.endswith(names.BUNDLE)


# -- writing


def write(run: RunStore, cells: Sequence[StoredCell], result: str, path: Path) -> None:
    """Write a new bundle with these cells; ``result``: their result document.

    Files that cannot be read are left out, and are in the run's warnings.
    """
    with untrusted.new(path) as made, zipfile.ZipFile(made, "x") as archive:
        for number, (name, text) in enumerate(_texts(run, cells, result)):
            if number == MEMBERS:
                raise InputError(
                    f"'{run.id}' has more than {MEMBERS} files, and a bundle has at most that",
                    hint="choose a cell with --cell",
                )
            entry = zipfile.ZipInfo(f"{run.id}/{name}")  # of 1980: no time of this host
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, _MODE << 16
            archive.writestr(entry, text.encode(errors="replace"), compresslevel=9)


def _texts(run: RunStore, cells: Sequence[StoredCell], result: str) -> Iterator[tuple[str, str]]:
    about = run.load_run().model_copy(update={"cells": tuple(cells)})
    yield "run.json", about.model_dump_json(indent=1)
    yield "scenario.yaml", run.scenario_text()
    yield "result.json", result
    for cell in cells:
        ended = [run.cell_directory(cell.id)] if run.has_cell(cell.id) else []
        for place in (*ended, *run.attempts(cell.id)):
            for name, text in run.texts(place.name).items():
                yield f"cells/{place.name}/{name}", text


# -- reading


@contextmanager
def opened(name: str, scenario: str = "") -> Iterator[RunStore]:
    """Yield a stored run by name (`runs.find`), or the run in a bundle while the context lasts."""
    if not is_bundle(name):
        yield runs.find(name, scenario)
        return
    with _unpacked(Path(name)) as run:
        yield run


def take_in(path: Path) -> RunStore:
    """Store the run of a bundle with the other runs.

    ``InputError``: it is no bundle, or a run with this id is here.
    """
    with _unpacked(path) as run:
        place = paths.runs() / run.id
        if os.path.lexists(place):
            raise InputError(
                f"'{path}' is the run '{run.id}', and a run with this id is here",
                hint=f"compare them: lab results compare {run.id} {path}",
            )
        files.publish(run.directory, place)
        return RunStore(place)


@contextmanager
def _unpacked(path: Path) -> Iterator[RunStore]:
    """Yield the run of a bundle in a directory that is removed at the end."""
    with _file(path) as file:
        files.make_directory(paths.runs())
        # `lab clean` knows the name: a killed process leaves the directory behind.
        work = unfinished.name(paths.runs() / "bundle")
        work.mkdir(mode=0o700)
        try:
            yield _run(path, file, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    try:
        if not path.is_file():
            raise InputError(f"there is no bundle '{path}': it is missing, or not a regular file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        if error.filename is not None and Path(error.filename) != path:
            raise
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


def _run(path: Path, file: IO[bytes], work: Path) -> RunStore:
    try:
        size = _check_end(path, file)
        with zipfile.ZipFile(file) as archive:
            id_, members = _checked(path, archive.infolist(), size)
            directory = work / id_
            for name, entry in members.items():
                _extract(archive, entry, directory / name)
    except _BROKEN as error:
        raise _refused(path, f"it is corrupt: {error}") from error
    except OSError as error:
        raise unwritable(work, error) from error
    run = RunStore(directory)
    try:
        about = run.load_run()
    except InputError as error:
        raise _refused(path, error.message.replace(f"{work}/", "")) from error
    except _ABSURD as error:  # a number of a thousand digits, for one
        raise _refused(path, f"its run.json has absurd values: {error}") from error
    if about.id != id_:
        raise _refused(path, f"its run.json is of the run '{printable(about.id)[:80]}'")
    known = {cell.id for cell in about.cells}
    for name in members:
        cell = name.split("/")[1] if name.startswith("cells/") else ""
        if cell and cell not in known and re.sub(r"^\.(.*)\.\d+$", r"\1", cell) not in known:
            raise _refused(path, f"'{cell}' is no cell of its run.json")
    return run


_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, struct.error, OverflowError),
)


_ABSURD: Final = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


def _refused(path: Path, why: str) -> InputError:
    return InputError(
        f"'{path}' is not a bundle that this lab reads: {why}",
        hint="`lab results export RUN --format bundle --out FILE` writes one",
    )


def _check_end(path: Path, file: IO[bytes]) -> int:
    """Check the end record, before the zip's directory is read; return the file's size."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size - _LOCATOR))
    tail = file.read()
    if len(tail) < _END.size or not tail[-_END.size :].startswith(b"PK\5\6"):
        raise _refused(path, "it is not a zip file, or its end is missing")
    _, disk, first, here, entries, length, offset, comment = _END.unpack(tail[-_END.size :])
    if tail[-_END.size - _LOCATOR :].startswith(b"PK\6\7") or disk or first or comment:
        raise _refused(path, "it is a zip file of another kind")
    if here != entries or entries > MEMBERS or length > entries * _DIRECTORY_ENTRY:
        raise _refused(path, f"it has {entries} files, or a directory of {length} bytes for them")
    if offset + length + _END.size != size:
        raise _refused(path, "there is something before or behind the zip file")
    return size


def _checked(
    path: Path, entries: list[zipfile.ZipInfo], size: int
) -> tuple[str, Mapping[str, zipfile.ZipInfo]]:
    """Return the run's id, and the members by their name in its directory."""
    found: dict[str, zipfile.ZipInfo] = {}
    id_ = entries[0].filename.partition("/")[0] if entries else ""
    if not _RUN_ID.fullmatch(id_) or not names.parts(id_)[1]:
        raise _refused(path, f"'{printable(id_)[:80]}' is not the id of a run")
    for entry in entries:
        top, _, name = entry.filename.partition("/")
        if wrong := _wrong(entry, name, top == id_):
            shown = printable(entry.orig_filename)[:120]
            raise _refused(path, f"its member '{shown}' {wrong}")
        if name in found:
            raise _refused(path, f"its member '{entry.filename}' occurs twice")
        found[name] = entry
    total = sum(entry.file_size for entry in entries)
    if total > TOTAL or total > _FREE + RATIO * size:
        raise _refused(
            path, f"its {format_size(size)} would become {total / MIB:.0f} MiB: that is no run"
        )
    return id_, found


def _wrong(entry: zipfile.ZipInfo, name: str, inside: bool) -> str:
    """Return what is wrong with a member; empty: nothing."""
    if not inside or entry.filename != entry.orig_filename or not _MEMBER.fullmatch(name):
        return "has no place in a run"
    if wrong := untrusted.wrong_name(name.rpartition("/")[2]):
        return f"has no place in a run: {wrong}"
    if (entry.create_system, entry.external_attr) != (3, _MODE << 16):
        return "is not a regular file"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in another way"
    if entry.flag_bits & ~_UTF8 or entry.extra or entry.comment:
        return "is encrypted, or has extra fields"
    if entry.file_size > (RAW if "/raw/" in name else untrusted.DOCUMENT):
        return f"has {entry.file_size} bytes"
    return ""


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write a member to a new file; its size and CRC are those of the zip's directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as member, target.open("xb") as new:
        shutil.copyfileobj(member, new, MIB)
        if new.tell() != entry.file_size:
            raise zipfile.BadZipFile(f"'{entry.filename}' is cut off")
