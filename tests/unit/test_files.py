"""Files are synced before they are renamed into place, in the right order."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.core.errors import FullError, HostError
from lab.host.real_disks import profiles
from lab.host.system import files, keys
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome
from lab.store.runs import RunStore, StoredOutcome, save_raw
from tests.fakes import SCENARIO, compiled_text

LAB = Path(files.__file__).parents[2]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Record every fsync and rename, by paths below ``tmp_path``."""
    seen: list[str] = []
    fsync, rename, link = os.fsync, os.rename, os.link

    def named(path: object) -> str:
        text = str(path).removeprefix(str(tmp_path)).lstrip("/") or "."
        return re.sub(rf"\.{os.getpid()}\.\d+\.[0-9a-f]{{16}}\.part$", ".PID.part", text)

    def synced(descriptor: int) -> None:
        seen.append(f"fsync {named(Path(f'/proc/self/fd/{descriptor}').readlink())}")
        fsync(descriptor)

    def renamed(made: object, place: object, **_: object) -> None:
        seen.append(f"rename {named(made)} {named(place)}")
        rename(str(made), str(place))

    def linked(made: object, place: object, **_: object) -> None:
        seen.append(f"link {named(made)} {named(place)}")
        link(str(made), str(place))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "link", linked)
    return seen


def test_a_file_is_synced_then_renamed_then_its_name_is_synced(
    calls: list[str], tmp_path: Path
) -> None:
    files.write(tmp_path / "a", "text")
    assert calls == ["fsync .a.PID.part", "rename .a.PID.part a", "fsync ."]
    assert (tmp_path / "a").read_text() == "text"
    calls.clear()
    files.write(tmp_path / "b", b"x", durable=False)
    assert calls == ["rename .b.PID.part b"]
    assert names(tmp_path) == ["a", "b"]


def test_a_directory_is_published_with_all_that_is_in_it(calls: list[str], tmp_path: Path) -> None:
    made = tmp_path / ".made"
    (made / "raw" / "deep").mkdir(parents=True)
    for name in ("one", "raw/two", "raw/deep/three"):
        (made / name).write_text(name)
    (made / "link").symlink_to("/nowhere")
    os.mkfifo(made / "pipe")
    files.publish(made, tmp_path / "place")
    at = {call: number for number, call in enumerate(calls)}
    assert len(at) == len(calls) == 8
    *order, renamed, last = calls
    assert (renamed, last) == ("rename .made place", "fsync .")
    assert {*order[:3]} == {f"fsync .made/{n}" for n in ("one", "raw/two", "raw/deep/three")}
    assert order[3:] == ["fsync .made/raw/deep", "fsync .made/raw", "fsync .made"]


def test_a_cell_is_synced_when_it_is_finished_and_not_before(
    calls: list[str], tmp_path: Path
) -> None:
    """When `finish_cell` returns, a power cut cannot remove any part of the cell."""
    cell = compiled_text(tmp_path, SCENARIO).base
    run = RunStore.create("q", "", tmp_path / "runs")
    top = f"runs/{run.id}"
    assert calls[0] == "fsync ."  # the directory of all runs is new
    assert calls[-1] == "fsync runs"
    assert {f"fsync {top}", f"fsync {top}/cells"} <= set(calls)
    calls.clear()
    attempt = run.begin_cell("c", cell, Procedure(name="q", steps=()))
    save_raw(attempt, "write.1.stdout.txt", "text")
    with (attempt / "events.jsonl").open("a") as file:
        file.write("{}\n")
    assert not [call for call in calls if call.startswith("fsync")]
    calls.clear()
    run.finish_cell("c", attempt, StoredOutcome(outcome=Outcome.DONE))
    place = f"{top}/cells/.c.1"
    renamed = calls.index(f"rename {place} {top}/cells/c")
    names = ("cell.json", "procedure.json", "outcome.json", "events.jsonl", "raw")
    for name in (*names, "raw/write.1.stdout.txt"):
        assert calls.index(f"fsync {place}/{name}") < renamed
    assert calls.index(f"fsync {place}") < renamed
    assert calls[renamed + 1 :] == [f"fsync {top}/cells"]
    calls.clear()
    run.keep_attempt(
        run.begin_cell("d", cell, Procedure(name="q", steps=())),
        StoredOutcome(outcome=Outcome.LOST),
    )
    assert f"fsync {top}/cells/.d.1/outcome.json" in calls
    assert calls[-1] == f"fsync {top}/cells"


def test_keys_and_profiles_are_durable(
    calls: list[str], tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    pair = keys.lab_key()
    private = "data/keys/.id_ed25519.PID.part"
    order = [f"fsync {private}", f"link {private} data/keys/id_ed25519", "fsync data/keys"]
    assert [call for call in calls if call in order][:3] == order
    assert calls[-1] == "fsync data/keys"
    assert keys.lab_key() == pair
    assert stat.S_IMODE(keys.lab_key_path().stat().st_mode) == 0o600
    assert names(tmp_path / "data/keys") == ["id_ed25519", "id_ed25519.pub"]
    assert profiles.path_of("x").parent == tmp_path / "data/profiles"


def test_a_file_that_is_there_is_left_where_it_is_not_to_be_replaced(tmp_path: Path) -> None:
    files.write(tmp_path / "a", "first", replace=False)
    files.write(tmp_path / "a", "second", replace=False)
    assert (tmp_path / "a").read_text() == "first"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "act",
    [
        lambda d: files.write(d / "a", "text"),
        lambda d: files.publish(d / "made", d / "place"),
        lambda d: files.sync(d / "made"),
    ],
)
def test_a_full_disk_is_noticed_when_data_is_synced(
    act: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With delayed allocation the sync may be the first call that finds no space."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "x").write_text("x")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FullError, match="the disk is full"):
        act(tmp_path)
    assert names(tmp_path) == ["made"]


def test_a_file_system_that_cannot_sync_directories_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    files.write(tmp_path / "a", "text")
    files.sync(tmp_path)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(HostError, match="Input/output error"):
        files.write(tmp_path / "a", "other")
    assert (tmp_path / "a").read_text() == "text"


def test_nothing_else_in_the_lab_renames() -> None:
    """Programs for the guest use their own calls."""
    others = [
        f"{path.relative_to(LAB)}:{number}: {line.strip()}"
        for path in sorted(LAB.rglob("*.py"))
        if path != Path(files.__file__) and "guest_programs" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\.rename\(|os\.(rename|replace|link)\(|shutil\.move\(", line)
    ]
    # Both are moves into a directory that is then published as a whole.
    assert [line.partition(":")[0] for line in others] == ["host/guest/snapshots.py"], others
