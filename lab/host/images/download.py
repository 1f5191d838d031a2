"""Imports a cloud image from a file or a URL: streamed, checked against its checksum, inspected.

The image is untrusted: its header is read before any tool opens it. A qcow2 file can name other
files of the host (a backing file, an external data file), and ``qemu-img`` and QEMU would open
them. Such a file is refused (CVE-2024-4467 is of this kind).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from lab.core import qemu_img
from lab.core.errors import HostError, InputError, ToolError
from lab.core.units import MIB, is_digits
from lab.host.images import archive as image_archive
from lab.host.images import inspection
from lab.host.images import recipes as image_recipes
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.images.store import Progress
from lab.host.system import files, process
from lab.model.image.manifest import (
    Image,
    ImageBoot,
    ImageFile,
    ImageManifest,
    ImageSource,
    contents_digest,
)

_BLOCK: Final = 1 * MIB
_SILENCE: Final = 60.0
"""Seconds without a byte after which a download fails."""
_DIGITS: Final = {"sha256": 64, "sha512": 128}

_QCOW2: Final = b"QFI\xfb"
_EXTERNAL_DATA: Final = 0x4
"""Incompatible feature bit 2, ``docs/interop/qcow2.txt`` of QEMU."""
_OTHER_FORMATS: Final = {
    b"KDMV": "a VMDK image",
    b"# Disk Descriptor": "a VMDK descriptor",
    b"<<< ": "a VDI image",
    b"vhdxfile": "a VHDX image",
    b"conectix": "a VHD image",
    b"\x1f\x8b": "compressed with gzip: unpack it first",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"BZh": "compressed with bzip2: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
}


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def import_image(source: str, *, name: str, checksum: str, progress: Progress) -> Image:
    """Import a qcow2 or raw cloud image from a file or an http(s) URL.

    ``checksum`` is ``sha512:HEX`` or ``sha256:HEX``, as the publisher gives it. ``InputError``: the
    checksum is malformed or differs, the file is missing, or no guest with it could be reached.
    ``HostError``: the network, or disk space. A failure leaves nothing behind.
    """
    image_store.check_name(name)
    if name in image_recipes.recipes():
        raise InputError(f"'{name}' is the name of an image recipe", hint="choose another name")
    checksum = ":".join(_parse_checksum(checksum))
    with _alone(name, progress):
        for image in image_store.list_images().images:
            if image.name == name and image.manifest.checksum == checksum and _is_whole(image):
                progress(f"'{image.directory.name}' is there", 1.0)
                return image
        with _fetched(source, name, checksum, progress) as (fetched, sha256):
            work = fetched.parent
            progress("reading the image's file systems", 0.97)
            unread = inspection.check(fetched, _kind(fetched, source), work, source)
            disk = _as_qcow2(fetched, work, source)
            facts = {
                "disk.qcow2": ImageFile(
                    size=disk.stat().st_size,
                    sha256=sha256 if disk.samefile(fetched) else image_store.file_sha256(disk),
                )
            }
            manifest = ImageManifest(
                name=name,
                digest=contents_digest(facts),
                built=datetime.now(UTC),
                source=ImageSource.IMPORTED,
                boot=ImageBoot.DISK,
                files=facts,
                origin=source,
                checksum=checksum,
                unread=unread,
            )
            made = work / "image"
            made.mkdir()
            files.move(disk, made / "disk.qcow2")
            image = image_store.publish(made, manifest)
        progress(f"'{image.directory.name}' is imported", 1.0)
        return image


def import_archive(source: str, *, checksum: str | None, progress: Progress) -> Image:
    """Import an image that ``lab image export`` wrote on another host, with the same bytes.

    ``checksum``: of the archive; ``None``: any.
    What its manifest says of its origin is replaced. Otherwise as :func:`import_image`.
    """
    given = ":".join(_parse_checksum(checksum)) if checksum is not None else None
    with _alone("archive", progress), _fetched(source, "archive", given, progress) as (tar, sha256):
        checksum = given or f"sha256:{sha256}"
        here = {"source": ImageSource.IMPORTED, "origin": source, "checksum": checksum}
        manifest = image_archive.unpack(tar, tar.parent, source).model_copy(
            update={**here, "imported": datetime.now(UTC)}
        )
        made = tar.parent / "image"
        if _kind(made / "disk.qcow2", source) != "qcow2":
            raise InputError(f"'{source}': its 'disk.qcow2' is not a qcow2 image")
        image = image_store.publish(made, manifest)
    progress(f"'{image.directory.name}' is imported", 1.0)
    return image


@contextmanager
def _alone(name: str, progress: Progress) -> Iterator[None]:
    def waiting() -> None:
        progress(f"waiting for another process that is importing '{name}'", None)

    with image_workspace.exclusive(f"import-{name}", waiting=waiting):
        yield


@contextmanager
def _fetched(
    source: str, name: str, checksum: str | None, progress: Progress
) -> Iterator[tuple[Path, str]]:
    """Yield the requested file, in its own working directory, and its SHA-256."""
    algorithm, expected = _parse_checksum(checksum) if checksum else ("sha256", None)
    with image_workspace.workspace(name) as work, _opened(source, name) as (body, size):
        fetched = work / "fetched"
        actual, sha256 = _copy(
            body, fetched, size=size, algorithm=algorithm, source=source, progress=progress
        )
        if expected is not None and actual != expected:
            raise InputError(
                f"'{source}' has the wrong checksum: {algorithm} is {actual}, expected {expected}"
            )
        progress("checking the image", 0.96)
        yield fetched, sha256


def _parse_checksum(checksum: str) -> tuple[str, str]:
    algorithm, _, digits = checksum.strip().partition(":")
    wanted = _DIGITS.get(algorithm)
    if wanted is None or not re.fullmatch(rf"[0-9a-fA-F]{{{wanted}}}", digits):
        raise InputError(
            f"'{checksum}' is not a checksum",
            hint="give sha512: and 128 hexadecimal digits, or sha256: and 64",
        )
    return algorithm, digits.lower()


def _is_whole(image: Image) -> bool:
    try:
        image_store.verify(image)
    except HostError:
        return False
    return True


@contextmanager
def _opened(source: str, name: str) -> Iterator[tuple[_Readable, int | None]]:
    """Yield the bytes of a file or URL, and their number if known."""
    scheme = urllib.parse.urlsplit(source).scheme if "://" in source else ""
    if scheme in ("http", "https"):
        with _response(source) as response:
            length = response.headers.get("Content-Length", "")
            size = int(length) if is_digits(length) else None
            image_workspace.check_space(name, size or 0)
            yield response, size
        return
    if scheme:
        raise InputError(f"'{source}' is not a file or an http(s) URL")
    path = Path(source)
    if not path.is_file():
        raise InputError(f"the file '{source}' does not exist")
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"the file '{source}' cannot be read: {error.strerror}") from error
    with file:
        image_workspace.check_space(name, size)
        yield file, size


@contextmanager
def _response(url: str) -> Iterator[http.client.HTTPResponse]:
    # Only http and https, also after a redirection.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    try:
        response: http.client.HTTPResponse = opener.open(url, timeout=_SILENCE)
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
        raise HostError(
            f"'{url}' could not be fetched: the server answered {status} {error.reason}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _network(url, error) from error
    with response:
        yield response


def _network(url: str, error: Exception) -> HostError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    if isinstance(reason, TimeoutError):
        words = f"the server sent nothing for {_SILENCE:.0f} seconds"
    return HostError(
        f"'{url}' could not be fetched: {words or type(reason).__name__}",
        hint="behind a proxy, set http_proxy and https_proxy",
    )


def _copy(
    body: _Readable,
    target: Path,
    *,
    size: int | None,
    algorithm: str,
    source: str,
    progress: Progress,
) -> tuple[str, str]:
    """Write the bytes; return the requested hash and the SHA-256."""
    asked, sha256 = hashlib.new(algorithm), hashlib.sha256()
    got = 0
    progress(f"fetching '{source}'", 0.0)
    with target.open("wb") as file:
        while True:
            try:
                block = body.read(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise _network(source, error) from error
            if not block:
                break
            asked.update(block)
            sha256.update(block)
            file.write(block)
            got += len(block)
            progress(f"fetching '{source}'", 0.95 * got / size if size else None)
    if size is not None and got != size:
        raise HostError(
            f"'{source}' could not be fetched: it ended after {got} of {size} bytes",
            hint="try again",
        )
    return asked.hexdigest(), sha256.hexdigest()


def _as_qcow2(fetched: Path, work: Path, source: str) -> Path:
    """Return the image as a qcow2 file; convert a raw disk."""
    if _kind(fetched, source) == "qcow2":
        return fetched
    disk = work / "disk.qcow2"
    process.run(qemu_img.convert(fetched, qemu_img.RAW, disk, qemu_img.QCOW2), timeout=1800)
    return disk


def _kind(fetched: Path, source: str) -> str:
    """Return ``qcow2`` or ``raw``; ``InputError``: another format, or the file names other
    files."""
    with fetched.open("rb") as file:
        head = file.read(1024)
    kind = disk_format(head, source=source)
    run = process.run(qemu_img.info(fetched, kind), timeout=60, check=False)
    if run.status != 0:
        tail = (run.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InputError(f"'{source}' is not an image that QEMU can read: {tail}")
    _check_info(run.stdout, source)
    return kind


def disk_format(head: bytes, *, source: str) -> str:
    """Return ``qcow2`` or ``raw`` from a file's first kilobyte; ``InputError``: another format."""
    if head.startswith(_QCOW2):
        if len(head) < 72:
            raise InputError(f"'{source}' ends within its qcow2 header")
        version = int.from_bytes(head[4:8], "big")
        if version not in (2, 3):
            raise InputError(f"'{source}' is qcow2 version {version}; only 2 and 3 are supported")
        if int.from_bytes(head[8:16], "big") or int.from_bytes(head[16:20], "big"):
            raise InputError(
                f"'{source}' has a backing file, which would be a file of this host",
                hint="convert it to one file with `qemu-img convert`",
            )
        if version == 3 and int.from_bytes(head[72:80], "big") & _EXTERNAL_DATA:
            raise InputError(
                f"'{source}' has an external data file, which would be a file of this host",
                hint="convert it to one file with `qemu-img convert`",
            )
        return "qcow2"
    for magic, words in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise InputError(f"'{source}' is {words}; import qcow2 or raw disks")
    if head[510:512] != b"\x55\xaa":
        raise InputError(
            f"'{source}' is not a qcow2 image and not a raw disk with a partition table"
        )
    return "raw"


def _check_info(text: str, source: str) -> None:
    """Repeat the check with QEMU's own parser, which knows all extensions of the header."""
    try:
        info = json.loads(text)
        specific = info.get("format-specific", {}).get("data", {})
    except (ValueError, AttributeError) as error:
        raise ToolError(f"'qemu-img info' printed no JSON: {text[:200]}") from error
    if info.get("backing-filename") or specific.get("data-file"):
        raise InputError(f"'{source}' refers to another file, which would be a file of this host")
    if info.get("encrypted") or specific.get("encrypt"):
        raise InputError(f"'{source}' is encrypted: decrypt it first with `qemu-img convert`")
