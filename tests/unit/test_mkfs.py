"""mkfs: its command, a real run, and the verification of the file system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins.workloads.mkfs import WORKLOAD, MkfsParameters

MADE = '{"seconds": 1.5}\nDEVNAME=/dev/md127\nVERSION=1.0\nTYPE=ext3\n'


def _parameters(**changes: Any) -> MkfsParameters:
    return MkfsParameters.model_validate({"type": "ext3", **changes})


def _parse(stdout: str, stderr: str = "", **changes: Any) -> dict[str, float]:
    outputs = Outputs(stdout=stdout, stderr=stderr, files={})
    return WORKLOAD.parse(_parameters(**changes), outputs)


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-e", "-c", f"PATH=$PATH:/usr/sbin:/sbin\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not shutil.which("mkfs.ext3", path="/usr/sbin:/sbin"), reason="no e2fsprogs")
def test_the_script_really_makes_one_and_wipes_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with target.open("wb") as file:
        file.truncate(16 * 1024**2)
    options = ("-O", "^has_journal", "-L", "two words")
    for kind in ("ext4", "ext2"):
        done = _run(WORKLOAD.script(_parameters(type=kind, options=options), str(target)))
        assert _parse(done.stdout, done.stderr, type=kind)["seconds"] > 0
    dry = _run(WORKLOAD.script(_parameters(type="ext2", options=("-n",)), str(target)))
    with pytest.raises(ToolError, match="no file system"):
        _parse(dry.stdout, dry.stderr, type="ext2", options=("-n",))


def test_options_stay_words_before_the_target() -> None:
    script = WORKLOAD.script(_parameters(options=("-L", "a $(b)")), "/dev/md/bench")
    assert '["mkfs.ext3", "-q", "-F", "-L", "a $(b)", "/dev/md/bench"]' in script
    assert '"-f"' in WORKLOAD.script(_parameters(type="xfs"), "/dev/md/bench")


def test_the_time_is_read() -> None:
    assert _parse(MADE) == {"seconds": 1.5}


@pytest.mark.parametrize(
    ("stdout", "said"),
    [
        (MADE.replace("ext3", "ext4"), "blkid finds 'ext4'"),
        (MADE.splitlines()[0], "blkid finds 'no file system'"),
        (MADE.replace("1.5", "0.0"), "mkfs.ext3 was too fast"),
        (MADE.replace("1.5", "soon"), "was not timed"),
        (MADE.partition("\n")[2], "was not timed"),
    ],
)
def test_another_output_is_not_guessed_at(stdout: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        _parse(stdout)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"type": "btrfs"}, "'ext2', 'ext3'"), ({"options": ["-q", ""]}, "not a command-line word")],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _parameters(**changes)


def test_it_destroys() -> None:
    assert WORKLOAD.destroys(_parameters())
