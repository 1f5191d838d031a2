"""Transfer of images from the scheduler's machine to a host, with SHA-256 checks.

The client sends the image's name and its own digests of the files. The scheduler's process reads
its own images (`Shelf`); a host requests them (`fetch_image`). A partial image is stored with
unfinished builds, and is removed with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from lab.core.errors import HostError, unwritable
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.model.image.manifest import Image, ImageFile, ImageManifest, boot_files, directory_name

CHUNK: Final = 4 * 1024**2
"""Most bytes per request."""


class Ask(Protocol):
    """Access of a host to the scheduler's images."""

    def has(self, image: str, sums: Mapping[str, str]) -> bool:
        """Return whether an image with exactly these files exists. ``HostError``: no reply."""

    def read(self, image: str, file: str, offset: int) -> bytes:
        """Return at most `CHUNK` bytes of a file; none at its end. ``HostError``: no reply."""


class Shelf:
    """The images that the scheduler's process offers to hosts. Other files are not accessible."""

    def __init__(self) -> None:
        self._found: dict[str, Image] = {}

    def has(self, image: str, sums: Mapping[str, str]) -> bool:
        """Return whether an image with exactly these files exists here, by name and SHA-256."""
        self._found.pop(image, None)
        found = self._find(image)
        return found is not None and sums_of(found.manifest) == dict(sums)

    def read(self, image: str, file: str, offset: int) -> bytes:
        """Return at most `CHUNK` bytes of an image's file; empty for any other file."""
        found = self._find(image)
        if found is None or file not in found.manifest.files:
            return b""
        try:
            with (found.directory / file).open("rb") as opened:
                opened.seek(offset)
                return opened.read(CHUNK)
        except OSError:
            return b""

    def _find(self, name: str) -> Image | None:
        if name not in self._found and (image := find_image(name)) is not None:
            self._found[name] = image
        return self._found.get(name)


def sums_of(manifest: ImageManifest) -> dict[str, str]:
    """Return the SHA-256 of each file of an image."""
    return {name: file.sha256 for name, file in manifest.files.items()}


def find_image(name: str) -> Image | None:
    """Return the image in the directory of that name; ``None``: it does not exist here."""
    found = image_store.list_images().images
    return next((image for image in found if image.directory.name == name), None)


def fetch_image(ask: Ask, manifest: ImageManifest, say: Callable[[str], None]) -> Image:
    """Return the client's image; fetch it if it does not exist here. ``HostError``: it cannot be.

    All names in paths are constants of the lab, or were checked by `ImageManifest`.
    """
    name = directory_name(manifest.name, manifest.digest)
    if (here := find_image(name)) is not None:
        return here
    if set(manifest.files) != set(boot_files(manifest.boot)):
        raise HostError(f"the client wants other files of the image '{name}' than an image has")
    with image_workspace.exclusive(f"fetch-{name}", waiting=lambda: None):
        if (here := find_image(name)) is not None:
            return here
        if not ask.has(name, sums_of(manifest)):
            raise HostError(
                f"the image '{name}', as the client has it, is neither here nor on the scheduler's"
                " machine",
                hint="copy the client's image there, or `lab image build` here, then run again",
            )
        space = sum(file.size for file in manifest.files.values())
        image_workspace.check_space(manifest.name, space)
        say(f"fetching the image {name}, {space / 1e6:.0f} MB")
        with image_workspace.workspace(manifest.name) as work:
            made = work / "image"
            made.mkdir()
            for file in boot_files(manifest.boot):
                _fetch(ask, name, file, manifest.files[file], made / file)
            return image_store.publish(made, manifest)


def _fetch(ask: Ask, image: str, file: str, expected: ImageFile, target: Path) -> None:
    """Fetch one file in chunks; ``HostError``: size or digest differ from the expected ones."""
    digest, size = hashlib.sha256(), 0
    try:
        with target.open("xb") as out:
            while size < expected.size and (chunk := ask.read(image, file, size)):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise unwritable(target, error) from error
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise HostError(
            f"'{file}' of the image '{image}' did not come as the client has it: {size} of "
            f"{expected.size} bytes, SHA-256 {digest.hexdigest()[:12]} instead of "
            f"{expected.sha256[:12]}",
            hint="it is corrupt on the scheduler's machine, or was changed meanwhile: run again",
        )
