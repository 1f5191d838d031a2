"""Finds the folders of ``lab/capabilities``: what the lab can do beside running scenarios.

A folder with a ``command.py`` is a capability. Nothing is registered: a folder that is removed
takes its commands along. A command may use what another capability offers, where that is there.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import lab


@cache
def names() -> tuple[str, ...]:
    """Return the names of all capabilities."""
    place = Path(lab.__file__).parent / "capabilities"
    return tuple(sorted(path.parent.name for path in place.glob("*/command.py")))


def add_commands() -> None:
    """Import the commands of all capabilities, which adds them to `lab.cli.app.app`."""
    for name in names():
        part(name, "command")


def part(name: str, module: str) -> ModuleType:
    """Return a module of a capability; `names` tells whether the capability is there."""
    return import_module(f"lab.capabilities.{name}.{module}")
