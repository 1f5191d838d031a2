"""Makes the manual page ``lab(1)`` from the commands' help."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from lab import __version__


def man_page(command: Any, statuses: dict[int, str]) -> str:
    """Return the page in roff, from a click command and the meaning of its exit statuses."""
    about, _, rest = inspect.cleandoc(command.help).partition("\n\n")
    parts = [
        f'.TH LAB 1 "" "lab {__version__}" "User Commands"',
        f".SH NAME\nlab \\- {_roff(about[0].lower() + about[1:].rstrip('.'))}",
        ".SH SYNOPSIS\n.B lab\n[\\fIoption\\fR ...] \\fIcommand\\fR [\\fIargument\\fR ...]",
        f".SH DESCRIPTION\n{_paragraphs(rest)}",
        f".SH OPTIONS\n{_options(command)}",
        ".SH COMMANDS",
        *(
            f".SS {_roff(path)}\n{_paragraphs(one.help)}\n{_options(one)}"
            for path, one in _all(command)
        ),
        ".SH EXIT STATUS",
        *(f".TP\n.B {status}\n{_roff(words)}." for status, words in statuses.items()),
        f".SH EXAMPLES\n{_examples(command.epilog)}",
        ".SH SEE ALSO\n.BR mdadm (8),\n.BR md (4),\n.BR fio (1),\n.BR qemu-system-x86_64 (1)",
    ]
    return "\n".join(part for part in parts if part.strip()) + "\n"


def _all(command: Any, path: str = "lab") -> Iterator[tuple[str, Any]]:
    for name, below in sorted(command.commands.items()):
        if hasattr(below, "commands"):
            yield from _all(below, f"{path} {name}")
        elif not below.hidden:
            yield f"{path} {name}", below


def metavar(option: Any) -> str:
    """Return the placeholder of the option's value; empty for a flag."""
    flag = option.is_flag or option.count
    return option.metavar or ("" if flag else option.name.upper().replace("_", "-"))


def _options(command: Any) -> str:
    entries = []
    for option in command.params:
        if getattr(option, "hidden", False):
            continue
        if option.param_type_name == "argument":
            head = f"\\fI{_roff(option.metavar or option.name.upper())}\\fR"
        else:
            names = ", ".join(
                f"\\fB{_roff(name)}\\fR" for name in (*option.opts, *option.secondary_opts)
            )
            value = metavar(option)
            head = f"{names} \\fI{_roff(value)}\\fR" if value else names
        entries.append(f".TP\n{head}\n{_roff(option.help or '')}")
    return "\n".join(entries)


def _paragraphs(text: str | None) -> str:
    """Return roff with a paragraph for each paragraph of text; indented lines are not filled."""
    made = []
    for part in inspect.cleandoc(text or "").split("\n\n"):
        words, _, listed = f"\n{part}".partition("\n  ")
        if words.strip():
            made.append(f".PP\n{_roff(' '.join(words.split()))}")
        if listed:
            made.append(f".RS 4\n{_lines(listed)}\n.RE")
    return "\n".join(made)


def _examples(epilog: str | None) -> str:
    """Return the commands of the first part."""
    return _lines(inspect.cleandoc(epilog or "").partition("\n\n")[0].partition("\n")[2])


def _lines(text: str) -> str:
    """Return lines that are not filled; the shell continues those too long for 80 columns."""
    broken = [textwrap.wrap(line.strip(), 66, break_on_hyphens=False) for line in text.splitlines()]
    return "\n".join([".nf", *(_roff(" \\\n  ".join(line)) for line in broken), ".fi"])


def _roff(text: str) -> str:
    """Return ASCII text without roff requests, with hyphens that can be copied."""
    plain = text.replace("``", "`").replace("\\", "\\e").replace("-", "\\-")
    plain = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in plain)
    return "\\&" + plain if plain[:1] in (".", "'") else plain
