"""The kit of a sealed guest, by the engine that runs it."""

from __future__ import annotations

from lab.host.images import native, virtual_time
from lab.model.execution.job import SealedKit
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Engine, Guest


def prepare(
    guest: Guest, image: Image, say: virtual_time.Say = lambda _what, _part: None
) -> SealedKit:
    """Return the kit of a guest; make it if missing. ``InputError``: the engine cannot run it."""
    if guest.engine is Engine.NATIVE:
        return native.prepare(guest, image, say)
    return virtual_time.prepare(guest, image, say)
