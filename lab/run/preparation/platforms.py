"""Image, QEMU and accelerator of a run's guests."""

from __future__ import annotations

from dataclasses import dataclass

from lab.compile.guest.steps import Site
from lab.host import images
from lab.host.guest.libvirt import hypervisor
from lab.host.images import kits
from lab.host.system import accelerator, paths
from lab.host.system.accelerator import Accelerator
from lab.model.execution.job import SealedKit
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Clock, Guest
from lab.run.preparation import systems


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Image, QEMU and accelerator of guests."""

    accelerator: Accelerator
    image: Image
    emulator: str
    sealed: SealedKit | None = None
    """Boot files of guests in virtual time; ``None``: real time."""


def prepare(
    guest: Guest,
    progress: images.Progress,
    *,
    accept_expired: bool = False,
    image: Image | None = None,
) -> Platform:
    """Return image, QEMU and accelerator; build a missing image.

    ``accept_expired``: also from an archive whose Release files have expired. ``image``: use it
    instead of the current one.
    """
    emulator = accelerator.emulator()
    hypervisor.require()  # fails before a minute is spent on an image
    image = image or systems.find(guest)
    virtual = guest.clock is Clock.VIRTUAL
    if image is not None:
        images.verify(image)
    paths.check_length(virtual=virtual)
    if image is None:
        image = systems.build(guest, progress, accept_expired=accept_expired)
        images.verify(image)
    kit = kits.prepare(guest, image, progress) if virtual else None
    found = accelerator.find(image.kernel)
    return Platform(accelerator=found, image=image, emulator=emulator, sealed=kit)


def site_of(place: Platform, directory: str, *, as_root: bool) -> Site:
    """Return the facts about the guest's host that the compiler needs."""
    image = place.image
    return Site(
        directory=directory,
        accelerator=place.accelerator.kind,
        emulator=place.emulator,
        machine_type="pc",
        image_disk=str(image.disk),
        kernel=str(image.kernel) if image.kernel else None,
        initrd=str(image.initrd) if image.initrd else None,
        as_root=as_root,
    )
