"""Shell completion of names and of the keys of ``--set``.

It imports no model, since that would take too long for a key press. Keys come from the JSON Schema
next to the scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from lab.core.errors import LabError

_SETTABLE: Final = (
    *("guest", "disks", "array", "filesystem", "matrix", "cases", "profile", "trials", "timeout"),
)
_LISTS: Final = ("workloads", "faults")


def scenario_names(incomplete: str) -> list[str]:
    """Return names of scenarios. The shell itself completes files."""
    from lab.plugins import catalog

    return [name for name in catalog.scenarios() if name.startswith(incomplete)]


def matrix_names(incomplete: str) -> list[str]:
    """Return names of matrices."""
    from lab.plugins import catalog

    return [name for name in catalog.matrices() if name.startswith(incomplete)]


def image_names(incomplete: str) -> list[str]:
    """Return names of images, built or not."""
    from lab.host.system import paths
    from lab.plugins import catalog

    try:
        built = {
            path.name.rpartition("-")[0]  # without the recipe's digest
            for path in paths.images().iterdir()
            if path.name[0] != "."
        }
    except OSError:
        built = set()
    known = sorted(built | set(catalog.image_recipes()))
    return [name for name in known if name.startswith(incomplete)]


def guest_names(incomplete: str) -> list[str]:
    """Return ids of running guests."""
    from lab.host.guest import registry as guests

    try:
        return [record.id for record in guests.every() if record.id.startswith(incomplete)]
    except LabError:
        return []


def run_names(incomplete: str) -> list[str]:
    """Return names of runs: ``last``, ``last~1``, their scenarios, and ids, newest first."""
    from lab.host.system import paths
    from lab.store import names

    try:
        found = [path.name for path in paths.runs().iterdir() if path.name[0] != "."]
    except OSError:
        found = []
    found.sort(key=names.age, reverse=True)
    scenarios = dict.fromkeys(names.parts(name)[0] for name in found)
    relative = ["last", "last~1"] if len(found) > 1 else ["last"]
    known = dict.fromkeys([*relative, *scenarios, *found])
    return [name for name in known if name.startswith(incomplete)]


def matrix_run_names(incomplete: str) -> list[str]:
    """Return names of matrix runs: ``last``, ``last~1``, their matrices, and ids, newest first."""
    from lab.host.system import paths

    return _kept(paths.nights(), incomplete)


def bisection_names(incomplete: str) -> list[str]:
    """Return names of bisections: ``last``, their claims, and ids, newest first."""
    from lab.host.system import paths

    return _kept(paths.bisects(), incomplete)


def _kept(directory: Path, incomplete: str) -> list[str]:
    from lab.store import names

    try:
        found = [path.name for path in directory.iterdir() if path.name[0] != "."]
    except OSError:
        found = []
    found.sort(key=names.age, reverse=True)
    first = dict.fromkeys(names.parts(name)[0] for name in found)
    return [name for name in ("last", *first, *found) if name.startswith(incomplete)]


def export_forms(incomplete: str) -> list[str]:
    """Return the export formats."""
    forms = ("csv", "parquet", "fio", "junit", "summary", "openmetrics", "bundle", "script")
    return [form for form in forms if form.startswith(incomplete)]


def set_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return keys of ``--set`` with descriptions; after ``=``, the values of the key."""
    from lab.plugins import catalog

    try:
        schema = json.loads(catalog.schema_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    keys = {name: node for part in _SETTABLE for name, node in _leaves(schema, part)}
    key, equals, value = incomplete.partition("=")
    if equals:
        choices = _choices(schema, keys.get(key, {}))
        if key == "disks.model":
            choices += [f"profile:{name}" for name in catalog.profiles()]
        return [(f"{key}={choice}", "") for choice in choices if choice.startswith(value)]
    found = [(name, _first_line(node)) for name, node in keys.items()]
    found += [(name, "") for name in _named(_document(context))]
    return [(name, text) for name, text in found if name.startswith(incomplete)]


def profile_names(context: typer.Context, incomplete: str) -> list[str]:
    """Profiles of the scenario on the command line."""
    found = _document(context).get("profiles")
    return [name for name in found or () if str(name).startswith(incomplete)]


def _leaves(schema: dict[str, Any], part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every dotted name below a field, and its schema."""
    waiting = [(part, schema["properties"][part])]
    while waiting:
        name, node = waiting.pop(0)
        inner = next((n["properties"] for n in _forms(schema, node) if "properties" in n), None)
        if inner is None or part == "matrix":
            yield name, node
        else:
            waiting = [(f"{name}.{key}", below) for key, below in inner.items()] + waiting


def _forms(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the alternatives of a schema node, with references resolved."""
    if "$ref" in node:
        yield from _forms(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    elif "anyOf" in node:
        for form in node["anyOf"]:
            yield from _forms(schema, form)
    else:
        yield node


def _choices(schema: dict[str, Any], node: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for form in _forms(schema, node):
        found += [str(v) for v in form.get("enum", [form["const"]] if "const" in form else [])]
        found += ["true", "false"] if form.get("type") == "boolean" else []
    return found


def _first_line(node: dict[str, Any]) -> str:
    return str(node.get("description", "")).partition("\n")[0]


def _document(context: typer.Context) -> dict[str, Any]:
    """Return the data of the scenario on the command line, with what it extends, or nothing."""
    from lab.compile.scenario.extends import inherited
    from lab.core.yaml import read_file
    from lab.plugins import catalog

    # With an option that has no value yet, click has not assigned the arguments.
    scenario = context.params.get("name") or next(iter(context.args), "")
    try:
        path = catalog.scenario_path(str(scenario))
        return inherited(read_file(path), path, lambda document, _: document).data
    except LabError:
        return {}


def _named(data: dict[str, Any]) -> list[str]:
    """Keys of the workloads and faults of a scenario."""
    return [
        f"{kind}.{one['name']}.{key}"
        for kind in _LISTS
        for one in data.get(kind) or ()
        if isinstance(one, dict) and "name" in one
        for key in one
        if key != "name"
    ]
