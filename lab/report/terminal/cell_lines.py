"""Lines about a cell that ran twice."""

from __future__ import annotations

from lab.model.result.reproduction import ReproducedCell


def cell_lines(cell: ReproducedCell, *, stored: str = "stored", here: str) -> list[str]:
    """Return lines about a cell that ran twice; ``stored`` and ``here``: names of the runs."""
    lines = [f"{cell.id}: {cell.state.value}{f': {cell.reason}' if cell.reason else ''}"]
    if (one := cell.difference) is not None:
        where = [f"step {one.step}" if one.step is not None else "", one.label]
        where += [f"seed {one.seed}" if one.seed is not None else "", one.file]
        where += [f"byte {one.byte}" if one.byte is not None else ""]
        lines.append(f"  first difference: {', '.join(word for word in where if word)}")
        width = max(len(stored), len(here)) + 1
        lines += [f"  {stored + ':':{width}} {one.stored}", f"  {here + ':':{width}} {one.here}"]
    return lines
