"""``lab schema``: scenario, matrix, result."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lab.cli.app import schema
from lab.cli.options import home, print_json


@schema.command()
def scenario(
    install: Annotated[
        bool,
        typer.Option("--install", help="Write it where 'lab scenario new' points editors to."),
    ] = False,
) -> None:
    """Print the JSON Schema of a scenario file.

    Examples:
        lab schema scenario > scenario.schema.json
        lab schema scenario --install
    """
    from lab.results.schema import install_scenario_schema, scenario_schema

    if install:
        sys.stdout.write(f"Written to {home(install_scenario_schema())}\n")
    else:
        print_json(scenario_schema())


@schema.command()
def result() -> None:
    """Print the JSON Schema of a result document.

    Examples:
        lab schema result
    """
    from lab.results.schema import result_schema

    print_json(result_schema())
