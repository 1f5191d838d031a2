"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings


def examples(thorough: int) -> settings:
    """So many under the profile of `make test`, and as much fewer as the profile in use has."""
    return settings(max_examples=max(10, thorough * settings().max_examples // 100))
