"""The command groups, one file each. Importing this package registers all of them in `app`."""

from lab.cli.app import app
from lab.cli.commands import (
    clusters,
    disks,
    doctor,
    guests,
    hunting,
    images,
    matrices,
    patching,
    pruning,
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
    "hunting",
    "images",
    "matrices",
    "patching",
    "pruning",
    "reporting",
    "reproducing",
    "results",
    "running",
    "scenarios",
    "schemas",
]
