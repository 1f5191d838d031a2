"""What several tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import Cli, LabServer


def pytest_configure() -> None:
    """Ctrl-C works for what the tests start, also where a shell runs them in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def lab_server() -> Iterator[LabServer]:
    server = LabServer()
    yield server
    server.close()


@pytest.fixture
def cli(lab_server: LabServer, tmp_path: Path) -> Cli:
    return Cli(server=lab_server, base=tmp_path)


@pytest.fixture
def lab_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for what runs in this process."""
    home = tmp_path / "h"
    monkeypatch.setenv("LAB_HOME", str(home))
    return home
