"""The word list finds words in texts for people only."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _loaded() -> Any:
    spec = spec_from_file_location("words", ROOT / "tools/words.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules["words"] = module
    spec.loader.exec_module(module)
    return module


words = _loaded()


def found(file: str, text: str, **options: bool) -> list[tuple[int, str]]:
    listed = words.read()
    pieces = words.texts(file, text, **options)
    return [(f.line, f.word) for piece in pieces for f in listed.find(piece)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.md", "One line.\nThe figures are good.\n"),
        ("a.md", "It is a\nFigures are good.\n"),
        ("a.md", "Text with `code` and\n[the figures](x.md).\n"),
        ("lab/a.py", '\nraise E("no figures were measured")\n'),
        ("lab/a.py", '\nx = f"{n} of the figures are missing"\n'),
        ("lab/a.py", 'x = ("one line of text"\n     " and figures in another")\n'),
        ("lab/cli/a.py", "@a.b()\ndef c(): 'Print the figures.'\n"),
        ("lab/model/scenario/a.py", 'class A:\n    """The figures of a disk."""\n'),
        ("scenarios/a.yaml", "title: x\nquestion: Which figures?\n"),
        ("scenarios/a.yaml", "notes: >-\n  These figures are scaled.\n"),
        ("scenarios/a.yaml", "disks:\n  count: 2   # as in the figures of the post\n"),
        ("a.html.j2", "<h1>x</h1>\n<p>All figures</p>\n"),
        ("Makefile", "\nbench: setup ## print the figures\n"),
    ],
)
def test_a_word_is_found_with_its_line(file: str, text: str) -> None:
    assert found(file, text) == [(2, "figures")]


def test_a_phrase_is_found_over_two_lines() -> None:
    assert found("a.md", "A drive in slow\nmotion.") == [(1, "slow motion")]
    assert found("scenarios/a.yaml", "notes: >-\n  In slow\n  motion.\n") == [(2, "slow motion")]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.md", "`figures`, ``the `figures` ``\n\n```sh\nprint figures\n```\n"),
        ("a.md", "[x](figures.md), figures.md, report/figures, --figures, `a`.figures, my_figures"),
        ("a.md", "https://example.org/figures <!-- figures -->"),
        ("a.md", "configures and disfigures"),
        (
            "lab/a.py",
            'figures = d["figures"]  # figures\nraise E(f"there is no \'figures\' here")\n',
        ),
        ("lab/a.py", '"""The figures of a module."""\ndef f():\n    """All the figures."""\n'),
        ("lab/a.py", 'x = f"the {figures} are here"\n'),
        ("scenarios/a.yaml", "source:\n  title: The figures of a post\n"),
        ("scenarios/a.yaml", "workloads:\n  - name: figures of x\n"),
        ("a.html.j2", '<p class="figures">{{ figures }}</p>{% if figures %}x{% endif %}'),
        ("Makefile", "figures: setup # figures\n\techo the figures\n"),
        ("a.md", "A scenario asks one question."),
    ],
)
def test_code_and_names_and_what_is_allowed_are_no_findings(file: str, text: str) -> None:
    assert found(file, text) == []


@pytest.mark.parametrize("line", ["figure value", "figure\t", "ok\tfigure", "a\tb\tc"])
def test_a_wrong_line_of_the_list_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "list.txt").write_text(f"# list\n{line}\n")
    with pytest.raises(words.ListError, match=r"list\.txt:2:"):
        words.read(tmp_path / "list.txt")


@pytest.mark.parametrize(("text", "status"), [("All good.\n", 0), ("All figures.\n", 1)])
def test_the_exit_status_says_whether_any_was_found(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "a.md").write_text(text)
    done = subprocess.run(
        [sys.executable, ROOT / "tools/words.py", tmp_path / "a.md"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert done.stdout.startswith(f"{tmp_path}/a.md:1:" if status else "")


def test_every_kind_of_text_of_the_checkout_is_read() -> None:
    names = set(words.files())
    wanted = {
        "README.md",
        "docs/tutorial.md",
        "lab/cli/app.py",
        "scenarios/faults.yaml",
        "Makefile",
    }
    assert wanted <= names
    assert not any(name.startswith("docs/reference/") for name in names)
