"""Finds scenarios, matrices, images and plug-ins by their files' names.

Nothing is registered. A file ``lab/plugins/workloads/fio.py`` is the workload ``fio``; a file
``scenarios/raid5-layouts.yaml`` is the scenario ``raid5-layouts``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import lab
from lab.core import regular
from lab.core.errors import InputError

if TYPE_CHECKING:  # completion finds names without importing models, which takes long
    from importlib.metadata import EntryPoint

    from lab.model.plugin import ArrayKind, DiskModel, FaultKind, WorkloadTool
    from lab.model.scenario.document import Workload

SCHEMA: Final = "scenario.schema.json"
"""The JSON Schema next to the scenarios; their first line names it for editors."""
CONSTANTS: Final = ("WORKLOAD", "DISK", "ARRAY", "FAULT")
"""The last line of a plug-in's file, by ``PACKAGES``."""
_MOST: Final = 256 * 1024
"""Most bytes of a matrix, as of every file of YAML."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def _config() -> Path:
    """Return the directory of the user's own files."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(config) if config.startswith("/") else Path.home() / ".config") / "lab"


def _directories(kind: str) -> tuple[Path, ...]:
    """Return the user's directory first, then the one that came with the lab."""
    return tuple(d for d in (_config() / kind, _shipped(kind)) if d.is_dir())


def _shipped(kind: str) -> Path:
    """Return the directory that came with the lab."""
    package = Path(lab.__file__).parent
    directory = package / "data" / kind
    # In a checkout it is next to the package; the wheel copies it into the package.
    return directory if directory.is_dir() else package.parent / kind


def scenario_directories() -> tuple[Path, ...]:
    """Return the directories of scenarios in search order."""
    return _directories("scenarios")


def profiles() -> dict[str, Path]:
    """Return measured disks' profiles by name, as ``lab.host.system.paths`` places them."""
    home, data = os.environ.get("LAB_HOME"), os.environ.get("XDG_DATA_HOME", "")
    if home:
        base = Path(home).absolute() / "data"
    else:
        base = (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "lab"
    return {file.stem: file for file in sorted((base / "profiles").glob("*.yaml"))}


def schema_path() -> Path:
    """Return the path of the JSON Schema of scenarios that came with the lab."""
    return _shipped("scenarios") / SCHEMA


def image_directories() -> tuple[Path, ...]:
    """Return the directories of image recipes in search order."""
    return _directories("images")


def matrix_directories() -> tuple[Path, ...]:
    """Return the directories of matrix files in search order."""
    return _directories("matrices")


def _files(directories: tuple[Path, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for directory in directories:
        for path in sorted(directory.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def scenarios() -> dict[str, Path]:
    """Return all scenarios by name."""
    return _files(scenario_directories())


def matrices() -> dict[str, Path]:
    """Return all matrix files by name."""
    return _files(matrix_directories())


def image_recipes() -> dict[str, Path]:
    """Return all image recipes by name."""
    return _files(image_directories())


def scenario_path(name: str) -> Path:
    """Return the file of a scenario, from its name or a path that ends in ``.yaml``."""
    return _path(name, "scenario", scenarios())


def matrix_path(name: str) -> Path:
    """Return the file of a matrix, from its name or a path that ends in ``.yaml``."""
    return _path(name, "matrix", matrices())


def image_recipe_path(name: str) -> Path:
    """Return the file of an image recipe, from its name or a path that ends in ``.yaml``."""
    return _path(name, "image", image_recipes())


def is_matrix(name: str) -> bool:
    """Return whether a name, or a path that ends in ``.yaml``, is a matrix and no scenario.

    A matrix has a line ``scenarios:``. What cannot be read is a scenario, whose reader says why.
    """
    if not name.endswith((".yaml", ".yml")):
        return name in matrices() and name not in scenarios()
    try:
        text = regular.read(Path(name), _MOST).decode()
        return re.search(r"^scenarios\s*:", text, re.MULTILINE) is not None
    except (OSError, ValueError):
        return False


def _path(name: str, kind: str, known: dict[str, Path]) -> Path:
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"the {kind} file '{name}' does not exist")
        return path
    if not _NAME.fullmatch(name):
        raise InputError(
            f"'{name}' is not a {kind} name: expected letters, digits, '.', '_' and '-'",
            hint=f"give a file of your own by a path that ends in .yaml: {name}.yaml",
        )
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(
            f"there is no {kind} '{name}' (known: {', '.join(known)})",
            hint=f"{guess}list them: lab {kind} list",
        )
    return known[name]


PACKAGES: Final = ("workloads", "disks", "arrays", "faults")


def user_plugins() -> Path:
    """Return the directory of the user's own plug-ins: below it ``workloads``, ``disks`` and so on.

    A file there is like one of the lab. It cannot replace one of the lab.
    """
    return _config() / "plugins"


@cache
def plugin_names(package: str) -> tuple[str, ...]:
    """Return the plug-ins in ``lab/plugins/workloads``, ``disks``, ``arrays`` or ``faults``, the
    user's own, and those of installed packages."""
    names = {m.name for m in iter_modules(_package(package).__path__) if m.name[0] != "_"}
    return tuple(sorted(names | set(_installed(package))))


@cache
def _package(package: str) -> ModuleType:
    """Return the package, which also has the user's directory."""
    module = import_module(f"lab.plugins.{package}")
    own = user_plugins() / package
    if own.is_dir():
        module.__path__.append(str(own))
    return module


@cache
def _installed(package: str) -> dict[str, EntryPoint]:
    """Return the plug-ins of installed packages by name: entry points of ``lab.workloads`` and so
    on."""
    from importlib.metadata import entry_points  # takes long, and completion needs none

    return {one.name: one for one in entry_points(group=f"lab.{package}")}


def installed_plugins() -> tuple[str, ...]:
    """Return name, module and version of each plug-in of an installed package."""
    return tuple(
        f"{package} {name} {one.value} {one.dist.version if one.dist else ''}"
        for package in PACKAGES
        for name, one in sorted(_installed(package).items())
    )


@dataclass(frozen=True, slots=True)
class OtherPlugin:
    """A plug-in that did not come with the lab."""

    package: str
    name: str
    source: str
    """Its file, or the module that an installed package names."""
    wrong: str
    """Why it cannot be used; empty: it can."""


def other_plugins() -> tuple[OtherPlugin, ...]:
    """Return the user's plug-ins and those of installed packages."""
    found = []
    for package, constant in zip(PACKAGES, CONSTANTS, strict=True):
        files = sorted(p for p in (user_plugins() / package).glob("[!_]*.py"))
        sources = {p.stem: str(p) for p in files}
        sources |= {n: one.value for n, one in _installed(package).items() if n not in sources}
        for name, source in sources.items():
            try:
                used = _plugin(package, name, constant)
                module = sys.modules[type(used).__module__]
                theirs = source == str(module.__file__) or not source.endswith(".py")
                wrong = "" if theirs else "the lab has one of this name, which is used"
            except InputError as error:
                wrong = error.message
            found.append(OtherPlugin(package, name, source, wrong))
    return tuple(found)


class MissingPluginError(InputError):
    """A stored run has a plug-in that is not part of this lab."""


@cache
def _plugin(package: str, name: str, constant: str) -> Any:
    if (missing := missing_plugin(package, name)) is not None:
        raise MissingPluginError(missing, hint="use the version of the lab that made the run")
    shipped = {m.name for m in iter_modules(_package(package).__path__)}
    try:
        if name not in shipped:
            return _installed(package)[name].load()
        return getattr(import_module(f"lab.plugins.{package}.{name}"), constant)
    except Exception as error:
        raise MissingPluginError(
            f"the plug-in '{name}' of {package} cannot be used: {type(error).__name__}: {error}",
            hint="`lab doctor` lists plug-ins and their files",
        ) from error


def workload(name: str) -> WorkloadTool:
    """Return the workload of that name, which must be in ``plugin_names("workloads")``."""
    tool: WorkloadTool = _plugin("workloads", name, "WORKLOAD")
    return tool


_VALIDATED: Final[dict[int, tuple[dict[str, Any], str, Any]]] = {}
"""Tools and validated parameters by the ``id()`` of what was given, which the entry keeps alive."""


def parameters_of(given: Workload) -> Any:
    """Return a workload's parameters as its tool's model, validated once for all cells that share
    it.

    Rules that are newer than a stored run are skipped: the compiler has applied them.
    """
    own = given.parameters
    found = _VALIDATED.get(id(own))
    if found is None or found[1] != given.tool:
        from lab.core.base import KEPT  # completion needs no pydantic

        if len(_VALIDATED) > 4096:
            _VALIDATED.clear()
        validated = workload(given.tool).parameters.model_validate(own, context=KEPT)
        found = _VALIDATED[id(own)] = own, given.tool, validated
    return found[2]


def disk_model(name: str) -> DiskModel:
    """Return the disk model of that name, which must be in ``plugin_names("disks")``."""
    model: DiskModel = _plugin("disks", name, "DISK")
    return model


def array_kind(name: str) -> ArrayKind:
    """Return the array kind of that name, which must be in ``plugin_names("arrays")``."""
    kind: ArrayKind = _plugin("arrays", name, "ARRAY")
    return kind


def fault_kind(name: str) -> FaultKind:
    """Return the fault of that name, which must be in ``plugin_names("faults")``."""
    kind: FaultKind = _plugin("faults", name, "FAULT")
    return kind


def missing_plugin(package: str, name: str) -> str | None:
    """Return the error for a plug-in that does not exist; ``None``: it exists."""
    names = plugin_names(package)
    if name in names:
        return None
    near = get_close_matches(name, names, n=1)
    guess = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return f"there is no '{name}' in lab/plugins/{package} or {user_plugins() / package}: {guess}"


def walk_scenarios(names: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the named scenarios, or of all."""
    if names:
        for name in names:
            path = scenario_path(name)
            yield path.stem, path
    else:
        yield from scenarios().items()
