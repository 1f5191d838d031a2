"""``lab exec``: its words, the guest that its options describe, and its result in virtual time."""

from __future__ import annotations

import io
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.session import exec_machine, logic
from lab.capabilities.session.model import WORK, Ended, Job, Machine
from lab.cli.commands import app
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.program import programs, trials
from lab.compile.scenario.bare import bare
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import InputError, ToolError
from lab.core.yaml import parse_override
from lab.host.system import tars
from lab.run.scripts import stable_names
from tests.unit.test_guest_access import kind


def machine(*sets: str, scenario: str | None = None, **options: Any) -> Compiled:
    changes = [parse_override(text) for text in sets]
    return exec_machine.machine_of(Machine(**options), changes, scenario, what="exec")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script."""
    monkeypatch.chdir(tmp_path)
    Path("mine.sh").write_text("echo 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "scenario", "script", "argv"),
    [
        ("-- ls -l", None, None, "ls -l"),
        ("--disks 2 -- ls -- -l", None, None, "ls -- -l"),
        ("-- mine.sh", None, None, "mine.sh"),
        ("mine.sh a --disks 3", None, "mine.sh", "a --disks 3"),
        ("--disks 2 mine.sh -- --b", None, "mine.sh", "-- --b"),
        ("q.yaml -- ls -l", "q.yaml", None, "ls -l"),
        ("degraded --disks 5 -- ls", "degraded", None, "ls"),
        ("--cpus 2 degraded -- ls", "degraded", None, "ls"),
        ("degraded mine.sh --x", "degraded", "mine.sh", "--x"),
        ("degraded --cpus 2 mine.sh --x", "degraded", "mine.sh", "--x"),
    ],
)
def test_words_are_scenario_script_and_command(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    scenario: str | None,
    script: str | None,
    argv: str,
) -> None:
    seen: list[tuple[str | None, exec_machine.Words]] = []

    def machine_of(_machine: object, _sets: object, name: str | None, *, what: str) -> None:
        seen.append((name, seen_words[-1]))
        raise InputError(what)

    seen_words: list[exec_machine.Words] = []
    words_of = exec_machine.words_of

    def recorded(words: list[str], *, dashed: bool) -> exec_machine.Words:
        seen_words.append(words_of(words, dashed=dashed))
        return seen_words[-1]

    monkeypatch.setattr(exec_machine, "words_of", recorded)
    monkeypatch.setattr(exec_machine, "machine_of", machine_of)
    monkeypatch.setattr("sys.argv", ["lab", "exec", *line.split()])
    with pytest.raises(InputError, match="exec"):
        app(["exec", *line.split()], standalone_mode=False)
    ((found, words),) = seen
    assert (found, words.script and str(words.script)) == (scenario, script)
    assert " ".join(words.argv) == argv


def test_a_file_is_a_script_even_if_a_scenario_has_its_name(place: Path) -> None:
    Path("degraded").write_text("echo a file of that name\n")
    assert exec_machine.words_of(["degraded"], dashed=False).script == Path("degraded")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lsblk"], "neither a scenario nor a script"),
        (["q.yaml"], "nothing to run"),
        (["q.yaml", "--"], "nothing to run"),
        ([], "nothing to run"),
    ],
)
def test_wrong_words_are_explained(place: Path, words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        exec_machine.words_of(words, dashed=False)


def test_a_script_is_text_of_limited_size(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        exec_machine.script_text(path)
    path.write_text("x" * 70_000)
    with pytest.raises(InputError, match="at most 64KiB"):
        exec_machine.script_text(path)


def test_options_describe_guest_and_disks() -> None:
    cell = machine(
        "guest.kernel_arguments=[quiet]", disks=5, size="4TB", speed="10MB/s", memory="2GiB", cpus=2
    ).base
    assert len(cell.each_disk) == 5
    assert cell.disks[0].size == 4 * 10**12
    assert cell.disks[0].throttle.total_bytes_per_second == 10**7
    assert (cell.guest.memory, cell.guest.cpus) == (2 * 2**30, 2)
    assert cell.array is None
    assert machine().base.each_disk == ()
    assert machine(disks=4, level="10").base.array is not None


def test_a_model_may_be_named_by_its_preset() -> None:
    preset = next(iter(logic.PRESETS))
    disk = machine(disks=2, model=preset, clock="virtual").base.disks[0]
    assert (disk.model, disk.preset) == (logic.PRESETS[preset], preset)
    assert machine(disks=2, model="hdd", clock="virtual").base.disks[0].model == "hdd"
    with pytest.raises(InputError, match=r"--model.*'hdd_720': did you mean"):
        machine(disks=2, model="hdd_720")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "1GiB"}, "--size is for disks: add --disks"),
        ({"disks": 3, "size": "big"}, "size"),
        ({"disks": 3, "level": "7"}, "level"),
        ({"disks": 2, "level": "6"}, "disks"),
        ({"disks": 3, "clock": "none"}, "clock"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        machine(**options)


def test_a_scenario_gives_its_guest_and_array_without_its_matrix() -> None:
    found = machine(scenario="raid5-layouts", memory="1GiB")
    assert len(found.cells) == 1
    assert found.base.array is not None
    assert found.base.guest.memory == 2**30
    assert not found.base.workloads
    assert not found.scenario.claims


def test_in_virtual_time_the_command_is_a_cell_with_trials(tmp_path: Path) -> None:
    job = Job(argv=("a b", "c"), script="echo $SEED\n", trials=3, out=tmp_path)
    whole = bare(
        tmp_path / "exec.yaml",
        "lab exec",
        {},
        title="t",
        base=machine(disks=2, clock="virtual"),
        workloads=logic.workloads_of(job),
        more={"trials": 3},
    )
    (cell,) = whole.cells
    each = trials(cell_procedure(cell, "/g"))
    assert len(each) == 3
    for number, procedure in enumerate(each, 1):
        (text,) = programs(procedure).boots
        assert f'"SEED": "{number}"' in text.replace("'\"'\"'", "'")
        assert WORK in text
        assert "base64 /var/tmp/lab-files" in text


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_names_of_disks_stay_after_a_boot(clock: str) -> None:
    text = stable_names(machine(disks=2, clock=clock).base)
    kind = "virtio" if clock == "real" else "lab"
    (line,) = [line for line in text.splitlines() if line.startswith("printf")]
    _, _, first, second, _ = shlex.split(line)
    assert first.startswith(f'SUBSYSTEM=="block", SYMLINK=="disk/by-id/{kind}-disk1"')
    assert 'SYMLINK+="lab/disk2 lab/disk2 disk/by-id/lab-disk2"' in second


def test_the_status_is_the_first_that_is_not_zero() -> None:
    ended = [Ended(trial=n, seed=n, status=s, seconds=1.0) for n, s in enumerate((0, 3, 4), 1)]
    assert exec_machine.status_of(ended) == 3
    assert exec_machine.status_of(ended[:1]) == 0
    found = exec_machine.document(ended, Job(argv=("ls",)), "real")
    assert found["status"] == 3
    assert [one["trial"] for one in found["trials"]] == [1, 2, 3]


# -- files of a guest


def archive(path: Path, *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for entry in entries:
            entry.size = 2 if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(b"hi"))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, target, 0o4755
    return found


def test_files_are_unpacked_below_one_place(tmp_path: Path) -> None:
    into = tmp_path / "out"
    path = archive(tmp_path / "a.tar", entry("./a"), entry("./d/b"), entry("./e", tarfile.DIRTYPE))
    assert tars.unpack(path, into) == (str(into / "a"), str(into / "d" / "b"))
    assert (into / "d" / "b").read_bytes() == b"hi"
    assert (into / "a").stat().st_mode & 0o7777 == 0o755
    assert tars.unpack(path, into)  # files that are there are replaced


@pytest.mark.parametrize("name", ["../a", "/a", "d/../../a"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.tar", entry(name))
    with pytest.raises(ToolError, match="outside of its place"):
        tars.unpack(path, tmp_path / "out")


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    into = tmp_path / "out"
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
    names = [entry(f"x{n}", kind, "/etc") for n, kind in enumerate(kinds)]
    assert tars.unpack(archive(tmp_path / "a.tar", *names), into) == ()
    assert not list(into.iterdir())


def test_a_link_that_is_there_leads_nowhere(tmp_path: Path) -> None:
    into, other = tmp_path / "out", tmp_path / "other"
    into.mkdir()
    other.mkdir()
    (into / "d").symlink_to(other)
    (into / "a").symlink_to(other / "a")
    with pytest.raises(ToolError, match="leads out of"):
        tars.unpack(archive(tmp_path / "a.tar", entry("d/b")), into)
    with pytest.raises(ToolError, match="leads out of"):
        tars.unpack(archive(tmp_path / "a.tar", entry("a")), into)
    assert not list(other.iterdir())


def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"none")
    with pytest.raises(ToolError, match="cannot be read"):
        tars.unpack(tmp_path / "a.tar", tmp_path / "out")


def test_up_without_a_name_is_a_machine() -> None:
    assert kind("up", "--disks", "3") == "machine"
