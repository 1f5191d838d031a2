"""The kit of a sealed guest, by the engine that runs it."""

from __future__ import annotations

from lab.core.errors import LabError
from lab.host.images import native, virtual_time
from lab.model.execution.job import SealedKit
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Engine, Guest


def prepare(
    guest: Guest, image: Image, say: virtual_time.Say = lambda _what, _part: None
) -> SealedKit:
    """Return the kit of a guest; make it if missing. ``InputError``: the engine cannot run it."""
    if guest.engine is Engine.NATIVE or (guest.engine is Engine.AUTO and not why_emulated(image)):
        return native.prepare(guest, image, say)
    return virtual_time.prepare(guest, image, say)


def why_emulated(image: Image) -> str:
    """Return why this host cannot run the image's guests natively; or empty."""
    try:
        native.check()
        native.check_image(image)
    except LabError as error:
        return error.message.removeprefix("guest.engine: ").partition(": set guest.engine")[0]
    return ""
