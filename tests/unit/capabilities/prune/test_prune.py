"""Freeing disk space: what goes first, and what never goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.capabilities.prune import run as prune
from lab.capabilities.prune.model import Item, Pruning
from lab.cli.commands import app
from lab.core.errors import InputError
from lab.host.guest import registry
from lab.host.images import store as image_store
from lab.host.system import paths
from lab.host.system.pids import used_paths
from tests.fakes import stored_run
from tests.unit.test_image_store import plant

SIZE = 64 << 10
DAY = 86_400


def put(path: Path, days: int, *, size: int = SIZE) -> Path:
    """A file that was last used so many days before 2026."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    when = 1_767_225_600 - days * DAY
    os.utime(path, (when, when))
    os.utime(path.parent, (when, when))
    return path


@pytest.fixture
def home(lab_home: Path) -> Path:
    """A kernel, a kit and two snapshots, each 64 KiB, from old to new; and a run."""
    put(paths.kernels() / ("a" * 64), 40)
    put(paths.sealed() / f"base-{'b' * 64}", 30)
    (paths.sealed() / "image-1").write_text("b" * 64)
    put(paths.warm() / "0123456789abcdef" / "memory.save", 20)
    put(paths.sealed() / "snapshot-c0ffee" / "memory", 10)
    run = stored_run(paths.runs())
    for path in (run.directory, *run.directory.rglob("*")):
        os.utime(path, (1e9, 1e9))  # older than all else
    return lab_home


def removed(found: Pruning) -> list[str]:
    return [item.name for item in found.items if item.remove]


def stays(found: Pruning, name: str) -> str:
    (one,) = [item for item in found.items if item.name == name]
    assert not one.remove
    return one.why


def quietly(_item: Item) -> None:
    return


def test_the_least_recently_used_goes_first_and_no_more_than_needed(home: Path) -> None:
    total = prune.plan(0, with_runs=False).before
    found = prune.plan(total - SIZE - 1, with_runs=False)
    assert removed(found) == ["a" * 64, f"base-{'b' * 64}"]
    assert (found.before - found.after, found.done) == (2 * SIZE, False)
    assert (paths.kernels() / ("a" * 64)).exists()
    assert removed(prune.plan(total, with_runs=False)) == []


def test_runs_go_last_and_only_if_asked_for(home: Path) -> None:
    (run,) = (path.name for path in paths.runs().iterdir())
    without = prune.plan(0, with_runs=False)
    assert "--results" in stays(without, run)
    assert removed(prune.plan(0, with_runs=True)) == [*removed(without), run]


def test_what_is_planned_is_removed_and_a_second_time_there_is_nothing(home: Path) -> None:
    heard: list[str] = []
    done = prune.carry_out(prune.plan(0, with_runs=True), lambda item: heard.append(item.name))
    assert heard == removed(done)
    assert (done.done, done.after) == (True, 0)
    for place in (paths.kernels(), paths.sealed(), paths.warm(), paths.runs()):
        assert list(place.iterdir()) == []  # no pointer to a base, nothing set aside
    again = prune.plan(0, with_runs=True)
    assert (removed(again), again.before) == ([], 0)


def test_a_file_that_a_process_uses_stays(home: Path) -> None:
    base = paths.sealed() / f"base-{'b' * 64}"
    memory = paths.sealed() / "snapshot-c0ffee" / "memory"
    reader = "import sys; kept = open(sys.argv[2]); print('up', flush=True); input()"
    command = [sys.executable, "-c", reader, f"file={base},format=raw", str(memory)]
    before = prune.plan(0, with_runs=False)
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert used_paths(paths.sealed()) == {base, memory}
        found = prune.plan(0, with_runs=False)
        assert stays(found, base.name) == stays(found, "snapshot-c0ffee") == "a process uses it"
        late = prune.carry_out(before, quietly)  # it came into use after the plan
        assert stays(late, base.name) == "a process uses it"
        process.communicate("\n")
    assert base.exists()
    assert memory.exists()
    assert removed(prune.plan(0, with_runs=False)) == [base.name, "snapshot-c0ffee"]


def test_what_a_guest_needs_stays(home: Path) -> None:
    registry.create(guest="g1", scenario="q", image="x-1", host_key="", warm="0123456789abcdef")
    found = prune.plan(0, with_runs=False)
    assert stays(found, "0123456789abcdef") == "a guest uses it"


def test_while_a_run_is_being_made_nothing_that_it_may_need_goes(home: Path) -> None:
    (run,) = paths.runs().iterdir()
    code = (
        "import sys; from pathlib import Path; from lab.host.system import makers\n"
        "with makers.hold(Path(sys.argv[1])): print('up', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert removed(prune.plan(0, with_runs=True)) == []
        process.communicate("\n")
    assert len(removed(prune.plan(0, with_runs=True))) == 5


def test_the_newest_build_of_each_image_stays(home: Path) -> None:
    old, new, other = (
        plant(name, content=name.encode() + bytes([day]), day=day).directory
        for name, day in (("debian-12", 1), ("debian-12", 2), ("debian-13", 1))
    )
    found = prune.plan(0, with_runs=False)
    assert old.name in removed(found)
    for one in (new, other):
        assert stays(found, one.name) == "it is the newest of its name"
    prune.carry_out(found, quietly)
    kept = {i.directory.name for i in image_store.list_images().images}
    assert kept == {new.name, other.name}


def test_a_link_is_neither_counted_nor_removed(home: Path, tmp_path: Path) -> None:
    mine = put(tmp_path / "precious", 400)
    (paths.kernels() / "link").symlink_to(mine)
    (paths.sealed() / "base-aa").symlink_to(tmp_path)
    prune.carry_out(prune.plan(0, with_runs=False), quietly)
    assert mine.exists()
    assert (paths.kernels() / "link").is_symlink()


def test_the_command_plans_and_removes_with_yes_only(home: Path) -> None:
    def call(*words: str) -> str:
        done = CliRunner().invoke(app, ["clean", "--keep", "1KiB", *words])
        assert done.exception is None, done.exception
        return done.stdout

    assert "lab clean --keep 1KiB --yes" in call()
    document = json.loads(call("--json", "--plan"))
    assert (document["schema"], document["done"]) == ("lab.prune/1", False)
    assert {item["kind"] for item in document["items"]} == {"kernel", "kit", "snapshot", "run"}
    assert (paths.kernels() / ("a" * 64)).exists()
    assert "removed kit base-" in call("--yes")
    assert "nothing to remove" in call("--yes")
    older = CliRunner().invoke(app, ["prune", "--keep", "1KiB"])
    assert older.stdout == call()


def test_without_a_size_leftovers_go_and_nothing_else(home: Path) -> None:
    left = paths.images() / ".debian-12.4999999.1.0123456789abcdef.part"
    left.mkdir(parents=True)

    def call(*words: str) -> str:
        done = CliRunner().invoke(app, ["clean", *words])
        assert done.exception is None, done.exception
        return done.stdout

    before = call("--plan")
    assert before.startswith("Would be removed: ")
    assert left.exists()
    assert left.name in before
    assert left.name in call()
    assert not left.exists()
    assert (paths.kernels() / ("a" * 64)).exists()
    assert json.loads(call("--json", "--old-builds"))["removed"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--keep", "much"],
        ["--keep", "1GB", "--yes", "--plan"],
        ["--keep", "1GB", "--old-builds"],
        ["--old-builds", "--plan"],
        ["--yes"],
        ["--results"],
    ],
)
def test_wrong_options_are_refused(home: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["clean", *words])
    assert isinstance(done.exception, InputError) or done.exit_code == 2
    assert (paths.kernels() / ("a" * 64)).exists()
