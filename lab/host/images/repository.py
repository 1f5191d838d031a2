"""Reads a git repository that a user names, without its settings.

A repository's settings name programs: for signatures, for objects that it lacks, for file systems.
A copied or unpacked repository brings them. So git reads the refs and objects of the repository
through an empty repository of the lab's own, whose settings are the lab's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.core import regular
from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import KIB
from lab.host.system import process
from lab.host.system.process import ProcessResult

GIT: Final = ("env", *(f"--unset=GIT_{n}" for n in ("DIR", "WORK_TREE", "INDEX_FILE")), "git")
"""git, even if the lab is started by a hook of the user's repository."""
_SHARED: Final = ("refs", "packed-refs", "shallow")
"""Names and limits of the history, which linked work trees share."""
_ALTERNATES: Final = "objects/info/alternates"
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"


def alone(cwd: Path) -> dict[str, str]:
    """Return an environment without the user's git: no settings, and no repository around."""
    nothing = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return nothing | {"GIT_CEILING_DIRECTORIES": str(cwd.parent), "LC_ALL": "C.UTF-8"}


def said(done: ProcessResult) -> str:
    """Return the first line of what git printed."""
    text = (done.stderr or done.stdout).strip().splitlines() or ["git printed nothing"]
    return printable(re.sub(r"^(fatal|error): ", "", text[0]))


def borrow(repository: Path, own: Path) -> None:
    """Make ``own`` a bare repository over the refs and objects of the user's.

    ``InputError``: there is no repository, or its names cannot be read.
    """
    # It reads no object. With the user's settings: they may allow another user's directory.
    words = ("rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir")
    done = _run([*GIT, "-C", repository, *words], {"LC_ALL": "C.UTF-8"}, 60)
    if done.status:
        raise InputError(f"'{repository}' is no git repository: {said(done)}")
    try:
        git, common = map(Path, done.stdout.removesuffix("\n").split("\n"))
        head = regular.read(git / "HEAD", 4 * KIB)
    except (OSError, ValueError) as error:
        raise InputError(f"the git repository '{repository}' cannot be read: {error}") from error
    (own / "objects/info").mkdir(parents=True)
    (own / _ALTERNATES).write_text(f"{common / 'objects'}\n", encoding="utf-8")
    (own / "config").write_text(_CONFIG, encoding="utf-8")
    (own / "HEAD").write_bytes(head)
    for name in _SHARED:
        if (common / name).exists():
            (own / name).symlink_to(common / name)


@contextmanager
def borrowed(repository: Path) -> Iterator[Path]:
    """Yield a temporary repository that `borrow` has made."""
    with TemporaryDirectory(prefix="lab-git-") as place:
        own = Path(place) / "git"
        borrow(repository, own)
        yield own


def objects(own: Path) -> Path:
    """Return the directory of the user's objects."""
    return Path((own / _ALTERNATES).read_text(encoding="utf-8").removesuffix("\n"))


def run(own: Path, *words: str, timeout: float = 600, stdin: str = "") -> ProcessResult:
    """Run git in a repository that `borrow` has made."""
    return _run([*GIT, f"--git-dir={own}", *words], alone(own), timeout, stdin)


def _run(
    argv: list[str | Path], env: dict[str, str], timeout: float, stdin: str = ""
) -> ProcessResult:
    env = {"GIT_TERMINAL_PROMPT": "0", **env}
    try:
        return process.run(argv, check=False, timeout=timeout, stdin=stdin, env=env)
    except ToolError as error:
        raise HostError(f"git failed: {error.message}") from error
