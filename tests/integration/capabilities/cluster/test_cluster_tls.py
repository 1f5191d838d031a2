"""No port of a cluster accepts a connection without the cluster's certificate."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.cluster import local as cluster_local
from lab.capabilities.cluster import strangers
from lab.capabilities.cluster import tls as cluster_tls
from lab.core.errors import HostError, InputError
from lab.host.system import paths
from tests import intruder

ROOT = Path(__file__).resolve().parents[4]
UNENCRYPTED = """\
import sys
from lab.capabilities.cluster import serve as cluster_serve
cluster_serve._without_http = lambda kind: (
    lambda *a, **k: kind(*a, **(k | {"protocol": "tcp", "security": None}), dashboard_address=":0")
)
sys.argv = ["lab", *sys.argv[1:]]
from lab.cli import main
main()
"""
"""The lab's own scheduler with TLS disabled and dask's HTTP server enabled."""


UNLIMITED = """\
import sys
from lab.capabilities.cluster import serve as cluster_serve
cluster_serve.limit_strangers = lambda: None
sys.argv = ["lab", *sys.argv[1:]]
from lab.cli import main
main()
"""
"""The lab's own scheduler, which waits for a handshake as long as dask does."""
FLOOD = """\
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (2100, 2100))
held = []
for _ in range(2000):
    held.append(socket.socket())
    held[-1].settimeout(1)
    try:
        held[-1].connect(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        break
print("held", flush=True)
time.sleep(100)
"""
"""Opens connections and says nothing."""


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Directory in which an unpickled pickle makes directories."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@contextmanager
def up(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process of the lab, and the first line that it prints."""
    child = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline()
    finally:
        child.stdin.close()
        child.terminate()
        child.wait(timeout=60)
        child.stdout.close()


def test_nobody_gets_in_without_the_certificate(lab_home: Path, marks: Path) -> None:
    pytest.importorskip("distributed")
    with up("-m", "lab", "cluster", "local", "2") as (child, line):
        assert "A cluster of 2 workers is up at tls://127.0.0.1:" in line
        ports = intruder.listening(child.pid)
        assert len(ports) == 3  # of a scheduler and two workers
        assert set(ports.values()) == {"127.0.0.1"}
        tried = intruder.attempts(marks, ports)
        ways = ("plain", "http", "tls", "tls foreign", "Client", "Client foreign")
        assert tried == {port: dict.fromkeys(ways, "refused") for port in ports}
        assert list(marks.iterdir()) == []
        # With the cluster's own certificate the same bytes are unpickled, at each port.
        (record,) = cluster_local.alive()
        for port in ports:
            data = intruder.message(marks / f"{port}.own")
            assert intruder.send(port, data, intruder.context(record["tls"])) == "answered"
        until = time.monotonic() + 30
        while len(list(marks.iterdir())) < len(ports) and time.monotonic() < until:
            time.sleep(0.05)
        assert {p.name for p in marks.iterdir()} == {f"{port}.own" for port in ports}
        check_modes(record["tls"])
        assert stat.S_IMODE(record["tls"].parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_the_attempts_get_in_where_there_is_no_tls(lab_home: Path, marks: Path) -> None:
    pytest.importorskip("distributed")
    words = ("cluster", "scheduler", "--port", "0", "--lifeline")
    with up("-c", UNENCRYPTED, *words) as (child, line):
        assert line.startswith("tcp://127.0.0.1:")
        ports = intruder.listening(child.pid)
        scheduler = int(line.rpartition(":")[2])
        assert len(ports) == 2
        tried = intruder.attempts(marks, ports)
        assert tried[scheduler]["plain"] == tried[scheduler]["Client"] == "answered"
        assert [p.name for p in marks.iterdir()] == [f"{scheduler}.plain"]
        (http,) = set(ports) - {scheduler}
        assert tried[http]["http"] == "answered"


@contextmanager
def flooded(*words: str) -> Iterator[tuple[int, int]]:
    """Yield process and port of a scheduler that another process keeps connections to."""
    limited = ("-c", FEW_FILES, *words, "cluster", "scheduler", "--port", "0", "--lifeline")
    with up(*limited) as (child, line):
        port = int(line.rpartition(":")[2])
        asked = [sys.executable, "-c", FLOOD, str(port)]
        with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as flood:
            try:
                assert flood.stdout is not None
                assert flood.stdout.readline() == "held\n"
                yield child.pid, port
            finally:
                flood.kill()


FEW_FILES = """\
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Starts Python with the usual limit of open files."""


def greeted(port: int) -> bool:
    """Return whether a port takes the cluster's certificate."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=8)
    with plain, suppress(TimeoutError, ConnectionError, ssl.SSLError):
        intruder.context(paths.tls()).wrap_socket(plain).close()
        return True
    return False


def test_strangers_who_say_nothing_keep_nobody_out(lab_home: Path) -> None:
    pytest.importorskip("distributed")
    with flooded("-m", "lab") as (pid, port):
        assert greeted(port)
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < strangers.WAITING + 200


def test_strangers_leave_after_a_while(lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv("LAB_LIMITS", "0.1")
    with flooded("-m", "lab") as (pid, _):
        until = time.monotonic() + 20
        while (left := len(list(Path(f"/proc/{pid}/fd").iterdir()))) > 60:
            assert time.monotonic() < until, left
            time.sleep(0.1)


def test_the_control_is_kept_out(lab_home: Path) -> None:
    pytest.importorskip("distributed")
    with flooded("-c", UNLIMITED) as (pid, port):
        assert not greeted(port)
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) > 1000


# -- certificates


def check_modes(directory: Path) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert sorted(p.name for p in directory.iterdir()) == sorted(cluster_tls.FILES)
    assert {stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()} == {0o600}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    cluster_tls.make(tmp_path / "tls")
    return tmp_path / "tls"


def test_certificates_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "parent" / "tls"
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1).stdout
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / f".tls.{int(dead)}").mkdir()  # of a process killed meanwhile
    old = os.umask(0)
    try:
        # Processes, not threads: partial files are named after the process.
        words = (
            sys.executable,
            "-c",
            "import sys; from pathlib import Path\n"
            "from lab.capabilities.cluster import tls; tls.make(Path(sys.argv[1]))",
        )
        children = [subprocess.Popen([*words, str(directory)], cwd=ROOT) for _ in range(3)]
        assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    finally:
        os.umask(old)
    check_modes(directory)
    assert [p.name for p in directory.parent.iterdir()] == ["tls"]
    before = [p.read_bytes() for p in sorted(directory.iterdir())]
    cluster_tls.make(directory)
    assert [p.read_bytes() for p in sorted(directory.iterdir())] == before
    ends = cluster_tls.check(directory)
    assert timedelta(days=300) < ends - datetime.now(UTC) <= timedelta(days=366)
    assert (
        b"PRIVATE"
        not in (directory / "ca.pem").read_bytes() + (directory / "cert.pem").read_bytes()
    )


def test_openssl_agrees(made: Path) -> None:
    for purpose in ("sslclient", "sslserver"):
        words = ("verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.pem", "cert.pem")
        said = subprocess.run(["openssl", *words], cwd=made, capture_output=True, text=True)
        assert said.stdout == "cert.pem: OK\n", said


def link(made: Path) -> Path:
    (made.parent / "link").symlink_to(made)
    return made.parent / "link"


def linked_key(made: Path) -> Path:
    (made / "key.pem").rename(made.parent / "key.pem")
    (made / "key.pem").symlink_to(made.parent / "key.pem")
    return made


def without_key(made: Path) -> Path:
    (made / "key.pem").unlink()
    return made


def a_file(made: Path) -> Path:
    return made / "ca.pem"


def opened(made: Path) -> Path:
    made.chmod(0o750)
    return made


def opened_key(made: Path) -> Path:
    (made / "key.pem").chmod(0o640)
    return made


def other_key(made: Path) -> Path:
    cluster_tls.make(made.parent / "other")
    (made.parent / "other" / "key.pem").rename(made / "key.pem")
    return made


def no_pem(made: Path) -> Path:
    (made / "cert.pem").write_text("certificate")
    return made


@pytest.mark.parametrize(
    ("spoil", "said", "hint"),
    [
        (
            lambda made: made.parent / "none",
            "a cluster needs its certificates",
            "copy that directory",
        ),
        (without_key, r"there is no '.*key.pem'", "copy that directory"),
        (link, "is a symbolic link: expected a directory", "name what it points to"),
        (linked_key, r"key.pem' is a symbolic link: expected a file", ""),
        (a_file, "is not a directory: expected a directory", ""),
        (opened, "has mode 0750: expected a directory of this user's", "chmod 700 '"),
        (opened_key, r"key.pem' has mode 0640: expected a file of this user's", "chmod 600 '"),
        (other_key, r"is not the unencrypted private key of '.*cert.pem'", ""),
        (no_pem, r"cert.pem' is not a certificate in PEM", ""),
    ],
)
def test_what_is_not_safe_is_refused(
    made: Path, spoil: Callable[[Path], Path], said: str, hint: str
) -> None:
    directory = spoil(made)
    with pytest.raises(InputError, match=said) as refused:
        cluster_tls.check(directory)
    assert hint in refused.value.hint


def test_another_users_directory_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InputError, match=f"belongs to the user with number {owner}"):
        cluster_tls.check(made)


def test_a_certificate_holds_for_a_year(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        days = 366

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=cls.days)

    monkeypatch.setattr(cluster_tls, "datetime", Clock)
    with pytest.raises(InputError, match=r"ca.pem' expired on 2\d\d\d-\d\d-\d\d") as refused:
        cluster_tls.check(made)
    assert f"remove '{made}'; `lab cluster scheduler` makes new ones" in refused.value.hint
    Clock.days = -2
    with pytest.raises(InputError, match="the clock of this machine"):
        cluster_tls.check(made)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match=r"file/tls' cannot be made: File exists"):
        cluster_tls.make(tmp_path / "file" / "tls")


def test_a_scheduler_says_what_to_copy_and_keeps_its_certificates(lab_home: Path) -> None:
    pytest.importorskip("distributed")
    before = None
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-m", "lab", "cluster", "scheduler", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        threading.Timer(0.5, child.terminate).start()
        _, said = child.communicate(timeout=60)
        assert f"scp -rp {paths.tls()} MACHINE:lab-tls" in said
        assert f"lab cluster worker {address} --tls ~/lab-tls" in said
        check_modes(paths.tls())
        assert before in (None, (paths.tls() / "key.pem").read_bytes())
        before = (paths.tls() / "key.pem").read_bytes()
