"""Builds a release of the commit that is checked out: ``make release``.

::

    dist/VERSION/raid_lab-VERSION-py3-none-any.whl
    dist/VERSION/raid_lab-VERSION.tar.gz            sdist
    dist/VERSION/raid-lab-VERSION-source.tar.gz     the whole repository
    dist/VERSION/NOTES.md                           CHANGELOG.md's section of the version
    dist/VERSION/SHA256SUMS

Everything is built from the commit, not from the checkout. Times are that of the commit, so the
same commit gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess  # noqa: TID251  no part of the lab
import sys
import tarfile
import tempfile
from pathlib import Path

TIMEOUT = 600


class Refused(Exception):  # noqa: N818  a sentence for the user
    """Why there is no release."""


def git(root: Path, *words: str) -> bytes:
    """Return what git prints; ``Refused``: it failed."""
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, check=False, timeout=TIMEOUT
    )
    if done.returncode:
        raise Refused(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def version_of(root: Path) -> str:
    """Return the version in ``lab/__init__.py`` of the commit."""
    text = git(root, "show", "HEAD:lab/__init__.py").decode()
    found = re.search(r'^__version__ = "([0-9][0-9A-Za-z.+-]*)"$', text, re.MULTILINE)
    if found is None:
        raise Refused('lab/__init__.py: there is no line __version__ = "..."')
    return found[1]


def notes_of(changes: str, version: str) -> str:
    """Return a version's section of the change log; ``Refused``: there is none, or it is empty."""
    heading = re.escape(f"## [{version}]")
    found = re.search(rf"^{heading}.*?$(.*?)(?=^## \[|\Z)", changes, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise Refused(
            f"CHANGELOG.md has no section '## [{version}]', or it is empty: write what changed, or"
            " correct __version__ in lab/__init__.py"
        )
    return f"# raid-lab {version}\n\n{found[1].strip()}\n"


def check_clean(root: Path) -> None:
    """``Refused``: files differ from the commit, or are unknown to git."""
    changed = git(root, "status", "--porcelain").decode(errors="replace").splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Refused(f"the tree is not clean: '{changed[0][3:]}'{more}: commit or remove it")


def release(root: Path, python: str) -> Path:
    """Build ``dist/VERSION``; return it."""
    check_clean(root)
    version = version_of(root)
    notes = notes_of(git(root, "show", "HEAD:CHANGELOG.md").decode(), version)
    place = root / "dist" / version
    epoch = git(root, "log", "-1", "--format=%ct").decode().strip()
    prefix = f"raid-lab-{version}"
    tar = git(root, "archive", "--format=tar", f"--prefix={prefix}/", "HEAD")
    place.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".release-") as name:
        work = Path(name)
        made = work / version
        made.mkdir()
        with gzip.GzipFile(made / f"{prefix}-source.tar.gz", "wb", 9, mtime=int(epoch)) as packed:
            packed.write(tar)
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            archive.extractall(work)  # noqa: S202  it is this repository
        done = subprocess.run(
            [python, "-m", "build", "--no-isolation", "--outdir", str(made), str(work / prefix)],
            env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
            capture_output=True,
            check=False,
            timeout=TIMEOUT,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise Refused(f"the build failed:\n{said[-2000:]}")
        (made / "NOTES.md").write_text(notes, encoding="utf-8")
        sums = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted(made.iterdir())
        ]
        (made / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    return place


def main() -> int:
    """Build the release of the repository in the current directory."""
    try:
        place = release(Path.cwd(), sys.executable)
    except (Refused, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 2
    for line in (place / "SHA256SUMS").read_text(encoding="ascii").splitlines():
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"in {place.relative_to(Path.cwd())}; sha256sum -c SHA256SUMS checks it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
