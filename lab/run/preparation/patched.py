"""Images with md's modules or mdadm built from the source of their own version, and patched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.compile.image.series import Target, build_tree
from lab.host import images
from lab.host.images import buildtree
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.buildtree import Built, KeptTree
from lab.host.images.series import Series
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Guest
from lab.run.preparation import systems


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a guest's md or mdadm, built without any patch."""

    target: Target
    image: Image
    tree: KeptTree
    unpatched: Built
    work: Path
    progress: images.Progress

    def built(self, series: Series) -> Mapping[str, bytes]:
        """Return what is built with a series, by file name.

        ``InputError``: it does not apply or does not compile, or its modules need others.
        """
        self.progress(f"building {self.target} with the series", None)
        found = buildtree.patched(self.tree, self.unpatched, series, self.work)
        buildtree.check_depends(self.unpatched.files, found)
        return found

    def image_with(self, built: Mapping[str, bytes]) -> Image:
        """Return the image with these files in place of its own."""
        return buildtree.with_built(self.image, self.target, built, self.progress)


@contextmanager
def source_of(
    guest: Guest, target: Target, progress: images.Progress, *, accept_expired: bool
) -> Iterator[Source]:
    """Yield the source of what a guest runs; build what is missing.

    ``InputError``: the image has no headers, or the archive has dropped the source.
    """
    recipe = systems.recipe_of(guest)
    image = systems.find(guest) or systems.build(guest, progress, accept_expired=accept_expired)
    images.verify(image)
    recipe = image_recipes.as_accepted(recipe, accept_expired=accept_expired)
    plan = build_tree(target, recipe, image.manifest, buildtree.hook())
    with (
        buildtree.held(plan, image.name, progress) as tree,
        image_workspace.workspace(f"{guest.image}-patch") as work,
    ):
        progress(f"building {target} without the series", None)
        yield Source(
            target=target,
            image=image,
            tree=tree,
            unpatched=buildtree.unpatched(tree, work),
            work=work,
            progress=progress,
        )
