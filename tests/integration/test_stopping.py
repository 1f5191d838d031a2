"""A sealed guest that stops at a time of its clock, with a program in QEMU's place."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from drive import region
from drive.requests import ENTRY
from lab.core.errors import GuestError, InputError, LabError
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual.stopping import Stopped, StoppingBackend
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import Procedure, SealDisks, SealedDisk
from tests.fakes import guest_record

PLAYED = """\
#!{python}
# Answers as QEMU's monitor does. The guest runs at `cont`: it writes to its region, and stops.
import json, os, re, socket, struct, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from drive import region
line = " ".join(sys.argv)
monitor = re.search(r"-qmp unix:([^,]+)", line)[1]
path = Path(re.search(r"id=region,mem-path=([^,]+)", line)[1])
assert "pvpanic" in line and "panic=pause" in line
server = socket.socket(socket.AF_UNIX)
server.bind(monitor)
server.listen()
file = server.accept()[0].makefile("rw")

def say(**what):
    file.write(json.dumps(what) + chr(10))
    file.flush()

def run(phase, output):
    with path.open("r+b") as data:
        found = region.HEADER.unpack(os.pread(data.fileno(), region.HEADER.size, 0))
        output_at, log_at, state_at = found[11], found[13], found[5]
        log = b"[    1.0] one" + b"{newline}" + b"[    2.0] two" + b"{newline}"
        os.pwrite(data.fileno(), output, output_at)
        os.pwrite(data.fileno(), log, log_at)
        state = list(region.STATE.unpack(os.pread(data.fileno(), region.STATE.size, state_at)))
        state[0], state[7], state[9], state[11] = phase, len(output), len(log), 2_000_000_000
        os.pwrite(data.fileno(), region.STATE.pack(*state), state_at)

say(QMP={{}})
for line in file:
    asked = json.loads(line)
    name, given = asked["execute"], asked.get("arguments", {{}})
    if name == "human-monitor-command":
        socket.socket(socket.AF_UNIX).bind(re.search("unix:([^,]+)", given["command-line"])[1])
    if name == "dump-guest-memory":
        Path(given["protocol"].removeprefix("file:")).write_text(json.dumps(given))
    say(**{{"return": {{}}}})
    if name == "cont":
        {ending}
"""
STOPS = "run(1, bytes.fromhex({output!r})); say(event='STOP')"
ENDS = "run(2, b'{newline}'); sys.exit(0)"
BREAKS = "print('it broke', flush=True); sys.exit(1)"


def output() -> bytes:
    entry = ENTRY.pack(1_500_000_000, 8, 4096, 1, 0, b"D", 0, 0, 0)
    return b"said so far\n@lab requests 2000000000 1 1\n" + entry


@pytest.fixture
def record(lab_home: Path, tmp_path: Path) -> GuestRecord:
    directory = tmp_path / "g"
    directory.mkdir()
    return guest_record(directory)


def stopped(
    record: GuestRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> list[Stopped]:
    """Run a guest that ends so, and return what was stopped; its core is in ``core``."""
    newline = "\\n"
    emulator, base = tmp_path / "qemu", tmp_path / "base"
    with base.open("wb") as new:
        new.truncate(region.ALIGNMENT)
    emulator.write_text(
        PLAYED.format(
            python=sys.executable,
            root=str(Path(__file__).parents[2]),
            newline=newline,
            ending=ending.format(output=output().hex(), newline=newline),
        )
    )
    emulator.chmod(0o755)
    kit = SealedKit(
        emulator=str(emulator),
        kernel=str(tmp_path / "kernel"),
        initramfs=str(tmp_path / "initramfs"),
        base=str(base),
        memory=256,
        digests={"kernel": "k"},
    )
    found: list[Stopped] = []

    def then(one: Stopped) -> None:
        one.core(tmp_path / "core")
        one.serve_gdb(tmp_path / "gdb")
        found.append(one)

    bench = StoppingBackend(
        record,
        kit,
        stop=2_000_000_000,
        then=then,
        tell=lambda _step: None,
        notice=lambda _text: None,
        cold=True,
    )
    disk = SealedDisk(serial="disk1", size=1 << 20)
    step = SealDisks(disks=(disk,))
    bench.take(
        CellJob(id="c", procedure=Procedure(name="c", steps=(step,)), directory="", target="")
    )
    try:
        bench.seal_disks(step)
    finally:
        bench.destroy_guest()
    return found


def test_a_stopped_guest_is_read_dumped_and_served(
    record: GuestRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = stopped(record, tmp_path, monkeypatch, STOPS)
    assert (one.found.nanoseconds, one.found.output) == (2_000_000_000, b"said so far")
    assert [event.sector for event in one.found.events] == [8]
    assert one.log == "[    1.0] one\n[    2.0] two\n"
    # The memory alone, not the region behind it.
    asked = (tmp_path / "core").read_text()
    assert f'"length": {256 << 20}' in asked
    assert '"begin": 0' in asked
    assert (tmp_path / "gdb").is_socket()
    assert not (record.path / "region").exists()


@pytest.mark.parametrize(
    ("ending", "kind", "said"),
    [
        (ENDS, InputError, r"--at: the guest ended at 2.000 s of its clock \(powered_off\)"),
        (BREAKS, GuestError, "QEMU has ended: it broke"),
    ],
)
def test_a_guest_that_ends_before_is_an_error(
    record: GuestRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    kind: type[LabError],
    said: str,
) -> None:
    with pytest.raises(kind, match=said):
        stopped(record, tmp_path, monkeypatch, ending)
    assert not (record.path / "region").exists()


def test_an_entry_is_as_long_as_the_drivers() -> None:
    assert ENTRY.size == struct.calcsize("<QQIHHcBHI") == 32
