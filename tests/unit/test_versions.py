"""Order and ranges of versions."""

from __future__ import annotations

import random
import re

import pytest

from lab.core.versions import age, in_range, parse_range
from lab.md.facts.kernels import marks_whole_rows, plugs_writes

OLDEST_FIRST = [
    "6.1.0-9-amd64",
    "6.1.0-56-cloud-amd64",
    "6.12.9+deb13-amd64",
    "6.12.117+deb13-amd64",
    "6.18-rc4",
    "6.18~rc5-1",
    "6.18",
    "6.18.1",
    "7.2.13+deb14-cloud-amd64",
]


def test_older_versions_stand_before_newer_ones() -> None:
    mixed = list(OLDEST_FIRST)
    random.Random(1).shuffle(mixed)
    assert sorted(mixed, key=age) == OLDEST_FIRST
    assert sorted(["4.4-11", "4.10-1", "4.4-2", "4.2-5"], key=age) == [
        "4.2-5",
        "4.4-2",
        "4.4-11",
        "4.10-1",
    ]


EARLY = ("6.1-rc1", "6.1~rc5-1~exp1", "6.1.0-rc3+", "6.1-rc8-amd64", "6.1~rc1+dfsg-1", "6.1rc2")
LATE = (
    "6.1+dfsg-1",
    "6.1-1~bpo12+1",
    "6.1+deb13-amd64",
    "6.1-56-cloud-amd64",
    "6.1-1+rpt1",
    "6.1.",
)


@pytest.mark.parametrize(
    ("version", "bounds", "there"),
    [
        ("6.12.57+deb13-amd64", ">=6.12", True),
        ("6.12.57", "==6.12", True),
        ("6.12.57", "<=6.12", True),
        ("6.12.57", ">6.12", False),
        ("6.12.57", "==6.12.5", False),
        ("6.13", ">6.12 <6.18", True),
        ("6.18.2", ">6.12, <6.18", False),
        ("4.4", "==4.4.0", True),
        ("7", "<6.18", False),
        ("6", "<6.18", True),
        # before a release
        *((early, ">=6.1", False) for early in EARLY),
        *((early, ">6.1", False) for early in EARLY),
        *((early, "==6.1", False) for early in EARLY),
        *((early, "<6.1", True) for early in EARLY),
        *((early, "<=6.1", True) for early in EARLY),
        *((early, ">6.0", True) for early in EARLY),
        *((early, "==6", True) for early in EARLY),
        ("7.0-rc1", ">=7", False),
        ("7.0-rc1", "<7", True),
        ("6.1.5-rc1", ">=6.1", True),
        ("6.1.5-rc1", ">=6.1.5", False),
        # suffixes of a release, and of what came after it
        *((late, ">=6.1", True) for late in LATE),
        *((late, "<6.1", False) for late in LATE),
        (None, ">=1", False),
        ("unknown", "<9", False),
    ],
)
def test_a_bound_is_as_exact_as_it_is_written(version: str, bounds: str, there: bool) -> None:
    assert in_range(version, bounds) is there


@pytest.mark.parametrize("text", ["", "6.12", "=>6", ">=6.12 or so", "~=4", ">=a"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(text))} is not a range"):
        parse_range(text)


def test_a_release_candidate_has_the_changes_of_its_merge_window() -> None:
    assert [marks_whole_rows(v) for v in ("6.14-rc1", "6.14", "6.13.1", "6.13-rc7")] == [
        *(True, True, False, False),
    ]
    assert [plugs_writes(v) for v in ("6.5-rc1", "6.4.9", None)] == [False, True, None]
