"""The built package works without a checkout, and contains scenarios, matrices and images."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("lab", "drive", "scenarios", "matrices", "images"),
    *("pyproject.toml", "README.md", "LICENSE"),
)
MAN = "docs/reference/lab.1"


def run(*command: str | Path, cwd: Path, home: Path | None = None) -> str:
    """Return a command's output, in an environment without settings of checkout or user."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LAB_", "XDG_"))}
    environment = kept | ({"HOME": str(home)} if home else {})
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    python: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build a wheel from the sdist, as a source installation does, in another environment.

    That environment sees the packages of the tests' environment, but not its path to the checkout:
    files named ``.pth`` count only in a site directory of the interpreter itself.
    """
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    (source / MAN).parent.mkdir(parents=True)
    shutil.copy(ROOT / MAN, source / MAN)
    # A file for each kind, even before the first scenario and image exist.
    for kind in ("scenarios", "matrices", "images"):
        (source / kind / "planted.yaml").write_text("planted: true\n")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", base, cwd=source)
    [wheel] = base.glob("*.whl")
    [sdist] = base.glob("*.tar.gz")
    shutil.rmtree(source)

    run(sys.executable, "-m", "venv", "--without-pip", base / "venv", cwd=base)
    python = base / "venv/bin/python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=base)
    Path(site.strip(), "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=base)
    return Built(wheel, sdist, python)


def data_files() -> set[str]:
    kinds = ("scenarios", "matrices", "images")
    found = {
        str(path.relative_to(ROOT))
        for kind in kinds
        for path in (ROOT / kind).rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    return found | {f"{kind}/planted.yaml" for kind in kinds}


def test_wheel_and_sdist_hold_every_scenario_image_and_module(built: Built) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "lab").rglob("*.py")}
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        built_from = {"drive/nbdkit_disk.c", "drive/drive.h", "drive/throttle.h"}
        assert built_from <= names, "servers are compiled from it"
        assert "drive/lab_disk.c" in names, "the driver of virtual time is built from it"
    assert {f"lab/data/{name}" for name in data_files()} | modules <= names
    with tarfile.open(built.sdist) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert data_files() | modules <= inside
    assert {"LICENSE", "README.md", "pyproject.toml"} <= inside


def test_wheel_holds_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names if ".data/" not in name}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lab", "drive"}
    shared = [name.partition(".data/")[2] for name in names if ".data/" in name]
    assert shared == ["data/share/man/man1/lab.1"]


def test_the_manual_page_is_installed_where_man_finds_it(built: Built) -> None:
    installed = built.python.parents[1] / "share/man/man1/lab.1"
    assert installed.read_bytes() == (ROOT / MAN).read_bytes()


def test_installed_package_can_begin_a_run(built: Built, tmp_path: Path) -> None:
    """All imports of a worker, and each source file of the driver, are in the package."""
    code = (
        "import lab.run.worker, lab.run.execute\n"
        "from lab.host.images import virtual_time as sealed_kit\n"
        "assert all((sealed_kit.SOURCES / name).is_file() for name in sealed_kit.BUILT_FROM)"
    )
    run(built.python, "-c", code, cwd=tmp_path, home=tmp_path)


def test_only_guests_need_libvirt(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
        needed = [
            line
            for line in wheel.read(name).decode().splitlines()
            if line.startswith("Requires-Dist: libvirt")
        ]
    assert len(needed) == 1
    assert "extra == 'guests'" in needed[0]


def test_installed_package_is_not_the_checkout(built: Built, tmp_path: Path) -> None:
    place = run(built.python, "-c", "import lab; print(lab.__file__)", cwd=tmp_path).strip()
    assert Path(place).is_relative_to(built.python.parents[1])


def test_installed_package_finds_its_scenarios_and_images(built: Built, tmp_path: Path) -> None:
    if not (ROOT / "lab/plugins/catalog.py").exists():
        pytest.skip("lab.plugins.catalog is not here yet")
    code = (
        "from lab.plugins import catalog\n"
        "found = (catalog.scenario_directories, catalog.matrix_directories)\n"
        "for d in (*(d for f in found for d in f()), *catalog.image_directories()):\n"
        "    for f in sorted(d.rglob('*.yaml')):\n"
        "        print(d.name + '/' + str(f.relative_to(d)))\n"
    )
    listed = run(built.python, "-c", code, cwd=tmp_path, home=tmp_path).split()
    assert set(listed) == {name for name in data_files() if name.endswith(".yaml")}


def test_pytest_finds_the_plugin(built: Built, tmp_path: Path) -> None:
    said = run(built.python, "-m", "pytest", "--markers", cwd=tmp_path, home=tmp_path)
    assert "@pytest.mark.lab(disks=N" in said
    said = run(built.python, "-m", "pytest", "-p", "no:lab", "--markers", cwd=tmp_path)
    assert "@pytest.mark.lab" not in said


def test_installed_command_runs_elsewhere(built: Built, tmp_path: Path) -> None:
    run(built.python.parent / "lab", "--help", cwd=tmp_path, home=tmp_path)
