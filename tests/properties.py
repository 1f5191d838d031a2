"""Number of examples for property tests."""

from __future__ import annotations

from hypothesis import settings


def examples(thorough: int) -> settings:
    """Return settings with this number of examples for `make test`, scaled for the current
    profile."""
    return settings(max_examples=max(10, thorough * settings().max_examples // 100))
