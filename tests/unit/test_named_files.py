"""A file that a scenario, a recipe or a matrix names is a regular file with a limit.

A device never ends, a FIFO blocks, and a huge file fills the memory: each is one sentence at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli.commands import app
from lab.compile.scenario.compiler import compile_scenario
from lab.core import regular
from lab.core.errors import InputError
from lab.host.guest.ssh import directories
from lab.host.images import recipes as image_recipes
from lab.host.images.kernel import with_kernel
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.run.preparation import systems
from tests.unit.test_image_archive import made

SCENARIO = """\
title: x
question: x?
disks: {count: 2, size: 64MiB}
array: {level: 1}
workloads: [{name: w, tool: dd, if: /dev/zero, of: '{target}', bs: 1MiB, count: 1, oflag: direct}]
"""


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS = (zero, fifo, directory, huge)


@pytest.fixture(autouse=True)
def within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from limited(tmp_path, monkeypatch)


def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the checks these block, or read until the memory is full."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    (tmp_path / "home/data/images").mkdir(parents=True)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def written(tmp_path: Path, text: str, name: str = "question.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def recipe(**changed: object) -> None:
    base = image_recipes.load("debian-12")[1]
    image_recipes.brought(base.model_copy(update=changed))


def kernel(path: Path) -> None:
    with_kernel(made(path.parent / "image"), path)


FIELDS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "scenario": ("s.yaml", lambda p, _: compile_scenario(p)),
    "extends": (
        "s.yaml",
        lambda p, t: compile_scenario(written(t, f"extends: {p}\ntitle: mine\n")),
    ),
    "profile": (
        "p.yaml",
        lambda p, t: compile_scenario(
            written(t, SCENARIO.replace("size: 64MiB", f"model: 'profile:{p}', size: 64MiB"))
        ),
    ),
    "guest.kernel": ("bzImage", lambda p, _: kernel(p)),
    "guest.kernel, a package": (
        "k.deb",
        lambda p, _: systems.find(Guest(image="debian-12", kernel=str(p))),
    ),
    "guest.mdadm": ("m.deb", lambda p, _: systems.find(Guest(image="debian-12", mdadm=str(p)))),
    "kernel_file": ("k.deb", lambda p, _: recipe(kernel_file=str(p))),
    "package_files": ("x.deb", lambda p, _: recipe(package_files=(str(p),))),
    "patches": ("x.patch", lambda p, _: image_recipes._patch(p)),
    "recipe": ("i.yaml", lambda p, _: image_recipes.read(p)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS)
def test_what_is_no_file_is_refused_at_once(
    field: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    refused_at_once(*FIELDS[field], kind, tmp_path)


@pytest.mark.parametrize("field", ["profile", "extends", "link"])
def test_a_scenario_shows_no_line_of_a_file_that_is_not_yaml(field: str, tmp_path: Path) -> None:
    """``profile:/etc/shadow`` in a stranger's scenario would put a line into a log of CI."""
    secret = tmp_path / "shadow"
    secret.write_text("root:$y$secret:\n")
    link = tmp_path / "mine.yaml"
    link.symlink_to(secret)
    path = tmp_path / "s.yaml"
    name = secret if field == "profile" else link
    text = SCENARIO.replace("size: 64MiB", f"model: 'profile:{name}', size: 64MiB")
    path.write_text(f"extends: {link}\ntitle: mine\n" if field == "extends" else text)
    with pytest.raises(InputError, match=r"ends in \.yaml") as caught:
        compile_scenario(path)
    assert "secret" not in str(caught.value.message)


def refused_at_once(
    name: str, read: Callable[[Path, Path], object], kind: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "bad").mkdir()
    path = tmp_path / "bad" / name
    kind(path)
    with pytest.raises(InputError, match=rf"{name}|/dev/zero") as caught:
        read(path, tmp_path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", [zero, fifo])
def test_a_suite_with_a_special_file_is_refused_at_once(
    kind: Callable[[Path], None], tmp_path: Path
) -> None:
    suite = tmp_path / "suite"
    kind(suite)
    with pytest.raises(InputError, match="is not a directory"):
        directories.check(suite, (), 1 << 20)
    below = tmp_path / "other"
    below.mkdir()
    kind(below / "entry")
    if kind is not zero:  # a link is sent as a link
        with pytest.raises(InputError, match="not a file, directory or link"):
            directories.check(below, (), 1 << 20)


def test_a_suite_has_a_limit_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "ENTRIES", 3)
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(InputError, match="more than 3 entries"):
        directories.check(tmp_path, (), 1 << 20)


def test_a_file_that_grows_while_it_is_read_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert regular.read(path, 100) == bytes(100)
    monkeypatch.setattr(regular, "check", lambda *_: None)
    with pytest.raises(OSError, match="more than"):
        regular.read(path, 99)


@pytest.mark.parametrize(
    "matrix_text",
    [
        "{array.chunk: [" + ", ".join(f"{4 * n}KiB" for n in range(1, 3001)) + "], disks.count: ["
        + ", ".join(str(n) for n in range(2, 3001)) + "]}",
        "{array.chunk: [" + ", ".join(f"{4 * n}KiB" for n in range(1, 3001)) + "], include: ["
        + ", ".join("{disks.count: 3}" for _ in range(5000)) + "]}",
    ],
)  # fmt: skip
def test_a_matrix_of_cells_has_a_limit(matrix_text: str, tmp_path: Path) -> None:
    text = SCENARIO.replace("level: 1", "level: 0") + f"matrix: {matrix_text}\n"
    with pytest.raises(InputError, match=r"matrix: .*(are the most|shorten them)"):
        compile_scenario(written(tmp_path, text))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_check_reads_no_special_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    """It looks into the file to see whether it is a scenario or a matrix."""
    kind(path := tmp_path / "x.yaml")
    assert not catalog.is_matrix(str(path))
    ended = CliRunner().invoke(app, ["check", str(path)])
    assert ended.exit_code == 2 or isinstance(ended.exception, InputError)
    path = written(tmp_path, "# mine\nscenarios: [raid5-layouts]\n", "matrix.yaml")
    assert catalog.is_matrix(str(path))
