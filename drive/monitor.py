"""Saves and restores sealed guests through QEMU's monitors (QMP, HMP).

A guest is saved where it stopped itself. While the guest's CPU runs, no command is sent to QEMU,
since a query would disturb the guest at a host-dependent time.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typing_extensions import override

from drive.sealed import value

CAPABILITIES = ("x-ignore-shared", "events")
"""Capabilities: shared files (regions, memory of a guest to save) are not part of the state."""


class MonitorError(RuntimeError):
    """QEMU refused a command, failed to do it, or has ended."""


class _Connection:
    """A connection to a monitor; ``timeout``: seconds for a reply."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._timeout = timeout
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
            self._begin()
        except BaseException:
            self._socket.close()
            raise

    def _begin(self) -> None:
        """Read the monitor's greeting."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


class Monitor(_Connection):
    """A connection to the QMP of a QEMU that was started with ``arguments``."""

    @override
    def _begin(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self._next()
        self.ask("qmp_capabilities")

    @staticmethod
    def arguments(path: Path) -> list[str]:
        """Return QEMU's options; the guest does not start before ``cont``."""
        return ["-S", "-qmp", f"unix:{value(path)},server=on,wait=off"]

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        super().__exit__(kind, error, trace)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command, and return QEMU's reply."""
        self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._file.flush()
        return self._answer(command)

    def _answer(self, command: str) -> Any:
        while True:
            answer = self._next()
            if "event" in answer:
                self._events.append(answer)
            elif "error" in answer:
                raise MonitorError(f"QEMU: {command}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Return the data of the next event of this name; an unread earlier one counts."""
        while True:
            event = self._events.pop(0) if self._events else self._next()
            if event["event"] == name:
                data: dict[str, Any] = event.get("data", {})
                return data

    def _next(self) -> Any:
        line = self._file.readline()
        if not line:
            raise MonitorError("QEMU has ended")
        return json.loads(line)

    def save(self, path: Path) -> None:
        """Write the stopped guest's state to a file."""
        with path.open("wb") as file:
            self._migrate("migrate", file.fileno())

    def restore(self, path: Path) -> None:
        """Load a state into a QEMU that was started with ``-incoming defer``."""
        with path.open("rb") as file:
            self._migrate("migrate-incoming", file.fileno())

    def _migrate(self, command: str, descriptor: int) -> None:
        capabilities = [{"capability": name, "state": True} for name in CAPABILITIES]
        self.ask("migrate-set-capabilities", capabilities=capabilities)
        self._pass("state", descriptor)
        self.ask(command, uri="fd:state")
        while (status := self.wait_for("MIGRATION")["status"]) != "completed":
            if status == "failed":
                raise MonitorError(f"{command} failed")

    def _pass(self, name: str, descriptor: int) -> None:
        """Pass an open file to QEMU."""
        command = {"execute": "getfd", "arguments": {"fdname": name}}
        socket.send_fds(self._socket, [json.dumps(command).encode()], [descriptor])
        self._answer("getfd")


class Console(_Connection):
    """A connection to the monitor for people (HMP) of a QEMU that was started with ``arguments``.

    QMP has a thread of its own, which QEMU wakes twice whenever the clock of an idle guest jumps.
    """

    @override
    def _begin(self) -> None:
        self._answer()

    @staticmethod
    def arguments(path: Path) -> list[str]:
        """Return options of a QEMU that waits for a state, and for ``cont``."""
        return ["-S", "-monitor", f"unix:{value(path)},server=on,wait=off", "-incoming", "defer"]

    def ask(self, command: str, *descriptors: int) -> str:
        """Send a command and open files, and return QEMU's reply without the echo."""
        socket.send_fds(self._socket, [f"{command}\n".encode()], list(descriptors))
        answer = self._answer().partition("\r\n")[2]
        if answer.startswith("Error"):
            raise MonitorError(f"QEMU: {command}: {answer.strip()}")
        return answer

    def restore(self, path: Path) -> None:
        """Load a state; ``TimeoutError``: it is not loaded within the time for a reply."""
        self.ask(f"migrate_set_capability {CAPABILITIES[0]} on")
        with path.open("rb") as file:
            self.ask("getfd state", file.fileno())
        self.ask("migrate_incoming fd:state")
        end = time.monotonic() + self._timeout
        while "inmigrate" in self.ask("info status"):  # a failure ends QEMU
            if time.monotonic() > end:
                raise TimeoutError("QEMU does not load the state")

    def _answer(self) -> str:
        answer = b""
        while not answer.endswith(b"(qemu) "):
            more = self._socket.recv(4096)
            if not more:
                raise MonitorError("QEMU has ended")
            answer += more
        return answer.removesuffix(b"(qemu) ").decode(errors="replace")
