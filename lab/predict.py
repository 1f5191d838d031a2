"""What theory expects of a cell's workloads."""

from __future__ import annotations

from lab.model.measurement import Prediction
from lab.model.scenario import Cell


def predictions(cell: Cell) -> tuple[Prediction, ...]:
    """Every metric that theory can say something about."""
    del cell
    return ()
