"""Bundles of an attacker: a good one, changed by a seed, as zip file or within its run."""

from __future__ import annotations

import io
import random
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import hostile_files as files
from tests import hostile_values as values
from tests.hostile_values import ABSOLUTE

Members = list[tuple[zipfile.ZipInfo, bytes]]
SEEDS: Final = 300
_CENTRAL: Final = b"PK\1\2"


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name)
    found.create_system, found.external_attr = 3, mode << 16
    found.compress_type = zipfile.ZIP_DEFLATED
    return found


def members_of(run: Path) -> Members:
    """Every entry of a run directory, of whatever kind, as an attacker would store it."""
    found: Members = []
    for path in sorted(run.rglob("*")):
        mode = path.lstat().st_mode
        name = f"{run.name}/{path.relative_to(run)}"
        if stat.S_ISLNK(mode):
            found.append((entry(name, mode), str(path.readlink()).encode()))
        elif stat.S_ISREG(mode):
            found.append((entry(name), path.read_bytes()))
        elif not stat.S_ISDIR(mode):
            found.append((entry(name, mode), b""))
    return found


def zipped(members: Members) -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # of names that occur twice
        for info, data in members:
            archive.writestr(info, data)
    return made.getvalue()


# -- members


def _renamed(members: Members, number: int, name: str) -> None:
    old, data = members[number]
    members[number] = (entry(name, old.external_attr >> 16), data)


def _any(members: Members, chance: random.Random) -> int:
    return chance.randrange(len(members))


def dots(members: Members, chance: random.Random) -> None:
    top = members[0][0].filename.partition("/")[0]
    name = chance.choice(
        ("../x", f"{top}/../x", f"{top}/../../x", f"{top}/cells/../../../x", f"{top}/./run.json")
    )
    _renamed(members, _any(members, chance), name)


def absolute(members: Members, chance: random.Random) -> None:
    top = members[0][0].filename.partition("/")[0]
    name = chance.choice((ABSOLUTE, f"/{ABSOLUTE}", f"{top}/{ABSOLUTE}", "C:\\x", "\\\\h\\x"))
    _renamed(members, _any(members, chance), name)


def other_places(members: Members, chance: random.Random) -> None:
    """Files that the lab would read or show, where no bundle has one."""
    top = members[0][0].filename.partition("/")[0]
    below = (".maker", "report.html", "cells/x", "cells/x/y/z", "x.log", "cells/.x.1/raw/a/b")
    others = ("last", "last~1", ".hidden", "a b", "-rf", "$(touch PWNED)", "x" * 300, "")
    if chance.random() < 0.5:
        members.append((entry(f"{top}/{chance.choice(below)}"), b"<script>alert(1)</script>"))
        return
    for number, (info, _) in enumerate(list(members)):
        _renamed(members, number, info.filename.replace(top, chance.choice(others), 1))


def kinds(members: Members, chance: random.Random) -> None:
    number = _any(members, chance)
    info, data = members[number]
    kind = chance.choice(
        (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR)
    )
    mode = chance.choice((kind | 0o777, stat.S_IFREG | 0o4755))
    link = chance.choice((b"/etc/passwd", b"../../outside/secret.txt"))
    members[number] = (entry(info.filename, mode), link if kind == stat.S_IFLNK else data)


def link_then_file(members: Members, chance: random.Random) -> None:
    """A link to a directory, and a file behind it."""
    cell = next(info.filename for info, _ in members if "/cells/" in info.filename)
    place = cell.rpartition("/")[0]
    members.insert(0, (entry(f"{place}/raw", stat.S_IFLNK | 0o777), b"../../../../../outside"))
    members.append((entry(f"{place}/raw/x.txt"), b"x"))
    chance.random()


def twice(members: Members, chance: random.Random) -> None:
    info, data = members[_any(members, chance)]
    members.append((entry(info.filename), data[::-1]))


def file_names(members: Members, chance: random.Random) -> None:
    raw = [n for n, (info, _) in enumerate(members) if "/raw/" in info.filename]
    number = chance.choice(raw)
    place = members[number][0].filename.rpartition("/")[0]
    word = chance.choice(
        ("<script>", "\x1b[2J", "a\nb", "\u202ex", ".x", "$(touch PWNED)", "-rf", "é" * 200)
    )
    _renamed(members, number, f"{place}/{word}")


def compressed(members: Members, chance: random.Random) -> None:
    info, _ = members[_any(members, chance)]
    info.compress_type = chance.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))


def extras(members: Members, chance: random.Random) -> None:
    """Fields that make readers of zip files disagree."""
    info, _ = members[_any(members, chance)]
    if chance.random() < 0.5:
        info.comment = b"<script>"
    else:
        info.extra = struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"x"


def left_out(members: Members, chance: random.Random) -> None:
    chance.shuffle(members)
    del members[chance.randrange(len(members)) :]


def large(members: Members, chance: random.Random) -> None:
    """A member of 90 MiB in 90 kB."""
    number = chance.choice([n for n, (info, _) in enumerate(members) if "/raw/" in info.filename])
    members[number] = (members[number][0], bytes(90 << 20))


# -- bytes


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def flips(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    begin = chance.choice((0, data.rfind(_CENTRAL), len(data) - 22, data.find(_CENTRAL)))
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(begin, len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def around(data: bytes, chance: random.Random) -> bytes:
    more = chance.randbytes(chance.randrange(1, 200))
    locator = data[:-22] + b"PK\6\7" + bytes(16) + data[-22:]
    commented = data[:-2] + struct.pack("<H", len(more)) + more
    return chance.choice((more + data, data + more, data + data, locator, commented))


def no_zip(data: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"", b"PK\5\6" + bytes(18), chance.randbytes(400), data[::-1]))


def sizes(data: bytes, chance: random.Random) -> bytes:
    """A size in the directory that its member has not."""
    at = data.find(_CENTRAL)
    for _ in range(chance.randrange(10)):
        at = max(at, data.find(_CENTRAL, at + 4))
    size = struct.pack("<I", chance.choice((0, 1, 2**31, 2**32 - 1, 2**32 - 2)))
    return data[: at + 24] + size + data[at + 28 :]


def many(data: bytes, chance: random.Random) -> bytes:
    """A directory of 60 001 entries, or of as many as the end record can count."""
    at = data.find(_CENTRAL)
    first = data[at : data.find(_CENTRAL, at + 4)]
    count = chance.choice((60_001, 65_535, 59_999))
    directory = first * count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0)
    return data[:at] + directory + end


def other_local_name(data: bytes, chance: random.Random) -> bytes:
    """A name in front of a member that differs from the one in the directory."""
    at = data.find(b"PK\3\4") + 30
    return data[:at] + chance.choice((b"/", b".", b"x")) + data[at + 1 :]


WITHIN: Final[dict[str, Callable[[Path, random.Random, Path], None]]] = {
    change.__name__: change
    for change in (
        *(values.terminal, values.markup, values.formula, values.shell, values.cell_ids),
        *(values.run_id, values.wrong_types, values.loose_types, values.numbers, values.twice),
        *(values.cell_numbers, values.raw_numbers, values.raw_types, files.links),
        *(files.no_utf8, files.cut_off, files.deep, files.fifos),
    )
}
MEMBERS: Final[dict[str, Callable[[Members, random.Random], None]]] = {
    f"zip {change.__name__}": change
    for change in (
        *(dots, absolute, other_places, kinds, link_then_file, twice, file_names, compressed),
        *(extras, left_out, large),
    )
}
BYTES: Final[dict[str, Callable[[bytes, random.Random], bytes]]] = {
    f"zip {change.__name__}": change
    for change in (cut, flips, around, no_zip, sizes, many, other_local_name)
}
CHANGES: Final = (*MEMBERS, *BYTES, *(f"run {name}" for name in WITHIN))


def build(seed: int, run: Path, outside: Path) -> tuple[bytes, str]:
    """Return the bundle of a seed, and its change; ``run`` is changed if the change is within."""
    chance = random.Random(seed)
    name = CHANGES[seed % len(CHANGES)]
    if name.startswith("run "):
        WITHIN[name.removeprefix("run ")](run, chance, outside)
    members = members_of(run)
    if name in MEMBERS:
        MEMBERS[name](members, chance)
    data = zipped(members)
    return BYTES[name](data, chance) if name in BYTES else data, name
