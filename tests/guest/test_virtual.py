"""Virtual time: the gates. A sealed guest's results are a function of what was put into it.

Minutes each; ``-s`` shows a line per guest: digest, guest's seconds, host's seconds.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import drive.sealed
from drive import region
from lab.core.units import MIB
from lab.host import images
from lab.host.guest.virtual import region_file
from lab.host.guest.virtual import snapshot as sealed_snapshot
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import paths
from lab.model.execution.job import SealedKit
from lab.model.execution.procedure import GuestCommand, PowerCycle, Procedure
from lab.model.scenario.guest import Guest
from tests import sealed
from tests.sealed import Ended, Kit, throttled

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(7200)]

BUILD = sealed.DRIVE / "build.sh"
PREPARE = "modprobe raid456"
CREATE = (
    "mdadm --create /dev/md0 --run --level=5 --chunk=64 --size=32M --bitmap=none --assume-clean "
    "--raid-devices=5 /dev/lab1 /dev/lab2 /dev/lab3 /dev/lab4 /dev/lab5"
)
CELL = f"""
{CREATE}
dd if=/dev/zero of=/dev/md0 bs=1M count=8 oflag=direct
dd if=/dev/urandom of=/dev/md0 bs=1M count=4 oflag=direct
dd of=/dev/null if=/dev/md0 bs=1M count=12 iflag=direct
fio --name=f --filename=/dev/md0 --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
    --runtime=1 --time_based --output-format=json --randseed=7
dd if=/dev/md0 bs=1M count=4 | sha256sum
mdadm -D /dev/md0
mdadm -S /dev/md0
cat /etc/os-release
cat /proc/uptime /proc/interrupts /proc/stat /proc/vmstat /proc/diskstats
head -3 /proc/timer_list
cat /proc/sys/kernel/random/uuid
"""
"""Results, counters and, through the driver's console, kernel messages. All are in the digest."""
DISKS = throttled(5, bytes_total=5 << 20)


@pytest.fixture(scope="module")
def lab_kit(lab_home: Home, image: str) -> SealedKit:
    """The lab's own: driver, initramfs, and the image as a raw file."""
    found = images.find(image)
    assert found is not None
    return sealed_kit.prepare(Guest(image=image, cpus=1, memory=512 * MIB), found)


@pytest.fixture(scope="module")
def kit(lab_kit: SealedKit, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return sealed.Kit(lab_kit, tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def no_snapshots(lab_home: Home) -> Iterator[None]:
    """Those that a test makes go with it."""
    yield
    for found in paths.sealed().glob("snapshot-*"):
        shutil.rmtree(found)


def build(suite: str, headers: str, directory: Path) -> str:
    subprocess.run([BUILD, suite, headers, directory], check=True, timeout=1800)
    return (directory / "version").read_text().strip()


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that only compute; they give way to everything else of the host."""
    begun = [
        subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in begun:
            process.kill()
            process.wait()


def shown(name: str, ended: Ended) -> Ended:
    print(f"{name}: {ended.line()}", flush=True)
    assert ended.state.status == 0, ended.text[-2000:] + ended.state.log[-2000:]
    assert ended.state.phase is region.Phase.POWERED_OFF
    assert ended.state.log_lost == ended.state.output_lost == 0
    return ended


def test_gate_1_cold_boots_have_one_digest(kit: Kit) -> None:
    commands = f"{PREPARE}\n{CELL}"
    runs = [shown(f"cold {n}", sealed.cold(kit, commands, DISKS)) for n in range(5)]
    with busy(4):
        runs += [shown(f"cold {n}, busy", sealed.cold(kit, commands, DISKS)) for n in range(5, 10)]
    assert len({run.digest for run in runs}) == 1
    assert "Power down" in runs[0].state.log
    assert runs[0].state.disks["d1"].requests["write"] > 100


def test_gate_2_restores_of_a_snapshot_have_one_digest(kit: Kit) -> None:
    began = time.monotonic()
    saved = sealed.save(kit, PREPARE, DISKS)
    print(f"saved in {time.monotonic() - began:.1f} s, {(kit.work / 'state').stat().st_size} bytes")
    runs = []
    for n in range(20):
        with busy(n % 5):
            runs.append(shown(f"restored {n}, {n % 5} busy", sealed.restored(kit, saved, CELL)))
    assert len({run.digest for run in runs}) == 1
    # Another snapshot, made in the same way: whether its restores agree is shown, not promised.
    saved = sealed.save(kit, PREPARE, DISKS)
    again = {shown("again", sealed.restored(kit, saved, CELL)).digest for _ in range(2)}
    assert len(again) == 1
    print("another snapshot agrees:", again == {runs[0].digest})


@pytest.mark.usefixtures("no_snapshots")
def test_the_labs_cells_start_from_a_snapshot_and_have_one_digest(
    lab_kit: SealedKit, tmp_path: Path
) -> None:
    steps = (sealed.SEALED, GuestCommand(label="cell", script=CELL, capture="cell", timeout=600))
    cell = Procedure(name="cell", steps=steps)
    cold = [sealed.benched(lab_kit, tmp_path, cell, cold=True) for _ in range(2)]
    runs = []
    for n in range(6):
        with busy(n % 3):
            runs.append(sealed.benched(lab_kit, tmp_path, cell))
    assert len({run.digest for run in runs}) == len({run.digest for run in cold}) == 1
    assert runs[0].digest != cold[0].digest
    assert not any(run.notices for run in (*cold, *runs))
    assert all(a.status == 0 for run in (*cold, *runs) for a in run.answers)
    # Another snapshot, made in the same way.
    (saved,) = paths.sealed().glob("snapshot-*")
    digests = json.loads((saved / sealed_snapshot.ABOUT).read_text())["digests"]
    shutil.rmtree(saved)
    again = sealed.benched(lab_kit, tmp_path, cell)
    others = json.loads((saved / sealed_snapshot.ABOUT).read_text())["digests"]
    same = {name: digests[name] == others[name] for name in digests}
    print("another snapshot:", same)
    assert all(same.values())
    assert again.digest == runs[0].digest


@pytest.mark.usefixtures("no_snapshots")
def test_a_byte_changed_in_a_snapshot_is_caught(lab_kit: SealedKit, tmp_path: Path) -> None:
    script = "cat /proc/sys/kernel/random/uuid\n"
    steps = (sealed.SEALED, GuestCommand(label="cell", script=script, capture="cell", timeout=60))
    cell = Procedure(name="cell", steps=steps)
    good = sealed.benched(lab_kit, tmp_path, cell)
    (saved,) = paths.sealed().glob("snapshot-*")
    disks, blocks = [sealed_kit.root_disk(lab_kit)], sealed_snapshot.ROOT_SPACE // region.BLOCK
    path = saved / sealed_snapshot.REGION
    layout = region.describe(path, disks, size=path.stat().st_size, blocks=blocks)
    with path.open("r+b") as file:
        file.seek(layout.header.log[0])
        file.write(b"?")
    bad = sealed.benched(lab_kit, tmp_path, cell)
    assert bad.digest.results != good.digest.results
    # QEMU's state is not whole: thrown away, and the guest boots.
    state = saved / sealed_snapshot.STATE
    state.write_bytes(bytes(state.stat().st_size))
    cold = sealed.benched(lab_kit, tmp_path, cell)
    assert [line.partition("(")[0] for line in cold.notices] == [
        "a snapshot did not restore and was removed; guests boot instead "
    ]
    assert cold.answers[0].status == 0
    assert not saved.exists()


@pytest.mark.usefixtures("no_snapshots")
def test_after_a_power_cut_a_restored_cell_boots(
    lab_kit: SealedKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = "dd if=/dev/urandom of=/dev/lab1 bs=64k count=4 oflag=direct; sha256sum /etc/passwd"
    steps = (
        sealed.SEALED,
        GuestCommand(label="before", script=write, capture="before", timeout=60),
        PowerCycle(capture="cut"),
        GuestCommand(
            label="after",
            script="head -c 256k /dev/lab1 | wc -c; sha256sum /etc/passwd; cat /proc/uptime",
            capture="after",
            timeout=60,
        ),
    )
    cell = Procedure(name="cell", steps=steps)
    runs = []
    for share in (10.0, 0.0):  # a region in memory, and one on the disk
        monkeypatch.setattr(region_file, "SHARE", share)
        runs.append(sealed.benched(lab_kit, tmp_path, cell))
    assert runs[0].digest == runs[1].digest
    before, after = runs[0].answers[0], runs[0].answers[-1]
    assert before.status == after.status == 0
    assert "262144" in after.stdout
    assert before.stdout in after.stdout


GATE_3 = """
modprobe -a raid10
blockdev --getsize64 /dev/lab64
for n in 1 64; do
    dd if=/dev/urandom of=/dev/lab$n bs=64K count=4 oflag=direct
    dd if=/dev/urandom of=/dev/lab$n bs=64K count=4 seek=$((12 * 16777216 - 4)) oflag=direct
    dd if=/dev/lab$n bs=64K count=4 skip=$((12 * 16777216 - 4)) iflag=direct | sha256sum
    dd if=/dev/lab$n bs=64K count=4 iflag=direct | sha256sum
done
mdadm --create /dev/md0 --run --level=6 --chunk=64 --bitmap=none --assume-clean --raid-devices=24 \
    $(seq -f /dev/lab%g 1 24)
mdadm --create /dev/md1 --run --level=10 --chunk=64 --bitmap=none --assume-clean --raid-devices=40 \
    $(seq -f /dev/lab%g 25 64)
for md in md0 md1; do
    size=$(blockdev --getsize64 /dev/$md)
    echo $md $size
    head -c 4M /dev/urandom > /tmp/data
    for at in 0 $((size / 1048576 - 4)); do
        dd if=/tmp/data of=/dev/$md bs=1M seek=$at oflag=direct
        echo 3 > /proc/sys/vm/drop_caches
        dd if=/dev/$md bs=1M skip=$at count=4 iflag=direct | cmp - /tmp/data && echo $md $at same
    done
done
blkdiscard -o 0 -l 64M /dev/lab1 -f 2>&1
cat /proc/mdstat
free -m
ls /sys/block | grep -c '^lab'
"""


def test_gate_3_one_region_holds_64_disks_of_12_tib(kit: Kit) -> None:
    disks = throttled(64, size=region.LARGEST_DISK)
    ended = shown("64 disks", sealed.cold(kit, GATE_3, disks, size=1 << 37))
    print(ended.text)
    assert ended.text.count("same") == 4
    assert "13194139533312" in ended.text
    used = (kit.work / "cold.region").stat().st_blocks * 512
    print(f"{used >> 20} MiB of the host's for {ended.state.blocks_used} blocks")
    assert used < 400 << 20


def test_300_seconds_at_100_operations_per_second(kit: Kit) -> None:
    disks = throttled(5, operations_total=100)
    cell = f"""
{PREPARE}
{CREATE}
fio --name=f --filename=/dev/md0 --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
    --runtime=300 --time_based --output-format=terse | cut -d';' -f48-50
"""
    ended = shown("300 s", sealed.cold(kit, cell, disks))
    print(ended.text[-200:])
    assert ended.state.clock > 300e9


# --- negative controls: each is caught by the digest ---------------------------------------------


def test_a_completion_in_host_time_is_caught(kit: Kit) -> None:
    # sleep=on: an idle processor waits for the host's clock, and so do the disks' timers.
    def run() -> Ended:
        guest = kit.guest("cold")
        commands = "dd if=/dev/lab1 of=/dev/null bs=1M count=8 iflag=direct\n"
        sealed.create(guest.region, [kit.root, *DISKS], size=8 << 30, commands=commands.encode())
        line = [word.replace("sleep=off", "sleep=on") for word in drive.sealed.command(guest)]
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return shown("host time", sealed.wait(process, guest, 3600))

    assert run().digest != run().digest


WRITE = "dd if=/dev/urandom of=/dev/lab1 bs=4k count=64 oflag=direct\n"
LOOP = """
i=0
while [ $i -lt 300 ]; do
    dd if=/dev/lab1 bs=4k count=64 iflag=direct 2>&1 | sha256sum
    i=$((i + 1))
done
"""


def test_a_host_write_to_the_region_is_caught(kit: Kit) -> None:
    disks = throttled(1, bytes_total=5 << 20)
    good = shown("untouched", sealed.cold(kit, WRITE + LOOP, disks))
    guest = kit.guest("cold")
    commands = (WRITE + LOOP).encode()
    own = sealed.create(guest.region, [kit.root, *disks], size=8 << 30, commands=commands)
    process = sealed.start(guest)

    def meddle() -> None:
        while len(region.read(own).output) < 4000:  # some rounds are done
            assert process.poll() is None
            time.sleep(0.05)
        region.overwrite(own, 1, 0, b"meddled")

    thread = threading.Thread(target=meddle)
    thread.start()
    bad = shown("meddled with", sealed.wait(process, guest, 3600))
    thread.join(timeout=60)
    assert bad.digest != good.digest
    assert bad.text != good.text


def test_a_virtio_device_is_caught(kit: Kit) -> None:
    file = kit.work / "virtio"
    with file.open("wb") as new:
        new.truncate(64 << 20)
    extra = [
        *("-drive", f"file={file},format=raw,if=none,id=v,cache=none"),
        *("-device", "virtio-blk-pci,drive=v"),
    ]
    cell = """
modprobe -a virtio_pci virtio_blk
dd if=/dev/zero of=/dev/vda bs=64k count=200 oflag=direct
"""
    runs = [shown("virtio", sealed.cold(kit, cell, DISKS, extra=extra)) for _ in range(2)]
    assert runs[0].digest != runs[1].digest


def test_an_image_byte_changed_is_caught(kit: Kit, tmp_path: Path) -> None:
    commands = "cat /etc/os-release\n"
    good = shown("image", sealed.cold(kit, commands, []))
    base = tmp_path / "base"
    subprocess.run(["cp", "--sparse=always", kit.lab.base, base], check=True, timeout=600)
    at = int(
        subprocess.run(
            ["grep", "-obUam1", 'PRETTY_NAME="Debian', base], capture_output=True, check=True
        ).stdout.split(b":")[0]
    )
    with base.open("r+b") as file:
        file.seek(at)
        file.write(b"p")
    bad = shown(
        "a byte changed",
        sealed.cold(replace(kit, lab=kit.lab.model_copy(update={"base": str(base)})), commands, []),
    )
    assert bad.digest != good.digest


# --- the driver builds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "version"), [("bookworm", "6.1."), ("trixie", "6.12."), ("trixie-backports", "")]
)
def test_the_driver_builds_from_packaged_headers(tmp_path: Path, suite: str, version: str) -> None:
    built = build(suite, "linux-headers-cloud-amd64", tmp_path)
    print(suite, built)
    assert built.startswith(version)
    assert f"vermagic={built} ".encode() in (tmp_path / "lab_disk.ko").read_bytes()
