"""Export and import of an image as one file, so that another host gets the same bytes and results.

Two builds of a recipe differ: the archive has newer packages, and ext4 stores times of the build. A
tar file holds the image's files, its manifest, and the boot files for virtual time if they were
made here. An archive is untrusted: only regular files are read from it, with the names and sizes in
the manifest. Its boot files are kept with the image and boot no other one.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import IO, Final

from pydantic import ValidationError

from lab.core import wording
from lab.core.errors import InputError
from lab.core.units import MIB
from lab.host.images import store as image_store
from lab.host.images import virtual_time as sealed_kit
from lab.host.images.store import MANIFEST, Progress
from lab.host.system import tars, untrusted
from lab.model.image.manifest import Image, ImageManifest, contents_digest, image_at

SUFFIX: Final = ".tar"
_MOST: Final = 1 * MIB
"""Most bytes of a manifest."""
_ENTRIES: Final = 64
"""Most entries; `export` writes some ten."""
_KIT: Final = 64 * MIB
"""Most bytes of each boot file."""


def export(image: Image, path: Path, progress: Progress) -> str:
    """Write the image to a new tar file, the same bytes each time; return its SHA-256, in hex.

    ``HostError``: the image is corrupt.
    """
    progress("reading the image", 0.0)
    image_store.verify(image, deep=True)
    boot = sealed_kit.boot_place(image)
    kit = [boot / name for name in sealed_kit.BOOT_FILES if (boot / name).is_file()]
    directory = sealed_kit.archived_kit(image).name
    parts = {MANIFEST: image.directory / MANIFEST}
    parts |= {name: image.directory / name for name in sorted(image.manifest.files)}
    parts |= {f"{directory}/{part.name}": part for part in kit}
    with untrusted.new(path) as made:
        with tarfile.open(made, "x", format=tarfile.USTAR_FORMAT) as tar:
            for number, (name, part) in enumerate(parts.items()):
                progress(f"writing '{name}'", number / len(parts))
                entry = tarfile.TarInfo(name)
                entry.size = part.stat().st_size
                with part.open("rb") as file:
                    tar.addfile(entry, file)
        return image_store.file_sha256(made)


def unpack(archive: Path, work: Path, source: str) -> ImageManifest:
    """Unpack into ``work/image`` and check the hashes.

    ``InputError``: it is not an archive of an image, or it is corrupt.
    """
    made = work / "image"
    made.mkdir()
    try:
        with tars.opened(archive, "r:", entries=_ENTRIES) as tar:
            manifest = _manifest(tar, source)
            if manifest.digest != contents_digest(manifest.files):
                raise InputError(f"'{source}': the digest in its '{MANIFEST}' is not its files'")
            for name, expected in manifest.files.items():
                if _copy(tar, name, made / name, expected.size, source) != expected.sha256:
                    raise InputError(
                        f"'{source}' is corrupt: the hash of '{name}' is not the one in its"
                        f" '{MANIFEST}'"
                    )
            _take_kit(tar, sealed_kit.archived_kit(image_at(made, manifest)), source)
    except (tarfile.TarError, ValueError) as error:
        raise InputError(
            f"'{source}' is not an archive of an image: {error}",
            hint="`lab image export` writes one",
        ) from error
    return manifest


def _manifest(tar: tarfile.TarFile, source: str) -> ImageManifest:
    text = _opened(tar, MANIFEST, _MOST, source).read()
    try:
        return ImageManifest.model_validate_json(text)
    except ValidationError as error:
        reason = wording.reason(error, ImageManifest)
        raise InputError(f"'{source}': its '{MANIFEST}' is not valid: {reason}") from error


def _opened(tar: tarfile.TarFile, name: str, most: int, source: str) -> IO[bytes]:
    try:
        entry = tar.getmember(name)
    except KeyError:
        raise InputError(
            f"'{source}' is not an archive of an image: '{name}' is missing",
            hint="`lab image export` writes one",
        ) from None
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.size > most:
        raise InputError(f"'{source}': '{name}' must be a regular file of at most {most} bytes")
    if entry.offset_data + entry.size > Path(str(tar.name)).stat().st_size:
        raise InputError(f"'{source}': '{name}' is larger than its part of the archive")
    file = tar.extractfile(entry)
    assert file is not None
    return file


def _copy(tar: tarfile.TarFile, name: str, target: Path, most: int, source: str) -> str:
    """Copy a file; return its SHA-256 in hex."""
    with _opened(tar, name, most, source) as file, target.open("xb") as new:
        shutil.copyfileobj(file, new, MIB)
    return image_store.file_sha256(target)


def _take_kit(tar: tarfile.TarFile, place: Path, source: str) -> None:
    """Unpack the boot files, if the archive has those of this version's sources."""
    wanted = [f"{place.name}/{name}" for name in sealed_kit.BOOT_FILES]
    if not set(wanted) <= set(tar.getnames()):
        return
    place.mkdir()
    for name in wanted:
        _copy(tar, name, place.parent / name, _KIT, source)
