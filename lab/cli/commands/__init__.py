"""The commands of the core, one file per group; those of capabilities are found by their folders.

Importing this package adds all of them to `app`.
"""

from lab.cli.app import app
from lab.cli.capabilities import add_commands
from lab.cli.commands import (
    doctor,
    guests,
    images,
    kernels,
    reporting,
    results,
    running,
    scenarios,
    schemas,
)

add_commands()

__all__ = [
    "app",
    "doctor",
    "guests",
    "images",
    "kernels",
    "reporting",
    "results",
    "running",
    "scenarios",
    "schemas",
]
