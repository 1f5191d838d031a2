"""Commits of a git repository of Linux as the versions of a bisection."""

from __future__ import annotations

from pathlib import Path

from lab.capabilities.bisect import model as bisection
from lab.host import images
from lab.host.images import linux
from lab.host.images.linux import Commit
from lab.model.image.axis import Axis
from lab.model.image.package import Version
from lab.model.scenario.guest import Guest

DIGITS = 12
"""Digits of a commit's id in names."""


def read(tree: Path, good: str, bad: str) -> tuple[bisection.Tree, tuple[Version, ...]]:
    """Return a repository, and its commits from ``good`` to ``bad`` along first parents.

    ``InputError``: no such repository or commit, or ``good`` is not an ancestor of ``bad``.
    """
    found = linux.between(tree, good, bad)
    return bisection.Tree(path=str(tree.resolve())), tuple(_version(one) for one in found)


def _version(one: Commit) -> Version:
    return Version(
        axis=Axis.COMMIT,
        name=f"commit-{one.sha[:DIGITS]}",
        version=one.sha[:DIGITS],
        branch="tree",
        date=one.date,
        release="",
        says=one.title,
    )


def kernel_of(
    tree: bisection.Tree,
    version: Version,
    guest: Guest,
    progress: images.Progress,
    *,
    accept_expired: bool,
) -> str:
    """Return the path of a commit's kernel, built with the compiler of the guest's release.

    ``InputError``: it does not compile.
    """
    place = Path(tree.path)
    one = linux.commit(place, version.version)
    return str(linux.built(place, one, guest.image, progress, accept_expired=accept_expired))


def changes(tree: bisection.Tree, good: Version, bad: Version) -> tuple[str, ...]:
    """Return short id and title of each commit between two versions, without merges."""
    return linux.titles(Path(tree.path), good.version, bad.version)
