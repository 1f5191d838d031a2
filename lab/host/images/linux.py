"""Kernels that are built from a commit of the user's git repository of Linux.

::

    images/.tree-linux-RELEASE-KEY/    root/ (compiler, ccache), source-KEY/ (checkout, objects)
    kernels/DIGEST                     a kernel that was built
    kernels/DIGEST.driver-KEY/         the driver of virtual time for it
    kernels/commit-KEY                 the digest of a commit's kernel

The user's repository is only read: the lab's checkout has its own index, and borrows its objects. A
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
from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import MIB
from lab.host.images import buildtree, virtual_time
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.series import GIT, said
from lab.host.images.store import Progress
from lab.host.system import files, leftovers, made, paths, process
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
    if _git(repository, "cat-file", "-e", f"{found.sha}:{MARK}").status:
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
            progress(f"checking out {which.sha[:12]}", None)
            _check_out(repository, which, source)
            progress(f"building Linux of {which.sha[:12]} ({which.title})", None)
            with image_workspace.workspace("linux") as work:
                kernel = _compiled(tree, source, work)
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


def _check_out(repository: Path, which: Commit, source: Path) -> None:
    """Check a commit out; git rewrites only the files that differ, so make builds only these.

    The checkout begins anew if it is of another repository that was at the same path.
    """
    words = ("checkout", "--quiet", "--force", "--detach", which.sha)
    if source.is_dir():
        (source / ".git/index.lock").unlink(missing_ok=True)  # of a killed git; we hold our lock
        if not _git(source, *words).status:
            return
    leftovers.discard(source)
    with made.making(source) as part:
        clone = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", ".", str(part))
        for place, given in ((repository, clone), (part, words)):
            done = _git(place, *given)
            if image_log.is_full(done.stderr):
                raise image_workspace.disk_full(which.sha[:12])
            if done.status:
                raise InputError(
                    f"the commit {which.sha[:12]} could not be checked out: {said(done)}"
                )
        files.move(part, source)


def _compiled(tree: buildtree.KeptTree, source: Path, work: Path) -> Path:
    """Build the checked-out source; return the kernel's place."""
    out, sources = work / "out", work / "driver"
    out.mkdir()
    sources.mkdir()
    for name in virtual_time.BUILT_FROM:
        shutil.copyfile(virtual_time.SOURCES / name, sources / name)
    config = image_recipes.directory() / CONFIG
    buildtree.run_script(SCRIPT, tree, work / "log", source, out, sources, config)
    data = (out / "bzImage").read_bytes()
    (out / "bzImage").unlink()  # the driver is left
    kernel = paths.kernels() / hashlib.sha256(data).hexdigest()
    driver = virtual_time.own_driver(kernel)
    files.make_directory(paths.kernels())
    if not driver.is_dir():
        with made.making(driver) as part:
            shutil.copytree(out, part)
            files.publish(part, driver)
    files.write(kernel, data)
    return kernel


_FORMAT: Final = "--format=%H%x00%cs%x00%s%x00"


def _commits(done: ProcessResult) -> list[Commit]:
    words = done.stdout.split("\0")
    return [
        Commit(sha=sha.strip(), date=date, title=printable(title))
        for sha, date, title in zip(words[0::3], words[1::3], words[2::3], strict=False)
    ]


def _git(place: Path, *words: str) -> ProcessResult:
    """Run git in the user's repository, or in the checkout of it, with the user's settings."""
    try:
        return process.run(
            [*GIT, "-C", place, *words],
            check=False,
            timeout=600,
            env={"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"},
        )
    except ToolError as error:
        raise HostError(f"git failed in '{place}': {error.message}") from error
