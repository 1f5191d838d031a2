"""Images: list, build, import and remove them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from lab.core.errors import InputError, LabError
from lab.host import images
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.images import archive as image_archive
from lab.host.images import build as image_build
from lab.host.images import download
from lab.host.images import recipes as image_recipes
from lab.host.system import makers
from lab.model.image.manifest import Image
from lab.store import runs


def inventory() -> tuple[list[dict[str, Any]], list[str]]:
    """Return existing images, then recipes that are not built; and messages about unreadable
    files."""
    found = images.list_images()
    rows: list[dict[str, Any]] = []
    for image in found.images:
        manifest = image.manifest
        rows.append(
            {
                "name": image.name,
                "digest": image.digest,
                "state": manifest.source,
                "built": manifest.built.isoformat(timespec="seconds"),
                "kernel": manifest.kernel_version,
                "mdadm": manifest.mdadm_version,
                "origin": manifest.origin,
                "directory": str(image.directory),
            }
        )
    present = {row["name"] for row in rows}
    for name in image_recipes.recipes():
        if name not in present:
            rows.append({"name": name, "digest": None, "state": "not built"})
    return rows, [f"'{s.name}' was passed over: {s.reason}" for s in found.skipped]


def build_named(
    name: str, *, refresh: bool, accept_expired: bool, progress: images.Progress
) -> Image:
    """Build a recipe's image; return the existing one if there is one."""
    known, recipe = image_recipes.load(name)
    recipe = image_recipes.as_accepted(recipe, accept_expired=accept_expired)
    return image_build.build(recipe, name=known, progress=progress, refresh=refresh)


def import_named(
    source: str, *, name: str | None, checksum: str | None, progress: images.Progress
) -> Image:
    """Import an image; its default name is that of the file, or of the archive's image.

    A ``checksum`` is required, unless it is an archive on this host: that has the hash of each of
    its files.
    """
    local = source.endswith(image_archive.SUFFIX) and "://" not in source
    if checksum is None and not local:
        raise InputError(
            "--checksum is missing: a disk and a download need one",
            hint="such as --checksum sha512:9f86d0…, from the page of the image",
        )
    if source.endswith(image_archive.SUFFIX):
        if name is not None:
            raise InputError("--name: an archive has its image's name: leave --name out")
        return download.import_archive(source, checksum=checksum, progress=progress)
    assert checksum is not None
    if name is None:
        path = urlsplit(source).path if "://" in source else str(Path(source))
        name = PurePosixPath(path).name.split(".")[0].lower()
        if not name:
            raise InputError(f"'{source}' has no file name to call the image by: give --name")
    return download.import_image(source, name=name, checksum=checksum, progress=progress)


def is_recipe(name: str) -> bool:
    """Return whether a recipe has this name, so that scenarios may mean it by default."""
    return name in image_recipes.recipes()


def export_named(name: str, path: Path, *, progress: images.Progress) -> str:
    """Write the newest image of this name to a tar file; return the file's SHA-256 in hex."""
    if path.suffix != image_archive.SUFFIX:
        raise InputError(f"'{path}' does not end with {image_archive.SUFFIX}")
    image = images.find(name)
    if image is None:
        raise InputError(
            f"there is no image '{name}' here", hint="`lab image list` shows those that are"
        )
    return image_archive.export(image, path, progress)


def remove_named(name: str) -> tuple[list[str], int]:
    """Remove an image that no running guest uses; return names, and bytes freed."""
    gone = images.remove(name, in_use=in_use())
    states, freed = _forget_states()
    return [*gone.names, *states], gone.bytes_freed + freed


def prune_all() -> tuple[list[str], int]:
    """Remove old builds and leftovers of dead builds; return names, and bytes freed."""
    gone = images.prune(in_use=in_use())
    states, freed = _forget_states()
    return [*gone.names, *states], gone.bytes_freed + freed


def _forget_states() -> tuple[list[str], int]:
    """Remove the snapshots of removed images; return names, and bytes freed."""
    left = {i.directory.name for i in images.list_images().images}
    used = {r.warm for r in guests.every() if guests.is_alive(r)}
    names, freed = snapshots.remove_all(images=left, in_use=used)
    return [f"snapshot {name}" for name in names], freed


def in_use() -> set[str]:
    """Return the digests of the images that guests and runs under way use.

    A sealed guest has no QEMU between two of its cells, and a run none between two guests.
    """
    records = [r for r in guests.every() if guests.is_alive(r) or guests.is_owned(r)]
    directories = {r.image for r in records}
    names = _names_of_runs()
    return {
        i.digest
        for i in images.list_images().images
        if i.directory.name in directories or i.name.partition("+")[0] in names
    }


def _names_of_runs() -> set[str]:
    """Return the names of the images of runs that are being made, without kernel and mdadm."""
    found = set[str]()
    for run in runs.every():
        if makers.holder(run.directory) is None:
            continue
        with suppress(LabError):  # it is a run that cannot be read
            cells = run.load_run().cells
            found |= {one.cell.guest.image.partition("+")[0] for one in cells}
    return found
