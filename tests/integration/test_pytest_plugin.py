"""The pytest plug-in without guests: collected tests, errors, and the objects that tests get.

The engine is fake: runs are stored ones, and the guest pool's guests do not boot.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.core.errors import CommandError, GuestError, InputError
from lab.host.guest.ssh import connection
from lab.host.guest.ssh.channels import Meter
from lab.host.guest.ssh.shell import Shell
from lab.host.system.once import once
from lab.model.execution.procedure import Output
from lab.run import guest_pool
from lab.testing import pool
from lab.testing.asked import FIELDS, asked_for
from lab.testing.guest_objects import LabGuest, pairs
from lab.testing.scenarios import looks_like_one
from tests import still
from tests.fakes import PLUGIN
from tests.runs import SMALL

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = """\
claims:
  - id: Q-1
    says: It reads
    expect: {kind: bound, value: {workload: read, where: {array.layout: parity-last}}, at_least: 1}
  - id: Q-2
    says: It reads a terabyte
    expect:
      {kind: bound, value: {workload: read, where: {array.layout: parity-last}}, at_least: 1000GB/s}
  - id: Q-3
    says: The other cell reads
    expect:
      {kind: bound, value: {workload: read, where: {array.layout: left-symmetric}}, at_least: 1}
"""
SCENARIO = SMALL + CLAIMS


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An inner pytest whose engine stands still; the file in which it is written what was asked."""
    count = tmp_path / "count"
    count.touch()
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # pytest's summary has every line there
    monkeypatch.setenv("COUNT", str(count))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    still.install(monkeypatch.setattr)
    return count


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, *words)


def scenario(pytester: pytest.Pytester, name: str = "question", text: str = SCENARIO) -> str:
    (pytester.path / f"{name}.yaml").write_text(text)
    return f"{name}.yaml"


# -- scenarios


def test_each_claim_is_a_test_and_ends_as_its_verdict(
    pytester: pytest.Pytester, engine: Path
) -> None:
    found = run(pytester, scenario(pytester), "-v", "-rs")
    found.assert_outcomes(passed=1, failed=2, skipped=1)
    found.stdout.fnmatch_lines(
        [
            "question.yaml::Q-1 PASSED*",
            "question.yaml::Q-2 FAILED*",
            "question.yaml::Q-3 SKIPPED*",
            "question.yaml::cells FAILED*",
        ]
    )
    found.stdout.fnmatch_lines(
        ["refuted: It reads a terabyte", "  * was measured*", "  expected: at least 1000.00 GB/s"]
    )
    found.stdout.fnmatch_lines(
        [
            "1 of 2 cells did not finish:",
            "  left-symmetric-* is lost: the guest panicked",
        ]
    )
    said = found.stdout.str()
    line = 1 + SCENARIO[: SCENARIO.index("  - id: Q-3")].count("\n")
    at = rf"SKIPPED \[1\] question.yaml:{line}"
    assert re.search(rf"{at}: inconclusive: the cell left-symmetric-\w+ is lost", said)
    assert "Traceback" not in said
    assert "scenarios.py" not in said
    assert len(engine.read_text().splitlines()) == 1


def test_one_claim_can_be_asked_for(pytester: pytest.Pytester) -> None:
    found = run(pytester, scenario(pytester) + "::Q-1")
    found.assert_outcomes(passed=1)


def test_a_run_that_failed_fails_every_claim_with_one_sentence(
    pytester: pytest.Pytester, engine: Path
) -> None:
    found = run(pytester, scenario(pytester, "trouble"))
    found.assert_outcomes(failed=4)
    assert found.stdout.str().count("there is no QEMU\n  install it") == 4
    assert len(engine.read_text().splitlines()) == 1


@pytest.mark.parametrize("words", [("-n", "2"), ("-n", "2", "--dist", "loadgroup")])
def test_several_processes_run_a_scenario_once(
    pytester: pytest.Pytester, engine: Path, words: tuple[str, ...]
) -> None:
    pytester.makeconftest(still.IN_A_CONFTEST)
    files = [scenario(pytester), scenario(pytester, "trouble")]
    found = pytester.runpytest_subprocess(*PLUGIN, *words, *files)
    found.assert_outcomes(passed=1, failed=6, skipped=1)
    assert sorted(engine.read_text().splitlines()) == ["run question", "run trouble"]


def test_only_what_was_named_or_matches_is_collected(pytester: pytest.Pytester) -> None:
    (pytester.path / "scenarios").mkdir()
    scenario(pytester, "scenarios/question")
    (pytester.path / "scenarios/compose.yaml").write_text("services: {}\nguest: x\n")
    pytester.makepyfile("def test_it(): pass")
    run(pytester).assert_outcomes(passed=1)
    run(pytester, "scenarios").assert_outcomes()
    named = run(pytester, "scenarios/question.yaml", "--collect-only")
    named.stdout.fnmatch_lines(["*<ClaimItem Q-1>*"])
    run(pytester, "scenarios/compose.yaml").stderr.fnmatch_lines(["ERROR: not found: *compose*"])
    pytester.makeini("[pytest]\nlab_scenarios = scenarios/quest*.yaml other/*.yaml\n")
    run(pytester).assert_outcomes(passed=2, failed=2, skipped=1)


def test_a_wrong_scenario_is_told_with_file_line_and_key(pytester: pytest.Pytester) -> None:
    wrong = SCENARIO.replace("chunk: 64KiB", "chunks: 64KiB")
    found = run(pytester, scenario(pytester, text=wrong))
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["*question.yaml:4: array.chunks: unknown key 'chunks': did you*"])
    assert "Traceback" not in found.stdout.str()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (SCENARIO, True),
        ("title: x\nquestion: y\nworkloads: [", True),
        ("services:\n  web:\n    disks: 3\n    array: 2\n    title: 1\n", False),
        ("title: x\n", False),
        ("", False),
    ],
)
def test_what_looks_like_a_scenario(tmp_path: Path, text: str, is_one: bool) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert looks_like_one(tmp_path / "x.yaml") is is_one
    assert not looks_like_one(tmp_path / "none.yaml")


def test_pytests_own_junit_has_the_figures(pytester: pytest.Pytester) -> None:
    run(pytester, scenario(pytester), "--junitxml=j.xml", "-o", "junit_family=xunit1")
    text = (pytester.path / "j.xml").read_text()
    assert '<property name="verdict" value="holds"' in text
    assert '<property name="measured" value="' in text


# -- guests

GUESTS = """\
import pytest
@pytest.mark.lab(disks=2, image="debian-12")
def test_guest(lab_guest):
    assert lab_guest.disks == ("/dev/disk/by-id/virtio-disk1", "/dev/disk/by-id/virtio-disk2")
    assert lab_guest.run("exit 7").status == 7
    assert lab_guest.name == "g1"

@pytest.mark.lab(disks=5, throttle="5MiB/s", level=5)
def test_array(lab_array, lab_guest):
    assert lab_array is lab_guest
    assert lab_array.device == "/dev/md/bench"

def test_without_disks(lab_guest):
    assert lab_guest.disks == ()
"""


def test_each_test_gets_a_guest_and_gives_it_back(pytester: pytest.Pytester, engine: Path) -> None:
    pytester.makepyfile(GUESTS)
    run(pytester, "--strict-markers").assert_outcomes(passed=3)
    assert engine.read_text().splitlines() == [
        *("lend debian-12 2 False", "back g1"),
        *("lend debian-12 5 False", "back g2"),
        *("lend debian-12 0 False", "back g3"),
        "close",
    ]


def test_a_scope_is_what_it_is_for_fixtures(pytester: pytest.Pytester, engine: Path) -> None:
    pytester.makepyfile(
        """\
        import pytest
        pytestmark = pytest.mark.lab(disks=1, scope="module")

        def test_one(lab_guest): assert lab_guest.name == "g1"
        def test_two(lab_guest): assert lab_guest.name == "g1"

        @pytest.mark.lab(disks=2)
        def test_three(lab_guest): assert lab_guest.name == "g2"

        @pytest.mark.lab(scope="class")
        class TestThem:
            def test_four(self, lab_guest): assert lab_guest.name == "g3"
            def test_five(self, lab_guest): assert lab_guest.name == "g3"

        @pytest.mark.lab(scope="function", fresh=True)
        def test_six(lab_guest): assert lab_guest.name == "g4"
        """
    )
    run(pytester).assert_outcomes(passed=6)
    assert engine.read_text().splitlines() == [
        *("lend debian-12 1 False", "lend debian-12 2 False", "lend debian-12 1 False"),
        *("back g3", "lend debian-12 1 True", "back g4", "back g2", "back g1", "close"),
    ]


def test_a_fixture_of_any_scope_can_borrow(pytester: pytest.Pytester, engine: Path) -> None:
    pytester.makepyfile(
        """\
        import pytest
        @pytest.fixture(scope="module")
        def mine(lab_guests):
            with lab_guests.borrow(disks=4, level=6) as array:
                yield array
        def test_one(mine): assert mine.device == "/dev/md/bench"
        def test_two(mine): assert mine.name == "g1"
        def test_three(lab_guests):
            with lab_guests.borrow(disk=4): pass
        """
    )
    found = run(pytester)
    found.assert_outcomes(passed=2, failed=1)
    found.stdout.fnmatch_lines(["*test_a_fixture*.py:9: @pytest.mark.lab: disk: *'disks'*"])
    assert engine.read_text().splitlines()[:2] == ["lend debian-12 4 False", "back g1"]


def test_a_guest_that_dies_shows_its_console(pytester: pytest.Pytester, engine: Path) -> None:
    pytester.makepyfile(
        """\
        import pytest
        pytestmark = pytest.mark.lab(scope="module")
        def test_it(lab_guest):
            lab_guest.run("die")
        def test_the_next_has_another(lab_guest):
            assert lab_guest.name == "g2"
        def test_other(lab_guest):
            assert lab_guest.run("exit 1").status == 0
        """
    )
    found = run(pytester)
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(
        [
            '>*lab_guest.run("die")',
            "E * the guest 'g1' panicked",
            "E * its last words",
            "*- lab guest g1: last commands -*",
            "no end * die",
            "*- lab guest g1 is dead: console -*",
            "Kernel panic - not syncing: planted",
            "*- lab guest g2: last commands -*",
            "exit 1 * exit 1",
        ]
    )
    assert "lab/testing" not in found.stdout.str()
    assert "lab guest g1: /proc/mdstat" not in found.stdout.str()  # a dead guest has none
    assert "console is empty" not in found.stdout.str()


FAILS = """\
import pytest
from lab.core.errors import CommandError

@pytest.mark.lab(disks=3, level=5)
def test_passes(lab_array):
    print("printed by a test that passes")
    lab_array.run("exit 3")

@pytest.mark.lab(disks=3, level=5)
def test_fails(lab_array):
    for number in range(20):
        lab_array.run(f"echo {number}")
    lab_array.run("exit 4")
    assert False, "planted"

@pytest.fixture(scope="module")
def mine(lab_guests):
    with lab_guests.borrow(disks=1) as guest:
        guest.run("echo set up")
        yield guest

def test_one(mine):
    mine.run("echo one")

def test_two(mine):
    mine.run("exit 5", check=True)

def test_that_does_not_use_it():
    assert False, "no guest"

@pytest.mark.lab(disks=1)
def test_ends(lab_guest):
    lab_guest.run("sleep 60", timeout=2)

@pytest.fixture
def undone(lab_guest):
    yield
    lab_guest.run("exit 6", check=True)

@pytest.mark.lab(disks=1)
def test_teardown(undone): pass
"""


@pytest.mark.parametrize("words", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "xdist"])
def test_a_failed_test_shows_its_last_commands_and_mdstat(
    pytester: pytest.Pytester, words: tuple[str, ...]
) -> None:
    pytester.makeconftest(still.IN_A_CONFTEST)
    pytester.makepyfile(test_f=FAILS)
    found = pytester.runpytest_subprocess(*PLUGIN, "-rA", *words)
    found.assert_outcomes(passed=3, failed=4, errors=1)
    text = found.stdout.str()

    def part_of(test: str) -> str:
        start = re.search(rf"^_+ (ERROR at \w+ of )?{test} _+$", text, re.MULTILINE)
        assert start, test
        return re.split(r"^(?:_|=){5,}.*$", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]

    fails = part_of("test_fails")
    assert re.findall(r"^exit \d +\d\.\d s  (.*)$", fails, re.MULTILINE) == [
        *(f"echo {number}" for number in range(11, 20)),
        "exit 4",
    ]
    assert "    echo 19\n" in fails  # what the command printed
    assert re.search(r"^-+ lab guest g\d: /proc/mdstat -+$", fails, re.MULTILINE)
    assert "md127 : active raid5 vdb[0] vdc[1]" in fails

    two = part_of("test_two")
    assert re.search(r"E +lab.core.errors.CommandError: exit status 5: exit 5\nE +stdout:", two)
    commands = two.index("last commands")
    places = [two.index(s, commands) for s in ("echo set up", "echo one", "--- this test: ---")]
    assert sorted(places) == places
    assert two.index("exit 5", commands) > places[-1]
    assert "last commands" not in part_of("test_that_does_not_use_it")

    ends = part_of("test_ends")
    assert re.search(
        r"^E +lab.core.errors.GuestError: a command in .* 2 s: sleep 60$", ends, re.MULTILINE
    )
    assert re.search(r"^no end +\d+\.\d s  sleep 60$", ends, re.MULTILINE)
    assert "above exception" not in text
    assert re.search(r"^exit 6 +0.0 s  exit 6$", part_of("test_teardown"), re.MULTILINE)
    assert "exit 3" not in text


def test_nothing_of_a_guest_is_shown_where_all_tests_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(GUESTS)
    found = run(pytester, "-rA")
    found.assert_outcomes(passed=3)
    assert "last commands" not in found.stdout.str()
    assert "mdstat" not in found.stdout.str()


def test_a_command_that_has_to_succeed_says_what_it_printed() -> None:
    output = Output(status=2, stdout="1\n" * 100, stderr="mdadm: oh\nno\n", seconds=0.1)
    loan: Any = SimpleNamespace(visit=SimpleNamespace(run=lambda script, timeout: output))
    guest = LabGuest(loan)
    assert guest.run("mdadm --stop /dev/md0\ntrue") == output
    with pytest.raises(CommandError) as found:
        guest.run("mdadm --stop /dev/md0\nfalse", check=True)
    error = found.value
    assert (error.command, error.status) == ("mdadm --stop /dev/md0\nfalse", 2)
    assert (error.stdout, error.stderr) == (output.stdout, output.stderr)
    lines = str(error).splitlines()
    assert lines[:5] == [
        "exit status 2: mdadm --stop /dev/md0 …",
        "  stderr:",
        "    mdadm: oh",
        "    no",
        "  stdout:",
    ]
    assert lines[5:7] == ["    (… 80 lines)", "    1"]
    assert len(lines) == 26
    silent = CommandError("false", status=1, stdout="", stderr="\n")
    assert str(silent) == "exit status 1: false\n  it printed nothing"


class LocalSh:
    """A channel of SSH with a shell of this host behind it."""

    def __init__(self) -> None:
        self.pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.seconds = 0.0

    def exec_command(self, _command: str) -> None:
        self.sh = subprocess.Popen(["sh"], **self.pipes)  # type: ignore[call-overload]

    def settimeout(self, seconds: float) -> None:
        self.seconds = seconds

    def send(self, data: bytes) -> int:
        self.sh.stdin.write(data)
        self.sh.stdin.flush()
        return len(data)

    def _read(self, pipe: Any, size: int) -> bytes:
        if not select.select([pipe], [], [], self.seconds)[0]:
            raise TimeoutError
        return os.read(pipe.fileno(), size)

    def recv(self, size: int) -> bytes:
        return self._read(self.sh.stdout, size)

    def recv_stderr(self, size: int) -> bytes:
        return self._read(self.sh.stderr, size)

    def recv_ready(self) -> bool:
        return bool(select.select([self.sh.stdout], [], [], 0)[0])

    def recv_stderr_ready(self) -> bool:
        return bool(select.select([self.sh.stderr], [], [], 0)[0])

    def close(self) -> None:
        self.sh.kill()
        self.sh.communicate()


def test_a_timeout_names_the_command_that_the_test_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    channel = LocalSh()
    transport = SimpleNamespace(is_active=lambda: True, open_session=lambda timeout: channel)
    client: Any = SimpleNamespace(get_transport=lambda: transport)
    found = object.__new__(connection.GuestConnection)
    found.record = still.GuestConnection("g1").record
    with socket.socket() as unused:
        found._shell = Shell(client, Meter(unused), lambda: None)
    monkeypatch.setattr(connection.guests, "require_alive", lambda _record: None)
    # a line that fails does not end the script, and its status is that of the last one
    output = found.run("echo a; false; echo b\n(exit 7)", 10)
    assert (output.status, output.stdout) == (7, "a\nb\n")
    with pytest.raises(GuestError, match=r"1 seconds: sleep 61 …$") as told:
        found.run("\nsleep 61\necho never", 1)
    assert "set +e" not in told.value.message


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"disk": 5}, "disk: unknown argument: did you mean 'disks'?"),
    ({"disks": 2, "throttle": {"total": 1}, "level": 1}, "throttle: unknown key 'total'"),
    ({"disks": 2, "level": 6}, "disks: RAID 6 needs at least 4 members"),
    ({"disks": 3}, "level: is missing"),
    ({"level": 5}, "disks: is missing"),
    ({"disks": 3, "level": 5, "scope": "package"}, "scope: expected one of function, class"),
    ({"disks": 3, "level": 5, "fresh": 1}, "fresh: expected True or False, found 1"),
    ({"disks": 3, "level": 5, "set": 1}, "set: expected {'dotted.name': value}"),
    ({"disks": 3, "level": 5, "set": {"disks.buss": "scsi"}}, "disks.buss: unknown key 'buss'"),
    ({"disks": 3, "level": 5, "memory": "1MiB"}, "memory: 1MiB is too little: a Debian guest"),
    ({"disks": 3, "level": 5, "image": "NO"}, "image: expected an image's name, such as"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[str(w) for w, _ in WRONG])
def test_what_is_wrong_is_said_in_the_markers_words(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as found:
        asked_for(words, array=True, place="test_x.py:3", path=Path("test_x.py"))
    assert found.value.message.startswith(f"test_x.py:3: @pytest.mark.lab: {said}")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [("level", "lab_array"), ("chunk", "lab_array"), ("size", "disks=N"), ("throttle", "disks=N")],
)
def test_a_guest_has_no_array_and_no_disk_that_nobody_asked_for(word: str, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"^t:1: @pytest\.mark\.lab: {word}: .*{remedy}"):
        asked_for({word: 1}, array=False, place="t:1", path=Path("t"))


def test_every_word_reaches_its_field() -> None:
    words: dict[str, Any] = {
        "image": "debian-13",
        "cpus": 2,
        "memory": "768MiB",
        "disks": 4,
        "size": "2GiB",
        "throttle": "5MiB/s",
        "level": 6,
        "chunk": "128KiB",
        "set": {"disks.bus": "scsi", "array.name": "mine"},
    }
    asked = asked_for(words, array=True, place="t:1", path=Path("t.py"))
    cell = asked.compiled.base
    assert cell.array is not None
    assert (cell.guest.image, cell.guest.cpus, cell.guest.memory) == ("debian-13", 2, 768 << 20)
    assert (len(cell.each_disk), cell.disks[0].size, cell.disks[0].bus) == (4, 2 << 30, "scsi")
    assert cell.disks[0].throttle.total_bytes_per_second == 5 << 20
    assert (cell.array.level, cell.array.chunk, cell.array.name) == ("6", 128 << 10, "mine")


def test_every_word_is_a_field_of_a_scenario(cli: Any) -> None:
    schema = cli("schema", "scenario").json
    for field in FIELDS.values():
        section, _, name = field.partition(".")
        model = {"guest": "Guest", "disks": "Disk", "array": "Array"}[section]
        assert name in schema["$defs"][model]["properties"], field


def test_a_wrong_marker_is_one_sentence_and_nothing_is_lent(
    pytester: pytest.Pytester, engine: Path
) -> None:
    pytester.makepyfile(
        test_w="""\
        import pytest
        @pytest.mark.lab(disks=3, level=5, chunk="3KiB")
        def test_chunk(lab_array): pass
        @pytest.mark.lab(5)
        def test_position(lab_guest): pass
        def test_without(lab_array): pass
        """
    )
    found = run(pytester)
    found.assert_outcomes(errors=3)
    found.stdout.fnmatch_lines(
        [
            "test_w.py:2: @pytest.mark.lab: chunk: *",
            "test_w.py:4: @pytest.mark.lab: expected *found 5",
            "test_w.py:6: lab_array needs the marker*level=5)",
        ]
    )
    said = found.stdout.str().partition("short test summary")[0]
    assert said.count("chunk: 3KiB") == 1
    assert said.count("found 5") == 1
    assert said.count("needs the marker") == 1
    assert "exception" not in said
    assert "Traceback" not in said
    assert engine.read_text() == "close\n"


def test_an_image_that_is_not_there_is_the_markers_word_too(
    lab_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GuestPool", guest_pool.GuestPool)
    real = pool.Pool(tmp_path, [])
    place = r"test_pytest_plugin.py:\d+: @pytest.mark.lab: image: there is no image 'debian-1'"
    with pytest.raises(InputError, match=place), real.borrow(disks=1, image="debian-1"):
        pytest.fail("it was lent")
    real.close()
    assert not lab_home.exists()


# -- what it costs, and what several processes share


def test_a_project_that_does_not_use_it_imports_nothing_of_the_lab(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """\
        import sys
        def test_it():
            mine = sorted(m for m in sys.modules if m == "lab" or m.startswith("lab."))
            assert mine == ["lab", "lab.testing", "lab.testing.plugin"]
            assert not {"pydantic", "paramiko", "libvirt", "rich"} & set(sys.modules)
        """
    )
    (pytester.path / "other.yaml").write_text(SCENARIO)
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_the_plugins_own_modules_take_no_time(tmp_path: Path) -> None:
    code = "import pytest, lab.testing.plugin"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    times = re.findall(r"import time: +(\d+) \| +(\d+) \| +(lab\S*)", done.stderr)
    assert {name for _, _, name in times} == {"lab", "lab.testing", "lab.testing.plugin"}
    assert sum(int(own) for own, _, _ in times) < 50_000  # microseconds; 1 500 on a quiet machine


WORK = """\
import sys, time, pathlib
from lab.host.system.once import once
from lab.testing import pool
def work():
    with open(sys.argv[2], "a") as file: file.write("x")
    time.sleep(0.3)
    if sys.argv[3] == "dies": raise SystemExit(9)
    return "done"
print(once(pathlib.Path(sys.argv[1]), "name", work))
"""


def test_work_is_done_once_and_again_where_it_was_not(tmp_path: Path) -> None:
    def start(how: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WORK, str(tmp_path), str(tmp_path / "log"), how]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    first = start("dies")
    assert first.communicate()[0] == ""
    rest = [start("works") for _ in range(3)]
    assert [p.communicate()[0] for p in rest] == ["done\n"] * 3
    assert (tmp_path / "log").read_text() == "xx"
    assert once(tmp_path, "name", lambda: pytest.fail("it was done")) == "done"


def test_what_mdadm_says_of_an_array_is_pairs() -> None:
    text = (
        "/dev/md/bench:\n           Version : 1.2\n        Raid Level : raid5\n"
        "             State : clean, degraded \n\n    Number   Major   Minor   RaidDevice State\n"
        "       0     254       16        0      active sync   /dev/vdb\n"
        "              Name : any:bench\n"
    )
    assert pairs(text) == {
        "Version": "1.2",
        "Raid Level": "raid5",
        "State": "clean, degraded",
        "Name": "any:bench",
    }
