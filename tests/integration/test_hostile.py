"""Runs of an attacker, with every command that reads and shows them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

import lab.cli
from lab.cli import consoles
from lab.core.errors import InputError
from lab.core.printable import printable
from lab.host.system import untrusted
from lab.report.charts import render
from lab.report.html import page as html
from lab.results import fio_tree
from tests import attack, hostile
from tests.hostile_files import SECRET

Attacked = Callable[[int], tuple[list[str], Iterator[str]]]
"""Applies a seed; returns the changes of its run, and yields the problems."""

SEEDS = 300
FEW = (0, 9, 12, 40, 41, 61, 64, 103, 132, 136)
"""Seeds that make every change together."""
ROUNDS = 20
"""Seeds of one kind to try until one of them shows that a protection is missing."""


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return hostile.unpack(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def clean(kept_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Elements and attributes in pages of good runs, and of failed runs."""
    base = tmp_path_factory.mktemp("clean")
    runs = base / "h" / "data" / "runs"
    for run in kept_runs:
        shutil.copytree(run, runs / run.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(base / "h"))
        said = attack.call(["site", str(base / "site")], 120)
    assert said.status == 0, said.stderr
    found = {"pre", "h3", "section@id", "tr@class", "ul", "li"}
    for page in (p for p in (base / "site").iterdir() if p.is_file()):
        found |= attack.Elements.of(page.read_text()).found
    return frozenset(found)


@pytest.fixture(autouse=True)
def remembered() -> Iterator[None]:
    with attack.remembered():
        yield


@pytest.fixture
def attacked(
    kept_runs: list[Path], clean: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Attacked:
    """Apply a seed; return the changes of its run, and yield the problems."""

    def tried(seed: int) -> tuple[list[str], Iterator[str]]:
        base = tmp_path / "w"
        shutil.rmtree(base, ignore_errors=True)
        runs, outside = base / "h" / "data" / "runs", base / "outside"
        runs.mkdir(parents=True)
        outside.mkdir()
        (outside / "secret.txt").write_text(f"{SECRET}\n")
        monkeypatch.setenv("LAB_HOME", str(base / "h"))
        monkeypatch.chdir(base)
        good = runs / "good-20260101-120000"
        shutil.copytree(kept_runs[seed % len(kept_runs)], good)
        run, names = hostile.build(seed, kept_runs, runs, outside)
        return names, attack.Attack(base, good, clean).problems(run, seed)

    return tried


def attacked_by(attacked: Attacked, seeds: Iterable[int]) -> set[str]:
    hit: set[str] = set()
    wrong = []
    for seed in seeds:
        names, problems = attacked(seed)
        hit.update(names)
        wrong += [f"seed {seed} {names}: {problem}" for problem in problems]
    assert not wrong, "\n".join(wrong)
    return hit


@pytest.mark.timeout(1200)
def test_nothing_that_a_run_holds_does_harm(
    attacked: Attacked,
) -> None:
    assert attacked_by(attacked, FEW) == set(hostile.CHANGES)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_that_three_hundred_runs_hold_does_harm(
    attacked: Attacked,
) -> None:
    assert attacked_by(attacked, range(SEEDS)) == set(hostile.CHANGES)


# -- negative controls: with a protection removed, the same seeds find a problem


def _seed(name: str) -> int:
    return list(hostile.CHANGES).index(name)


def _unescaped(patch: pytest.MonkeyPatch) -> None:
    html.templates.cache_clear()
    environment = html.templates()
    patch.setattr(environment, "autoescape", False)


def _raw_stdout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lab.cli, "Shown", lambda stream: stream)


def _raw_console(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consoles, "printable", lambda text: text)
    assert issubclass(consoles.ShownConsole, Console)


def _raw_page(patch: pytest.MonkeyPatch) -> None:
    html.templates.cache_clear()
    patch.setattr(html, "printable", lambda text: text)


def _any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(untrusted, "wrong_name", lambda _name: "")
    patch.setattr(fio_tree, "as_name", lambda text: text)


def _followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(untrusted.os, "O_NOFOLLOW", 0)
    patch.setattr(untrusted, "_check_kind", lambda *_: None)


def _waited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(untrusted.os, "O_NONBLOCK", 0)
    patch.setattr(untrusted, "_check_kind", lambda *_: None)


def _formulas(patch: pytest.MonkeyPatch) -> None:
    from lab.results import tables as archive

    patch.setattr(archive, "cell_text", lambda text: text)


@pytest.mark.parametrize(
    ("change", "without", "finds"),
    [
        ("markup", _unescaped, "foreign markup"),
        pytest.param(
            *("terminal", _raw_stdout, "control character"), marks=pytest.mark.slow
        ),  # together half a minute
        ("terminal", _raw_console, "control character"),
        pytest.param(*("terminal", _raw_page, "control character"), marks=pytest.mark.slow),
        pytest.param(
            *("fio_names", _any_name, "written elsewhere|mistake|script"), marks=pytest.mark.slow
        ),
        ("links", _followed, "secret"),
        ("linked_directories", _followed, "secret"),
        pytest.param(*("fifos", _waited, "hang"), marks=pytest.mark.slow),
        ("formula", _formulas, "formula"),
    ],
)
def test_without_a_protection_the_same_runs_do_harm(
    attacked: Attacked,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    without: Callable[[pytest.MonkeyPatch], None],
    finds: str,
) -> None:
    if without is _waited:
        monkeypatch.setattr(attack, "SECONDS", 10.0)
    for round_ in range(ROUNDS):
        with monkeypatch.context() as patch:
            without(patch)
            problems = attacked(_seed(change) + round_ * len(hostile.CHANGES))[1]
            found = any(re.search(finds, problem) for problem in problems)  # one is enough
        html.templates.cache_clear()
        if found:
            return
    pytest.fail("nothing was found without it")


def test_a_chart_has_no_control_characters_and_is_xml(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(word: str) -> render.Chart:
        return render.Chart(
            name="x",
            title=word,
            subtitle=word,
            caption=word,
            spec={
                "data": {"values": [{"a": word, "b": 1}]},
                "mark": "bar",
                "encoding": {"x": {"field": "a"}, "y": {"field": "b", "type": "quantitative"}},
            },
        )

    word = "\x9b2J\u202e</text><script>alert(1)</script>"
    drawn = render.svg(of(f"\x1b[31m{word}"))
    assert printable(drawn) == drawn
    assert "script" not in attack.Elements.of(drawn).found
    monkeypatch.setattr(render, "_shown", lambda spec: spec)
    bare = render.svg(of(word))  # with an escape character in it, vl-convert aborts the process
    assert printable(bare) != bare


def test_a_tree_stays_in_its_directory(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a/../../x", "", "a//b", "a\0b", "a\nb", "\x1b", "x" * 256, ".."):
        with pytest.raises(InputError, match="cannot be written to"):
            untrusted.write_tree({"good": "", name: "x"}, tmp_path / "tree")
        assert list(tmp_path.iterdir()) == []
    made = untrusted.write_tree({"a/b/c": "x"}, tmp_path / "tree")
    assert [path.read_text() for path in made] == ["x"]


def test_a_link_in_the_way_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f".tree.{os.getpid()}.part").symlink_to(elsewhere)
    untrusted.write_tree({"a": "x"}, tmp_path / "tree")  # its name cannot be guessed
    assert (tmp_path / "tree/a").read_text() == "x"
    assert list(elsewhere.iterdir()) == []
