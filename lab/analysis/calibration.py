"""The calibration check of a cell's disks."""

from __future__ import annotations

from collections.abc import Sequence

from lab.model.result.calibration import CALIBRATED, Calibration, kind_of
from lab.model.result.measurement import Check
from lab.model.scenario.document import Cell


def check_of(cell: Cell, known: Sequence[Calibration], host: str = "") -> tuple[Check, ...]:
    """Whether a cell's disks pass calibration on its host; empty if they were not calibrated."""
    kinds = [kind_of(d) for d in cell.disks if d.count]
    found = [c for c in known if c.disk in kinds and c.host == host]
    if not found:
        return ()
    worst = next((c for c in found if not c.passed), found[0])
    share = max(c.guest_share for c in found)
    return (Check(name=CALIBRATED, passed=worst.passed, detail=worst.detail, guest_share=share),)
