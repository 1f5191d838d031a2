"""Snapshots of sealed guests, through QEMU's monitor (QMP): saved where the guest stopped itself.

Nothing is said to QEMU while the guest's processor runs: a query is a disturbance in host time.
"""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

IGNORE_SHARED = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}
"""Regions stay where they are: a snapshot has the guest's own memory only."""


class Monitor:
    """A connection to QEMU started with ``arguments``; ``timeout``: seconds for an answer."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self._events: list[str] = []
        json.loads(self._file.readline())
        self.ask("qmp_capabilities")

    @staticmethod
    def arguments(path: Path) -> list[str]:
        """QEMU's options; it does not start the guest before ``cont``."""
        return ["-S", "-qmp", f"unix:{path},server=on,wait=off"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer."""
        json.dump({"execute": command.replace("__", "-"), "arguments": arguments}, self._file)
        self._file.flush()
        while True:
            answer = self._next()
            if "event" in answer:
                self._events.append(answer["event"])
            elif "error" in answer:
                raise RuntimeError(f"QEMU: {command}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def wait_for(self, *events: str) -> None:
        """Wait until QEMU has reported one of these events."""
        while not any(event in self._events for event in events):
            answer = self._next()
            self._events.append(answer.get("event", ""))

    def _next(self) -> Any:
        line = self._file.readline()
        if not line:
            raise RuntimeError("QEMU has ended")
        return json.loads(line)

    def save(self, path: Path) -> None:
        """Write the stopped guest's state to a file."""
        self._migrate("migrate", f"exec:cat >{shlex.quote(str(path))}")

    def restore(self, path: Path) -> None:
        """Load a state; QEMU was started with ``-incoming defer``."""
        self._migrate("migrate-incoming", f"exec:cat {shlex.quote(str(path))}")

    def _migrate(self, command: str, uri: str) -> None:
        self.ask("migrate-set-capabilities", **IGNORE_SHARED)
        state = [{"capability": "events", "state": True}]
        self.ask("migrate-set-capabilities", capabilities=state)
        self._events.clear()
        self.ask(command, uri=uri)
        while (
            True
        ):  # the event comes for each change; the guest stands still, so asking is harmless
            self.wait_for("MIGRATION")
            self._events.clear()
            status = self.ask("query-migrate")["status"]
            if status == "failed":
                raise RuntimeError(f"QEMU could not {command} {uri}")
            if status == "completed":
                return
