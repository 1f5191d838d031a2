"""Commands that enter guests: which guest, ``lab cp``, ``lab ssh-config``; a kind that is left
out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from lab.cli.app import ByKind
from lab.cli.commands import app
from lab.core.errors import InputError, LimitError
from lab.core.units import GIB
from lab.host.guest import registry
from lab.host.guest.registry import GuestRecord
from lab.host.system import pids
from lab.run import guests


def record(home: Path, name: str, *, port: int = 2222, owner: int = 0) -> GuestRecord:
    """A guest that runs: its QEMU is this process."""
    directory = registry.directory_of(name)
    directory.mkdir(parents=True)
    found = GuestRecord(
        id=name,
        directory=str(directory),
        scenario="q",
        image="debian-12",
        created="2026-01-01T00:00:00Z",
        owner_pid=owner,
        owner_started=pids.started_ticks(owner) or 0 if owner else 0,
        pid=os.getpid(),
        port=port,
    )
    registry.write(found)
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "it's 100 % mine"))
    monkeypatch.setattr(registry, "is_alive", lambda _record: True)
    monkeypatch.setattr(registry, "is_off", lambda _record: False)
    return tmp_path


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    found: list[Sequence[str]] = []

    def attached(_record: GuestRecord, argv: Sequence[str], _watch: object = None) -> int:
        found.append(argv)
        return 5

    monkeypatch.setattr(guests, "attached", attached)
    return found


def test_a_guest_of_a_worker_is_entered_only_by_its_name(home: Path) -> None:
    record(home, "gbusy", owner=os.getpid())
    with pytest.raises(InputError, match="no live guest"):
        registry.find(None, enterable=True)
    record(home, "gkept")
    assert registry.find(None, enterable=True).id == "gkept"
    assert registry.find("gbusy", enterable=True).id == "gbusy"


def test_a_sealed_guest_cannot_be_entered(home: Path) -> None:
    record(home, "gsealed", port=0, owner=os.getpid())
    with pytest.raises(InputError, match="cannot be entered"):
        registry.find("gsealed", enterable=True)
    assert registry.find("gsealed").id == "gsealed"


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["a.sh", "b c", ":/srv/"], ["./a.sh", "./b c", "root@127.0.0.1:/srv/"]),
        (["g1:/var/log", "."], ["root@127.0.0.1:/var/log", "./."]),
        (["g1:/a", "g1:/b", "/tmp"], ["root@127.0.0.1:/a", "root@127.0.0.1:/b", "/tmp"]),
        (["./x:y", "g1:z"], ["./x:y", "root@127.0.0.1:z"]),
        (["-r", ":z"], ["./-r", "root@127.0.0.1:z"]),
    ],
)
def test_files_are_copied_to_and_from_one_guest(
    home: Path, called: list[Sequence[str]], words: list[str], ends: list[str]
) -> None:
    record(home, "g1")
    assert guests.copy(words, user="root") == 5
    (argv,) = called
    assert argv[0] == "scp"
    assert list(argv[argv.index("-P") + 2 :]) == ends


@pytest.mark.parametrize(("free", "ends"), [(GIB - 1, True), (GIB, False)])
def test_a_guest_that_sends_without_end_does_not_fill_the_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch, free: int, ends: bool
) -> None:
    record(home, "g1")
    scp = home / "bin/scp"
    scp.parent.mkdir()
    scp.write_text(f"#!/bin/sh\nsleep 2\ntouch '{home}/ended'\nexit 7\n")
    scp.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scp.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if ends:
        with pytest.raises(LimitError, match="1 GiB of the disk"):
            guests.copy([":/dev/zero", str(home)], user="root")
    else:
        assert guests.copy([":/dev/zero", str(home)], user="root") == 7
    assert (home / "ended").exists() is not ends
    assert guests.copy(["x", ":/y"], user="root") == 7  # into the guest: no limit


@pytest.mark.parametrize(
    "words", [["a", "b"], ["g1:a"], ["g1:a", "g1:b"], ["g1:a", "b", "c"], ["g1:a", "g2:b"]]
)
def test_a_copy_has_one_side_in_a_guest(home: Path, words: list[str]) -> None:
    record(home, "g1")
    with pytest.raises(InputError, match=r"side|GUEST:PATH"):
        guests.copy(words, user="root")


def test_openssh_reads_the_configuration(home: Path) -> None:
    given = record(home, "g1")
    path = home / "config"
    path.write_text(guests.ssh_config(None))
    done = subprocess.run(
        ["ssh", "-G", "-F", str(path), "g1"], capture_output=True, text=True, check=True
    )
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found["port"] == "2222"
    assert found["hostname"] == "127.0.0.1"
    assert found["userknownhostsfile"] == f"{given.path}/known_hosts"


# -- `lab up X`, `lab run X`, `lab check X`


def kind(group: str, *args: str) -> str:
    whole: Any = typer.main.get_command(app)
    found = whole.commands[group]
    assert isinstance(found, ByKind)
    return found._kind(list(args))


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text("title: T\nnotes: |\n  scenarios: none\n")
    assert kind("run", str(scenario)) == "scenario"
    assert kind("run", "degraded") == "scenario"
    assert kind("run", "no-such-name") == "scenario"
    assert kind("run", "--json", str(scenario)) == "scenario"
