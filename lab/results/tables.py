"""Writes rows as CSV or Parquet, with duckdb."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.errors import HostError, InputError
from lab.core.printable import cell_text
from lab.host.system import untrusted


def write_table(rows: Sequence[Mapping[str, Any]], path: Path, form: str) -> None:
    """Write rows as ``csv`` or ``parquet``; all rows have the same keys, and ``None`` is empty.

    No text in a CSV file is a formula for a spreadsheet.
    """
    import duckdb

    if form == "csv":
        rows = [{_shown(k): _shown(v) for k, v in row.items()} for row in rows]
    nothing_loaded: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    with untrusted.new(path) as made, duckdb.connect(config=nothing_loaded) as database:
        lines = made.with_name("rows")
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        try:
            table = database.read_json(str(lines), format="newline_delimited", columns=_shape(rows))
            if form == "parquet":
                table.write_parquet(str(made), compression="zstd")
            else:
                table.write_csv(str(made), header=True)
        except duckdb.IOException as error:
            raise HostError(f"'{path}' cannot be written: {error}") from error
        except duckdb.Error as error:
            raise InputError(f"the run cannot be a table: {error}") from error


def _shown(value: Any) -> Any:
    return cell_text(value) if isinstance(value, str) else value


def _shape(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a type for each column that fits all its values."""
    return {name: _type([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _type(values: Sequence[Any]) -> str:
    known = {type(value) for value in values} - {type(None)}
    if known == {int} and max(abs(value or 0) for value in values) >= 2**63:
        return "double"
    for accepted, name in (({bool}, "boolean"), ({int}, "bigint"), ({int, float}, "double")):
        if known and known <= accepted:
            return name
    return "varchar"
