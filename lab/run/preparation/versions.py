"""Versions of Linux and mdadm: list them, fetch them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lab.core.errors import HostError
from lab.host import images
from lab.host.images import packages
from lab.model.image.axis import Axis
from lab.model.image.package import PackageIndex, Version

FRESH: Final = timedelta(days=1)
"""Age up to which the stored lists of the archives are shown without reading them again."""


def current(
    progress: images.Progress, *, refresh: bool, accept_expired: bool
) -> tuple[PackageIndex, list[str]]:
    """Return the archives' lists, read again if they are older than a day; and warnings.

    ``HostError``: no archive can be read, and ``refresh`` was requested or nothing is stored.
    """
    index = packages.index()
    old = index is None or datetime.now(UTC) - datetime.fromisoformat(index.read) > FRESH
    warnings = []
    if refresh or old or index is None:
        try:
            index = packages.refresh(progress, accept_expired=accept_expired)
        except HostError as error:
            if refresh or index is None:
                raise
            warnings.append(f"{error.message}; these are the lists of {index.read[:10]}")
    warnings += [one.error for one in index.releases if one.error]
    return index, warnings


def rows(axis: Axis, index: PackageIndex) -> list[dict[str, Any]]:
    """Return every version of the archives and every fetched one, oldest first."""
    there = {one.directory for one in index.versions}
    mine = {one.directory for one in packages.fetched()}
    return [
        {
            "axis": axis.value,
            "name": one.name,
            "version": one.version,
            "branch": one.branch,
            "date": one.date,
            "release": one.release,
            "suites": list(one.suites),
            "bytes": one.size,
            "state": state_of(one),
            "in_archive": one.directory in there,
            "fetched": one.directory in mine,
            "missing": list(one.missing),
        }
        for one in packages.known(axis)
    ]


def state_of(one: Version) -> str:
    """Return what a guest can do with it: ``complete``, ``no headers``, or ``incomplete``."""
    if one.missing:
        return "incomplete"
    return "complete" if one.headers else "no headers"


def fetch(
    axis: Axis, patterns: Sequence[str], progress: images.Progress, *, accept_expired: bool
) -> tuple[list[Version], list[str]]:
    """Fetch every version that a pattern matches; return them, and a reason for each left out.

    A version named exactly must be complete; a pattern leaves incomplete ones out.
    """
    known = packages.known(axis)
    chosen, left_out = dict[str, Version](), []
    for pattern in patterns:
        for one in packages.matching(known, pattern):
            exact = pattern in (one.name, one.version)
            if one.missing and not exact:
                left_out.append(f"{one.title}: the archive has dropped {', '.join(one.missing)}")
            else:
                chosen[one.directory] = one
    for one in chosen.values():
        packages.fetch(one, progress, accept_expired=accept_expired)
    return list(chosen.values()), left_out
