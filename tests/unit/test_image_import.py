"""Importing images: a complete and requested image is stored; all else leaves no files."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.core.errors import HostError, InputError
from lab.host import images
from lab.host.images import download, inspection
from lab.host.images.download import disk_format
from lab.host.system import paths
from lab.model.image.manifest import Image, ImageBoot, ImageSource, contents_digest

needs_qemu_img = pytest.mark.skipif(
    shutil.which("qemu-img") is None, reason="qemu-img is not installed"
)
RAW = bytes(510) + b"\x55\xaa" + bytes(range(256)) * 4094


def sha512(content: bytes) -> str:
    return f"sha512:{hashlib.sha512(content).hexdigest()}"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    # These disks have no file system: tests/unit/test_inspection.py has those that are read.
    monkeypatch.setattr(inspection, "check", lambda *_: "")
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return paths.images()


def bring(source: str, checksum: str, name: str = "brought") -> Image:
    return download.import_image(
        source, name=name, checksum=checksum, progress=lambda _says, _part: None
    )


def left(home: Path) -> list[str]:
    return sorted(p.name for p in home.iterdir()) if home.exists() else []


def qcow2(path: Path, *options: str) -> bytes:
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", *options, str(path), "4M"], check=True
    )
    return path.read_bytes()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "cloud.raw"
    path.write_bytes(RAW)
    return path


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/whole":
            self.answer(200, RAW, len(RAW))
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
        elif self.path == "/to-a-file":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
        elif self.path == "/short":
            self.answer(200, RAW[: len(RAW) // 2], len(RAW))
        elif self.path == "/without-length":
            self.answer(200, RAW, None)
        elif self.path == "/slow":
            self.answer(200, RAW[:4096], len(RAW))
            self.server.stop.wait(30)  # type: ignore[attr-defined]
        else:
            self.send_error(404)

    def answer(self, status: int, body: bytes, length: int | None) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.stop = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.stop.set()  # type: ignore[attr-defined]
        listening.shutdown()
        thread.join()


@needs_qemu_img
def test_a_raw_file_becomes_an_image_that_boots_from_its_disk(home: Path, raw: Path) -> None:
    image = bring(str(raw), sha512(RAW))
    assert image.manifest.boot is ImageBoot.DISK
    assert image.manifest.source is ImageSource.IMPORTED
    assert (image.kernel, image.initrd) == (None, None)
    assert image.manifest.origin == str(raw)
    assert image.digest == contents_digest(image.manifest.files)
    assert images.find("brought") == image
    images.verify(image, deep=True)
    info = subprocess.run(
        ["qemu-img", "info", "--output=json", str(image.disk)], capture_output=True, check=True
    )
    assert json.loads(info.stdout)["format"] == "qcow2"
    assert left(home) == [image.directory.name]
    assert raw.read_bytes() == RAW


@needs_qemu_img
def test_a_qcow2_file_is_kept_as_it_came(tmp_path: Path) -> None:
    content = qcow2(tmp_path / "cloud.qcow2")
    image = bring(str(tmp_path / "cloud.qcow2"), sha256(content).upper().replace("SHA", "sha"))
    assert image.disk.read_bytes() == content
    images.verify(image, deep=True)


@needs_qemu_img
@pytest.mark.parametrize("path", ["/whole", "/moved", "/without-length"])
def test_a_url_is_fetched(home: Path, server: str, path: str) -> None:
    seen: list[float] = []
    image = download.import_image(
        server + path,
        name="brought",
        checksum=sha512(RAW),
        progress=lambda _says, part: seen.append(part or 0.0),
    )
    images.verify(image, deep=True)
    assert seen == sorted(seen) or path == "/without-length"
    assert seen[-1] == 1.0
    assert left(home) == [image.directory.name]


@needs_qemu_img
def test_what_is_there_is_not_fetched_again(server: str) -> None:
    image = bring(f"{server}/whole", sha512(RAW))
    assert bring(f"{server}/nothing-here", sha512(RAW)) == image
    image.disk.unlink()
    image.disk.write_bytes(b"short")
    with pytest.raises(HostError, match="404"):
        bring(f"{server}/nothing-here", sha512(RAW))
    images.verify(bring(f"{server}/whole", sha512(RAW)), deep=True)


@pytest.mark.parametrize(
    ("path", "checksum", "kind", "expected"),
    [
        ("/whole", sha512(b"another"), InputError, "has the wrong checksum"),
        ("/whole", sha256(b"another"), InputError, "has the wrong checksum"),
        ("/short", sha512(RAW), HostError, f"ended after {len(RAW) // 2} of {len(RAW)} bytes"),
        ("/short", sha512(RAW[: len(RAW) // 2]), HostError, "ended after"),
        ("/missing", sha512(RAW), HostError, "the server answered 404"),
        ("/to-a-file", sha512(RAW), HostError, "could not be fetched"),
    ],
)
def test_a_url_that_fails_is_one_sentence_and_leaves_nothing(
    home: Path, server: str, path: str, checksum: str, kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind) as caught:
        bring(server + path, checksum)
    assert expected in str(caught.value)
    assert f"'{server}{path}'" in str(caught.value)
    assert left(home) == []


def test_a_refused_connection_is_the_hosts_trouble(home: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/image"
        with pytest.raises(HostError, match="Connection refused"):
            bring(url, sha512(RAW))
    assert left(home) == []


@pytest.mark.parametrize(
    "checksum",
    ["", "sha512:", "sha512:12", sha256(RAW).replace("256", "512"), "md5:" + "0" * 32, "0" * 64],
)
def test_a_malformed_checksum_is_told_before_anything(home: Path, checksum: str) -> None:
    with pytest.raises(InputError, match="is not a checksum"):
        bring("/nowhere", checksum)
    assert not home.exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere.qcow2", "the file 'nowhere.qcow2' does not exist"),
        ("/etc", "the file '/etc' does not exist"),
        ("ftp://example/x", "is not a file or an http"),
        ("file:///etc/hostname", "is not a file or an http"),
    ],
)
def test_a_source_that_is_none_is_told(home: Path, source: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        bring(source, sha512(RAW))
    assert left(home) == []


def test_a_built_images_name_is_not_taken(raw: Path) -> None:
    with pytest.raises(InputError, match="'debian-12' is the name of an image recipe"):
        bring(str(raw), sha512(RAW), name="debian-12")


def file(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "file"
    path.write_bytes(content)
    return str(path)


@needs_qemu_img
def test_a_qcow2_file_that_names_another_file_is_refused(home: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(bytes(4 * 1024**2))
    backed = qcow2(tmp_path / "backed", "-b", str(base), "-F", "raw")
    split = qcow2(tmp_path / "split", "-o", f"data_file={tmp_path / 'data'}")
    whole = qcow2(tmp_path / "whole")
    with pytest.raises(InputError, match="has a backing file"):
        bring(str(tmp_path / "backed"), sha512(backed))
    with pytest.raises(InputError, match="has an external data file"):
        bring(str(tmp_path / "split"), sha512(split))
    assert left(home) == []
    bring(str(tmp_path / "whole"), sha512(whole))


@needs_qemu_img
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not a qcow2 image and not a raw disk"),
        (
            b"<!DOCTYPE html><title>Moved</title>" + bytes(4096),
            "is not a qcow2 image and not a raw",
        ),
        (b"QFI\xfb\0\0\0\x03", "ends within its qcow2 header"),
        (b"QFI\xfb\0\0\0\x09" + bytes(4096), "qcow2 version 9"),
        (b"QFI\xfb\0\0\0\x03" + bytes(4096), "is not an image that QEMU can read"),
        (b"KDMV" + bytes(4096), "a VMDK image"),
        (b"\xfd7zXZ\x00" + bytes(4096), "unpack it first"),
        (b"\x1f\x8b" + bytes(4096), "unpack it first"),
        (b"conectix" + bytes(4096), "a VHD image"),
    ],
)
def test_what_is_no_image_is_refused(
    home: Path, tmp_path: Path, content: bytes, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        bring(file(tmp_path, content), sha512(content))
    assert left(home) == []


def test_the_formats_are_told_apart() -> None:
    assert disk_format(RAW[:1024], source="x") == "raw"
    assert disk_format(b"QFI\xfb\0\0\0\x02" + bytes(1020), source="x") == "qcow2"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_leaves_nothing(
    home: Path, server: str, number: signal.Signals
) -> None:
    code = (
        "import sys\n"
        "from lab.host.images import download\n"
        "download.import_image(sys.argv[1], name='brought', checksum=sys.argv[2],\n"
        "    progress=lambda says, part: print(says, part, flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"{server}/slow", sha512(RAW)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "fetching" in process.stdout.readline()
        assert any(name.startswith(".work-") for name in left(home))
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
        process.communicate()
    assert left(home) == []


@needs_qemu_img
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
def test_a_full_disk_leaves_nothing(tmp_path: Path, server: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    code = (
        "import sys\n"
        "from lab.core.errors import HostError\n"
        "from lab.host.images import download\n"
        "try:\n"
        "    download.import_image(sys.argv[1], name='brought', checksum=sys.argv[2],\n"
        "        progress=lambda says, part: None)\n"
        "except HostError as error:\n"
        "    print(error)\n"
    )
    script = (
        'mount -t tmpfs -o mode=755,size=512k none "$LAB_HOME"\n'
        '"$@"\n'
        'find "$LAB_HOME/data/images" -mindepth 1\n'
    )
    for path, sentence in (("/without-length", "is full"), ("/whole", "GB are free")):
        done = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-ec", script, "sh"),
                *(sys.executable, "-c", code, server + path, sha512(RAW)),
            ],
            env={**os.environ, "LAB_HOME": str(small)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if "mount:" in done.stderr:
            pytest.skip(f"this host lets nobody mount: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        said = done.stdout.strip().splitlines()
        assert sentence in said[0]
        assert not any(str(small / "data" / "images") + "/" in line for line in said[1:])
