"""What several tests share."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lab.host.system import paths
from tests import distribution
from tests.fakes import Cli, LabServer

# A quarter of the examples, other ones each time; `make test` asks for the thorough profile.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=100)
settings.load_profile("quick")


def pytest_configure() -> None:
    """Ctrl-C works for what the tests start, also where a shell runs them in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests by file and group, in the order of `distribution.order`."""
    config.option.loadscopereorder = False
    return distribution.Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: distribution.order(item.nodeid))


@pytest.fixture(scope="session")
def lab_server() -> Iterator[LabServer]:
    server = LabServer()
    yield server
    server.close()


@pytest.fixture
def cli(lab_server: LabServer, tmp_path: Path) -> Cli:
    return Cli(server=lab_server, base=tmp_path)


@pytest.fixture
def short_cli(lab_server: LabServer) -> Iterator[Cli]:
    """``lab`` with a home whose path is short enough for sockets of guests."""
    with tempfile.TemporaryDirectory(prefix="lab-") as base:
        yield Cli(server=lab_server, base=Path(base))


@pytest.fixture(autouse=True)
def _judged_apart(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test without a home of its own leaves nothing in the user's cache of judged runs."""
    usual = paths.judged
    apart = tmp_path_factory.getbasetemp() / "judged"
    monkeypatch.setattr(paths, "judged", lambda: usual() if os.environ.get("LAB_HOME") else apart)


@pytest.fixture
def lab_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for what runs in this process."""
    home = tmp_path / "h"
    monkeypatch.setenv("LAB_HOME", str(home))
    return home
