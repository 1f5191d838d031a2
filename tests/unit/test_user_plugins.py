"""Plug-ins of the user's own directory and of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import InputError
from lab.host import doctor
from lab.plugins import catalog
from lab.store import judgements
from tests.fakes import compiled_text

MINE = '''
"""A tool of my own."""
from lab.plugins.workloads.command import Command
from lab.model.plugin import WorkloadTool
class Mine(Command):
    """A command, by another name."""
WORKLOAD: WorkloadTool = Mine()
'''
CACHED = (catalog.plugin_names, catalog._package, catalog._plugin, catalog._installed)


def forget() -> None:
    for one in CACHED:
        one.cache_clear()
    judgements.code.cache_clear()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's directory of workloads."""
    import lab.plugins.workloads

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(lab.plugins.workloads, "__path__", list(lab.plugins.workloads.__path__))
    place = catalog.user_plugins() / "workloads"
    place.mkdir(parents=True)
    forget()
    yield place
    forget()


def finding() -> list[doctor.Finding]:
    return doctor._plugins()


def test_a_file_in_the_user_s_directory_is_a_tool(own: Path, tmp_path: Path) -> None:
    (own / "my_tool_a.py").write_text(MINE)
    (own / "_shared_of_mine.py").write_text("x = 1\n")
    assert "my_tool_a" in catalog.plugin_names("workloads")
    assert "_shared_of_mine" not in catalog.plugin_names("workloads")
    (cell,) = compiled_text(
        tmp_path, "title: T\nquestion: Q?\nworkloads:\n  - {name: w, tool: my_tool_a, argv: [ls]}\n"
    ).cells
    assert cell.workloads[0].tool == "my_tool_a"
    (one,) = finding()
    assert one.good
    assert str(own / "my_tool_a.py") in one.detail


def test_a_broken_file_is_named_and_breaks_nothing_else(own: Path) -> None:
    (own / "my_tool_b.py").write_text("import no_such_module_of_mine\n")
    (own / "my_tool_c.py").write_text("x = 1\n")
    for name, why in (("my_tool_b", "no_such_module_of_mine"), ("my_tool_c", "WORKLOAD")):
        with pytest.raises(catalog.MissingPluginError, match=f"{name}.*{why}"):
            catalog.workload(name)
    assert catalog.workload("fio")
    assert [one.good for one in finding()] == [False, False]


def test_a_file_does_not_replace_one_of_the_lab(own: Path) -> None:
    (own / "dd.py").write_text(MINE)
    assert type(catalog.workload("dd")).__module__ == "lab.plugins.workloads.dd"
    assert "if_" in catalog.workload("dd").parameters.model_fields
    (one,) = finding()
    assert "the lab has one of this name" in one.detail
    assert not one.good


def test_an_installed_package_names_a_tool(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = metadata.EntryPoint("theirs", "lab.plugins.workloads.dd:WORKLOAD", "lab.workloads")

    def entry_points(**given: Any) -> list[metadata.EntryPoint]:
        return [there] if given["group"] == "lab.workloads" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    forget()
    assert "theirs" in catalog.plugin_names("workloads")
    assert catalog.workload("theirs") is catalog.workload("dd")
    assert catalog.missing_plugin("workloads", "theirs") is None
    assert any("theirs" in one.detail and one.good for one in finding())


def test_a_changed_plug_in_makes_judgements_again(own: Path) -> None:
    (own / "my_tool_d.py").write_text(MINE)
    before = judgements.code()
    judgements.code.cache_clear()
    assert judgements.code() == before
    (own / "my_tool_d.py").write_text(f"{MINE}\n# another\n")
    judgements.code.cache_clear()
    assert judgements.code() != before


def test_a_missing_tool_says_where_it_could_be(own: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"none_such.*{own}"):
        compiled_text(
            tmp_path, "title: T\nquestion: Q?\nworkloads:\n  - {name: w, tool: none_such}\n"
        )
