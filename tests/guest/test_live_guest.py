"""One guest, kept up: the ways in, what it cannot reach, and everything md can be built as."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import GuestError, ToolError
from lab.core.yaml import parse_override
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.guest.ssh.shell import Shell, banner, reach
from lab.host.system import keys
from lab.model.execution.procedure import AttachDisk, Procedure, Verify
from lab.model.result.measurement import Check
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.run.steps import CheckFailedError, Undo, run_procedure

from .conftest import Home

pytestmark = pytest.mark.guest


@pytest.fixture(scope="module")
def record(lab_home: Home, image: str) -> Iterator[GuestRecord]:
    done = lab_home.run("up", "scenario", "raid5-parity-last", "--no-run", "--set", "disks.count=3")
    assert done.returncode == 0, done.stderr
    (found,) = [r for r in guests.every() if guests.is_alive(r)]
    assert found.id in done.stdout
    yield found
    ended = lab_home.run("down", found.id)
    assert found.id in ended.stdout
    assert not (Path(found.directory) / guests.RECORD).exists()
    assert guests.qemu_pids(Path(found.directory)) == []
    # This process's own libvirt cannot be closed, and writes down that the guest has ended.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        shutil.rmtree(found.directory, ignore_errors=True)
        time.sleep(0.2)
    assert lab_home.left() == []


@pytest.fixture(scope="module")
def bench(record: GuestRecord) -> Iterator[LiveBackend]:
    live = LiveBackend(record, keys.lab_key().private)
    live.attach()
    live.wait_for_ssh(60)
    # The array that `up` left makes room for those of the cells to come.
    live.guest("mdadm --stop /dev/md/bench", 60)
    for step in cell_procedure(cell_of("disks.count=3"), record.directory).steps:
        if isinstance(step, AttachDisk):
            live.detach_disk(step)
    for path in (record.path / "disks").iterdir():
        live.remove(str(path))
    yield live
    live.release()


def cell_of(*sets: str) -> Cell:
    overrides = [parse_override(s) for s in ("matrix={}", *sets)]
    path = catalog.scenario_path("raid5-parity-last")
    return compile_scenario(path, overrides=overrides).cells[0]


def run_cell(bench: LiveBackend, cell: Cell) -> tuple[dict[str, str], list[Check]]:
    """Everything that a worker does with a cell: raw output and checks; taken apart afterwards."""
    return run_steps(bench, cell_procedure(cell, bench.record.directory))


def run_steps(bench: LiveBackend, procedure: Procedure) -> tuple[dict[str, str], list[Check]]:
    undo, raw, checks = Undo(), {}, []
    try:
        run_procedure(procedure, bench, undo, raw.__setitem__, lambda _s: None, checks.append)
    finally:
        errors = undo.unwind()
    assert errors == []
    assert list((bench.record.path / "disks").iterdir()) == []
    return raw, checks


def test_ps_names_it_and_ssh_leads_into_it(lab_home: Home, record: GuestRecord) -> None:
    (row,) = lab_home.json("ps")["guests"]
    assert (row["id"], row["state"], row["array"]) == (record.id, "up", "/dev/md/bench")
    inside = lab_home.run("ssh", record.id, "--", "whoami; hostname; sudo -n id -u")
    assert inside.stdout.split() == ["lab", "lab", "0"], inside.stderr
    failing = lab_home.run("ssh", "--", "exit 7")
    assert failing.returncode == 7
    # A restored guest has booted before: its console holds what came since.
    lab_home.run("ssh", record.id, "--", "echo hello | sudo -n tee /dev/ttyS0")
    assert "hello" in lab_home.run("console", record.id).stdout


@pytest.mark.slow
def test_a_reboot_keeps_disks_array_and_port(lab_home: Home, record: GuestRecord) -> None:
    """It comes before `bench`, whose libvirt would follow QEMU's events."""
    inside = (
        "cat /proc/sys/kernel/random/boot_id; sudo cat /var/lib/lab-mark; sudo ls /dev/md/bench"
    )
    inside += "; lsblk -dno SERIAL"
    write = "echo kept | sudo tee /var/lib/lab-mark >/dev/null"
    before = lab_home.run("ssh", "--", f"{write}; {inside}").stdout.split()
    lab_home.run("ssh", "--", "sudo reboot", timeout=120)
    deadline = time.monotonic() + 60
    while lab_home.json("ps")["guests"][0]["state"] == "up" and time.monotonic() < deadline:
        time.sleep(0.5)
    (row,) = lab_home.json("ps")["guests"]
    assert row["state"] == "no answer"
    assert "lab console" in row["hint"]
    after = lab_home.run("ssh", "--", inside, timeout=600)  # it waits for the boot
    assert "boots: waiting for its SSH server" in after.stderr
    found = after.stdout.split()
    assert before[0] != found[0]  # another boot
    assert before[1:] == found[1:] == ["kept", "/dev/md/bench", "disk1", "disk2", "disk3"]
    (row,) = lab_home.json("ps")["guests"]
    assert (row["state"], row["port"], row["pid"]) == ("up", record.port, record.pid)


def test_a_second_guest_key_is_refused(record: GuestRecord, bench: LiveBackend) -> None:
    other = keys.make().public
    first, second = (reach(record.port, pid=record.pid) for _ in range(2))
    assert first is not None
    assert second is not None
    with pytest.raises(GuestError, match="SSH host key is not the one"):
        Shell.connect(
            first,
            private_key=keys.lab_key().private,
            host_key=other,
            alive=lambda: None,
            timeout=30,
        )
    stranger = keys.make().private
    with pytest.raises(GuestError, match="refused the lab's key"):
        Shell.connect(
            second,
            private_key=stranger,
            host_key=record.host_key,
            alive=lambda: None,
            timeout=30,
        )


def test_the_guest_reaches_nothing(record: GuestRecord, bench: LiveBackend) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        port = server.getsockname()[1]
        seen: list[object] = []

        def accept() -> None:
            with contextlib.suppress(TimeoutError):
                connection, peer = server.accept()
                connection.close()
                seen.append(peer)

        listener = threading.Thread(target=accept)
        listener.start()
        script = f"timeout 8 bash -c 'exec 3<>/dev/tcp/10.0.2.2/{port}' && echo reached=yes || true"
        said = bench.guest(script, 30).stdout
        assert "reached" not in said
        # the control: the same server is there for anybody on this host
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            listener.join()
        assert len(seen) == 1


def inside(record: GuestRecord, *words: str) -> list[str]:
    """Return the command that runs a program in the guest's network namespace."""
    return ["nsenter", f"--net=/proc/{record.pid}/ns/net", *words]


def test_its_port_is_in_a_network_of_its_own(lab_home: Home, record: GuestRecord) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", record.port), timeout=5)
    listening = subprocess.run(
        inside(record, "ss", "-Hltn", f"sport = :{record.port}"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split()[3] for line in listening.splitlines()] == [f"127.0.0.1:{record.port}"]


@pytest.mark.slow
def test_without_it_strangers_would_lock_the_user_out(record: GuestRecord) -> None:
    """The control of `tests/unit/test_network.py`: 100 idle connections take all logins."""
    flood = (
        "import socket\n"
        f"held = [socket.create_connection(('127.0.0.1', {record.port}), 5) for _ in range(100)]\n"
        "print(len(held), flush=True)\ninput()"
    )
    with subprocess.Popen(
        inside(record, sys.executable, "-c", flood),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as attack:
        assert attack.stdout is not None
        assert attack.stdout.readline() == b"100\n"
        assert not banner(record.port, 20.0, pid=record.pid)
    deadline = time.monotonic() + 60
    while not banner(record.port, 20.0, pid=record.pid):
        assert time.monotonic() < deadline


SMALL = (
    "disks.size=256MiB",
    "array.component_size=32MiB",
    "array.consistency_policy=null",
    "disks.throttle={total_bytes_per_second: 200MiB}",
    "workloads=[{name: write, tool: dd, if: /dev/urandom, of: '{target}', bs: 1MiB, count: 16,"
    " oflag: direct, iflag: fullblock}]",
)

KINDS = {
    "raid4 on raw disks": (
        "array.level=4",
        "array.layout=null",
        "disks={count: 4, format: raw, size: 256MiB}",
    ),
    "raid6 on scsi": (
        *("array.level=6", "array.layout=left-symmetric-6", "disks.count=5", "disks.bus=scsi"),
        "array.sysfs={stripe_cache_size: 1024}",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_on_these_disks_is_built_and_read_back(bench: LiveBackend, kind: str) -> None:
    cell = cell_of(*SMALL, *KINDS[kind])
    raw, checks = run_cell(bench, cell)
    assert {c.name for c in checks} >= {"disks", "array"}
    assert all(c.passed for c in checks)
    assert "16 MiB" in raw["write.1.stderr.txt"]
    assert "bench" not in bench.guest("ls /dev/md /dev/disk/by-id || true", 30).stdout


def test_a_disk_with_an_old_array_on_it_is_not_built_upon(bench: LiveBackend) -> None:
    procedure = cell_procedure(cell_of(*SMALL, "disks.count=3"), bench.record.directory)
    steps = list(procedure.steps)
    place = next(i for i, s in enumerate(steps) if isinstance(s, Verify) and s.name == "disks")
    dirty = "mkfs.ext4 -q -F /dev/disk/by-id/virtio-disk2"
    bench_undo, raw, checks = Undo(), {}, []
    try:
        run_procedure(
            procedure.model_copy(update={"steps": tuple(steps[: place + 1])}),
            *(bench, bench_undo, raw.__setitem__, lambda _s: None, checks.append),
        )
        assert bench.guest(dirty, 60).status == 0
        with pytest.raises(CheckFailedError, match=r"'disks' failed: leftovers is '\d+', not '0'"):
            run_procedure(
                procedure.model_copy(update={"steps": tuple(steps[place:])}),
                *(bench, bench_undo, raw.__setitem__, lambda _s: None, checks.append),
            )
    finally:
        assert bench_undo.unwind() == []


def test_qemu_has_every_limit_that_the_scenario_names(bench: LiveBackend) -> None:
    limits = (
        "disks.throttle={read_bytes_per_second: 7MiB, write_bytes_per_second: 9MiB,"
        " write_bytes_per_second_max: 18MiB, write_bytes_per_second_max_seconds: 2,"
        " total_operations_per_second: 900, operation_size: 8KiB}"
    )
    cell = cell_of(*SMALL, limits, "disks.count=3")
    seen: list[dict[str, int]] = []

    def look(name: str, text: str) -> None:
        if name.endswith("before.txt"):
            seen.append(bench.limits_of("disk1"))

    undo, checks = Undo(), []
    try:
        procedure = cell_procedure(cell, bench.record.directory)
        run_procedure(procedure, bench, undo, look, lambda _s: None, checks.append)
    finally:
        assert undo.unwind() == []
    mib = 1024 * 1024
    expected = {"read_bytes_sec": 7 * mib, "write_bytes_sec": 9 * mib, "total_iops_sec": 900}
    expected |= {"write_bytes_sec_max": 18 * mib, "write_bytes_sec_max_length": 2}
    expected |= {"size_iops_sec": 8192, "total_bytes_sec": 0}
    assert {k: seen[0][k] for k in expected} == expected


def test_a_command_that_fails_or_takes_too_long_says_so(bench: LiveBackend) -> None:
    failed = bench.guest("echo to-stdout; echo to-stderr >&2; exit 3", 30)
    assert (failed.status, failed.stdout, failed.stderr) == (3, "to-stdout\n", "to-stderr\n")
    with pytest.raises(GuestError, match="did not end within 2 seconds: sleep 60"):
        bench.guest("sleep 60", 2)
    assert bench.guest("true", 30).status == 0
    large = bench.guest("head -c 3000000 /dev/zero | tr '\\0' x", 60)
    assert len(large.stdout) == 3_000_000


def test_a_workload_whose_program_is_missing_is_named(bench: LiveBackend) -> None:
    procedure = cell_procedure(cell_of(*SMALL, "disks.count=3"), bench.record.directory)
    steps = tuple(
        s.model_copy(
            update={
                "script": s.script.replace("dd", "no-such-tool"),
                "expect": {"no-such-tool": "yes"},
            }
        )
        if isinstance(s, Verify) and s.name == "programs"
        else s
        for s in procedure.steps
    )
    with pytest.raises(CheckFailedError, match="no-such-tool is 'missing'"):
        run_steps(bench, procedure.model_copy(update={"steps": steps}))


def test_a_mkfs_that_fails_fails_its_cell(bench: LiveBackend) -> None:
    cell = cell_of(*SMALL, "disks.count=3", "filesystem={type: ext4, options: ['-b', '77']}")
    with pytest.raises(ToolError, match="ext4 on the array"):
        run_cell(bench, cell)


def test_no_secret_lies_open_on_the_host(record: GuestRecord) -> None:
    assert Path(record.directory).stat().st_mode & 0o077 == 0
    assert keys.lab_key_path().stat().st_mode & 0o077 == 0
    (state,) = [s for s in snapshots.every() if s.key == record.warm]
    assert state.directory.stat().st_mode & 0o077 == 0
    assert state.seed.exists()


def test_disks_that_stop_are_noticed_and_those_that_are_slow_or_idle_are_not(
    bench: LiveBackend,
) -> None:
    """A real freeze: QEMU lets one byte in a second through, and the array waits for that disk."""
    cell = cell_of(
        *("array.level=5", "array.layout=left-symmetric", "disks.count=3", *SMALL),
        "disks.throttle={total_bytes_per_second: 4MiB}",
    ).model_copy(update={"workloads": ()})
    undo = Undo()
    procedure = cell_procedure(cell, bench.record.directory)
    run_procedure(procedure, bench, undo, lambda _n, _t: None, lambda _s: None, lambda _c: None)
    write = "dd if=/dev/zero of=/dev/md/bench bs=1M oflag=direct count="

    def limit(serial: str, rate: int) -> None:
        bench._hypervisor.limit(serial, {"total_bytes_sec": rate})

    bench.expect_io_within(6.0)
    try:
        assert bench.guest("sleep 9", 60).status == 0
        slow = bench.guest(f"{write}60", 60)
        assert slow.status == 0
        assert slow.seconds > 7
        limit("disk2", 1)
        began = time.monotonic()
        with pytest.raises(GuestError, match="the guest's I/O has stopped") as caught:
            bench.guest(f"{write}20", 300)
        assert time.monotonic() - began < 40
        print(caught.value)
        told = re.search(
            r"'disk2' has completed \d+ reads, (\d+) writes [^;]* and (\d+) req", str(caught.value)
        )
        assert told is not None, caught.value
        assert int(told[1]) > 60
        assert int(told[2]) > 0
    finally:
        bench.expect_io_within(0)
        limit("disk2", 200 * 1024**2)
        bench.guest("while pidof dd; do sleep 0.2; done", 60)
        errors = undo.unwind()
    assert errors == []


def test_a_guest_that_is_powered_off_is_off(lab_home: Home, record: GuestRecord) -> None:
    """The last test: the guest ends. `lab down` removes what is left (see `record`)."""
    lab_home.run("ssh", record.id, "--", "sudo poweroff", timeout=120)
    deadline = time.monotonic() + 120
    while guests.qemu_pids(record.path) and time.monotonic() < deadline:
        time.sleep(0.5)
    (row,) = lab_home.json("ps")["guests"]
    assert row["state"] == "off"
    ended = lab_home.run("ssh", record.id, "--", "true")
    assert ended.returncode == 2
    assert f"lab down {record.id}" in ended.stderr
