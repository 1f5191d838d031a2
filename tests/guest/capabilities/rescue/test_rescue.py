"""Broken arrays come back, and the disks that they are on are never written."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.capabilities.rescue import run
from lab.capabilities.rescue.logic import attempts, drills, judge
from lab.capabilities.rescue.model import Attempt
from lab.capabilities.rescue.run import Options, Practice
from lab.core.errors import FullError
from tests.guest.conftest import Home

pytestmark = pytest.mark.guest
MIB = 1024**2


def quiet(_line: str) -> None:
    pass


def digests(images: tuple[Path, ...]) -> list[str]:
    return [hashlib.sha256(image.read_bytes()).hexdigest() for image in images]


@pytest.fixture(scope="module")
def two_lost(image: str, tmp_path_factory: pytest.TempPathFactory) -> Practice:
    return run.practice("two-lost", 4, tmp_path_factory.mktemp("drill"), quiet, image)


def test_two_lost_members_and_an_attempt_that_writes(
    two_lost: Practice, image: str, tmp_path: Path
) -> None:
    """An attempt that overwrites all disks changes its overlays only."""
    before = digests(two_lost.images)
    options = Options(image=image)
    with run.workspace() as work, run.opened(two_lost.images, work) as disks:
        found = run.read(disks, options)
        names = tuple(part.name for part in found.parts)
        vandal = Attempt(
            name="vandal",
            title="overwrite everything",
            commands=tuple(
                f"dd if=/dev/urandom of={{{name}}} bs=1M count=8 conv=fsync" for name in names
            ),
            parts=names,
            writes="random bytes",
        )
        chosen = [vandal, *attempts.choose(found)]
        ranking = judge.rank(run.tried(disks, found, chosen, options, work, quiet))
    assert digests(two_lost.images) == before
    best = ranking[0].outcome
    assert best.attempt.name == "force-1"
    expected = drills.expected_hashes(two_lost.drill, two_lost.seed)
    assert {path: best.hashes.get(path) for path in expected} == expected
    # --force writes superblocks, which end before the data; readings of their extents show it.
    places = [extent for extents in best.written.values() for extent in extents]
    assert places
    assert max(extent.at + extent.length for extent in places) <= MIB
    (written,) = [r.outcome.written for r in ranking if r.outcome.attempt is vandal]
    assert all(sum(e.length for e in extents) >= 8 * MIB for extents in written.values())


def test_files_are_copied_out(
    two_lost: Practice, lab_home: Home, image: str, tmp_path: Path
) -> None:
    before = digests(two_lost.images)
    words = ["rescue", "--image", image, "--copy-to", str(tmp_path / "out")]
    done = lab_home.run(*words, *map(str, two_lost.images))
    assert done.returncode == 0, done.stderr
    assert "mdadm --assemble --readonly --run --force" in done.stdout
    for path, digest in drills.expected_hashes(two_lost.drill, two_lost.seed).items():
        assert hashlib.sha256((tmp_path / "out" / path).read_bytes()).hexdigest() == digest
    assert digests(two_lost.images) == before
    assert not list((lab_home.path / "cache/sealed").glob(".rescue*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", drills.DRILLS)
def test_a_drill(name: str, lab_home: Home, tmp_path: Path) -> None:
    """Needs the image `rescue`."""
    found = run.graded(name, 1, tmp_path, quiet)
    assert found.passed, (found.wrong, [r.outcome.attempt.name for r in found.report.ranking])


@pytest.fixture
def rescuing(two_lost: Practice, lab_home: Home, image: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "lab", "rescue", "--image", image]
    process = subprocess.Popen(
        [*words, *map(str, two_lost.images)],
        env=lab_home.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield process
    process.kill()
    process.wait()


def qemu_of(home: Home) -> list[int]:
    """Return the processes of QEMU that use this home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(b"qemu-system") and str(home.path).encode() in line:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.5, 1, 1.5, 2, 3, 5, 8, 12, 16, 20])
def test_kill_9(
    moment: float, rescuing: subprocess.Popen[bytes], two_lost: Practice, lab_home: Home
) -> None:
    before = digests(two_lost.images)
    time.sleep(moment)
    rescuing.kill()
    rescuing.wait()
    deadline = time.monotonic() + 10
    while qemu_of(lab_home) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert qemu_of(lab_home) == []
    assert digests(two_lost.images) == before
    lab_home.run("gc")
    assert not list((lab_home.path / "cache/sealed").glob(".rescue*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 4, 9])
def test_stopped_and_continued(
    moment: float, rescuing: subprocess.Popen[bytes], two_lost: Practice
) -> None:
    before = digests(two_lost.images)
    time.sleep(moment)
    os.kill(rescuing.pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(rescuing.pid, signal.SIGCONT)
    assert rescuing.wait(timeout=300) == 0
    assert digests(two_lost.images) == before


@pytest.mark.slow
def test_a_full_disk_for_overlays(two_lost: Practice, image: str, tmp_path: Path) -> None:
    """It is said, and never taken for an attempt that does not work; the originals stay."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    before = digests(two_lost.images)
    options = Options(image=image)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:
        with run.workspace() as work, run.opened(two_lost.images, work) as disks:
            found = run.read(disks, options)
            parts = tuple(part.name for part in found.parts)
            writing = Attempt(
                name="x",
                title="x",
                commands=(f"dd if=/dev/urandom of={{{parts[0]}}} bs=1M count=32 conv=fsync",),
                parts=parts,
                writes="",
            )
            with pytest.raises(FullError, match="less than 1GiB is free"):
                run.tried(disks, found, [writing], options, small, quiet)
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    assert digests(two_lost.images) == before


@pytest.mark.slow
def test_a_disk_that_changes_meanwhile_ends_the_rescue(
    two_lost: Practice, lab_home: Home, image: str, tmp_path: Path
) -> None:
    copies = []
    for source in two_lost.images:
        copy = tmp_path / source.name
        copy.write_bytes(source.read_bytes())
        copies.append(copy)
    words = [sys.executable, "-m", "lab", "rescue", "--image", image, *map(str, copies)]
    process = subprocess.Popen(
        words, env=lab_home.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(6)
    with copies[0].open("r+b") as file:
        file.seek(3000)
        file.write(b"changed")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "was changed by another process" in errors
    assert str(copies[0]) in errors
