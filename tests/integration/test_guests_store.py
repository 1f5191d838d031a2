"""Guests by their directories: owners, abandoned guests, and protected files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.errors import HostError, InputError
from lab.host.guest import registry as guests
from lab.host.system import paths
from lab.run import guests as use

pytestmark = pytest.mark.usefixtures("lab_home")


def made(name: str = "g1") -> guests.GuestRecord:
    return guests.create(guest=name, scenario="q", image="i", host_key="ssh-ed25519 AAAA")


@contextmanager
def process(argv0: str, argument: str) -> Iterator[int]:
    """Yield the id of a real process with the name and the argument of another."""
    script = """exec -a "$1" sh -c 'read line' sh "$2" """
    words = ["bash", "-c", script, "bash", argv0, argument]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)
    wanted = argv0.encode()
    until = time.monotonic() + 5
    while Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[0] != wanted:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def dead_pid() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


QEMU = "/usr/bin/qemu-system-x86_64"


def disk_of(record: guests.GuestRecord) -> str:
    return f"file={record.path}/root.qcow2,if=virtio"


def test_a_guest_is_there_with_its_record_and_belongs_to_its_maker() -> None:
    record = made()
    assert guests.read(record.path) == record
    assert list(guests.every()) == [record]
    assert guests.is_owned(record)
    assert not guests.is_alive(record)
    assert record.path.stat().st_mode & 0o777 == 0o700
    assert guests.abandoned() == []


def test_a_record_is_changed_whole_and_pins_the_host_key() -> None:
    record = replace(made(), port=4022, pid=1)
    guests.write(record)
    assert guests.read(record.path) == record
    assert (record.path / "known_hosts").read_text() == "[127.0.0.1]:4022 ssh-ed25519 AAAA\n"


def test_a_guest_whose_owner_is_dead_is_abandoned() -> None:
    record = made()
    guests.write(replace(record, owner_pid=dead_pid(), owner_started=5))
    assert guests.abandoned() == [record.path]
    guests.write(replace(record, owner_started=record.owner_started + 1))  # a reused process id
    assert guests.abandoned() == [record.path]
    guests.write(record)
    assert guests.abandoned() == []


def test_a_zombie_owns_nothing() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        guests.own(made(), child.pid)
        assert guests.abandoned() == []
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        assert Path(f"/proc/{child.pid}/stat").exists()
        assert len(guests.abandoned()) == 1
    finally:
        child.communicate()


def test_a_guest_that_was_left_up_is_abandoned_only_when_it_has_ended() -> None:
    record = made()
    with process(QEMU, disk_of(record)) as pid:
        guests.own(replace(record, pid=pid), 0)
        assert guests.abandoned() == []
        assert use.live()[0]["state"] == "no answer"  # it has no SSH server
        assert guests.find(None).id == "g1"
        assert guests.find("q").id == "g1"
    assert guests.abandoned() == [record.path]
    assert use.live()[0]["state"] == "off"
    with pytest.raises(InputError, match="the guest 'g1' is off"):
        guests.find(None)


def test_what_is_about_to_be_a_guest_belongs_to_its_maker() -> None:
    fresh = paths.guests() / f".g2.{os.getpid()}"
    fresh.mkdir(parents=True)
    assert guests.abandoned() == []
    dead = paths.guests() / f".g3.{dead_pid()}"
    odd = [paths.guests() / name for name in (".g4", ".g5.x", "..g6", ".7.²")]
    for directory in (dead, *odd):
        directory.mkdir()
    assert sorted(guests.abandoned()) == sorted([dead, *odd])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": 1}', "\udcff"])
def test_a_directory_without_a_readable_record_is_abandoned(text: str) -> None:
    record = made()
    (record.path / guests.RECORD).write_bytes(text.encode(errors="surrogateescape"))
    assert guests.read(record.path) is None
    assert list(guests.every()) == []
    assert use.collect(dry_run=True) == ["g1"]
    assert record.path.exists()
    assert guests.collect_garbage() == ["g1"]
    assert not record.path.exists()


def test_a_record_cannot_name_another_directory(tmp_path: Path) -> None:
    record = made()
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    data = json.loads((record.path / guests.RECORD).read_text())
    told = {**data, "directory": str(elsewhere), "id": "other", "owner_pid": 0}
    (record.path / guests.RECORD).write_text(json.dumps(told))
    assert use.take_down([]) == ["g1"]
    assert elsewhere.is_dir()
    assert not record.path.exists()


def test_only_a_guests_own_directory_is_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    paths.guests().mkdir(parents=True)
    link = paths.guests() / "link"
    link.symlink_to(precious)
    inner = paths.guests() / "g1" / "disks"
    inner.mkdir(parents=True)
    for wrong in (precious, link, inner, paths.guests(), paths.guests() / ".." / "guests"):
        with pytest.raises(HostError, match="is not a guest's directory"):
            guests.remove(wrong)
    assert precious.is_dir()
    assert inner.is_dir()
    guests.remove(paths.guests() / "g1")
    assert not inner.exists()


def test_only_qemu_with_the_guests_own_files_is_its_qemu() -> None:
    record, other = made("g1"), made("g10")
    with (
        process(QEMU, disk_of(record)) as qemu,
        process("sleep", disk_of(record)),
        process("vim", str(record.path / "qemu-system-notes")),
        process(QEMU, disk_of(other)) as tenth,
        process(QEMU, str(record.path)),
    ):
        assert guests.qemu_pids(record.path) == [qemu]
        assert guests.qemu_pids(other.path) == [tenth]
        assert guests.is_alive(replace(record, pid=qemu))
        assert not guests.is_alive(replace(record, pid=tenth))


def test_removing_a_guest_ends_its_qemu_and_no_other_process() -> None:
    record = made()
    with process("sleep", disk_of(record)) as bystander, process(QEMU, disk_of(record)) as qemu:
        guests.remove(record.path)
        # A killed child is a zombie until its parent waits for it: it has no command line.
        assert Path(f"/proc/{qemu}/cmdline").read_bytes() == b""
        assert Path(f"/proc/{bystander}/cmdline").read_bytes() != b""
    assert not record.path.exists()


def test_a_power_cut_ends_qemu_and_leaves_the_disks_servers_and_the_guests_owner() -> None:
    record = made()
    with (
        process("nbdkit", f"file={record.path}/disks/disk1.raw") as server,
        process(QEMU, disk_of(record)) as qemu,
    ):
        guests.kill(record.path)
        assert Path(f"/proc/{qemu}/cmdline").read_bytes() == b""
        assert Path(f"/proc/{server}/cmdline").read_bytes() != b""
        assert guests.is_owned(record)
        assert guests.abandoned() == []  # garbage collection does not touch it while it restarts
        guests.kill(record.path)  # no process is left to end


def test_several_live_guests_must_be_named() -> None:
    one, two = made("g1"), made("g2")
    with process(QEMU, disk_of(one)) as first, process(QEMU, disk_of(two)) as second:
        guests.write(replace(one, pid=first))
        guests.write(replace(two, pid=second))
        with pytest.raises(InputError, match="give one of these ids: g1, g2"):
            guests.find(None)
        assert guests.find("g2").id == "g2"
        with pytest.raises(InputError, match="no live guest 'g3'"):
            guests.find("g3")


def test_the_consoles_tail_has_no_control_characters() -> None:
    record = made()
    assert guests.console_tail(record.path) == ""
    lines = [f"line {n}\x1b[0m\r" for n in range(3000)]
    (record.path / "console.log").write_bytes("\n".join(lines).encode() + b"\n\n\xff panic\n")
    tail = guests.console_tail(record.path, lines=3)
    assert tail.splitlines()[-1] == "� panic"
    assert tail.splitlines()[0] == "line 2998[0m"
    assert len(tail.splitlines()) == 3


def test_names_of_guests_are_short_enough_for_sockets() -> None:
    names = {guests.new_id() for _ in range(50)}
    assert len(names) > 45
    assert all(len(n) == 7 and n[0] == "g" for n in names)


def test_a_guest_that_is_not_there_is_removed_without_a_word() -> None:
    guests.remove(guests.directory_of("gabcdef"))


def test_what_is_still_written_while_a_guest_is_removed_goes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libvirt's threads end with their process, not earlier."""
    record = made()
    (record.path / "lib").mkdir()
    remove, tries = shutil.rmtree, []

    def beside_a_writer(path: Path) -> None:
        tries.append(path)
        if len(tries) == 1:
            (record.path / "lib" / "late").touch()
            raise OSError(39, "Directory not empty", str(record.path / "lib"))
        remove(path)

    monkeypatch.setattr(guests.shutil, "rmtree", beside_a_writer)
    guests.remove(record.path)
    assert len(tries) == 2
    assert not record.path.exists()


def test_a_directory_that_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    record = made()

    def never(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(guests.shutil, "rmtree", never)
    with pytest.raises(HostError, match=r"could not be removed.*Operation not permitted"):
        guests.remove(record.path)


def test_a_worker_stopped_while_it_makes_a_guest_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object, **__: object) -> str:
        raise Stop

    monkeypatch.setattr(guests.json, "dumps", stop)
    with pytest.raises(Stop):
        made()
    assert list(paths.guests().iterdir()) == []


def test_a_plug_in_whose_compiler_was_killed_is_swept() -> None:
    paths.plugins().mkdir(parents=True)
    half = paths.plugins() / f".disk-0123.so.{dead_pid()}"
    mine = paths.plugins() / f".disk-0123.so.{os.getpid()}"
    whole = paths.plugins() / "disk-4567.so"
    for path in (half, mine, whole):
        path.touch()
    assert half.name in use.sweep()
    assert sorted(p.name for p in paths.plugins().iterdir()) == [mine.name, whole.name]


def test_a_sealed_snapshot_whose_maker_was_killed_is_swept() -> None:
    paths.sealed().mkdir(parents=True)
    half = paths.sealed() / f".snapshot-0123.{dead_pid()}"
    whole = paths.sealed() / "snapshot-4567"
    for path in (half, whole):
        path.mkdir()
    assert half.name in use.sweep()
    assert [p.name for p in paths.sealed().iterdir()] == [whole.name]
