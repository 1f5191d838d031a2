"""What the initramfs of a guest in virtual time has besides the driver."""

from __future__ import annotations

import lzma
import os
import subprocess
from pathlib import Path

import pytest

from lab.core.errors import HostError
from lab.host.images import virtual_time
from lab.host.images.virtual_time import ext4_modules

VERSION = "7.3.4+deb13-amd64"
DEPENDENCIES = """\
kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc/crc16.ko.xz kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko.xz
kernel/fs/jbd2/jbd2.ko.xz:
kernel/drivers/md/raid456.ko.xz: kernel/drivers/md/md-mod.ko.xz
"""
MODULES = (
    *("kernel/fs/ext4/ext4.ko.xz", "kernel/lib/crc/crc16.ko.xz"),
    *("kernel/fs/mbcache.ko", "kernel/fs/jbd2/jbd2.ko.xz"),
)


def image(directory: Path, dependencies: str, modules: tuple[str, ...]) -> Path:
    """Return an ext4 file system with these modules, whose content is their name."""
    top = directory / "root/usr/lib/modules" / VERSION
    for name in modules:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.name.removesuffix(".xz").encode()
        path.write_bytes(lzma.compress(data) if name.endswith(".xz") else data)
    top.mkdir(parents=True, exist_ok=True)
    (top / "modules.dep").write_text(dependencies)
    base = directory / "base"
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-d", directory / "root", base, "4M"],
        check=True,
        env={"PATH": places},
    )
    return base


def test_a_kernel_with_ext4_as_a_module_gets_it_in_the_order_of_loading(tmp_path: Path) -> None:
    base = image(tmp_path, DEPENDENCIES, MODULES)
    found = ext4_modules(base, VERSION, tmp_path)
    assert list(found) == ["jbd2.ko", "mbcache.ko", "crc16.ko", "ext4.ko"]
    assert all(data == name.encode() for name, data in found.items())
    assert not (tmp_path / "read").exists()


@pytest.mark.parametrize("version", [VERSION, "6.1.0-1-cloud-amd64"])
def test_a_kernel_with_ext4_built_in_needs_no_module(tmp_path: Path, version: str) -> None:
    base = image(tmp_path, DEPENDENCIES.partition("\n")[2], ())
    assert ext4_modules(base, version, tmp_path) == {}


def test_a_module_that_the_image_lacks_is_named(tmp_path: Path) -> None:
    base = image(tmp_path, DEPENDENCIES, tuple(m for m in MODULES if "mbcache" not in m))
    with pytest.raises(HostError, match=r"no mbcache\.ko, without which Linux 7\.3\.4"):
        ext4_modules(base, VERSION, tmp_path)


def test_a_strangers_module_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert virtual_time._MODULE == 64 << 20
    monkeypatch.setattr(virtual_time, "_MODULE", 1 << 20)
    most = bytes(1 << 20)
    assert virtual_time._unpacked("x.ko.xz", lzma.compress(most)) == most
    for data, said in (
        (lzma.compress(most + b"0"), "larger than 1MiB"),
        (lzma.compress(b"module")[:-5], "is cut off"),
        (b"this is not xz", "cannot be unpacked"),
    ):
        with pytest.raises(HostError, match=rf"the image's x\.ko\.xz .*{said}"):
            virtual_time._unpacked("x.ko.xz", data)
    base = image(tmp_path, DEPENDENCIES, MODULES)
    monkeypatch.setattr(virtual_time, "_MODULE", 100)
    with pytest.raises(HostError, match=r"modules\.dep is larger than 100"):
        ext4_modules(base, VERSION, tmp_path)
