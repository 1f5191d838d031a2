"""JSON Schema of the documents that the lab reads and writes."""

from __future__ import annotations

from typing import Any

from lab.model.matrix import Matrix
from lab.model.result import Result
from lab.model.scenario import Scenario


def scenario_schema() -> dict[str, Any]:
    """Of a scenario file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }


def matrix_schema() -> dict[str, Any]:
    """Of a matrix of scenarios."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Matrix.model_json_schema(mode="validation"),
    }


def result_schema() -> dict[str, Any]:
    """Of ``lab.result/1``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Result.model_json_schema(by_alias=True, mode="serialization"),
    }
