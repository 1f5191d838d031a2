"""What several processes need: one makes it, and nobody removes what another has just made.

Two processes, which stop at barriers: the order of their steps is the same each time.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import paramiko
import pytest

from lab.core.errors import GuestError
from lab.host import images
from lab.host.guest import snapshots
from lab.host.guest.ssh.shell import Shell
from lab.host.images import workspace as image_workspace
from lab.host.system import clock, keys, locks, made, paths
from tests.unit.test_warm import state

pytestmark = pytest.mark.usefixtures("lab_home")
LONG = 30.0


class Other:
    """Another process. It stops at `reached` until this one calls `go_on`."""

    def __init__(self, work: Callable[[Other], object]) -> None:
        self._here, self._there = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._here = self._there
                work(self)
                self._here.sendall(b"E")
            except BaseException as error:
                self._here.sendall(f"!{error!r}".encode())
            finally:
                os._exit(0)
        self._there.close()

    def reached(self) -> None:
        """In the other process: tell that it is here, and wait."""
        self._here.sendall(b"R")
        self._here.recv(1)

    def _hear(self) -> str:
        ready, _, _ = select.select([self._here], [], [], LONG)
        assert ready, "the other process hangs"
        return self._here.recv(4096).decode()

    def at_barrier(self) -> None:
        assert self._hear() == "R"

    def go_on(self) -> None:
        self._here.sendall(b"g")

    def ended(self) -> None:
        assert self._hear() == "E"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def close(self) -> None:
        if self.pid:
            self.kill()
        self._here.close()


@contextmanager
def other(work: Callable[[Other], object]) -> Iterator[Other]:
    process = Other(work)
    try:
        yield process
    finally:
        process.close()


def broken(key: str) -> Path:
    directory = state(key, used=1000)
    os.truncate(directory / snapshots.MEMORY, 3)
    return directory


def stop_after_reading(process: Other) -> None:
    read = snapshots._read

    def reading(directory: Path) -> snapshots.Snapshot | None:
        found = read(directory)
        snapshots._read = read
        process.reached()
        return found

    snapshots._read = reading


def publish(key: str) -> None:
    """Replace an incomplete snapshot, as the run does that has ordered it."""
    with snapshots.exclusive(key), snapshots.making(key) as place:
        whole = state("whole", used=2000)
        whole.rename(place)
        made.replace(place, paths.warm() / key)


@pytest.mark.parametrize("search", [lambda: snapshots.find("k1"), snapshots.collect_garbage])
def test_a_look_up_spares_what_another_process_has_just_published(
    search: Callable[[], object],
) -> None:
    broken("k1")

    def work(process: Other) -> None:
        stop_after_reading(process)
        search()

    with other(work) as searching:
        searching.at_barrier()  # it has found the snapshot incomplete
        publish("k1")
        searching.go_on()
        searching.ended()
    assert snapshots.find("k1") is not None


def test_a_look_up_spares_what_another_process_is_replacing() -> None:
    directory = broken("k1")

    def work(process: Other) -> None:
        with snapshots.exclusive("k1"):
            process.reached()

    with other(work) as maker:
        maker.at_barrier()
        assert snapshots.find("k1") is None
        assert directory.exists()
        maker.go_on()
        maker.ended()
    assert snapshots.find("k1") is None
    assert not directory.exists()  # control: it is removed when nobody makes it


def test_a_snapshot_that_did_not_restore_is_spared_if_it_was_replaced() -> None:
    state("k1", used=1000)
    seen = snapshots.find("k1")
    assert seen is not None
    about = paths.warm() / "k1" / snapshots.ABOUT
    about.write_text(about.read_text().replace('"boot_seconds": 30.0', '"boot_seconds": 31.0'))
    snapshots.discard(seen)
    again = snapshots.find("k1")
    assert again is not None
    snapshots.discard(again)
    assert snapshots.find("k1") is None


def tree() -> Path:
    return paths.images() / f"{image_workspace.TREE}md-6.1"


def find() -> Path | None:
    return tree() if (tree() / "root").is_dir() else None


def make(part: Path) -> None:
    (part / "root").mkdir(parents=True)


def hold(seconds: float = LONG) -> AbstractContextManager[Path]:
    return made.held(tree(), find, make, seconds=seconds, what="a test")


def test_prune_spares_a_build_tree_that_is_held_and_removes_it_when_its_holder_is_killed() -> None:
    def work(process: Other) -> None:
        with hold():
            process.reached()

    with other(work) as holder:
        holder.at_barrier()
        assert images.prune().names == ()
        assert tree().is_dir()
        with hold():  # others hold it too
            pass
        assert tree().is_dir()
        holder.kill()
        assert images.prune().names == (tree().name,)
    assert not tree().exists()


def test_a_tree_that_is_removed_before_it_is_held_is_made_again() -> None:
    def work(process: Other) -> None:
        once = made.once

        def made_and_stopped(*given: object, **more: object) -> object:
            found = once(*given, **more)  # type: ignore[arg-type]
            made.once = once
            process.reached()
            return found

        made.once = made_and_stopped  # type: ignore[assignment]
        with hold() as directory:
            assert (directory / "root").is_dir()
            process.reached()

    with other(work) as holder:
        holder.at_barrier()  # made, and not held yet
        assert images.prune().names == (tree().name,)
        holder.go_on()
        holder.at_barrier()  # held
        assert images.prune().names == ()
        holder.go_on()
        holder.ended()


def test_waiting_for_a_tree_has_a_limit() -> None:
    make(tree())

    def work(process: Other) -> None:
        with made.locked(tree(), seconds=LONG, what="a test"):
            process.reached()

    with other(work) as maker:
        maker.at_barrier()
        with pytest.raises(locks.LockedError, match=rf"process {maker.pid} "), hold(0.2):
            pass


def test_the_second_process_gets_what_the_first_has_made() -> None:
    def work(process: Other) -> None:
        def slowly(part: Path) -> None:
            process.reached()
            part.write_text("first")

        place = paths.plugins() / "p"
        made.once(place, lambda: place.exists() or None, slowly, seconds=LONG, what="a test")

    place = paths.plugins() / "p"

    def never(_part: Path) -> None:
        raise AssertionError

    with other(work) as first:
        first.at_barrier()
        found: list[bool] = []
        waiting = threading.Thread(
            target=lambda: found.append(
                made.once(place, lambda: place.exists() or None, never, seconds=LONG, what="a test")
            )
        )
        waiting.start()
        first.go_on()
        first.ended()
        waiting.join(LONG)
        assert found == [True]
    assert place.read_text() == "first"


def test_a_login_that_times_out_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest's sshd counts connections before their login (MaxStartups)."""
    ended = threading.Event()

    def connect(_client: object, *_: object, sock: socket.socket, **__: object) -> None:
        with suppress(OSError):
            ended.wait(LONG)

    monkeypatch.setattr(paramiko.SSHClient, "connect", connect)
    monkeypatch.setattr(clock, "LOOK", 0.05)
    key = keys.make()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with theirs:
            with pytest.raises(GuestError, match="the SSH login to the guest"):
                Shell.connect(
                    ours,
                    private_key=key.private,
                    host_key=key.public,
                    alive=lambda: None,
                    timeout=0.1,
                )
            theirs.settimeout(LONG)
            assert theirs.recv(1) == b""  # closed, while the login goes on in its thread
    ended.set()
