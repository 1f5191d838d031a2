"""Kernels and mdadm of an archive's lists: what they need, what is missing, their changelogs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.compile.image import build as image_build
from lab.compile.image import packages as lists
from lab.core.errors import HostError, InputError, ToolError
from lab.host.images import debs, packages, workspace
from lab.host.images.store import file_sha256
from lab.host.system import paths
from lab.model.image.axis import Axis
from lab.model.image.package import PackageFile, PackageIndex, ReleaseRead, Version
from lab.model.image.recipe import Brought, BroughtPackage, ImageRecipe, recipe_digest
from lab.model.scenario.guest import Guest
from lab.run.preparation import systems, versions


def stanza(name: str, version: str, depends: str = "", before: str = "") -> str:
    more = f"Depends: {depends}\n" if depends else ""
    more += f"Pre-Depends: {before}\n" if before else ""
    return (
        f"Package: {name}\nSource: linux\nVersion: {version}\n{more}Description: x\n y\n"
        f"Filename: pool/{name}.deb\nSize: 1000\nSHA256: {'0' * 64}\n"
    )


def kernel(abi: str, version: str, *, headers: bool = True) -> list[str]:
    """The packages of a kernel as 6.12 has them."""
    made = [
        stanza(f"linux-image-{abi}-cloud-amd64", version, "kmod, linux-initramfs-tool | dracut"),
        stanza(f"linux-image-{abi}-amd64", version),
    ]
    if headers:
        needed = (
            f"linux-headers-{abi}-common (= {version}), linux-image-{abi}-cloud-amd64 (= {version})"
            f" | linux-image-{abi}-cloud-amd64-unsigned (= {version}), linux-kbuild-{abi}, gcc-14"
        )
        made += [
            stanza(f"linux-headers-{abi}-cloud-amd64", version, needed),
            stanza(f"linux-headers-{abi}-common", version),
            stanza(f"linux-kbuild-{abi}", version, "libc6 (>= 2.38)"),
        ]
    return made


def found(*stanzas: str, release: str = "trixie", **more: Any) -> list[Version]:
    texts = lists.stanzas("\n".join(stanzas))
    return lists.versions_of(release, texts, more.get("suites", {}), more.get("dates", {}))


def test_a_kernel_comes_with_its_headers_and_says_what_the_archive_has_dropped() -> None:
    meta = stanza("linux-image-6.12-cloud-amd64", "6.12.117-1")
    whole, bare = found(
        *kernel("6.12.117+deb13", "6.12.117-1"),
        *kernel("6.12.43+deb13", "6.12.43-1", headers=False),
        meta,
    )
    assert [one.name for one in whole.packages] == [
        "linux-image-6.12.117+deb13-cloud-amd64",
        "linux-headers-6.12.117+deb13-cloud-amd64",
        "linux-headers-6.12.117+deb13-common",
        "linux-kbuild-6.12.117+deb13",
    ]
    assert (whole.branch, whole.headers, whole.missing) == ("6.12", True, ())
    assert (bare.headers, bare.missing) == (False, ())
    assert [one.name for one in bare.packages] == ["linux-image-6.12.43+deb13-cloud-amd64"]


def test_a_kernel_in_parts_needs_the_parts_of_its_own_version() -> None:
    """As from 6.19 on; older parts go, and the small package that needs them stays."""
    abi, version = "7.0.4+deb13-cloud-amd64", "7.0.4-1~bpo13+1"
    parts = ", ".join(f"linux-{p}-{abi} (= {version})" for p in ("base", "binary", "modules"))
    image = stanza(f"linux-image-{abi}", version, parts, before="linux-base (>= 4.12~)")
    base = stanza("linux-base", "4.17"), stanza("linux-base", "4.9")
    (gone,) = found(image, *base, stanza(f"linux-binary-{abi}", version))
    assert gone.missing == (f"linux-base-{abi}", f"linux-modules-{abi}")
    (whole,) = found(
        image,
        *base,
        *(stanza(f"linux-{part}-{abi}", version) for part in ("base", "binary", "modules")),
    )
    assert whole.missing == ()
    assert ("linux-base", "4.17") in [(one.name, one.version) for one in whole.packages]
    assert len(whole.packages) == 5


def test_suites_are_read_from_madison() -> None:
    line = " linux-image-x | 6.1-1 | http://a/debian bookworm{}/main amd64 Packages\n"
    found_ = lists.suites_of(line.format("") + line.format("-security"))
    assert found_ == {("linux-image-x", "6.1-1"): ("bookworm", "bookworm-security")}


def test_each_source_is_once_on_the_axis_and_the_usable_build_is_taken() -> None:
    native = found(*kernel("6.12.95+deb13", "6.12.95-1", headers=False))
    rebuilt = found(*kernel("6.12.95+deb12", "6.12.95-1~bpo12+1"), release="bookworm")
    other = found(*kernel("6.12.101+deb12", "6.12.101-1~deb12u1"), release="bookworm")
    own = found(*kernel("6.12.101+deb13", "6.12.101-1"))
    order = lists.axis_of(
        [*other, *native, *own, *rebuilt, *found(stanza("mdadm", "4.2-5"))], Axis.KERNEL
    )
    assert [one.version for one in order] == ["6.12.95-1~bpo12+1", "6.12.101-1"]


CHANGELOG = """\
linux-signed-amd64 (6.12.117+1) trixie-security; urgency=high

  * Sign kernel from linux 6.12.117-1

  * New upstream stable update:
    - ext4: a line of another part
    - md/raid5: a fix of md
    - [amd64] block: a fix of the block layer

 -- A Name <a@example.org>  Thu, 12 Nov 2026 10:00:00 +0100

linux (6.12.116-1) trixie-security; urgency=high

  * md: another one

 -- A Name <a@example.org>  Sat, 07 Nov 2026 10:00:00 +0100

linux (6.12.115-2) trixie; urgency=medium

  * Nothing

 -- A Name <a@example.org>  a day without a date
"""


def test_a_changelog_has_versions_dates_and_lines_about_md() -> None:
    entries = lists.entries(CHANGELOG)
    assert [one.version for one in entries] == ["6.12.117-1", "6.12.116-1", "6.12.115-2"]
    assert [one.date for one in entries] == ["2026-11-12", "2026-11-07", None]
    assert lists.about_md(entries[0]) == [
        "- md/raid5: a fix of md",
        "- [amd64] block: a fix of the block layer",
    ]
    between = lists.between(CHANGELOG, "6.12.115-2", "6.12.117-1~bpo12+1")
    assert [one.version for one in between] == ["6.12.117-1", "6.12.116-1"]
    assert lists.between(CHANGELOG, "6.12.117-1", "6.12.117-1") == []


def test_a_kernel_s_changelog_is_not_that_of_linux_base(
    tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del lab_home
    base = CHANGELOG.replace("linux (", "linux-base (").replace("6.12.11", "4.12.")
    texts = {"linux-base.deb": base, "linux-image.deb": CHANGELOG}
    for size, name in enumerate(texts, 1):
        (tmp_path / name).write_bytes(bytes(size))
    monkeypatch.setattr(packages, "debs", lambda _: [tmp_path / name for name in texts])
    monkeypatch.setattr(debs, "changelog", lambda deb, _: texts[deb.name])
    made = version("linux-image-6.12.117+deb13-cloud-amd64", "6.12.117-1")
    assert packages.changelog(made) == CHANGELOG
    assert packages.changelog(version("linux-image-7", "7.0-1")) == ""


# -- fetching, with a stand-in for mmdebstrap


def version(name: str = "mdadm", number: str = "4.2-5", **more: Any) -> Version:
    file = PackageFile(name=name, version=number, size=4, sha256=more.pop("sha256", "0" * 64))
    its = {"axis": Axis.MDADM, "name": number, "branch": "4", "release": "trixie"}
    return Version.model_validate(its | {"version": number, "packages": (file,)} | more)


@pytest.fixture
def archive(tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages that ``mmdebstrap`` 'fetches'; a file ``error`` makes it fail."""
    del lab_home
    place = tmp_path / "archive"
    (place / "DEBIAN").mkdir(parents=True)
    (place / "DEBIAN" / "control").write_text(
        "Package: mdadm\nVersion: 4.2-5\nArchitecture: amd64\nMaintainer: x\nDescription: x\n"
    )
    deb = place / "mdadm_4.2-5_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", "--nocheck", place, deb], check=True, timeout=60,
                   capture_output=True)  # fmt: skip
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "mmdebstrap"
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >>{tmp_path}/calls\n'
        f"if [ -e {place}/error ]; then cat {place}/error >&2; exit 25; fi\n"
        'for word in "$@"; do case $word in --customize-hook=*)\n'
        '  set -- $word; mkdir -p "$4/debs"\n'
        f'  cp {place}/*.deb "$4/debs/" ;; esac; done\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "namespaced", lambda argv, root: argv)
    return place


def quiet(_what: str, _part: float | None) -> None:
    pass


def there() -> list[str]:
    return sorted(path.name for path in paths.packages().glob("*"))


def test_a_fetched_version_is_kept_and_apt_can_read_it(archive: Path, tmp_path: Path) -> None:
    sha256 = file_sha256(archive / "mdadm_4.2-5_amd64.deb")
    mine = version(sha256=sha256)
    place = packages.fetch(mine, quiet)
    assert there() == ["mdadm_4.2-5"]
    assert {path.name for path in place.iterdir()} == {
        *("Packages", "mdadm_4.2-5.deb", "version.json")
    }
    text = (place / "Packages").read_text()
    assert (
        f"Filename: ./mdadm_4.2-5.deb\nSize: {(place / 'mdadm_4.2-5.deb').stat().st_size}" in text
    )
    assert f"SHA256: {sha256}" in text
    assert packages.fetched() == [mine]
    packages.fetch(mine, quiet)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1  # nothing is fetched twice
    # it stays when the archive has dropped it
    index = PackageIndex(read="2026-11-24T00:00:00+00:00", releases=(), versions=())
    (row,) = versions.rows(Axis.MDADM, index)
    assert (row["name"], row["fetched"], row["in_archive"]) == ("4.2-5", True, False)


ERRORS = {
    "E: Could not resolve 'a.example'": (HostError, "could not be reached"),
    "E: Release file for http://a/dists/trixie/InRelease is expired (invalid since 3d 2h)": (
        *(HostError, "has expired"),
    ),
    "E: Unable to locate package mdadm": (InputError, "no package 'mdadm'"),
    "E: Failed to fetch http://a/pool/mdadm_4.2-5_amd64.deb  404  Not Found": (
        *(ToolError, "does not have it (404)"),
    ),
    "cp: error writing 'x': No space left on device": (HostError, "disk is full"),
}


@pytest.mark.parametrize("said", ERRORS)
def test_what_fails_says_why_and_leaves_nothing(archive: Path, said: str) -> None:
    (archive / "error").write_text(said + "\n")
    kind, words = ERRORS[said]
    with pytest.raises(kind) as error:
        packages.fetch(version(), quiet)
    assert words in str(error.value)
    assert there() == []


def test_another_file_than_the_list_has_is_refused(archive: Path) -> None:
    assert archive.is_dir()
    with pytest.raises(HostError, match="another 'mdadm' than its list has"):
        packages.fetch(version(sha256="1" * 64), quiet)
    assert there() == []


def test_a_version_that_needs_more_than_is_free_is_not_begun(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive.is_dir()
    free = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(HostError, match="is full"):
        packages.fetch(version(), quiet)
    assert there() == []


def test_an_incomplete_version_cannot_be_fetched(archive: Path, tmp_path: Path) -> None:
    assert archive.is_dir()
    with pytest.raises(InputError, match="has dropped linux-modules-x"):
        packages.fetch(version(missing=("linux-modules-x",)), quiet)
    assert not (tmp_path / "calls").exists()


def test_a_killed_download_is_removed_by_the_next_one(archive: Path) -> None:
    left = paths.packages() / f"{workspace.WORK}packages.4194305.7.0123456789abcdef.part"
    left.mkdir(parents=True)
    packages.fetch(version(sha256=file_sha256(archive / "mdadm_4.2-5_amd64.deb")), quiet)
    assert there() == ["mdadm_4.2-5"]


def test_patterns_leave_incomplete_versions_out(archive: Path) -> None:
    good = version(sha256=file_sha256(archive / "mdadm_4.2-5_amd64.deb"))
    bad = version(number="4.1-11", missing=("x",))
    write_index(good, bad)
    found_, left_out = versions.fetch(Axis.MDADM, ["4.*"], quiet, accept_expired=False)
    assert (found_, len(left_out)) == ([good], 1)
    with pytest.raises(InputError, match="no version '9'"):
        versions.fetch(Axis.MDADM, ["9"], quiet, accept_expired=False)


def write_index(*its: Version, read: str = "2026-11-24T00:00:00+00:00") -> None:
    index = PackageIndex(read=read, releases=(ReleaseRead(release="trixie"),), versions=its)
    paths.packages().mkdir(parents=True, exist_ok=True)
    (paths.packages() / packages.INDEX).write_text(index.model_dump_json(by_alias=True))


def test_old_lists_are_used_if_no_archive_is_reached(archive: Path) -> None:
    (archive / "error").write_text("E: Could not resolve 'a.example'\n")
    with pytest.raises(HostError, match="could not be reached"):
        versions.current(quiet, refresh=False, accept_expired=False)
    write_index(version(), read="2020-01-01T00:00:00+00:00")
    index, warnings = versions.current(quiet, refresh=False, accept_expired=False)
    assert len(index.versions) == 1
    assert "these are the lists of 2020-01-01" in warnings[0]
    with pytest.raises(HostError):
        versions.current(quiet, refresh=True, accept_expired=False)


# -- in an image


def test_a_fetched_mdadm_becomes_part_of_the_image(archive: Path) -> None:
    guest = Guest(image="debian-13", mdadm="4.2-5")
    with pytest.raises(InputError, match="is not fetched") as error:
        systems.find(guest)
    assert error.value.hint == "lab kernel fetch --axis mdadm 4.2-5"
    packages.fetch(version(sha256=file_sha256(archive / "mdadm_4.2-5_amd64.deb")), quiet)
    variant = systems._variant(guest)
    assert variant is not None
    name, recipe = variant
    assert name == "debian-13+mdadm-4.2-5"
    assert [Path(file).name for file in recipe.package_files] == ["mdadm_4.2-5.deb"]
    assert systems.find(guest) is None  # not built yet


def test_given_packages_are_pinned_and_change_the_digest() -> None:
    needed = ["systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"]
    base = {"description": "x", "suite": "trixie", "kernel_package": "linux-image-x"}
    recipe = ImageRecipe.model_validate(base | {"packages": needed, "package_files": ["/p/x.deb"]})
    given = BroughtPackage(name="linux-image-x", version="6.12-1", sha256="1" * 64)
    brought = Brought(hooks={}, package_files=(given,))
    plan = image_build.compile_build(recipe, brought=brought, work=Path("/w"), root=True)
    include = next(word for word in plan.bootstrap if word.startswith("--include="))
    assert "linux-image-x" not in include
    fetch = next(word for word in plan.bootstrap if "--download-only" in word)
    assert fetch.startswith("--customize-hook=")  # everything else is installed before
    assert "install linux-image-x=6.12-1" in fetch
    assert "copy:/w/packages ./" in fetch
    assert not any("--setup-hook" in word for word in plan.bootstrap)
    other = Brought(hooks={}, package_files=(replace(given, version="6.12-2", sha256="2" * 64),))
    assert recipe_digest(recipe, brought) != recipe_digest(recipe, other)
