"""All run directories at once, through duckdb: a metric over time, and tables for other programs.

Nothing is imported and no database is kept: ``result.json`` of every run is read where it lies.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lab.errors import InputError, unwritable
from lab.host import files
from lab.model.history import Point
from lab.store import RunStore

if TYPE_CHECKING:
    import duckdb

_DOCUMENTS: Final = """
create temp view documents as
select filename, try(decode(content)) as said,
       case when said is not null and json_valid(said) then said::json end as document
from read_blob(getvariable('files'))
"""
_POINTS: Final = """
with asked as (
  select parse_dirpath(filename) as place, document -> 'noise' as noise,
         unnest(from_json(document -> 'cells', '["json"]')) as stored
  from documents where parse_filename(filename) = 'run.json'
), kinds as (
  select place, cast(noise as varchar) as noise, stored ->> 'id' as id,
         cast(stored -> '$.cell.disks' as varchar) as disks
  from asked
), cells as (
  select parse_dirpath(filename) as place, document,
         unnest(from_json(document -> 'cells', '["json"]')) as cell
  from documents where document ->> 'schema' = 'lab.result/1'
), figures as (
  select place, document, cell ->> 'id' as id, cell,
         unnest(from_json(cell -> 'measurements', '["json"]')) as figure
  from cells
)
select document ->> '$.run.id' as run, document ->> '$.run.scenario' as scenario,
       document ->> '$.run.started' as started, id as cell,
       cast(cell -> 'axes' as varchar) as axes, figure ->> 'workload' as workload,
       figure ->> 'metric' as metric, figure ->> 'unit' as unit,
       cast(figure -> 'values' as varchar) as values,
       cast(figure ->> 'median' as double) as median, cast(figure ->> 'low' as double) as low,
       cast(figure ->> 'high' as double) as high, noise, disks
from figures left join kinds using (place, id)
order by started, run, cell, workload, metric
"""


def _connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, that loads nothing from the network."""
    import duckdb

    return duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )


def points(
    runs: Sequence[RunStore],
) -> tuple[list[Point], list[RunStore], list[RunStore]]:
    """Every figure in the results of these runs, the oldest first; the runs without any result; and
    those with a result whose ``run.json`` nobody can read.

    A result that is cut off, or not the lab's, is none.
    """
    files = [
        glob.escape(str(file))
        for run in runs
        for name in ("run.json", "result.json")
        if _is_text(file := run.directory / name)
        if os.access(file, os.R_OK) and file.is_file()
    ]
    if not files:
        return [], list(runs), []
    with _connect() as database:
        database.execute("set variable files = ?", [files])
        database.execute(_DOCUMENTS)
        good = database.execute(
            "select filename from documents"
            " where document ->> 'schema' = 'lab.result/1' or document ->> 'schema_' = 'lab.run/1'"
        ).fetchall()
        asked = database.execute(_POINTS)
        names = [column[0] for column in asked.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in asked.fetchall()]
    readable = {name for (name,) in good}
    missing = [run for run in runs if str(run.directory / "result.json") not in readable]
    doubtful = [
        run
        for run in runs
        if run not in missing and str(run.directory / "run.json") not in readable
    ]
    return [_point(row) for row in rows], missing, doubtful


def _is_text(path: Path) -> bool:
    """Whether the path can be told to a database: a name on disk is any bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _point(row: Mapping[str, Any]) -> Point:
    """A row; what a run knew of noise, and its disks, are not there where ``run.json`` is cut."""
    parsed = {name: json.loads(row[name] or "[]") for name in ("axes", "values", "noise", "disks")}
    kinds = {disk["model"] for disk in parsed["disks"] if disk["count"]}
    return Point.model_validate({**row, **parsed, "disks": "+".join(sorted(kinds))})


def write_table(rows: Sequence[Mapping[str, Any]], path: Path, form: str) -> None:
    """Write rows as ``csv`` or ``parquet``; every row has the same keys, and ``None`` is empty."""
    part = _part_of(path)
    lines = part.with_name(f"{part.name}.rows")
    try:
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with _connect() as database:
            shape = _shape(rows)
            table = database.read_json(str(lines), format="newline_delimited", columns=shape)
            if form == "parquet":
                table.write_parquet(str(part), compression="zstd")
            else:
                table.write_csv(str(part), header=True)
        files.publish(part, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        lines.unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _shape(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A type for each column that all of its values fit in."""
    return {name: _type({type(row[name]) for row in rows}) for name in rows[0]} if rows else {}


def _type(kinds: set[type]) -> str:
    known = kinds - {type(None)}
    for accepted, name in (({bool}, "boolean"), ({int}, "bigint"), ({int, float}, "double")):
        if known and known <= accepted:
            return name
    return "varchar"


def write_tree(tree: Mapping[str, str], directory: Path) -> list[Path]:
    """Write files by their names below a new directory, whole or not at all; their paths."""
    part = _part_of(directory)
    try:
        for name, text in tree.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
        files.publish(part, directory)
    except OSError as error:
        raise unwritable(directory, error) from error
    return [directory / name for name in tree]


def write_text(text: str, path: Path) -> None:
    """Write a new file, whole or not at all."""
    _part_of(path)
    files.write(path, text)


def _part_of(path: Path) -> Path:
    """A name beside a path that is not there yet."""
    if path.exists() or path.is_symlink():
        raise InputError(f"'{path}' is there already, and is not written over")
    if not path.absolute().parent.is_dir():
        raise InputError(f"'{path}' cannot be written: there is no directory '{path.parent}'")
    return path.with_name(f".{path.name}.{os.getpid()}.part")
