"""Each capability can be removed with its tests: types, layers, commands and imports of tests.

``make rooms`` runs the fast tests too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _script() -> Any:
    spec = spec_from_file_location("delete_test", ROOT / "tools/delete_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


delete_test = _script()
NAMES = delete_test.rooms(ROOT)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return delete_test.copied(tmp_path_factory.mktemp("delete") / "lab")


@pytest.fixture(scope="module")
def before(tree: Path) -> dict[str, str]:
    return delete_test.commands(tree)


@pytest.mark.parametrize("name", NAMES)
def test_all_else_passes_without_it(name: str, tree: Path, before: dict[str, str]) -> None:
    names = delete_test.users(name)
    with delete_test.removed(tree, names):
        assert list(delete_test.failures(tree, names, before, fast=False)) == []
    assert delete_test.rooms(tree) == NAMES


def test_the_control_is_noticed(tree: Path, before: dict[str, str]) -> None:
    """A package of the core that imports a capability, and a command that stays."""
    name = NAMES[-1]
    file = tree / "lab/results/__init__.py"
    text = file.read_text("utf-8")
    file.write_text(f"{text}\nfrom lab.capabilities.{name} import command\n__all__ = ['command']\n")
    with delete_test.removed(tree, [name]):
        wrong = list(_failures(tree, [name], before))
    file.write_text(text)
    assert [each.partition(":")[0] for each in wrong[:1]] == ["mypy"]
    kept = {**before, "planted": f"lab.capabilities.{name}.command"}
    with delete_test.removed(tree, [name]):
        wrong = list(delete_test.failures(tree, ["planted"], kept, fast=False))
    assert any("lost the commands" in each for each in wrong)


def _failures(tree: Path, names: list[str], before: dict[str, str]) -> Iterator[str]:
    try:
        yield from delete_test.failures(tree, names, before, fast=False)
    except SystemExit as error:  # lab does not start
        yield str(error)


def test_no_other_test_imports_a_capability() -> None:
    uses = re.compile(r"^\s*(?:from|import) lab\.capabilities\.(\w+)", re.MULTILINE)
    pairs = {name: set(delete_test.users(name)) for name in NAMES}
    found = []
    for path in [*(ROOT / "tests/unit").rglob("*.py"), *(ROOT / "tests/guest").rglob("*.py")]:
        for name in uses.findall(path.read_text("utf-8")):
            if path.parent.name not in pairs[name]:
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []
