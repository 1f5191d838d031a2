"""Directories of matrix runs.

::

    MATRIX-TIME/night.json    the jobs and their results; lab.night/1
    MATRIX-TIME/matrix.yaml   a copy of the matrix file
    MATRIX-TIME/JOB.log       traceback of a job that a bug of the lab broke

The runs themselves are stored with all others.
"""

from __future__ import annotations

from typing import Final

from lab.capabilities.matrix.model import MatrixRun
from lab.host.system import paths
from lab.store.records import Records

MATRIX_RUNS: Final = Records(MatrixRun, "night.json", "matrix run", paths.nights)
