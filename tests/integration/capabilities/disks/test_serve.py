"""``lab disk serve``: a modelled drive for any NBD client, with faults."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.capabilities.disks import serve
from lab.core.errors import InputError
from lab.core.units import MIB
from lab.host.guest import servers
from lab.md.theory.drive import random_read_rate
from lab.plugins.disks.hdd import PRESETS
from tests.fakes import Cli
from tests.nbd import EIO, Client

NAME = "hdd_samsung_f1"
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _needed() -> None:
    if missing := servers.missing_programs():
        pytest.skip(f"needs {servers.PACKAGES}: {missing}")


def answers(at: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(at)) == 0


@contextmanager
def serving(home: Path, *words: str) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Yield the server's socket, and its process."""
    at = home / "d.nbd"
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", "disk", "serve", NAME, "--socket", str(at), *words],
        env={**os.environ, "LAB_HOME": str(home / "h")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not answers(at):  # the socket of an ended server stays
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield at, process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.stdout
        process.stdout.close()


def test_any_client_reads_and_writes_and_meets_faults(tmp_path: Path, cli: Cli) -> None:
    with serving(tmp_path, "--size", "4TB") as (at, process):
        control = at.with_suffix(".control")
        client = Client(str(at))
        assert client.size == 4 * 10**12
        client.write(10**12, b"x" * 4096)
        assert client.read(10**12, 4096) == b"x" * 4096
        assert cli("disk", "tell", str(control), "error", "read", "4096", "512", "1").status == 0
        with pytest.raises(OSError) as caught:
            client.read(4096, 512)
        assert caught.value.errno == EIO
        client.read(4096, 512)
        counters = cli("disk", "tell", str(control), "stats").stdout.removeprefix("ok ")
        assert json.loads(counters)["errors"] == 1
        refused = cli("disk", "tell", str(control), "explode")
        assert refused.status == 3
        assert "unknown command 'explode': stats, reset, error" in refused.stderr
        assert stat.S_IMODE((tmp_path / "h/state/served").stat().st_mode) == 0o700
        client.close()
    assert process.returncode in (0, -signal.SIGINT)
    assert not answers(at)
    assert not control.exists()
    assert not list((tmp_path / "h/state/served").iterdir())


def handshaken(at: Path) -> socket.socket | None:
    """Return a connection that may send requests; ``None``: the server refuses it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    try:
        connection.connect(str(at))
        connection.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
        ready = connection.recv(18, socket.MSG_WAITALL) and connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        ready = b""
    if ready:
        return connection
    connection.close()
    return None


def flood(connection: socket.socket) -> None:
    """Send writes of the largest size that nbdkit accepts, as fast as it takes them."""
    piece = bytes(1 << 20)
    try:
        for handle in range(64):
            head = struct.pack(">IHHQQI", 0x25609513, 0, 1, handle, 0, 64 << 20)
            connection.sendall(head)
            for _ in range(64):
                connection.sendall(piece)
    except OSError:
        pass


def test_connections_that_stay_take_no_more_than_their_share(tmp_path: Path) -> None:
    """Each has 64 threads. 3000 filled the server's files, and it logged that without end."""
    with serving(tmp_path, "--size", "1GiB") as (at, process):
        idle = [one for _ in range(200) if (one := handshaken(at)) is not None]
        assert 16 <= len(idle) <= 64
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 64 * 65 + 10
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= 66
        idle.pop().close()
        time.sleep(1)
        client = Client(str(at))
        assert client.read(0, 4096) == bytes(4096)
        client.close()
        for one in idle:
            one.close()


def test_requests_in_flight_take_bounded_memory(tmp_path: Path) -> None:
    with serving(tmp_path, "--size", "1GiB") as (at, process):
        found = [handshaken(at) for _ in range(3)]
        threads = [threading.Thread(target=flood, args=(one,)) for one in found if one]
        assert len(threads) == 3
        for thread in threads:
            thread.start()
        most = 0
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            status = Path(f"/proc/{process.pid}/status").read_text()
            most = max(most, int(status.partition("VmRSS:")[2].split()[0]) << 10)
            time.sleep(0.05)
        client = Client(str(at))  # others are served meanwhile
        assert client.read(0, 4096) == bytes(4096)
        client.close()
        for one in found:
            if one:
                one.shutdown(socket.SHUT_RDWR)
                one.close()
        for thread in threads:
            thread.join(20)
        assert 64 * MIB < most < serve.MEMORY  # the first: a control, that the attack is one


@pytest.mark.parametrize("ready", [True, False])
def test_it_ends_beside_clients_that_do_nothing(tmp_path: Path, ready: bool) -> None:
    with serving(tmp_path, "--size", "1GiB") as (at, process), ExitStack() as ends:
        client = Client(str(at))
        ends.callback(client.close)
        client.write(0, b"x" * 4096)
        for _ in range(5):
            one = handshaken(at) if ready else socket.socket(socket.AF_UNIX)
            assert one
            ends.enter_context(one)
            if not ready:
                one.connect(str(at))
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert not at.with_suffix(".control").exists()  # in order: the cache was written


@pytest.mark.slow  # real time: it needs a quiet host
def test_it_is_as_fast_as_predicted(tmp_path: Path) -> None:
    """Within a tenth, since others use the host; the mean of 150 reads has an error of 2.5 %."""
    with serving(tmp_path, "--size", "1TB") as (at, _):
        client = Client(str(at))
        begun = time.monotonic()
        draw = random.Random(1)
        for _ in range(150):
            client.read(draw.randrange(10**12 // 4096) * 4096, 4096)
        took = (time.monotonic() - begun) / 150
        client.close()
    assert took == pytest.approx(1 / random_read_rate(PRESETS[NAME], 1), rel=0.1)


def test_a_file_keeps_the_data(tmp_path: Path) -> None:
    kept = tmp_path / "disk.raw"
    for value in (b"a", b"b"):
        with serving(tmp_path, "--size", "1GiB", "--file", str(kept)) as (at, _):
            client = Client(str(at))
            if value == b"b":
                assert client.read(4096, 4096) == b"a" * 4096
            client.write(4096, value * 4096)
            client.close()
    assert kept.stat().st_size == GIB


def test_what_cannot_be_served_gets_a_sentence(
    tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no preset and no profile 'hdd_samsng_f1': expected one"):
        serve.drive_of("hdd_samsng_f1")
    with pytest.raises(InputError, match="--size: 512 bytes: expected at least 1MiB"):
        serve.prepared(NAME, size=512, at=None, port=None, file=None)
    (tmp_path / "x.nbd").write_text("mine")
    with pytest.raises(InputError, match="exists and is no socket: expected a new path"):
        serve.prepared(NAME, size=GIB, at=tmp_path / "x.nbd", port=None, file=None)
    assert (tmp_path / "x.nbd").read_text() == "mine"
    with pytest.raises(InputError, match="is too long for a socket"):
        serve.prepared(NAME, size=GIB, at=tmp_path / ("x" * 100), port=None, file=None)
    (tmp_path / "big").write_bytes(bytes(2 * MIB))
    with pytest.raises(InputError, match="has 2097152 bytes: expected a --size"):
        serve.prepared(NAME, size=MIB, at=tmp_path / "n.nbd", port=None, file=tmp_path / "big")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "o.nbd"))
        other.listen()
        with pytest.raises(InputError, match=r"a server answers at .* already"):
            serve.prepared(NAME, size=GIB, at=tmp_path / "o.nbd", port=None, file=None)
    ready = serve.prepared(NAME, size=GIB, at=tmp_path / "o.nbd", port=None, file=None)
    assert ready.descriptor is not None
    os.close(ready.descriptor)
    ready = serve.prepared(NAME, size=GIB, at=tmp_path / "o.nbd", port=7, file=tmp_path / "f")
    assert "127.0.0.1" in ready.argv
    assert ready.uri == "nbd://127.0.0.1:7"
