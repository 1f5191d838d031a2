"""Bad input ends with one sentence and status 2, a failing host with 3; no files are left."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.host.guest.libvirt.hypervisor import try_open
from tests.fakes import SCENARIO, Cli, clean_environment, programs, with_matrix

COMMANDS = (("scenario", "check"), ("run", "scenario"), ("up", "scenario"))
BOMB = SCENARIO + "\n".join(
    ["notes: &n0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"n{i}: &n{i} [{', '.join([f'*n{i - 1}'] * 10)}]" for i in range(1, 10)]
)


@dataclass(frozen=True, kw_only=True)
class Bad:
    text: str
    says: str
    """Regular expression of the sentence, without the file's name."""


def change(old: str, new: str) -> str:
    assert SCENARIO.count(old) == 1
    return SCENARIO.replace(old, new)


BAD = {
    "unknown key": Bad(
        text=change("layout: left-symmetric", "layuot: left-symmetric"),
        says=r":10: array\.layuot: unknown key 'layuot': did you mean 'layout'\?",
    ),
    "chunk 48KiB": Bad(
        text=change("chunk: 64KiB", "chunk: 48KiB"),
        says=r":11: array\.chunk: .*48KiB.*power of two",
    ),
    "two disks for RAID 6": Bad(
        text=change("level: 5", "level: 6").replace("count: 4", "count: 2"),
        says=r":4: disks\.count: .*RAID 6.*",
    ),
    "throttle total together with read": Bad(
        text=change("5MiB\n", "5MiB\n    read_bytes_per_second: 5MiB\n"),
        says=r":8: disks\.throttle\.read_bytes_per_second: .*total_bytes_per_second",
    ),
    "size 20 bananas": Bad(
        text=change("size: 1GiB", "size: 20 bananas"), says=r":5: disks\.size: '20 bananas' .*"
    ),
    "empty file": Bad(text="", says=r":1: the file is empty"),
    "YAML anchor bomb": Bad(text=BOMB, says=r":\d+: its aliases grow"),
    "unknown workload": Bad(
        text=SCENARIO.replace("tool: dd", "tool: ddd", 1),
        says=r":15: workloads\[0\]\.tool: .*'dd'",
    ),
    "a wrong value on an axis": Bad(
        text=with_matrix("  array.chunk: [64KiB, 48KiB]\n"),
        says=r":27: matrix\.array\.chunk: '48KiB': .*power of two",
    ),
    "an exclude that excludes nothing": Bad(
        text=with_matrix("  array.chunk: [64KiB, 128KiB]\n  exclude:\n  - array.chunk: 65536\n"),
        says=r":29: matrix\.exclude\[0\]\.array\.chunk: exclude names array\.chunk: 65536",
    ),
    "a claim about no workload": Bad(
        text=SCENARIO
        + "claims:\n  - id: c1\n    says: so\n    expect:\n      kind: bound\n"
        + "      value: {workload: wriet}\n      at_least: 1\n",
        says=r":31: claims\[0\]\.expect\.value\.workload: .* 'wriet': did you mean 'write'\?",
    ),
}


def wrong(ended_status: int, stderr: str, bad: Bad, name: str) -> list[str]:
    """Return what is wrong with an error message."""
    found = []
    if ended_status != 2:
        found.append(f"the status is {ended_status}")
    first = stderr.splitlines()[0] if stderr else ""
    if not re.match(rf"lab: {re.escape(name)}{bad.says}", first):
        found.append(f"it says {first!r}")
    if "Traceback" in stderr or "mistake in the lab" in stderr or len(stderr.splitlines()) > 3:
        found.append(f"it says too much: {stderr}")
    return found


@pytest.mark.parametrize("case", BAD)
def test_a_bad_scenario_is_refused_by_every_command_before_anything_is_made(
    cli: Cli, case: str
) -> None:
    bad = BAD[case]
    name = cli.file(bad.text)
    for command in COMMANDS:
        ended = cli(*command, name)
        assert wrong(ended.status, ended.stderr, bad, name) == [], command
        assert ended.stdout == ""
        assert ended.cpu < 3
    assert not cli.home.exists()


def test_a_good_scenario_is_not_refused(cli: Cli) -> None:
    ended = cli("scenario", "check", cli.file(SCENARIO))
    assert (ended.status, ended.stderr) == (0, "")
    assert wrong(ended.status, ended.stderr, BAD["chunk 48KiB"], "question.yaml") != []


def test_a_key_that_means_nothing_any_more_is_named_and_the_scenario_is_good(cli: Cli) -> None:
    modelled = ("model: hdd\n  hdd:\n    slower: 1\n", "total_bytes_per_second: 5MiB\n")
    text = SCENARIO.replace("throttle:\n    " + modelled[1], modelled[0])
    for command in ("check", "predict"):
        ended = cli("scenario", command, cli.file(text))
        assert ended.status == 0
        assert ended.stderr.splitlines()[0] == (
            "lab: question.yaml:8: disks.hdd.slower: a drive has its own speed: remove this key"
        )


@pytest.mark.parametrize("name", ["../raid5-parity-last", "/etc/passwd", "a/../b", "", "-x/.."])
def test_a_name_that_leaves_its_directory_is_no_name(cli: Cli, name: str) -> None:
    for command in COMMANDS:
        ended = cli(*command, "--", name)
        assert ended.status == 2
        assert ended.stderr.startswith(f"lab: '{name}' is not a scenario name")
    assert not cli.home.exists()


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ("array.chunk=48KiB", r"lab: --set array\.chunk=48KiB: array\.chunk: .*power of two"),
        ("workloads.wriet.bs=1", r"lab: --set .*: workloads has no 'wriet' \(it has write, read"),
        ("array.chunk", r"lab: --set array\.chunk: expected PATH=VALUE"),
        ("disks.size=20 bananas", r"lab: --set disks\.size=20 bananas: disks\.size: '20 bananas'"),
    ],
)
def test_a_bad_override_is_named_itself(cli: Cli, sets: str, says: str) -> None:
    name = cli.file(SCENARIO)
    for command in COMMANDS[1:]:
        ended = cli(*command, name, "--set", sets)
        assert ended.status == 2
        assert re.match(says, ended.stderr), ended.stderr
        assert "Traceback" not in ended.stderr
    assert not cli.home.exists()


def test_brackets_in_a_title_are_shown_as_they_are(cli: Cli) -> None:
    own = cli.base / ".config" / "lab" / "scenarios"
    own.mkdir(parents=True)
    (own / "odd.yaml").write_text(SCENARIO.replace("A small question", "'[/b] [red]x :smile:'"))
    for args in (("scenario", "list"), ("scenario", "show", "odd"), ("scenario", "predict", "odd")):
        ended = cli(*args)
        assert ended.status == 0, ended.stderr
        assert "[/b] [red]x :smile:" in ended.stdout


# -- a failing host


NO_LIBVIRT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("libvirt", "libvirt_qemu", "libvirtmod"):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
"""


def run_lab(base: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "lab", *args],
        env=clean_environment(base) | env,
        cwd=base,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_libvirt_nothing_is_built_or_left(tmp_path: Path) -> None:
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("QEMU is not installed")
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "sitecustomize.py").write_text(NO_LIBVIRT)
    (tmp_path / "q.yaml").write_text(SCENARIO)
    began = time.monotonic()
    ended = run_lab(tmp_path, "run", "scenario", "q.yaml", PYTHONPATH=str(stub))
    assert ended.returncode == 3
    assert "libvirt is not installed" in ended.stderr.splitlines()[0]
    assert "make setup" in ended.stderr
    assert time.monotonic() - began < 10
    assert not (tmp_path / "h").exists()


def test_the_libvirt_of_this_host_opens_when_it_is_not_hidden() -> None:
    pytest.importorskip("libvirt")
    assert re.fullmatch(r"\d+\.\d+\.\d+", try_open())


@pytest.mark.parametrize("verb", ["run", "up"])
def test_without_qemu_it_says_how_to_get_it(cli: Cli, tmp_path: Path, verb: str) -> None:
    cli.env["PATH"] = programs(tmp_path / "bin", "sh", "env", find=shutil.which)
    ended = cli(verb, "scenario", cli.file(SCENARIO))
    assert ended.status == 3
    assert ended.stderr.startswith("lab: QEMU is not installed: there is no 'qemu-system-x86_64'")
    assert "apt-get install qemu-system-x86" in ended.stderr
    assert not cli.home.exists()


@pytest.mark.parametrize("verb", ["run", "up"])
def test_an_image_that_cannot_be_built_is_told_before_anything_boots(
    short_cli: Cli, tmp_path: Path, verb: str
) -> None:
    pytest.importorskip("libvirt")
    cli = short_cli
    path = programs(tmp_path / "bin", "sh", "env", "qemu-img", "true", find=shutil.which)
    started = tmp_path / "started"
    emulator = Path(path) / "qemu-system-x86_64"
    emulator.write_text(f"#!/bin/sh\n: > {started}\necho QEMU emulator version 9.9.9\n")
    emulator.chmod(0o755)
    cli.env["PATH"] = path
    ended = cli(verb, "scenario", cli.file(SCENARIO))
    assert ended.status == 3
    assert re.match(r"lab: the image 'debian-12' cannot be built: .*is not installed", ended.stderr)
    assert "apt install " in ended.stderr
    assert not started.exists()
    assert cli.left() == []
    assert not (cli.home / "data" / "runs").exists()
    cli("doctor")  # the fake would have reported a start
    assert started.exists()


WORDS = {
    "hexadecimal": "0x" + "f" * 5000,
    "octal": "0o" + "7" * 6000,
    "binary": "0b" + "1" * 20000,
    "negative": "-0x" + "f" * 5000,
    "decimal": "9" * 400,
    "beyond 64 bits": str(2**64),
    "long": "a" * 300,
    "year 9999": "9999-12-31",
    "year 1": "0001-01-01",
    "infinite": ".inf",
    "not a number": ".nan",
    "superscript": "\u00b2",
    "denormal": "1e-320",
}
FIELDS = [line for line in SCENARIO.splitlines() if re.fullmatch(r"\s*(- )?\w+: \S.*", line)]


@pytest.mark.parametrize("name", WORDS)
def test_any_word_in_any_field_is_read_or_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    """Python refuses to print a number of 4300 digits, and 0xfff… can have any length."""
    path = tmp_path / "q.yaml"
    refused = 0
    for line in FIELDS:
        head = line.partition(": ")[0]
        path.write_text(SCENARIO.replace(f"{line}\n", f"{head}: {WORDS[name]}\n", 1))
        said = ""
        try:
            for cell in compile_scenario(path).cells:
                cell_id(cell)
        except InputError as error:
            said = error.message
        refused += bool(said)
        assert len(said) < 21_000
    assert refused


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf", "1e999"])
def test_a_wrong_factor_of_limits_is_refused_at_once(cli: Cli, value: str) -> None:
    cli.env["LAB_LIMITS"] = value
    ended = cli("run", "scenario", cli.file(SCENARIO))
    assert ended.status == 2
    assert f"LAB_LIMITS={value}: expected a positive number" in ended.stderr
    assert cli.left() == []


@pytest.mark.parametrize(
    "words",
    [
        ("scenario", "check", "a" * 300),
        ("scenario", "check", "a" * 300 + ".yaml"),
        ("scenario", "check", "/" + "x" * 5000),
        ("results", "show", "a" * 300),
        ("results", "import", "a" * 300),
        ("image", "import", "a" * 300 + ".qcow2", "--name", "x"),
        ("image", "remove", "a" * 300),
        ("matrix", "a" * 300),
        ("ssh", "a" * 300),
        ("down", "a" * 300),
        ("scenario", "new", "a" * 300),
    ],
)
def test_a_name_that_no_file_can_have_is_a_sentence(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli(*words)
    assert ended.status in (1, 2, 3), ended.stderr
    assert "bug in the lab" not in ended.stderr
    assert "Traceback" not in ended.stderr
