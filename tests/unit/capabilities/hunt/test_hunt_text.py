"""A guest's console is searched in linear time: the worst text of 1 MB takes 1 s at most."""

from __future__ import annotations

import pytest

from lab.capabilities.hunt.logic.findings import KERNEL
from tests.unit.test_hostile_text import MB, seconds

BAD = {
    "open brackets": "[\n" * (MB // 2),
    "brackets": "[1]" * (MB // 3),
    "brackets in a line": "[" * MB,
    "blank lines after a bracket": "[1]" + "\n" * MB,
    "blanks after a bracket": "[1]" + " " * MB + "x",
    "reports": "INFO: possible " + " detected" * (MB // 9),
}


@pytest.mark.parametrize("name", BAD)
def test_the_worst_text_takes_no_second(name: str) -> None:
    assert seconds(KERNEL.findall, BAD[name]) < 1


def test_what_kernels_print_is_still_read() -> None:
    said = [
        "[    1.25] [   T12] WARNING: CPU: 0 PID: 1 at drivers/md/md.c:1 md_run+0x1/0x2",
        "[    3.0] [ INFO: possible circular locking dependency detected ]",
        "[    4.0] INFO: task md0_raid5:12 blocked for more than 120 seconds.",
        "BUG: KASAN: use-after-free in x",
        "[    5.0] WARNING: possible recursive locking detected",
    ]
    quiet = ["[    2.0] md0: detected capacity change", "[   2.0] see a WARNING: no", "[1]"]
    found = [m["says"] for m in KERNEL.finditer("\r\n".join([*said, *quiet]))]
    assert len(found) == len(said)
    assert found[0].startswith("WARNING: CPU: 0")
    assert found[2].startswith("INFO: task md0_raid5:12 blocked")
