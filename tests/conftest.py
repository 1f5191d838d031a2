"""What several tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fakes import Cli, LabServer

# A quarter of the examples, other ones each time; `make test` asks for the thorough profile.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=100)
settings.load_profile("quick")


MEASURING = ("test_hdd.py", "test_main_job.py")
"""Tests with guests that fail, or take longer, where something else computes."""


def pytest_configure() -> None:
    """Ctrl-C works for what the tests start, also where a shell runs them in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give all tests with guests to one process of ``-n 2 --dist loadgroup``; the other one has no
    tests left when this one comes to those that measure. Those that look at who holds a disk
    follow each other too: each would see what the other one opens.
    """
    items.sort(key=lambda item: item.path.name in MEASURING)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.get_closest_marker("guest"):
                item.add_marker(pytest.mark.xdist_group("guest"))
            elif item.path.name.startswith("test_realdisks"):
                item.add_marker(pytest.mark.xdist_group("disks"))


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
