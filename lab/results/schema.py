"""JSON Schema of the lab's documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.core.errors import unwritable
from lab.host.system import files, paths
from lab.model.documented import document
from lab.model.result.document import Result
from lab.model.scenario.document import Scenario
from lab.plugins import catalog


def scenario_schema() -> dict[str, Any]:
    """Return the schema of a scenario file."""
    document()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }


def as_text(document: dict[str, Any]) -> str:
    """Return a document as text, for printing and for files."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def install_scenario_schema() -> Path:
    """Store the scenarios' schema where new scenarios expect it; return its path."""
    place = paths.schema() / catalog.SCHEMA
    text = as_text(scenario_schema())
    try:
        if place.is_file() and place.read_text(encoding="utf-8") == text:
            return place
    except OSError as error:
        raise unwritable(place, error) from error
    files.make_directory(place.parent)
    files.write(place, text)
    return place


def first_line(scenario: Path) -> str:
    """Return the comment that names the schema of the scenario in that file, for editors.

    It has the schema's name if that is in the same directory, as in a checkout. Otherwise it has
    the URI of the stored schema, which is written if missing.
    https://github.com/redhat-developer/yaml-language-server, "Using inlined schema".
    """
    if (scenario.parent / catalog.SCHEMA).is_file():
        place = catalog.SCHEMA
    else:
        place = install_scenario_schema().as_uri()
    return f"# yaml-language-server: $schema={place}\n"


def result_schema() -> dict[str, Any]:
    """Return the schema of ``lab.result/1``."""
    document()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Result.model_json_schema(by_alias=True, mode="serialization"),
    }
