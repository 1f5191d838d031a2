"""Writes a run's values as CSV or Parquet, with duckdb, and the dictionary of the columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab.core.errors import HostError, InputError
from lab.core.printable import cell_text
from lab.host.system import untrusted


class Column(NamedTuple):
    """A column of the table of a run's values."""

    name: str
    type: str
    """``string``, ``number`` or ``integer``, as in Table Schema."""
    unit: str
    """Empty: it has none."""
    meaning: str


IN_UNIT: Final = "the one in the column `unit`"
COLUMNS: Final = (
    Column("run", "string", "", "Id of the run."),
    Column("scenario", "string", "", "Name of the scenario."),
    Column("started", "string", "", "When the run began: ISO 8601, UTC."),
    Column(
        "accelerator",
        "string",
        "",
        "`kvm`, `tcg` (emulation) or `native` (a program).",
    ),
    Column("qemu", "string", "", "Version of QEMU."),
    Column("kernel", "string", "", "Release of the guest's kernel."),
    Column("mdadm", "string", "", "Version of mdadm in the guest."),
    Column("cell", "string", "", "Id of the cell, a point of the scenario's matrix."),
    Column("outcome", "string", "", "`done`, `failed`, `lost` or `skipped`."),
    Column("workload", "string", "", "Name of the workload; empty: the cell has no values."),
    Column("tool", "string", "", "Program that measured, such as `fio`."),
    Column("disk", "string", "", "Serial of the disk that was counted; empty: all, or a tool."),
    Column("metric", "string", "", "Name of the metric, such as `throughput`."),
    Column("unit", "string", "", "Unit of the values: `B/s`, `1/s` (per second), `s`, `B`, `1`."),
    Column("trial", "integer", "", "Number of the trial, from 1."),
    Column("value", "number", IN_UNIT, "Measured value of this trial."),
    Column("median", "number", IN_UNIT, "Median of all trials of the cell; the same in each row."),
    Column("low", "number", IN_UNIT, "Lower end of the 95 % interval of the median, if known."),
    Column("high", "number", IN_UNIT, "Upper end of this interval, if known."),
    Column("predicted", "number", IN_UNIT, "What theory predicts, if it can."),
)
"""Columns of every table. Axes of the scenario come between ``outcome`` and ``workload``."""
_TYPES: Final = {"string": "varchar", "number": "double", "integer": "bigint"}
_FIXED: Final = {column.name: _TYPES[column.type] for column in COLUMNS}


def dictionary(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str], path: Path) -> str:
    """Return the columns of the table in ``path`` as a Data Package (JSON), with unit and meaning.

    ``units``: of columns that are axes.
    """
    known = {column.name: column for column in COLUMNS}
    words = {"boolean": "boolean", "bigint": "integer", "double": "number", "varchar": "string"}
    fields = []
    for name, kind in _shape(rows).items():
        about = known.get(name) or Column(name, "", units.get(name, ""), f"Axis `{name}`.")
        one = {"name": name, "type": words[kind], "description": about.meaning}
        fields.append(one | ({"unit": about.unit} if about.unit else {}))
    document = {"resources": [{"path": path.name, "schema": {"fields": fields}}]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


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
    names = rows[0] if rows else ()
    return {n: _FIXED.get(n) or _type([row[n] for row in rows]) for n in names}


def _type(values: Sequence[Any]) -> str:
    known = {type(value) for value in values} - {type(None)}
    if known == {int} and max(abs(value or 0) for value in values) >= 2**63:
        return "double"
    for accepted, name in (({bool}, "boolean"), ({int}, "bigint"), ({int, float}, "double")):
        if known and known <= accepted:
            return name
    return "varchar"
