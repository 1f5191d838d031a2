"""The list of runs. It imports no models, so that it is printed fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.report.content.plain_table import PlainTable, plain_table


def run_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab results list``."""
    table = plain_table("run", "cells", "holds", "refuted", "other", "state")
    for row in rows:
        table.add_row(
            row["id"],
            str(row["cells"])
            if row["ended"] == row["cells"]
            else f"{row['ended']} of {row['cells']}",
            str(row["holds"]),
            str(row["refuted"]),
            str(row["other"]),
            row["state"],
        )
    return table


def recorded_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about runs that were not judged here yet; empty: there is none."""
    runs = sum(not row["judged"] for row in rows)
    if not runs:
        return ""
    number = "1 run has" if runs == 1 else f"{runs} runs have"
    return f"{number} the verdicts recorded at the end; `lab results show RUN` judges again.\n"
