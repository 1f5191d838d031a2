"""The user's own kernel, which QEMU loads instead of the image's.

The image's initrd finds the root file system by its label, and skips modules of other kernels. So
virtio, ext4 and md must be built in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from lab.core import regular
from lab.core.errors import HostError, InputError
from lab.core.units import MIB
from lab.host.system import files, paths
from lab.model.image.manifest import Image

MOST: Final = 512 * MIB
"""Most bytes of a kernel."""
_MAGIC: Final = b"HdrS"
"""Magic number at 0x202 of a bzImage. The version string begins 0x200 after the offset stored at
0x20e: ``Documentation/arch/x86/boot.rst`` of Linux."""


def with_kernel(image: Image, kernel: Path) -> Image:
    """Return the image with this kernel. The kernel is copied, since the file may change later.

    ``InputError``: QEMU cannot load it, or the image has its own boot loader.
    """
    if image.kernel is None:
        raise InputError(
            f"guest.kernel: the image '{image.name}' has its own boot loader and takes no kernel:"
            f" remove '{kernel}'"
        )
    try:
        data = regular.read(kernel, MOST)
    except OSError as error:
        raise InputError(
            f"guest.kernel: '{kernel}' cannot be read: {error.strerror}",
            hint="a relative path is resolved from the current directory",
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
    """Return the release in a bzImage, such as ``6.12.1-mine``."""
    if data[0x202:0x206] != _MAGIC:
        raise InputError(
            f"guest.kernel: '{kernel}' is not a bzImage, the format that QEMU loads",
            hint="give arch/x86/boot/bzImage of the kernel's build directory, not vmlinux",
        )
    begin = int.from_bytes(data[0x20E:0x210], "little") + 0x200
    words = data[begin : begin + 256].split(b"\0")[0].decode("ascii", "replace").split()
    return words[0] if words else "unknown"


def _kept(data: bytes, digest: str) -> Path:
    """Return the stored copy, named by its digest."""
    path = paths.kernels() / digest
    if path.is_file():
        return path
    try:
        files.make_directory(path.parent)
        files.write(path, data)
    except HostError as error:
        raise HostError(f"the kernel's copy '{path}' cannot be written: {error.message}") from error
    return path
