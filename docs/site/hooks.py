"""What mkdocs calls while it builds the site."""

from __future__ import annotations

import re
from typing import Any, Final

CODE: Final = re.compile(r"<code>[^<]*</code>")
OPTION: Final = re.compile(r"(?<![^\s>])-[\w=-]{2,30}")


def on_page_content(html: str, **_: Any) -> str:
    """The page, in which no line breaks inside a command's option."""
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
