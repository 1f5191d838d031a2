"""What a patch series is for, and the build tree in which its program is built. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from lab.compile.image.build import RootFilesystem, bootstrap, hook_of, of_kernel_suite
from lab.core.errors import InputError
from lab.model.image.manifest import ImageManifest
from lab.model.image.recipe import KERNEL_PREFIX, ImageRecipe

TREE: Final = RootFilesystem(root="root", hook="buildtree.sh")
REBUILD: Final = "rebuild.sh"


class Target(StrEnum):
    """What a series changes."""

    MD = "md"
    """md's kernel modules."""
    MDADM = "mdadm"


_KERNEL: Final = re.compile(
    r"(arch|block|certs|crypto|Documentation|drivers|fs|include|init|io_uring|ipc|kernel|lib|LICENSES"
    r"|mm|net|rust|samples|scripts|security|sound|tools|usr|virt)/|MAINTAINERS$|Kbuild$|Kconfig$"
)
"""Paths of Linux; a path of mdadm's source is none of these (4.2 to 4.6)."""
_OF_MD: Final = re.compile(
    r"drivers/md/(md[.-][\w-]*\.[ch]|md\.[ch]|raid[\w-]*\.[ch]|linear\.[ch]|md-linear\.[ch]"
    r"|multipath\.[ch]|md-multipath\.[ch]|faulty\.[ch]|md-faulty\.[ch]|bitmap\.[ch]|Makefile)"
)
"""md's own files; the device mapper and bcache are in the same directory."""
UNBUILT: Final = ("Documentation/", "MAINTAINERS")
"""Paths of Linux that affect no module; their changes are left out."""


def unbuilt(path: str) -> bool:
    """Return whether this path of Linux affects no module."""
    return path.startswith(UNBUILT)


def target_of(files: Mapping[str, Sequence[str]], against: str | None = None) -> Target:
    """Return what a series is for, from the paths of each patch, by its title.

    ``against``: the target that the user gave. ``InputError``: a path leaves the source, is
    another part of the kernel, or belongs to the other target.
    """
    paths = [(title, path) for title, own in files.items() for path in own]
    if not paths:
        raise InputError("the series changes no file: expected a patch of md or of mdadm")
    for title, path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise InputError(f"'{title}' changes '{path}', which is outside of the source")
    built = [(title, path) for title, path in paths if not unbuilt(path)]
    if not built:
        raise InputError("the series changes documentation only: there is nothing to build")
    of_kernel = [(title, path) for title, path in built if _KERNEL.match(path)]
    of_mdadm = [(title, path) for title, path in built if not _KERNEL.match(path)]
    target = Target(against) if against else (Target.MD if of_kernel else Target.MDADM)
    strangers = of_mdadm if target is Target.MD else of_kernel
    if strangers:
        title, path = strangers[0]
        other = "mdadm" if target is Target.MD else "Linux"
        raise InputError(
            f"'{title}' changes '{path}' of {other}, and the series is for {target}: give a series"
            " for one of the two"
        )
    for title, path in of_kernel:
        if not _OF_MD.fullmatch(path):
            raise InputError(
                f"'{title}' changes '{path}', which is not md: expected md's own files in"
                " drivers/md (md*, raid*), since only md's modules are built"
            )
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTree:
    """A root file system with compiler, headers and build tools, for one image."""

    target: str
    """A :class:`Target`, or ``linux``."""
    version: str
    """The kernel's release, mdadm's Debian version, or the release of the compiler."""
    key: str
    """Name of its directory."""
    packages: tuple[str, ...]
    recipe: ImageRecipe

    def command(self, work: Path) -> tuple[str, ...]:
        """Return the command that fills ``work/root``, and leaves ``work/source.tar``."""
        return bootstrap(self.recipe, self.packages, TREE, work, (hook_of(TREE, work),))


def build_tree(
    target: Target, recipe: ImageRecipe, manifest: ImageManifest, hook: str
) -> BuildTree:
    """Return the build tree for an image; ``hook``: the text of its script.

    ``InputError``: the image has no headers, or no mdadm.
    """
    version = _version(target, recipe, manifest)
    if target is Target.MD:
        packages: tuple[str, ...] = (
            of_kernel_suite(recipe, f"linux-headers-{version}"),
            of_kernel_suite(recipe, "linux-source"),
            *("make", "xz-utils"),
        )
        exact = manifest.packages[f"{KERNEL_PREFIX}{version}"]
    else:
        packages, exact = ("build-essential",), version
    return _tree(target, version, packages, recipe, exact, hook)


LINUX: Final = "linux"
_OF_LINUX: Final = (
    *("gcc", "libc6-dev", "make", "flex", "bison", "bc", "libelf-dev", "perl", "python3-minimal"),
    "xz-utils",
)


def linux_tree(recipe: ImageRecipe, hook: str) -> BuildTree:
    """Return the build tree for whole kernels, with the compiler of an image's release."""
    plain_recipe = recipe.model_copy(update={"package_files": (), "kernel_suite": None})
    return _tree(LINUX, recipe.suite, _OF_LINUX, plain_recipe, "", hook)


NATIVE: Final = "native"


def native_tree(recipe: ImageRecipe, manifest: ImageManifest, hook: str) -> BuildTree:
    """Return the build tree with the whole source of an image's kernel, for native guests.

    ``InputError``: the kernel is not a Debian package.
    """
    version, name = str(manifest.kernel_version), f"the image '{manifest.name}'"
    if recipe.modules is not None:
        raise InputError(
            f"guest.engine: {name} has kernel modules of its own ({recipe.modules.source}), which"
            " the native engine has not: set guest.engine to emulated"
        )
    if manifest.own_modules:
        raise InputError(
            f"guest.engine: {name} has kernel modules of its own"
            f" ({', '.join(manifest.own_modules[:3])}), which the native engine has not: set"
            " guest.engine to emulated"
        )
    exact = manifest.packages.get(f"{KERNEL_PREFIX}{version}")
    if recipe.kernel_file or exact is None:
        raise InputError(
            f"guest.engine: the native engine builds its kernel from Debian's source, and the"
            f" kernel {version} of {name} is not a Debian package: set guest.engine to emulated"
        )
    source = f"linux-source-{'.'.join(exact.split('.')[:2])}={exact}"
    return _tree(NATIVE, version, (*_OF_LINUX, source), recipe, exact, hook)


def _tree(
    target: str, version: str, packages: Sequence[str], recipe: ImageRecipe, exact: str, hook: str
) -> BuildTree:
    inputs = (target, exact, packages, recipe.suite, recipe.kernel_suite, recipe.components, hook)
    digest = hashlib.sha256(json.dumps(inputs).encode("ascii")).hexdigest()[:12]
    return BuildTree(
        target=target,
        version=version,
        key=f"{target}-{re.sub(r'[^A-Za-z0-9.+-]', '-', version)}-{digest}",
        packages=tuple(packages),
        recipe=recipe,
    )


def _version(target: Target, recipe: ImageRecipe, manifest: ImageManifest) -> str:
    name = manifest.name
    if target is Target.MDADM:
        if manifest.mdadm_version is None:
            raise InputError(f"the image '{name}' has no mdadm to patch: choose another --image")
        return manifest.mdadm_version
    version = manifest.kernel_version
    if recipe.modules is not None:
        raise InputError(
            f"the image '{name}' has modules of its own ({recipe.modules.source}), and a series is"
            " built for Debian's: choose its base as --image"
        )
    if recipe.kernel_file or f"{KERNEL_PREFIX}{version}" not in manifest.packages:
        raise InputError(
            f"the kernel {version} of the image '{name}' is not a Debian package, so its headers"
            " are unknown: choose another --image or --kernel"
        )
    assert version is not None
    return version


def hunk_of(patch: str, path: str, line: int) -> str:
    """Return the header of a file's hunk at a line of the old file; empty: there is none."""
    inside, found = False, ""
    for text in patch.splitlines():
        if text.startswith("--- "):
            inside = text[4:].split("\t")[0].rstrip() in (f"a/{path}", path)
        match = re.match(r"@@ -(\d{1,18})(?:,\d+)? \+\d+(?:,\d+)? @@", text)
        if inside and match and int(match[1]) == line:
            found = found or text[:80].rstrip()
    return found


_ORDER: Final = re.compile(r"\[[^\]]*?\b(\d{1,9})/(\d{1,9})\]")


def in_order(subjects: Iterable[str]) -> list[int]:
    """Return positions in the order of ``[PATCH n/m]``; as given unless each has its own n."""
    found = [match and int(match[1]) for match in map(_ORDER.search, subjects)]
    if None in found or len(set(found)) < len(found):
        return list(range(len(found)))
    return sorted(range(len(found)), key=lambda i: found[i] or 0)


def plain(subject: str) -> str:
    """Return a subject without ``[PATCH …]``."""
    return re.sub(r"^(\s*\[[^\]]*\])+\s*", "", subject).strip() or subject.strip()


def images_key(files: Mapping[str, bytes]) -> str:
    """Return a digest of what was built, for the name of an image with it."""
    parts = [f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in sorted(files.items())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")


def depends(module: bytes) -> tuple[str, ...]:
    """Return the modules that a module needs, from its ``.modinfo``."""
    match = _DEPENDS.search(module)
    return tuple(sorted(match[1].decode("ascii", "replace").split(","))) if match else ()
