"""The guests of one pytest process; each is in use by tests until their scope ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import pytest

from lab.core.errors import InputError, LabError
from lab.run.guest_pool import GuestPool, PooledGuest
from lab.testing.asked import Asked, asked_for, in_the_markers_words
from lab.testing.guest_objects import LabArray, LabGuest

Held = tuple[pytest.Item | pytest.Collector, Asked, LabGuest]
"""The node at whose end the guest is returned, the request, and the guest."""


def _silent(*_said: object) -> None:
    """Print nothing: pytest uses the terminal."""


class Pool:
    """Gives guests to tests, and takes them back."""

    def __init__(self, directory: Path, guests: list[LabGuest]) -> None:
        self._lender = GuestPool(directory=directory, say=_silent, progress=_silent)
        self._guests = guests
        """Guests in use by tests, for the reports of failed tests."""
        self._held: list[Held] = []

    @overload
    def for_test(self, request: pytest.FixtureRequest, *, array: Literal[True]) -> LabArray: ...

    @overload
    def for_test(self, request: pytest.FixtureRequest, *, array: Literal[False]) -> LabGuest: ...

    def for_test(self, request: pytest.FixtureRequest, *, array: bool) -> LabGuest:
        """Return a guest for a test's marker; within its scope, an existing one if there is one."""
        __tracebackhide__ = True
        item: pytest.Item = request.node
        wrong = ""
        try:
            if array and item.get_closest_marker("lab") is None:
                raise InputError(
                    f"{_place(item)}: lab_array needs the marker lab, and this test has none: add"
                    " @pytest.mark.lab(disks=3, level=5)"
                )
            asked = asked_for(words_of(item), array=array, place=_place(item), path=Path(item.path))
            holder = _holder(item, asked.scope)
            guest = self._of(holder, asked)
            if guest is None:
                # The fixtures that use the guest end before the test's own end.
                ends = request if holder is item else holder
                guest = self._lend(holder, asked, ends.addfinalizer)
            guest.in_use = True
            return guest
        except LabError as error:
            wrong = str(error)
        # Outside of the `except` block, so that pytest does not print the original error too.
        pytest.fail(wrong, pytrace=False)

    @contextmanager
    def borrow(self, **words: Any) -> Iterator[LabGuest]:
        """Yield a guest with the marker's arguments while the block runs; with ``level`` an array.

        For a fixture of any scope: ``with lab_guests.borrow(disks=5, level=6) as array: yield
        array``. ``InputError`` names the wrong argument; the fixture has its own ``scope``.
        """
        caller = sys._getframe(2)  # skips contextlib's frames
        path = Path(caller.f_code.co_filename)
        place = f"{path.name}:{caller.f_lineno}"
        asked = asked_for(words, array="level" in words, place=place, path=path)
        guest, give_back = self._new(asked)
        try:
            yield guest
        finally:
            give_back()

    def close(self) -> None:
        """End every guest."""
        self._lender.close()

    def _loan(self, asked: Asked) -> PooledGuest:
        try:
            return self._lender.acquire(asked.compiled, fresh=asked.fresh)
        except InputError as error:  # only the image shows that it lacks a feature
            place = asked.compiled.document.source
            raise in_the_markers_words(error, place, asked.words) from None

    def _of(self, holder: pytest.Item | pytest.Collector, asked: Asked) -> LabGuest | None:
        """Return the guest in use by tests of the same scope and arguments; replace a dead one."""
        for mine, theirs, guest in self._held:
            if mine is holder and dict(theirs.words) == dict(asked.words) and guest.alive:
                return guest
        return None

    def _lend(
        self,
        holder: pytest.Item | pytest.Collector,
        asked: Asked,
        at_the_end: Callable[[Callable[[], object]], None],
    ) -> LabGuest:
        guest, give_back = self._new(asked)
        held: Held = (holder, asked, guest)
        self._held.append(held)
        at_the_end(give_back)
        at_the_end(lambda: self._held.remove(held))
        return guest

    def _new(self, asked: Asked) -> tuple[LabGuest, Callable[[], None]]:
        """Return a new guest, and the function that returns it to the pool."""
        loan = self._loan(asked)
        guest = LabArray(loan) if asked.compiled.base.array else LabGuest(loan)
        self._guests.append(guest)

        def give_back() -> None:
            guest.given_back = True
            self._lender.release(loan)

        return guest, give_back


def words_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return the arguments of a test's markers; nearer markers override others."""
    words: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("lab"))):
        if mark.args:
            raise InputError(
                f"{_place(item)}: @pytest.mark.lab: expected keyword arguments, as in "
                f"lab(disks=5); found {mark.args[0]!r}"
            )
        words |= mark.kwargs
    return words


def _place(item: pytest.Item) -> str:
    file, line, _ = item.location
    return f"{file}:{(line or 0) + 1}"


def _holder(item: pytest.Item, scope: str) -> pytest.Item | pytest.Collector:
    """Return the node at whose end a scope ends. As for pytest's fixtures, ``class`` means the test
    itself outside of a class."""
    if scope == "session":
        return item.session
    kinds: dict[str, type[pytest.Collector]] = {"class": pytest.Class, "module": pytest.Module}
    return (item.getparent(kinds[scope]) if scope in kinds else None) or item
