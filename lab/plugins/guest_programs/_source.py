"""Runs a guest program by passing its source on the command line of python3."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from lab.model.execution.procedure import words


@cache
def _source(program: str) -> str:
    return files(__package__).joinpath(f"{program}.py").read_text(encoding="utf-8")


def command(program: str, arguments: dict[str, Any]) -> str:
    """Return a shell command that runs ``PROGRAM.py`` of this package with these arguments."""
    return words("python3", "-c", _source(program), json.dumps(arguments))
