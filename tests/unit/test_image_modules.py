"""Recipes with a base, the user's own kernel modules, and the user's own kernels."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.compile.image import build as image_build
from lab.compile.image import log as image_log
from lab.compile.image.build import compile_build
from lab.core.errors import InputError, ToolError
from lab.host.images import kernel as image_kernel
from lab.host.images import recipes as image_recipes
from lab.host.system import paths
from lab.model.image.recipe import ImageRecipe, recipe_digest
from lab.model.scenario.guest import Guest
from lab.run.preparation import systems

OWN = """\
description: of one's own
base: debian-12
kernel_package: linux-image-amd64
modules:
  source: linux-source
  options: {CONFIG_MD_LLBITMAP: y}
  patches: [mine.patch]
  build: [drivers/md]
packages: [nano]
files: {/etc/motd: hello, /etc/hostname: other}
script: |
  true
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(OWN, encoding="utf-8")
    (tmp_path / "mine.patch").write_text("--- a\n+++ b\n", encoding="utf-8")
    return path


def digest(recipe: ImageRecipe) -> str:
    return recipe_digest(recipe, image_recipes.brought(recipe))


def plan(recipe: ImageRecipe) -> image_build.ImageBuild:
    return compile_build(recipe, brought=image_recipes.brought(recipe), work=Path("/w"), root=True)


# --- a recipe over another ------------------------------------------------------------------


def test_a_recipe_adds_to_its_base(own: Path) -> None:
    base, recipe = image_recipes.load("debian-12")[1], image_recipes.read(own)
    assert recipe.packages == ("nano", *base.packages)
    assert recipe.files == {**base.files, "/etc/motd": "hello", "/etc/hostname": "other"}
    assert recipe.script == base.script + "true\n"
    assert recipe.masked_units == base.masked_units
    assert (recipe.suite, recipe.kernel_package) == ("bookworm", "linux-image-amd64")
    assert recipe.description != base.description


@pytest.mark.parametrize(
    "name", ["debian-13", "debian-sid", "debian-12-zfs", "debian-sid-lockless"]
)
def test_what_made_debian_12_fast_is_in_the_others(name: str) -> None:
    base, recipe = image_recipes.load("debian-12")[1], image_recipes.load(name)[1]
    assert set(base.files.items()) <= set(recipe.files.items())
    assert set(base.masked_units) <= set(recipe.masked_units)
    assert set(base.excluded_paths) <= set(recipe.excluded_paths)
    assert recipe.script.startswith(base.script)
    assert digest(recipe) != digest(base)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("base: debian-12", "base: debian-7", "own.yaml:2: base: there is no image 'debian-7'"),
        ("base: debian-12", "base: own", "own.yaml:2: base: 'own' is its own base"),
        ("[nano]", "[nano, Nano]", "own.yaml:9: packages[1]: "),
        ("source: linux-source", "source: zfs-dkms", "own.yaml:4: modules: DKMS builds 'zfs-dkms'"),
        ("  build: [drivers/md]\n", "", "own.yaml:4: modules.build: this key is missing"),
        ("[drivers/md]", "[../md]", "own.yaml:8: modules.build: '../md' is not"),
        ("BITMAP: y", "BITMAP: yes", "'CONFIG_MD_LLBITMAP' is 'yes': write y, m, n or a number"),
        ("CONFIG_MD", "MD", "'MD_LLBITMAP' is not a kernel option"),
        (
            "linux-image-amd64",
            "my-kernel",
            "modules need a Debian kernel",
        ),
    ],
)
def test_a_wrong_recipe_over_another_is_told_with_its_own_line(
    own: Path, old: str, new: str, says: str
) -> None:
    image_recipes.read(own)  # valid before the change
    own.write_text(OWN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        image_recipes.read(own)
    assert says in str(caught.value).replace(f"{own.parent}/", "")


# --- keys -----------------------------------------------------------------------------------


def test_the_digest_is_of_what_is_in_a_patch_and_not_of_where_it_lies(
    own: Path, tmp_path: Path
) -> None:
    first = digest(image_recipes.read(own))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(own, elsewhere)
    shutil.copy(tmp_path / "mine.patch", elsewhere)
    assert digest(image_recipes.read(elsewhere / "own.yaml")) == first
    (tmp_path / "mine.patch").write_text("--- a\n+++ c\n", encoding="utf-8")
    assert digest(image_recipes.read(own)) != first


def test_the_digest_is_of_the_options_and_of_what_is_built(own: Path) -> None:
    found = {digest(image_recipes.read(own))}
    for old, new in (("BITMAP: y", "BITMAP: n"), ("[drivers/md]", "[drivers/md/raid456.ko]")):
        own.write_text(OWN.replace(old, new), encoding="utf-8")
        found.add(digest(image_recipes.read(own)))
    assert len(found) == 3


def test_an_archive_that_is_accepted_makes_no_other_image() -> None:
    recipe = image_recipes.load("debian-sid")[1]
    accepted = recipe.model_copy(update={"check_valid_until": False})
    assert digest(accepted) == digest(recipe)


def test_a_patch_that_is_not_there_is_named(own: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.patch").unlink()
    with pytest.raises(InputError, match=r"the patch '.*/mine\.patch' cannot be read"):
        digest(image_recipes.read(own))


# --- commands -------------------------------------------------------------------------------


def test_modules_are_built_beside_the_image_with_the_headers_of_its_kernel(own: Path) -> None:
    found = plan(image_recipes.read(own))
    include = next(a for a in found.modules if a.startswith("--include="))
    assert include == "--include=linux-headers-amd64,linux-source,make,patch,xz-utils"
    assert found.modules[-1] == "/w/modules-root"
    assert found.remove_modules_root[-3:] == ("rm", "-rf", "/w/modules-root")
    words = next(a for a in found.bootstrap if a.startswith("--include=")).split(",")
    assert not {"linux-source", "linux-headers-amd64", "make"} & set(words)
    assert found.files["options"] == "CONFIG_MD_LLBITMAP=y\n"
    assert found.files["build"] == "drivers/md\n"
    assert found.files["patches/0001"] == "--- a\n+++ b\n"


def test_dkms_brings_its_own_tools() -> None:
    found = plan(image_recipes.load("debian-12-zfs")[1])
    assert "--include=linux-headers-cloud-amd64,zfs-dkms" in found.modules
    assert "--components=contrib,main" in found.modules
    assert "zfsutils-linux" in next(a for a in found.bootstrap if a.startswith("--include="))
    assert plan(image_recipes.load("debian-12")[1]).modules == ()


PATCH = "--- a/PATH\n+++ b/PATH\n@@ -1 +1 @@\n-old\n+new\n"
AUTO_CONF = "CONFIG_MD=y\nCONFIG_MD_LLBITMAP_TOO=y\n"
AUTOCONF_H = "#define CONFIG_MD 1\n#define CONFIG_MD_LLBITMAP_TOO 1\n"


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """A build tree with fakes of chroot, dpkg-query and make, and its work directory."""
    root, work, programs = tmp_path / "root", tmp_path / "work", tmp_path / "bin"
    headers = root / "usr/src/linux-headers-7.2"
    for directory in (headers / "include/config", headers / "include/generated", work, programs):
        directory.mkdir(parents=True)
    (headers / "include/config/auto.conf").write_text(AUTO_CONF)
    (headers / "include/generated/autoconf.h").write_text(AUTOCONF_H)
    (root / "usr/lib/modules/7.2").mkdir(parents=True)
    (root / "usr/lib/modules/7.2/build").symlink_to("/usr/src/linux-headers-7.2")
    source = tmp_path / "linux-source-7.2/drivers/md"
    source.mkdir(parents=True)
    (source / "md.c").write_text("old\n")
    tar = root / "usr/src/linux-source-7.2.tar.xz"
    subprocess.run(["tar", "-cJf", tar, "-C", tmp_path, "linux-source-7.2"], check=True)
    (programs / "chroot").write_text(
        "#!/bin/sh\nroot=$1\nshift\ncase $1 in\n"
        'readlink) echo "$3" ;;\n'
        'dpkg-query) cat "$root/version-of-$5" ;;\n'
        'patch) shift 3; exec patch -d "$root/build" "$@" ;;\n'
        "tar) source=$root$6; shift 6; "
        'exec tar -C "$root/build" --strip-components=1 -xf "$source" "$@" ;;\n'
        'make) for m in "$@"; do case $m in *.ko) cp "$root/build/drivers/md/md.c"'
        ' "$root/build/drivers/md/$m" ;; esac; done ;;\n'
        "esac\n"
    )
    (programs / "chroot").chmod(0o755)
    for package in ("linux-source-7.2", "linux-headers-7.2"):
        (root / f"version-of-{package}").write_text("7.2.1-1")
    for name, text in (
        ("source", "linux-source\n"),
        ("options", "CONFIG_MD_LLBITMAP=y\nCONFIG_MD=n\n"),
        ("build", "drivers/md/md-mod.ko\n"),
    ):
        (work / name).write_text(text)
    (work / "patches").mkdir()
    (work / "patches/0001").write_text(
        "--- a/drivers/md/md.c\n+++ b/drivers/md/md.c\n@@ -1 +1 @@\n-old\n+new\n"
    )
    return root, work


def modules_sh(tree: tuple[Path, Path]) -> subprocess.CompletedProcess[str]:
    script = image_recipes.directory() / "modules.sh"
    return subprocess.run(
        ["sh", str(script), *map(str, tree)],
        env={"PATH": f"{tree[0].parent}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_patches_sets_options_and_leaves_modules(tree: tuple[Path, Path]) -> None:
    done = modules_sh(tree)
    assert done.returncode == 0, done.stderr
    root, work = tree
    headers = root / "usr/src/linux-headers-7.2/include"
    assert (work / "modules/7.2/md-mod.ko").read_text() == "new\n"
    assert (headers / "config/auto.conf").read_text() == (
        "CONFIG_MD_LLBITMAP_TOO=y\nCONFIG_MD_LLBITMAP=y\n"
    )
    assert (headers / "generated/autoconf.h").read_text() == (
        "#define CONFIG_MD_LLBITMAP_TOO 1\n#define CONFIG_MD_LLBITMAP 1\n"
    )


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("root/version-of-linux-source-7.2", "7.2.2-1", "linux-source-7.2 is 7.2.2-1 and the"),
        (
            "work/patches/0001",
            "--- a/fs/x.c\n+++ b/fs/x.c\n@@ -1 +1 @@\n-a\n+b\n",
            "patch 0001 does",
        ),
        ("work/build", "drivers/md/raid0.ko\ndrivers/raid/x.ko\n", "drivers/raid"),
    ],
)
def test_the_script_stops_at_what_does_not_fit(
    tree: tuple[Path, Path], path: str, text: str, says: str
) -> None:
    (tree[0].parent / path).write_text(text)
    done = modules_sh(tree)
    assert done.returncode != 0
    assert says in done.stderr


def test_what_the_script_says_is_the_reason_of_the_failure() -> None:
    log = "I: running\nmodules: patch 0001 does not apply to drivers/md of linux-source-7.2\nE: x\n"
    reason = image_log.reason_of(log, suite="sid", name="mine")
    assert reason is not None
    assert reason.says == "patch 0001 does not apply to drivers/md of linux-source-7.2"
    assert reason.error is InputError


# --- what is recorded -----------------------------------------------------------------------

CONFIG = """\
CONFIG_MD=y
CONFIG_BLK_DEV_MD=m
CONFIG_MD_RAID456=m
CONFIG_MD_CLUSTER=m
# CONFIG_MD_LLBITMAP is not set
CONFIG_HZ=250
CONFIG_DEFAULT_HOSTNAME="(none)"
"""


def test_options_are_recorded_as_the_images_modules_see_them(own: Path) -> None:
    plain = image_build.recorded_options(image_recipes.load("debian-sid")[1], CONFIG)
    assert plain == {
        "CONFIG_BLK_DEV_MD": "m",
        "CONFIG_HZ": "250",
        "CONFIG_MD_CLUSTER": "m",
        "CONFIG_MD_RAID456": "m",
    }
    recipe = image_recipes.read(own)
    assert image_build.recorded_options(recipe, CONFIG) == plain | {"CONFIG_MD_LLBITMAP": "y"}
    own.write_text(OWN.replace("CONFIG_MD_LLBITMAP: y", "CONFIG_MD_CLUSTER: n"))
    less = image_build.recorded_options(image_recipes.read(own), CONFIG)
    assert less == {k: v for k, v in plain.items() if k != "CONFIG_MD_CLUSTER"}
    with pytest.raises(ToolError, match="configuration"):
        image_build.recorded_options(recipe, "")


# --- guest.kernel ---------------------------------------------------------------------------


def bzimage(release: str = "6.12.1-mine") -> bytes:
    data = bytearray(0x1000)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = (0x600).to_bytes(2, "little")
    text = f"{release} (me@here) #1 SMP".encode() + b"\0"
    data[0x800 : 0x800 + len(text)] = text
    return bytes(data)


def test_a_kernels_release_is_read_from_its_header() -> None:
    assert image_kernel.version_of(bzimage(), Path("x")) == "6.12.1-mine"
    with pytest.raises(InputError, match=r"'x' is not a bzImage"):
        image_kernel.version_of(b"\x7fELF" + bytes(0x1000), Path("x"))


@pytest.mark.parametrize("kernel", ["bzImage", "firefox-esr", "linux image"])
def test_a_kernel_is_a_package_or_a_file(kernel: str) -> None:
    with pytest.raises(ValueError, match="kernel"):
        Guest(kernel=kernel)


def test_a_guest_with_the_images_own_kernel_does_not_mention_it() -> None:
    assert "kernel" not in Guest().model_dump()
    assert Guest(kernel="./bzImage").model_dump()["kernel"] == "./bzImage"


def test_a_package_makes_an_image_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ImageRecipe]] = []

    def build(recipe: ImageRecipe, *, name: str, progress: Any) -> None:
        asked.append((name, recipe))

    monkeypatch.setattr(systems.image_build, "build", build)
    systems.build(Guest(kernel="linux-image-rt-amd64"), lambda _says, _part: None)
    ((name, recipe),) = asked
    assert name == "debian-12+linux-image-rt-amd64"
    assert "linux-image-rt-amd64" in ",".join(plan(recipe).bootstrap)
    assert "linux-image-cloud-amd64" not in ",".join(plan(recipe).bootstrap)
    assert digest(recipe) != digest(image_recipes.load("debian-12")[1])


def test_a_deb_makes_an_image_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(
        systems.images, "find", lambda name, recipe: found.append(f"{name} {digest(recipe)}")
    )
    deb = tmp_path / "linux-image-6.12.1-mine_1_amd64.deb"
    for content in (b"one", b"two"):
        deb.write_bytes(content)
        assert systems.find(Guest(kernel=str(deb))) is None
    names = {one.split()[0] for one in found}
    assert names == {"debian-12+linux-image-6.12.1-mine-1-amd64"}
    assert len(set(found)) == 2
    deb.unlink()
    with pytest.raises(InputError, match=r"the package '.*' cannot be read"):
        systems.find(Guest(kernel=str(deb)))


def test_a_kernel_of_ones_own_goes_with_no_modules_of_ones_own(tmp_path: Path) -> None:
    deb = tmp_path / "mine.deb"
    deb.write_bytes(b"deb")
    with pytest.raises(InputError, match=r"guest\.kernel: .*modules need the kernel's headers"):
        systems.find(Guest(image="debian-12-zfs", kernel=str(deb)))


def test_a_kernel_that_qemu_loads_is_kept_and_makes_another_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.test_image_store import plant

    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    disk = plant()
    image = disk.model_copy(update={"kernel": Path("/image/kernel")})
    kernel = tmp_path / "bzImage"
    kernel.write_bytes(bzimage())
    own = image_kernel.with_kernel(image, kernel)
    assert own.kernel is not None
    assert own.kernel.parent == paths.kernels()
    assert own.manifest.kernel_version == "6.12.1-mine"
    assert own.manifest.kernel_options is None
    assert own.digest != image.digest
    assert own.directory == image.directory  # which a running guest uses
    kernel.write_bytes(bzimage("6.12.2-mine"))
    assert image_kernel.with_kernel(image, kernel).digest != own.digest
    assert own.kernel.read_bytes() == bzimage()
    kernel.unlink()
    with pytest.raises(InputError, match=r"guest\.kernel: .* cannot be read"):
        image_kernel.with_kernel(image, kernel)
    with pytest.raises(InputError, match="has its own boot loader"):
        image_kernel.with_kernel(disk, kernel)


def test_replaced_is_not_what_was_built() -> None:
    """Negative control of the verification: Debian's module instead of the built one."""
    from tests.unit.test_image_recipe import found

    recipe = image_recipes.load("debian-sid-lockless")[1]
    complete = replace(
        found(),
        packages=dict.fromkeys((recipe.kernel_package, *recipe.packages), "1"),
        links=dict.fromkeys(recipe.masked_units, "/dev/null"),
        own_modules=("md-mod",),
        module_files=("/lib/modules/7.2/updates/md-mod.ko",),
    )
    assert image_build.differences(recipe, complete) == []
    (wrong,) = image_build.differences(recipe, replace(complete, own_modules=()))
    assert wrong == "no module of 'linux-source' is in it"
