"""Ids and digests: what shipped cells have, and that new fields and new names change none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, make_dataclass, replace
from enum import IntEnum
from pathlib import Path

import lab
from drive import region
from drive.drive import Kind, Parameters
from lab.core.stable import Form, Stable, named, written
from lab.host.guest.virtual.inputs import FORMS
from tests import identities

SOURCES = Path(lab.__file__).parent
LEAST = 40
"""Shipped scenarios that nobody has changed since the digests were kept."""


def test_every_shipped_cell_has_the_id_and_identity_that_it_had() -> None:
    golden = json.loads(identities.GOLDEN.read_text())
    shipped = identities.scenarios()
    same = [
        n for n in shipped if n in golden and golden[n]["text"] == identities.text_of(shipped[n])
    ]
    assert len(same) >= LEAST
    found = {name: identities.digest_of(shipped[name]) for name in same}
    assert found == {name: golden[name]["cells"] for name in same}


# -- models

ADDED = "    added_by_the_test: int | None = None\n"
_CLASS = re.compile(
    r"^class (\w+)\((?:Stable|SuiteParameters)\):\n    \"\"\".*?\"\"\"\n", re.M | re.S
)


def stable_models() -> dict[str, Path]:
    """Every model of the lab that is part of digests, with its file."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for match in _CLASS.finditer(path.read_text()):
            found[match[1]] = path
    return found


def changed(place: Path, changes: dict[str, str]) -> Path:
    """A copy of the sources with a text after the docstring of each of these classes."""
    shutil.copytree(SOURCES, place / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    models = stable_models()
    for name, text in changes.items():
        path = place / "lab" / models[name].relative_to(SOURCES)
        whole = path.read_text()
        match = next(m for m in _CLASS.finditer(whole) if m[1] == name)
        path.write_text(f"{whole[: match.end()]}\n{text}{whole[match.end() :]}")
    for name in ("scenarios", "images"):
        (place / name).symlink_to(SOURCES.parent / name)
    for name in ("drive", "tests"):
        (place / name).symlink_to(SOURCES.parent / name)
    return place


def ids_with(place: Path, names: list[str]) -> str:
    script = (
        "import sys, lab; from tests import identities as i; assert lab.__file__.startswith("
        f"{str(place)!r}); print({{n: i.digest_of(i.scenarios()[n]) for n in {names!r}}})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(place), "HOME": str(place), "PATH": "/usr/bin:/bin"},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def covering() -> list[str]:
    """Few shipped scenarios that have every workload, fault and section together."""
    words: dict[str, set[str]] = {}
    for name, path in identities.scenarios().items():
        text = path.read_text()
        words[name] = set(
            re.findall(r"\b(?:tool|fault|model|kind|level): *\w+|^\w+:", text, re.MULTILINE)
        )
    chosen: list[str] = []
    left = set().union(*words.values())
    while left:
        best = max(words, key=lambda name: (len(words[name] & left), name))
        chosen.append(best)
        left -= words[best]
    return chosen


def test_a_new_field_of_any_model_changes_no_id_while_it_has_its_default(tmp_path: Path) -> None:
    models = stable_models()
    assert {"Cell", "Guest", "Disk", "Throttle", "Array", "Filesystem", "Workload", "Fault"} <= set(
        models
    )
    names = covering()
    before = str({name: identities.digest_of(identities.scenarios()[name]) for name in names})
    whole = changed(tmp_path / "all", dict.fromkeys(models, ADDED))
    assert ids_with(whole, names).strip() == before


def test_a_field_that_is_always_written_does_change_them(tmp_path: Path) -> None:
    """The control: the rule is what keeps the ids."""
    text = ADDED + "    @override\n    def always(self) -> frozenset[str]:\n"
    text += "        return frozenset(type(self).model_fields)\n"
    name = "raid5-parity-last"
    place = changed(tmp_path / "one", {"Workload": text})
    before = str({name: identities.digest_of(identities.scenarios()[name])})
    assert ids_with(place, [name]).strip() != before


def test_a_new_field_counts_once_it_is_set() -> None:
    class Old(Stable):
        ALWAYS = named("a")
        a: int = 1

    class New(Stable):
        ALWAYS = named("a")
        a: int = 1
        b: int = 2
        c: tuple[int, ...] = ()

    assert New().model_dump() == Old().model_dump() == {"a": 1}
    assert New(b=3, c=(1,)).model_dump() == {"a": 1, "b": 3, "c": (1,)}
    assert New.model_validate_json(Old().model_dump_json()) == New()
    assert Old().model_dump(exclude={"a"}) == {}


def test_every_model_of_a_cell_is_stable() -> None:
    from lab.model.scenario.document import Cell

    left, seen = [Cell], set()
    while left:
        model = left.pop()
        seen.add(model)
        assert issubclass(model, Stable), model
        for field in model.model_fields.values():
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(kind, type) and hasattr(kind, "model_fields") and kind not in seen:
                    left.append(kind)
    assert len(seen) > 6
    for name in ("workload", "fault_kind"):
        package = {"workload": "workloads", "fault_kind": "faults"}[name]
        for plugin in identities.catalog.plugin_names(package):
            parameters = getattr(identities.catalog, name)(plugin).parameters
            assert issubclass(parameters, Stable), parameters


# -- records

DISKS = (
    region.Disk(serial="root", size=1 << 30, flags=region.BASE),
    region.Disk(
        serial="disk1",
        size=4096,
        limits={"read_bytes": region.Limit(5, 6, 7), "total": region.Limit(1)},
        bad=(region.Bad(1, 2), region.Bad(3, 4, region.BAD_DATA, 9)),
        drive=Parameters(kind=Kind.HDD, overhead=5),
    ),
    region.Disk(serial="it's", size=1, bad=[region.Bad(0, 1)], group=2),
)


LATER = (
    ", link_command=0, lead=0, oldest_share=0, write_places=0, write_choice=0, wake_after=0, wake=0"
    ", seek_only=0"
)
"""Parameters of a drive that digests do not have while they are 0."""


def first_form(disk: region.Disk) -> str:
    """Return a disk's ``repr`` as it was before those parameters."""
    return repr(disk).replace(LATER, "")


def test_disks_are_written_as_they_always_were() -> None:
    """The first digests were made of their ``repr``."""
    for disk in DISKS:
        assert written(disk, FORMS) == first_form(disk)


def test_a_measured_drive_has_a_digest_of_its_own() -> None:
    (_, disk, _) = DISKS
    assert isinstance(disk.drive, Parameters)
    other = replace(disk, drive=replace(disk.drive, lead=1))
    assert written(other, FORMS) == first_form(disk)[:-2] + ", lead=1))"


def test_a_renamed_class_and_a_new_field_change_no_digest() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class RenamedDisk(region.Disk):
        zoned: bool = False

    class RenamedKind(IntEnum):
        HDD = 1

    names = [(f.name, f.type, f) for f in fields(Parameters)]
    renamed = make_dataclass("RenamedDrive", [*names, ("heads", int, 0)], frozen=True)
    forms = FORMS | {
        RenamedDisk: FORMS[region.Disk],
        renamed: FORMS[Parameters],
        RenamedKind: FORMS[Kind],
    }
    (_, disk, _) = DISKS
    assert isinstance(disk.drive, Parameters)
    drive = renamed(kind=RenamedKind.HDD, overhead=5)
    own = {f.name: getattr(disk, f.name) for f in fields(disk)} | {"drive": drive}
    other = RenamedDisk(**own)
    assert written(other, forms) == first_form(disk)
    assert "RenamedDisk" in repr(other)
    assert written(replace(other, zoned=True), forms) == first_form(disk)[:-1] + ", zoned=True)"


def test_every_record_in_the_digest_has_a_form() -> None:
    @dataclass(frozen=True)
    class Unknown:
        a: int = 1

    assert written((1, "a", None, {"b": [True]}), {}) == repr((1, "a", None, {"b": [True]}))
    assert written((1,), {}) == "(1,)"
    assert written(Unknown(), {Unknown: Form(name="First", always=("a",))}) == "First(a=1)"
    for kind in (region.Disk, region.Limit, region.Bad, Parameters):
        assert set(FORMS[kind].always) <= {f.name for f in fields(kind)}


def test_shipped_recipes_have_the_digests_that_they_had() -> None:
    golden = json.loads(identities.GOLDEN.read_text())["images"]
    texts = identities.recipes()
    same = {n: found for n, found in texts.items() if golden.get(n, [""])[0] == found[0]}
    assert len(same) >= 3
    assert same == {name: golden[name] for name in same}
