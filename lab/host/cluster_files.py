"""Images and saved guests from the scheduler's side to a host: once, by digest, whole or not.

The scheduler's process answers two questions (`Shelf`); a host asks them (`fetch_image`,
`fetch_state`). What is half fetched lies where half-made images and states lie, and goes with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, Protocol

from lab.errors import HostError, unwritable
from lab.host import image_store, image_workspace, paths, warm
from lab.model.base import Model
from lab.model.cluster import StateWanted
from lab.model.image import Image, ImageFile, ImageManifest

CHUNK: Final = 4 * 1024**2
"""Bytes that are asked for at once."""


class Parcel(Model):
    """What can be fetched: files with their digests, and the document that belongs to them."""

    files: dict[str, ImageFile] = {}
    about: str = ""
    """JSON; empty: there is no such thing here."""


class Ask(Protocol):
    """How a host asks the scheduler's side."""

    def describe(self, kind: str, name: str) -> Parcel:
        """What of that name there is."""

    def read(self, kind: str, name: str, file: str, offset: int) -> bytes:
        """At most `CHUNK` bytes of a file; none at its end. ``HostError``: nobody answers."""


class Shelf:
    """What the scheduler's side has for hosts. It gives nothing but what it describes."""

    def __init__(self) -> None:
        self._parcels: dict[tuple[str, str], tuple[Path, Parcel]] = {}

    def describe(self, kind: str, name: str) -> Parcel:
        """What of that name there is; its files are read through once."""
        found = self._find(kind, name)
        if found is None:
            self._parcels.pop((kind, name), None)
            return Parcel()
        directory, about, files = found
        known = self._parcels.get((kind, name))
        if known is None or known[0] != directory or known[1].about != about:
            whole = files or {f: _file_of(directory / f) for f in warm.FILES}
            known = (directory, Parcel(files=whole, about=about))
            self._parcels[kind, name] = known
        return known[1]

    def read(self, kind: str, name: str, file: str, offset: int) -> bytes:
        """At most `CHUNK` bytes of a file that was described; none else."""
        directory, parcel = self._parcels.get((kind, name), (Path(), Parcel()))
        if file not in parcel.files:
            return b""
        try:
            with (directory / file).open("rb") as opened:
                opened.seek(offset)
                return opened.read(CHUNK)
        except OSError:
            return b""

    @staticmethod
    def _find(kind: str, name: str) -> tuple[Path, str, dict[str, ImageFile]] | None:
        if kind == "image":
            for image in image_store.list_images().images:
                if image.directory.name == name:
                    text = image.manifest.model_dump_json()
                    return image.directory, text, image.manifest.files
        elif kind == "state" and (state := warm.find_portable(name)) is not None:
            about = {k: v for k, v in asdict(state).items() if k != "directory"}
            about["saved_image"] = state.saved_image or str(paths.images() / state.image)
            return state.directory, json.dumps(about), {}
        return None


def find_image(name: str) -> Image | None:
    """The image in the directory of that name, if it is here."""
    found = image_store.list_images().images
    return next((image for image in found if image.directory.name == name), None)


def fetch_image(ask: Ask, name: str, say: Callable[[str], None]) -> Image:
    """The image of that name, fetched where it is not here; ``HostError``: it cannot be."""
    if (here := find_image(name)) is not None:
        return here
    with image_workspace.exclusive(f"fetch-{name}", waiting=lambda: None):
        if (here := find_image(name)) is not None:
            return here
        parcel = ask.describe("image", name)
        if not parcel.about:
            raise HostError(
                f"the image '{name}' is neither here nor on the scheduler's side",
                hint="`lab image build` or `lab image import` there, then run again",
            )
        manifest = ImageManifest.model_validate_json(parcel.about)
        space = sum(file.size for file in parcel.files.values())
        image_workspace.check_space(manifest.name, space)
        say(f"fetching the image {name}, {space / 1e6:.0f} MB")
        with image_workspace.workspace(manifest.name) as work:
            made = work / "image"
            made.mkdir()
            for file, expected in manifest.files.items():
                _fetch(ask, "image", name, file, expected, made / file)
            return image_store.publish(made, manifest)


def fetch_state(ask: Ask, wanted: StateWanted, say: Callable[[str], None]) -> bool:
    """Fetch a saved guest, if the scheduler's side has it; whether it is here now."""
    with warm.baking(wanted.key):
        if warm.find(wanted.key) is not None:
            return True
        parcel = ask.describe("state", wanted.portable)
        if set(parcel.files) != set(warm.FILES):
            return False
        space = sum(file.size for file in parcel.files.values())
        say(f"fetching a saved guest, {space / 1e6:.0f} MB")
        with warm.making(wanted.key) as place:
            for file, expected in parcel.files.items():
                _fetch(ask, "state", wanted.portable, file, expected, place / file)
            (place / warm.ABOUT).write_text(parcel.about, encoding="utf-8")
            warm.adopt(place, wanted.key, wanted.portable, Path(wanted.image_disk))
    return True


def _fetch(ask: Ask, kind: str, name: str, file: str, expected: ImageFile, target: Path) -> None:
    """One file, chunk by chunk; ``HostError`` where what came is not what was described."""
    digest, size = hashlib.sha256(), 0
    try:
        with target.open("xb") as out:
            while size < expected.size and (chunk := ask.read(kind, name, file, size)):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise unwritable(target, error) from error
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise HostError(
            f"'{file}' of the {kind} '{name}' did not come as the scheduler's side described it:"
            f" {size} of {expected.size} bytes, SHA-256 {digest.hexdigest()[:12]} instead of"
            f" {expected.sha256[:12]}",
            hint="it is damaged there, or was changed meanwhile: run again",
        )


def _file_of(path: Path) -> ImageFile:
    return ImageFile(size=path.stat().st_size, sha256=image_store.file_sha256(path))
