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
from lab.host.images import archive as image_archive
from lab.host.images import download
from lab.host.images import store as image_store
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import paths
from lab.model.image.manifest import (
    Image,
    ImageBoot,
    ImageFile,
    ImageManifest,
    ImageSource,
    contents_digest,
)

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-img") is None, reason="qemu-img is not installed"
)


def silent(_says: str, _part: float | None) -> None:
    pass


def made(
    directory: Path, kernel: bytes = b"the kernel", *, name: str = "debian-12", disk: str = "4M"
) -> Image:
    """Return an image in the store."""
    directory.mkdir()
    file = directory / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", file, disk], check=True)
    (directory / "kernel").write_bytes(kernel)
    (directory / "initrd").write_bytes(b"the initrd")
    facts = {
        p.name: ImageFile(size=p.stat().st_size, sha256=image_store.file_sha256(p))
        for p in directory.iterdir()
    }
    manifest = ImageManifest(
        name=name,
        digest=contents_digest(facts),
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
    return path, image_archive.export(image, path, silent), image


def bring(path: Path, checksum: str) -> Image:
    return download.import_archive(str(path), checksum=f"sha256:{checksum}", progress=silent)


def left() -> list[str]:
    return sorted(p.name for p in paths.images().iterdir()) if paths.images().exists() else []


def test_another_host_has_the_same_bytes_and_the_driver(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, checksum, image = archive
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()
    assert image_archive.export(image, home / "again.tar", silent) == checksum
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    assert left() == []
    brought = bring(path, checksum)
    assert (brought.digest, brought.manifest.files) == (image.digest, image.manifest.files)
    assert brought.directory != image.directory
    image_store.verify(brought, deep=True)
    assert (sealed_kit.boot_place(brought) / "lab_disk.ko").read_text() == "lab_disk.ko"
    assert bring(path, checksum).directory == brought.directory
    assert left() == [brought.directory.name]
    assert image_archive.export(brought, home / "back.tar", silent)


def test_an_archive_does_not_say_where_it_comes_from(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, checksum, image = archive
    assert image.manifest.source is ImageSource.BUILT
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    manifest = bring(path, checksum).manifest
    assert manifest.source is ImageSource.IMPORTED
    assert (manifest.origin, manifest.checksum) == (str(path), f"sha256:{checksum}")
    assert manifest.imported is not None


def test_the_boot_files_of_an_archive_boot_no_other_image(
    archive: tuple[Path, str, Image], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images have the kernel 6.1.0-1 here; a third has even the same kernel, byte by byte."""
    path, checksum, _ = archive
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    paths.images().mkdir(parents=True)
    others = [
        made(home / f"other-{n}", kernel, name=f"other-{n}", disk=disk)
        for n, (kernel, disk) in enumerate([(b"another", "4M"), (b"the kernel", "8M")])
    ]
    before = [sealed_kit.boot_place(one) for one in others]
    brought = bring(path, checksum)
    assert sealed_kit.boot_place(brought).parent == brought.directory
    assert [sealed_kit.boot_place(one) for one in others] == before
    assert len({*before, sealed_kit.boot_place(brought)}) == 3
    assert not any(place.exists() for place in before)
    assert not paths.sealed().exists()
    own = brought.model_copy(update={"kernel": home / "my-kernel"})
    (home / "my-kernel").write_bytes(b"mine")
    assert not sealed_kit.boot_place(own).exists()


def test_a_build_of_the_same_recipe_with_other_bytes_has_its_own_boot_files(home: Path) -> None:
    one, other = made(home / "a"), made(home / "b", name="debian-13", disk="8M")
    assert sealed_kit.boot_place(one) != sealed_kit.boot_place(other)
    assert sealed_kit._kernel_of(one) == sealed_kit._kernel_of(other)  # it is built once


@pytest.mark.parametrize("key", ["kernel_version", "mdadm_version"])
@pytest.mark.parametrize("text", ["4.2' && touch /x '", "6.1,evil", "../x", "-o=x", "a b", ""])
def test_a_version_in_an_archive_is_one_word(
    archive: tuple[Path, str, Image], home: Path, key: str, text: str
) -> None:
    path, _, image = archive
    hostile = image.manifest.model_copy(update={key: text}).model_dump_json().encode()
    with pytest.raises(InputError, match=key):
        bring(path, rewritten(path, {"manifest.json": hostile}))


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("linux-image-6.1", "6.1,-oDPkg::Pre-Invoke::=id"),
        ("linux-image-6.1", "-oDPkg::Pre-Invoke::=id"),
        ("linux-image-6.1", "6.1/../x"),
        ("linux-image-6.1", "6.1 evil"),
        ("-o=x", "6.1"),
        ("a,b", "6.1"),
    ],
)
def test_packages_in_an_archive_are_words_of_apt(
    archive: tuple[Path, str, Image], home: Path, name: str, version: str
) -> None:
    path, _, image = archive
    update = {"packages": {name: version}}
    hostile = image.manifest.model_copy(update=update).model_dump_json().encode()
    with pytest.raises(InputError, match="packages"):
        bring(path, rewritten(path, {"manifest.json": hostile}))


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


def sparse(name: str, size: int) -> tarfile.TarInfo:
    """Return an entry of a few bytes that reads as ``size`` zeros."""
    entry = tarfile.TarInfo(name)
    keys = {"major": "0", "minor": "1", "map": f"{size},0", "realsize": str(size)}
    entry.pax_headers = {f"GNU.sparse.{key}": value for key, value in keys.items()}
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
    update = {"files": files, "digest": contents_digest(files)}
    hostile = image.manifest.model_copy(update=update).model_dump_json().encode()
    wrong = image.manifest.model_copy(update={"digest": "0" * 64}).model_dump_json().encode()
    monkeypatch.setenv("LAB_HOME", str(home / "two"))
    for changed, said in (
        ({"manifest.json": None}, "'manifest.json' is missing"),
        ({"manifest.json": b"{}"}, "'manifest.json' is not valid"),
        ({"manifest.json": bytes(2 << 20)}, "must be a regular file of at most"),
        ({"kernel": None}, "'kernel' is missing"),
        ({"kernel": b"short"}, "is corrupt: .*'kernel'"),
        ({"kernel": b"longer than it was"}, "must be a regular file of at most"),
        ({"kernel": link("kernel")}, "must be a regular file of at most"),
        ({"kernel": sparse("kernel", 10)}, "is not an archive of an image: a file is sparse"),
        ({"manifest.json": hostile, "disk.qcow2": disk}, "has a backing file"),
        ({"manifest.json": wrong}, "the digest in its .* is not its files'"),
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
