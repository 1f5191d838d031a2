"""Bisections over a patch series and over a git repository find what breaks md, in real guests."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from lab.compile.image.build import namespaced
from lab.core.errors import EXIT_DONE, EXIT_REFUTED
from tests.fakes import diff
from tests.guest.conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

PATH = "drivers/md/raid10.c"
PATCHES = 8
BROKEN = 5
UNUSED = "static int __used raid10_note_{0}(void)\n{{\n\treturn {0};\n}}\n"
"""What a patch adds: code that nothing calls."""
FOUND, LOST = "still_degraded = 1;", "still_degraded = 0;"
"""Planted: a recovery clears bits of the bitmap although a member is missing."""


def source(home: Home) -> str:
    archive = next((home.path / "data/images").glob(".tree-md-*/source.tar"))
    with tarfile.open(archive) as tar:
        file = tar.extractfile(f"./{PATH}")
        assert file is not None
        return file.read().decode()


def write_series(directory: Path, text: str, work: Path, *, broken: int | None) -> None:
    """Write patches that follow each other, one of them with the planted bug."""
    directory.mkdir()
    for number in range(1, PATCHES + 1):
        after = text + UNUSED.format(number)
        if number == broken:
            assert after.count(FOUND) == 1
            after = after.replace(FOUND, LOST)
        patch = diff(text, after, PATH, work)
        (directory / f"{number:04}-md.patch").write_text(patch, encoding="utf-8")
        text = after


def test_the_planted_patch_of_a_series_is_found_and_a_harmless_series_has_none(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing.patch"
    nothing.write_text(
        "--- /dev/null\n+++ b/drivers/md/md-note.h\n@@ -0,0 +1 @@\n+/* unused */\n",
        encoding="utf-8",
    )
    words = ("patch", "--image", image, str(nothing), "--levels", "5", "--claims", "none")
    prepared = lab_home.run(*words, timeout=1800)  # unpacks the source, and measures nothing
    assert prepared.returncode == EXIT_DONE, prepared.stderr
    text = source(lab_home)
    series, harmless = tmp_path / "series", tmp_path / "harmless"
    write_series(series, text, tmp_path, broken=BROKEN)
    write_series(harmless, text, tmp_path, broken=None)

    words = ("bisect", "RA-check", "--scenario", "raid10-re-add", "--set", f"guest.image={image}")
    found = lab_home.json(*words, "--series", str(series), timeout=3000)
    assert (found["pair"]["good"], found["pair"]["bad"]) == (
        f"patch-{BROKEN - 1}",
        f"patch-{BROKEN}",
    )
    assert {s["version"]: s["verdict"] for s in found["steps"]} == {
        "patch-0": "holds",
        "patch-8": "refuted",
        "patch-4": "holds",
        "patch-6": "refuted",
        "patch-5": "refuted",
    }
    done = lab_home.run(*words, "--series", str(harmless), "--json", timeout=3000)
    assert done.returncode == EXIT_REFUTED, done.stderr
    equal = json.loads(done.stdout)
    assert equal["pair"] is None
    assert [s["verdict"] for s in equal["steps"]] == ["holds", "holds"]
    assert lab_home.left() == []


@pytest.fixture
def linux(tmp_path: Path) -> Path:
    """A git repository of Debian's source of Linux, with a planted bug in one of four commits."""
    root, place = tmp_path / "root", tmp_path / "linux"
    words = ("mmdebstrap", "--mode=root", "--variant=extract", "--include=linux-source")
    argv = namespaced((*words, "bookworm", str(root)), root=os.geteuid() == 0)
    subprocess.run(argv, check=True, capture_output=True, timeout=600)
    place.mkdir()
    archive = next((root / "usr/src").glob("linux-source-*.tar.xz"))
    unpack = ("tar", "--strip-components=1", "-C", str(place), "-xf", str(archive))
    subprocess.run(unpack, check=True, timeout=600)

    def git(*given: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.compression=0")
        subprocess.run(["git", "-C", str(place), *who, *given], check=True, timeout=600)

    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all", "--force")
    git("commit", "--quiet", "--message=Linux")
    file = place / PATH
    for number in range(1, 5):
        text = file.read_text(encoding="utf-8") + UNUSED.format(number)
        if number == 2:
            text += "not C\n"
        if number == 3:
            assert text.count(FOUND) == 1
            text = text.replace("not C\n", "").replace(FOUND, LOST)
        file.write_text(text, encoding="utf-8")
        git("commit", "--quiet", "--all", f"--message=md: change {number}")
    return place


def test_the_planted_commit_of_a_repository_is_found(
    lab_home: Home, image: str, linux: Path
) -> None:
    words = ("bisect", "RA-check", "--scenario", "raid10-re-add", "--set", f"guest.image={image}")
    given = ("--tree", str(linux), "--good", "main~4", "--bad", "main", "--clock", "virtual")
    found = lab_home.json(*words, *given, timeout=3000)
    says = {v["name"]: v["says"] for v in found["versions"]}
    assert (says[found["pair"]["good"]], says[found["pair"]["bad"]]) == (
        "md: change 1",
        "md: change 3",
    )
    assert [says[name] for name in found["pair"]["between"]] == ["md: change 2"]
    broken = next(s for s in found["steps"] if says[s["version"]] == "md: change 2")
    assert "does not compile" in broken["reason"]
    assert "raid10.c" in broken["reason"]
    status = subprocess.run(
        ["git", "-C", str(linux), "status", "--porcelain"], capture_output=True, check=True
    )
    assert status.stdout == b""
    assert lab_home.left() == []
