"""Profiles: reads measure a disk with known values, and the fit finds these values."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.core.errors import ToolError
from lab.core.units import MIB
from lab.host.guest import servers
from lab.host.real_disks import measure
from lab.host.real_disks.measure import Effort
from lab.md.theory.drive import random_read_rate, sequential_read_rate
from lab.md.theory.profile import fit, fit_hdd, fit_ssd
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.model.scenario.profile import Jumps, Profile, Samples, ZoneRate
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD
from tests import loops
from tests.nbd import Client, DiskServer, running

PRESET, SOLID = HDD["hdd_7200"], SSD["ssd_sata"]
TRUTHS = {
    # Its arm has one speed for all distances, which calibrate does not look for.
    **{name: drive for name, drive in HDD.items() if not drive.seek_only},
    "odd": replace(
        PRESET,
        rpm=1800,
        overhead=0.0006,
        track_to_track=0.002,
        average_seek=0.030,
        full_stroke=0.064,
        outer_rate=48_000_000,
        inner_rate=20_000_000,
    ),
}
LIMITS = {
    "rpm": 0.045,
    "average_seek": 0.06,
    "full_stroke": 0.06,
    "outer_rate": 0.03,
    "inner_rate": 0.04,
}
"""Largest relative error of a value. The variance of 780 uniform waits gives the revolution. It has
an error of 3 %, the revolution half of that; the limit is three times as much. The mean of 60 waits
has an error of 1/27 revolution, and thirteen distances determine a curve."""


def samples_of(drive: HardDrive, seed: int, *, noise: float = 0.02, late: float = 0.01) -> Samples:
    """Return samples of a drive, with relative noise and some very late reads."""
    draw = random.Random(seed)

    def blurred(seconds: float) -> float:
        seconds *= 1 + draw.gauss(0, noise)
        return seconds + (0.1 if draw.random() < late else 0.0)

    rest = drive.overhead + measure.SMALL / drive.rate(0.5)

    def read(distance: float) -> float:
        turn = draw.random() * drive.revolution
        return blurred(rest + drive.seek_curve(distance) + turn)

    far = [abs(draw.random() - draw.random()) for _ in range(300)]
    places = [i / 9 for i in range(9)]
    return Samples(
        size=10**12,
        rotational=True,
        zones=tuple(
            ZoneRate(place=p, rate=drive.rate(p) * (1 + draw.gauss(0, noise / 4))) for p in places
        ),
        jumps=tuple(
            Jumps(distance=d, seconds=tuple(read(d) for _ in range(60))) for d in measure.DISTANCES
        ),
        random=tuple(read(d) for d in far),
        near=tuple(blurred(rest) for _ in range(40)),
        random_16=random_read_rate(drive, 16),
    )


def off(found: HardDrive, truth: HardDrive) -> dict[str, float]:
    return {k: abs(getattr(found, k) / getattr(truth, k) - 1) for k in LIMITS}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_fit_finds_a_drive_again(name: str) -> None:
    truth = TRUTHS[name]
    for seed in range(10):
        found, assumed = fit_hdd(samples_of(truth, seed), PRESET)
        wrong = off(found, truth)
        assert all(wrong[k] <= LIMITS[k] for k in LIMITS), (seed, wrong)
        # The shortest seek is known only up to a part of the waits' own noise.
        assert abs(found.track_to_track - truth.track_to_track) < truth.revolution / 8
        assert abs(found.overhead - truth.overhead) < 0.0001
        assert "write_cache" in assumed
        assert (found.queue_depth == 1) == (truth.queue_depth == 1)


def test_another_drive_is_not_taken_for_it() -> None:
    """The limits distinguish drives that differ by a tenth."""
    for change in ({"rpm": 6480.0}, {"average_seek": 0.0088}, {"outer_rate": 128_000_000}):
        found, _ = fit_hdd(samples_of(replace(PRESET, **change), 1), PRESET)
        wrong = off(found, PRESET)
        assert [k for k in LIMITS if wrong[k] > LIMITS[k]], change


def test_a_speed_that_is_no_drives_is_left_as_it_is() -> None:
    found, _ = fit_hdd(samples_of(PRESET, 3), PRESET)
    assert found.rpm == 7200
    found, _ = fit_hdd(samples_of(replace(PRESET, rpm=6500), 3), PRESET)
    assert found.rpm != 7200
    assert found.rpm == pytest.approx(6500, rel=0.02)


def test_the_score_is_low_for_the_drive_itself_and_high_for_another() -> None:
    profile = fit(samples_of(PRESET, 1), PRESET, SOLID)
    assert profile.kind == "hdd"
    assert profile.score < 0.02
    assert max(abs(p.error) for p in profile.points) < 0.18
    crooked = samples_of(PRESET, 1)
    zones = tuple(
        z.model_copy(update={"rate": z.rate * (0.5 if i % 2 else 1)})
        for i, z in enumerate(crooked.zones)
    )
    worse = fit(crooked.model_copy(update={"zones": zones}), PRESET, SOLID)
    assert max(abs(p.error) for p in worse.points) > 0.2  # no straight line has such zones


def test_what_no_drive_does_is_said() -> None:
    good = samples_of(PRESET, 1)
    with pytest.raises(ToolError, match="three distances"):
        fit_hdd(good.model_copy(update={"jumps": good.jumps[:2]}), PRESET)
    backwards = tuple(
        j.model_copy(update={"distance": other.distance})
        for j, other in zip(good.jumps, reversed(good.jumps), strict=True)
    )
    with pytest.raises(ToolError, match="no arm moves like this"):
        fit_hdd(good.model_copy(update={"jumps": backwards}), PRESET)
    still = tuple(j.model_copy(update={"seconds": (0.001, 0.001)}) for j in good.jumps)
    with pytest.raises(ToolError, match="nothing turns"):
        fit_hdd(good.model_copy(update={"jumps": still}), PRESET)
    with pytest.raises(ToolError, match="channels"):
        fit_ssd(good.model_copy(update={"random_16": None}), SOLID)


def solid_samples(drive: SolidStateDrive, seed: int) -> Samples:
    draw = random.Random(seed)
    alone = 1 / random_read_rate(drive, 1)
    rate = sequential_read_rate(drive, 0.0)
    return Samples(
        size=10**11,
        rotational=False,
        zones=tuple(ZoneRate(place=i / 9, rate=rate * draw.gauss(1, 0.01)) for i in range(9)),
        random=tuple(alone * draw.gauss(1, 0.05) for _ in range(200)),
        random_16=random_read_rate(drive, 16) * draw.gauss(1, 0.01),
        large_16=drive.link_rate * draw.gauss(1, 0.01),
        near=(alone, alone),
    )


@pytest.mark.parametrize("channels", [4, 8, 16])
def test_the_fit_finds_a_solid_state_disk_again(channels: int) -> None:
    truth = replace(SOLID, channels=channels)
    for seed in range(3):
        profile = fit(solid_samples(truth, seed), PRESET, SOLID)
        assert profile.kind == "ssd"
        assert profile.ssd.channels == channels
        assert profile.ssd.read_latency == pytest.approx(truth.read_latency, rel=0.15)
        assert profile.ssd.link_rate == pytest.approx(truth.link_rate, rel=0.03)
        assert profile.score < 0.05


# --- disks that are read ---


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := servers.missing_programs():
        pytest.skip(f"needs {servers.PACKAGES}: {missing}")
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "h"))


class Served:
    """A modelled disk over NBD, with the model's own clock."""

    def __init__(self, server: DiskServer, size: int) -> None:
        self.size = size
        self._server = server
        self._client: Client = server.client()

    def read(self, offset: int, length: int) -> None:
        self._client.read(offset, length)

    def now(self) -> float:
        seconds: float = self._server.statistics()["seconds"]
        return seconds

    def close(self) -> None:
        self._client.close()


@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("name", ["hdd_7200", "hdd_5400_usb", "odd"])
def test_the_labs_own_disk_is_measured_and_found_again(tmp_path: Path, name: str) -> None:
    truth, size = TRUTHS[name], 4 << 30
    effort = Effort(stream=16 * MIB, jumps=40, random=100)
    with running(tmp_path, truth, size=size, speed=0) as server:
        disk = Served(server, size)
        found = measure.measure(disk, effort, rotational=True, seed=1, queued=False)
        disk.close()
        written = server.statistics()["writes"]
    profile = fit(Samples.model_validate(found), replace(PRESET, queue_depth=8), SOLID)
    drive = replace(truth, **profile.hdd.model_dump(exclude_none=True))
    wrong = off(drive, truth)
    bound = truth.link_rate < truth.outer_rate  # its outer zones are invisible, so this is a guess
    limits = LIMITS | ({"outer_rate": 0.1, "inner_rate": 0.1} if bound else {})
    assert all(wrong[k] <= limits[k] for k in limits), wrong
    assert ("link_rate" in profile.assumed) is not bound
    assert not bound or drive.link_rate == pytest.approx(truth.link_rate, rel=0.03)
    assert profile.score < 0.04
    assert drive.queue_depth == 8  # not measured: the preset's value
    assert {"queue_depth", "read_ahead"} <= set(profile.assumed)
    assert written == 0


class InRealTime:
    """The same in real time, with concurrent requests: a connection for each thread."""

    def __init__(self, server: DiskServer, size: int) -> None:
        self.size = size
        self._server = server
        self._clients: dict[int, Client] = {}

    def read(self, offset: int, length: int) -> None:
        mine = threading.get_ident()
        if mine not in self._clients:
            self._clients[mine] = self._server.client()
        self._clients[mine].read(offset, length)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.mark.slow
@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("name", ["hdd_7200", "hdd_5400_usb"])
def test_in_real_time_the_queue_and_the_reading_ahead_are_found_too(
    tmp_path: Path, name: str
) -> None:
    """On a busy host with two cores a revolution came out 6 % longer than on the model's clock."""
    truth, size = TRUTHS[name], 4 << 30
    effort = Effort(stream=16 * MIB, jumps=40, random=150)
    with running(tmp_path, truth, size=size) as server:
        disk = InRealTime(server, size)
        found = measure.measure(disk, effort, rotational=True, seed=1, pause=time.sleep)
        disk.close()
    profile = fit(Samples.model_validate(found), PRESET, SOLID)
    drive = replace(PRESET, **profile.hdd.model_dump(exclude_none=True))
    assert drive.rpm == pytest.approx(truth.rpm, rel=0.12)
    assert drive.average_seek == pytest.approx(truth.average_seek, rel=0.1)
    assert (drive.queue_depth == 1) == (truth.queue_depth == 1)
    assert drive.read_ahead == pytest.approx(truth.read_ahead, rel=0.5)
    assert profile.score < 0.06


def test_measuring_opens_for_reading_and_changes_nothing(tmp_path: Path) -> None:
    for bay in loops.bay(tmp_path / "bay"):
        disk = bay.loop("disk", size=64 * MIB)
        disk.file.write_bytes(random.Random(1).randbytes(64 * MIB))
        before = hashlib.sha256(disk.file.read_bytes()).digest()
        drive = measure.OpenDisk.open(disk.device)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(drive._descriptor, b"x")
        effort = Effort(stream=2 * MIB, jumps=4, random=16)
        found = measure.measure(
            drive, effort, rotational=True, seed=1, pause=lambda _: time.sleep(0.001)
        )
        drive.close()
        samples = Samples.model_validate(found)
        assert samples.size == 64 * MIB
        assert len(samples.jumps) == len(measure.DISTANCES)
        assert samples.random_16
        assert hashlib.sha256(disk.file.read_bytes()).digest() == before


def test_a_read_that_fails_is_not_counted_as_fast(tmp_path: Path) -> None:
    class Broken:
        size = 64 * MIB

        def read(self, offset: int, length: int) -> None:
            if offset > 32 * MIB:
                raise OSError(5, "Input/output error")

        def now(self) -> float:
            return time.monotonic()

    with pytest.raises(OSError, match="Input/output"):
        measure.parallel_reads(Broken(), 4, measure.SMALL, 200, random.Random(1))


def test_a_profile_can_be_read_back() -> None:
    profile = fit(samples_of(PRESET, 1), PRESET, SOLID)
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
