"""The house around the code: what the repository promises, and that each check can fail."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lab

ROOT = Path(__file__).resolve().parents[2]
PURE = {"analysis", "compile", "core", "md", "model", "report"}

# In pieces, so that this file passes its own check.
HOSTS = tuple(
    "".join(parts)
    for parts in (
        ("py", "pi.org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("crates", ".io"),
        ("proxy.golang", ".org"),
        ("docker", ".io"),
        ("ghcr", ".io"),
        ("quay", ".io"),
        ("artifact", "ory."),
        ("jf", "rog."),
        ("dev", "pi."),
        ("nex", "us."),
        ("deb.deb", "ian.org"),
        ("security.deb", "ian.org"),
        ("snapshot.deb", "ian.org"),
        ("archive.ubu", "ntu.com"),
        ("mirr", "or."),
        ("mirr", "ors."),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.$}~/-])/(?:work|root|home)/[\w.-]+")
GUEST_PATHS = ("/root/.ssh", "/home/lab")


def tracked() -> Iterator[tuple[str, str]]:
    """Every text file git knows, by its path in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "lab").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def hosts(name: str, text: str) -> list[str]:
    if name == "LICENSE":
        return []
    # Only a host's name goes on after a fragment's last dot: a sentence ends with it.
    return [
        f"{name}: names {host}"
        for host in HOSTS
        if re.search(rf"\b{re.escape(host)}{'[a-z]' if host.endswith('.') else ''}", text.lower())
    ]


def machine_paths(name: str, text: str) -> list[str]:
    return [
        f"{name}: {path}" for path in MACHINE_PATH.findall(text) if not path.startswith(GUEST_PATHS)
    ]


def docstring(name: str, text: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(text)) else [f"{name}: says nowhere what it is for"]


def changelog(name: str, text: str) -> list[str]:
    """The newest numbered version of the change log is the program's."""
    versions = re.findall(r"^## \[?v?(\d[^\]\s]*)", text, re.MULTILINE)
    if versions[:1] == [lab.__version__]:
        return []
    return [f"{name}: newest is {versions[:1]}, lab.__version__ is {lab.__version__}"]


def make_commands(name: str, text: str) -> list[str]:
    """Each `make x` in a code span or at the start of a line of a code block is a target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    used = re.findall(
        r"^\s*(?:\$ )?make ([a-z]+)|`make ([a-z]+)|&& make ([a-z]+)", text, re.MULTILINE
    )
    words = {word for groups in used for word in groups if word}
    return [f"{name}: make has no target {word!r}" for word in sorted(words - targets)]


def lock(name: str, text: str) -> list[str]:
    """Every requirement is pinned to one version, has hashes, and names no place to get it."""
    wrong = []
    for entry in re.split(r"\n(?=\S)", text):
        if not entry or entry.startswith("#"):
            continue
        if not re.match(r"[a-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry, re.DOTALL):
            wrong.append(f"{name}: not pinned by hash: {entry.splitlines()[0]}")
        if "://" in entry or re.search(r"\s-[a-z]", entry):
            wrong.append(f"{name}: names a place: {entry.splitlines()[0]}")
    return wrong


Check = Callable[[str, str], list[str]]
CONTROLS: dict[Check, str] = {
    hosts: "see https://" + HOSTS[0] + "/simple",
    machine_paths: 'open("' + "/".join(("", "home", "alice", "lab")) + '")',
    docstring: "import os\n",
    changelog: "# Changes\n\n## [99.0.0] - 2001-01-01\n",
    make_commands: "Then:\n\n```\nmake breakfast\n```\n",
    lock: "paramiko==5.1.0 \\\n    --hash=sha256:" + "0" * 64 + "\nrich>=15\n",
}


@pytest.mark.parametrize("check", CONTROLS, ids=lambda check: check.__name__)
def test_each_check_finds_what_is_planted(check: Check) -> None:
    assert len(check("planted", CONTROLS[check])) == 1


@pytest.mark.parametrize("check", [hosts, machine_paths], ids=lambda check: check.__name__)
def test_tracked_files_name_no_foreign_place(check: Check) -> None:
    files = list(tracked())
    assert {"Makefile", "pyproject.toml", "requirements/runtime.txt"} <= {name for name, _ in files}
    assert [found for name, text in files for found in check(name, text)] == []


def test_modules_say_what_they_are_for() -> None:
    sources = list(modules())
    assert "lab/__init__.py" in dict(sources)
    assert [found for name, text in sources for found in docstring(name, text)] == []


@pytest.mark.parametrize(
    ("name", "check"), [("CHANGELOG.md", changelog), ("README.md", make_commands)]
)
def test_documents_agree_with_the_program(name: str, check: Check) -> None:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not here yet")
    assert check(name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", ["build", "dev", "lock", "runtime"])
def test_locks_pin_everything_by_hash_and_name_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert "==" in text
    assert lock(name, text) == []


@pytest.mark.parametrize("name", ["dev", "lock", "runtime"])
def test_locks_hold_what_is_asked_for(name: str) -> None:
    if name == "runtime":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        asked: list[str] = [*project["dependencies"], *extras["guests"]]
    else:
        asked = (ROOT / "requirements" / f"{name}.in").read_text(encoding="utf-8").splitlines()
    wanted = {found[0] for line in asked if (found := re.match(r"[A-Za-z0-9._-]+", line))}
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
    assert {re.sub(r"[._-]+", "-", word).lower() for word in wanted} - pinned == set()


# The layers: `make check` runs lint-imports over the tree; here each contract is shown to notice.


def lint_imports(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def copy_of_the_package(directory: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "lab", directory / "lab", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


def test_the_contracts_are_kept(tmp_path: Path) -> None:
    status, output = lint_imports(copy_of_the_package(tmp_path))
    assert status == 0, output
    assert "BROKEN" not in output


FORBIDDEN = ("subprocess", "socket", "libvirt", "paramiko", "time")
# What is planted where, and the line in which the contract tells of it.
PLANTED = {
    "upwards": ("core/units.py", "import lab.cli", "Layers", "lab.core.units -> lab.cli "),
    "sideways": ("matrix/one.py", "import lab.cluster", "Layers", "lab.matrix.one -> lab.cluster "),
    "no floor": ("planted.py", '"""No floor."""', "Layers", "- lab.planted\n"),
    "a plug-in upwards": (
        "plugins/disks/one.py",
        "import lab.compile",
        "Layers",
        "lab.plugins.disks.one -> lab.compile ",
    ),
    "plug-ins": (
        "plugins/disks/one.py",
        "import lab.plugins.disks.two",
        "Plug-ins",
        "lab.plugins.disks.one -> lab.plugins.disks.two ",
    ),
    "pure": ("model/one.py", "from time import sleep", "Pure", "lab.model.one -> time "),
    **{
        f"pure: {module}": (
            "md/theory/one.py",
            f"import {module}",
            "Pure",
            f"lab.md.theory.one -> {module} ",
        )
        for module in FORBIDDEN
    },
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each contract, by its first word, says of a copy with everything planted at once."""
    tree = copy_of_the_package(tmp_path_factory.mktemp("planted"))
    (tree / "lab/plugins/disks/two.py").touch()
    for file, line, _, _ in PLANTED.values():
        append(tree / "lab" / file, line)
    status, output = lint_imports(tree)
    assert status != 0
    parts = re.split(r"^(\w[\w-]*): .*\n-+\n", output.partition("Broken contracts")[2], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("planted", PLANTED)
def test_each_contract_notices_a_planted_violation(told: dict[str, str], planted: str) -> None:
    _, _, contract, line = PLANTED[planted]
    assert line in told[contract]


def test_every_pure_part_is_under_the_contract() -> None:
    present = {
        f"lab.{name}"
        for name in PURE
        if (ROOT / "lab" / f"{name}.py").exists() or (ROOT / "lab" / name / "__init__.py").exists()
    }
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [pure] = [
        contract
        for contract in contracts["tool"]["importlinter"]["contracts"]
        if contract["id"] == "pure"
    ]
    assert present <= set(pure["source_modules"]), "add it to the contract in pyproject.toml"
    assert set(pure["forbidden_modules"]) == set(FORBIDDEN)
