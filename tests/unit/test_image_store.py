"""The images directory: partial images are invisible, foreign entries are not touched."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lab.core.errors import HostError, InputError
from lab.host import images
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.system import makers, paths
from lab.model.image.manifest import Image, ImageBoot, ImageFile, ImageManifest, ImageSource
from lab.model.image.recipe import ImageRecipe, recipe_digest
from lab.run.preparation.images import in_use, remove_named
from tests.fakes import stored_run

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
RECIPE = ImageRecipe(
    description="for tests",
    suite="bookworm",
    kernel_package="linux-image-cloud-amd64",
    packages=("systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    return paths.images()


def plant(
    name: str = "mine", *, content: bytes = b"disk", day: int = 0, recipe: str | None = None
) -> Image:
    """Return an image made like the builder's."""
    with image_workspace.workspace(name) as work:
        made = work / "image"
        made.mkdir()
        disk = made / "disk.qcow2"
        disk.write_bytes(content)
        digest = image_store.file_sha256(disk)
        manifest = ImageManifest(
            name=name,
            digest=digest,
            recipe_digest=recipe,
            built=BEGAN + timedelta(days=day),
            source=ImageSource.BUILT if recipe else ImageSource.IMPORTED,
            boot=ImageBoot.DISK,
            files={"disk.qcow2": ImageFile(size=len(content), sha256=digest)},
        )
        return image_store.publish(made, manifest)


def damage(image: Image, content: bytes) -> None:
    image.disk.unlink()
    image.disk.write_bytes(content)


def test_an_image_is_listed_and_found_and_nothing_else_is_left(home: Path) -> None:
    assert images.list_images() == images.Inventory(images=(), skipped=())
    image = plant()
    assert images.list_images() == images.Inventory(images=(image,), skipped=())
    assert images.find("mine") == image
    assert images.find("other") is None
    assert [p.name for p in home.iterdir()] == [f"mine-{image.digest[:12]}"]
    images.verify(image, deep=True)


def test_the_inventory_is_json() -> None:
    from lab.run.preparation.images import inventory

    plant()
    rows, _ = inventory()
    assert json.loads(json.dumps(rows))[0]["built"] == "2024-01-01T00:00:00+00:00"


def test_a_changed_recipe_is_not_served_an_old_image() -> None:
    from lab.host.images import recipes as image_recipes

    digest = recipe_digest(RECIPE, image_recipes.brought(RECIPE))
    image = plant(recipe=digest)
    assert images.find("mine", RECIPE) == image
    assert images.find("mine", RECIPE.model_copy(update={"suite": "trixie"})) is None
    assert images.find("yours", RECIPE) is None


def test_the_newest_of_a_name_is_found() -> None:
    plant(content=b"old", day=1)
    new = plant(content=b"new", day=3)
    plant(content=b"middle", day=2)
    assert images.find("mine") == new


def test_foreign_and_truncated_directories_are_named_and_skipped(home: Path) -> None:
    good = plant()
    truncated = plant("truncated", content=b"another")
    truncated.disk.unlink()
    (home / "stray.txt").write_text("x")
    (home / "empty").mkdir()
    (home / "noise").mkdir()
    (home / "noise" / "manifest.json").write_bytes(b"\xff\x00{")
    (home / "alien").mkdir()
    (home / "alien" / "manifest.json").write_text('{"format": 2}')
    (home / "moved").mkdir()
    (home / "moved" / "manifest.json").write_bytes((good.directory / "manifest.json").read_bytes())
    climbing = json.loads((good.directory / "manifest.json").read_text())
    climbing["files"]["../../secret"] = climbing["files"]["disk.qcow2"]
    (home / "climbing").mkdir()
    (home / "climbing" / "manifest.json").write_text(json.dumps(climbing))
    (home / "link").symlink_to(good.directory)

    listed = images.list_images()
    assert listed.images == (good,)
    reasons = {s.name: s.reason for s in listed.skipped}
    assert set(reasons) == {
        *("stray.txt", "empty", "noise", "alien", "moved", "climbing", "link"),
        truncated.directory.name,
    }
    assert "'disk.qcow2' is missing" in reasons[truncated.directory.name]
    assert "no 'manifest.json'" in reasons["empty"]
    assert "another image" in reasons["moved"]
    assert "not a directory" in reasons["link"]

    before = sorted(p.name for p in home.rglob("*"))
    pruned = images.prune()
    assert pruned.names == ()
    assert {s.name for s in pruned.skipped} == set(reasons)
    assert sorted(p.name for p in home.rglob("*")) == before


def test_a_truncated_image_is_told_by_its_size_and_a_changed_one_by_its_hash() -> None:
    image = plant(content=b"1234567890", recipe="0" * 64)
    images.verify(image)
    damage(image, b"12345")
    with pytest.raises(HostError, match=r"'mine' is corrupt.* 5 bytes, expected 10") as caught:
        images.verify(image)
    assert "lab image build mine" in caught.value.hint
    damage(image, b"123456789!")
    images.verify(image)
    with pytest.raises(HostError, match=r"disk\.qcow2' have changed"):
        images.verify(image, deep=True)
    image.disk.unlink()
    with pytest.raises(HostError, match="cannot be read"):
        images.verify(image)


def test_a_whole_image_of_the_same_digest_is_kept_and_a_damaged_one_replaced() -> None:
    first = plant(content=b"12345")
    inode = first.disk.stat().st_ino
    assert plant(content=b"12345").disk.stat().st_ino == inode
    damage(first, b"123")
    images.verify(plant(content=b"12345"), deep=True)


def test_remove_takes_a_name_a_directory_or_the_start_of_a_digest(home: Path) -> None:
    one, two = plant("one", content=b"1" * 9000), plant("two", content=b"2")
    three, four = plant("three", content=b"3"), plant("three", content=b"4")
    removed = images.remove("one")
    assert removed.names == (one.directory.name,)
    assert removed.bytes_freed >= 9000
    assert images.remove(two.digest[:8]).names == (two.directory.name,)
    assert images.remove(three.directory.name).names == (three.directory.name,)
    assert images.remove("three").names == (four.directory.name,)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../victim", "", ".", "/", "*", "mine/../../victim"])
def test_remove_reaches_nothing_outside(home: Path, name: str) -> None:
    plant()
    victim = home.parent / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    with pytest.raises(InputError, match=r"there is no image .*known: mine"):
        images.remove(name)
    assert (victim / "file").exists()
    assert len(images.list_images().images) == 1


def test_an_image_in_use_is_not_removed() -> None:
    image = plant()
    with pytest.raises(InputError, match="in use by a guest"):
        images.remove("mine", in_use={image.digest})
    assert images.find("mine") == image


def test_prune_keeps_the_newest_of_each_name_and_what_is_in_use() -> None:
    old = plant(content=b"old", day=1)
    older = plant(content=b"older", day=0)
    new = plant(content=b"new", day=2)
    other = plant("other", content=b"other", day=0)
    pruned = images.prune(in_use={older.digest})
    assert pruned.names == (old.directory.name,)
    assert pruned.bytes_freed > 0
    assert images.list_images().images == (new, older, other)
    assert set(images.prune(keep=0).names) == {i.directory.name for i in (new, older, other)}


def test_prune_follows_no_link_out_of_a_leftover(home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    home.mkdir(parents=True)
    dead = home / ".work-dead.4194305.7.0123456789abcdef.part"
    dead.mkdir()
    (dead / "link").symlink_to(victim)
    assert images.prune().names == (dead.name,)
    assert (victim / "file").exists()


# --- dead and running builders ------------------------------------------------------------------

BUILDER = """
import select, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from lab.host.images import workspace as image_workspace
with image_workspace.exclusive("t", waiting=lambda: print("waiting", flush=True)):
    with image_workspace.workspace("t") as work:
        (work / "half").mkdir()
        (work / "half" / "disk").write_text("x" * 10000)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:  # a signal just before is seen then
            pass
"""


@contextmanager
def builder() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)
    assert ready, "the builder said nothing"
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(home: Path, number: signal.Signals) -> None:
    with builder() as process:
        assert says(process) == "ready"
        assert len(list(home.iterdir())) == 2
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
    assert list(home.iterdir()) == []


def test_a_second_builder_waits_for_the_first(home: Path) -> None:
    with builder() as first, builder() as second:
        answers = {says(first), says(second)}
        assert answers == {"ready", "waiting"}
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert first.wait(timeout=30) == 0
        assert second.wait(timeout=30) == 0
    assert list(home.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_nothing_is_left(home: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sentence = "'mine' could not be made: the disk of"
    with pytest.raises(HostError, match=sentence), image_workspace.workspace("mine"):
        raise full
    assert list(home.iterdir()) == []
    with pytest.raises(PermissionError), image_workspace.workspace("mine"):
        raise PermissionError  # must not count as a full disk
    assert list(home.iterdir()) == []


def test_too_little_space_is_told_before_anything_is_started() -> None:
    with pytest.raises(HostError, match=r"'mine' needs .* GB in "):
        image_workspace.check_space("mine", 10**18)
    image_workspace.check_space("mine", 0)


@pytest.mark.parametrize("name", ["", "Mine", "../x", "a/b", ".work-x", "a b"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(InputError, match="cannot be an image's name"):
        image_store.check_name(name)
    image_store.check_name("debian-12")


def test_the_image_of_a_run_under_way_is_in_use() -> None:
    """A sealed cell has no QEMU while it is prepared, and a run none between two guests."""
    run = stored_run(paths.runs())
    (cell, *_) = run.load_run().cells
    image = plant(cell.cell.guest.image)
    other = plant(content=b"other")
    assert in_use() == set()
    with makers.hold(run.directory):
        assert in_use() == {image.digest}
        with pytest.raises(InputError, match="in use by a guest or a run"):
            remove_named(image.name)
        remove_named(other.name)
    remove_named(image.name)
