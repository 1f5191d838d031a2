"""A patch series is built and run on both sides: a slower md is flagged, an equal one not run."""

from __future__ import annotations

import json
import socket
import tarfile
from pathlib import Path

import pytest

from tests.fakes import diff
from tests.guest.conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

HEADER = """\
--- /dev/null
+++ b/drivers/md/md-note.h
@@ -0,0 +1 @@
+/* included by no file */
"""
CHECKS = ("--levels", "5", "--claims", "none")


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


def test_a_series_that_attacks_gets_nothing(lab_home: Home, image: str, tmp_path: Path) -> None:
    """The real thing: md's Makefile runs attacks in `lab patch`."""
    harmless = tmp_path / "harmless.patch"
    harmless.write_text(HEADER, encoding="utf-8")
    words = ("patch", "--image", image, *CHECKS, "--json")
    assert lab_home.run(*words, str(harmless), timeout=1800).returncode == 0
    tree = next((lab_home.path / "data/images").glob(".tree-md-*"))
    path = "drivers/md/Makefile"
    with tarfile.open(tree / "source.tar") as tar:
        file = tar.extractfile(f"./{path}")
        assert file is not None
        before = file.read().decode()
    canary, written = tmp_path / "canary", tmp_path / "written"
    canary.write_text("the canary sings", encoding="utf-8")
    kept = sorted(one for one in tree.glob("built-*/source/drivers/md/*") if one.is_file())
    contents = [one.read_bytes() for one in kept]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        port = server.getsockname()[1]
        attacks = (
            f"cat {canary} >/build/canary",
            f"echo poison >{written}",
            f"bash -c 'echo >/dev/tcp/127.0.0.1/{port}'",
            f"for f in {tree}/built-*/source/drivers/md/*.c; do echo poison >>$$f; done",
            "echo poison >>/usr/src/poison",
            "cat /build/canary >&2",
        )
        after = "".join(f"$(shell {one})\n" for one in attacks) + before
        evil = tmp_path / "evil.patch"
        evil.write_text(diff(before, after, path, tmp_path), encoding="utf-8")
        ended = lab_home.run(*words, str(evil), timeout=1800)
        assert ended.returncode == 0, ended.stderr  # it builds, and nothing of md differs
        assert json.loads(ended.stdout)["rows"] == []
        with pytest.raises(TimeoutError):
            server.accept()
    assert not written.exists()
    assert [one.read_bytes() for one in kept] == contents
    assert "sings" not in ended.stdout + ended.stderr
    assert not list(tree.glob("root/usr/src/poison"))
