"""Image recipes: allowed keys, compiled commands, and verification of the result."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.compile.image import build as image_build
from lab.compile.image import log as image_log
from lab.compile.image.build import Found, compile_build
from lab.compile.image.series import TREE
from lab.core.errors import HostError, InputError, ToolError
from lab.host.images import build as host_build
from lab.host.images import recipes as image_recipes
from lab.host.images.build import has_subordinates
from lab.model.image.recipe import (
    MDADM_CONF,
    Brought,
    BroughtPackage,
    ImageRecipe,
    recipe_digest,
)

HOOK = "#!/bin/sh\n"
HOOKS = Brought(hooks={"customize.sh": HOOK, "modules.sh": HOOK})


def debian() -> ImageRecipe:
    return image_recipes.load("debian-12")[1]


def changed(**fields: Any) -> ImageRecipe:
    return ImageRecipe.model_validate(debian().model_dump() | fields)


def bootstrap(recipe: ImageRecipe, *, root: bool = True) -> tuple[str, ...]:
    return compile_build(recipe, brought=HOOKS, work=Path("/w"), root=root).bootstrap


def test_every_recipe_in_images_is_valid_and_holds_what_measures() -> None:
    names = list(image_recipes.recipes())
    assert "debian-12" in names
    for name in names:
        recipe = image_recipes.load(name)[1]
        assert {"mdadm", "fio", "xfsprogs", "e2fsprogs", "lvm2", "sudo"} <= set(recipe.packages)


def test_another_release_is_a_copy_with_another_suite_and_kernel(tmp_path: Path) -> None:
    text = (image_recipes.directory() / "debian-12.yaml").read_text(encoding="utf-8")
    text = text.replace("suite: bookworm", "suite: trixie")
    text = text.replace("linux-image-cloud-amd64", "linux-image-amd64")
    (tmp_path / "debian-13.yaml").write_text(text, encoding="utf-8")
    name, recipe = image_recipes.load(str(tmp_path / "debian-13.yaml"))
    argv = bootstrap(recipe)
    assert name == "debian-13"
    assert "trixie" in argv
    assert "bookworm" not in " ".join(argv)
    assert any(a.startswith("--include=linux-image-amd64,") for a in argv)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("suite: bookworm", "suite: Bookworm", "suite: "),
        ("variant: minbase", "variant: tiny", "variant: "),
        ("disk_size: 3GiB", "disk_size: 3G", "unknown unit 'G'"),
        ("disk_size: 3GiB", "disk_size: 1MiB", "at least 1GiB"),
        ("  - fio\n", "  - Fio\n", "packages["),
        ("  - fio\n", "  - mdadm\n", "'mdadm' is listed twice"),
        ("  - cloud-init\n", "", "a guest needs the package 'cloud-init' too"),
        ("masked_units:", "masked_unit:", "did you mean 'masked_units'?"),
        ("  - fstrim.timer\n", "  - fstrim\n", "masked_units["),
        ("    AUTO -all\n", "    AUTO +all\n", "'AUTO -all'"),
        ("  /etc/hostname:", "  /etc/../hostname:", "'/etc/../hostname' is not an absolute path"),
        ("  /etc/hostname:", "  etc/hostname:", "'etc/hostname' is not an absolute path"),
        ("suite: bookworm", "suite: [", "this is not YAML"),
    ],
)
def test_a_wrong_recipe_is_told_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = (image_recipes.directory() / "debian-12.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    image_recipes.read(path)  # valid before the change
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        image_recipes.read(path)
    assert str(caught.value).startswith(f"{path}:")
    assert expected in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no image 'debian-7' .*debian-12"):
        image_recipes.load("debian-7")


def test_the_digest_is_of_what_decides_the_image() -> None:
    digest = recipe_digest(debian(), HOOKS)
    assert recipe_digest(debian(), HOOKS) == digest
    assert recipe_digest(changed(description="another"), HOOKS) == digest
    reordered = dict(reversed(debian().files.items()))
    assert recipe_digest(changed(files=reordered), HOOKS) == digest
    others = [
        recipe_digest(changed(suite="trixie"), HOOKS),
        recipe_digest(changed(disk_size="4GiB"), HOOKS),
        recipe_digest(changed(script="true\n"), HOOKS),
        recipe_digest(changed(masked_units=()), HOOKS),
        recipe_digest(changed(files={**debian().files, "/etc/motd": "hello\n"}), HOOKS),
        recipe_digest(debian(), Brought(hooks={**HOOKS.hooks, "modules.sh": "true\n"})),
    ]
    assert len({digest, *others}) == 1 + len(others)


def test_an_expired_archive_is_accepted_only_when_asked_for() -> None:
    assert not any("Check-Valid-Until" in a for a in bootstrap(debian()))
    argv = bootstrap(changed(check_valid_until=False))
    assert '--aptopt=Acquire::Check-Valid-Until "false"' in argv


def test_only_a_user_needs_subordinate_users() -> None:
    assert "--map-auto" not in bootstrap(debian(), root=True)
    assert "--map-auto" in bootstrap(debian(), root=False)
    for root in (True, False):
        assert bootstrap(debian(), root=root)[:4] == ("setpriv", "--pdeathsig", "KILL", "unshare")


def test_no_command_names_an_archive() -> None:
    plan = compile_build(debian(), brought=HOOKS, work=Path("/w"))
    everything = (*plan.bootstrap, *plan.make_disk, *plan.convert)
    assert not any("://" in word for word in everything)


def test_the_hook_survives_a_directory_with_blanks_and_quotes(tmp_path: Path) -> None:
    work = tmp_path / "a b'c$d"
    work.mkdir()
    (work / "buildtree.sh").write_text('printf "%s\\n" "$@"\n', encoding="utf-8")
    # As mmdebstrap runs it.
    done = subprocess.run(
        ["sh", "-c", image_build.hook_of(TREE, work), "exec", "/the root"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["/the root", str(work)]


def test_the_files_of_the_recipe_are_written_where_the_hook_looks() -> None:
    plan = compile_build(debian(), brought=HOOKS, work=Path("/w"))
    assert plan.files[f"files{MDADM_CONF}"].startswith("AUTO -all\n")
    assert plan.files["enabled"] == "systemd-networkd.service\n"
    assert "fstrim.timer" in plan.files["masked"].splitlines()
    assert plan.files["customize.sh"] == HOOK


def test_the_hooks_are_shell_scripts() -> None:
    for name, text in image_recipes.brought(debian()).hooks.items():
        path = image_recipes.directory() / name
        assert path.read_text(encoding="utf-8") == text
        subprocess.run(["sh", "-n", str(path)], check=True)


# --- the read-back --------------------------------------------------------------------------


def found() -> Found:
    recipe = debian()
    return Found(
        packages=dict.fromkeys((recipe.kernel_package, *recipe.packages), "1.0"),
        kernel_version="6.1.0-56-cloud-amd64",
        kernel_config="CONFIG_MD_RAID456=m\n",
        own_modules=(),
        module_files=(),
        initrd=frozenset({"usr/lib/modules/6.1.0-56-cloud-amd64/kernel/fs/ext4/ext4.ko"}),
        files={**recipe.files, "/etc/machine-id": ""},
        links=dict.fromkeys(recipe.masked_units, "/dev/null"),
        ssh_host_keys=(),
        releases=(),
    )


def test_an_image_as_asked_for_passes() -> None:
    assert image_build.differences(debian(), found()) == []


def _without(values: Any, key: str) -> dict[str, str]:
    return {k: v for k, v in values.items() if k != key}


def test_only_linux_base_may_be_newer_than_the_given_file() -> None:
    packages = {**found().packages, "linux-base": "4.12.1", "mdadm": "4.4-1"}
    image = replace(found(), packages=packages)

    def wrong(name: str, version: str) -> list[str]:
        given = BroughtPackage(name=name, version=version, sha256="0" * 64)
        return image_build.differences(debian(), image, (given,))

    assert wrong("linux-base", "4.12.1~deb12u1") == []
    assert len(wrong("linux-base", "4.13")) == len(wrong("mdadm", "4.3-1")) == 1


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (replace(found(), packages=_without(found().packages, "fio")), "'fio' is not installed"),
        (replace(found(), files=_without(found().files, "/etc/fstab")), "'/etc/fstab' is missing"),
        (
            replace(found(), files={**found().files, "/etc/fstab": "\n"}),
            "'/etc/fstab' has another content",
        ),
        (
            replace(found(), links=_without(found().links, "fstrim.timer")),
            "'fstrim.timer' is not masked",
        ),
        (
            replace(found(), links={**found().links, "fstrim.timer": "/lib/x"}),
            "'fstrim.timer' is not masked",
        ),
        (replace(found(), ssh_host_keys=("ssh_host_rsa_key",)), "'ssh_host_rsa_key'"),
        (
            replace(found(), files={**found().files, "/etc/machine-id": "0123\n"}),
            "'/etc/machine-id' is not empty",
        ),
        (replace(found(), kernel_version=""), "no kernel"),
        (replace(found(), initrd=frozenset()), "the initrd has no kernel modules"),
        (
            replace(found(), initrd=found().initrd | {"usr/sbin/mdadm"}),
            "the initrd holds mdadm",
        ),
        (
            replace(found(), packages={**found().packages, "gcc-12": "12.2"}),
            "the compiler 'gcc-12' has stayed in it",
        ),
        (
            replace(found(), module_files=("/lib/modules/6.1/kernel/drivers/md/md-mod.ko",)),
            "would be loaded, and not the module that was built",
        ),
    ],
)
def test_each_planted_difference_is_found(planted: Found, expected: str) -> None:
    (wrong,) = image_build.differences(debian(), planted)
    assert expected in wrong


def test_mdadm_conf_must_forbid_assembly_in_the_image_itself() -> None:
    planted = replace(found(), files={**found().files, MDADM_CONF: "# AUTO -all\n"})
    assert f"'{MDADM_CONF}' does not say 'AUTO -all'" in image_build.differences(debian(), planted)


def test_packages_are_read_and_a_line_that_is_none_is_refused() -> None:
    assert image_build.parse_packages("mdadm\t4.2-5\nfio\t3.33-3\n") == {
        "mdadm": "4.2-5",
        "fio": "3.33-3",
    }
    for text in ("", "mdadm 4.2-5\n", "mdadm\t\n"):
        with pytest.raises(ToolError):
            image_build.parse_packages(text)


# --- mmdebstrap's log ---------------------------------------------------------------------------

LOG = """\
I: chroot architecture amd64 is equal to the host's architecture
I: finding correct signed-by value...
I: running apt-get update...
I: downloading packages with apt...
I: extracting archives...
I: installing essential packages...
I: installing remaining packages inside the chroot...
I: running --customize-hook in shell: sh -c 'sh …/customize.sh "$1" …' exec …/root
update-initramfs: Generating /boot/initrd.img-6.1.0-56-cloud-amd64
I: cleaning package lists and apt cache...
I: success in 46.3119 seconds
"""


def test_every_stage_is_seen_once_in_order() -> None:
    stages = [s for line in LOG.splitlines() if (s := image_log.stage_of(line))]
    assert [s.says for s in stages] == [says for _, says, _ in image_log.STAGES]
    for before, after in itertools.pairwise(stages):
        assert before.ends == after.begins
    for stage in stages:
        assert stage.after(0.0) == stage.begins
        assert stage.begins < stage.after(5.0) < stage.ends
        assert stage.after(1e9) < stage.ends


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("E: You don't have enough free space in /x/var/cache/apt/archives/.", "the disk is full"),
        ("dpkg: error: failed to write: No space left on device", "the disk is full"),
        (
            "E: Release file for http://a/dists/b/InRelease is expired (invalid since 3d 2h).",
            "has expired",
        ),
        ("E: Unable to locate package nosuch", "no package 'nosuch'"),
        ("E: Package 'nosuch' has no installation candidate", "no package 'nosuch'"),
        (
            "__populate_fs: Could not allocate block in ext2 filesystem while writing file",
            "do not fit into its root file system",
        ),
        ("W: GPG error: NO_PUBKEY 6ED0E7B82643E131", "does not know the key"),
        (
            "W: GPG error: http://x InRelease: The following signatures were invalid: BADSIG 6E\n"
            "E: The repository 'http://x trixie InRelease' is not signed.",
            "signature or a hash",
        ),
        ("E: Failed to fetch http://x/mdadm_4.2.deb  Hash Sum mismatch", "signature or a hash"),
        ("E: Failed to fetch http://a/b  Could not connect to a:80", "could not be reached"),
    ],
)
def test_the_reason_is_read_from_the_log(line: str, expected: str) -> None:
    reason = image_log.reason_of(LOG + line + "\n", suite="bookworm", name="mine")
    assert reason is not None
    assert expected in reason.says
    assert reason.hint


def test_no_reason_is_invented() -> None:
    assert image_log.reason_of(LOG, suite="bookworm", name="mine") is None
    assert shlex.join(bootstrap(debian()))


# --- before a build is started ----------------------------------------------------------------


def build(name: str = "mine", **options: int) -> None:
    host_build.build(debian(), name=name, progress=lambda _says, _part: None, **options)


def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(HostError, match="'mmdebstrap' is not installed") as caught:
        build()
    assert caught.value.hint == "apt install mmdebstrap"
    assert list((tmp_path / "data" / "images").iterdir()) == []


@pytest.mark.skipif(
    shutil.which("mmdebstrap") is None or shutil.which("qemu-img") is None,
    reason="mmdebstrap or qemu-img is not installed",
)
def test_too_little_space_is_told_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    with pytest.raises(HostError, match=r"'mine' needs .* GB"):
        build(minimum_free=10**18)
    assert list((tmp_path / "data" / "images").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "enough"),
    [
        ("alice:100000:65536", True),
        ("bob:100000:65536", False),
        ("alice:100000:1000", False),
        ("alice:100000", False),
        ("", False),
    ],
)
def test_subordinate_users_are_read_as_in_subuid(tmp_path: Path, line: str, enough: bool) -> None:
    file = tmp_path / "subuid"
    assert not has_subordinates(file, "alice")
    file.write_text(f"carol:1:2\n{line}\n", encoding="utf-8")
    assert has_subordinates(file, "alice") is enough


@pytest.mark.parametrize(
    "word", ["gcc=1,-oDPkg::Pre-Invoke::=id", "-o=x", "--help", "a b", "../x", "x=1/../y", ""]
)
def test_apt_gets_no_word_that_is_no_package(word: str) -> None:
    with pytest.raises(InputError, match="is no package of an archive"):
        image_build.bootstrap(debian(), ("gcc", word), image_build.IMAGE, Path("w"), ())
