"""A small NBD client, and the lab's disk server alone, for tests without a guest.

The protocol is that of the NBD project's ``doc/proto.md``: fixed newstyle, simple replies.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.host.guest import servers
from lab.model.execution.procedure import AskServer, BuildPlugin, StartServer
from lab.model.scenario.document import Disk
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.plugins.disks import hdd
from lab.plugins.disks._drives import control_path, serve, socket_path

DRIVE = hdd.PRESETS["hdd_7200"]
READ, WRITE, FLUSH = 0, 1, 3
FUA = 1
EIO = 5
_REQUEST = struct.Struct(">IHHQQI")
_REPLY = struct.Struct(">IIQ")


class Client:
    """One connection. Requests may overtake each other, so ``submit`` and ``collect`` are
    separate."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        self._socket.connect(path)
        self._in = self._socket.makefile("rb", buffering=1 << 20)
        magic, option, flags = struct.unpack(">8s8sH", self._exactly(18))
        assert (magic, option, flags & 1) == (b"NBDMAGIC", b"IHAVEOPT", 1)
        self._socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
        self.size, self.flags = struct.unpack(">QH", self._exactly(10))
        self._next = 0
        self.pending: dict[int, tuple[int, int, int]] = {}
        """Kind, offset and length of requests in flight, by handle."""

    def close(self) -> None:
        self._in.close()
        self._socket.close()

    def _exactly(self, length: int) -> bytes:
        data: bytes = self._in.read(length)
        assert len(data) == length, "the server hung up"
        return data

    def submit(
        self, kind: int, offset: int = 0, length: int = 0, data: bytes = b"", flags: int = 0
    ) -> int:
        """Send a request; return its handle."""
        self._next += 1
        length = len(data) if kind == WRITE else length
        self.pending[self._next] = (kind, offset, length)
        head = _REQUEST.pack(0x25609513, flags, kind, self._next, offset, length)
        self._socket.sendall(head + data if data else head)
        return self._next

    def collect(self) -> tuple[int, int, bytes]:
        """Return the next reply: handle, error, and the data of a read."""
        magic, error, handle = _REPLY.unpack(self._exactly(16))
        assert magic == 0x67446698
        kind, _, length = self.pending.pop(handle)
        data = self._exactly(length) if kind == READ and not error else b""
        return handle, error, data

    def _one(self, kind: int, offset: int, length: int, data: bytes, flags: int) -> bytes:
        assert not self.pending
        self.submit(kind, offset, length, data, flags)
        _, error, found = self.collect()
        if error:
            raise OSError(error, "the server answered with an error")
        return found

    def read(self, offset: int, length: int) -> bytes:
        return self._one(READ, offset, length, b"", 0)

    def write(self, offset: int, data: bytes, *, flags: int = 0) -> None:
        self._one(WRITE, offset, 0, data, flags)

    def flush(self) -> None:
        self._one(FLUSH, 0, 0, b"", 0)


class DiskServer:
    """The server as the lab starts it, for one drive; ``more``: parameters in its own units."""

    def __init__(
        self,
        directory: Path,
        drive: HardDrive | SolidStateDrive,
        *,
        size: int = 4 << 30,
        name: str = "disk1",
        **more: int | str,
    ) -> None:
        self.path = str(directory / f"{name}.raw")
        with open(self.path, "wb") as file:  # noqa: PTH123 - the path is a string everywhere else
            file.truncate(size)
        steps = serve(Disk(model="hdd", size=size), self.path, drive)
        (plugin,) = [s for s in steps if isinstance(s, BuildPlugin)]
        (step,) = [s for s in steps if isinstance(s, StartServer)]
        words = tuple(f"{key}={value}" for key, value in more.items())
        self.step = step.model_copy(update={"argv": (*step.argv, *words)})
        servers.link(plugin)
        self._server = servers.Server(self.step)

    def client(self) -> Client:
        return Client(socket_path(self.path))

    def ask(self, line: str) -> str:
        return servers.ask(AskServer(label="ask", socket=control_path(self.path), line=line))

    def order(self, line: str) -> str:
        answer = self.ask(line)
        assert answer.startswith("ok"), answer
        return answer[3:]

    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.order("stats"))
        return found

    @property
    def pid(self) -> int:
        return self._server.pid

    def stop(self, grace: float = 3.0) -> None:
        self._server.stop(grace)


@contextlib.contextmanager
def running(
    directory: Path, drive: HardDrive | SolidStateDrive, **more: Any
) -> Iterator[DiskServer]:
    server = DiskServer(directory, drive, **more)
    try:
        yield server
    finally:
        server.stop()
