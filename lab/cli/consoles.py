"""The console for all tables and texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from lab.core.printable import printable


class ShownConsole(Console):
    """Escapes control characters; rich itself prints most of them.

    It cuts no line. Only an identifier can be longer than a line.
    """

    piped: bool = False
    """Standard output is not a terminal: print each record on one line."""
    limit: int | None = None
    """Width in ``COLUMNS`` for piped output; ``None``: not set."""

    @override
    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*objects, **({"crop": False} | how))

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
