"""Keys: OpenSSH's formats, one pair per lab, never readable by other users."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.host.system import keys


def test_openssh_agrees_about_the_public_half(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    pair, other = keys.make(), keys.make()
    path = tmp_path / "key"
    path.write_text(pair.private)
    path.chmod(0o600)
    said = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(path)], check=True, capture_output=True, text=True
    ).stdout
    assert said.split()[:2] == pair.public.split()
    assert other.public != pair.public
    assert other.private != pair.private


def test_the_labs_pair_is_made_once_and_for_its_owner_only(lab_home: Path) -> None:
    first = keys.lab_key()
    assert keys.lab_key() == first
    path = keys.lab_key_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.with_suffix(".pub").read_text() == f"{first.public} lab\n"
    assert sorted(p.name for p in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_a_lost_public_half_is_made_again_from_the_private_one(lab_home: Path) -> None:
    first = keys.lab_key()
    keys.lab_key_path().with_suffix(".pub").unlink()
    assert keys.lab_key() == first
    assert keys.lab_key_path().with_suffix(".pub").exists()


def test_labs_that_start_at_once_agree_on_one_pair(lab_home: Path) -> None:
    code = "from lab.host.system import keys; print(keys.lab_key().public)"

    def start(_: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        return done.stdout

    with ThreadPoolExecutor(3) as pool:
        said = set(pool.map(start, range(3)))
    assert said == {f"{keys.lab_key().public}\n"}
