"""Building real images: minutes, the network, and nothing left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import images
from lab.host.images import build as image_build
from lab.host.images import recipes as image_recipes
from lab.host.system import paths
from lab.model.image.manifest import Image

pytestmark = [
    pytest.mark.guest,
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

BUILDER = """
import sys
from lab.core.errors import LabError
from lab.host.images import recipes as image_recipes
from lab.host.images import build as image_build
recipe = image_recipes.load("debian-12")[1]
if len(sys.argv) > 1:
    recipe = recipe.model_copy(update={"packages": (*recipe.packages, sys.argv[1])})
said = set()
def progress(says, part):
    if says not in said:
        said.add(says)
        print(says, flush=True)
try:
    options = {} if len(sys.argv) == 1 else {"minimum_free": 0}
    image = image_build.build(recipe, name="debian-12", progress=progress, **options)
    print("made", image.directory)
except LabError as error:
    print("error", type(error).__name__, error)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    yield paths.images()
    # pytest keeps the directories of three sessions, and an image is half a gigabyte
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def builders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(builders: list[subprocess.Popen[str]], *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    builders.append(process)
    return process


def read_until(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + 120
    said = ""
    while wanted not in said:
        ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
        assert ready, f"'{wanted}' was not said in time, but: {said}"
        line = process.stdout.readline()
        assert line, f"the builder ended before it said '{wanted}': {said}"
        said += line


def processes_below(directory: Path) -> list[str]:
    """Command lines and roots of processes that have to do with the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            places = [str((entry / link).readlink()) for link in ("root", "cwd")]
        except OSError:
            continue
        if str(directory) in words or any(p.startswith(str(directory)) for p in places):
            found.append(words.replace("\0", " "))
    return found


def mounts_below(directory: Path) -> list[str]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if str(directory) in line]


def read_out(image: Image, directory: Path, command: str) -> str:
    """What debugfs says about the finished image."""
    raw = directory / "disk.raw"
    if not raw.exists():
        subprocess.run(["qemu-img", "convert", "-O", "raw", str(image.disk), str(raw)], check=True)
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    return subprocess.run(
        ["debugfs", "-R", command, str(raw)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout


@pytest.mark.slow
def test_two_builders_do_the_work_once_and_the_image_is_as_asked_for(
    home: Path, tmp_path: Path, builders: list[subprocess.Popen[str]]
) -> None:
    pair = [start(builders), start(builders)]
    outputs = [process.communicate(timeout=900)[0] for process in pair]
    assert sum("waiting for another process" in text for text in outputs) == 1
    assert sum("making the file system" in text for text in outputs) == 1
    made = {text.splitlines()[-1] for text in outputs}
    assert len(made) == 1

    image = images.find("debian-12")
    assert image is not None
    assert made == {f"made {image.directory}"}
    assert [p.name for p in home.iterdir()] == [image.directory.name]
    images.verify(image, deep=True)
    assert image.kernel is not None
    assert image.initrd is not None
    assert image.initrd.stat().st_size < 8_000_000
    assert image.manifest.kernel_version in (image.directory / "build.log").read_text()
    assert image.manifest.mdadm_version == image.manifest.packages["mdadm"]
    assert processes_below(home) == []

    assert "AUTO -all" in read_out(image, tmp_path, "cat /etc/mdadm/mdadm.conf")
    assert '"/dev/null"' in read_out(image, tmp_path, "stat /etc/systemd/system/fstrim.timer")
    assert "ssh_host" not in read_out(image, tmp_path, "ls /etc/ssh")
    assert "User:     0   Group:     0" in read_out(image, tmp_path, "stat /usr/bin/fio")
    assert "Mode:  04755" in read_out(image, tmp_path, "stat /usr/bin/sudo")

    recipe = image_recipes.load("debian-12")[1]
    began = time.monotonic()
    again = image_build.build(recipe, name="debian-12", progress=lambda _says, _part: None)
    assert again == image
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("number", "stage"),
    [
        (signal.SIGINT, "unpacking the essential packages"),
        pytest.param(signal.SIGTERM, "installing the essential packages", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "making the file system", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_build_leaves_nothing(
    home: Path, builders: list[subprocess.Popen[str]], number: signal.Signals, stage: str
) -> None:
    process = start(builders)
    read_until(process, stage)
    deadline = time.monotonic() + 10
    while not processes_below(home):  # the search does find them
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert list(home.iterdir()) == []
    assert processes_below(home) == []
    assert mounts_below(home) == []


@pytest.mark.slow
def test_what_a_killed_build_leaves_is_pruned(
    home: Path, builders: list[subprocess.Popen[str]]
) -> None:
    process = start(builders)
    read_until(process, "installing the essential packages")
    assert images.prune().names == ()
    process.kill()
    process.wait(timeout=30)
    deadline = time.monotonic() + 15
    while processes_below(home):
        assert time.monotonic() < deadline, processes_below(home)
        time.sleep(0.1)
    assert mounts_below(home) == []
    pruned = images.prune()
    assert len(pruned.names) == 1
    assert pruned.bytes_freed > 10**6
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_a_package_that_does_not_exist_is_named(
    home: Path, builders: list[subprocess.Popen[str]]
) -> None:
    output, _ = start(builders, "no-such-package").communicate(timeout=300)
    assert "error InputError" in output
    assert "'bookworm' has no package 'no-such-package'" in output
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
@pytest.mark.parametrize("size", ["60m", pytest.param("250m", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, size: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f'mount -t tmpfs -o mode=755,size={size} none "$LAB_HOME"\n'
        '"$@"\n'
        'find "$LAB_HOME/data/images" -mindepth 1\n'
        'echo "nothing more is left"\n'
    )
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            script,
            "sh",
            sys.executable,
            "-c",
            BUILDER,
            "btrfs-progs",
        ],
        env={**os.environ, "LAB_HOME": str(small)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "mount:" in done.stderr:
        pytest.skip(f"this host lets nobody mount: {done.stderr.strip()}")
    said = done.stdout.splitlines()
    (error,) = [line for line in said if line.startswith("error")]
    assert error == "error HostError the image 'debian-12' could not be built: the disk is full"
    assert said[said.index(error) + 2 :] == ["nothing more is left"]
