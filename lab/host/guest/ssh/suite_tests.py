"""Which test of a suite runs now: read from what its command prints while it prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from lab.model.execution.events import TestStarted

_LINE: Final = re.compile(rb'\n--lab-- (\{"test": .*)\n')
"""As ``lab/plugins/guest_programs/suite.py`` writes it."""
_LONGEST: Final = 1000
"""Bytes of such a line."""


class SuiteTests:
    """Turns a command's output, as it comes, into events."""

    def __init__(self, tell: Callable[[TestStarted], None]) -> None:
        self._tell = tell
        self._rest = b""

    def take(self, output: bytes) -> None:
        """The next bytes; tells a test for each line that is whole. Other lines are passed over."""
        text = self._rest + output
        end = 0
        for line in _LINE.finditer(text):
            end = line.end()
            try:
                self._tell(TestStarted.model_validate_json(line[1]))
            except ValidationError:
                continue  # the suite's own words
        self._rest = text[max(end, len(text) - _LONGEST) :]
