"""Modelled drives and faults in sealed guests: timing, caches that are lost, errors.

A boot each; ``-s`` shows a line per guest.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from drive import region
from drive.drive import Parameters
from lab.core.units import MIB
from lab.host import images
from lab.host.images import virtual_time as sealed_kit
from lab.model.scenario.drive import integers
from lab.model.scenario.guest import Guest
from lab.plugins.disks.hdd import PRESETS as HDDS
from lab.plugins.disks.ssd import PRESETS as SSDS
from tests import sealed
from tests.sealed import Ended, Kit

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(3600)]

HDD = integers(HDDS["hdd_7200"], "d1")
SSD = integers(SSDS["ssd_sata"], "d2")
MODULE = "/sys/module/lab_disk/parameters"


@pytest.fixture(scope="module")
def kit(lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    found = images.find(image)
    assert found is not None
    kit = sealed_kit.prepare(Guest(image=image, cpus=1, memory=512 * MIB), found)
    return sealed.Kit(kit, tmp_path_factory.mktemp("drives"))


def drives(*parameters: Parameters, flags: int = 0) -> list[region.Disk]:
    return [
        region.Disk(serial=f"d{n}", size=1 << 30, flags=region.WRITE_BACK | flags, drive=drive)
        for n, drive in enumerate(parameters, 1)
    ]


def shown(name: str, ended: Ended) -> Ended:
    print(f"{name}: {ended.line()}", flush=True)
    assert not ended.state.log_lost
    return ended


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("core") / "replay"
    source = sealed.DRIVE / "tests" / "replay_drive.c"
    subprocess.run(["gcc", "-O2", "-o", program, source], check=True, timeout=60)
    return program


TRACED = f"""
echo 1 > {MODULE}/trace
echo 1 > {MODULE}/attach
echo 2 > {MODULE}/attach
for disk in lab1 lab2; do
    fio --name=f --filename=/dev/$disk --rw=randrw --bsrange=512-64k --iodepth=8 --direct=1 \\
        --ioengine=libaio --number_ios=600 --fsync=37 --randseed=7 --output-format=terse >/dev/null
    dd if=/dev/zero of=/dev/$disk bs=64k count=40 oflag=direct,sync 2>&1
    dd if=/dev/$disk of=/dev/null bs=256k count=80 iflag=direct 2>&1
done
dd if=/dev/zero of=/dev/lab1 bs=4k count=400 seek=5000 oflag=direct &
sleep 0.05
echo 1 300000000 > {MODULE}/stall
wait
"""


def test_requests_end_at_the_nanosecond_that_the_core_computes(kit: Kit, core: Path) -> None:
    disks = drives(HDD, SSD, flags=region.ABSENT)
    ended = shown("traced", sealed.cold(kit, TRACED, disks))
    requests: dict[int, list[str]] = defaultdict(list)
    ends: dict[int, dict[int, int]] = defaultdict(dict)
    open_: dict[tuple[int, int], int] = {}
    for line in re.findall(r"lab_disk: trace (.*)", ended.state.log):
        disk, tag, rest = line.split(maxsplit=2)
        if rest.startswith("done"):
            ends[int(disk)][open_.pop((int(disk), int(tag)))] = int(rest.split()[1])
            continue
        number = len(requests[int(disk)]) + 1
        requests[int(disk)].append(f"{number} {rest}")
        if "stall" not in rest:
            open_[int(disk), int(tag)] = number
    assert not open_
    for number, disk in enumerate(disks, 1):
        assert disk.drive is not None
        assert len(ends[number]) > 700
        text = f"drive {disk.size} 0 {' '.join(disk.drive.words())}\n"
        text += "".join(f"{line}\n" for line in requests[number])
        done = subprocess.run([core], input=text, capture_output=True, text=True, check=True)
        said = re.findall(r"^(\d+) .* -> (\d+)", done.stdout, re.MULTILINE)
        assert {int(n): int(when) for n, when in said} == ends[number]
    stalls = [line.split() for line in requests[1] if "stall" in line]
    begin, until = int(stalls[0][1]), int(stalls[0][3])
    assert until - begin == 300_000_000
    assert not any(begin < when < until for when in ends[1].values())


STREAM = f"""
echo 1 > {MODULE}/attach
echo 2 > {MODULE}/attach
for disk in lab1 lab2; do
    echo mq-deadline > /sys/block/$disk/queue/scheduler
    fio --name=f --filename=/dev/$disk --rw=read --bs=4k --iodepth=64 --direct=1 \\
        --ioengine=libaio --number_ios=512 --output-format=terse >/dev/null
    set -- $(cat /sys/block/$disk/stat)
    echo $1 $2
done
"""


def test_requests_beyond_a_drives_queue_are_merged(kit: Kit) -> None:
    """One command at a time, as over USB: what follows waits in the scheduler, and grows there."""
    usb = integers(HDDS["hdd_5400_usb"], "d1")
    ended = shown("stream", sealed.cold(kit, STREAM, drives(usb, SSD)))
    usb_counts, ssd_counts = re.findall(r"^(\d+) (\d+)$", ended.text, re.MULTILINE)
    assert int(usb_counts[1]) > 384 > 128 > int(usb_counts[0])
    assert ssd_counts[1] == "0"


CUT = """
dd if=/dev/urandom of=/tmp/data bs=64k count=16 2>/dev/null
dd if=/tmp/data of=/dev/lab1 bs=64k oflag=direct 2>/dev/null
dd if=/tmp/data of=/dev/lab1 bs=64k oflag=direct seek=4096 conv=notrunc,fsync 2>/dev/null
tr '\\0-\\377' '\\377\\0-\\376' </tmp/data >/tmp/other
sha256sum /tmp/data /tmp/other
dd if=/tmp/other of=/dev/lab1 bs=64k oflag=direct 2>/dev/null
echo b >/proc/sysrq-trigger
sleep 60
"""


@pytest.mark.parametrize("drive", [HDD, SSD], ids=["hdd", "ssd"])
def test_a_cut_loses_what_was_not_flushed_and_nothing_else(kit: Kit, drive: Parameters) -> None:
    """The flush makes both earlier writes durable; what overwrites the first is in the cache."""
    path = kit.work / "cold.region"
    runs = []
    for lose in (True, False):
        ended = shown("cut", sealed.cold(kit, CUT, drives(drive)))
        assert ended.state.phase is region.Phase.RUNNING
        runs.append(ended.digest)
        (data, _), (other, _) = (line.split() for line in ended.text.splitlines())
        own = sealed.REGIONS[path]
        lost = (region.lose_cache if lose else region.keep_cache)(own)
        assert (lost.get("d1", 0) > 0) is lose
        flushed = region.contents(own, 1, 4096 << 16, 16 << 16)
        assert sha256(flushed) == data
        found = region.contents(own, 1, 0, 16 << 16)
        if not lose:
            assert sha256(found) == other
            continue
        new = flushed.translate(bytes((n - 1) % 256 for n in range(256)))
        assert sha256(new) == other
        pages = [slice(at, at + 4096) for at in range(0, len(found), 4096)]
        assert all(found[page] in (flushed[page], new[page]) for page in pages)
        assert lost["d1"] >= 4096 * sum(found[page] == flushed[page] for page in pages) > 0
    assert runs[0] == runs[1]


def sha256(data: bytes) -> str:
    done = subprocess.run(["sha256sum"], input=data, capture_output=True, check=True)
    return done.stdout.decode().split()[0]


KILLED = """
i=0
while :; do
    i=$((i + 1))
    printf '%511d\\n' $i >/tmp/sector
    dd if=/tmp/sector of=/dev/lab1 bs=512 seek=$((i * 3)) oflag=direct conv=notrunc 2>/dev/null
    [ $((i % 5)) != 0 ] || { sync /dev/lab1; echo $i; }
done
"""


def test_a_killed_qemu_loses_what_was_not_flushed_and_nothing_else(kit: Kit) -> None:
    dice = random.Random(18)
    lost = 0
    for n in range(3):
        guest = kit.guest(f"killed{n}")
        own = sealed.create(
            guest.region, [kit.root, *drives(HDD)], size=8 << 30, commands=KILLED.encode()
        )
        process = sealed.start(guest)
        try:
            while len(region.output(own).split()) < 10:
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(dice.random())
        finally:
            process.kill()
            process.communicate(timeout=60)
        flushed = int(region.output(own).split()[-1])
        lost += region.lose_cache(own)["d1"]
        for i in range(1, flushed + 1):
            assert int(region.contents(own, 1, i * 3 * 512, 512)) == i
        print(f"killed: {flushed} flushed, {lost} bytes lost so far")


FAULTS = f"""
say() {{ echo "$@"; }}
dd if=/dev/urandom of=/tmp/data bs=4k count=4 2>/dev/null
dd if=/tmp/data of=/dev/lab1 bs=4k oflag=direct,sync 2>/dev/null
get() {{ dd if=/dev/$1 of=/tmp/found bs=4k count=4 iflag=direct 2>/dev/null; }}
same() {{ cmp -s /tmp/data /tmp/found && say $1 same || say $1 differs; }}
get lab1; same first
echo 1 4608 512 1 2 > {MODULE}/bad
for n in 1 2 3; do get lab1 && say read $n || say read $n failed; done
echo 1 0 512 2 1 > {MODULE}/bad
for n in 1 2; do
    dd if=/tmp/data of=/dev/lab1 bs=4k oflag=direct,sync 2>/dev/null && say write $n ||
        say write $n failed
done
echo 1 5000 1 4 255 > {MODULE}/bad
get lab1; same misread
echo 1 > {MODULE}/bad
get lab1; same cleared
echo 1 9000 16 165 > {MODULE}/rot
get lab1; same rot
dd if=/tmp/data of=/dev/lab1 bs=4k oflag=direct,sync 2>/dev/null
get lab1; same mended
dd if=/tmp/data of=/dev/lab1 bs=4k oflag=direct 2>/dev/null
echo 1 9000 16 165 > {MODULE}/rot
get lab1; same cached
sync /dev/lab1
get lab1; same destaged
rate() {{ dd if=/dev/lab2 of=/dev/null bs=64k count=64 iflag=direct 2>&1 | tail -n 1; }}
rate; rate
echo 2 1048576 0 0 0 0 0 > {MODULE}/limit
rate; rate
echo 2 0 0 0 0 0 0 > {MODULE}/limit
rate
echo 1 > {MODULE}/detach
[ -e /dev/lab1 ] && say there || say gone
echo 1 > {MODULE}/attach
get lab1; same again
echo 2 1 > {MODULE}/stall || say no drive
"""


def test_faults_on_command_have_the_effects_of_the_servers(kit: Kit) -> None:
    limits = {"bytes_total": region.Limit(8 << 20)}
    disks = [*drives(HDD), replace(drives(HDD)[0], serial="d2", drive=None, limits=limits)]
    ended = shown("faults", sealed.cold(kit, FAULTS, disks))
    said = [line for line in ended.text.splitlines() if "copied" not in line]
    assert [line for line in said if "error" not in line.lower()] == [
        *("first same", "read 1 failed", "read 2 failed", "read 3"),
        *("write 1 failed", "write 2", "misread differs", "cleared same"),
        *("rot differs", "mended same", "cached same", "destaged same"),
        *("gone", "again same", "no drive"),
    ]
    seconds = [float(s) for s in re.findall(r"copied, ([\d.]+) s", ended.text)]
    quick, again, slow, slower, free = seconds
    assert again == pytest.approx(0.5, rel=0.02)
    assert quick < again
    assert slower == pytest.approx(4.0, rel=0.02)
    assert slow == pytest.approx(4.0, rel=0.05)
    assert free < 0.05
    assert ended.state.disks["d1"].errors >= 3


def digests(home: Home, *words: str) -> Sequence[str]:
    run = home.json(
        "run", "scenario", "faults-modelled", *words, "--clock", "virtual", timeout=1800
    )
    assert [c["id"] for c in run["claims"] if c["verdict"] != "holds"] == []
    return [cell["digest"]["results"] for cell in run["cells"]]


def test_the_modelled_faults_hold_and_have_one_digest(lab_home: Home) -> None:
    assert digests(lab_home) == digests(lab_home)
