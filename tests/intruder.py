"""Tries to connect to a cluster's ports without its certificate, in every way that dask supports.

``python -m tests.intruder DIRECTORY PORT…`` prints, as JSON for each port on 127.0.0.1, the result
of each attempt: ``refused`` or ``answered``. Each raw attempt sends a pickle. If it is unpickled,
it makes the directory ``DIRECTORY/PORT.ATTEMPT``. Run as root it becomes the user `NOBODY`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.capabilities.cluster import tls as cluster_tls

NOBODY = 65534
SECONDS = 3.0
"""Timeout in seconds for a reply or a refusal."""


class Pickle:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def message(path: Path) -> bytes:
    """Return a first message to a dask server, as dask's ``TCP.write`` would send it."""
    from distributed.protocol import ToPickle, dumps
    from distributed.protocol.utils import pack_frames_prelude

    frames = [bytes(f) for f in dumps({"op": "identity", "x": ToPickle(Pickle(path))})]
    rest = b"".join([pack_frames_prelude(frames), *frames])
    return struct.pack("Q", len(rest)) + rest


def context(directory: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts everybody, with the certificate of a directory, if any."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if directory is not None:
        made.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return made


def wrapped(plain: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a socket after the TLS handshake, if any; a server without TLS does not answer it."""
    try:
        return tls.wrap_socket(plain) if tls else plain
    except TimeoutError as error:
        raise ConnectionError from error


def send(port: int, data: bytes, tls: ssl.SSLContext | None) -> str:
    """Return whether a server replies to these bytes with anything except a refusal."""
    answer = b""
    plain = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    # A reset connection or a TLS alert is a refusal; a connection that stays open is not.
    with plain, suppress(ConnectionError, ssl.SSLError), wrapped(plain, tls) as way:
        try:
            way.sendall(data)
            while chunk := way.recv(4096):
                answer += chunk
        except TimeoutError:
            answer += b"it is still open"
    return "answered" if answer and not answer.startswith(b"\x15\x03") else "refused"


def raw(directory: Path, port: int, certificates: dict[str, Path | None]) -> dict[str, str]:
    """Try without dask: the pickle by plain TCP and by TLS with each certificate, and HTTP."""
    found = {
        "plain": send(port, message(directory / f"{port}.plain"), None),
        "http": send(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", None),
    }
    for name, own in certificates.items():
        found[name] = send(port, message(directory / f"{port}.{name}"), context(own))
    return found


async def client(address: str, security: Any) -> str:
    """Try to connect with `distributed.Client`."""
    import distributed

    words = {"timeout": SECONDS, "asynchronous": True, "set_as_default": False}
    try:
        # dask's own timeout does not cover its handshake, and an HTTP server never completes that.
        async with asyncio.timeout(2 * SECONDS):
            async with distributed.Client(address, security=security, **words):
                return "answered"
    except (OSError, TimeoutError, RuntimeError, ValueError):
        return "refused"
    except TypeError:  # a worker's reply to a scheduler's request
        return "answered"


async def clients(ports: Iterable[int], foreign: Path) -> dict[int, dict[str, str]]:
    """Try dask's own client without TLS, and with another authority's certificate."""
    from distributed import Security

    ca, cert, key = (str(foreign / name) for name in cluster_tls.FILES)
    other = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key)
    found = {}
    for port in ports:
        tries = (client(f"tcp://127.0.0.1:{port}", None), client(f"tls://127.0.0.1:{port}", other))
        found[port] = dict(
            zip(("Client", "Client foreign"), await asyncio.gather(*tries), strict=True)
        )
    return found


def listening(pid: int) -> dict[int, str]:
    """Return the address of each internet socket of a process and its children, by port."""
    import psutil

    process = psutil.Process(pid)
    pids = {pid, *(child.pid for child in process.children(recursive=True))}
    return {
        found.laddr.port: found.laddr.ip
        for found in psutil.net_connections(kind="inet")
        if found.pid in pids and (found.status == "LISTEN" or found.type == socket.SOCK_DGRAM)
    }


def attempts(directory: Path, ports: Iterable[int]) -> dict[int, dict[str, str]]:
    """Make every attempt at every port; as root, as another user."""
    words = [sys.executable, "-m", "tests.intruder", str(directory), *map(str, ports)]
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[1],
        env={k: v for k, v in os.environ.items() if k != "LAB_HOME"} | {"HOME": "/nonexistent"},
        **other,  # type: ignore[arg-type]
    )
    assert done.returncode == 0, done.stderr
    return {int(port): ways for port, ways in json.loads(done.stdout).items()}


def main() -> None:
    directory, ports = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as scratch:
        foreign = Path(scratch) / "foreign"
        cluster_tls.make(foreign)  # with the names of the cluster's own
        certificates = {"tls": None, "tls foreign": foreign}
        found = {port: raw(directory, port, certificates) for port in ports}
        for port, ways in asyncio.run(clients(ports, foreign)).items():
            found[port] |= ways
    print(json.dumps(found))


if __name__ == "__main__":
    main()
