"""Leases in a directory that other users of the host share, and may have prepared."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.host.real_disks import leases

DISK: Any = SimpleNamespace(number=(8, 0), whole=(8, 0), partition=False)
NAME = "8-0"
TAKE = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from lab.host.real_disks import leases
os.setgid(65534)
os.setuid(65534)
disk = SimpleNamespace(number=(8, 0), whole=(8, 0), partition=False)
print(type(leases.take(Path(sys.argv[1]), disk)).__name__)
"""


def prepared(tmp_path: Path) -> Path:
    place = tmp_path / "leases"
    place.mkdir()
    place.chmod(0o1777)
    return place


def a_link(lock: Path, elsewhere: Path) -> None:
    lock.symlink_to(elsewhere)


def a_dangling_link(lock: Path, elsewhere: Path) -> None:
    lock.symlink_to(elsewhere.with_name("new"))


def a_fifo(lock: Path, _elsewhere: Path) -> None:
    os.mkfifo(lock)


def a_second_name(lock: Path, elsewhere: Path) -> None:
    lock.hardlink_to(elsewhere)


def a_directory(lock: Path, _elsewhere: Path) -> None:
    lock.mkdir()


def a_socket(lock: Path, _elsewhere: Path) -> None:
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(lock.parent)
        made.bind(lock.name)
        os.chdir(before)


def something_written(lock: Path, _elsewhere: Path) -> None:
    lock.write_text("8 0")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (a_link, "is a symbolic link"),
        (a_dangling_link, "is a symbolic link"),
        (a_fifo, "is a FIFO"),
        (a_second_name, "has 2 names"),
        (a_directory, "is a directory"),
        (a_socket, "is not a file"),
        (something_written, "holds 3 bytes"),
    ],
)
def test_what_was_planted_in_a_locks_place_is_refused_at_once(
    tmp_path: Path, plant: Callable[[Path, Path], None], says: str
) -> None:
    place, precious = prepared(tmp_path), tmp_path / "precious"
    precious.write_text("mine")
    plant(place / NAME, precious)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PermissionError, match=f"{NAME} {says}.*: remove it"):
        leases.take(place, DISK)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert precious.read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_a_plain_lock_is_taken_whoever_made_it(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    (place / NAME).touch()
    (place / NAME).chmod(0o666)
    if os.geteuid() == 0:
        os.chown(place / NAME, 65534, 65534)
    lease = leases.take(place, DISK)
    assert isinstance(lease, list)
    assert all(not os.get_inheritable(file) for file in lease)
    assert not isinstance(leases.take(place, DISK), list)
    leases.release(lease)


def test_the_directory_that_the_lab_makes_is_shared_and_sticky(tmp_path: Path) -> None:
    place = tmp_path / "leases"
    leases.release(list(leases.take(place, DISK) or []))  # type: ignore[call-overload]
    assert place.stat().st_mode & 0o7777 == 0o1777


def test_a_directory_from_which_others_may_remove_locks_is_refused(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    place.chmod(0o777)
    with pytest.raises(PermissionError, match=r"mode 777\): chmod 1777"):
        leases.take(place, DISK)
    assert list(place.iterdir()) == []
    shutil.rmtree(place)
    place.symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        leases.take(place, DISK)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_another_users_directory_is_refused_and_roots_is_not(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    os.chown(place, 65534, 65534)
    with pytest.raises(PermissionError, match=r"belongs to user 65534.*install -d -m 1777"):
        leases.take(place, DISK)
    with tempfile.TemporaryDirectory() as shared:  # pytest's directories are closed to other users
        Path(shared).chmod(0o755)
        ended = subprocess.run(
            [sys.executable, "-c", TAKE, str(prepared(Path(shared)))],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    assert ended.stdout.strip() == "list", ended.stderr
