"""The command groups, and how help is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from lab import __version__

_HELP = """A virtual test lab for Linux software RAID.

A scenario is a file. It names a guest image, the number and speed of disks, an md array and the
workloads to run. The lab boots the guest under QEMU, builds the array, runs the workloads, and
compares the results with published values and with theory.
"""
_EPILOG = """
Examples:
  lab doctor
  lab scenario list
  lab up scenario raid5-parity-last

Exit status:
  0    done
  1    a claim was refuted, or a cell failed
  2    bad input: nothing was booted
  3    this host or the lab failed
  4    a cell in virtual time did not repeat
  130  stopped by Ctrl-C
"""
LOOK: Final = "Look"
RUN: Final = "Run"
RESULTS: Final = "Results"
GUESTS: Final = "Guests"
IMAGES: Final = "Images"
DISKS: Final = "Disks"
CLUSTER: Final = "Cluster"
SECTIONS: Final = (LOOK, RUN, RESULTS, GUESTS, IMAGES, DISKS, CLUSTER)
"""Order of the sections in ``lab --help``."""
_EXAMPLES: Final = "\n\nExamples:\n"


def examples_of(text: str | None) -> tuple[str, list[str]]:
    """Split a command's help into the text without examples, and the examples."""
    about, _, examples = inspect.cleandoc(text or "").partition(_EXAMPLES)
    return about, [line.strip() for line in examples.splitlines() if line.strip()]


class Command(TyperCommand):
    """A command whose help ends with its examples, one per line."""

    @override
    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        whole, (self.help, _) = self.help, examples_of(self.help)
        super().format_help_text(ctx, formatter)
        self.help = whole

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _, examples = examples_of(self.help)
        with formatter.section("Examples"):
            _verbatim(formatter, examples)


class Group(TyperGroup):
    """A group whose help lists commands in sections, with their subcommands."""

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            text = command.get_short_help_str(limit=1000)
            if below := getattr(command, "commands", None):
                text = f"{text.rstrip('.')}: {', '.join(below)}"
            section = getattr(command, "rich_help_panel", None)
            found.setdefault(section or "Commands", []).append((name, text))
        for section, rows in found.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows, col_max=12)

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _verbatim(formatter, (self.epilog or "").splitlines())


def _verbatim(formatter: Any, lines: list[str]) -> None:
    """Write lines without wrapping, so that they can be pasted."""
    for line in lines:
        formatter.write(f"{'':>{formatter.current_indent}}{line}".rstrip() + "\n")


class Commands(typer.Typer):
    """A typer application with this help format."""

    def __init__(self, **how: Any) -> None:
        super().__init__(cls=Group, no_args_is_help=True, rich_markup_mode=None, **how)

    @override
    def command(self, *names: Any, **how: Any) -> Callable[[Any], Any]:
        return super().command(*names, **({"cls": Command} | how))


app = Commands(
    name="lab",
    help=_HELP,
    epilog=_EPILOG,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lab {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print a traceback for every error.")
    ] = False,
) -> None:
    """Options of every command."""
    del version, debug


def _group(name: str, section: str, text: str) -> Commands:
    group = Commands(help=text)
    app.add_typer(group, name=name, rich_help_panel=section)
    return group


scenario = _group("scenario", LOOK, "Inspect scenarios without booting a guest.")
matrix = _group("matrix", LOOK, "Inspect matrices of scenarios, images and kernels.")
schema = _group("schema", LOOK, "Print the JSON Schema of a file format.")
up = _group("up", RUN, "Run a scenario and leave its guest up.")
run = _group("run", RUN, "Run a scenario or a matrix, and remove all guests.")
results = _group("results", RESULTS, "Show, compare and export earlier runs.")
image = _group("image", IMAGES, "Build, import and remove guest images.")
kernel = _group(
    "kernel", IMAGES, "List and fetch kernels and mdadm of Debian's archives, and build your own."
)
disk = _group("disk", DISKS, "List and measure real disks.")
cluster = _group("cluster", CLUSTER, "Run cells on other machines, with dask.distributed.")
