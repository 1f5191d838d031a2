"""Distributes the test files over pytest-xdist's processes."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

GUESTS = "guests"
"""Guests in real time, and tests that look at who holds a disk. One process has all of them: they
share a snapshot, and would see each other's disks."""
SEALED = "sealed"
"""Tests with guests in virtual time. One process runs them, since they share a snapshot."""
ALONE = ("test_main_job.py", "test_site_browser.py")
"""Files that measure on the host's clock: `make test` runs them after all others (``alone``)."""

_SEALED = (
    *("test_hunt.py", "test_reproduce.py", "test_rest.py", "test_sealed_cells.py"),
    "test_exec.py",
    "test_virtual",
)
_DISKS = ("test_real_disks.py", "test_realdisks")
LONG = (
    *("test_cluster.py", "test_docs.py", "test_hostile.py", "test_damage.py", "test_cli.py"),
    *("test_pytest_plugin.py", "test_report_page.py", "test_silence.py", "test_drive_core.py"),
    *("test_progress.py", "test_profile.py", "test_cache.py", "test_disk_server.py"),
)
"""Files without guests that begin first, the longest first, so that no process is left with one of
them at the end."""


def group(nodeid: str) -> str:
    """Return the group that a test belongs to: one of the two above, or its file."""
    file = nodeid.partition("::")[0]
    name = file.rpartition("/")[2]
    if name.startswith(_DISKS):
        return GUESTS
    if "/guest/" not in file:
        return file
    return SEALED if name.startswith(_SEALED) else GUESTS


def order(nodeid: str) -> int:
    """Return a sort key: the longest first."""
    name = group(nodeid).rpartition("/")[2]
    first = (GUESTS, SEALED, *LONG)
    return first.index(name) if name in first else len(first)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs a group."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
