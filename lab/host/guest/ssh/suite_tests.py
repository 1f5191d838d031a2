"""Finds the running test of a suite in the command's output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from lab.model.execution.events import TestStarted

_LINE: Final = re.compile(rb'\n--lab-- (\{"test": .*)\n')
"""Line that ``lab/plugins/guest_programs/suite.py`` writes."""
_LONGEST: Final = 1000
"""Longest such line in bytes."""


class SuiteTests:
    """Makes events from a command's output as it arrives."""

    def __init__(self, tell: Callable[[TestStarted], None]) -> None:
        self._tell = tell
        self._rest = b""

    def take(self, output: bytes) -> None:
        """Take the next bytes; emit an event for each complete line about a test."""
        text = self._rest + output
        end = 0
        for line in _LINE.finditer(text):
            end = line.end()
            try:
                self._tell(TestStarted.model_validate_json(line[1]))
            except ValidationError:
                continue  # similar output of the suite itself
        self._rest = text[max(end, len(text) - _LONGEST) :]
