"""Certificates that are half made are found and removed."""

from __future__ import annotations

import pytest

from lab.capabilities.cluster import tls
from lab.host.system import paths
from tests.unit.test_leftovers import DATA, removed_if_killed

pytestmark = pytest.mark.usefixtures("lab_home")


def certificates() -> None:
    tls._made = lambda: (DATA, DATA, DATA)
    tls.make(paths.tls())


def test_certificates_are_removed() -> None:
    removed_if_killed(certificates, large=True)
