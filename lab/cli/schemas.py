"""``lab schema``: scenario, matrix, result."""

from __future__ import annotations

from lab.cli.app import schema
from lab.cli.options import print_json


@schema.command()
def scenario() -> None:
    """Print the JSON Schema of a scenario file.

    Example: lab schema scenario > scenario.schema.json
    """
    from lab.app.schema import scenario_schema

    print_json(scenario_schema())


@schema.command()
def matrix() -> None:
    """Print the JSON Schema of a matrix of scenarios.

    Example: lab schema matrix > matrix.schema.json
    """
    from lab.app.schema import matrix_schema

    print_json(matrix_schema())


@schema.command()
def result() -> None:
    """Print the JSON Schema of a result document.

    Example: lab schema result
    """
    from lab.app.schema import result_schema

    print_json(result_schema())
