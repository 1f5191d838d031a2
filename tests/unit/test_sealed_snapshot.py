"""Snapshots of sealed guests, without a guest."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from drive import region
from drive.monitor import MonitorError
from lab.core.errors import GuestError, HostError
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual import region_file
from lab.host.guest.virtual import snapshot as sealed_snapshot
from lab.host.guest.virtual.sealed import SealedBackend
from lab.host.guest.virtual.snapshot import ABOUT, KEPT, MEMORY, STATE, SealedSnapshot
from lab.host.system import paths
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import GuestCommand, Procedure, SealDisks, SealedDisk
from tests.fakes import guest_record

SIZE = region.SMALLEST


@pytest.fixture
def kit(lab_home: Path, tmp_path: Path) -> SealedKit:
    base = tmp_path / "base"
    with base.open("wb") as new:
        new.truncate(region.ALIGNMENT)
    return SealedKit(
        emulator="false",
        kernel=str(tmp_path / "kernel"),
        initramfs=str(tmp_path / "initramfs"),
        base=str(base),
        memory=512,
        digests={"kernel": "k", "qemu": "q"},
    )


@pytest.fixture
def record(tmp_path: Path) -> GuestRecord:
    directory = tmp_path / "g"
    directory.mkdir()
    return guest_record(directory)


def kept(kit: SealedKit, size: int = SIZE) -> Path:
    """A whole snapshot, as one that was made before; its state is none of QEMU's."""
    directory = paths.sealed() / sealed_snapshot.name_of(kit, size)
    directory.mkdir(parents=True)
    disk = sealed_snapshot.root_disk(kit)
    blocks = sealed_snapshot.ROOT_SPACE // region.BLOCK
    region.create(directory / sealed_snapshot.REGION, [disk], size=size, blocks=blocks)
    for name in (STATE, MEMORY):
        (directory / name).write_bytes(b"x" * 100)
    sizes = ",".join(f'"{n}": {s}' for n, s in sealed_snapshot._sizes(directory).items())
    (directory / ABOUT).write_text(f'{{"digests": {{"state": "s"}}, "sizes": {{{sizes}}}}}')
    return directory


def test_everything_that_decides_a_snapshot_is_in_its_name(kit: SealedKit) -> None:
    others = [
        kit.model_copy(update={"digests": {"kernel": "k", "qemu": "r"}}),
        kit.model_copy(update={"digests": {"kernel": "l", "qemu": "q"}}),
        kit.model_copy(update={"memory": 513}),
        kit.model_copy(update={"arguments": "quiet"}),
    ]
    names = {sealed_snapshot.name_of(k, SIZE) for k in (kit, *others)}
    assert len(names) == 5
    assert sealed_snapshot.name_of(kit, 2 * SIZE) not in names
    elsewhere = kit.model_copy(update={"kernel": "/elsewhere/kernel"})
    assert sealed_snapshot.name_of(elsewhere, SIZE) in names


def test_a_snapshot_is_found_until_a_file_of_it_is_cut_off(
    kit: SealedKit, record: GuestRecord
) -> None:
    directory = kept(kit)

    def prepared() -> SealedSnapshot:
        return sealed_snapshot.prepare(kit, SIZE, directory=record.path, say=print)

    assert prepared().digests == {"state": "s"}
    os.truncate(directory / STATE, 99)
    with pytest.raises(HostError, match=r"snapshot.*: QEMU has ended"):
        prepared()
    assert not directory.exists()
    assert [p.name for p in paths.sealed().iterdir()] == [f".{directory.name}.lock"]


def saved_state(path: Path, *, bias: int, executed: int = 1_535_862_514, host: int = 0) -> Path:
    """What QEMU saves of its clocks, between other things."""
    clocks = struct.pack(">qqq", host, 0, host)
    icount = b"\x05\x0ctimer/icount" + struct.pack(">iqq", 1, bias, executed)
    path.write_bytes(b"before" + clocks + icount + b"\x7eafter timer/icount")
    return path


def test_snapshots_of_one_guest_have_one_clock(tmp_path: Path) -> None:
    """Two states as QEMU saved them: it had moved the clock of one of them to the next timer."""
    ahead = saved_state(tmp_path / "ahead", bias=16_933_254, host=100_704_085_731)
    behind = saved_state(tmp_path / "behind", bias=14_160_980, host=42_865_512_612)
    assert ahead.read_bytes() != behind.read_bytes()
    clocks = {sealed_snapshot.round_clock(path) for path in (ahead, behind)}
    assert clocks == {3_000_000_000}
    assert ahead.read_bytes() == behind.read_bytes()
    whole = saved_state(tmp_path / "whole", bias=3_000_000_000, executed=0)
    assert ahead.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("executed", [999_999_999, 1_000_000_000, 5_400_000_000])
@pytest.mark.parametrize("bias", [0, 3_999_999, 7_000_000_001])
def test_a_snapshots_clock_never_goes_back(tmp_path: Path, executed: int, bias: int) -> None:
    path = saved_state(tmp_path / "state", bias=bias, executed=executed)
    clock = sealed_snapshot.round_clock(path)
    assert clock % 10**9 == 0
    assert executed + bias <= clock <= executed + bias + 2 * 10**9


def test_a_state_without_a_clock_is_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"\x05\x0ctimer/icount\0\0\0\2" + bytes(100))
    with pytest.raises(MonitorError, match="layout"):
        sealed_snapshot.round_clock(path)


def test_old_snapshots_go(kit: SealedKit) -> None:
    made = [kept(kit, SIZE << n) for n in range(3)]
    made += [kept(kit.model_copy(update={"memory": n}), SIZE) for n in range(KEPT)]
    for age, directory in enumerate(made):
        os.utime(directory / ABOUT, (1000 - age, 1000 - age))
    sealed_snapshot._trim(made[-1])
    assert [d for d in made if d.exists()] == [*made[:KEPT], made[-1]]


DISKS = SealDisks(disks=(SealedDisk(serial="d1", size=1 << 30),))
CELL = Procedure(
    name="p", steps=(DISKS, GuestCommand(label="l", script="true", capture="c", timeout=1))
)


@pytest.mark.parametrize("saved", [True, False])
def test_where_no_snapshot_restores_the_guest_boots_and_one_line_says_so(
    kit: SealedKit, record: GuestRecord, saved: bool
) -> None:
    directory = kept(kit) if saved else None
    said: list[str] = []
    bench = SealedBackend(record, kit, tell=print, notice=said.append)
    bench.take(CellJob(id="c", procedure=CELL, directory="", target="", space=1 << 20))
    with pytest.raises(GuestError, match=r"QEMU ended with status 1"):  # the cold boot
        bench.seal_disks(DISKS)
    (line,) = said
    if directory is not None:
        assert "did not restore" in line
        assert "(QEMU has ended)" in line
        assert not directory.exists()
    else:
        assert "making the snapshot" in line
    said.clear()
    with pytest.raises(GuestError):  # not tried again in this worker
        bench.seal_disks(DISKS)
    assert said == []


def test_too_little_memory_is_not_the_snapshots_fault(
    kit: SealedKit, record: GuestRecord, tmp_path: Path
) -> None:
    """QEMU's words when `mmap` fails: the snapshot restores as soon as there is memory."""
    emulator = tmp_path / "qemu"
    said = "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory"
    emulator.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    emulator.chmod(0o755)
    kit = kit.model_copy(update={"emulator": str(emulator)})
    directory = kept(kit)
    bench = SealedBackend(record, kit, tell=print, notice=pytest.fail)
    bench.take(CellJob(id="c", procedure=CELL, directory="", target="", space=1 << 20))
    with pytest.raises(HostError, match="too little memory"):
        bench.seal_disks(DISKS)
    assert directory.exists()


def test_cold_starts_from_no_snapshot(kit: SealedKit, record: GuestRecord) -> None:
    directory = kept(kit)
    bench = SealedBackend(record, kit, tell=print, notice=pytest.fail, cold=True)
    bench.take(CellJob(id="c", procedure=CELL, directory="", target="", space=1 << 20))
    with pytest.raises(GuestError, match=r"QEMU ended with status 1"):
        bench.seal_disks(DISKS)
    assert directory.exists()


def test_disks_that_no_region_holds_are_a_sentence(
    kit: SealedKit, record: GuestRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_file, "need_space", lambda *_: None)
    disks = SealDisks(disks=(SealedDisk(serial="d1", size=1 << 40),))
    bench = SealedBackend(record, kit, tell=print, notice=pytest.fail, cold=True)
    cell = Procedure(name="p", steps=(disks, *CELL.steps[1:]))
    bench.take(CellJob(id="c", procedure=cell, directory="", target="", space=600 << 30))
    with pytest.raises(HostError, match=r"do not fit into a guest with virtual time.*549755813888"):
        bench.seal_disks(disks)
    assert not (record.path / "region").exists()
