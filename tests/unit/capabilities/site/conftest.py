"""What tests of the site share."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.fakes import EMPTY_SVG


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are empty, which saves V8's start and each drawing: as `UNDRAWN`, in this process."""
    drawing = SimpleNamespace(vegalite_to_svg=lambda spec: EMPTY_SVG)
    monkeypatch.setitem(sys.modules, "vl_convert", drawing)
    monkeypatch.setattr("lab.capabilities.site.page._vega", str)  # which remembers the first one
