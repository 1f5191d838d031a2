"""A home that others can write to is refused: the lab runs programs that it keeps there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.core.errors import InputError
from lab.host.system import network, paths

STRANGER = 12345


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir(mode=0o755)
    monkeypatch.setenv("LAB_HOME", str(place))
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.delenv("CI", raising=False)
    paths._check_way.cache_clear()
    return place


def refused(said: str) -> None:
    for place in (paths.images, paths.guests, paths.plugins):
        with pytest.raises(InputError, match=said):
            place()


def test_ones_own_home_is_used(home: Path) -> None:
    assert paths.plugins() == home / "cache" / "plugins"
    home.chmod(0o2775)  # of a group
    assert paths.plugins()
    home.rmdir()
    assert paths.plugins()


def test_a_home_that_all_can_write_to_is_refused(home: Path) -> None:
    for mode in (0o777, 0o1777, 0o702):
        home.chmod(mode)
        refused("all users of this host may write")
    home.chmod(0o755)
    (home / "cache").mkdir()
    (home / "cache").chmod(0o777)
    with pytest.raises(InputError, match="all users"):
        paths.plugins()


def test_a_home_that_all_can_replace_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = home / "of" / "mine"
    below.mkdir(parents=True)
    monkeypatch.setenv("LAB_HOME", str(below))
    for mode, said in ((0o777, "could replace"), (0o1777, ""), (0o775, "")):
        home.chmod(mode)
        paths._check_way.cache_clear()
        if said:
            refused(f"may write to '{home}', and {said} '{below}'")
        else:
            assert paths.plugins()


def test_a_way_through_a_link_is_checked_on_both_sides(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_, link = tmp_path / "open", tmp_path / "link"
    (open_ / "mine").mkdir(parents=True)
    link.symlink_to(open_ / "mine")
    monkeypatch.setenv("LAB_HOME", str(link / "home"))
    assert paths.plugins()
    open_.chmod(0o777)
    paths._check_way.cache_clear()
    refused(f"may write to '{open_}'")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_in_a_strangers_directory_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_is_within", lambda: False)
    monkeypatch.setenv("LAB_HOME", str(home / "mine"))
    assert paths.plugins()
    os.chown(home, STRANGER, -1)
    paths._check_way.cache_clear()
    refused(f"'{home}' belongs to the user with number {STRANGER}, who could replace")
    monkeypatch.setattr(paths, "_CONTAINERS", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("RUNNER_ENVIRONMENT", raising=False)
    monkeypatch.setenv("CI", "true")  # on a runner of one's own, with other users
    refused("who could replace")
    monkeypatch.setenv("RUNNER_ENVIRONMENT", "github-hosted")  # nobody else is on that machine
    assert paths.plugins()
    monkeypatch.setenv("RUNNER_ENVIRONMENT", "self-hosted")
    refused("who could replace")
    monkeypatch.setattr(paths, "_CONTAINERS", (str(home),))
    assert paths.plugins()


def test_a_strangers_home_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = home.stat().st_uid
    monkeypatch.setattr(paths, "_is_within", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)  # the directory is then another user's
    if owner == 0:  # root's directories are used by all
        assert paths.plugins()
        os.chown(home, STRANGER + 1, -1)
        owner = STRANGER + 1
    refused(f"belongs to the user with number {owner}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_root_uses_the_home_of_who_called_sudo(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(home, STRANGER, -1)
    monkeypatch.setattr(paths, "_is_within", lambda: False)
    refused("belongs to the user")
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert paths.plugins()


def test_a_link_to_a_strangers_directory_is_refused(home: Path) -> None:
    there = home.parent / "there"
    there.mkdir()
    there.chmod(0o777)
    (home / "state").symlink_to(there)
    with pytest.raises(InputError, match="all users"):
        paths.guests()


def test_a_worker_in_its_own_network_uses_roots_directory(home: Path) -> None:
    """Its user namespace has one user, so root's files have the owner 65534."""
    code = (
        "from lab.host.system import network, paths\n"
        "assert network.leave()\n"
        "print(paths.plugins(), paths._is_within())\n"
    )
    if subprocess.run([sys.executable, network.__file__, network.TRY], check=False).returncode:
        pytest.skip("no namespaces here")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(str(home)), done.stderr


def test_commands_make_no_home_that_all_can_write_to(home: Path) -> None:
    home.rmdir()
    words = [sys.executable, "-P", "-m", "lab", "schema", "scenario", "--install"]
    code = "import os, sys; os.umask(0); os.execv(sys.argv[1], sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
    made = [home, *home.rglob("*")]
    assert home / "data" / "schema" in made
    assert [path for path in made if path.stat().st_mode & 0o002] == []
