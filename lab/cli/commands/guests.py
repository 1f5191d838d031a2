"""``lab ps``, ``ssh``, ``console``, ``down``, ``gc``: running guests."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lab.cli import completion
from lab.cli.app import GUESTS, app
from lab.cli.options import GuestName, Json, console, print_json


@app.command(rich_help_panel=GUESTS)
def ps(as_json: Json = False) -> None:
    """List guests that are up.

    Examples:
        lab ps
    """
    from lab.report.terminal.text import guest_table
    from lab.run.guests import live

    rows = live()
    if as_json:
        print_json({"guests": rows})
    elif rows:
        console().print(guest_table(rows))
        for row in rows:
            if row["hint"]:
                typer.echo(row["hint"])
    else:
        typer.echo("No guest is up. `lab up scenario NAME` starts one.")


@app.command(rich_help_panel=GUESTS)
def ssh(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GUEST] [-- CMD…]",
            help="A guest, required if several are up. After --: a command to run there.",
            autocompletion=completion.guest_names,
            show_default=False,
        ),
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Log in as root instead of lab.")] = False,
) -> None:
    """Open a shell in a guest, or run a command there.

    A guest in virtual time is suspended while nobody is logged in.

    Examples:
        lab ssh
        lab ssh g1a2b3c -- cat /proc/mdstat
        lab ssh -- lsblk
    """
    from lab.core.errors import InputError
    from lab.run import guests

    given = words or []
    # The parser drops the "--" between guest and command, so it is taken from sys.argv.
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    names = given[: len(given) - len(behind)]
    if len(names) > 1:
        raise InputError(
            f"one guest at a time, not {' '.join(names)}",
            hint=f"a command follows --, as in: lab ssh {names[0]} -- {names[1]}",
        )
    name = names[0] if names else None
    raise typer.Exit(guests.ssh(name, behind, user="root" if root else "lab"))


@app.command("console", rich_help_panel=GUESTS)
def console_(
    guest: GuestName = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing as the log grows.")
    ] = False,
) -> None:
    """Print a guest's console log. Control characters are escaped.

    Examples:
        lab console
        lab console g1a2b3c --follow
    """
    from lab.run.guests import console_text

    for part in console_text(guest, follow=follow):
        sys.stdout.write(part)
        if follow:
            sys.stdout.flush()


@app.command(rich_help_panel=GUESTS)
def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GUEST…]",
            help="Guests by id, or by scenario. Default: all guests.",
            autocompletion=completion.guest_names,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop guests and remove their files.

    Examples:
        lab down
        lab down g1a2b3c
    """
    from lab.run.guests import take_down

    ended = take_down(names or [])
    if as_json:
        print_json({"ended": ended})
    else:
        typer.echo(f"Ended: {', '.join(ended)}" if ended else "No guest was up.")


@app.command(hidden=True)
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed. Remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The older spelling of `lab clean`, without its options.

    Examples:
        lab gc
        lab gc --dry-run
    """
    from lab.run.guests import collect

    removed = collect(dry_run=dry_run)
    if as_json:
        print_json({"removed": removed, "dry_run": dry_run})
    else:
        what = "Would be removed" if dry_run else "Removed"
        typer.echo(f"{what}: {', '.join(removed)}" if removed else "There is nothing to remove.")
