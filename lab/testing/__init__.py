"""The pytest plug-in for other projects: guests, arrays, and scenarios as tests.

Every pytest that finds the package installed loads ``plugin``, so that imports nothing but pytest.
The rest of the lab is imported when a test first needs it.
"""

SHARED = "lab_shared"
"""Key under which a worker of pytest-xdist finds the directory shared by all workers."""
