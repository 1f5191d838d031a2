"""`make setup` names missing packages in a sentence, and does not use a partial environment.

The script runs in its own directory, with small fakes of the system's programs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Reports that all packages are installed, except those in the file `missing`.
DPKG_QUERY = """
shift 3
for package in "$@"; do
    grep -qx -- "$package" {base}/missing || echo "installed $package"
done
"""

# Makes an environment whose pip records its arguments, and fails if `broken` says so.
PYTHON = """
case "$*" in
--version) echo Python 3.11.0 ;;
"-m venv --clear .venv")
    echo "$*" >>{base}/log
    rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*" install "*)
    echo "$*" >>{base}/log
    grep -qxF -- "${{!#}}" {base}/broken && exit 1
    touch .venv/bin/lab && chmod +x .venv/bin/lab ;;
esac
"""


@dataclass(frozen=True)
class Checkout:
    base: Path
    tree: Path

    def stand_in(self, name: str, script: str) -> None:
        path = self.base / "bin" / name
        path.write_text("#!/bin/bash\n" + script.format(base=self.base))
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.base / name).write_text(text)

    def setup(self, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.tree / "tools/setup.sh"],
            env={"PATH": str(self.base / "bin"), "PYTHON": str(self.base / "bin/python")} | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def log(self) -> list[str]:
        path = self.base / "log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def stamp(self) -> Path:
        return self.tree / ".venv/.setup-stamp"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A machine with only the tools of the script itself: no sudo, an ordinary user."""
    made = Checkout(tmp_path, tmp_path / "tree")
    shutil.copytree(ROOT / "tools", made.tree / "tools")
    shutil.copytree(ROOT / "requirements", made.tree / "requirements")
    shutil.copy(ROOT / "pyproject.toml", made.tree)
    (tmp_path / "bin").mkdir()
    needed = ["awk", "bash", "cat", "chmod", "cp", "dirname", "env", "flock", "grep", "mkdir"]
    for name in [*needed, "mktemp", "mv", "rm", "sha256sum", "tail", "touch", "tr"]:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    made.stand_in("dpkg-query", DPKG_QUERY)
    made.stand_in("python", PYTHON)
    made.stand_in("id", "[ $1 = -u ] && echo 1000 || echo someone\n")
    made.stand_in("getsubids", "exit 0\n")
    made.write("missing", "")
    made.write("broken", "nothing is broken\n")
    return made


def test_second_run_does_nothing_and_says_nothing(checkout: Checkout) -> None:
    first = checkout.setup()
    assert first.returncode == 0, first.stderr
    assert len(checkout.log()) == 4
    assert checkout.stamp.exists()
    second = checkout.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert len(checkout.log()) == 4


def test_every_download_is_held_to_its_hash(checkout: Checkout) -> None:
    checkout.setup()
    installs = [line for line in checkout.log() if " install " in line]
    assert all("--no-build-isolation" in line for line in installs)
    assert [("--require-hashes" in line, "--no-deps" in line) for line in installs] == [
        (True, False),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("part", ["requirements/build.txt", "requirements/dev.txt", "."])
def test_a_set_up_that_stopped_midway_starts_over(checkout: Checkout, part: str) -> None:
    checkout.write("broken", f"{part}\n")
    assert checkout.setup().returncode != 0
    assert not checkout.stamp.exists()
    checkout.write("broken", "")
    assert checkout.setup().returncode == 0
    assert sum("-m venv" in line for line in checkout.log()) == 2
    assert checkout.stamp.exists()


def test_a_changed_lock_is_installed_into_the_environment_there_is(checkout: Checkout) -> None:
    checkout.setup()
    with (checkout.tree / "requirements/runtime.txt").open("a") as lock:
        lock.write("# changed\n")
    assert "up to date" in checkout.setup().stdout
    assert sum("-m venv" in line for line in checkout.log()) == 1
    assert sum(" install " in line for line in checkout.log()) == 6


def test_a_moved_checkout_is_set_up_anew(checkout: Checkout) -> None:
    checkout.setup()
    moved = Checkout(checkout.base, checkout.base / "moved")
    checkout.tree.rename(moved.tree)
    moved.setup()
    assert len(moved.log()) > 4


def test_without_root_and_sudo_the_packages_are_named(checkout: Checkout) -> None:
    checkout.write("missing", "xorriso\ngcc\n")
    done = checkout.setup()
    assert done.returncode == 3
    assert "neither root" in done.stderr
    assert "--no-install-recommends xorriso gcc" in done.stderr
    assert checkout.log() == []


@pytest.mark.parametrize("root", [True, False])
def test_only_what_is_missing_is_installed_and_root_needs_no_sudo(
    checkout: Checkout, root: bool
) -> None:
    checkout.write("missing", "xorriso\n")
    checkout.stand_in("sudo", 'echo sudo "$1" >>{base}/log; exec "$@"\n')
    checkout.stand_in("dpkg", "exit 0\n")
    checkout.stand_in("apt-get", 'echo apt-get "$DEBIAN_FRONTEND" "${{!#}}" >>{base}/log\n')
    if root:
        checkout.stand_in("id", "echo 0\n")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert [line for line in checkout.log() if line.startswith("apt-get")] == [
        "apt-get noninteractive update",
        "apt-get noninteractive xorriso",
    ]
    assert any(line.startswith("sudo") for line in checkout.log()) == (not root)
    assert ("sudo is asked to install them: xorriso" in done.stdout) == (not root)


def test_packages_that_cannot_be_installed_end_with_a_sentence(checkout: Checkout) -> None:
    checkout.write("missing", "xorriso\n")
    checkout.stand_in("id", "echo 0\n")
    checkout.stand_in("dpkg", "exit 0\n")
    checkout.stand_in("apt-get", 'case "$*" in *install*) echo E: no space; exit 100;; esac\n')
    done = checkout.setup()
    assert done.returncode == 3
    assert "E: no space" in done.stderr
    assert "could not be installed" in done.stderr
    assert checkout.log() == []


def test_user_without_subordinate_ids_is_given_a_range(checkout: Checkout) -> None:
    checkout.stand_in("getsubids", "exit 1\n")
    checkout.stand_in("sudo", 'echo "$*" >>{base}/log\n')
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "'someone' has no subordinate ids" in done.stdout
    [command] = [line for line in checkout.log() if line.startswith("usermod")]
    found = re.fullmatch(
        r"usermod --add-subuids (\d+)-(\d+) --add-subgids (\1)-(\2) someone", command
    )
    assert found is not None
    assert int(found[2]) - int(found[1]) == 65535
