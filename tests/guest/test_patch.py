"""A patch series is built and run on both sides: a slower md is flagged, an equal one not run."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

HEADER = """\
--- /dev/null
+++ b/drivers/md/md-note.h
@@ -0,0 +1 @@
+/* included by no file */
"""
CHECKS = ("--levels", "5", "--claims", "none")


def diff(before: str, after: str, path: str, place: Path) -> str:
    """Return a patch of one file of the source."""
    for side, text in (("a", before), ("b", after)):
        (place / side / path).parent.mkdir(parents=True, exist_ok=True)
        (place / side / path).write_text(text, encoding="utf-8")
    words = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, check=False).stdout


def test_a_regression_is_flagged_and_an_unused_header_is_not(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    harmless = tmp_path / "harmless.patch"
    harmless.write_text(HEADER, encoding="utf-8")
    ended = lab_home.run("patch", "--image", image, str(harmless), *CHECKS, "--json", timeout=1800)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["rows"] == []
    assert found["base"]["digest"] == found["patched"]["digest"]

    # RAID 5 never reads, modifies and writes: a planted regression
    source = next((lab_home.path / "data/images").glob(".tree-md-*/source.tar"))
    path = "drivers/md/raid5.c"
    with tarfile.open(source) as tar:
        file = tar.extractfile(f"./{path}")
        assert file is not None
        before = file.read().decode()
    test = "if (conf->rmw_level == PARITY_DISABLE_RMW ||"
    after = before.replace(
        test, test.replace("(", "((conf->level == 5 && s->failed == 0) || ", 1), 1
    )
    worse = tmp_path / "worse.patch"
    worse.write_text(diff(before, after, path, tmp_path), encoding="utf-8")
    ended = lab_home.run("patch", "--image", image, str(worse), *CHECKS, "--json", timeout=1800)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    flagged = {row["check"] for row in rows if row["verdict"] == "worse"}
    assert any(check.endswith("small: disk_reads") for check in flagged)
    assert not [row for row in rows if row["verdict"] == "broken"]
    assert lab_home.left() == []
