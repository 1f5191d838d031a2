"""The command groups, one file each. Importing this package registers all of them in `app`."""

from lab.cli.app import app
from lab.cli.commands import (
    bisecting,
    clusters,
    disks,
    doctor,
    guests,
    hunting,
    images,
    kernels,
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
    "bisecting",
    "clusters",
    "disks",
    "doctor",
    "guests",
    "hunting",
    "images",
    "kernels",
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
