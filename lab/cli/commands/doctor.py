"""``lab doctor``."""

from __future__ import annotations

import typer

from lab.cli.app import LOOK, app
from lab.cli.options import Json, console, print_json


@app.command(rich_help_panel=LOOK)
def doctor(as_json: Json = False) -> None:
    """Check this host, and print the command that fixes each problem.

    Examples:
        lab doctor
    """
    from lab.core.errors import EXIT_DONE, EXIT_TROUBLE
    from lab.host.doctor import findings
    from lab.report.terminal.text import doctor_table

    found = findings()
    if as_json:
        print_json({"findings": [f.as_data() for f in found]})
    else:
        console().print(doctor_table(found))
    broken = any(not f.good and f.needed for f in found)
    raise typer.Exit(EXIT_TROUBLE if broken else EXIT_DONE)
