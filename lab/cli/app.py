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

Guests with disks of any speed, md arrays, workloads and faults. A scenario is a file. It names a
guest image, the number and speed of disks, an md array and the workloads to run. The lab boots the
guest, builds the array, runs the workloads, and compares the results with published values and with
theory.
"""
_EPILOG = """
Examples:
  lab doctor
  lab scenario list
  lab up scenario raid5-parity-last
"""
_EXIT: Final = """\
Exit status: 0 done, 1 a claim was refuted or a cell failed, 2 bad input, 3 this
host or the lab failed, 4 virtual time was not repeated, 130 stopped by Ctrl-C.
"""
FIRST: Final = "What most people use"
LOOK: Final = "Look"
BUGS: Final = "Find bugs"
RESULTS: Final = "Results"
GUESTS: Final = "Guests"
IMAGES: Final = "Images"
HARDWARE: Final = "Hardware"
SECTIONS: Final = (FIRST, GUESTS, LOOK, RESULTS, IMAGES, HARDWARE, BUGS)
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
        for section, rows in self.sections(ctx).items():
            with formatter.section(section):
                formatter.write_dl(rows, col_max=12)

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return name and text of each command that is not hidden, by section."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            text = command.get_short_help_str(limit=1000)
            if below := getattr(command, "commands", None):
                shown = (word for word, one in below.items() if not one.hidden)
                text = f"{text.rstrip('.')}: {', '.join(shown)}"
            section = getattr(command, "rich_help_panel", None)
            found.setdefault(section or "Commands", []).append((name, text))
        return {section: rows for section, rows in found.items() if rows}

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _verbatim(formatter, (self.epilog or "").splitlines())


class Root(Group):
    """All commands, on one screen: 24 lines of 80 columns."""

    @override
    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text = "`lab COMMAND --help` has options and examples; begin with `lab doctor`."
        about = (self.help or "").partition("\n")[0]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{about} {text}")

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _verbatim(formatter, ["", *_EXIT.splitlines()])

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        options = [option for p in self.get_params(ctx) for option in p.opts[:1]]
        formatter.write_dl([("Options", "  ".join(options))])

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = self.sections(ctx)
        first = sorted(sections.pop(FIRST, []))
        with formatter.section(FIRST):
            formatter.write_dl([(name, text.partition(":")[0]) for name, text in first])
        formatter.write_paragraph()
        formatter.write_dl([(title, "  ".join(dict(rows))) for title, rows in sections.items()])


class ByKind(Group):
    """A group whose command may be left out: a file, or a name, says which one it is.

    Without a name, options belong to the command ``machine``.
    """

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self._kind(args), *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def _kind(self, args: list[str]) -> str:
        from lab.plugins import catalog

        if args[0].startswith("-") and "machine" in self.commands:
            return "machine"
        named = next((word for word in args if not word.startswith("-")), "")
        if "matrix" in self.commands and catalog.is_matrix(named):
            return "matrix"
        return "scenario"


def _verbatim(formatter: Any, lines: list[str]) -> None:
    """Write lines without wrapping, so that they can be pasted."""
    for line in lines:
        formatter.write(f"{'':>{formatter.current_indent}}{line}".rstrip() + "\n")


class Commands(typer.Typer):
    """A typer application with this help format."""

    def __init__(self, cls: type[Group] = Group, **how: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, rich_markup_mode=None, **how)

    @override
    def command(self, *names: Any, **how: Any) -> Callable[[Any], Any]:
        return super().command(*names, **({"cls": Command} | how))


app = Commands(
    name="lab",
    cls=Root,
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


def group(name: str, section: str, text: str, cls: type[Group] = Group) -> Commands:
    """Return a new group of commands of `app`."""
    made = Commands(cls=cls, help=text)
    app.add_typer(made, name=name, rich_help_panel=section)
    return made


scenario = group("scenario", LOOK, "Inspect scenarios without booting a guest.")
schema = group("schema", LOOK, "Print the JSON Schema of a file format.")
up = group(
    "up", FIRST, "Start a guest with disks, or run a scenario and leave its guest up.", ByKind
)
run = group("run", FIRST, "Run a scenario or a matrix, and remove all guests.", ByKind)
results = group("results", RESULTS, "Show, compare and export earlier runs.")
image = group("image", IMAGES, "Build, import and remove guest images.")
kernel = group(
    "kernel", IMAGES, "List and fetch kernels and mdadm of Debian's archives, and build your own."
)
