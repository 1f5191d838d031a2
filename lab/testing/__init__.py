"""The pytest plug-in for other projects: guests, arrays, and scenarios as tests.

Every pytest loads ``plugin`` if the package is installed, so ``plugin`` imports only pytest. It
imports the rest of the lab when a test first needs it.
"""

SHARED = "lab_shared"
"""Key of the directory that all workers of pytest-xdist share."""
