"""`lab patch` refuses bad input before anything is made, and prints its plan."""

from __future__ import annotations

import re
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.fakes import Cli
from tests.unit.test_patch_series import FILE
from tests.unit.test_workflows import ACTION, PATCH, document


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["missing.mbox"], "missing.mbox"),
        (["dm.patch"], "drivers/md/dm.c"),
        (["good.patch", "--against", "mdmon"], "--against"),
        (["good.patch", "--levels", "7"], "--levels"),
        (["good.patch", "--claims", "no-such"], "no-such"),
        (["good.patch", "--margin", "x"], "--margin"),
        (["good.patch", "--kernel", "./bzImage"], "bzImage"),
        (["good.patch", "--image", "no-such"], "no-such"),
        (["good.patch", "--junit", "no/such/dir"], "--junit"),
        (["good.patch", "--markdown", "no/such/dir"], "--markdown"),
        (["good.patch", "--levels", "none", "--claims", "none", "--plan"], "--levels"),
    ],
)
def test_bad_input_is_told_and_nothing_is_left(
    cli: Cli, tmp_path: Path, words: list[str], names: str
) -> None:
    for name, path in (("dm.patch", "drivers/md/dm.c"), ("good.patch", FILE)):
        text = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"
        (tmp_path / name).write_text(text, encoding="utf-8")
    first = str(tmp_path / words[0])
    ended = cli("patch", first, *words[1:])
    assert ended.status == 2
    assert names in ended.stderr
    assert cli.left() == []


def test_the_plan_names_patches_and_jobs(cli: Cli, tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "[PATCH] md: change a line"
    mail.set_content(f"---\n--- a/{FILE}\n+++ b/{FILE}\n@@ -1 +1 @@\n-a\n+b\n")
    (tmp_path / "my.mbox").write_bytes(bytes(mail))
    ended = cli("patch", str(tmp_path / "my.mbox"), "--plan", "--levels", "0,5", "--json")
    assert ended.status == 0, ended.stderr
    document = ended.json
    assert document["against"] == "md"
    assert document["patches"] == ["md: change a line"]
    jobs = {job["scenario"]: job["cells"] for job in document["each_side"]["parts"]}
    assert jobs["fio-verify"] == 2
    assert jobs["fio-verify-raid0"] == 1
    assert "raid5-parity-last" in jobs


def test_the_action_uses_options_of_lab_patch_and_no_secrets(cli: Cli) -> None:
    action = document(ACTION)
    steps = action["runs"]["steps"]
    script = next(step["run"] for step in steps if step.get("id") == "patch")
    known = cli("patch", "--help").stdout
    options = set(re.findall(r" (--[a-z-]+)", script)) - {"--"}
    assert {"--image", "--tree", "--junit", "--markdown"} <= options
    assert all(option in known for option in options)
    own = next(step["env"] for step in steps if step.get("id") == "patch")
    given = {text for text in action["inputs"] if any(f"inputs.{text} " in v for v in own.values())}
    assert given == set(action["inputs"])
    for file in (ACTION, PATCH):
        assert "secrets" not in file.read_text().replace("no secrets", "")
    assert "GITHUB_STEP_SUMMARY" in script
