"""The directory of guest images: list, verify, publish, remove.

::

    images/debian-12-0123456789ab/    disk.qcow2 kernel initrd manifest.json build.log
    images/.work-….part/              an image in progress
    images/.tree-…                    compiler and headers for `lab patch`; `prune` removes them
    images/.lock-…                    held while something is made; removed afterwards

An image is complete or absent: it is made in a working directory and renamed into place. Nothing
outside the directory is touched, and no symbolic link out of it is followed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lab.core import wording
from lab.core.errors import HostError, InputError
from lab.host.images.workspace import (
    LOCK,
    TREE,
    home,
    remove_free_lock,
)
from lab.host.system import files, leftovers, made, paths
from lab.host.system.files import disk_usage
from lab.model.image.manifest import (
    NAME,
    Image,
    ImageManifest,
    ImageSource,
    directory_name,
    image_at,
)

MANIFEST = "manifest.json"

Progress = Callable[[str, float | None], None]
"""Receives a description of the current work, and the fraction done (0 to 1) if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry of the images directory that is not an image."""

    name: str
    reason: str
    """Completes the sentence "'NAME' is skipped: …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The contents of the images directory."""

    images: tuple[Image, ...]
    """Sorted by name, then newest first."""
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Result of a removal."""

    names: tuple[str, ...]
    """Names of directories."""
    bytes_freed: int
    """Disk space; holes in files do not count."""
    skipped: tuple[Skipped, ...] = ()


def list_images() -> Inventory:
    """Return all images, and other entries. An unreadable entry is reported, and the listing
    continues."""
    images: list[Image] = []
    skipped: list[Skipped] = []
    for entry in _entries():
        if entry.name.startswith("."):
            continue
        found = _read(entry)
        if isinstance(found, Image):
            images.append(found)
        else:
            skipped.append(Skipped(name=entry.name, reason=found))
    images.sort(key=lambda i: (i.manifest.arrived, i.digest), reverse=True)
    images.sort(key=lambda i: i.name)
    return Inventory(images=tuple(images), skipped=tuple(skipped))


def find_by_recipe(name: str, digest: str) -> Image | None:
    """Return the newest image of this name that was built from exactly this recipe."""
    for image in list_images().images:
        if image.name == name and image.manifest.recipe_digest == digest:
            return image
    return None


def find_newest(name: str) -> Image | None:
    """Return the newest image of this name, built or imported."""
    return next((image for image in list_images().images if image.name == name), None)


def verify(image: Image, *, deep: bool = False) -> None:
    """``HostError`` unless all files have the recorded sizes (``deep``: and hashes)."""
    if image.manifest.source is ImageSource.BUILT:
        hint = f"build it again: lab image build {image.name}"
    else:
        hint = f"remove it (lab image remove {image.name}) and import it again"
    for name, expected in image.manifest.files.items():
        path = image.directory / name
        try:
            size = path.stat().st_size
            actual = file_sha256(path) if deep and size == expected.size else expected.sha256
        except OSError as error:
            raise HostError(
                f"the image '{image.name}' is corrupt: '{path}' cannot be read: {error.strerror}",
                hint=hint,
            ) from error
        if size != expected.size:
            raise HostError(
                f"the image '{image.name}' is corrupt: '{path}' has {size} bytes, expected"
                f" {expected.size}",
                hint=hint,
            )
        if actual != expected.sha256:
            raise HostError(
                f"the image '{image.name}' is corrupt: the contents of '{path}' have changed",
                hint=hint,
            )


def remove(name_or_digest: str, *, in_use: Collection[str] = ()) -> Removed:
    """Remove every image of this name, or the one whose digest (or directory) begins so.

    ``InputError``: there is none, several digests match, or it is ``in_use`` (digests).
    """
    images = list_images().images
    chosen = [i for i in images if i.name == name_or_digest]
    if not chosen:
        chosen = [i for i in images if i.directory.name == name_or_digest]
    if not chosen and re.fullmatch(r"[0-9a-f]{6,64}", name_or_digest):
        chosen = [i for i in images if i.digest.startswith(name_or_digest)]
        if len({i.digest for i in chosen}) > 1:
            raise InputError(
                f"several digests of images begin with '{name_or_digest}': give more digits"
            )
    if not chosen:
        known = ", ".join(sorted({i.name for i in images})) or "none"
        raise InputError(f"there is no image '{name_or_digest}' (known: {known})")
    for image in chosen:
        if image.digest in in_use:
            raise InputError(
                f"the image '{image.directory.name}' is in use by a guest or a run",
                hint="`lab ps` shows guests, `lab down` ends them; a run under way ends first",
            )
    freed = sum(_remove_directory(image.directory) for image in chosen)
    return Removed(names=tuple(i.directory.name for i in chosen), bytes_freed=freed)


def prune(*, keep: int = 1, in_use: Collection[str] = (), trees: bool = True) -> Removed:
    """Remove all but the ``keep`` newest images of each name, and leftovers of killed builds.

    An image whose digest is ``in_use`` stays. Other entries are reported and stay. ``trees``:
    remove build trees too, which `lab patch` keeps for the next series.
    """
    if keep < 0:
        raise InputError(f"the number of images to keep is {keep}: give 0 or more")
    names: list[str] = []
    freed = 0
    inventory = list_images()
    seen: dict[str, int] = {}
    for image in inventory.images:
        seen[image.name] = seen.get(image.name, 0) + 1
        if seen[image.name] > keep and image.digest not in in_use:
            freed += _remove_directory(image.directory)
            names.append(image.directory.name)
    for entry in _entries():
        if entry.is_symlink():
            continue
        space = disk_usage(entry)
        left = entry in leftovers.abandoned([entry])
        if left:
            leftovers.discard(entry)
        if left or (trees and entry.name.startswith(TREE) and made.drop(entry, lambda: True)):
            freed += space
            names.append(entry.name)
        elif entry.name.startswith(LOCK) and entry.is_file():
            remove_free_lock(entry)
    made.remove_free_locks(*paths.images().glob(".*.lock"))
    return Removed(names=tuple(names), bytes_freed=freed, skipped=inventory.skipped)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(work: Path, manifest: ImageManifest) -> Image:
    """Write the manifest into a directory with an image's files, and rename it into place.

    An intact image of the same digest stays instead, since guests may use it.
    """
    for path in work.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o444)
    (work / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    work.chmod(0o755)
    target = home() / directory_name(manifest.name, manifest.digest)
    present = _read(target)
    if isinstance(present, Image):
        try:
            verify(present)
        except HostError:
            pass
        else:
            return present
    if os.path.lexists(target):
        _remove_directory(target)
    files.publish(work, target)
    return image_at(target, manifest)


def check_name(name: str) -> None:
    """``InputError`` for an invalid image name."""
    if not re.fullmatch(NAME, name):
        raise InputError(
            f"'{name}' cannot be an image's name",
            hint="use lower-case letters, digits, '.', '+' and '-'; begin with a letter or digit",
        )


def _entries() -> list[Path]:
    try:
        return sorted(paths.images().iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError(f"'{paths.images()}' cannot be read: {error.strerror}") from error


def _read(directory: Path) -> Image | str:
    """Return the image in a directory, or the reason why it is not one."""
    if directory.is_symlink() or not directory.is_dir():
        return "it is not a directory"
    try:
        text = (directory / MANIFEST).read_bytes()
        manifest = ImageManifest.model_validate_json(text)
    except FileNotFoundError:
        return f"it has no '{MANIFEST}'"
    except OSError as error:
        return f"its '{MANIFEST}' cannot be read: {error.strerror}"
    except ValidationError as error:
        return f"its '{MANIFEST}' is not valid: {wording.reason(error, ImageManifest)}"
    if directory.name != directory_name(manifest.name, manifest.digest):
        return f"its '{MANIFEST}' belongs to another image"
    for name in manifest.files:
        if not (directory / name).is_file():
            return f"its file '{name}' is missing"
    return image_at(directory, manifest)


def _remove_directory(directory: Path) -> int:
    """Rename an image away, then delete it, so that no process sees a partial image; return bytes
    freed."""
    freed = disk_usage(directory)
    if directory.is_symlink() or not directory.is_dir():
        raise HostError(f"'{directory}' is not an image directory of the lab and was not removed")
    try:
        with made.making(directory) as aside:
            files.move(directory, aside)
    except HostError as error:
        raise HostError(f"'{directory}' could not be removed: {error.message}") from error
    return freed
