"""Shell completion of names and of the keys of ``--set``.

No model is imported: that would be too slow for a key press. Keys come from the JSON Schema beside
the scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import typer

from lab.core.errors import LabError

_SETTABLE: Final = ("guest", "disks", "array", "filesystem", "matrix", "trials", "timeout")
_LISTS: Final = ("workloads", "faults")


def scenario_names(incomplete: str) -> list[str]:
    """Names of scenarios; the shell completes files."""
    from lab.plugins import catalog

    return [name for name in catalog.scenarios() if name.startswith(incomplete)]


def matrix_names(incomplete: str) -> list[str]:
    """Names of matrices."""
    from lab.plugins import catalog

    return [name for name in catalog.matrices() if name.startswith(incomplete)]


def image_names(incomplete: str) -> list[str]:
    """Names of images, built or not."""
    from lab.host.system import paths
    from lab.plugins import catalog

    try:
        built = {
            path.name.rpartition("-")[0]  # from the recipe's digest
            for path in paths.images().iterdir()
            if path.name[0] != "."
        }
    except OSError:
        built = set()
    known = sorted(built | set(catalog.image_recipes()))
    return [name for name in known if name.startswith(incomplete)]


def guest_names(incomplete: str) -> list[str]:
    """Ids of guests that are up."""
    from lab.host.guest import registry as guests

    try:
        return [record.id for record in guests.every() if record.id.startswith(incomplete)]
    except LabError:
        return []


def run_names(incomplete: str) -> list[str]:
    """Names of runs: ``last``, ``last~1``, scenarios that were run, and ids, newest first."""
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
    """Names of matrix runs: ``last``, matrices that were run, and ids, newest first."""
    from lab.host.system import paths
    from lab.store import names

    try:
        found = [path.name for path in paths.nights().iterdir() if path.name[0] != "."]
    except OSError:
        found = []
    found.sort(key=names.age, reverse=True)
    matrices = dict.fromkeys(names.parts(name)[0] for name in found)
    return [name for name in ("last", *matrices, *found) if name.startswith(incomplete)]


def export_forms(incomplete: str) -> list[str]:
    """Export formats."""
    forms = ("csv", "parquet", "fio", "bundle", "junit")
    return [form for form in forms if form.startswith(incomplete)]


def set_keys(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Keys of ``--set`` with descriptions; after ``=``, the values of the key."""
    from lab.plugins import catalog

    try:
        schema = json.loads(catalog.schema_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    keys = {name: node for part in _SETTABLE for name, node in _leaves(schema, part)}
    key, equals, value = incomplete.partition("=")
    if equals:
        choices = _choices(schema, keys.get(key, {}))
        return [(f"{key}={choice}", "") for choice in choices if choice.startswith(value)]
    found = [(name, _first_line(node)) for name, node in keys.items()]
    # With an option that has no value yet, click has not assigned the arguments.
    scenario = context.params.get("name") or next(iter(context.args), "")
    found += [(name, "") for name in _named(scenario)]
    return [(name, text) for name, text in found if name.startswith(incomplete)]


def _leaves(schema: dict[str, Any], part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dotted name below a field, and its schema."""
    waiting = [(part, schema["properties"][part])]
    while waiting:
        name, node = waiting.pop(0)
        inner = next((n["properties"] for n in _forms(schema, node) if "properties" in n), None)
        if inner is None or part == "matrix":
            yield name, node
        else:
            waiting = [(f"{name}.{key}", below) for key, below in inner.items()] + waiting


def _forms(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives of a schema node, references resolved."""
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


def _named(scenario: object) -> list[str]:
    """Keys of the workloads and faults of a scenario file."""
    from lab.core.yaml import read_file
    from lab.plugins import catalog

    try:
        data = read_file(catalog.scenario_path(str(scenario))).data
    except LabError:
        return []
    return [
        f"{kind}.{one['name']}.{key}"
        for kind in _LISTS
        for one in data.get(kind) or ()
        if isinstance(one, dict) and "name" in one
        for key in one
        if key != "name"
    ]
