"""Checks of a cell's disk speeds: calibrated, or in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES, Calibration, kind_of
from lab.model.result.measurement import Check
from lab.model.scenario.document import SERVED, Cell
from lab.model.scenario.guest import Clock
from lab.plugins import catalog

_IN_VIRTUAL_TIME: Final = (
    "in real time each value has an unknown guest overhead in it, so modelled drives are judged in"
    " virtual time: run it with --clock virtual, or set guest.clock to virtual"
)


def unjudged(cell: Cell) -> bool:
    """Return whether a cell has modelled drives in real time, whose values are not judged."""
    drives = (catalog.disk_model(d.model).drive(d) for d in cell.disks if d.device is None)
    return cell.guest.clock is Clock.REAL and any(drive is not None for drive in drives)


def check_of(cell: Cell, known: Sequence[Calibration], host: str = "") -> tuple[Check, ...]:
    """Return the check that a cell's disks had their speed on its host; empty: nothing to check.

    Earlier versions calibrated modelled drives too. Their runs are judged by these calibrations.
    """
    kinds = [kind_of(d) for d in cell.disks if d.count]
    found = [c for c in known if c.disk in kinds and c.host == host]
    checks = []
    if found:
        worst = next((c for c in found if not c.passed), found[0])
        share = max(c.guest_share for c in found)
        checks += [
            Check(name=CALIBRATED, passed=worst.passed, detail=worst.detail, guest_share=share)
        ]
    if unjudged(cell) and not any(c.disk["model"] in SERVED for c in found):
        checks += [Check(name=VIRTUAL_DRIVES, passed=False, detail=_IN_VIRTUAL_TIME)]
    return tuple(checks)
