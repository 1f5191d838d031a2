"""The command that runs one cell of a stored run again."""

from __future__ import annotations

import json
import shlex

from lab.core.printable import printable
from lab.store.runs import StoredCell, StoredRun


def again(
    stored: StoredCell, first: StoredCell, about: StoredRun, scenario: str, lab: str = "lab"
) -> str:
    """Return the command; ``first``: the cell of the first seed of its point.

    ``lab`` and ``scenario``: what to type for them, quoted for a shell.
    """
    sets = [*about.overrides, "matrix={}"]
    sets += [f"{name}={json.dumps(value)}" for name, value in stored.cell.axes.items()]
    words = [word for text in sets for word in ("--set", text)]
    if stored.cell.seed != first.cell.seed:
        words += ["--seed", str(stored.cell.seed)]
    words += ["--trials", str(stored.cell.trials)]
    return printable(f"{lab} run scenario {scenario} {shlex.join(words)}")
