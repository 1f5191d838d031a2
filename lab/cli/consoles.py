"""The console of all tables and pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from lab.core.printable import printable


class ShownConsole(Console):
    """Escapes control characters, most of which rich prints.

    No line is cut: only an identifier is longer than a line.
    """

    piped: bool = False
    """Standard output is no terminal: a record stays on its line."""
    limit: int | None = None
    """The width that ``COLUMNS`` gives a pipe."""

    @override
    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*objects, **({"crop": False} | how))

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
