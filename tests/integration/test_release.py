"""`make release`: what it refuses, and that the same commit gives the same bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGES = "# Changes\n\n## [0.2.0] - 2026-01-01\n\n- new\n\n## [0.1.0]\n\n- old\n\n## [0.0.1]\n\n"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture
def commit(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that makes a repository with a version and a change log."""

    def made(version: str, changes: str) -> Path:
        root = tmp_path / "r"
        (root / "lab").mkdir(parents=True)
        (root / "lab" / "__init__.py").write_text(f'__version__ = "{version}"\n')
        (root / "CHANGELOG.md").write_text(changes)
        git(tmp_path, "init", "-q", "r")
        git(root, "add", ".")
        git(root, "commit", "-qm", "x")
        return root

    return made


def test_the_notes_are_the_section_of_the_version(tool: ModuleType) -> None:
    assert tool.notes_of(CHANGES, "0.2.0") == "# raid-lab 0.2.0\n\n- new\n"
    assert tool.notes_of(CHANGES, "0.1.0") == "# raid-lab 0.1.0\n\n- old\n"
    for version in ("0.0.1", "0.3.0", "0.2", "0.1.0.dev1"):
        with pytest.raises(tool.Refused, match=r"no section .*" + version):
            tool.notes_of(CHANGES, version)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_a_tree_that_is_not_clean_is_refused(
    tool: ModuleType, commit: Callable[[str, str], Path], name: str
) -> None:
    root = commit("0.2.0", CHANGES)
    tool.check_clean(root)
    (root / name).write_text("changed")
    with pytest.raises(tool.Refused, match=name):
        tool.release(root, sys.executable)
    assert not (root / "dist").exists()


@pytest.mark.packaging
def test_the_same_commit_gives_the_same_bytes(tool: ModuleType, tmp_path: Path) -> None:
    root = tmp_path / "r"
    ignored = shutil.ignore_patterns("__pycache__", ".git", "dist", ".venv*", ".*_cache", "build")
    shutil.copytree(ROOT, root, ignore=ignored, symlinks=True)
    git(tmp_path, "init", "-q", "r")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x", "--date", "2026-01-01T00:00:00Z")
    before = _sums(tool.release(root, sys.executable))
    time.sleep(1.1)
    for path in root.rglob("*.py"):
        os.utime(path)
    (root / "lab" / "__pycache__").mkdir()  # ignored by git, and by the release
    (root / "lab" / "__pycache__" / "x.pyc").write_bytes(b"x")
    place = tool.release(root, sys.executable)
    assert _sums(place) == before
    assert sorted(before) == [
        *("NOTES.md", "SHA256SUMS", f"raid-lab-{place.name}-source.tar.gz"),
        *(f"raid_lab-{place.name}-py3-none-any.whl", f"raid_lab-{place.name}.tar.gz"),
    ]
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=place, capture_output=True)
    assert checked.returncode == 0


def _sums(place: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in place.iterdir()}
