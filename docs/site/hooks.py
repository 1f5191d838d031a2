"""Hooks for mkdocs."""

from __future__ import annotations

import re
from typing import Any, Final

CODE: Final = re.compile(r"<code>[^<]*</code>")
OPTION: Final = re.compile(r"(?<![^\s>])-[\w=-]{2,30}")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with options of commands that are never broken over lines."""
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
