"""Expired Release files of an archive are accepted only on request, and recorded."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.matrix.file import compile_matrix
from lab.compile.image import build as image_build
from lab.compile.image.log import parse_releases, reason_of
from lab.core.errors import ToolError
from lab.host.images import recipes as image_recipes
from lab.model.image.manifest import (
    Image,
    ImageBoot,
    ImageFile,
    ImageManifest,
    ImageSource,
    boot_files,
)
from lab.model.image.recipe import Brought, ImageRecipe, recipe_digest
from lab.plugins import catalog
from lab.report.content.reliability import reliability
from lab.results.documents import result_of
from lab.run.environment import image_facts
from tests.fakes import Cli, stored_run

EXPIRED = """\
E: Release file for http://a/debian/dists/sid/InRelease is expired (invalid since \
16d 22h 53min 57s). \
Updates for this repository will not be applied.
E: apt-get update --error-on=any failed
"""
"""Output of apt 2.6 during a build of debian-sid, on a copy of the archive."""
BOTH = EXPIRED + EXPIRED.replace("/sid/", "/trixie-security/")
RELEASES = """\
Suite: unstable
Codename: sid
Date: Fri, 30 Oct 2026 08:08:01 UTC
Valid-Until: Fri, 06 Nov 2026 08:08:01 UTC
Suite: stable
Codename: trixie
Date: Sat, 12 Sep 2026 07:55:41 UTC
"""
"""Excerpt of two suites' InRelease files, as the hook stored them."""
OLD_DIGEST = "283398e211e27839da2395222af3b5830f1036a94b5b207717c43d73bcd23203"
"""A recipe's digest before `kernel_suite` existed."""
MMDEBSTRAP = """\
#!/bin/sh
for word in "$@"; do
  case $word in *Check-Valid-Until*false*) echo 'E: the archive was accepted' >&2; exit 1 ;; esac
done
cat "$(dirname "$0")/expired" >&2
exit 1
"""
SCENARIO = """\
title: T
question: Q?
guest: {image: debian-13, cpus: 1, memory: 512MiB}
disks: {count: 1, size: 64MiB}
array: none
workloads: [{name: read, tool: dd, if: '{target}', bs: 1MiB, count: 1}]
"""
COMMANDS = (
    ("image", "build", "debian-13"),
    ("run", "scenario", "question.yaml"),
    ("up", "scenario", "question.yaml"),
    ("run", "matrix", "m.yaml"),
)


def test_the_hint_names_image_and_suites_and_can_be_pasted() -> None:
    reason = reason_of(EXPIRED, suite="sid", name="debian-sid")
    assert reason is not None
    assert reason.says == "the archive's Release file of 'sid' has expired, 16d ago"
    assert "lab image build debian-sid --accept-expired" in reason.hint
    assert "LAB_ACCEPT_EXPIRED=1" in reason.hint
    several = reason_of(BOTH, suite="trixie", name="mine+linux-image-amd64")
    assert several is not None
    assert "Release files of 'sid' and 'trixie-security' have expired" in several.says
    assert "lab image build mine+" not in several.hint  # no recipe has this name


@pytest.fixture
def expired(short_cli: Cli, tmp_path: Path) -> Cli:
    """A host on which every Release file has expired."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "expired").write_text(EXPIRED)
    fake = tmp_path / "bin" / "mmdebstrap"
    fake.write_text(MMDEBSTRAP)
    fake.chmod(0o755)
    short_cli.env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    short_cli.file(SCENARIO)
    short_cli.file("title: M\nscenarios: [./question.yaml]\nimages: [debian-13]\n", "m.yaml")
    return short_cli


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_option_or_variable_lets_every_command_take_it(
    expired: Cli, command: tuple[str, ...]
) -> None:
    plain = expired(*command)
    assert plain.status == 3
    assert "Release file of 'sid' has expired" in plain.stderr
    asked = expired(*command, "--accept-expired")
    assert "the archive was accepted" in asked.stderr
    assert "has expired" not in asked.stderr
    expired.env["LAB_ACCEPT_EXPIRED"] = "1"
    assert "the archive was accepted" in expired(*command).stderr
    expired.env["LAB_ACCEPT_EXPIRED"] = "0"
    assert "has expired" in expired(*command).stderr
    expired.env["LAB_ACCEPT_EXPIRED"] = "yes"
    wrong = expired(*command)
    assert wrong.status == 2
    assert "LAB_ACCEPT_EXPIRED=yes: expected 1" in wrong.stderr


def test_a_plan_says_that_images_are_built_from_an_expired_archive(expired: Cli) -> None:
    words = "from an expired archive too (--accept-expired)"
    plain = expired("run", "matrix", "m.yaml", "--plan").stdout
    assert words not in " ".join(plain.split())
    asked = expired("run", "matrix", "m.yaml", "--plan", "--accept-expired").stdout
    assert words in " ".join(asked.split())


def test_the_dates_of_release_files_are_read() -> None:
    sid, trixie = parse_releases(RELEASES)
    assert (sid.suite, trixie.suite) == ("sid", "trixie")
    assert sid.valid_until == datetime(2026, 11, 6, 8, 8, 1, tzinfo=UTC)
    assert trixie.valid_until is None
    with pytest.raises(ToolError, match="the date 'soon'"):
        parse_releases("Suite: sid\nDate: soon\n")


def image(built: datetime, **more: Any) -> Image:
    files = {name: ImageFile(size=1, sha256="0" * 64) for name in boot_files(ImageBoot.DISK)}
    manifest = ImageManifest(
        name="debian-sid",
        digest="0" * 64,
        built=built,
        source=ImageSource.BUILT,
        boot=ImageBoot.DISK,
        files=files,
        releases=parse_releases(RELEASES),
        **more,
    )
    again = ImageManifest.model_validate_json(manifest.model_dump_json())
    return Image(
        name="debian-sid",
        digest="0" * 64,
        directory=Path("/x"),
        disk=Path("/x"),
        kernel=None,
        initrd=None,
        manifest=again,
    )


def test_record_and_report_name_what_had_expired(tmp_path: Path) -> None:
    fresh = image_facts(image(datetime(2026, 11, 5, tzinfo=UTC)))
    assert "expired" not in fresh
    facts = image_facts(image(datetime(2026, 11, 23, tzinfo=UTC), accept_expired=True))
    assert facts["expired"] == ["sid, valid until 2026-11-06"]

    result = result_of(stored_run(tmp_path))
    assert "archive" not in dict(reliability(result))
    old = result.model_copy(update={"environment": {**result.environment, "image": facts}})
    said = dict(reliability(old))["archive"]
    assert "--accept-expired" in said
    assert "sid, valid until 2026-11-06" in said


# -- the newest kernel, from its own suite


def recipe(**fields: Any) -> ImageRecipe:
    packages = ["systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"]
    kernel = "linux-image-amd64"
    base = {"description": "x", "suite": "trixie", "kernel_package": kernel, "packages": packages}
    return ImageRecipe.model_validate(base | fields)


def test_only_the_kernel_comes_from_a_further_suite(tmp_path: Path) -> None:
    brought = Brought(hooks={"customize.sh": "", "modules.sh": ""})
    made = recipe(kernel_suite="trixie-backports")
    plan = image_build.compile_build(made, brought=brought, work=Path("/w"), root=True)
    include = next(word for word in plan.bootstrap if word.startswith("--include="))
    first, *others = include.removeprefix("--include=").split(",")
    assert first == "linux-image-amd64/trixie-backports"
    assert not any("/" in other for other in others)
    hook = next(word for word in plan.bootstrap if word.startswith("--setup-hook="))
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    sources = (
        'deb [signed-by="/k.gpg"] http://a/debian trixie main contrib\n'
        "deb http://a/debian trixie-updates main contrib\n"
        "deb http://s/debian-security trixie-security main contrib\n"
    )
    (tmp_path / "etc/apt/sources.list").write_text(sources)
    script = hook.removeprefix("--setup-hook=")
    subprocess.run(["sh", "-c", script, "exec", str(tmp_path)], check=True, timeout=20)
    added = (tmp_path / "etc/apt/sources.list.d/kernel.list").read_text()
    expected = 'deb [signed-by="/k.gpg"] http://a/debian trixie-backports main contrib\n'
    assert added == expected
    plain = image_build.compile_build(recipe(), brought=brought, work=Path("/w"), root=True)
    assert not any("setup-hook" in word for word in plain.bootstrap)


def test_images_that_are_there_keep_their_names() -> None:
    brought = Brought(hooks={"customize.sh": "#!/bin/sh\n"})
    assert recipe_digest(recipe(suite="bookworm"), brought) == OLD_DIGEST
    other = recipe(suite="bookworm", kernel_suite="bookworm-backports")
    assert recipe_digest(other, brought) != OLD_DIGEST


def test_the_nightly_matrix_needs_no_suite_that_never_comes_to_rest() -> None:
    """Debian's stable releases do not expire; sid's Release file does each week."""
    jobs = compile_matrix(catalog.matrix_path("nightly")).jobs
    recipes = {job.image: image_recipes.load(job.image)[1] for job in jobs}
    assert {made.suite for made in recipes.values()} == {"bookworm", "trixie"}
    assert any(made.kernel_suite == "trixie-backports" for made in recipes.values())


def test_the_image_for_blktests_has_the_newest_kernel_and_its_programs() -> None:
    made = image_recipes.load("debian-13-blktests")[1]
    assert {"nvme-cli", "gawk", "bsdextrautils", "bc"} <= set(made.packages)
    assert (made.kernel_package, made.kernel_suite) == ("linux-image-amd64", "trixie-backports")
