"""Programs of the lab's own that run in a guest, by the guest's python3 (3.9 or newer).

They are sent as their own source text and import nothing but the standard library; the lab itself
never imports them. Each takes its arguments as one JSON object and prints one as its last line.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from lab.model.execution.procedure import words


@cache
def _source(program: str) -> str:
    return files(__name__).joinpath(f"{program}.py").read_text(encoding="utf-8")


def command(program: str, arguments: dict[str, Any]) -> str:
    """One shell command that runs ``PROGRAM.py`` of this package with these arguments."""
    return words("python3", "-c", _source(program), json.dumps(arguments))
