"""Repositories of strangers: git runs no program that their settings name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.core.errors import InputError
from lab.host.images import linux, series
from lab.host.images import repository as repositories
from tests.fakes import git

SIGNATURE = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
Read = Callable[[Path, Path], object]
READS: dict[str, Read] = {
    "commit": lambda place, _: linux.commit(place, "HEAD"),
    "between": lambda place, _: linux.between(place, "main~1", "main"),
    "titles": lambda place, _: linux.titles(place, "HEAD~1", "HEAD"),
    "series": lambda place, work: series.read("HEAD~1..HEAD", place, work),
    "checkout": lambda place, work: linux._check_out(
        place, linux.commit(place, "HEAD"), work, None
    ),
}


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def hostile(tmp_path: Path, proof: Path) -> Path:
    """A repository whose settings name a program wherever git takes one."""
    place = tmp_path / "linux"
    (place / "drivers/md").mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    for number in range(2):
        (place / "drivers/md/md.c").write_text(f"{number}\n")
        git(place, "add", "-A")
        git(place, "commit", "-q", "-m", f"md: change {number}")
    head, _, body = git(place, "cat-file", "commit", "HEAD").partition("\n\n")
    signed = subprocess.run(
        ("git", "-C", place, "hash-object", "-t", "commit", "-w", "--stdin"),
        input=f"{head}\n{SIGNATURE}\n\n{body}\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    git(place, "update-ref", "HEAD", signed)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >>'{proof}'\n")
    program.chmod(0o755)
    named = ("gpg.program", "core.fsmonitor", "core.pager", "diff.external", "diff.x.command")
    for name in (*named, "diff.x.textconv", "filter.x.smudge"):
        git(place, "config", name, str(program))
    (place / ".git/info/attributes").write_text("*.c diff=x filter=x\n")
    git(place, "config", "log.showSignature", "true")
    git(place, "config", "core.repositoryformatversion", "1")
    git(place, "config", "extensions.partialClone", "from")
    git(place, "config", "remote.from.url", f"ext::{program}")
    git(place, "config", "remote.from.promisor", "true")
    git(place, "config", "protocol.ext.allow", "always")
    return place


def without_blobs(place: Path) -> None:
    """Remove the files' contents, which git then asks of the remote."""
    for number in (0, 1):
        sha = git(place, "rev-parse", f"HEAD~{number}:drivers/md/md.c")
        (place / ".git/objects" / sha[:2] / sha[2:]).unlink()


@pytest.mark.parametrize("what", READS)
def test_no_program_of_a_repository_runs(
    hostile: Path, proof: Path, tmp_path: Path, lab_home: Path, what: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    READS[what](hostile, work)
    assert not proof.exists()


@pytest.mark.parametrize("what", ["series", "checkout"])
def test_what_a_repository_lacks_is_not_fetched(
    hostile: Path, proof: Path, tmp_path: Path, lab_home: Path, what: str
) -> None:
    without_blobs(hostile)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(InputError):
        READS[what](hostile, work)
    assert not proof.exists()


def test_control_git_itself_runs_them(hostile: Path, proof: Path) -> None:
    words = ("git", "-C", str(hostile))
    subprocess.run((*words, "log", "-1"), capture_output=True, check=False)
    assert proof.read_text() == "ran\n"
    proof.unlink()
    without_blobs(hostile)
    subprocess.run((*words, "cat-file", "-e", "HEAD:drivers/md/md.c"), check=False)
    assert proof.exists()


def test_a_work_tree_and_packed_refs_are_read(hostile: Path, tmp_path: Path) -> None:
    git(hostile, "config", "--unset", "core.fsmonitor")
    git(hostile, "branch", "side", "HEAD~1")
    git(hostile, "pack-refs", "--all")
    git(hostile, "worktree", "add", "--no-checkout", "-q", str(tmp_path / "second"), "side")
    assert linux.commit(tmp_path / "second", "HEAD").title == "md: change 0"
    assert linux.commit(tmp_path / "second", "main").title == "md: change 1"


def test_a_head_without_end_is_a_sentence(hostile: Path) -> None:
    (hostile / ".git/HEAD").write_text("ref: refs/heads/main\n" + "x" * 10_000)
    with pytest.raises(InputError, match="the git repository"), repositories.borrowed(hostile):
        pass
