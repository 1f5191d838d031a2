"""file_tree and space: their tree, their counts, and detection of changed bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs._source import command
from lab.plugins.guest_programs.tree import Tree
from lab.plugins.workloads import file_tree, space

TREE = {"files": 30, "files_per_directory": 7, "min_size": 10, "max_size": 3000}


def _parameters(**changes: Any) -> file_tree.FileTreeParameters:
    return file_tree.FileTreeParameters.model_validate({**TREE, **changes})


def _run(script: str, tmp_path: Path) -> tuple[int, Outputs]:
    """Run the script as in a guest, except that the host's page cache is not dropped."""
    caches = tmp_path / "drop_caches"
    assert "/proc/sys/vm/drop_caches" in script
    ours = script.replace("/proc/sys/vm/drop_caches", str(caches))
    ours = ours.replace("/var/tmp", str(tmp_path))
    done = subprocess.run(["sh", "-e", "-c", ours], capture_output=True, text=True, check=False)
    return done.returncode, Outputs(stdout=done.stdout, stderr=done.stderr, files={})


def _done(tmp_path: Path, **changes: Any) -> dict[str, float]:
    parameters = _parameters(**changes)
    _, outputs = _run(file_tree.WORKLOAD.script(parameters, str(tmp_path / "data")), tmp_path)
    return file_tree.WORKLOAD.parse(parameters, outputs)


def _digest(tmp_path: Path) -> str:
    found = hashlib.sha256()
    top = tmp_path / "data"
    for path in sorted(top.rglob("*")):
        found.update(str(path.relative_to(top)).encode())
        found.update(path.read_bytes() if path.is_file() else b"/")
    return found.hexdigest()


def test_all_phases_are_timed_and_nothing_is_left(tmp_path: Path) -> None:
    found = _done(tmp_path)
    assert list(found) == ["seconds", *(f"{phase}_seconds" for phase in file_tree.PHASES)]
    assert found["seconds"] == pytest.approx(sum(list(found.values())[1:]))
    assert [path.name for path in tmp_path.iterdir()] == ["drop_caches"]
    assert (tmp_path / "drop_caches").read_text() == "3\n"


def test_the_same_seed_makes_the_same_tree(tmp_path: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        _done(tmp_path, seed=seed, phases=["write"])
        digests.append(_digest(tmp_path))
    assert digests[0] == digests[1] != digests[2]


def test_the_tree_is_the_same_everywhere_and_always() -> None:
    """One seed gives the same sizes and contents, also for values of last year."""
    tree = Tree(seed=1, files=3, min_size=1, max_size=9, files_per_directory=2)
    assert {name: bytes(tree.content(name)).hex() for name in tree.pieces} == EXPECTED


EXPECTED = {
    "000/00/0000000": "0d52387d4e6b98",
    "000/00/0000001": "27227da8b4955c",
    "000/01/0000002": "4c1a73",
}


def test_the_unpacked_tree_is_the_written_one(tmp_path: Path) -> None:
    _done(tmp_path, phases=["write", "unpack"])
    top = tmp_path / "data"
    written = {p.relative_to(top / "tree"): p for p in (top / "tree").rglob("*") if p.is_file()}
    assert len(written) == 30
    for name, path in written.items():
        assert (top / "unpacked" / name).read_bytes() == path.read_bytes()
        assert TREE["min_size"] <= path.stat().st_size <= TREE["max_size"]


def test_another_workload_reads_what_one_wrote(tmp_path: Path) -> None:
    _done(tmp_path, phases=["write"])
    assert _done(tmp_path, phases=["read"])["read_seconds"] > 0
    assert _done(tmp_path, phases=["remove"])["remove_seconds"] > 0
    with pytest.raises(ToolError, match=r"nothing in .* to remove"):
        _done(tmp_path, phases=["remove"])


def test_another_seed_reads_other_bytes(tmp_path: Path) -> None:
    _done(tmp_path, phases=["write"])
    with pytest.raises(ToolError, match="30 of 30 files changed or missing"):
        _done(tmp_path, phases=["read"], seed=2)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "add"])
def test_planted_rot_is_found(tmp_path: Path, harm: str) -> None:
    _done(tmp_path, phases=["write"])
    victim = next(p for p in sorted((tmp_path / "data").rglob("*3")) if p.is_file())
    content = bytearray(victim.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif harm == "cut":
        victim.write_bytes(content[:-1])
    elif harm == "remove":
        victim.unlink()
    else:
        victim = victim.with_name("more")
        victim.write_bytes(b"")
    with pytest.raises(ToolError, match=f"1 of 30 files changed or missing: .*{victim.name}"):
        _done(tmp_path, phases=["read"])


def test_a_target_that_is_no_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a disk")
    with pytest.raises(ToolError, match="files need a file system"):
        _done(tmp_path)


def test_a_phase_that_is_missing_or_short_is_noticed(tmp_path: Path) -> None:
    parameters = _parameters(phases=["write"])
    script = file_tree.WORKLOAD.script(parameters, str(tmp_path / "data"))
    _, outputs = _run(script, tmp_path)
    for old, new, said in [
        ('"write": {', '"read": {', "did ['read']"),
        ('{"files": 30', '{"files": 29', "with 29 files"),
        ('"files": 30, "bytes"', '"files": 29, "bytes"', "29 of 30|with 29 files"),
    ]:
        assert old in outputs.stdout
        changed = Outputs(stdout=outputs.stdout.replace(old, new), stderr="", files={})
        with pytest.raises(ToolError, match=said.replace("[", r"\[")):
            file_tree.WORKLOAD.parse(parameters, changed)
    report = json.loads(outputs.stdout)
    for key, value, said in [
        ("files", 29, "29 of 30"),
        ("bytes", 1, "left 1 of"),
        ("seconds", 0, "write was too fast"),
    ]:
        broken = {**report, "phases": {"write": {**report["phases"]["write"], key: value}}}
        with pytest.raises(ToolError, match=said):
            file_tree.WORKLOAD.parse(
                parameters, Outputs(stdout=json.dumps(broken), stderr="", files={})
            )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": 0}, "greater than or equal to 1"),
        ({"min_size": 4000}, "above max_size"),
        ({"max_size": "1GiB"}, "expected 64MiB or less"),
        ({"phases": []}, "in this order"),
        ({"phases": ["read", "write"]}, "in this order"),
        ({"phases": ["read", "read"]}, "in this order"),
        ({"phases": ["stat"]}, "'write', 'read'"),
        ({"directory": "/tmp"}, "does not contain"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _parameters(**changes)


def test_a_command_that_fails_says_so() -> None:
    script = command("timed", {"argv": ["sh", "-c", "exit 7"]})
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "sh ended with status 7" in done.stderr


# space


def test_space_counts_what_it_wrote(tmp_path: Path) -> None:
    """Other processes use this file system too, so only the files' own values are exact."""
    parameters = space.SpaceParameters.model_validate({"files": 40, "size": 100})
    _, outputs = _run(space.WORKLOAD.script(parameters, str(tmp_path / "data")), tmp_path)
    wrote = json.loads(outputs.stdout)["phases"]["write"]
    assert (wrote["files"], wrote["bytes"]) == (40, 4000)
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert {path.stat().st_size for path in files} == {100}
    assert wrote["allocated"] == sum(path.stat().st_blocks * 512 for path in files)


GROWN = {"seconds": 1.5, "files": 4, "bytes": 400, "allocated": 16384}


def _space(**changes: Any) -> dict[str, float]:
    write = {**GROWN, "used_before": 1000, "used_after": 18000, **changes}
    outputs = Outputs(stdout=json.dumps({"phases": {"write": write}}), stderr="", files={})
    parameters = space.SpaceParameters.model_validate({"files": 4, "size": 100})
    return space.WORKLOAD.parse(parameters, outputs)


def test_space_is_what_use_grew_by() -> None:
    assert _space() == {"used": 17000, "used_total": 18000, "allocated": 16384, "seconds": 1.5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": 3}, "found 3 files"),
        ({"bytes": 300}, "with 300 bytes"),
        ({"used_after": 1399}, "grew by 399 bytes"),
        ({"used_after": 0}, "grew by -1000 bytes"),
        ({"allocated": "much"}, "did not print its JSON"),
    ],
)
def test_space_notices_what_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        _space(**changes)
