"""A feature that an image's kernel or mdadm lacks is reported before a boot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import InputError
from lab.host.images import recipes as image_recipes
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.md.facts.support import version_of
from lab.model.image.manifest import (
    ImageBoot,
    ImageFacts,
    ImageFile,
    ImageManifest,
    ImageSource,
    facts_of,
)
from lab.model.image.recipe import facts_asked_for, recipe_digest
from lab.model.scenario.document import Array
from lab.plugins.arrays.md import ARRAY
from lab.run.preparation.fitting import check_images
from tests.fakes import compiled_text

OPTIONS = dict.fromkeys(
    (
        "CONFIG_MD_RAID0",
        "CONFIG_MD_RAID1",
        "CONFIG_MD_RAID10",
        "CONFIG_MD_RAID456",
        "CONFIG_MD_BITMAP_FILE",
    ),
    "m",
)
PACKAGES = frozenset(("mdadm", "fio"))
DEBIAN_12 = ImageFacts(
    kernel_version="6.1.0-56-cloud-amd64",
    mdadm_version="4.2-5",
    packages=PACKAGES,
    # Linux 6.1 has no option for bitmap files: it always supports them.
    kernel_options={k: v for k, v in OPTIONS.items() if k != "CONFIG_MD_BITMAP_FILE"}
    | {"CONFIG_MD_LINEAR": "m"},
)
DEBIAN_13 = ImageFacts(
    kernel_version="6.12.57+deb13-cloud-amd64",
    mdadm_version="4.4-11",
    packages=PACKAGES,
    kernel_options=OPTIONS,
)
SID = ImageFacts(
    kernel_version="7.2.1+deb14-cloud-amd64",
    mdadm_version="4.6-1",
    packages=PACKAGES,
    kernel_options=OPTIONS,
)
LOCKLESS = SID.model_copy(update={"kernel_options": OPTIONS | {"CONFIG_MD_LLBITMAP": "y"}})
UNKNOWN = ImageFacts()
EXTERNAL = {"level": "5", "bitmap": "external", "bitmap_file": "/var/lib/b"}


def lacks(facts: ImageFacts, **fields: Any) -> list[str]:
    found = ARRAY.lacks(Array.model_validate(fields), facts)
    return [f"{problem.key}: {problem.message}" for problem in found]


@pytest.mark.parametrize(
    ("facts", "fields", "says"),
    [
        (DEBIAN_12, {"bitmap": "lockless"}, "need Linux 6.18"),
        (DEBIAN_13, {"bitmap": "lockless"}, "needs mdadm 4.6"),
        (SID, {"bitmap": "lockless"}, "its kernel was built without CONFIG_MD_LLBITMAP"),
        (DEBIAN_13, EXTERNAL, "needs mdadm 4.3"),
        (
            DEBIAN_12.model_copy(
                update={"kernel_version": "6.6.1", "kernel_options": DEBIAN_12.kernel_options}
            ),
            EXTERNAL,
            "its kernel was built without CONFIG_MD_BITMAP_FILE",
        ),
        (DEBIAN_13, {"level": "linear"}, "6.8 to 6.13"),
        (SID, {"level": "linear"}, "its kernel was built without CONFIG_MD_LINEAR"),
        (
            DEBIAN_12.model_copy(update={"kernel_options": {}}),
            {"level": "6"},
            "array.level: its kernel was built without CONFIG_MD_RAID456",
        ),
        (
            DEBIAN_12.model_copy(update={"packages": frozenset({"fio"})}),
            {"level": "6"},
            "array.kind: it has no mdadm",
        ),
    ],
)
def test_what_is_missing_is_named(facts: ImageFacts, fields: dict[str, Any], says: str) -> None:
    assert any(says in found for found in lacks(facts, **fields))


@pytest.mark.parametrize("level", ["0", "1", "4", "5", "6", "10"])
def test_what_is_there_is_not(level: str) -> None:
    for facts in (DEBIAN_12, DEBIAN_13, SID, LOCKLESS, UNKNOWN):
        assert lacks(facts, level=level) == []
    assert lacks(LOCKLESS, level="5", bitmap="lockless") == []
    assert lacks(DEBIAN_12, **EXTERNAL) == []
    assert lacks(DEBIAN_12, level="linear") == []


def test_what_nobody_knows_of_an_image_is_not_judged() -> None:
    assert lacks(UNKNOWN, level="linear") == []
    assert lacks(UNKNOWN, bitmap="lockless") == []
    assert lacks(UNKNOWN, **EXTERNAL) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("6.12.57+deb13-cloud-amd64", (6, 12)),
        ("4.2-5", (4, 2)),
        ("4.4-11+deb13u1", (4, 4)),
        ("unknown", None),
        (None, None),
    ],
)
def test_versions_are_read(text: str | None, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version


def test_a_recipe_promises_what_it_builds_itself() -> None:
    promised = facts_asked_for(image_recipes.load("debian-sid-lockless")[1])
    assert promised.kernel_options == {"CONFIG_MD_LLBITMAP": "y"}
    assert facts_asked_for(image_recipes.load("debian-12-zfs")[1]).own_modules == ("zfs",)
    assert facts_asked_for(image_recipes.load("debian-12")[1]).kernel_options == {}


# --- a scenario against an image that is here -------------------------------------------------

SCENARIO = """\
title: t
question: q?
guest: {image: debian-13}
disks: {count: 4, size: 1GiB}
array:
  level: 5
  bitmap: none
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """debian-12 and debian-13 are built."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    for name, facts in (("debian-12", DEBIAN_12), ("debian-13", DEBIAN_13)):
        recipe = image_recipes.load(name)[1]
        with image_workspace.workspace(name) as work:
            made = work / "image"
            made.mkdir()
            files = {}
            for file in ("disk.qcow2", "kernel", "initrd"):
                (made / file).write_text(name)
                files[file] = ImageFile(size=len(name), sha256=image_store.file_sha256(made / file))
            manifest = ImageManifest(
                name=name,
                digest=files["disk.qcow2"].sha256,
                recipe_digest=recipe_digest(recipe, image_recipes.brought(recipe)),
                built=datetime(2024, 1, 1, tzinfo=UTC),
                source=ImageSource.BUILT,
                boot=ImageBoot.KERNEL,
                files=files,
                packages=dict.fromkeys(facts.packages or (), "1"),
                kernel_version=facts.kernel_version,
                mdadm_version=facts.mdadm_version,
                kernel_options=facts.kernel_options,
            )
            assert facts_of(manifest) == facts
            image_store.publish(made, manifest)


def check(tmp_path: Path, *sets: str) -> str:
    compiled = compiled_text(tmp_path, SCENARIO, *sets)
    try:
        check_images(compiled, {})
    except InputError as error:
        return error.message.replace(f"{tmp_path}/", "")
    return ""


@pytest.mark.usefixtures("here")
def test_a_scenario_that_its_image_cannot_do_is_refused_by_line_and_names_who_can(
    tmp_path: Path,
) -> None:
    assert check(tmp_path) == ""
    said = check(tmp_path, "array.bitmap=external", "array.bitmap_file=/var/lib/b")
    assert said.startswith("--set array.bitmap=external: array.bitmap: the image 'debian-13' ")
    assert "mdadm 4.3 or older" in said
    assert "Linux 6.12.57+deb13-cloud-amd64 and mdadm 4.4-11" in said
    assert "set guest.image to debian-12)" in said
    said = check(tmp_path, "array.bitmap=lockless")
    assert "need Linux 6.18" in said
    assert said.endswith(
        "set guest.image to debian-sid-lockless (`lab image build debian-sid-lockless`))"
    )
    said = check(tmp_path, "array.level=raidz2", "array.kind=zfs")
    assert "it has no ZFS" in said
    assert "set guest.image to debian-12-zfs (`lab image build debian-12-zfs`)" in said


@pytest.mark.usefixtures("here")
def test_one_cell_of_a_matrix_is_told_by_its_axis(tmp_path: Path) -> None:
    said = check(tmp_path, "matrix={array.level: [5, linear]}")
    assert "matrix.array.level: 'linear': the image 'debian-13' cannot do this" in said
    assert check(tmp_path, "matrix={array.level: [5, linear]}", "guest.image=debian-12") == ""


@pytest.mark.usefixtures("here")
def test_an_image_that_is_not_built_is_not_judged(tmp_path: Path) -> None:
    assert check(tmp_path, "array.bitmap=lockless", "guest.image=debian-sid") == ""
    assert "there is no image 'debian-7'" in check(tmp_path, "guest.image=debian-7")
