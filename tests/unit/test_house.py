"""Checks of the repository itself; each check is shown to be able to fail."""

from __future__ import annotations

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
    """Yield every text file that git tracks, by path."""
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


# Only a host name continues after a fragment's last dot; a sentence ends with it.
HOST = re.compile("|".join(re.escape(h) + ("[a-z]" if h.endswith(".") else "") for h in HOSTS))


def hosts(name: str, text: str) -> list[str]:
    if name == "LICENSE":
        return []
    lowered = text.lower()
    if not any(host in lowered for host in HOSTS):  # ten times as fast as the expression
        return []
    return [f"{name}: names {found}" for found in re.findall(rf"\b(?:{HOST.pattern})", lowered)]


def machine_paths(name: str, text: str) -> list[str]:
    return [
        f"{name}: {path}" for path in MACHINE_PATH.findall(text) if not path.startswith(GUEST_PATHS)
    ]


def changelog(name: str, text: str) -> list[str]:
    """Check that the newest numbered version of the change log is the program's."""
    versions = re.findall(r"^## \[?v?(\d[^\]\s]*)", text, re.MULTILINE)
    if versions[:1] == [lab.__version__]:
        return []
    return [f"{name}: newest is {versions[:1]}, lab.__version__ is {lab.__version__}"]


def make_commands(name: str, text: str) -> list[str]:
    """Check that each `make x` in a code span or at a code block's line start is a target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    used = re.findall(
        r"^\s*(?:\$ )?make ([a-z]+)|`make ([a-z]+)|&& make ([a-z]+)", text, re.MULTILINE
    )
    words = {word for groups in used for word in groups if word}
    return [f"{name}: make has no target {word!r}" for word in sorted(words - targets)]


def lock(name: str, text: str) -> list[str]:
    """Check that every requirement has one version and hashes, and names no index."""
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


# `make check` runs lint-imports over the tree; here a violation of each contract is planted.


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


# Planted import by file, and the contract and line that report it.
PLANTED = (
    ("core/units.py", "import lab.cli", "Layers", "lab.core.units -> lab.cli "),
    (
        "cli/shown.py",
        "import lab.capabilities.planted.run",
        "Layers",
        "lab.cli.shown -> lab.capabilities.planted.run ",
    ),
    (
        "capabilities/planted/page.py",
        "import lab.capabilities.other.model",
        "Capabilities",
        "lab.capabilities.planted.page -> lab.capabilities.other.model ",
    ),
    ("planted.py", '"""In no layer."""', "Layers", "- lab.planted\n"),
    ("plugins/disks/one.py", "import lab.compile", "Layers", "lab.plugins.disks.one -> lab.comp"),
    (
        "plugins/disks/one.py",
        "import lab.plugins.disks.two",
        "Plug-ins",
        "lab.plugins.disks.one -> lab.plugins.disks.two ",
    ),
    ("model/one.py", "from time import sleep", "Pure", "lab.model.one -> time "),
    *(
        ("md/theory/one.py", f"import {name}", "Pure", f"lab.md.theory.one -> {name} ")
        for name in ("subprocess", "socket", "libvirt", "paramiko", "time")
    ),
)


def test_each_contract_notices_a_planted_violation(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "lab", tmp_path / "lab", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "lab/plugins/disks/two.py").touch()
    for name in ("planted/__init__", "planted/run", "other/__init__", "other/model"):
        path = tmp_path / f"lab/capabilities/{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for file, line, _, _ in PLANTED:
        append(tmp_path / "lab" / file, line)
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    broken = done.stdout.partition("Broken contracts")[2]
    parts = re.split(r"^(\w[\w-]*): .*\n-+\n", broken, flags=re.M)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert [each for each in PLANTED if each[3] not in told[each[2]]] == []
