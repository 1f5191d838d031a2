"""Snapshots on disk: complete or not at all, and removed when they are no longer useful."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.core.errors import HostError
from lab.host.guest import snapshots
from lab.host.system import paths
from lab.model.scenario.guest import Guest
from lab.run.preparation.snapshots import SnapshotMaker
from lab.run.scheduling import executor


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def state(key: str, used: int, memory: bytes = b"memory") -> Path:
    """Return a snapshot that was used at that second."""
    directory = paths.warm() / key
    directory.mkdir(parents=True)
    for name in (snapshots.MEMORY, snapshots.ROOT, snapshots.SEED):
        (directory / name).write_bytes(memory)
    about = {
        "key": key,
        "saved_directory": "/g",
        "host_key": "ssh-ed25519 AAAA",
        "image": "debian-12-0",
        "created": "2026-01-01T00:00:00+00:00",
        "boot_seconds": 30.0,
        "captures": {},
        "sizes": {name: len(memory) for name in (snapshots.MEMORY, snapshots.ROOT, snapshots.SEED)},
    }
    (directory / snapshots.ABOUT).write_text(json.dumps(about))
    os.utime(directory / snapshots.ABOUT, (used, used))
    return directory


def test_the_states_that_nobody_used_for_longest_go_first() -> None:
    for number in range(6):
        state(f"k{number}", used=1000 + number)
    assert snapshots.find("k0") is not None  # a search makes it the most recently used
    assert snapshots.trim(in_use={"k2"}, keep=3) == ["k1", "k3"]
    assert sorted(s.key for s in snapshots.every()) == ["k0", "k2", "k4", "k5"]
    assert snapshots.trim(in_use=set(), keep=4) == []


def test_the_second_run_that_asks_for_a_state_is_told_so() -> None:
    assert not snapshots.requested_before("k1")
    assert snapshots.requested_before("k1")
    assert not snapshots.requested_before("k2")
    assert snapshots.collect_garbage() == []
    assert snapshots.requested_before("k1")


def test_any_fact_makes_another_name() -> None:
    facts = {"domain": "<domain/>", "qemu": "7.2"}
    assert snapshots.key_of(facts) == snapshots.key_of(dict(reversed(facts.items())))
    assert snapshots.key_of(facts) != snapshots.key_of({**facts, "qemu": "7.3"})


def test_what_a_killed_worker_was_saving_is_removed_by_its_run() -> None:
    left = paths.warm() / ".k1.999999.7.0123456789abcdef.part"  # of a dead process
    said: list[str] = []

    class KilledWorker:
        workers = ()

        def start(self, *_: object) -> SimpleNamespace:
            left.mkdir(parents=True)
            (left / snapshots.MEMORY).write_bytes(b"half")
            return SimpleNamespace(trouble=None, silent=False)

    jobs = SimpleNamespace(key=lambda _: "k1", job=lambda *_, **__: None)
    maker = SnapshotMaker(pool=KilledWorker(), jobs=jobs, say=said.append, receive=lambda: ())  # type: ignore[arg-type]
    guest = Guest(image="debian-12")
    assert maker.guests([guest]) == {guest}
    assert "no snapshot could be made" in said[-1]
    assert not left.exists()


def test_a_guest_that_never_answers_is_not_booted_again_without_a_snapshot() -> None:
    class Mute:
        workers = ()

        def start(self, *_: object) -> SimpleNamespace:
            error = HostError(
                "did not answer on SSH", hint="the last lines of its console:\nlogin:"
            )
            return SimpleNamespace(trouble=error, silent=True)

    jobs = SimpleNamespace(key=lambda _: "k1", job=lambda *_, **__: None)
    maker = SnapshotMaker(pool=Mute(), jobs=jobs, say=lambda _: None, receive=lambda: ())  # type: ignore[arg-type]
    with pytest.raises(HostError, match="did not answer") as caught:
        maker.guests([Guest(image="debian-12")])
    assert "login:" in caught.value.hint


@pytest.mark.parametrize(
    ("said", "at_fault"),
    [
        ("operation failed: load of migration failed", True),
        (
            "internal error: qemu: cannot set up guest memory 'pc.ram': Cannot allocate memory",
            False,
        ),
    ],
)
def test_a_snapshot_is_not_at_fault_if_memory_is_missing(
    said: str, at_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "find", lambda _key: "a snapshot")
    worker = SimpleNamespace(job=SimpleNamespace(warm="k"), trouble=HostError("x", hint=said))
    assert executor._is_snapshot_at_fault(worker) is at_fault  # type: ignore[arg-type]
