"""Errors in files: the message has file, line, key, found value and expected value.

The tests make mistakes automatically, for each field of each model in users' files. A validator's
own text must not appear.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from lab.compile.scenario.compiler import Compiled, compile_document, compile_scenario
from lab.core.errors import InputError
from lab.core.units import as_yaml
from lab.core.yaml import Document, Path_, dotted, parse_override, validate
from lab.host.images import recipes as image_recipes
from lab.model.image.recipe import ImageRecipe, ModulesRecipe
from lab.model.scenario.array import Array
from lab.model.scenario.claim import Bound, Claim, Monotonic, Order, Ratio, Same, Value
from lab.model.scenario.document import Disk, Scenario, Source, Workload
from lab.model.scenario.fault import Fault
from lab.model.scenario.filesystem import Filesystem
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.testing.asked import FIELDS, asked_for
from tests.fakes import FAULTS

GOLDEN = Path(__file__).parents[1] / "golden" / "workloads"

BANNED = re.compile(
    r"input should|valid string|\bstr\b|tuple\[|\(and \d+ more\)|field required|extra inputs|"
    r"\bunion\b|NoneType|valid (dictionary|list|integer|number|boolean|tuple)|unable to|pydantic|"
    r"\bdict\b|\bint\b|value error|expected keys and values|could not convert|(?-i:\bNone\b)|\^\[",
    re.IGNORECASE,
)
EXPECTS = re.compile(
    r"expected|write |give |such as|did you mean|known are|remove|leave|needs|set |add |must|use "
    r"|at least|one of|replace|lower|raise|lists what|is no time: it is 0 or more|there (is|are) "
    r"|is set by the lab|check quotes|it (gives|has) |make "
)
PLACE = re.compile(r"(q\.yaml:\d+|--set .+?|t\.py:7: @pytest\.mark\.lab): ")


# -- users' files


@cache
def workload(tool: str) -> dict[str, Any]:
    """Return a workload of that tool with recorded parameters that fit the scenario."""
    for folder in sorted((GOLDEN / tool).iterdir()):
        recorded = json.loads((folder / "expected.json").read_text())
        found = {"name": "write", "tool": tool, **recorded["parameters"]}
        if "metrics" in recorded and complaint(load_scenario, with_workload(found)) is None:
            return found
    raise AssertionError(f"no good recording in {GOLDEN / tool} fits the scenario")


def with_workload(given: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario with this workload."""
    extra = {"array": "none"} if given["tool"] in ("blktests", "mdadm_tests") else {}
    return {**SCENARIO, **extra, "workloads": [given]}


def fault(kind: str) -> dict[str, Any]:
    return {"name": "gone", "fault": kind, "after": "write", **FAULTS[kind]}


def value() -> dict[str, Any]:
    return {"workload": "write", "metric": "throughput", "where": {}}


EXPECTATIONS: dict[type[BaseModel], dict[str, Any]] = {
    Bound: {"kind": "bound", "value": value(), "at_least": 1},
    Ratio: {"kind": "ratio", "of": value(), "to": value(), "at_least": 1},
    Order: {"kind": "order", "values": [value(), value()]},
    Same: {"kind": "same", "values": [value(), value()]},
    Monotonic: {"kind": "monotonic", "value": value(), "along": "x", "direction": "rising"},
}
SCENARIO: dict[str, Any] = {
    "title": "T",
    "question": "Q?",
    "source": {"title": "S"},
    "guest": {},
    "disks": {"count": 4, "size": "1GiB", "throttle": {}, "hdd": {}, "ssd": {}},
    "array": {"level": 5, "component_size": "64MiB", "zfs": {}},
    "workloads": [{"name": "write", "tool": "dd", "of": "{target}", "bs": "1MiB", "count": 8}],
}
RECIPE: dict[str, Any] = {
    "description": "D",
    "suite": "bookworm",
    "kernel_package": "linux-image-amd64",
    "packages": ["systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"],
    "modules": {"source": "linux-source", "build": ["drivers/md"]},
}


def lines_of(data: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield every path of the data, in the order of a file."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from lines_of(inner, (*at, key))


def document(data: dict[str, Any]) -> Document:
    """Return the data as from a file with one key or item per line."""
    numbered = {path: n for n, path in enumerate(lines_of(data), 1)}
    return Document(source="q.yaml", data=data, lines=numbered)


def put(data: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(data)
    node: Any = changed
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return cast_(changed)


def cast_(data: Any) -> dict[str, Any]:
    assert isinstance(data, dict)
    return data


# -- every field


@dataclass(frozen=True, kw_only=True)
class Target:
    """A field: its path and data, and its type."""

    data: dict[str, Any]
    path: Path_
    takes: Any
    optional: bool
    required: bool


def plain(kind: Any) -> tuple[Any, bool]:
    """Return the type without ``Annotated`` and ``None``, and whether ``None`` was allowed."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        members = [k for k in get_args(kind) if k is not NoneType]
        if len(members) == 1:
            return plain(members[0])[0], len(members) < len(get_args(kind))
        return kind, len(members) < len(get_args(kind))
    return kind, False


def targets(model: type[BaseModel], data: dict[str, Any], at: Path_ = ()) -> Iterator[Target]:
    """Yield each field of a model, and those of the mappings below it in the data."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        kind, optional = plain(field.annotation)
        path = (*at, key)
        yield Target(
            data=data, path=path, takes=kind, optional=optional, required=field.is_required()
        )
        inner = [kind] if isinstance(kind, type) else []
        if inner and issubclass(inner[0], BaseModel) and key in node_at(data, at):
            yield from targets(inner[0], data, path)


def node_at(data: Any, path: Path_) -> Any:
    for part in path:
        data = data[part]
    return data


FIO = ("bs", "runtime", "direct", "iodepth", "rw", "ioengine", "latency_target", "size")


def scenario_targets() -> Iterator[Target]:
    for name, model in (("guest", Guest), ("disks", Disk), ("array", Array), ("source", Source)):
        yield from targets(model, SCENARIO, (name,))
    whole = {**SCENARIO, "filesystem": {"type": "ext4"}}
    yield from targets(Filesystem, whole, ("filesystem",))
    sections = {"guest", "disks", "array", "filesystem", "source"}
    for one in targets(Scenario, SCENARIO):
        if one.path[0] not in sections or len(one.path) == 1:
            yield one
    for tool in catalog.plugin_names("workloads"):
        data = with_workload(workload(tool))
        yield from (
            t for t in targets(Workload, data, ("workloads", 0)) if "parameters" not in t.path
        )
        yield from targets(catalog.workload(tool).parameters, data, ("workloads", 0))
        for option in FIO if tool == "fio" else ():
            kind = {"direct": bool, "ioengine": object, "rw": object}.get(option, int)
            path = ("workloads", 0, option)
            yield Target(data=data, path=path, takes=kind, optional=True, required=False)
    for kind in catalog.plugin_names("faults"):
        data = {**SCENARIO, "faults": [fault(kind)]}
        yield from (t for t in targets(Fault, data, ("faults", 0)) if "parameters" not in t.path)
        yield from targets(catalog.fault_kind(kind).parameters, data, ("faults", 0))
    for model, expect in EXPECTATIONS.items():
        data = {**SCENARIO, "claims": [{"id": "c", "says": "s", "expect": expect}]}
        yield from targets(Claim, data, ("claims", 0))
        below: Path_ = ("claims", 0, "expect")
        yield from targets(model, data, below)
        for key in expect.keys() & {"values"}:
            yield from targets(Value, data, (*below, key, 1))


def recipe_targets() -> Iterator[Target]:
    yield from targets(ImageRecipe, RECIPE)
    yield from targets(ModulesRecipe, RECIPE, ("modules",))


# -- every mistake


def mistakes(target: Target) -> Iterator[tuple[Any, bool]]:
    """Yield wrong values for a field, and whether the type alone makes them wrong."""
    kind = target.takes
    origin, inner = get_origin(kind), get_args(kind)
    model = isinstance(kind, type) and issubclass(kind, BaseModel)
    number, many = kind in (int, float), origin in (tuple, list)
    mapping = model or origin is dict
    union = origin in (Union, UnionType)
    words = many and plain(inner[0])[0] is str
    enumerated: Sequence[Any] = inner if origin is Literal else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        enumerated = [member.value for member in kind]
    either = target.path[-1] in (
        "disks",
        "options",
        "mount_options",
        "scenarios",
        "images",
        "kernels",
    )
    own = target.path[-1] in ("throttle", "array", "set", "where", "any")
    keyed = mapping or target.path[-1] in ("disks", "trials")  # an unknown key is named then
    yield {"aa": 1}, not (keyed or kind in (Any, object))
    if not many:
        yield ["aa", "bb"], not (union or kind in (Any, object))
    if number or kind is bool or enumerated or (mapping and not own) or kind is date:
        yield "aa", True
    if many and not words and not either:
        yield "aa", True
    if words and not either:
        yield "aa", True
    if kind is str:
        yield "Ä !", False
    if mapping or many or kind is date:
        yield 5, target.path[-1] != "throttle" and kind is not date
    yield None, not (target.optional or kind in (Any, object) or own or either)
    if number:
        yield -1, False
        yield 10**30, False
        yield -(10**30), False
        yield 1.5, False
    for word in enumerated[:1]:
        yield f"{word}x", True


def complaint(load: Callable[[dict[str, Any]], object], data: dict[str, Any]) -> str | None:
    """Return the error for the data; ``None``: there is none."""
    try:
        load(data)
    except InputError as error:
        return error.message
    return None


def faults_of(said: str, path: Path_, value: Any, *, exact: bool) -> list[str]:
    """Return what a message lacks."""
    found = []
    if not PLACE.match(said):
        found.append("has no place")
    if banned := BANNED.search(said.replace("--set", "")):
        found.append(f"shows {banned[0]!r}")
    if not EXPECTS.search(said):
        found.append("has no expectation")
    if exact and dotted(path) not in said:
        found.append("does not name the key")
    told = (as_yaml(value), as_yaml(value)[:30], repr(value))
    shown = "this key is missing" in said or any(text in said for text in told)
    if exact and value is not None and not shown:
        found.append("does not show the value")
    if exact and value is None and not re.search(r"null|nothing|missing", said):
        found.append("does not say that there is nothing")
    return found


def examine(
    found: Iterator[Target], load: Callable[[dict[str, Any]], object]
) -> tuple[int, list[str]]:
    """Return the number of refused mistakes, and each faulty message."""
    refused, wrong = 0, []
    for target in found:
        for value, must in mistakes(target):
            said = complaint(load, put(target.data, target.path, value))
            name = f"{dotted(target.path)} = {value!r}"
            if said is None:
                wrong += [f"{name} is accepted"] if must else []
                continue
            refused += 1
            lacks = faults_of(said, target.path, value, exact=must)
            wrong += [f"{name}: {', '.join(lacks)}: {said}"] if lacks else []
    return refused, wrong


def load_scenario(data: dict[str, Any]) -> Compiled:
    return compile_document(Path("q.yaml"), document(data))


def load_recipe(data: dict[str, Any]) -> ImageRecipe:
    return validate(ImageRecipe, document(data))


Targets = Callable[[], Iterator[Target]]
Load = Callable[[dict[str, Any]], object]
ROOTS: dict[str, tuple[Targets, Load, int]] = {
    "scenario": (scenario_targets, load_scenario, 1000),
    "recipe": (recipe_targets, load_recipe, 60),
}


def test_the_data_itself_is_good() -> None:
    for tool in catalog.plugin_names("workloads"):
        load_scenario(with_workload(workload(tool)))
    load_recipe(RECIPE)


@pytest.mark.parametrize("root", ROOTS)
def test_a_wrong_value_of_any_field_is_explained(root: str) -> None:
    every_wrong_value(*ROOTS[root])


def every_wrong_value(found: Targets, load: Load, least: int = 0) -> None:
    refused, wrong = examine(found(), load)
    assert wrong == []
    assert refused >= least


@pytest.mark.parametrize("root", ROOTS)
def test_a_misspelled_key_gets_the_right_one(root: str) -> None:
    every_misspelled_key(*ROOTS[root])


def every_misspelled_key(found: Targets, load: Load, least: int = 0) -> None:
    wrong = []
    for target in found():
        key = str(target.path[-1])
        if len(key) < 3 or ("expect" in target.path and key == "kind"):
            continue
        parent = node_at(target.data, target.path[:-1])
        path = (*target.path[:-1], f"{key[:-2]}{key[-1]}{key[-2]}x")
        said = complaint(load, put(target.data, path, parent.get(key, 1)))
        if (
            said is None
            or dotted(path) not in said
            or not PLACE.match(said)
            or ("did you mean" not in said and "known are" not in said and "lists what" not in said)
        ):
            wrong.append(f"{dotted(path)}: {said}")
    assert wrong == []


@pytest.mark.parametrize("root", ROOTS)
def test_a_missing_key_is_named_with_what_it_takes(root: str) -> None:
    every_missing_key(*ROOTS[root])


def every_missing_key(found: Targets, load: Load, least: int = 0) -> None:
    seen, wrong = 0, []
    for target in found():
        if not target.required:
            continue
        data = copy.deepcopy(target.data)
        parent = node_at(data, target.path[:-1])
        if target.path[-1] not in parent:
            continue
        del parent[target.path[-1]]
        said = complaint(load, data) or "nothing"
        seen += 1
        if dotted(target.path) not in said or "this key is missing: expected " not in said:
            wrong.append(f"{dotted(target.path)}: {said}")
        wrong += [f"{said}: {lack}" for lack in faults_of(said, target.path, None, exact=True)]
    assert wrong == []
    assert seen >= 3


AXES: list[tuple[Any, str]] = [
    ({"array.layout": "parity-last"}, "matrix.array.layout: expected a list of values"),
    ({"array.level": 5}, "matrix.array.level: expected a list of values"),
    ({"array.level": [[5]]}, "matrix.array.level[0]: expected "),
    ({"array.level": {"a": 5}}, "matrix.array.level: expected a list of values"),
    ({"array.level": None}, "matrix.array.level: expected a list of values"),
    ({"array.level": []}, "matrix.array.level: the axis has no values"),
    ({"array.level": [5, 5]}, "matrix.array.level: the axis has 5 twice"),
    ({"array.levle": [5]}, "matrix.array.levle: unknown key 'levle': did you mean 'level'?"),
    ({"array": [5]}, "matrix.array: expected a mapping"),
    ({"arry.level": [5]}, "matrix.arry.level: "),
    ({"array.chunk": ["64K"]}, "matrix.array.chunk: '64K' has the unknown unit 'K'"),
    ({"disks.format": ["qcow3"]}, "matrix.disks.format: expected one of qcow2, raw, found 'qcow3'"),
    ({"disks.throttle": ["4MiB", "8MiB"]}, "matrix.disks.throttle: an axis names one field"),
    ({"array.level": [5], "exclude": 5}, "matrix.exclude: expected a list of "),
    ({"array.level": [5], "exclude": [5]}, "matrix.exclude[0]: expected a mapping of names to"),
    ({"array.level": [5], "exclude": [{"array.levle": 5}]}, "did you mean 'array.level'?"),
    (
        {"array.level": [5], "exclude": [{"array.level": 6}]},
        "is not a value of the axis: expected one of 5",
    ),
    (5, "matrix: expected a mapping"),
    (["a"], "matrix: expected a mapping"),
]


@pytest.mark.parametrize(("axes", "says"), AXES)
def test_a_wrong_axis_is_explained(axes: Any, says: str) -> None:
    said = complaint(load_scenario, {**SCENARIO, "matrix": axes})
    assert said is not None
    assert says in said
    assert faults_of(said, ("matrix",), "", exact=True) == []


def test_a_wrong_set_is_explained_in_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(SCENARIO, file)
    wrong, refused = [], 0
    for target in (*targets(Guest, SCENARIO, ("guest",)), *targets(Disk, SCENARIO, ("disks",))):
        for value, must in mistakes(target):
            text = f"{dotted(target.path)}={as_yaml(value)}"
            try:
                compile_scenario(path, overrides=[parse_override(text)])
            except InputError as error:
                refused += 1
                said = error.message.removeprefix(f"{tmp_path}/")
                lacks = faults_of(said, target.path, value, exact=must)
                if not error.message.startswith(f"--set {text}: "):
                    lacks += ["does not name the --set"] * must
                wrong += [f"{text}: {', '.join(lacks)}: {error.message}"] if lacks else []
    assert wrong == []
    assert refused > 200


def test_a_wrong_word_of_the_marker_is_explained_in_the_same_words(tmp_path: Path) -> None:
    good: dict[str, Any] = {"disks": 4, "level": 5}
    fields = {dotted(t.path): t for t in scenario_targets()} | {
        f"disks.{t.path[-1]}": t for t in targets(Disk, SCENARIO, ("disks",)) if len(t.path) == 2
    }
    wrong, refused = [], 0
    for word, name in FIELDS.items():
        for value, must in mistakes(fields[name]):
            try:
                asked_for({**good, word: value}, array=True, place="t.py:7", path=tmp_path / "t")
            except InputError as error:
                refused += 1
                lacks = faults_of(error.message, (word,), value, exact=must)
                wrong += [f"{word}={value}: {', '.join(lacks)}: {error.message}"] if lacks else []
            else:
                wrong += [f"{word}={value} is accepted"] if must else []
    assert wrong == []
    assert refused > 50


def test_the_files_of_each_kind_are_read_by_their_commands(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("")
    for read, first in (
        (compile_scenario, "title"),
        (image_recipes.read, "description"),
    ):
        with pytest.raises(InputError, match=f":1: the file is empty: .*`{first}: …`"):
            read(path)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (
            ("array", "zfs", "recordsize"),
            "256B",
            "such as 64KiB, from 512 to 16777216, found '256B'",
        ),
        (("array", "zfs", "arc_max"), "1MiB", "such as 64KiB, 67108864 or more, found '1MiB'"),
        (("workloads", 0, "count"), 0, "expected a whole number, 1 or more, found 0"),
    ],
)
def test_a_limit_is_told_and_the_value_as_it_was_written(
    path: Path_, value: Any, says: str
) -> None:
    said = complaint(load_scenario, put(SCENARIO, path, value))
    assert said is not None
    assert says in said


# -- a rate instead of a throttle


@pytest.mark.parametrize("rate", ["8MiB/s", "8MiB", 8388608])
def test_a_rate_alone_is_a_throttle_of_all_bytes(rate: Any) -> None:
    compiled = load_scenario(put(SCENARIO, ("disks", "throttle"), rate))
    assert compiled.base.disks[0].throttle.total_bytes_per_second == 8388608
    listed = load_scenario({**SCENARIO, "disks": [{"count": 4, "size": "1GiB", "throttle": rate}]})
    assert listed.base.disks[0].throttle.total_bytes_per_second == 8388608


def test_fields_of_a_throttle_are_found_below_a_rate_alone(tmp_path: Path) -> None:
    data = put(SCENARIO, ("disks", "throttle"), "8MiB/s")
    found = compile_document(
        Path("q.yaml"),
        document({**data, "matrix": {"disks.throttle.total_bytes_per_second": ["4MiB", "8MiB"]}}),
    )
    rates = [c.disks[0].throttle.total_bytes_per_second for c in found.cells]
    assert rates == [4194304, 8388608]
    sets = [parse_override("disks.throttle.total_bytes_per_second=2MiB/s")]
    changed = compile_document(Path("q.yaml"), document(data), overrides=sets)
    assert changed.base.disks[0].throttle.total_bytes_per_second == 2097152
    sets = [parse_override("disks.throttle=2MiB/s")]
    changed = compile_document(Path("q.yaml"), document(data), overrides=sets)
    assert changed.base.disks[0].throttle.total_bytes_per_second == 2097152


def test_a_wrong_rate_alone_is_told_at_the_throttle() -> None:
    said = complaint(load_scenario, put(SCENARIO, ("disks", "throttle"), "8M"))
    assert said is not None
    assert re.match(
        r"q\.yaml:\d+: disks\.throttle\S*: '8M' has the unknown unit 'M': write MiB or MB", said
    )
