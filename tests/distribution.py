"""Distributes the test files over pytest-xdist's processes."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

GUESTS = "guests"
"""Guests in real time, and tests that look at who holds a disk. One process has all of them: they
share a snapshot, and would see each other's disks."""
SEALED = "sealed"
"""Tests with guests in virtual time. One process runs them, since they share a snapshot."""
ALONE = "alone"
"""Tests that measure on the host's clock: after all others."""

_SEALED = (
    *("test_hunt.py", "test_reproduce.py", "test_rest.py", "test_sealed_cells.py"),
    "test_exec.py",
    "test_virtual",
)
_DISKS = ("test_real_disks.py", "test_realdisks")
_ALONE = ("test_main_job.py", "test_site_browser.py")
LONG = (
    *("test_cluster.py", "test_docs.py", "test_hostile.py", "test_damage.py", "test_cli.py"),
    *("test_pytest_plugin.py", "test_report_page.py", "test_silence.py", "test_drive_core.py"),
    *("test_progress.py", "test_profile.py", "test_cache.py", "test_disk_server.py"),
)
"""Files without guests that begin first, the longest first, so that no process is left with one of
them at the end."""


def group(nodeid: str) -> str:
    """Return the group that a test belongs to: one of the three above, or its file."""
    file = nodeid.partition("::")[0]
    name = file.rpartition("/")[2]
    if name.startswith(_ALONE):
        return ALONE
    if name.startswith(_DISKS):
        return GUESTS
    if "/guest/" not in file:
        return file
    return SEALED if name.startswith(_SEALED) else GUESTS


def order(nodeid: str) -> int:
    """Return a sort key: the longest first; tests that need the machine alone last."""
    found = group(nodeid)
    name = found.rpartition("/")[2]
    first = (GUESTS, SEALED, *LONG)
    if name in first:
        return first.index(name)
    return len(first) + (found == ALONE)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs a group; `ALONE` starts when the other processes have finished."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        self._go_on(node)  # another process may have waited for this test's end

    def _assign_work_unit(self, node: Any) -> None:
        if ALONE in self.workqueue:  # a crashed process puts its files after it
            self.workqueue.move_to_end(ALONE)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        others = [other for other in self.nodes if other is not node]
        if node.shutting_down or list(self.workqueue) != [ALONE] or not others:
            super()._reschedule(node)
        elif self._pending_of(self.assigned_work[node]) > 2:
            return
        elif all(other.shutting_down for other in others):
            if not any(self._pending_of(self.assigned_work[other]) for other in others):
                super()._reschedule(node)
        elif GUESTS not in self.assigned_work[node]:  # that process has a snapshot for `ALONE`
            node.shutdown()  # it runs its remaining tests
            self._go_on(node)

    def _go_on(self, but: Any) -> None:
        if list(self.workqueue) == [ALONE]:
            for node in self.nodes:
                if node is not but and node in self.registered_collections:
                    self._reschedule(node)
