"""The plug-in of pytest with real guests: what tests get, what is left, and scenarios as tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.host.guest import registry as guests
from tests.fakes import PLUGIN

from .conftest import Home

pytestmark = pytest.mark.guest
pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def only_named_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # pytest's summary has every line there


TESTS = """\
import pytest
from pathlib import Path
from lab.core.errors import CommandError

SMALL = {"disks": 3, "size": "256MiB", "throttle": "50MiB/s", "image": "debian-12"}

@pytest.mark.lab(**SMALL, level=5, component_size="64MiB")
def test_an_array(lab_array, lab_guest, tmp_path):
    assert lab_guest is lab_array
    facts = lab_array.detail()
    assert (facts["Raid Level"], facts["Raid Devices"]) == ("raid5", "3")
    assert lab_array.device == "/dev/md/bench"
    for disk in lab_array.disks:
        assert lab_array.run(f"mdadm --examine {disk}").status == 0
    said = lab_array.run("echo out; echo err >&2; false; id -u; exit 7")
    assert (said.stdout, said.stderr, said.status) == ("out\\n0\\n", "err\\n", 7)
    data = bytes(range(256)) * 5000
    (tmp_path / "there").write_bytes(data)
    (tmp_path / "there").chmod(0o750)
    lab_array.put(tmp_path / "there", "/srv/file")
    assert lab_array.run("stat -c '%a %s' /srv/file").stdout == "750 1280000\\n"
    assert lab_array.get("/srv/file", tmp_path / "back").read_bytes() == data
    assert lab_array.run("rm /srv/file").status == 0
    Path("names").write_text(lab_array.name)

@pytest.mark.lab(**SMALL)
def test_the_same_guest_with_blank_disks(lab_guest):
    assert lab_guest.name == Path("names").read_text()
    for disk in lab_guest.disks:
        assert lab_guest.run(f"mdadm --examine {disk}").status == 1
    assert "md" not in lab_guest.run("ls /sys/block").stdout
    lab_guest.run("mount -t tmpfs left /mnt")

@pytest.mark.lab(**SMALL, level=5)
def test_another_guest_for_that_one_was_changed(lab_array):
    assert lab_array.name != Path("names").read_text()
    assert "left" not in lab_array.run("cat /proc/mounts").stdout
    failed = lab_array.run(f"mdadm --fail {lab_array.device} {lab_array.disks[0]}")
    assert failed.status == 0, failed.stderr
    assert lab_array.detail()["State"] == "clean, degraded"

@pytest.mark.lab(**SMALL, level=5)
def test_it_fails(lab_array):
    with pytest.raises(CommandError, match="exit status 1: mdadm --re-add"):
        lab_array.run(f"mdadm --re-add {lab_array.device} missing-disk", check=True)
    lab_array.run("echo first; sleep 60", timeout=2)

@pytest.mark.lab(**SMALL)
def test_it_dies(lab_guest):
    lab_guest.run("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger", timeout=30)
"""


@pytest.mark.slow  # where others compute, its guest may be replaced by another
def test_guests_are_lent_used_again_and_their_deaths_are_shown(
    lab_home: Home, image: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(TESTS)
    found = pytester.runpytest_subprocess(*PLUGIN, "--durations=0")
    found.assert_outcomes(passed=3, failed=2)
    found.stdout.fnmatch_lines(
        [
            "E *a command in the guest did not end within 2 seconds: echo first; sleep 60",
            "*- lab guest g*: last commands -*",
            "exit 1 * mdadm --re-add /dev/md/bench missing-disk",
            "no end * echo first; sleep 60",
            "*- lab guest g*: /proc/mdstat -*",
            "md127 : active raid5 *",
            "E * the guest 'g*' panicked*",
            "*- lab guest g* is dead: console -*",
            "*Kernel panic - not syncing: sysrq triggered crash*",
        ]
    )
    found.stdout.no_fnmatch_line("*paramiko*")
    assert lab_home.left() == []


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_pytest_that_is_stopped_leaves_no_guest(
    lab_home: Home, image: str, tmp_path: Path, ending: signal.Signals
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.lab(disks=1)\n"
        "def test_it(lab_guest):\n    open('up', 'w').close(); time.sleep(60)\n"
    )
    known = {r.id for r in guests.every()}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, str(tmp_path)],
        env=lab_home.environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [r for r in guests.every() if r.id not in known and guests.is_alive(r)]
    finally:
        process.send_signal(ending)
        process.wait()
    lab_home.wait_until_nothing_is_left(20)
    assert lab_home.left() == []
