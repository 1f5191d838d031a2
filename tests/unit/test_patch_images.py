"""Both sides of a comparison are one image with other files: equal files make equal disks."""

from __future__ import annotations

import fcntl
import lzma
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.compile.image.series import Target, build_tree
from lab.core.errors import HostError, InputError, ToolError
from lab.host import images
from lab.host.images import buildtree, sandbox, virtual_time
from lab.host.images import recipes as image_recipes
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.images.kernel import with_kernel
from lab.host.system import paths
from lab.model.image.manifest import Image, ImageBoot, ImageFile, ImageManifest, ImageSource

KERNEL = "6.1.0-1-cloud-amd64"
MODULES = f"usr/lib/modules/{KERNEL}/kernel/drivers/md"
TOOLS = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


@pytest.fixture(autouse=True)
def _home(lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_workspace, "check_space", lambda *_: None)


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, env=TOOLS, cwd=cwd, timeout=60
    )
    return done.stdout


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """A small image with a packed and an unpacked module, and mdadm."""
    root = tmp_path / "root"
    for path, data in {
        f"{MODULES}/raid1.ko": b"old raid1",
        f"{MODULES}/raid456.ko.xz": lzma.compress(b"old raid456"),
        "usr/sbin/mdadm": b"old mdadm",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    raw = tmp_path / "disk.raw"
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, raw, "8M")
    with image_workspace.workspace("small") as work:
        made = work / "image"
        made.mkdir()
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, made / "disk.qcow2")
        for name in ("kernel", "initrd"):
            (made / name).write_bytes(name.encode())
        facts = {
            file.name: ImageFile(size=file.stat().st_size, sha256=image_store.file_sha256(file))
            for file in made.iterdir()
        }
        manifest = ImageManifest(
            name="debian-12",
            digest="1" * 64,
            recipe_digest="2" * 64,
            built=datetime(2026, 1, 1, tzinfo=UTC),
            source=ImageSource.BUILT,
            boot=ImageBoot.KERNEL,
            files=facts,
            packages={f"linux-image-{KERNEL}": "6.1.9-1"},
            kernel_version=KERNEL,
            mdadm_version="4.2-5",
        )
        return image_store.publish(made, manifest)


def silent(_what: str, _share: float | None) -> None:
    pass


def content(image: Image, path: str, tmp_path: Path) -> bytes:
    run("qemu-img", "convert", "-O", "raw", image.disk, tmp_path / "look.raw")
    run("debugfs", "-R", f"dump {path} {tmp_path / 'look'}", tmp_path / "look.raw")
    return (tmp_path / "look").read_bytes()


BUILT = {"raid1.ko": b"new raid1" * 2000, "raid456.ko": b"new raid456" * 2000, "linear.ko": b"x"}


def test_modules_are_replaced_where_the_image_has_them(image: Image, tmp_path: Path) -> None:
    made = buildtree.with_built(image, Target.MD, BUILT, silent)
    assert content(made, f"/{MODULES}/raid1.ko", tmp_path) == BUILT["raid1.ko"]
    packed = content(made, f"/{MODULES}/raid456.ko.xz", tmp_path)
    assert lzma.decompress(packed) == BUILT["raid456.ko"]
    assert content(made, "/usr/sbin/mdadm", tmp_path) == b"old mdadm"
    assert images.find(made.name) == made  # as guest.image names it
    assert made.name.partition("+")[0] == "debian-12"
    assert made.manifest.kernel_version == KERNEL
    assert content(image, f"/{MODULES}/raid1.ko", tmp_path) == b"old raid1"
    run("e2fsck", "-fn", tmp_path / "look.raw")


def test_mdadm_is_replaced_and_can_be_run(image: Image, tmp_path: Path) -> None:
    made = buildtree.with_built(image, Target.MDADM, {"mdadm": b"new", "mdmon": b"new"}, silent)
    assert content(made, "/usr/sbin/mdadm", tmp_path) == b"new"
    run("qemu-img", "convert", "-O", "raw", made.disk, tmp_path / "look.raw")
    told = run("debugfs", "-R", "stat /usr/sbin/mdadm", tmp_path / "look.raw")
    assert "0755" in told
    assert "User:     0" in told


def test_equal_files_make_equal_disks(image: Image) -> None:
    first = buildtree.with_built(image, Target.MD, BUILT, silent)
    assert buildtree.with_built(image, Target.MD, BUILT, silent) == first
    images.remove(first.name)
    again = buildtree.with_built(image, Target.MD, BUILT, silent)
    other = buildtree.with_built(image, Target.MD, {**BUILT, "raid1.ko": b"other"}, silent)
    assert again.manifest.files == first.manifest.files
    assert other.manifest.files["disk.qcow2"] != first.manifest.files["disk.qcow2"]
    assert other.name != first.name


def test_an_image_without_these_files_is_bad_input_and_nothing_is_left(image: Image) -> None:
    before = sorted(paths.images().iterdir())
    with pytest.raises(InputError, match=r"none of other\.ko"):
        buildtree.with_built(image, Target.MD, {"other.ko": b"x"}, silent)
    assert sorted(paths.images().iterdir()) == before


def tree_of(image: Image) -> Path:
    """Make a build tree whose programs are this host's; it has no headers."""
    recipe = image_recipes.load("debian-12")[1]
    plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
    place = paths.images() / f".tree-{plan.key}"
    place.mkdir(parents=True)
    (place / "root").symlink_to("/")
    return place


def test_a_tree_is_kept_listed_nowhere_and_pruned_when_it_is_not_held(image: Image) -> None:
    place = tree_of(image)
    recipe = image_recipes.load("debian-12")[1]
    plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
    with buildtree.held(plan, image.name, silent) as tree:
        assert tree.directory == place
        assert images.list_images().skipped == ()
        assert images.prune().names == ()
        assert place.is_dir()
    assert images.prune().names == (place.name,)
    assert not place.exists()


def test_a_held_tree_can_be_held_twice(image: Image) -> None:
    place = tree_of(image)
    (place / "lock").touch()
    with (place / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        recipe = image_recipes.load("debian-12")[1]
        plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
        with buildtree.held(plan, image.name, silent):
            pass


def test_a_source_that_does_not_compile_is_told_and_not_kept(image: Image, tmp_path: Path) -> None:
    """Without the series it is not the user's fault."""
    place = tree_of(image)
    (tmp_path / "empty").mkdir()
    run("tar", "-C", tmp_path / "empty", "-cf", place / "source.tar", ".")
    recipe = image_recipes.load("debian-12")[1]
    plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
    with buildtree.held(plan, image.name, silent) as tree:
        with pytest.raises(InputError, match="compile"):
            buildtree.compiled(tree, tmp_path / "empty", tmp_path)
        (tmp_path / "again").mkdir()
        with pytest.raises(HostError, match="compile"):
            buildtree.unpatched(tree, tmp_path / "again")
    assert not list(place.glob("built-*"))


def test_a_full_disk_is_not_the_source_s_fault(
    image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a bisection would skip every patch of a full host."""

    def full(_box: object, _words: object, *, log: Path, **_: object) -> None:
        log.write_text("raid5.c:9: fatal error: error closing /tmp/c.s: No space left on device\n")
        raise ToolError("sh ended with status 2")

    tree_of(image)
    source = tmp_path / "source"
    source.mkdir()
    recipe = image_recipes.load("debian-12")[1]
    plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
    with buildtree.held(plan, image.name, silent) as tree:
        monkeypatch.setattr(sandbox, "run", full)
        with pytest.raises(HostError, match="is full"):
            buildtree.compiled(tree, source, tmp_path)


def test_a_module_that_needs_others_is_refused() -> None:
    base = {"raid1.ko": b"\0depends=md-mod\0"}
    buildtree.check_depends(base, base)
    with pytest.raises(InputError, match="crc32"):
        buildtree.check_depends(base, {"raid1.ko": b"\0depends=crc32,md-mod\0"})


def test_an_archive_without_the_version_is_bad_input(
    image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = image_recipes.load("debian-12")[1]
    plan = build_tree(Target.MD, recipe, image.manifest, buildtree.hook())
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/mmdebstrap"
    program.write_text("#!/bin/sh\necho 'E: Unable to locate package linux-headers-x'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    before = sorted(paths.images().iterdir())
    with (
        pytest.raises(InputError, match=KERNEL),
        buildtree.held(plan, image.name, silent),
    ):
        pass
    assert sorted(paths.images().iterdir()) == before


def test_a_kernel_with_its_driver_needs_no_headers(image: Image, tmp_path: Path) -> None:
    data = bytearray(0x800)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = (0x100).to_bytes(2, "little")
    data[0x300:0x30A] = b"6.1.1-lab\0"
    places = set()
    for number in range(2):
        kernel = tmp_path / f"bzImage-{number}"
        kernel.write_bytes(bytes(data) + bytes([number]))
        loaded = with_kernel(image, kernel)
        assert loaded.kernel is not None
        assert loaded.manifest.kernel_version == "6.1.1-lab"
        work = tmp_path / f"work-{number}"
        work.mkdir()
        with pytest.raises(InputError, match="virtual time needs the kernel's headers"):
            virtual_time._build(loaded, work)
        own = virtual_time.own_driver(loaded.kernel)
        own.mkdir()
        (own / "lab_disk.ko").write_text(f"driver {number}")
        assert virtual_time._driver(loaded, silent) == own
        places.add(virtual_time.boot_place(loaded))
    assert len(places) == 2  # both call themselves 6.1.1-lab
