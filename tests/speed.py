"""How slow this host's processor is, for limits of CPU time."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

REFERENCE: Final = """\
import argparse, inspect, pydoc, typing
for module in 4 * [argparse, inspect, pydoc, typing]:
    with open(module.__file__, encoding="utf-8") as file:
        compile(file.read(), module.__file__, "exec")
"""
"""A program of Python that takes as long as the host's CPU is slow: beside a busy one, whose caches
and clock it shares, it takes 1.1 to 1.4 times as long, and so do the commands."""
IDLE: Final = 0.270
"""CPU seconds of the reference, at best, on the host on which the limits were set. A faster host is
not scaled: one ran the reference 1.6 times as fast, and the commands 1.2 times."""


def cpu_seconds(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Return the CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reference(environment: Mapping[str, str] | None = None) -> float:
    """Return the CPU seconds of :data:`REFERENCE` now."""
    return cpu_seconds([sys.executable, "-c", REFERENCE], environment)


COMMANDS: Final = 1.4 if "AuthenticAMD" in Path("/proc/cpuinfo").read_text("utf-8") else 1.0
"""How much more than the reference commands are slowed. On an EPYC host the check of all scenarios
took 1.26 s, scaled by the reference, and 2.0 s of its CPU; an older commit did too, and had passed
elsewhere."""


def scale(seconds: float) -> float:
    """Return the factor that makes CPU seconds of this host those of the host of the limits.

    ``seconds``: of the reference here.
    """
    return min(1.0, IDLE / seconds) / COMMANDS


def quickest(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, *, limit: float
) -> float:
    """Return the fewest CPU seconds of up to twelve runs of a command, scaled.

    The others met cold caches or a busy neighbour. It ends when a run is below ``limit``.
    """
    best = slow = float("inf")
    for _ in range(12):
        slow = min(slow, reference(environment))
        best = min(best, cpu_seconds(argv, environment))
        if best * scale(slow) < limit:
            break
    return best * scale(slow)
