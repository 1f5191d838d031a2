"""The disturbance of a guest in virtual time, for ``lab hunt`` (``drive/disturb.h``)."""

from __future__ import annotations

from typing import Final

PARAMETER: Final = "/sys/module/lab_disk/parameters/disturb"
NEVER: Final = 10**18 - 1
"""A time of the guest's clock that does not come, in nanoseconds.

It is below 2^60, from which on the kernel reads each digit with a check of its own
(``lib/kstrtox.c: _parse_integer_limit``): a number with a stop then takes as many instructions.
"""
HANGS: Final = 300.0
"""Seconds of the guest's clock beyond the limits of all commands after which the guest hangs.

A command that ``timeout(1)`` cannot end waits in the kernel, and the kernel reports it after 120 s
(``kernel/hung_task.c``).
"""


def disturbance(seed: int, limit: float, stop: int = NEVER) -> str:
    """Return the shell line that begins a disturbance; seed 0: only limit and stop.

    ``limit``: seconds of the guest's clock at which it panics. ``stop``: nanoseconds at which QEMU
    stops. The line has the same length for all times, so that a stop does not change what is before
    it.
    """
    return f"echo {seed} {round(limit * 1e9):019} {stop:019} > {PARAMETER}\n"
