"""Export and import of an image: the same bytes, or no image."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.core.errors import InputError
from lab.host import images
from lab.host.images import store as image_store
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import paths
from lab.model.image.manifest import Image, ImageBoot, ImageFile, ImageManifest, ImageSource

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-img") is None, reason="qemu-img is not installed"
)


def silent(_says: str, _part: float | None) -> None:
    pass


def made(directory: Path, kernel: bytes = b"the kernel") -> Image:
    """Return an image in the store."""
    directory.mkdir()
    disk = directory / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "4M"], check=True)
    (directory / "kernel").write_bytes(kernel)
    (directory / "initrd").write_bytes(b"the initrd")
    facts = {
        p.name: ImageFile(size=p.stat().st_size, sha256=image_store.file_sha256(p))
        for p in directory.iterdir()
    }
    manifest = ImageManifest(
        name="debian-12",
        digest="1" * 64,
        built=datetime(2026, 1, 1, tzinfo=UTC),
        source=ImageSource.BUILT,
        boot=ImageBoot.KERNEL,
        files=facts,
        kernel_version="6.1.0-1-cloud-amd64",
    )
    return image_store.publish(directory, manifest)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "one"))
    paths.images().mkdir(parents=True)
    return tmp_path


@pytest.fixture
def archive(home: Path) -> tuple[Path, str, Image]:
    """An archive, its checksum, and the image, from another host."""
    image = made(home / "new")
    boot = sealed_kit.boot_place(image)
    boot.mkdir(parents=True)
    for name in sealed_kit.BOOT_FILES:
        (boot / name).write_text(name)
    path = home / "debian-12.tar"
    return path, images.export(image, path, silent), image


def bring(path: Path, checksum: str, in_use: tuple[str, ...] = ()) -> Image:
    return images.import_archive(
        str(path), checksum=f"sha256:{checksum}", progress=silent, in_use=in_use
    )


def left() -> list[str]:
    return sorted(p.name for p in paths.images().iterdir()) if paths.images().exists() else []


def test_another_host_has_the_same_bytes_and_the_driver(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, checksum, image = archive
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    assert images.export(image, home / "again.tar", silent) == checksum
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    assert left() == []
    brought = bring(path, checksum)
    assert brought.manifest == image.manifest
    assert brought.directory != image.directory
    image_store.verify(brought, deep=True)
    assert (sealed_kit.boot_place(brought) / "lab_disk.ko").read_text() == "lab_disk.ko"
    assert bring(path, checksum) == brought
    assert left() == [brought.directory.name]


def test_an_image_of_the_same_digest_with_other_bytes_gives_way(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, checksum, image = archive
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    paths.images().mkdir(parents=True)
    other = made(home / "other", kernel=b"other bytes")
    with pytest.raises(InputError, match="in use by a guest"):
        bring(path, checksum, in_use=(other.digest,))
    assert (other.directory / "kernel").read_bytes() == b"other bytes"
    assert bring(path, checksum).manifest.files == image.manifest.files
    assert len(left()) == 1


def rewritten(path: Path, changed: Mapping[str, bytes | tarfile.TarInfo | None]) -> str:
    """Replace members of the archive; return its checksum."""
    with tarfile.open(path) as tar:
        whole = {e.name: tar.extractfile(e).read() for e in tar}  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        for name, data in {**whole, **changed}.items():
            if isinstance(data, tarfile.TarInfo):
                tar.addfile(data)
            elif data is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return image_store.file_sha256(path)


def link(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return entry


def backed(home: Path) -> bytes:
    """Return a qcow2 file with a backing file of the host."""
    path = home / "backed"
    words = ["-q", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", str(path), "4M"]
    subprocess.run(["qemu-img", "create", *words], check=True)
    return path.read_bytes()


def test_what_is_damaged_or_hostile_leaves_nothing(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, image = archive
    disk = backed(home)
    files = dict(image.manifest.files)
    files["disk.qcow2"] = ImageFile(size=len(disk), sha256=hashlib.sha256(disk).hexdigest())
    hostile = image.manifest.model_copy(update={"files": files}).model_dump_json().encode()
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    for changed, said in (
        ({"manifest.json": None}, "'manifest.json' is missing"),
        ({"manifest.json": b"{}"}, "'manifest.json' is not valid"),
        ({"manifest.json": bytes(2 << 20)}, "must be a regular file of at most"),
        ({"kernel": None}, "'kernel' is missing"),
        ({"kernel": b"short"}, "is corrupt: .*'kernel'"),
        ({"kernel": b"longer than it was"}, "must be a regular file of at most"),
        ({"kernel": link("kernel")}, "must be a regular file of at most"),
        ({"manifest.json": hostile, "disk.qcow2": disk}, "has a backing file"),
    ):
        other = home / "other.tar"
        shutil.copyfile(path, other)
        with pytest.raises(InputError, match=said):
            bring(other, rewritten(other, changed))
        assert left() == []
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(InputError, match="expected"):
        bring(path, "0" * 64)
    with pytest.raises(InputError, match=r"is no archive of an image|no 'kernel'|damaged"):
        bring(path, image_store.file_sha256(path))
    assert left() == []
