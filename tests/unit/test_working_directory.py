"""The working directory may be a stranger's checkout: the lab runs nothing that lies there."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.host.system import process

MODULES = ("lab", "pydantic", "drive")
IMPORTS = f"import {', '.join(MODULES)}"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with modules that note that they were imported."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(checkout: Path) -> list[str]:
    return sorted(path.name for path in checkout.glob("ran-*"))


def test_no_module_is_imported_from_it(checkout: Path) -> None:
    subprocess.run(process.python("-c", IMPORTS), check=True)
    # Without an argument the worker ends at once; its modules are imported before.
    words = process.python("-m", "lab.run.worker")
    subprocess.run(words, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert ran(checkout) == []


def test_the_control_imports_them(checkout: Path) -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    assert ran(checkout) == sorted(f"ran-{name}" for name in MODULES)


def test_one_module_starts_pythons() -> None:
    lab = Path(process.__file__).parents[2]
    found = [
        f"{path.name}: {line.strip()}"
        for path in lab.rglob("*.py")
        if path != Path(process.__file__) and path.parent.name != "guest_programs"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bsys\.executable\b", line) and '(sys.executable, "-I"' not in line
    ]
    assert [line for line in found if '[sys.executable, "-I"' not in line] == []


def test_qemu_takes_no_firmware_from_it(checkout: Path) -> None:
    """``qemu_find_file`` of QEMU 7.2 tries a name in the working directory first."""
    log = checkout / "log"
    daemon = process.Daemon(["pwd", "-P"], log=log)
    for _ in range(100):
        if daemon.status() is not None:
            break
        time.sleep(0.05)
    assert log.read_text() == "/\n"
