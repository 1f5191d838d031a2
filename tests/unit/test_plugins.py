"""Every plug-in file follows the contract in its package's docstring."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lab
from lab.plugins import catalog

ROOT = Path(lab.__file__).parent / "plugins"
CONSTANTS = {
    "workloads": ("WORKLOAD", "WorkloadTool"),
    "disks": ("DISK", "DiskModel"),
    "arrays": ("ARRAY", "ArrayKind"),
    "faults": ("FAULT", "FaultKind"),
}
FILES = [
    (package, path)
    for package in CONSTANTS
    for path in sorted((ROOT / package).glob("*.py"))
    if not path.name.startswith("_")
]
IDS = [f"{package}/{path.stem}" for package, path in FILES]


def test_there_are_plug_ins_of_each_kind() -> None:
    assert {package for package, _ in FILES} == set(CONSTANTS)


@pytest.mark.parametrize("package", CONSTANTS)
def test_each_package_says_how_to_add_one(package: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
    constant, protocol = CONSTANTS[package]
    assert text is not None
    assert "How to add one" in text
    assert f"{constant}: {protocol} =" in text


@pytest.mark.parametrize("package", CONSTANTS)
def test_the_catalog_finds_exactly_these_files(package: str) -> None:
    names = tuple(path.stem for p, path in FILES if p == package)
    assert catalog.plugin_names(package) == names


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_a_plug_in_ends_with_its_annotated_constant(package: str, path: Path) -> None:
    constant, protocol = CONSTANTS[package]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    last = tree.body[-1]
    assert isinstance(last, ast.AnnAssign), f"{path.name} ends with something else"
    assert ast.unparse(last.target) == constant
    assert ast.unparse(last.annotation) == protocol
    assert ast.get_docstring(tree)


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_a_plug_in_has_no_state(package: str, path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_a_plug_in_imports_nothing_that_touches_the_world(package: str, path: Path) -> None:
    banned = {"os", "subprocess", "socket", "pathlib", "libvirt", "paramiko", "time", "random"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not banned & {name.split(".")[0] for name in names}
        assert not any(name.startswith("lab.host") for name in names)


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_a_plug_in_has_the_members_of_its_protocol(package: str, path: Path) -> None:
    constant, protocol = CONSTANTS[package]
    name = f"lab.plugins.{package}.{path.stem}"
    plugin = getattr(__import__(name, fromlist=[constant]), constant)
    model = __import__("lab.model.plugin", fromlist=[protocol])
    contract = getattr(model, protocol)
    assert contract.__abstractmethods__
    members = [m for m in vars(contract) if not m.startswith("_")]
    attributes = contract.__annotations__
    assert not [name for name in attributes if not hasattr(plugin, name)]
    for member in members:
        own = next((c for c in type(plugin).__mro__ if member in vars(c)), None)
        assert own is not None, member
        here = own.__module__ == name
        assert here or (own is contract and member not in own.__abstractmethods__), member


@pytest.mark.parametrize("package", CONSTANTS)
def test_what_is_demanded_has_no_answer_of_its_own_and_the_rest_has(package: str) -> None:
    contract = getattr(__import__("lab.model.plugin", fromlist=["x"]), CONSTANTS[package][1])
    tree = ast.parse((ROOT.parent / "model/plugin.py").read_text(encoding="utf-8"))
    (node,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == contract.__name__]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    assert methods
    for method in methods:
        answers = any(isinstance(n, ast.Return) for n in ast.walk(method))
        assert answers is (method.name not in contract.__abstractmethods__), method.name
