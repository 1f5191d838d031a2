"""From an archive's package lists to versions of Linux and mdadm, and their changelogs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from lab.core.units import is_digits
from lab.core.versions import age
from lab.model.image.axis import Axis
from lab.model.image.package import PackageFile, Version

Stanza = Mapping[str, str]
"""Fields of one package in a Packages file; lines after the first of a field are left out."""

_KERNEL: Final = re.compile(r"linux-image-(\d\S*-cloud-amd64)")
_META: Final = re.compile(r"\d+\.\d+-cloud-amd64")
"""The rest of the name of a package without content, which depends on the newest of a branch."""
_OTHERS: Final = frozenset({"linux-initramfs-tool", "linux-libc-dev", "linux-perf"})
"""Packages whose names begin with ``linux-`` and that no kernel needs to boot or to build for."""


def stanzas(text: str) -> list[Stanza]:
    """Return the packages of a text in the form of ``apt-cache show``."""
    found = list[Stanza]()
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): *(.*)$", paragraph, flags=re.MULTILINE))
        named = {"Package", "Version", "Size", "SHA256"} <= fields.keys()
        if named and is_digits(fields["Size"]):
            found.append(fields)
    return found


def suites_of(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the suites of each package and version, from the lines of ``apt-cache madison``."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r" *(\S+) +\| +(\S+) +\| +\S+ +([^/ ]+)/.* Packages", line)
        if match:
            key = (match[1], match[2])
            found[key] = tuple(sorted({*found.get(key, ()), match[3]}))
    return found


def versions_of(
    release: str,
    packages: Sequence[Stanza],
    suites: Mapping[tuple[str, str], tuple[str, ...]],
    dates: Mapping[tuple[str, str], str],
) -> list[Version]:
    """Return every version of Linux (the cloud kernels) and of mdadm.

    ``dates``: of changelog entries, by axis and `source_version`.
    """
    by_name: dict[str, list[Stanza]] = {}
    for one in packages:
        by_name.setdefault(one["Package"], []).append(one)
    found = []
    for one in packages:
        name, version = one["Package"], one["Version"]
        match = _KERNEL.fullmatch(name)
        if match and not _META.fullmatch(match[1]):
            needed, missing = _closure(one, by_name)
            headers, unmade = list[Stanza](), ["headers"]
            for its in by_name.get(f"linux-headers-{match[1]}", []):
                if its["Version"] == version:
                    headers, unmade = _closure(its, by_name)
            files = {p["Package"]: p for p in (*needed, *([] if unmade else headers))}
            axis, branch = Axis.KERNEL, ".".join(version.split(".")[:2])
        elif name == "mdadm":
            files, missing, unmade = {name: one}, [], []
            axis, branch = Axis.MDADM, version.split(".")[0]
        else:
            continue
        found.append(
            Version(
                axis=axis,
                name=name if axis is Axis.KERNEL else version,
                version=version,
                branch=branch,
                date=dates.get((axis.value, source_version(version))),
                release=release,
                suites=suites.get((name, version), ()),
                packages=tuple(_file(its) for its in files.values()),
                missing=tuple(missing),
                headers=not unmade,
            )
        )
    return found


def _file(one: Stanza) -> PackageFile:
    return PackageFile(
        name=one["Package"], version=one["Version"], size=int(one["Size"]), sha256=one["SHA256"]
    )


def _closure(
    first: Stanza, by_name: Mapping[str, Sequence[Stanza]]
) -> tuple[list[Stanza], list[str]]:
    """Return a package of the kernel with those of the kernel that it needs, and missing ones."""
    found, missing = {first["Package"]: first}, list[str]()
    left = [first]
    while left:
        for names, exact in _needs(left.pop()):
            if any(name in found for name, _ in names):
                continue
            there = [
                one
                for name, version in names
                for one in by_name.get(name, ())
                if not exact or version is None or one["Version"] == version
            ]
            if not there:
                missing.append(names[0][0])
                continue
            best = max(there, key=lambda one: age(one["Version"]))
            found[best["Package"]] = best
            left.append(best)
    return list(found.values()), sorted(set(missing))


def _needs(one: Stanza) -> Iterator[tuple[list[tuple[str, str | None]], bool]]:
    """Yield the alternatives of each dependency on a package of the kernel, with their versions.

    The second value is whether the version must be exactly that one.
    """
    for relation in f"{one.get('Pre-Depends', '')},{one.get('Depends', '')}".split(","):
        names = list[tuple[str, str | None]]()
        exact = False
        for word in relation.split("|"):
            match = re.match(r" *([a-z0-9.+-]+)(?: \((\S+) (\S+)\))?", word)
            if match and match[1].startswith("linux-") and match[1] not in _OTHERS:
                exact = exact or match[2] == "="
                names.append((match[1], match[3] if match[2] == "=" else None))
        if names:
            yield names, exact


def source_version(version: str) -> str:
    """Return the version without the mark of a rebuild: ``6.12.95-1`` of ``6.12.95-1~bpo12+1``."""
    return re.sub(r"~(bpo|deb)\d+\S*$", "", version)


def axis_of(versions: Iterable[Version], axis: Axis) -> list[Version]:
    """Return the versions of an axis, oldest first, each source once.

    Of several builds of a source, one that can be installed and has headers is taken, then the one
    that is no rebuild for an older release.
    """
    best: dict[str, Version] = {}
    for one in versions:
        key = source_version(one.version)
        if one.axis is axis and (key not in best or _rank(one) > _rank(best[key])):
            best[key] = one
    return sorted(best.values(), key=lambda one: age(one.version))


def _rank(one: Version) -> tuple[bool, bool, bool]:
    return (not one.missing, one.headers, one.version == source_version(one.version))


# --- changelogs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a Debian changelog."""

    version: str
    date: str | None
    """ISO 8601."""
    lines: tuple[str, ...]
    """Its text, without heading and signature."""


def entries(text: str) -> list[Entry]:
    """Return the entries of a Debian changelog, newest first, ``deb-changelog(5)``.

    A signed kernel's has the version ``6.12.117+1``, which stands for ``6.12.117-1``.
    """
    found: list[Entry] = []
    version, lines = "", list[str]()
    for line in text.splitlines():
        heading = re.match(r"[a-z0-9][a-z0-9.+-]* \((\S+)\)", line)
        if heading:
            version, lines = heading[1], []
            if line.startswith("linux-signed"):
                version = re.sub(r"\+(\d+)(?=$|~)", r"-\1", version)
        elif line.startswith(" -- ") and version:
            found.append(Entry(version=version, date=_date(line), lines=tuple(lines)))
            version = ""
        elif version and line.strip():
            lines.append(line.rstrip())
    return found


def _date(line: str) -> str | None:
    try:
        return parsedate_to_datetime(line.rpartition(">")[2].strip()).date().isoformat()
    except ValueError:
        return None


def dates_of(axis: Axis, text: str) -> dict[tuple[str, str], str]:
    """Return the dates of a changelog's entries."""
    return {
        (axis.value, source_version(one.version)): one.date
        for one in entries(text)
        if one.date is not None
    }


def between(text: str, good: str, bad: str) -> list[Entry]:
    """Return the entries after the version ``good`` up to ``bad``."""
    low, high = (age(source_version(one)) for one in (good, bad))
    return [one for one in entries(text) if low < age(source_version(one.version)) <= high]


_MD: Final = re.compile(
    r"^\s*[-*] (\[[\w, ]+\] )?(md|raid\d*|dm-raid|async_tx|block|blk-mq|blk-throttle)\b",
    re.IGNORECASE,
)


def about_md(entry: Entry) -> list[str]:
    """Return an entry's lines about md and the block layer; of mdadm's every line counts."""
    return [line.strip() for line in entry.lines if _MD.match(line)]
