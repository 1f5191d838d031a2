"""Hooks for pytest: fixtures, the marker ``lab``, scenario files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.testing import SHARED

if TYPE_CHECKING:
    from lab.testing.guest_objects import LabArray, LabGuest
    from lab.testing.pool import Pool

_MARKER = (
    "lab(disks=N, throttle=RATE, level=5, image=NAME, ...): the guest, disks and array that"
    " lab_guest and lab_array give this test. Also scope='function'|'class'|'module'|'session',"
    " fresh=True for a guest that no test has used, and set={'dotted.name': value} for any other"
    " field of a scenario."
)
_GUESTS = pytest.StashKey[list["LabGuest"]]()
"""Guests in use by tests, and those returned during this test."""
_DIRECTORY = pytest.StashKey[str]()
_MATCHING = pytest.StashKey[frozenset[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``lab_scenarios``: patterns of YAML files that are scenarios."""
    parser.addini(
        "lab_scenarios",
        "patterns of scenario files, relative to the root directory, whose claims are tests",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for `pytest --markers`."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_GUESTS] = []


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the directory shared by all workers of this session."""
    import tempfile

    stash = node.config.stash
    if _DIRECTORY not in stash:
        stash[_DIRECTORY] = tempfile.mkdtemp(prefix="lab-pytest-")
    node.workerinput[SHARED] = stash[_DIRECTORY]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the shared directory."""
    if _DIRECTORY in config.stash:
        import shutil

        shutil.rmtree(config.stash[_DIRECTORY], ignore_errors=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a scenario file: a file on the command line that looks like one, or one that matches
    ``lab_scenarios``."""
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    matching = file_path in _matching(parent.config)
    if not matching and not parent.session.isinitpath(file_path):
        return None
    from lab.testing.scenarios import ScenarioFile, looks_like_one

    if not matching and not looks_like_one(file_path):
        return None
    found: pytest.Collector = ScenarioFile.from_parent(parent, path=file_path)
    return found


def _matching(config: pytest.Config) -> frozenset[Path]:
    """Return the files that match ``lab_scenarios``; they are searched once."""
    if _MATCHING not in config.stash:
        patterns: list[str] = config.getini("lab_scenarios")
        found = (path for pattern in patterns for path in config.rootpath.glob(pattern))
        config.stash[_MATCHING] = frozenset(found)
    return config.stash[_MATCHING]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Mark the commands so far as earlier tests' commands."""
    guests = item.config.stash[_GUESTS]
    guests[:] = [guest for guest in guests if not guest.given_back]
    for guest in guests:
        guest.next_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add each guest's last commands, /proc/mdstat and console to a failed test's report."""
    report = yield
    if report.failed:
        for guest in item.config.stash[_GUESTS]:
            if guest.in_use:
                report.sections.extend(guest.sections())
    return report


@pytest.fixture(scope="session")
def lab_guests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    """Guests for your own fixtures: ``with lab_guests.borrow(disks=3) as guest: …``."""
    from lab.testing.pool import Pool

    pool = Pool(tmp_path_factory.mktemp("lab"), request.config.stash[_GUESTS])
    yield pool
    pool.close()


@pytest.fixture
def lab_guest(request: pytest.FixtureRequest, lab_guests: Pool) -> LabGuest:
    """A guest with the disks of ``@pytest.mark.lab``. A test with ``lab_array`` gets the same."""
    if "lab_array" in request.fixturenames:
        array: LabArray = request.getfixturevalue("lab_array")
        return array
    return lab_guests.for_test(request, array=False)


@pytest.fixture
def lab_array(request: pytest.FixtureRequest, lab_guests: Pool) -> LabArray:
    """A guest with the array of ``@pytest.mark.lab``, built and verified."""
    return lab_guests.for_test(request, array=True)
