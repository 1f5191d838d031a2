"""The disk server over NBD returns the right bytes after any requests and faults."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.errors import HostError, LabError
from lab.host.guest import servers
from lab.model.execution.procedure import BuildPlugin, StartServer
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD
from tests.nbd import EIO, FLUSH, FUA, READ, WRITE, Client, DiskServer, running

pytestmark = pytest.mark.skipif(
    bool(servers.missing_programs()), reason=f"needs {servers.PACKAGES}"
)
SPAN = 16 << 20
"""Range of random operations in bytes: small enough that they overlap."""
SECTOR = 512
POOL = random.Random(7).randbytes(1 << 20)
DRIVES: dict[str, HardDrive | SolidStateDrive] = {
    "hdd": HDD["hdd_7200"],
    "hdd without cache": replace(HDD["hdd_7200"], write_cache=0, read_ahead=0),
    "hdd with a small cache": replace(HDD["hdd_10000"], write_cache=128 << 10),
    "ssd": SSD["ssd_sata"],
}


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(tmp_path_factory.mktemp("h")))
        yield


class Reference:
    """Expected contents of the disk, and the requests that may be in flight together."""

    def __init__(self, size: int, seed: int) -> None:
        self.data = bytearray(size)
        self.random = random.Random(seed)
        self.unflushed: dict[int, list[bytes]] = {}
        """By sector: contents at the last flush, and each write since; one of them survives."""
        self.bad: list[tuple[int, int]] = []
        """Ranges that return an error."""

    def choose(self, busy: dict[int, tuple[int, int, int]]) -> tuple[int, int]:
        """Return a range that no request in flight touches."""
        while True:
            length = self.random.choice((1, 1, 7, 8, 8, 8, 16, 64)) * SECTOR
            offset = self.random.randrange((len(self.data) - length) // SECTOR) * SECTOR
            if all(o + n <= offset or offset + length <= o for _, o, n in busy.values()):
                return offset, length

    def is_bad(self, offset: int, length: int) -> bool:
        return any(o < offset + length and offset < o + n for o, n in self.bad)

    def wrote(self, offset: int, data: bytes) -> None:
        for start in range(offset, offset + len(data), SECTOR):
            held = self.unflushed.setdefault(start, [bytes(self.data[start : start + SECTOR])])
            held.append(data[start - offset : start - offset + SECTOR])
        self.data[offset : offset + len(data)] = data

    def settle(self, found: bytes) -> int:
        """After a loss, check that each sector has one of its possible contents; return the old
        ones."""
        back = 0
        for start, held in self.unflushed.items():
            now = found[start : start + SECTOR]
            assert now in held, f"byte {start} holds what was never written there"
            back += now != held[-1]
        kept = bytearray(self.data)
        for start in self.unflushed:
            kept[start : start + SECTOR] = found[start : start + SECTOR]
        assert found == kept
        self.data = kept
        self.unflushed.clear()
        return back


def drain(client: Client, reference: Reference, sent: dict[int, bytes], down_to: int) -> None:
    """Receive replies, and compare each with the reference."""
    while len(client.pending) > down_to:
        kinds = dict(client.pending)
        handle, error, data = client.collect()
        kind, offset, length = kinds[handle]
        if kind == FLUSH:
            assert error == 0
            continue
        assert error == (EIO if reference.is_bad(offset, length) else 0), (kind, offset, error)
        if kind == READ and not error:
            assert data == reference.data[offset : offset + length], f"wrong bytes at {offset}"
        if kind == WRITE and not error:
            reference.wrote(offset, sent.pop(handle))


def exercise(server: DiskServer, operations: int, *, seed: int, depth: int = 32) -> Reference:
    """Send random reads, writes, FUA writes and flushes, with ``depth`` in flight."""
    reference = Reference(SPAN, seed)
    client = server.client()
    sent: dict[int, bytes] = {}
    with contextlib.closing(client):
        _random_operations(client, reference, sent, operations, depth)
        drain(client, reference, sent, 0)
        for start in range(0, SPAN, 1 << 20):
            same = client.read(start, 1 << 20) == reference.data[start : start + (1 << 20)]
            assert same, f"wrong bytes in the MiB at {start}"
    return reference


def _random_operations(
    client: Client, reference: Reference, sent: dict[int, bytes], operations: int, depth: int
) -> None:
    draw = reference.random
    for number in range(operations):
        drain(client, reference, sent, depth - 1)
        if number % 500 == 499:
            # Writes acknowledged before a flush are safe once the flush has ended.
            drain(client, reference, sent, 0)
            client.flush()
            reference.unflushed.clear()
            continue
        offset, length = reference.choose(client.pending)
        if draw.random() < 0.5:
            client.submit(READ, offset, length)
        else:
            start = draw.randrange(len(POOL) - length)
            data = POOL[start : start + length]
            flags = FUA if draw.random() < 0.05 else 0
            sent[client.submit(WRITE, offset, data=data, flags=flags)] = data


def exercise_with_faults(server: DiskServer, operations: int, *, seed: int) -> dict[str, int]:
    """The same with errors on some ranges, and repeated losses of the cache."""
    reference = Reference(SPAN, seed)
    client = server.client()
    sent: dict[int, bytes] = {}
    back = losses = 0
    with contextlib.closing(client):
        for _ in range(max(1, operations // 2000)):
            offset, length = reference.choose({})
            reference.bad = [(offset, length)]
            server.order(f"error read {offset} {length}")
            server.order(f"error write {offset} {length}")
            _random_operations(client, reference, sent, 1700, 32)
            drain(client, reference, sent, 0)
            server.order("clear")
            reference.bad = []
            _random_operations(client, reference, sent, 299, 32)
            drain(client, reference, sent, 0)
            server.order("lose")
            losses += 1
            found = b"".join(client.read(s, 1 << 20) for s in range(0, SPAN, 1 << 20))
            back += reference.settle(found)
    return {"losses": losses, "back": back}


@pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
def test_random_operations_return_the_right_bytes(
    tmp_path: Path, drive: HardDrive | SolidStateDrive
) -> None:
    with running(tmp_path, drive, size=SPAN, speed=0) as server:
        exercise(server, 4000, seed=3)
        assert server.statistics()["in_flight"] == 0
        overlap(server, 9)


def overlap(server: DiskServer, wanted: int) -> None:
    """Keep so many requests of one connection in flight at once, on a host of any speed."""
    client = server.client()
    server.order("stall release")
    for number in range(16):
        client.submit(READ, number * 4096, 4096)
    until = time.monotonic() + 30
    while server.statistics()["in_flight"] < wanted and time.monotonic() < until:
        time.sleep(0.01)
    assert server.statistics()["in_flight"] >= wanted
    server.order("release")
    for _ in range(16):
        assert client.collect()[1] == 0
    assert server.statistics()["in_flight"] == 0
    client.close()


@pytest.mark.parametrize("name", ["hdd", "hdd with a small cache", "ssd"])
def test_under_faults_no_byte_is_wrong_that_was_flushed(tmp_path: Path, name: str) -> None:
    with running(tmp_path, DRIVES[name], size=SPAN, speed=0) as server:
        found = exercise_with_faults(server, 6000, seed=5)
        assert found["losses"] == 3
        assert server.statistics()["errors"] > 0
        if name == "ssd":  # an hdd at speed=0 has already written most of it
            assert found["back"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["hdd", "ssd"])
def test_a_million_random_operations(tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    with running(tmp_path, DRIVES[name], size=SPAN, speed=0) as server:
        exercise(server, 500_000, seed=11)
    peace = time.monotonic() - began
    with running(tmp_path, DRIVES[name], size=SPAN, speed=0) as server:
        found = exercise_with_faults(server, 500_000, seed=12)
        assert server.statistics()["errors"] > 100
    print(f"{name}: {peace:.0f} s in peace, {time.monotonic() - began - peace:.0f} s: {found}")


def test_the_check_of_bytes_notices_one_wrong_byte(tmp_path: Path) -> None:
    with running(tmp_path, DRIVES["hdd"], size=SPAN, speed=0) as server:
        server.order(f"misread {SPAN // 2} 1 1")
        with pytest.raises(AssertionError, match=r"wrong bytes"):
            exercise(server, 3000, seed=3)


def test_rot_stays_until_it_is_written_over_and_a_misread_until_it_is_cleared(
    tmp_path: Path,
) -> None:
    with running(tmp_path, DRIVES["hdd"], size=SPAN, speed=0) as server:
        client = server.client()
        client.write(0, b"\x11" * 4096, flags=FUA)
        server.order("rot 512 1")
        assert client.read(0, 4096) == b"\x11" * 512 + b"\xee" + b"\x11" * 3583
        client.write(512, b"\x11" * 512, flags=FUA)
        assert client.read(0, 4096) == b"\x11" * 4096
        fault = server.order("misread 1024 2 0x01")
        client.write(1024, b"\x11" * 512, flags=FUA)
        assert client.read(1024, 512) == b"\x10\x10" + b"\x11" * 510
        server.order(f"clear {fault}")
        assert client.read(0, 4096) == b"\x11" * 4096
        client.close()


def test_errors_hit_their_range_and_as_often_as_they_are_told(tmp_path: Path) -> None:
    with running(tmp_path, DRIVES["hdd"], size=SPAN, speed=0) as server:
        client = server.client()
        server.order("error read 4096 512 2")
        assert client.read(0, 4096) == bytes(4096)
        for _ in range(2):
            with pytest.raises(OSError, match="error") as raised:
                client.read(0, 8192)
            assert raised.value.errno == EIO
        assert client.read(0, 8192) == bytes(8192)
        server.order("error write 0 512")
        with pytest.raises(OSError, match="error"):
            client.write(0, b"x" * 512)
        client.write(512, b"x" * 512)
        assert client.read(0, 512) == bytes(512)
        client.close()


def test_a_lost_cache_loses_what_was_not_flushed_and_nothing_else(tmp_path: Path) -> None:
    slow = replace(HDD["hdd_7200"], average_seek=1.0, full_stroke=2.0)
    with running(tmp_path, slow, size=SPAN) as server:  # while the arm moves
        client = server.client()
        client.write(0, b"a" * 4096, flags=FUA)
        client.write(0, b"b" * 4096)
        client.write(SPAN - 4096, b"c" * 4096)
        assert client.read(SPAN - 4096, 4096) == b"c" * 4096
        assert int(server.order("lose")) >= 4096
        assert client.read(SPAN - 4096, 512) == bytes(512)
        client.close()
        assert server.statistics()["lost_bytes"] >= 4096


def test_a_killed_server_loses_its_cache_and_an_ended_one_does_not(tmp_path: Path) -> None:
    for end, kept in (("stop", True), ("kill", False)):
        with running(tmp_path, SSD["ssd_sata"], size=SPAN, name=end) as server:
            client = server.client()
            client.write(0, b"a" * 4096)
            client.close()
            if end == "kill":
                os.kill(server.pid, 9)
            server.stop()
            on_medium = Path(server.path).read_bytes()[:4096]
            assert (on_medium == b"a" * 4096) is kept


def test_a_server_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """The guest of `lab up` keeps its disks; nbdkit normally ends with its parent."""
    code = (
        "import sys; from pathlib import Path; from tests.nbd import DRIVE, DiskServer\n"
        "server = DiskServer(Path(sys.argv[1]), DRIVE, size=1 << 24)\n"
        "print(server.pid); server._server.let_go()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    pid = int(done.stdout)
    try:
        time.sleep(0.1)
        client = Client(str(tmp_path / "disk1.nbd"))
        assert client.read(0, 512) == bytes(512)
        client.close()
    finally:
        os.kill(pid, 15)


def test_a_stall_holds_everything_back_and_is_not_counted_as_lateness(tmp_path: Path) -> None:
    with running(tmp_path, DRIVES["hdd"], size=SPAN) as server:
        client = server.client()
        server.order("stall 0.3")
        began = time.monotonic()
        client.read(0, 4096)
        assert 0.28 < time.monotonic() - began < 0.8
        server.order("stall release")
        began = time.monotonic()
        client.submit(READ, 8 << 20, 4096)
        time.sleep(0.2)
        assert server.statistics()["in_flight"] == 1
        server.order("release")
        client.collect()
        assert 0.19 < time.monotonic() - began < 0.8
        assert server.statistics()["late_max"] < 0.1
        client.close()


def test_a_stalled_server_can_be_ended(tmp_path: Path) -> None:
    with running(tmp_path, DRIVES["hdd"], size=SPAN) as server:
        client = server.client()
        server.order("stall release")
        client.submit(READ, 8 << 20, 4096)
        time.sleep(0.05)
        pid = server.pid
        server.stop(grace=0.2)
        client.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    "line",
    [
        "explode",
        "error read",
        "error both 0 512",
        "error read 0 0",
        "error read 0 512 0",
        "rot 0 512 256",
        f"rot {SPAN} 512",
        "misread 0",
        "stall",
        "stall -1",
        "clear 99",
    ],
)
def test_a_command_that_makes_no_sense_is_refused_in_words(shared: DiskServer, line: str) -> None:
    answer = shared.ask(line)
    assert answer.startswith("error ")
    assert len(answer) > 15


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, _home: None) -> Iterator[DiskServer]:
    with running(tmp_path_factory.mktemp("s"), DRIVES["hdd"], size=SPAN, speed=0) as server:
        yield server


def test_more_faults_than_there_is_room_for_are_refused(shared: DiskServer) -> None:
    for _ in range(64):
        shared.order("error read 0 512")
    assert "clear some" in shared.ask("error read 0 512")
    shared.order("clear")


def test_requests_off_the_sectors_are_refused(shared: DiskServer) -> None:
    client = shared.client()
    with pytest.raises(OSError, match="error") as raised:
        client.read(100, 512)
    assert raised.value.errno == 22
    assert client.read(0, 512) == bytes(512)
    client.close()


def test_the_server_is_told_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"(?s)ended at once.*unknown parameter 'colour'"):
        DiskServer(tmp_path, DRIVES["hdd"], size=SPAN, colour=3)


def test_a_plug_in_is_compiled_once_and_again_when_it_changes(tmp_path: Path) -> None:
    flags = ("-std=gnu11", "-O0", "-fPIC", "-shared")
    step = BuildPlugin(source="drive/nbdkit_disk.c", link=str(tmp_path / "a.so"), flags=flags)
    servers.link(step)
    first = (tmp_path / "a.so").resolve()
    made = first.stat().st_mtime_ns
    servers.link(step)
    assert first.stat().st_mtime_ns == made
    servers.link(step.model_copy(update={"flags": (*flags, "-DOTHER")}))
    assert (tmp_path / "a.so").resolve() != first


def test_what_does_not_compile_names_the_packages(tmp_path: Path) -> None:
    step = BuildPlugin(source="lab/__init__.py", link=str(tmp_path / "a.so"), flags=("-x", "c"))
    with pytest.raises(HostError) as raised:
        servers.link(step)
    assert "nbdkit-plugin-dev" in raised.value.hint
    assert not (tmp_path / "a.so").exists()


def test_without_nbdkit_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    step = BuildPlugin(source="drive/nbdkit_disk.c", link="/nowhere/a.so", flags=())
    with pytest.raises(HostError, match="'nbdkit'") as raised:
        servers.build(step)
    assert "apt-get install nbdkit nbdkit-plugin-dev gcc" in raised.value.hint


def test_a_server_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    step = StartServer(
        label="sleep",
        argv=("sleep", "600"),
        socket=str(tmp_path / "none"),
        log=str(tmp_path / "log"),
        timeout=0.2,
    )
    with pytest.raises(LabError, match="'sleep' to answer"):
        servers.Server(step)
