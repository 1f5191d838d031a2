"""The command groups, a file each. To import this is to have them all in `app`."""

from lab.cli.app import app
from lab.cli.commands import (
    clusters,
    disks,
    doctor,
    guests,
    images,
    matrices,
    reporting,
    reproducing,
    results,
    running,
    scenarios,
    schemas,
)

__all__ = [
    "app",
    "clusters",
    "disks",
    "doctor",
    "guests",
    "images",
    "matrices",
    "reporting",
    "reproducing",
    "results",
    "running",
    "scenarios",
    "schemas",
]
