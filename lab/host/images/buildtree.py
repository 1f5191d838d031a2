"""Build trees, which are kept, and images with programs that were built in them.

::

    images/.tree-KEY/    root/ (compiler, headers, build tools), source.tar, built-*/

A tree is made once for each kernel or mdadm. md's modules then take seconds. `lab clean
--old-builds` removes it. Both sides of a comparison are the same image with the same files
replaced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lab.compile.image import build as image_build
from lab.compile.image import log as image_log
from lab.compile.image.series import REBUILD, TREE, BuildTree, Target, depends, images_key
from lab.core import qemu_img
from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import MIB
from lab.host.images import ext4, sandbox
from lab.host.images import recipes as image_recipes
from lab.host.images import series as image_series
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.images.sandbox import Box
from lab.host.images.series import Series
from lab.host.images.store import Progress
from lab.host.system import files, made, process
from lab.model.image.manifest import Image, ImageFile

MOST: Final = 256 * MIB
"""Most bytes of a file that is built."""
LOG_LINES: Final = 3
"""Lines of a compiler's errors in a message."""
_SBIN: Final = "/usr/sbin"


def hook() -> str:
    """Return the script that fills a build tree."""
    return (image_recipes.directory() / TREE.hook).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTree:
    """A build tree on this host, which is not removed while it is held."""

    plan: BuildTree
    directory: Path

    @property
    def source(self) -> Path:
        """The unpacked source, as a tar file."""
        return self.directory / "source.tar"


@contextmanager
def held(plan: BuildTree, image: str, progress: Progress) -> Iterator[KeptTree]:
    """Yield a build tree for an image; make it in a minute or two if it is missing.

    ``InputError``: the archive has no headers or no source of the image's version. ``HostError``:
    space, a program or the archive is missing.
    """
    place = image_workspace.home() / f"{image_workspace.TREE}{plan.key}"

    def find() -> KeptTree | None:
        return KeptTree(plan=plan, directory=place) if place.is_dir() else None

    with made.held(
        place,
        find,
        lambda part: _make(plan, image, part, progress),
        seconds=image_workspace.MAKING,
        what=f"another process that makes or removes '{plan.key}'",
        begin=lambda: progress(f"making '{plan.key}'", None),
        durable=False,  # it has a hundred thousand files
    ) as tree:
        _hide(place)
        yield tree


def _hide(place: Path) -> None:
    """Let no other user reach a tree: foreign code may have left a program with the bit setuid."""
    if stat.S_IMODE(place.stat().st_mode) & 0o077:  # an earlier version made it
        place.chmod(0o700)


def _make(plan: BuildTree, image: str, part: Path, progress: Progress) -> None:
    image_workspace.check_space(plan.key, image_build.MODULES_FREE)
    with image_workspace.workspace(plan.key) as work:
        progress(f"fetching compiler and source for {plan.target} {plan.version}", None)
        for name, text in {
            "target": f"{plan.target}\n",
            "version": f"{plan.version}\n",
            TREE.hook: hook(),
        }.items():
            (work / name).write_text(text, encoding="utf-8")
        (work / "found").mkdir()
        log = work / "log"
        command = plan.command(image_build.seen_at(work))
        words = image_build.namespaced(image_build.bound(command, work), root=os.geteuid() == 0)
        env = {**image_workspace.environment(), **image_build.ENVIRONMENT}
        try:
            process.run(words, timeout=3600, log=log, env=env)
        except ToolError as error:
            raise _reason(process.tail(log), plan, image) from error
        part.mkdir(mode=0o700)
        for name in ("root", "source.tar"):
            files.move(work / name, part / name)


def _reason(log: str, plan: BuildTree, image: str) -> HostError | InputError:
    """Return the error of a build tree that could not be made, in one sentence."""
    said = next(
        (line.partition(": ")[2] for line in log.splitlines() if line.startswith("buildtree: ")), ""
    )
    missing = "Unable to locate package" in log or "has no installation candidate" in log
    missing = missing or re.search(r"Version '[^']*' for '[^']*' was not found", log) is not None
    if said or missing:
        why = said or f"the archive has no headers or source of {plan.version} any more"
        name = image.partition("+")[0]
        return InputError(
            f"the image '{image}' cannot be patched: {why}",
            hint=f"get its newest version: lab image build {name} --refresh",
        )
    known = image_log.reason_of(log, suite=plan.recipe.suite, name=image)
    if known is not None:
        return HostError(
            f"the build tree of {plan.key} was not made: {known.says}", hint=known.hint
        )
    last = "; ".join(log.strip().splitlines()[-LOG_LINES:])
    return HostError(f"the build tree of {plan.key} was not made: {last}")


def compiled(tree: KeptTree, source: Path, work: Path) -> dict[str, bytes]:
    """Return what is built from a patched source, by file name.

    ``source`` is written to. ``InputError``: it does not compile; the message has the compiler's
    first error. ``HostError``: the disk is full.
    """
    place = work / f"{source.name}.built"
    place.mkdir()
    box = Box(write={"/build": source})
    words = (tree.plan.target, tree.plan.version)
    return run_script(REBUILD, tree, place, box, *words, names=_MADE[Target(tree.plan.target)])


_MADE: Final = {
    Target.MD: tuple(
        f"{name}.ko"
        for name in (
            "md-mod",
            "linear",
            "multipath",
            "faulty",
            "raid0",
            "raid1",
            "raid10",
            "raid456",
        )
    ),
    Target.MDADM: ("mdadm", "mdmon"),
}
"""What `rebuild.sh` leaves."""


def run_script(
    name: str, tree: KeptTree, work: Path, box: Box, *words: str, names: Collection[str]
) -> dict[str, bytes]:
    """Run a script of ``images/`` in a sandbox with a build tree's programs; return what it made.

    ``work``: an empty directory. ``names``: of the files that it may make. ``InputError``: the
    source does not compile; the message has the compiler's first error. ``HostError``: the disk is
    full.
    """
    out, log, script = work / "out", work / "log", image_recipes.directory() / name
    out.mkdir()
    inside = f"/{name}"
    box = dataclasses.replace(
        box,
        tree=tree.directory / "root",
        read={**box.read, inside: script},
        write={**box.write, "/out": out},
    )
    try:
        sandbox.run(box, ("sh", inside, *words), work=work, log=log)
    except ToolError as error:
        text = process.tail(log)
        if image_log.is_full(text):
            raise image_workspace.disk_full(tree.plan.key) from error
        own = f"{script.stem}: "
        wrong = [line.strip() for line in text.splitlines() if ": error: " in line]
        wrong = wrong or [line for line in text.splitlines() if line.startswith(own)]
        wrong = wrong or [line for line in text.splitlines() if ": *** " in line]  # make's
        first = wrong[0] if wrong else "; ".join(text.strip().splitlines()[-LOG_LINES:])
        if sandbox.STOPPED in error.message:
            first = error.message
        first = printable(first.replace("/build/", ""))
        raise InputError(f"the source does not compile: {first}") from error
    try:
        return sandbox.take(out, names, most=MOST)
    except InputError as error:
        raise InputError(f"what was built is not used: {error.message}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What was built from a source."""

    files: Mapping[str, bytes]
    """By name."""
    source: Path
    """The source with all objects: what is changed in a copy of it is built in seconds."""


def unpatched(tree: KeptTree, work: Path) -> Built:
    """Return what is built from the source as it is; it is built once, and kept in the tree.

    ``HostError``: it does not compile.
    """
    script = (image_recipes.directory() / REBUILD).read_bytes()
    kept = tree.directory / f"built-{hashlib.sha256(script).hexdigest()[:12]}"

    def make(part: Path) -> None:
        (part / "files").mkdir(parents=True)
        image_series.begin(tree.source, part / "source")
        try:
            objects = compiled(tree, part / "source", work)
        except InputError as error:
            raise HostError(f"without the series {error.message}") from error
        for name, data in objects.items():
            (part / "files" / name).write_bytes(data)

    made.once(
        kept,
        lambda: True if kept.is_dir() else None,
        make,
        seconds=image_workspace.MAKING,
        what=f"another process that compiles {tree.plan.version} without a series",
        durable=False,
    )
    found = {path.name: path.read_bytes() for path in sorted((kept / "files").iterdir())}
    return Built(files=found, source=kept / "source")


def patched(tree: KeptTree, base: Built, series: Series, work: Path) -> dict[str, bytes]:
    """Return what is built with the series, by file name.

    ``InputError``: it does not apply, or does not compile.
    """
    copy = work / "patched"
    process.run(["cp", "--archive", base.source, copy], timeout=300)
    image_series.apply(series, copy)
    return compiled(tree, copy, work)


def check_depends(base: Mapping[str, bytes], patched: Mapping[str, bytes]) -> None:
    """``InputError``: a patched module needs a module that the image does not load with it."""
    for name in sorted(base.keys() & patched.keys()):
        before, after = depends(base[name]), depends(patched[name])
        if before != after:
            raise InputError(
                f"with the series '{name}' needs other modules ({', '.join(after)}) than without"
                f" ({', '.join(before)}): such a series cannot be compared here"
            )


def with_built(image: Image, target: Target, built: Mapping[str, bytes], say: Progress) -> Image:
    """Return the image with these modules or programs in place of its own; make it if missing.

    Its disk is the image's disk but for these files, so equal files make equal disks.
    """
    digest = hashlib.sha256(f"{image.digest} {images_key(built)}".encode()).hexdigest()
    name = f"{image.name}+{target}-{digest[:8]}"
    present = image_store.find_newest(name)
    if present is not None and present.digest == digest:
        try:
            image_store.verify(present)
        except HostError:
            pass
        else:
            return present
    image_workspace.check_space(name, image_build.MINIMUM_FREE)
    with image_workspace.workspace(name) as work:
        say(f"making the image '{name}'", None)
        _replace(image, target, built, work)
        made = work / "image"
        facts = {
            file.name: ImageFile(size=file.stat().st_size, sha256=image_store.file_sha256(file))
            for file in made.iterdir()
        }
        modules = tuple(n.removesuffix(".ko") for n in sorted(built) if n.endswith(".ko"))
        update: dict[str, Any] = {"name": name, "digest": digest, "recipe_digest": None}
        update |= {"files": facts, "built": datetime.now(UTC), "own_modules": modules}
        return image_store.publish(made, image.manifest.model_copy(update=update))


def _replace(image: Image, target: Target, built: Mapping[str, bytes], work: Path) -> None:
    """Write the disk with the files replaced, kernel and initrd to ``work/image``."""
    assert image.kernel is not None
    assert image.initrd is not None
    made, raw = work / "image", work / "disk.raw"
    made.mkdir()
    process.run(qemu_img.convert(image.disk, qemu_img.QCOW2, raw, qemu_img.RAW), timeout=600)
    # the kernel's own decompressor knows no other checksum
    new = {
        place: lzma.compress(built[name], check=lzma.CHECK_CRC32)
        if place.endswith(".xz")
        else built[name]
        for name, place in _places(image, target, built, work).items()
    }
    ext4.replace(raw, new, work, executable=target is not Target.MD, image=image.name)
    process.run(
        qemu_img.convert(raw, qemu_img.RAW, made / "disk.qcow2", qemu_img.QCOW2), timeout=600
    )
    shutil.copyfile(image.kernel, made / "kernel")
    shutil.copyfile(image.initrd, made / "initrd")


def _places(image: Image, target: Target, built: Mapping[str, bytes], work: Path) -> dict[str, str]:
    """Return the path in the image of each file that was built; those it does not have are left
    out."""
    modules = f"/usr/lib/modules/{image.manifest.kernel_version}/kernel/drivers/md"
    directory = modules if target is Target.MD else _SBIN
    there = ext4.names(work / "disk.raw", directory, work, image=image.name)
    found = {
        name: f"{directory}/{file}"
        for name in built
        for file in (name, f"{name}.xz")
        if file in there
    }
    if not found:
        raise InputError(f"the image '{image.name}' has none of {', '.join(sorted(built))}")
    return found
