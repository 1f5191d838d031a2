"""A sealed guest's QEMU has no privileges that it does not need."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drive import sealed
from lab.host.guest import registry as guests
from lab.host.guest.virtual.confined import SANDBOX, confined

STATUS = ["sh", "-c", "cat /proc/self/status"]
CHOWN = ["sh", "-c", 'chown 65534 "$1"', "sh"]
DAC_OVERRIDE = 1 << 1
root = pytest.mark.skipif(os.getuid() != 0, reason="only root has capabilities")
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed"
)


def status(command: Sequence[str]) -> dict[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)


def test_it_gains_no_privileges(tmp_path: Path) -> None:
    found = status(confined(STATUS, tmp_path))
    assert found["NoNewPrivs"] == "1"
    assert int(found["CapEff"], 16) == 0
    assert status(STATUS)["NoNewPrivs"] == "0"  # the control


@root
def test_roots_has_no_capability(tmp_path: Path) -> None:
    found = status(confined(STATUS, tmp_path))
    assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "0" * 16
    }
    assert int(status(STATUS)["CapEff"], 16)  # the control
    file = tmp_path / "file"
    file.touch()
    subprocess.run([*CHOWN, file], check=True)  # the control
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(confined([*CHOWN, str(file)], tmp_path), check=True, capture_output=True)


@root
def test_files_of_another_user_can_be_opened(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "kernel").write_text("Linux")
    os.chown(home, 65534, 65534)
    read = ["sh", "-c", f"cat /proc/self/status; cat {home}/kernel", "-kernel", f"{home}/kernel"]
    done = subprocess.run(
        confined(read, tmp_path), capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.endswith("Linux")
    assert f"CapEff:\t{DAC_OVERRIDE:016x}\n" in done.stdout
    # The control: without its path in the command line it is not expected to open it.
    hidden = ["sh", "-c", f"cat {home.parent}/h*/kernel"]
    assert subprocess.run(confined(hidden, tmp_path), capture_output=True).returncode


@needs_qemu
def test_qemu_filters_its_system_calls_and_is_found_by_its_guest(
    lab_home: Path, tmp_path: Path
) -> None:
    directory = guests.directory_of("gaaaaaa")
    directory.mkdir(parents=True)
    plain = ["qemu-system-x86_64", "-nodefaults", "-machine", "none", "-display", "none", "-S"]
    for command, filtered in ((confined(plain, directory), "2"), (plain, "0")):
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + 30
                while filtered == "2" and not (directory / "qemu.pid").exists():
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.05)
                text = Path(f"/proc/{process.pid}/status").read_text()
                assert f"Seccomp:\t{filtered}\n" in text
                assert guests.qemu_pids(directory) == ([process.pid] if filtered == "2" else [])
            finally:
                process.kill()


def test_the_digest_of_a_cells_inputs_does_not_have_it(tmp_path: Path) -> None:
    for name in ("region", "base"):
        (tmp_path / name).write_bytes(bytes(4096))
    guest = sealed.Guest(
        kernel=tmp_path / "kernel",
        initramfs=tmp_path / "initrd",
        region=tmp_path / "region",
        base=tmp_path / "base",
    )
    line = sealed.command(guest)
    assert SANDBOX not in line
    started = confined(line, tmp_path)
    assert started[started.index("--") + 1 :][: len(line)] == line
