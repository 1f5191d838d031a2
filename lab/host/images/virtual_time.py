"""Boot files of sealed guests: an image as a raw file, the driver of their disks, an initramfs.

Each part is made once and stored under a digest of its inputs.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import drive
from drive import cpio, region, sealed
from drive.native import command as native
from lab.compile.image.build import bound, further_archive, namespaced, seen_at
from lab.core import qemu_img
from lab.core.errors import HostError, InputError, ToolError
from lab.core.units import MIB, format_size
from lab.host.images import ext4, inspection
from lab.host.images import packages as image_packages
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.store import file_sha256
from lab.host.system import accelerator, files, made, paths, process
from lab.model.execution.job import PROCESSOR, SealedKit
from lab.model.image.axis import Axis
from lab.model.image.manifest import Image, ImageSource
from lab.model.scenario.guest import Guest

SOURCES: Final = Path(drive.__file__).parent
BUILT_FROM: Final = (
    *("lab_disk.c", "throttle.h", "drive.h", "region.h", "map.h", "Kbuild", "build.sh", "init.c"),
    *("engines.c", "lab_hunt.c", "disturb.h", "60-lab-disk.rules", "cpio.py", "driver.sh"),
)
PLAIN: Final = ("initramfs", "lab_disk.ko")
HUNTED: Final = ("initramfs-hunt", "lab_hunt.ko")
"""The same for guests that `lab hunt` disturbs or `lab debug` stops."""
BOOT_FILES: Final = (*PLAIN, *HUNTED)
DRIVER: Final = ("lab_disk.ko", "lab_hunt.ko", "init", "engines.so")
"""What `build.sh` makes for a kernel."""
ARCHIVED: Final = "boot-"
"""Directory of an imported image with the boot files of its archive."""
FIRMWARE: Final = ("bios-256k.bin", "linuxboot_dma.bin", "kvmvapic.bin")
"""Firmware that QEMU runs in such a guest before its kernel."""
_PLACES: Final = ("/usr/share/qemu", "/usr/share/seabios", "/usr/local/share/qemu")
SEED: Final = 1
PREEMPTIBLE: Final = ("preempt=full",)
"""Kernel arguments of a disturbed guest: a thread can lose the CPU anywhere in the kernel but where
preemption is disabled. The kernel uses the last ``preempt`` that it is given."""
_MODULE: Final = 64 * MIB
"""Most bytes of a module, packed or unpacked."""
_MODULES: Final = 64
"""Most modules that ext4 may need; it needs four."""
MAKING: Final = 3600.0
Say = Callable[[str, float | None], None]


def prepare(
    guest: Guest, image: Image, say: Say = lambda _what, _part: None, *, stops: bool = False
) -> SealedKit:
    """Return the kit of a guest; make it if missing. ``InputError``: no virtual time with this
    image.

    ``stops``: the guest can be stopped at a time of its clock.
    """
    if image.kernel is None:
        raise InputError(
            f"guest.clock: virtual time needs an image with a separate kernel, and '{image.name}'"
            " boots from its own disk: set guest.clock to real"
        )
    if not image.kernel.is_file():
        raise HostError(
            f"the image '{image.name}' is not there any more: '{image.kernel}' was removed",
            hint=f"build or import it again: lab image build {image.name.partition('+')[0]}",
        )
    files.make_directory(paths.sealed())
    base = base_of(image, say)
    boot = _boot_files(image, base, say)
    initramfs, driver = HUNTED if guest.disturb or stops else PLAIN
    emulator = accelerator.emulator()
    return SealedKit(
        emulator=emulator,
        kernel=str(image.kernel),
        initramfs=str(boot / initramfs),
        base=str(base),
        memory=guest.memory // MIB,
        arguments=" ".join((*(PREEMPTIBLE if guest.disturb else ()), *guest.kernel_arguments)),
        digests={
            "image": base.name.removeprefix("base-"),
            "kernel": file_sha256(image.kernel),
            "driver": file_sha256(boot / driver),
            "initramfs": file_sha256(boot / initramfs),
            "qemu": file_sha256(Path(emulator).resolve()),
            "firmware": _firmware(),
        },
    )


def guest_of(kit: SealedKit, path: Path) -> sealed.Guest:
    """Return a sealed guest of this kit over the region ``path``."""
    return sealed.Guest(
        kernel=Path(kit.kernel),
        initramfs=Path(kit.initramfs),
        region=path,
        base=Path(kit.base),
        memory=kit.memory,
        seed=SEED,
        arguments=kit.arguments,
        emulator=kit.emulator,
    )


def native_guest_of(kit: SealedKit, path: Path) -> native.Guest:
    """Return a native guest of this kit over the region ``path``."""
    return native.Guest(
        kernel=Path(kit.kernel),
        initramfs=Path(kit.initramfs),
        region=path,
        base=Path(kit.base),
        memory=kit.memory,
        arguments=kit.arguments,
        sees_processor=PROCESSOR in kit.digests,
    )


def root_disk(kit: SealedKit) -> region.Disk:
    """Return the first disk of each region: the image, writable."""
    return region.Disk(serial="root", size=Path(kit.base).stat().st_size, flags=region.BASE)


def base_of(image: Image, say: Say) -> Path:
    """Return the image's disk as a raw file, named by the digest of its bytes."""
    known = paths.sealed() / f"image-{image.manifest.files['disk.qcow2'].sha256[:20]}"

    def find() -> Path | None:
        base = paths.sealed() / f"base-{_text(known)}"
        return base if base.is_file() else None

    def make(part: Path) -> Path:
        if image.manifest.source is ImageSource.IMPORTED:
            inspection.check_size(image.disk, qemu_img.QCOW2, image.name)
        process.run(qemu_img.convert(image.disk, qemu_img.QCOW2, part, qemu_img.RAW), timeout=600)
        size = part.stat().st_size
        os.truncate(part, -(-size // region.ALIGNMENT) * region.ALIGNMENT)
        digest = region.digest(part)
        part.chmod(0o444)
        files.write(known, digest)
        return paths.sealed() / f"base-{digest}"

    what = f"converting the image '{image.name}' for guests with virtual time"
    return _once(known, find, make, say, what)


def base_digest(image: Image, say: Say) -> str:
    """Return the digest of the image's bytes as sealed guests see them; convert it if needed."""
    return base_of(image, say).name.removeprefix("base-")


def boot_place(image: Image) -> Path:
    """Return the directory of :data:`BOOT_FILES`: the archive's, or one that is named by the
    contents of kernel and disk, and by the sources."""
    own = _own(image)
    if _boots_its_own(image) and (brought := archived_kit(image)).is_dir():
        return brought
    which = own.name if own is not None else _kernel_of(image)
    disk = image.manifest.files["disk.qcow2"].sha256
    return paths.sealed() / f"boot-{_digest(f'{which} {disk}')[:20]}"


def archived_kit(image: Image) -> Path:
    """Return the place of the boot files that an archive brought for this image alone."""
    return image.directory / f"{ARCHIVED}{_digest('')[:20]}"


def own_driver(kernel: Path) -> Path:
    """Return the directory of :data:`DRIVER` for a kernel that was built here."""
    return kernel.with_name(f"{kernel.name}.driver-{_digest('')[:12]}")


def _own(image: Image) -> Path | None:
    """Return the driver that was built with the kernel; ``None``: none was."""
    driver = own_driver(image.kernel) if image.kernel is not None else None
    return driver if driver is not None and driver.is_dir() else None


def _boots_its_own(image: Image) -> bool:
    return image.kernel == image.directory / "kernel"


def _kernel_of(image: Image) -> str:
    """Return release and digest of the kernel that the image boots."""
    assert image.kernel is not None
    mine = _boots_its_own(image)
    digest = image.manifest.files["kernel"].sha256 if mine else file_sha256(image.kernel)
    return f"{image.manifest.kernel_version} {digest}"


def _digest(which: str) -> str:
    """Return a digest of this text and of the sources of the boot files."""
    parts = [which.encode(), *((SOURCES / name).read_bytes() for name in BUILT_FROM)]
    return hashlib.sha256(bytes(1).join(parts)).hexdigest()


def _boot_files(image: Image, base: Path, say: Say) -> Path:
    """Return a directory with driver, init and initramfs for the image; make it if missing."""
    place = boot_place(image)
    version = str(image.manifest.kernel_version)

    def make(work: Path) -> None:
        driver = _driver(image, say)
        files.make_directory(work)
        for name in DRIVER:
            shutil.copyfile(driver / name, work / name)
        ext4 = ext4_modules(base, version, work)
        for initramfs, module in (PLAIN, HUNTED):
            modules = [("lab_disk.ko", (work / module).read_bytes()), *ext4.items()]
            content = cpio.initramfs(
                {
                    "init": (0o755, (work / "init").read_bytes()),
                    "engines.so": (0o644, (work / "engines.so").read_bytes()),
                    "rules": (0o644, (SOURCES / "60-lab-disk.rules").read_bytes()),
                    **{
                        f"modules/{n:02}-{name}": (0o644, data)
                        for n, (name, data) in enumerate(modules)
                    },
                }
            )
            files.write(work / initramfs, content)

    what = f"making the boot files of '{image.name}' for virtual time"
    return _once(place, lambda: place if place.is_dir() else None, make, say, what)


def _driver(image: Image, say: Say) -> Path:
    """Return a directory with :data:`DRIVER` for the image's kernel; make it if missing.

    Images with the same kernel, byte by byte, share it.
    """
    if (own := _own(image)) is not None:
        return own
    place = paths.sealed() / f"driver-{_digest(_kernel_of(image))[:20]}"
    version = image.manifest.kernel_version

    def make(work: Path) -> None:
        files.make_directory(work)
        _build(image, work)

    what = f"building the disk driver for Linux {version}"
    return _once(place, lambda: place if place.is_dir() else None, make, say, what)


def ext4_modules(base: Path, version: str, work: Path) -> dict[str, bytes]:
    """Return ext4's modules from an image's file system, in the order of loading.

    None if it is built in, as in Debian's cloud kernels. In ``modules.dep(5)`` a module's last
    dependency is loaded first. ``version``: the kernel's; ``work``: a directory for a while.
    """
    top = f"/usr/lib/modules/{version}"

    def read(*names: str) -> dict[str, bytes]:
        kept = {f"{number:04}": f"{top}/{name}" for number, name in enumerate(names)}
        found = ext4.contents(base, kept, work, most=_MODULE, image=base.name)
        return {name: found.get(key, b"") for key, name in zip(kept, names, strict=True)}

    listed = read("modules.dep")["modules.dep"].decode(errors="replace")
    for line in listed.splitlines():
        module, _, needed = line.partition(":")
        if module.startswith("kernel/fs/ext4/ext4.ko"):
            names = (*reversed(needed.split()), module)
            if len(names) > _MODULES:
                raise HostError(
                    f"the image's ext4 needs {len(names)} modules, more than {_MODULES}"
                )
            found = read(*names)
            if missing := [name for name, data in found.items() if not data]:
                raise HostError(
                    f"the image has no {Path(missing[0]).name.removesuffix('.xz')}, without which"
                    f" Linux {version} cannot mount its root file system: build the image anew"
                )
            return {
                Path(name).name.removesuffix(".xz"): _unpacked(name, data)
                if name.endswith(".xz")
                else data
                for name, data in found.items()
            }
    return {}


def _unpacked(name: str, data: bytes) -> bytes:
    """Return an xz file's contents; the image may be a stranger's."""
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 * MIB)
    try:
        found = unpacking.decompress(data, _MODULE)
    except lzma.LZMAError as error:
        raise HostError(f"the image's {name} cannot be unpacked: {error}") from error
    if not unpacking.eof:
        raise HostError(f"the image's {name} is cut off, or larger than {format_size(_MODULE)}")
    return found


def _build(image: Image, work: Path) -> None:
    name, version = image.name, image.manifest.kernel_version
    stem = name.split("+")[0]
    if stem not in image_recipes.recipes():
        raise InputError(
            f"guest.clock: virtual time needs the kernel's headers, which are unknown for the image"
            f" '{name}', since no recipe has this name: set guest.clock to real"
        )
    if f"linux-image-{version}" not in image.manifest.packages:
        raise InputError(
            f"guest.clock: virtual time needs the kernel's headers, and the kernel {version} is not"
            " a Debian package: set guest.clock to real",
            hint="`lab kernel build` builds a kernel for virtual time from a git repository",
        )
    _, recipe = image_recipes.load(stem)
    suite, hook = recipe.kernel_suite or recipe.suite, "true"
    fetched = image_packages.find(Axis.KERNEL, f"linux-image-{version}")
    if fetched is not None:
        if not fetched.headers:
            raise InputError(
                "guest.clock: virtual time needs the kernel's headers, and the archive had dropped "
                f"those of {version} when it was fetched: set guest.clock to real"
            )
        suite, hook = fetched.release, further_archive(image_packages.archive_of(fetched))
    # mmdebstrap splits the paths of its hooks at blanks: the build sees plain ones.
    inside, sources = seen_at(work), SOURCES
    if seen_at(SOURCES) != SOURCES or (inside != work and SOURCES.is_relative_to(inside)):
        sources = inside / "sources"
        (work / "sources").mkdir()
        for file in BUILT_FROM:
            shutil.copyfile(SOURCES / file, work / "sources" / file)
    script = str(sources / "build.sh")
    words = ("sh", script, suite, f"linux-headers-{version}", str(inside), hook)
    try:
        process.run(
            namespaced(bound(words, work), root=accelerator.is_root()),
            timeout=1800,
            log=work / "log",
            env=image_workspace.environment(),
        )
    except ToolError as error:
        raise HostError(
            f"building the disk driver for Linux {version} failed: {error.message}",
            hint=f"if linux-headers-{version} is no longer in {suite}, get a newer kernel: lab "
            f"image build {name} --refresh",
        ) from error
    shutil.rmtree(work / "sources", ignore_errors=True)


def _firmware() -> str:
    """Return one digest of the firmware before the kernel. Files in unusual places are left out."""
    total = hashlib.sha256()
    for name in FIRMWARE:
        found = next((p for d in _PLACES if (p := Path(d) / name).is_file()), None)
        total.update(name.encode() + (found.read_bytes() if found else b""))
    return total.hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _once(
    place: Path,
    find: Callable[[], Path | None],
    make: Callable[[Path], Path | None],
    say: Say,
    what: str,
) -> Path:
    """Return what ``find`` returns; one process makes it while others wait."""
    waiting = f"another process that is {what}"
    begin = partial(say, what, None)
    return made.once(place, find, make, seconds=MAKING, what=waiting, begin=begin)
