"""Kernels and mdadm of Debian's archives: what there is, and fetched packages, which are kept.

::

    packages/index.json                      what the archives had when they were last read
    packages/NAME_VERSION/version.json       a fetched version
    packages/NAME_VERSION/Packages, *.deb    its packages, as a small archive that apt can read
    packages/.work-….part                    a download in progress; removed at its end

An archive is reached as for an image build: mmdebstrap chooses the mirror and checks signatures.
A fetched version is complete or absent: it is made in a working directory and renamed into place.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import ValidationError

from lab.compile.image import log as image_log
from lab.compile.image import packages as lists
from lab.compile.image.build import bound, namespaced, seen_at
from lab.core.errors import HostError, InputError, LabError, ToolError
from lab.core.units import MIB
from lab.core.versions import age
from lab.host.images import debs as image_debs
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.store import Progress, file_sha256
from lab.host.system import files, leftovers, paths, process
from lab.model.image.axis import Axis
from lab.model.image.package import PackageIndex, ReleaseRead, Version

RELEASES: Final = ("bullseye", "bookworm", "trixie", "forky", "sid")
"""Debian's releases whose archives are read, each with updates, security and backports."""
HOOK: Final = "packages.sh"
INDEX: Final = "index.json"
FACTS: Final = "version.json"
READING: Final = 600.0
"""Timeout in seconds for the lists of one release, or for one version's packages."""


def index() -> PackageIndex | None:
    """Return what the archives had when they were last read; ``None``: never, or unreadable."""
    try:
        return PackageIndex.model_validate_json((paths.packages() / INDEX).read_bytes())
    except (OSError, ValidationError):
        return None


def refresh(progress: Progress, *, accept_expired: bool = False) -> PackageIndex:
    """Read the archives of all releases, in about ten seconds each, and store the result.

    A release that cannot be read is named in the result. ``HostError``: none can be read.
    """
    _remove_leftovers()
    read, shown = list[ReleaseRead](), list[tuple[str, Path]]()
    dates = dict[tuple[str, str], str]()
    with image_workspace.workspace("packages", paths.packages()) as work:
        for number, release in enumerate(RELEASES):
            progress(f"reading the archive of {release}", number / len(RELEASES))
            place = work / release
            (place / "found").mkdir(parents=True)
            error = ""
            try:
                _mmdebstrap(release, place, accept_expired=accept_expired)
            except (HostError, ToolError) as failure:
                error = str(failure)
            else:
                shown.append((release, place / "found"))
                for file in (place / "found").glob("changelog.*"):
                    axis = Axis(file.name.split(".")[1])
                    text = file.read_text(encoding="utf-8", errors="replace")
                    dates |= lists.dates_of(axis, text)
            read.append(ReleaseRead(release=release, error=error))
        if not shown:
            raise HostError(f"no archive can be read: {read[0].error}")
        versions = [
            version
            for release, found in shown
            for version in lists.versions_of(
                release,
                lists.stanzas((found / "show").read_text(encoding="utf-8")),
                lists.suites_of((found / "madison").read_text(encoding="utf-8")),
                dates,
            )
        ]
    made = PackageIndex(
        read=datetime.now(UTC).isoformat(timespec="seconds"),
        releases=tuple(read),
        versions=tuple(versions),
    )
    files.write(paths.packages() / INDEX, made.model_dump_json(by_alias=True, indent=1))
    return made


def fetched() -> list[Version]:
    """Return the fetched versions, oldest first; they stay when the archive drops them."""
    found = []
    try:
        places = sorted(paths.packages().iterdir())
    except OSError:
        return []
    for place in places:
        if place.name.startswith(".") or not place.is_dir():
            continue
        try:
            version = Version.model_validate_json((place / FACTS).read_bytes())
        except (OSError, ValidationError):
            continue
        if place.name == version.directory:
            found.append(version)
    return sorted(found, key=lambda one: (one.axis.value, age(one.version)))


def known(axis: Axis) -> list[Version]:
    """Return the versions in the index and the fetched ones, oldest first, each once."""
    there = index()
    both = {one.directory: one for one in (there.versions if there else ()) if one.axis is axis}
    both |= {one.directory: one for one in fetched() if one.axis is axis}
    return sorted(both.values(), key=lambda one: (age(one.version), one.release))


def find(axis: Axis, name: str) -> Version | None:
    """Return a fetched version by what ``guest.kernel`` or ``guest.mdadm`` takes."""
    mine = [one for one in fetched() if one.axis is axis and one.name == name]
    return mine[-1] if mine else None


def debs(version: Version) -> tuple[Path, ...]:
    """Return the files of a fetched version."""
    place = paths.packages() / version.directory
    return tuple(place / one.file for one in version.packages)


def archive_of(version: Version) -> Path:
    """Return the directory of a fetched version, which apt can take for an archive."""
    return paths.packages() / version.directory


def matching(versions: Sequence[Version], pattern: str) -> list[Version]:
    """Return the versions with this name or version, or that match a pattern such as ``6.12.*``.

    ``InputError``: there is none.
    """
    exact = [one for one in versions if pattern in (one.name, one.version)]
    found = exact or [
        one for one in versions if fnmatch(one.name, pattern) or fnmatch(one.version, pattern)
    ]
    if not found:
        branches = ", ".join(dict.fromkeys(one.branch for one in versions)) or "none"
        raise InputError(
            f"there is no version '{pattern}' (known branches: {branches})",
            hint="`lab kernel list` shows the versions; quote a pattern: '6.12.*'",
        )
    return found


def fetch(version: Version, progress: Progress, *, accept_expired: bool = False) -> Path:
    """Fetch the packages of a version and keep them; return their directory.

    Nothing is fetched twice. ``InputError``: the archive has dropped a package that it needs, or
    the version itself since its lists were read. ``HostError``: no archive, or no space.
    """
    place = paths.packages() / version.directory
    if version.missing:
        raise InputError(
            f"{version.title} cannot be installed: the archive has dropped"
            f" {', '.join(version.missing)}, which it needs",
            hint="`lab kernel list` shows the versions that are complete",
        )
    task = f"fetch-{version.directory}"
    with image_workspace.exclusive(
        task, waiting=lambda: progress(f"waiting for another fetch of {version.title}", None)
    ):
        if (place / FACTS).is_file():
            return place
        _remove_leftovers()
        free = shutil.disk_usage(image_workspace.made(paths.packages())).free
        if free < version.size + 64 * MIB:
            raise _full(version)
        with image_workspace.workspace("packages", paths.packages()) as work:
            progress(f"fetching {version.title}", None)
            wanted = [f"{one.name}={one.version}\n" for one in version.packages]
            (work / "wanted").write_text("".join(wanted), encoding="utf-8")
            _mmdebstrap(version.release, work, accept_expired=accept_expired)
            made = work / "made"
            made.mkdir()
            for one in version.packages:
                _take(version, one.name, one.sha256, work / "debs", made / one.file)
            image_debs.write_archive(made)
            facts = version.model_dump_json(indent=1)
            (made / FACTS).write_text(facts + "\n", encoding="utf-8")
            files.publish(made, place)
    return place


def _take(version: Version, name: str, sha256: str, debs_: Path, target: Path) -> None:
    """Move the fetched ``.deb`` with this hash to its place."""
    for deb in debs_.glob(f"{name}_*.deb"):
        if file_sha256(deb) == sha256:
            files.move(deb, target)
            return
    raise HostError(
        f"{version.title} could not be fetched: the archive sent another '{name}' than its list "
        f"has (SHA-256 {sha256})",
        hint="read the lists again: lab kernel list --refresh",
    )


def _remove_leftovers() -> None:
    """Remove the working directories of killed processes."""
    leftovers.remove(paths.packages().glob(".*"))


def _full(version: Version) -> HostError:
    return HostError(
        f"{version.title} could not be fetched: the disk of '{paths.packages()}' is full, and it "
        f"needs {version.size / 1e6:.0f} MB",
        hint="free some space, or set LAB_HOME to another disk",
    )


def changelog(version: Version) -> str:
    """Return the Debian changelog in a fetched version's packages; empty: they have none.

    A kernel's packages have linux-base too, which has a changelog of its own.
    """
    own = lists.source_version(version.version)
    script = image_recipes.directory() / "changelog.sh"
    for deb in sorted(debs(version), key=lambda deb: deb.stat().st_size):
        text = image_debs.changelog(deb, script)
        if any(lists.source_version(one.version) == own for one in lists.entries(text)):
            return text
    return ""


def _mmdebstrap(release: str, work: Path, *, accept_expired: bool) -> None:
    """Run the hook with the lists of a release; ``HostError`` or ``InputError`` says why not."""
    shutil.copyfile(image_recipes.directory() / HOOK, work / HOOK)
    inside = seen_at(work)
    hook = f'{shlex.join(["sh", str(inside / HOOK)])} "$1" {shlex.join([str(inside), release])}'
    accepted = accept_expired or image_recipes.expired_accepted()
    valid = ('--aptopt=Acquire::Check-Valid-Until "false"',) if accepted else ()
    argv = (
        *("mmdebstrap", "--mode=root", "--variant=custom", "--format=null"),
        *("--architectures=amd64", *valid, f"--customize-hook={hook}", release, "/dev/null"),
    )
    log = work / "log"
    env = {
        "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(inside),
    }
    try:
        root = os.geteuid() == 0
        process.run(namespaced(bound(argv, work), root=root), timeout=READING, log=log, env=env)
    except (ToolError, HostError) as error:
        text = process.tail(log) if log.exists() else ""
        raise _reason(release, f"{text}\n{error}", error) from error


_GONE: Final = re.compile(r"^E: Failed to fetch \S+/([^/\s]+\.deb) +404", re.MULTILINE)


def _reason(release: str, text: str, error: LabError) -> LabError:
    gone = _GONE.search(text)
    if gone is not None:
        return ToolError(
            f"the archive of {release} lists '{unquote(gone[1])}', and does not have it (404)"
        )
    found = image_log.reason_of(text, suite=release, name="+")
    if found is not None:
        # The recipe is not wrong: the archive has dropped a version since its lists were read.
        dropped = found.error is InputError
        hint = "read the lists again: lab kernel list --refresh" if dropped else found.hint
        return found.error(f"the archive of {release}: {found.says}", hint=hint)
    return HostError(
        f"the archive of {release} could not be read: {error.message}", hint=error.hint
    )
