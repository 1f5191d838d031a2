"""A kernel of one's own that QEMU loads in place of an image's: with everything built in.

The image's initrd finds the root file system by its label, and passes over modules that are not of
this kernel; so virtio, ext4 and md must be in it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from lab.core.errors import HostError, InputError
from lab.host.system import files, paths
from lab.model.image.manifest import Image

_MAGIC: Final = b"HdrS"
"""At 0x202 of a bzImage; the version's text begins 0x200 behind the offset at 0x20e:
``Documentation/arch/x86/boot.rst`` of Linux."""


def with_kernel(image: Image, kernel: Path) -> Image:
    """The image with this kernel; a copy is kept, since the file may change while guests live.

    ``InputError``: it is no kernel that QEMU loads, or the image has a boot loader of its own.
    """
    if image.kernel is None:
        raise InputError(
            f"guest.kernel: the image '{image.name}' boots from its own disk, and QEMU loads no "
            f"kernel for it: leave '{kernel}' out"
        )
    try:
        data = kernel.read_bytes()
    except OSError as error:
        raise InputError(
            f"guest.kernel: '{kernel}' cannot be read: {error.strerror}",
            hint="a relative path begins at the directory in which lab was called",
        ) from error
    version = version_of(data, kernel)
    digest = hashlib.sha256(data).hexdigest()
    manifest = image.manifest.model_copy(
        update={"kernel_version": version, "kernel_options": None, "own_modules": ()}
    )
    both = hashlib.sha256(f"{image.digest} {digest}".encode("ascii")).hexdigest()
    return image.model_copy(
        update={"kernel": _kept(data, digest), "manifest": manifest, "digest": both}
    )


def version_of(data: bytes, kernel: Path) -> str:
    """The release that a bzImage says it is: ``6.12.1-mine``."""
    if data[0x202:0x206] != _MAGIC:
        raise InputError(
            f"guest.kernel: '{kernel}' is no bzImage, which QEMU could load",
            hint="arch/x86/boot/bzImage of a kernel's build directory is one, vmlinux is not",
        )
    begin = int.from_bytes(data[0x20E:0x210], "little") + 0x200
    words = data[begin : begin + 256].split(b"\0")[0].decode("ascii", "replace").split()
    return words[0] if words else "unknown"


def _kept(data: bytes, digest: str) -> Path:
    """The copy, named by what is in it."""
    path = paths.kernels() / digest
    if path.is_file():
        return path
    try:
        files.make_directory(path.parent)
        files.write(path, data)
    except HostError as error:
        raise HostError(f"the kernel '{path}' cannot be kept: {error.message}") from error
    return path
