"""An independent validator accepts by the JSON Schemas what the lab accepts."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from jsonschema import Draft202012Validator

from lab.core.errors import InputError
from lab.core.yaml import Document, read_file, read_text, validate
from lab.model.result.document import Result
from lab.model.scenario.document import Scenario
from lab.plugins import catalog
from lab.results.documents import result_of
from lab.results.schema import result_schema, scenario_schema
from lab.run.plan import _NEW, prediction_of
from tests.fakes import SCENARIO, Cli, compiled_text, stored_run


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    Draft202012Validator.check_schema(scenario_schema())
    return Draft202012Validator(scenario_schema())


def base() -> dict[str, Any]:
    return deepcopy(read_text(SCENARIO, source="q.yaml").data)


def accepted(data: dict[str, Any]) -> bool:
    """Return whether the lab itself accepts it."""
    try:
        validate(Scenario, Document(source="q.yaml", data=data))
    except InputError:
        return False
    return True


def put(path: str, value: Any) -> dict[str, Any]:
    data = base()
    node: Any = data
    *parents, last = path.split("/")
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[int(last) if last.isdigit() else last] = value
    return data


def claim(**expect: Any) -> dict[str, Any]:
    return put("claims", [{"id": "c", "says": "s", "published": "10MB/s", "expect": expect}])


VALUE = {"workload": "write", "where": {"array.chunk": "64KiB", "disks.count": 5}}
GOOD = {
    "as it stands": base(),
    "size as a number": put("disks/size", 1024**3),
    "size with a space": put("disks/size", "1.5 GiB"),
    "rate per second": put("disks/throttle/total_bytes_per_second", "5MiB/s"),
    "operations": put("disks/throttle", {"total_operations_per_second": 100}),
    "disks in a list": put("disks", [{"count": 3, "size": "1GiB"}, {"model": "none"}]),
    "no array": put("array", "none"),
    "array of nothing": put("array", None),
    "level as a word": put("array/level", "raid6"),
    "chunk by default": put("array/chunk", None),
    "sysfs as a number": put("array/sysfs", {"stripe_cache_size": 1024, "sync_speed_max": "max"}),
    "memory": put("guest", {"memory": "1GiB", "kernel_arguments": ["nosmt"]}),
    "timeout as text": put("timeout", "5min"),
    "timeout as a number": put("timeout", 90),
    "any parameter of a tool": put("workloads/0/anything", {"deep": [1]}),
    "matrix": put(
        "matrix",
        {"array.chunk": ["64KiB", 131072, None], "exclude": [{"array.chunk": 131072}]},
    ),
    "empty matrix": put("matrix", {}),
    "include": put("matrix", {"array.chunk": ["64KiB"], "include": [{"array.chunk": "4KiB"}]}),
    "cases": put("cases", [{"array.chunk": "64KiB", "array.layout": None}, {}]),
    "profiles": put("profiles", {"published": {"disks.size": "1TiB", "matrix": {}}}),
    "a profile": put("profile", "published"),
    "size of the array": put("workloads/0/bs", "{stripe}"),
    "bound": claim(kind="bound", value=VALUE, near="10.7MB/s", within="7%"),
    "bound with numbers": claim(kind="bound", value=VALUE, at_least=1e7, at_most="2e7"[:1]),
    "ratio": claim(kind="ratio", of=VALUE, to=VALUE, at_least=0.97, at_most="103%"),
    "order": claim(kind="order", values=[VALUE, VALUE], margin="5%"),
    "monotonic": claim(kind="monotonic", value=VALUE, along="disks.count", direction="rising"),
}
BAD = {
    "unknown key": put("trails", 3),
    "unknown key below": put("array/layuot", "x"),
    "size in bananas": put("disks/size", "20 bananas"),
    "bare unit": put("disks/size", "5M"),
    "negative trials": put("trials", -1),
    "array as a word": put("array", "md"),
    "no title": {k: v for k, v in base().items() if k != "title"},
    "workload without a tool": put("workloads", [{"name": "write"}]),
    "axis without values": put("matrix", {"array.chunk": []}),
    "axis of one value": put("matrix", {"array.chunk": 1}),
    "unknown expectation": claim(kind="guess", value=VALUE),
    "cache mode": put("disks/cache", "sometimes"),
    "case of a list": put("cases", [{"array.chunk": ["64KiB"]}]),
    "include of one": put("matrix", {"include": {"array.chunk": "4KiB"}}),
    "profile without fields": put("profiles", {"published": "1TiB"}),
    "set of a list": put("set", ["disks.size=1TiB"]),
    "time in fortnights": put("timeout", "2 fortnights"),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_the_lab_accepts_the_schema_accepts(schema: Draft202012Validator, case: str) -> None:
    assert accepted(GOOD[case])
    assert [e.message for e in schema.iter_errors(GOOD[case])] == []


@pytest.mark.parametrize("case", BAD)
def test_what_the_schema_refuses_the_lab_refuses(schema: Draft202012Validator, case: str) -> None:
    assert not schema.is_valid(BAD[case])
    assert not accepted(BAD[case])


def test_every_scenario_that_comes_with_the_lab_is_valid(schema: Draft202012Validator) -> None:
    documents = [read_file(path) for path in catalog.scenarios().values()]
    documents.append(read_text(_NEW, source="new.yaml"))
    assert len(documents) > 1
    for document in documents:
        assert [e.message for e in schema.iter_errors(document.data)] == [], document.source


def test_what_extends_another_needs_no_title(schema: Draft202012Validator) -> None:
    short = {"extends": "raid5-parity-last", "set": {"disks.count": 7}}
    assert schema.is_valid(short)
    assert not schema.is_valid({"set": {"disks.count": 7}})
    assert not schema.is_valid({**short, "extends": 1})


def test_every_field_says_what_it_is_for_or_has_a_name_that_does() -> None:
    properties = scenario_schema()["properties"]
    assert set(properties) == set(Scenario.model_fields)


def test_results_and_predictions_are_valid(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(result_schema())
    validator = Draft202012Validator(result_schema())
    results = [result_of(stored_run(tmp_path)), prediction_of(compiled_text(tmp_path, SCENARIO))]
    for result in results:
        data = result.model_dump(mode="json", by_alias=True)
        assert [e.message for e in validator.iter_errors(data)] == []
        assert Result.model_validate(data) == result
        assert set(data) == {"schema", "run", "answer", "environment", "cells", "claims"}
        assert not validator.is_valid({**data, "more": 1})
        assert not validator.is_valid({**data, "schema": "lab.result/2"})


MODELINE = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")


def editors_schema(scenario: Path) -> Path:
    """Return the file that an editor finds by a scenario's first line."""
    found = MODELINE.match(scenario.read_text(encoding="utf-8"))
    assert found is not None, scenario
    place = found[1]
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return scenario.parent / place


SHIPPED = sorted(catalog.schema_path().parent.glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_an_editor_finds_the_schema_of_each_scenario(
    path: Path, schema: Draft202012Validator
) -> None:
    kept = editors_schema(path)
    assert kept == catalog.schema_path()
    assert json.loads(kept.read_text(encoding="utf-8")) == scenario_schema()
    data = read_file(path).data
    assert [e.message for e in schema.iter_errors(data)] == []


def test_an_editor_finds_the_schema_of_a_new_scenario(cli: Cli) -> None:
    (cli.base / "a place").mkdir()
    assert cli("scenario", "new", "a place/mine.yaml").status == 0
    kept = editors_schema(cli.base / "a place" / "mine.yaml")
    assert kept == cli.home / "data" / "schema" / "scenario.schema.json"
    assert json.loads(kept.read_text(encoding="utf-8")) == scenario_schema()
    kept.write_text("{}")  # of an older version
    done = cli("schema", "scenario", "--install")
    assert (done.status, done.stdout) == (0, f"Written to ~/h/data/schema/{kept.name}\n")
    assert json.loads(kept.read_text(encoding="utf-8")) == scenario_schema()


def test_beside_a_schema_a_new_scenario_names_that_one(cli: Cli) -> None:
    (cli.base / "scenario.schema.json").write_text("{}")
    assert cli("scenario", "new", "mine.yaml").status == 0
    assert editors_schema(cli.base / "mine.yaml") == cli.base / "scenario.schema.json"
    assert cli.left() == []
