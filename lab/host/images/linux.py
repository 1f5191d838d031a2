"""Kernels that are built from a commit of the user's git repository of Linux.

::

    images/.tree-linux-RELEASE-KEY/    root/ (compiler), source-KEY/ (commit, linux/ with objects)
    kernels/DIGEST                     a kernel that was built
    kernels/DIGEST.driver-KEY/         the driver of virtual time for it
    kernels/commit-KEY                 the digest of a commit's kernel

The user's repository is only read. The makefiles of a commit run in a sandbox. The objects of one
commit are kept, for those that descend from it: each of them is built in an overlay that is thrown
away, so a commit's code reaches its descendants only, which have it in their history anyway. A
commit that changes no file of the kernel gives the same bytes as the one before it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.compile.image import log as image_log
from lab.compile.image.series import BuildTree, linux_tree
from lab.core.errors import HostError, InputError
from lab.core.printable import printable
from lab.core.units import MIB
from lab.host.images import buildtree, virtual_time
from lab.host.images import recipes as image_recipes
from lab.host.images import repository as git
from lab.host.images import workspace as image_workspace
from lab.host.images.repository import said
from lab.host.images.sandbox import Box
from lab.host.images.store import Progress
from lab.host.system import files, leftovers, paths
from lab.host.system import made as making
from lab.host.system.process import ProcessResult

SCRIPT: Final = "linux.sh"
CONFIG: Final = "linux.config"
FREE: Final = 5000 * MIB
"""Bytes that must be free for a checkout of Linux with objects, and compiler's cache."""
MARK: Final = "drivers/md/md.c"
"""A file that every version of Linux has had since 2.4."""
_NAME: Final = re.compile(r"[^-\s:^~?*\[\\][^\s:?*\[\\]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of Linux."""

    sha: str
    """All 40 digits."""
    date: str
    """Of the commit, ISO 8601."""
    title: str


def commit(repository: Path, name: str) -> Commit:
    """Return a commit by any name that git knows: ``v6.12``, ``HEAD~3``.

    ``InputError``: there is no such repository or commit, or it is not one of Linux.
    """
    if not repository.is_dir():
        raise InputError(f"there is no directory '{repository}': expected a git repository")
    if not _NAME.fullmatch(name):
        raise InputError(f"'{name}' is not a commit's name, such as v6.12 or my-branch~3")
    done = _git(repository, "log", "-1", _FORMAT, f"{name}^{{commit}}", "--")
    if done.status and "bad revision" in done.stderr:
        raise InputError(f"there is no commit '{name}' in '{repository}'")
    if done.status:
        raise InputError(f"the commit '{name}' in '{repository}': {said(done)}")
    found = _commits(done)[0]
    listed = _git(repository, "ls-tree", found.sha, "--", MARK)
    if listed.status:
        raise InputError(f"the commit '{name}' in '{repository}': {said(listed)}")
    if not listed.stdout:
        raise InputError(
            f"the commit '{name}' in '{repository}' is not one of Linux: it has no {MARK}"
        )
    return found


def between(repository: Path, good: str, bad: str) -> tuple[Commit, ...]:
    """Return the commits from ``good`` to ``bad``, oldest first, along first parents.

    ``InputError``: ``good`` is not an ancestor of ``bad``.
    """
    first, last = commit(repository, good), commit(repository, bad)
    if first.sha == last.sha:
        raise InputError(f"'{good}' and '{bad}' are the same commit, {first.sha[:12]}")
    if _git(repository, "merge-base", "--is-ancestor", first.sha, last.sha).status:
        raise InputError(
            f"'{good}' is not an ancestor of '{bad}'",
            hint="good is the older end: to find a fix, exchange the two names",
        )
    words = ("log", "--first-parent", "--reverse", _FORMAT, f"{first.sha}..{last.sha}", "--")
    return (first, *_commits(_git(repository, *words)))


def titles(repository: Path, good: str, bad: str) -> tuple[str, ...]:
    """Return short id and title of every commit after ``good`` up to ``bad``, newest first."""
    done = _git(repository, "log", "--no-merges", "--format=%h %s", f"{good}..{bad}", "--")
    return tuple(printable(line) for line in done.stdout.splitlines())


def built(
    repository: Path, which: Commit, image: str, progress: Progress, *, accept_expired: bool
) -> Path:
    """Return a commit's kernel with its driver of virtual time; build what is missing.

    ``image``: its release's compiler is used. A first build takes minutes, that of a neighbouring
    commit less than one. ``InputError``: it does not compile, or cannot be configured.
    ``HostError``: the disk is full, or the archive with the compiler is not reached.
    """
    recipe = image_recipes.as_accepted(image_recipes.load(image)[1], accept_expired=accept_expired)
    plan = linux_tree(recipe, buildtree.hook())
    known = paths.kernels() / f"commit-{_key(plan, which.sha)}"
    if (kernel := _known(known)) is not None:
        return kernel
    with buildtree.held(plan, image, progress) as tree:
        place = str(repository.resolve())
        source = tree.directory / f"source-{hashlib.sha256(place.encode()).hexdigest()[:20]}"

        def waiting() -> None:
            progress("waiting for another process that builds a kernel", None)

        with image_workspace.exclusive(f"linux-{source.name}", waiting=waiting):
            if (kernel := _known(known)) is not None:
                return kernel
            image_workspace.check_space(plan.key, FREE)
            with image_workspace.workspace("linux") as work:
                progress(f"checking out {which.sha[:12]}", None)
                below = _below(repository, which, source)
                _check_out(repository, which, work, below)
                progress(f"building Linux of {which.sha[:12]} ({which.title})", None)
                kernel = _compiled(tree, work, source if below else None)
                if below is None:
                    _keep(work, which, source)
            files.write(known, kernel.name)
            return kernel


def _key(plan: BuildTree, text: str) -> str:
    """Return a digest of what a kernel is built from: this text, compiler and configuration."""
    own = [(image_recipes.directory() / name).read_text("utf-8") for name in (SCRIPT, CONFIG)]
    return hashlib.sha256("\0".join((plan.key, text, *own)).encode()).hexdigest()[:20]


def _known(known: Path) -> Path | None:
    """Return the kernel that was built before, if it and its driver are there."""
    try:
        kernel = paths.kernels() / known.read_text(encoding="ascii").strip()
    except OSError:
        return None
    there = kernel.is_file() and virtual_time.own_driver(kernel).is_dir()
    return kernel if there else None


_COMMIT: Final = "commit"


def _below(repository: Path, which: Commit, source: Path) -> str | None:
    """Return the commit whose objects are kept, if this one descends from it."""
    try:
        sha = (source / _COMMIT).read_text(encoding="ascii").strip()
    except OSError:
        return None
    done = _git(repository, "merge-base", "--is-ancestor", sha, which.sha)
    return None if done.status else sha


def _check_out(repository: Path, which: Commit, work: Path, below: str | None) -> None:
    """Write a commit to ``work/linux``; ``below``: what it changes of that one, to
    ``work/changed``.

    A commit's ``.gitattributes`` names no filter of the user's, and no hook runs.
    """
    made = work / "linux" if below is None else work / "changed/files"
    made.mkdir(parents=True)
    own = work / "git"
    git.borrow(repository, own)
    tree = f"--work-tree={made}"
    _said(own, which, "read-tree", which.sha)
    if below is None:
        _said(own, which, tree, "checkout-index", "--all")
        return
    words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", below, which.sha)
    removed = _said(own, which, *words, "--diff-filter=D")
    (work / "changed/removed").write_text(removed, encoding="utf-8")
    changed = _said(own, which, *words, "--diff-filter=d")
    _said(own, which, tree, "checkout-index", "-z", "--stdin", stdin=changed)


def _keep(work: Path, which: Commit, source: Path) -> None:
    """Keep the source that was built with its objects, for commits that descend from it."""
    made = work / "kept"
    made.mkdir(mode=0o700)  # a commit may have left a program with the bit setuid
    files.move(work / "linux", made / "linux")
    (made / _COMMIT).write_text(which.sha, encoding="ascii")
    leftovers.discard(source)
    files.move(made, source)


def _said(own: Path, which: Commit, *words: str, stdin: str = "") -> str:
    """Return what git prints; ``InputError``, or ``HostError`` for a full disk: it failed."""
    done = git.run(own, *words, stdin=stdin)
    if image_log.is_full(done.stderr):
        raise image_workspace.disk_full(which.sha[:12])
    if done.status:
        raise InputError(f"the commit {which.sha[:12]} could not be checked out: {said(done)}")
    return done.stdout


def _compiled(tree: buildtree.KeptTree, work: Path, below: Path | None) -> Path:
    """Build the source that was checked out, over ``below`` if given; return the kernel's place."""
    place, sources, build = work / "made", work / "driver", work / "build"
    for directory in (place, sources, build):
        directory.mkdir()
    for name in virtual_time.BUILT_FROM:
        shutil.copyfile(virtual_time.SOURCES / name, sources / name)
    read = {"/driver": sources, "/config": image_recipes.directory() / CONFIG}
    write = {"/build": build}
    if below is None:
        box = Box(read=read, write={**write, "/linux": work / "linux"})
    else:
        changed = {"/changed": work / "changed"}
        box = Box(read=read | changed, write=write, over={"/linux": below / "linux"})
    names = ("bzImage", *virtual_time.DRIVER)
    found = buildtree.run_script(SCRIPT, tree, place, box, names=names)
    data = found.pop("bzImage")
    kernel = paths.kernels() / hashlib.sha256(data).hexdigest()
    driver = virtual_time.own_driver(kernel)
    files.make_directory(paths.kernels())
    if not driver.is_dir():
        with making.making(driver) as part:
            part.mkdir()
            for name, content in found.items():
                (part / name).write_bytes(content)
            files.publish(part, driver)
    elif any((driver / name).read_bytes() != content for name, content in found.items()):
        # A commit decides what its build makes: it must not choose the driver of another one.
        raise HostError(
            f"this commit makes the bytes of a kernel that was built before, and another driver for"
            f" it than '{driver}'",
            hint="if you trust this commit and not the earlier one, remove that directory",
        )
    files.write(kernel, data)
    return kernel


_FORMAT: Final = "--format=%H%x00%cs%x00%s%x00"


def _commits(done: ProcessResult) -> list[Commit]:
    words = done.stdout.split("\0")
    return [
        Commit(sha=sha.strip(), date=date, title=printable(title))
        for sha, date, title in zip(words[0::3], words[1::3], words[2::3], strict=False)
    ]


def _git(repository: Path, *words: str) -> ProcessResult:
    """Run a command of git that reads the user's repository, without its settings."""
    with git.borrowed(repository) as own:
        return git.run(own, *words)
