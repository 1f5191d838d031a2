"""What every guest of a run needs, found before any is started."""

from __future__ import annotations

from dataclasses import dataclass

from lab import catalog
from lab.compile.guest import Site
from lab.compile.scenario import Compiled
from lab.host import accelerator, hypervisor, image_recipes, images
from lab.host.accelerator import Accelerator
from lab.model.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What every guest of a run needs, found once."""

    accelerator: Accelerator
    image: Image
    emulator: str


def check_images(compiled: Compiled) -> None:
    """Every image that a cell names is here, or can be built; ``InputError`` names the key."""
    known = catalog.image_recipes()
    for cell in (compiled.base, *compiled.cells):
        name = cell.guest.image
        if name not in known and images.find(name) is None:
            axis = ("matrix", "guest.image")
            path = axis if "guest.image" in cell.axes else ("guest", "image")
            raise compiled.document.wrong(
                path,
                f"there is no image '{name}': known are {', '.join(known)};"
                " `lab image import` brings another",
            )


def prepare(image_name: str, progress: images.Progress) -> Place:
    """Image, QEMU and accelerator; builds the image where it is missing."""
    emulator = accelerator.emulator()
    hypervisor.require()  # before a minute is spent on an image
    image = images.find(image_name)
    if image is None:
        name, recipe = image_recipes.load(image_name)
        image = images.build(recipe, name=name, progress=progress)
    images.verify(image)
    found = accelerator.find(image.kernel)
    return Place(accelerator=found, image=image, emulator=emulator)


def site_of(place: Place, directory: str, *, as_root: bool) -> Site:
    """Where a guest will run, for the compiler."""
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
