"""What a killed hunt leaves is found and removed."""

from __future__ import annotations

import signal

import pytest

from lab.capabilities.hunt import run as hunt
from tests.unit.test_leftovers import fill, removed_if_killed

pytestmark = pytest.mark.usefixtures("lab_home")


def small() -> None:
    with hunt.workplace() as place:
        fill(place, "raw")
        signal.pause()


def test_runs_of_smaller_scenarios_are_removed() -> None:
    removed_if_killed(small, large=True)
