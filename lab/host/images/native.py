"""Boot files of native guests: Linux built as a program of the host, and an initramfs.

They are made once for a kernel's source package, and stored under a digest of all that they are
made of. The edits of ``drive/native`` are made before the source's makefiles run in a sandbox.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import Final

from drive import cpio
from drive.native import edits
from lab.compile.guest.virtual_time import not_native
from lab.compile.image.series import BuildTree, native_tree
from lab.core.errors import HostError, InputError
from lab.core.units import MIB
from lab.host.images import buildtree, sandbox, virtual_time
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.sandbox import Box
from lab.host.images.store import file_sha256
from lab.host.system import files, made, paths, process
from lab.model.execution.job import PROCESSOR, SealedKit
from lab.model.image.manifest import Image
from lab.model.scenario.guest import Engine, Guest

SCRIPT: Final = "native.sh"
FREE: Final = 2000 * MIB
"""Bytes that must be free for Linux's source, as a tree and as a tar file, with objects."""
KERNEL: Final = "linux"
INITRAMFS: Final = "initramfs"
BUILT: Final = (KERNEL, "init", "engines.so")
SOURCES: Final = (
    *("lab_disk.c", "throttle.h", "drive.h", "region.h", "map.h", "init.c", "engines.c"),
    *("native/lab_native.c", "native/lab_native.h", "native/lab_user.c", "native/kernel.config"),
)
"""Files below ``drive/`` that the script compiles."""
OTHERS: Final = ("native/edits.py", "60-lab-disk.rules", "cpio.py")
"""Further files that the boot files depend on."""
_CPU: Final = Path("/proc/cpuinfo")
_SEEN: Final = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags")


def prepare(guest: Guest, image: Image, say: virtual_time.Say) -> SealedKit:
    """Return the kit of a native guest; build its kernel if missing, in some minutes.

    ``InputError``: not with this image. ``HostError``: not on this host.
    """
    check()
    if strange := not_native(guest.kernel_arguments):
        raise InputError(f"guest.kernel_arguments: a native guest does not get '{strange}'")
    plan = _plan(image)
    files.make_directory(paths.sealed())
    base = virtual_time.base_of(image, say)
    boot = _boot_files(plan, image, say)
    return SealedKit(
        engine=Engine.NATIVE,
        emulator="",
        kernel=str(boot / KERNEL),
        initramfs=str(boot / INITRAMFS),
        base=str(base),
        memory=guest.memory // MIB,
        arguments=" ".join(guest.kernel_arguments),
        digests={
            "image": base.name.removeprefix("base-"),
            "kernel": file_sha256(boot / KERNEL),
            "initramfs": file_sha256(boot / INITRAMFS),
        }
        | processor_digest(),
    )


def check() -> None:
    """``HostError`` if this host cannot run native guests."""
    sandbox.check()


def processor_digest() -> dict[str, str]:
    """Return the digest of what programs see of this host's processor, under :data:`PROCESSOR`.

    Empty: they see nothing of it, so no result depends on it. That takes CPUID faulting
    (``arch_prctl(2)``, ARCH_SET_CPUID).
    """
    first = _CPU.read_text(encoding="utf-8").partition("\n\n")[0]
    lines = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if "cpuid_fault" in fields.get("flags", "").split():
        return {}
    text = "\n".join(f"{name}={fields.get(name, '')}" for name in _SEEN)
    return {PROCESSOR: hashlib.sha256(text.encode()).hexdigest()}


def check_image(image: Image) -> None:
    """``InputError``: no native guests with this image."""
    _plan(image)


def _plan(image: Image) -> BuildTree:
    name = image.name.split("+")[0]
    if name not in image_recipes.recipes():
        raise InputError(
            f"guest.engine: the source of the kernel of '{image.name}' is unknown, since no recipe"
            " has this name: set guest.engine to emulated"
        )
    return native_tree(image_recipes.load(name)[1], image.manifest, buildtree.hook())


def place_of(plan: BuildTree) -> Path:
    """Return the directory of a kernel's boot files, named by all that they are made of."""
    script = image_recipes.directory() / SCRIPT
    parts = [plan.key.encode(), script.read_bytes()]
    parts += [(virtual_time.SOURCES / name).read_bytes() for name in (*SOURCES, *OTHERS)]
    digest = hashlib.sha256(bytes(1).join(parts)).hexdigest()
    return paths.sealed() / f"native-{digest[:20]}"


def _boot_files(plan: BuildTree, image: Image, say: virtual_time.Say) -> Path:
    place = place_of(plan)
    what = f"building Linux {plan.version} as a program for native guests"

    def make(part: Path) -> None:
        built = _built(plan, image, say)
        files.make_directory(part)
        (part / KERNEL).write_bytes(built[KERNEL])
        (part / KERNEL).chmod(0o555)
        content = {
            "init": (0o755, built["init"]),
            "engines.so": (0o644, built["engines.so"]),
            "rules": (0o644, (virtual_time.SOURCES / "60-lab-disk.rules").read_bytes()),
        }
        (part / INITRAMFS).write_bytes(cpio.initramfs(content))

    return made.once(
        place,
        lambda: place if place.is_dir() else None,
        make,
        seconds=virtual_time.MAKING,
        what=f"another process that is {what}",
        begin=partial(say, what, None),
    )


def _built(plan: BuildTree, image: Image, say: virtual_time.Say) -> dict[str, bytes]:
    """Return what :data:`SCRIPT` makes."""
    with buildtree.held(plan, image.name, say) as tree:
        image_workspace.check_space(plan.key, FREE)
        with image_workspace.workspace("native") as work:
            say(f"unpacking the source of Linux {plan.version}", None)
            source, driver, build, run = (work / n for n in ("linux", "driver", "build", "run"))
            for directory in (source, driver, build, run):
                directory.mkdir()
            process.run(["tar", "--no-same-owner", "-C", source, "-xf", tree.source], timeout=900)
            edit(source, plan.version)
            for name in SOURCES:
                shutil.copyfile(virtual_time.SOURCES / name, driver / Path(name).name)
            say(f"compiling Linux {plan.version}", None)
            box = Box(read={"/driver": driver}, write={"/linux": source, "/build": build})
            return buildtree.run_script(SCRIPT, tree, run, box, names=BUILT)


def edit(source: Path, version: str) -> None:
    """Make the edits in a source tree; ``HostError``: one does not fit this version."""

    def read(name: str) -> str | None:
        file = source / name
        return file.read_text(encoding="utf-8") if file.is_file() else None

    try:
        for name, text in edits.edited(version, read).items():
            (source / name).write_text(text, encoding="utf-8")
    except edits.EditError as error:
        raise HostError(
            f"guest.engine: the native engine does not fit this kernel: {error}",
            hint="set guest.engine to emulated",
        ) from error
