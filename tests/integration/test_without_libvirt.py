"""Stored runs without libvirt and QEMU: all outputs can be made again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.host.doctor import install_guests
from lab.store.runs import RunStore
from tests import kept, runs
from tests.fakes import stored_run

_WITHOUT = """
import importlib, importlib.abc, io, json, os, pkgutil, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("libvirt", "libvirt_qemu", "libvirtmod", "paramiko"):
            raise ModuleNotFoundError(f"there is no {name} here", name=name)

sys.meta_path.insert(0, Nothing())
import lab.cli
for package in ("report", "results"):  # once for all commands
    path = [os.path.join(lab.__path__[0], package)]
    for module in pkgutil.walk_packages(path, f"lab.{package}."):
        importlib.import_module(module.name)
for words in json.loads(sys.argv[1]):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.argv = ["lab", *words]
        try:
            if words == ["control"]:
                import libvirt
            lab.cli.main()
            status = 0
        except SystemExit as ended:
            status = ended.code
        except ImportError as error:
            status = str(error)
        sys.stdout.flush()
        os.write(write, b"\\0" + json.dumps(status).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said, _, status = pipe.read().partition("\\0")
    os.waitpid(child, 0)
    print(json.dumps([json.loads(status), said]), flush=True)
"""


def without(base: Path, *lines: Sequence[str]) -> list[tuple[Any, str]]:
    """Return how command lines end in a Python without libvirt, with an empty PATH."""
    empty = base / "bin"
    empty.mkdir()
    environment = {"PATH": str(empty), "HOME": str(base), "LAB_HOME": str(base / "h")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, json.dumps(lines)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
        cwd=base,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    return stored_run(tmp_path / "h" / "data" / "runs")


def test_everything_is_made_again_from_stored_runs(tmp_path: Path, run: RunStore) -> None:
    other = runs.theory_run(run.directory.parent, runs.SMALL)
    cell = other.load_run().cells[0].id
    measured = kept.unpacked("bitmap-random-write", run.directory.parent)
    lines = (
        ("results", "show", run.id, "--json"),
        ("results", "show", run.id),
        ("results", "list"),
        ("results", "compare", run.id, run.id),
        ("results", "history", "throughput"),
        ("results", "noise"),
        ("results", "export", run.id, "--format", "csv", "--out", "a.csv"),
        ("results", "export", run.id, "--format", "parquet", "--out", "a.parquet"),
        ("results", "export", other.id, "--format", "script", "--cell", cell, "--out", "b"),
        ("report", run.id, "--out", "page.html"),
        ("results", "show", measured.id, "--json"),
        ("report", measured.id, "--out", "measured.html"),
        ("site", "site"),
        ("scenario", "predict", "raid5-parity-last"),
        ("scenario", "explain", "raid5-parity-last", "--run", run.id),
        ("control",),
    )
    *ended, control = without(tmp_path, *lines)
    assert [
        (line, said) for line, (status, said) in zip(lines, ended, strict=False) if status
    ] == []
    verdicts = [claim["verdict"] for claim in json.loads(ended[0][1])["claims"]]
    assert verdicts.count("holds") == 3
    assert "10.7 MB/s" in ended[1][1]
    again = {c["id"]: c["verdict"] for c in json.loads(ended[10][1])["claims"]}
    before = measured.load_result()
    assert before is not None
    assert again == {c.id: c.verdict for c in before.claims}
    for page in ("page.html", "measured.html"):
        assert "</html>" in (tmp_path / page).read_text(encoding="utf-8")
    pages = sorted(path.suffix for path in (tmp_path / "site").iterdir())
    assert pages == [*[".files"] * 3, *[".html"] * 4, ".svg"]
    assert (tmp_path / "b" / "run.sh").exists()
    assert control == ("there is no libvirt here", "")


def test_who_wants_a_guest_is_told_what_to_install(tmp_path: Path) -> None:
    [(status, said)] = without(tmp_path, ("doctor",))
    assert status == 3
    assert "the Python binding of libvirt is not installed" in said
    assert "".join(install_guests(Path(sys.prefix)).split()) in "".join(said.split())


@pytest.mark.parametrize(
    ("file", "command"),
    [
        (".setup-stamp", "make setup"),
        ("pipx_metadata.json", "pipx inject raid-lab libvirt-python"),
        ("pyvenv.cfg", "/bin/pip install 'raid-lab[guests]'"),
    ],
)
def test_the_command_that_adds_libvirt_fits_how_the_lab_was_installed(
    tmp_path: Path, file: str, command: str
) -> None:
    (tmp_path / file).touch()
    line = install_guests(tmp_path)
    assert line.endswith(command)
    assert ("libvirt-dev" in line) == (command != "make setup")
