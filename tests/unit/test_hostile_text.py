"""Text that a guest prints so that reading it takes the host's CPU for hours: patterns are linear.

The worst text of each pattern has 1 MB, and may take 1 s of CPU time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from lab.compile.guest.program import how_far
from lab.compile.scenario import short_claims
from lab.compile.scenario.short_claims import ShortFormError
from lab.core.units import parse_rate, parse_seconds, parse_share, parse_size
from lab.plugins.faults import _pools, _shared
from lab.plugins.workloads import blktests, mdadm_tests

MB = 1_000_000
BAD: dict[str, tuple[Callable[[str], object], str]] = {
    "broken tests": (mdadm_tests._BROKEN.findall, "(KNOWN BROKEN TEST: " * (MB // 20)),
    "skipped tests": (mdadm_tests._SKIPPED.findall, "\n" * MB),
    "skipping itself": (mdadm_tests._SKIPS.findall, "+ [\n" * (MB // 4)),
    "statuses": (lambda text: mdadm_tests._first_error(text.splitlines()), "+ rv=1\n" * (MB // 7)),
    "copies": (_shared._COPIES.findall, "1" * MB),
    "chunks": (_shared._CHUNKS.findall, "1" * MB),
    "a personality": (_shared._MDSTAT.findall, "md0 : active " + "a" * MB + "\n"),
    "blocks": (_shared._MDSTAT.findall, "  1 blocks [1/1] [\n" * (MB // 19)),
    "leaves": (_pools._LEAF.findall, "\n" * MB),
    "disks of a test": (blktests._LINE.findall, "a/001 => d" + " " * MB + "x"),
    "a sync": (how_far, "md0 : active raid1 a\n" + "a" * MB),
    "a sync without a share": (how_far, "md0 : active raid1 a\n" + "a =" + " " * MB),
    "syncs": (how_far, "md0 : active raid1 a\n" + "a=" * (MB // 2)),
}


def seconds(read: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    read(text)
    return time.process_time() - began


@pytest.mark.parametrize("name", BAD)
def test_the_worst_text_of_a_pattern_takes_no_second(name: str) -> None:
    assert seconds(*BAD[name]) < 1


BLANKS = 60_000
PARSED = (
    " " * BLANKS,
    " " * BLANKS + "!",
    "1" + " " * BLANKS + "!",
    "1" + " " * BLANKS + "MiB" + " " * BLANKS + "!",
    "1" + " " * BLANKS + "/" + " " * BLANKS + "s" + " " * BLANKS + "!",
    "1" * BLANKS + "!",
    "1." + "1" * BLANKS + "!",
)
"""Values that a scenario, a bundle or an archive may have."""


@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_seconds, parse_share])
def test_a_value_of_a_scenario_is_read_or_refused_at_once(parse: Callable[[str], object]) -> None:
    for text in PARSED:
        began = time.process_time()
        with pytest.raises(ValueError, match="write"):
            parse(text)
        assert time.process_time() - began < 1


@pytest.mark.parametrize("text", PARSED)
def test_a_short_claim_is_read_or_refused_at_once(text: str) -> None:
    for claim in (f"w[{text}] >= 1", f"w >= {text}", f"w[{text}, a:{text}] = 1 ± {text}"):
        began = time.process_time()
        with suppress(ShortFormError):
            short_claims.long_form(claim, ["a", "b"])
        assert time.process_time() - began < 1


OLD: dict[str, tuple[str, str]] = {
    "brackets": (r"(?m)^(?:\[[^\]]*\]\s*)*(?:.* possible lock)$", "[1]"),
    "broken": (r"\(KNOWN BROKEN TEST: (.*?)\)", "(KNOWN BROKEN TEST: "),
    "skipped": (r"(?m)^\s*SKIPPING, REASON: (.*)", "\n"),
    "chunks": (r"(\d+)[kK] chunk", "1"),
    "leaves": (r"(?m)^\s+(?:/dev/\S+|\d+)\s+ONLINE", "\n"),
    "sync": (r"(\w+) *= *(\S+?%|\w+)", "a"),
}


@pytest.mark.parametrize("name", OLD)
def test_the_control_takes_ever_longer(name: str) -> None:
    """The patterns as they were: a text of 8 times the length takes far more than 8 times."""
    pattern, piece = re.compile(OLD[name][0]), OLD[name][1]
    short, long_ = (min(seconds(pattern.findall, piece * n) for _ in range(3)) for n in (300, 2400))
    assert long_ > 20 * short


def test_what_kernels_and_tools_print_is_still_read() -> None:
    broken = mdadm_tests._BROKEN.search("FAILED (KNOWN BROKEN TEST: always fails)")
    assert broken is not None
    assert broken[1] == "always fails"
    assert mdadm_tests._SKIPPED.findall("a\n\n\tSKIPPING, REASON: no dm\n") == ["no dm"]
    assert _shared._COPIES.findall("64K chunks 2 near-copies 2 far-copies") == [
        ("2", "near"),
        ("2", "far"),
    ]
    chunk = _shared._CHUNKS.search(" super 1.2 512k chunks")
    assert chunk is not None
    assert chunk[1] == "512"
    assert _pools._LEAF.findall("\n\t  /dev/vdb  ONLINE  0 0 0\n\t  123  UNAVAIL  0\n") == [
        ("ONLINE", "  0 0 0"),
        ("UNAVAIL", "  0"),
    ]
    line = blktests._LINE.match("md/001 => nvme0n1 (Raid with bitmap)        [passed]")
    assert line is not None
    assert (line["disks"], line["ending"]) == ("nvme0n1", "passed")
    line = blktests._LINE.match("md/002 => a b    [failed]")
    assert line is not None
    assert (line["disks"], line["ending"]) == ("a b", "failed")
    mdstat = (
        "md0 : active raid1 vdb[1] vda[0]\n      9 blocks super 1.2 [2/2] [UU]\n"
        "      [==>.....]  recovery = 12.6% (37043/292945) finish=0.1min speed=1K/sec\n"
    )
    assert how_far(mdstat) == "md0 (raid1): recovery 12.6%, 37043 of 292945 KiB"
    array = _shared._array_in(mdstat)
    assert array is not None
    assert (array["personality"], array["disks"]) == ("raid1", " vdb[1] vda[0]")
    assert array["members"] == "UU"
    assert "resync PENDING" in how_far("md1 : active raid1 a\n  1 blocks\n  \tresync=PENDING\n")


def test_the_first_error_of_a_log_is_still_found() -> None:
    lines = ["+ ./mdadm -C /dev/md0", "+ rv=1", "", "mdadm: no", "+ return 1", "late"]
    found = mdadm_tests._first_error(["+ ./mdadm -S", "+ rv=1", "+ return 1", *lines])
    assert found == "no (mdadm -C /dev/md0: status 1)"
