"""A patch series as the versions of a bisection: the source, then one patch more each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.capabilities.bisect import model as bisection
from lab.compile.image.series import target_of
from lab.core.errors import InputError
from lab.host import images
from lab.host.images import series as image_series
from lab.host.images import workspace as image_workspace
from lab.host.images.series import Series
from lab.model.image.axis import Axis
from lab.model.image.package import Version
from lab.model.scenario.guest import Guest
from lab.run.preparation.patched import source_of

BASE = "without the series"


def read(source: str, tree: Path | None) -> tuple[bisection.Series, tuple[Version, ...]]:
    """Return a series and its versions.

    ``InputError``: it cannot be read, or is for something else than md or mdadm.
    """
    with _read(source, tree) as series:
        target = target_of(image_series.titles(series))
        place = Path(source)
        return bisection.Series(
            source=str(place.absolute()) if place.exists() else source,
            tree=str(tree.absolute()) if tree is not None else None,
            target=target.value,
            sha256=tuple(patch.sha256 for patch in series.patches),
        ), tuple(
            Version(
                axis=Axis.PATCH,
                name=f"patch-{number}",
                version=str(number),
                branch="series",
                release="",
                says=says,
            )
            for number, says in enumerate((BASE, *(patch.title for patch in series.patches)))
        )


def image_with(
    series: bisection.Series,
    version: Version,
    guest: Guest,
    progress: images.Progress,
    *,
    accept_expired: bool,
) -> str:
    """Return the name of the guest's image with the patches up to this one; build what is missing.

    ``InputError``: a patch does not apply or does not compile, or the series has changed.
    """
    tree = Path(series.tree) if series.tree is not None else None
    with _read(series.source, tree) as found:
        if tuple(patch.sha256 for patch in found.patches) != series.sha256:
            raise InputError(
                f"the series '{series.source}' has changed since the bisection began",
                hint="begin a new one",
            )
        some = replace(found, patches=found.patches[: int(version.version)])
        target = target_of(image_series.titles(found))
        with source_of(guest, target, progress, accept_expired=accept_expired) as source:
            files = source.built(some) if some.patches else source.unpatched.files
            return source.image_with(files).name


@contextmanager
def _read(source: str, tree: Path | None) -> Iterator[Series]:
    with image_workspace.workspace("series") as work:
        yield image_series.read(source, tree, work)
