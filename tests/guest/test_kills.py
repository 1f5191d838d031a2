"""The lab, a worker, QEMU and nbdkit are killed or stopped: nothing hangs, is left, or is lost.

What is hit when comes from a seed: SIGKILL or SIGSTOP. A hit waits for a phase of a cell to begin,
and then for a part of the time that this phase took in a reference run; several hit the same run,
one after the other, and each is checked before the next. The limits are a fifth of what they are
(``LAB_LIMITS``). A host of a cluster is hit in
``tests/integration/test_cluster.py``, where cells sleep.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.guest.backend import LiveBackend
from lab.host.guest.registry import GuestRecord
from lab.host.system import keys, pids

from .conftest import LAB, Home, six_short_cells

pytestmark = pytest.mark.guest

SCENARIO = six_short_cells("its parts", blocks=10)
SERVED = SCENARIO.replace("throttle: {total_bytes_per_second: 3MiB}", "model: ssd")
CELLS = 6
VICTIMS = ("lab", "worker", "QEMU")
KINDS = (signal.SIGSTOP, signal.SIGKILL)
CELL_PHASES = ("plugging", "creating", "timed", "teardown")
PHASES = ("booting", "saving", "restoring", *CELL_PHASES, "between")
SEED = 20261123
LIMITS = 0.2
NOTICED = 300.0
"""Seconds within which anything must be noticed: libvirt's longest limit, 120 s, times a guest's
scale of up to 6 on a busy host, times LIMITS; then a new guest."""

Hit = tuple[str, signal.Signals, str, float]
"""Victim, what is sent to it, a phase, and the part of it after which that is."""


@dataclass(frozen=True)
class Seen:
    """A guest of the run at one moment."""

    record: GuestRecord
    phase: str
    attempt: Path | None
    """Directory of the cell that it has."""

    @property
    def cell(self) -> str:
        return self.attempt.name[1:].rpartition(".")[0] if self.attempt else ""


def phase_of(events: list[dict[str, object]], first: bool) -> str:
    """What a guest with a cell is doing; ``first``: it has had none before."""
    steps = [str(e["label"]) for e in events if e["kind"] == "step"]
    if not steps:
        return "plugging" if first else "teardown"
    if steps[-1].startswith("the array's state"):
        return "between"
    if any(s == "write" for s in steps):
        return "timed"
    if any(s.startswith("create /dev/md") for s in steps):
        return "creating"
    return "plugging"


def events_of(attempt: Path) -> list[dict[str, object]]:
    try:
        lines = (attempt / "events.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def owner_of(attempt: Path) -> str:
    """Id of the guest that has, or had, a cell."""
    try:
        found = re.search(r"/guests/(g[0-9a-f]{6})/", (attempt / "procedure.json").read_text())
    except OSError:
        return ""
    return found[1] if found else ""


@dataclass
class Battle:
    """Runs of the scenario under fire; one after another, each until it is whole."""

    home: Home
    scenario: Path
    spans: dict[str, float]
    spared: set[str]
    """Ids of guests that are none of the run's."""
    tell: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None
    run: Path | None = None
    log: Path = Path()
    began: float = 0.0
    ports: set[int] = field(default_factory=set)
    finished: dict[Path, tuple[int, int]] = field(default_factory=dict)
    owners: dict[Path, str] = field(default_factory=dict)
    whole: int = 0
    words: tuple[str, ...] = ()
    """More words for the command line of the run, and when it goes on."""
    memory: int = 512
    hits: Counter[tuple[str, signal.Signals, str]] = field(default_factory=Counter)
    longest: dict[tuple[str, signal.Signals, str], float] = field(default_factory=dict)
    """Seconds until a hit was noticed and cleaned up."""

    # -- the run

    def runs(self) -> set[Path]:
        found = self.home.path.glob("data/runs/*/run.json")
        return {p.parent for p in found if p.parent.name.startswith(self.scenario.stem)}

    def start(self) -> None:
        """Begin a run, or go on with the one that was killed."""
        words = ["run", "scenario", str(self.scenario), "--jobs", "2", "-v", *self.words]
        if self.run is not None:
            words += ["--resume", self.run.name]
        known = self.runs()
        self.log = self.scenario.with_suffix(".log")
        self.began = time.time()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*LAB, *words],
                env=self.home.environment | {"LAB_LIMITS": str(LIMITS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while self.run is None:
            self.run = next(iter(self.runs() - known), None)
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def look(self) -> list[Seen]:
        """Every guest of the run and what it does."""
        assert self.run is not None
        attempts = sorted(self.run.glob("cells/.*"), key=lambda p: p.stat().st_mtime_ns)
        for attempt in [*attempts, *self.run.glob("cells/[!.]*")]:
            if not self.owners.get(attempt):
                self.owners[attempt] = owner_of(attempt)
        open_ = {self.owners[a]: a for a in attempts if not (a / "outcome.json").exists()}
        found = []
        for record in guests.every():
            if record.id in self.spared:
                continue
            self.ports |= {record.port} - {0}
            now = open_.get(record.id)
            had = [a for a, o in self.owners.items() if o == record.id and a != now]
            if now is not None:
                phase = phase_of(events_of(now), first=not had)
            elif had:
                phase = "between"
            elif record.warm:
                phase = "restoring"
            else:
                phase = "saving" if self.saving() else "booting"
            found.append(Seen(record=record, phase=phase, attempt=now))
        for path in self.run.glob("cells/[!.]*/outcome.json"):
            stat = path.stat()
            written = (stat.st_ino, stat.st_mtime_ns)
            assert self.finished.setdefault(path, written) == written, f"'{path}' was written again"
        return found

    def saving(self) -> bool:
        """Whether a guest is being saved: its directory is in the making."""
        return any(self.home.path.glob("cache/warm/.*.*.*/memory.save"))

    def lost(self) -> dict[str, int]:
        """How often a cell has lost its guest since this lab was started."""
        assert self.run is not None
        found: Counter[str] = Counter()
        for path in self.run.glob("cells/.*/outcome.json"):
            if path.stat().st_mtime >= self.began and '"lost"' in path.read_text():
                found[path.parent.name[1:].rpartition(".")[0]] += 1
        return found

    def ended(self) -> bool:
        """Whether the run came to its end; then it is whole."""
        assert self.process is not None
        assert self.run is not None
        if self.process.poll() is None:
            return False
        assert self.process.returncode == 0, self.log.read_text()
        self.look()
        outcomes = [json.loads(p.read_text()) for p in self.run.glob("cells/[!.]*/outcome.json")]
        assert [o["outcome"] for o in outcomes] == ["done"] * CELLS, self.log.read_text()
        self.clean()
        assert self.home.litter() == []
        self.whole += 1
        self.process = self.run = None
        self.finished.clear()
        return True

    def finish(self) -> None:
        """Let what is under way come to its end, unharmed."""
        if self.process is None and self.run is not None:
            self.start()
        if self.process is not None:
            self.process.wait(timeout=900)
            assert self.ended()

    # -- hits

    def hit(self, victim: str, kind: signal.Signals, phase: str, part: float) -> None:
        """Kill or stop something in a phase, and see that nothing is left and nothing is lost."""
        if phase in ("booting", "saving"):
            self.finish()
            self.memory += 1  # of another kind: it is booted and saved first
            self.words = ("--set", f"guest.memory={self.memory}MiB")
        seen = self.wait_for(victim, phase)
        pause = part * self.spans[phase]
        time.sleep(pause)
        again = [s for s in self.look() if seen and s.record.id == seen.record.id]
        seen = again[0] if again else None
        if victim != "lab" and (seen is None or not self.may_lose(seen)):
            return self.hit(victim, kind, phase, part / 2)
        actual = seen.phase if seen else "between"
        assert self.process is not None
        began = time.monotonic()
        if victim == "lab":
            os.kill(self.process.pid, kind)
            if kind == signal.SIGKILL:
                self.after_lab()
            else:
                self.after_stopped_lab(for_long=part < 0.5)
        else:
            assert seen is not None
            inode = seen.attempt.stat().st_ino if seen.attempt else 0
            pids = pids_of(victim, seen)
            if not pids:
                return self.hit(victim, kind, phase, part / 2)
            os.kill(pids[0], kind)
            self.after_guest(seen, inode, victim)
        seconds = time.monotonic() - began
        what = (victim, kind, actual)
        self.hits[what] += 1
        self.longest[what] = max(seconds, self.longest.get(what, 0.0))
        where = seen.cell if seen else ""
        self.tell(
            f"{kind.name} {victim} in {actual} ({phase} + {pause:.2f} s), {seconds:.1f} s {where}"
        )
        for line in self.sentences()[-2:]:
            self.tell(f"    {line[:180]}")
        return None

    def sentences(self) -> list[str]:
        """What the lab has said of what was done to it."""
        words = "retried|ended unexpectedly|no snapshot could|gave up|said nothing|not restore"
        return [w for w in self.log.read_text().splitlines() if re.search(words, w)]

    def wait_for(self, victim: str, phase: str) -> Seen | None:
        """A guest of the run that has just entered a phase."""
        deadline = time.monotonic() + 900
        before: dict[str, str] = {}
        if self.process is None:
            self.start()
            if victim == "lab" and phase == "between":
                return None
        while True:
            assert time.monotonic() < deadline, self.log.read_text()
            now = self.look()
            for seen in now:
                entered = before.get(seen.record.id) != seen.phase
                alive = victim == "lab" or (pids_of(victim, seen) and self.may_lose(seen))
                if entered and seen.phase == phase and alive:
                    return seen
            before = {s.record.id: s.phase for s in now if victim == "lab" or pids_of(victim, s)}
            if self.ended():
                if phase in ("booting", "saving"):
                    self.memory += 1
                    self.words = ("--set", f"guest.memory={self.memory}MiB")
                self.start()
            time.sleep(0.02)

    def may_lose(self, seen: Seen) -> bool:
        """Whether what is killed now is a cell's first loss: it gets one more try, not two."""
        lost = self.lost()
        assert self.run is not None
        if seen.cell:
            return seen.cell not in lost
        return all((self.run / "cells" / cell).exists() for cell in lost)

    def after_lab(self) -> None:
        """Workers clean up by themselves, gc takes the rest, finished cells stay."""
        assert self.process is not None
        self.process.wait()
        self.process = None
        self.clean()
        done = self.home.run("gc")
        assert done.returncode == 0, done.stderr
        assert self.home.left(self.spared) == []
        assert self.home.litter() == []
        self.look()

    def after_stopped_lab(self, *, for_long: bool) -> None:
        """A short stop changes nothing; after a long one the guests are gone. Then it goes on."""
        assert self.process is not None
        open_cells = {s.cell for s in self.look() if s.cell}
        if for_long and not open_cells & set(self.lost()):
            deadline = time.monotonic() + 600 * LIMITS + 60
            while left := [g for g in self.home.guests.glob("*") if g.name not in self.spared]:
                assert time.monotonic() < deadline, left
                time.sleep(0.2)
        else:
            time.sleep(5)
        assert self.process.poll() is None
        os.kill(self.process.pid, signal.SIGCONT)

    def after_guest(self, seen: Seen, inode: int, victim: str) -> None:
        """The cell that the guest had is lost and kept as evidence, or it had come to its end."""
        assert self.run is not None
        assert self.process is not None
        deadline = time.monotonic() + NOTICED
        place = self.run / "cells" / seen.cell
        while seen.attempt or seen.record.path.exists():
            outcome = seen.attempt / "outcome.json" if seen.attempt else None
            if outcome and outcome.exists():
                told = json.loads(outcome.read_text())
                if told["outcome"] != "done":  # done: it had ended, and is moved to its place now
                    assert told["outcome"] == "lost", told
                    assert told["reason"]
                    if victim == "nbdkit":
                        assert "the server of the disk" in told["reason"], told
                    return
            if seen.attempt and place.exists() and place.stat().st_ino == inode:
                return
            if self.process.poll() is not None:
                assert self.process.returncode == 0, self.log.read_text()
                return
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def clean(self) -> None:
        """Nothing of the run's guests is left, without anybody's help."""
        deadline = time.monotonic() + 60
        while left := self.home.left(self.spared):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        listening = {
            int(words[1].rpartition(":")[2], 16)
            for words in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
            if words[3] == "0A"
        }
        assert not listening & (self.ports - self.spared_ports())

    def spared_ports(self) -> set[int]:
        return {r.port for r in guests.every() if r.id in self.spared}


def pids_of(victim: str, seen: Seen) -> list[int]:
    """Processes that are the victim; none: it does not run, or has been hit already."""
    match victim:
        case "worker":
            found = [seen.record.owner_pid]
        case "QEMU":
            found = guests.qemu_pids(seen.record.path)
        case _:
            found = guests.server_pids(seen.record.path)
    return [pid for pid in found if pids.started_ticks(pid) and not pids.is_stopped(pid)]


def spans_of(run: Path) -> dict[str, float]:
    """How long each phase took, in the median of a run's cells."""
    times: dict[str, list[float]] = {p: [] for p in PHASES}
    for path in run.glob("cells/[!.]*"):
        events = events_of(path)
        outcome = json.loads((path / "outcome.json").read_text())
        boot = outcome["seconds"]["boot"]
        if boot:
            times["restoring"].append(boot)
        parts: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        for number in range(1, len(events)):
            phase = phase_of(events[:number], first=bool(boot))
            step = float(str(events[number]["at"])) - float(str(events[number - 1]["at"]))
            parts[phase] += step
        for phase, seconds in parts.items():
            if phase != "restoring" and seconds:
                times[phase].append(seconds)
    return {p: statistics.median(t) if t else 0.2 for p, t in times.items()}


def plan(victims: Sequence[str], phases: Sequence[str], count: int, seed: int) -> list[Hit]:
    """So many hits; all of victim, signal and phase equally often."""
    chance = random.Random(seed)
    all_of_them = [(v, k, p) for v in victims for k in KINDS for p in phases]
    chosen: list[tuple[str, signal.Signals, str]] = []
    while len(chosen) < count:
        chance.shuffle(all_of_them)
        chosen += all_of_them
    return [(*what, chance.random()) for what in chosen[:count]]


@pytest.fixture
def decoys(lab_home: Home, image: str, tmp_path: Path) -> Iterator[tuple[GuestRecord, Path]]:
    """A guest that stays up, a process and files that look like the lab's and are not its own."""
    scenario = tmp_path / "sixcells.yaml"
    scenario.write_text(SCENARIO)
    known = {r.id for r in guests.every()}
    # Other tests' guests may leave this one little of the processors: a boot took 250 s.
    memory = lab_home.path / "cache" / "host" / "boot-tcg.json"
    memory.parent.mkdir(parents=True, exist_ok=True)
    if not memory.exists():
        memory.write_text(json.dumps({"seconds": 75.0}))
    done = lab_home.run("up", "scenario", str(scenario), "--no-run", timeout=1800)
    assert done.returncode == 0, done.stderr
    (record,) = [r for r in guests.every() if r.id not in known]
    files = {
        lab_home.path / "state" / "guests-of-others" / "g000000" / "guest.json": "not ours",
        lab_home.path / "data" / "runs" / "notes.txt": "mine",
        tmp_path / "guests" / "g000001" / "guest.json": "{}",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    bystander = subprocess.Popen(
        [
            *(sys.executable, "-c", "import time; time.sleep(3600)", "qemu-system-x86_64"),
            f"file={lab_home.guests}-of-others/g000000/disk.qcow2",
        ]
    )
    try:
        yield record, scenario
        assert bystander.poll() is None
        assert {p: p.read_text() for p in files} == files
    finally:
        bystander.kill()
        bystander.wait()
        lab_home.run("down", record.id)
    assert lab_home.left() == []


def fight(home: Home, decoys: tuple[GuestRecord, Path], hits: list[Hit]) -> Battle:
    record, scenario = decoys
    saved = {s.key: s.memory.stat().st_ino for s in snapshots.every()}
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    battle = Battle(home, scenario, dict.fromkeys(PHASES, 0.2), {record.id}, tell)
    battle.start()
    reference = battle.run
    assert reference is not None
    battle.finish()
    battle.spans = spans_of(reference)
    tell("reference run; " + ", ".join(f"{p} {s:.2f} s" for p, s in battle.spans.items()))
    try:
        for hit in hits:
            battle.hit(*hit)
        battle.finish()
    finally:
        if battle.process is not None:
            battle.process.kill()
            battle.process.wait()
            home.wait_until_nothing_is_left(10)
            home.run("gc")
    stay = {s.key: s.memory.stat().st_ino for s in snapshots.every()}
    assert {key: stay.get(key) for key in saved} == saved, "a saved guest was thrown away"
    bench = LiveBackend(record, keys.lab_key().private)
    bench.wait_for_ssh(60)
    assert "active raid5" in bench.guest("cat /proc/mdstat", 60).stdout
    bench.close()
    tell(f"{battle.hits.total()} hits, {battle.whole} whole runs")
    for (victim, kind, phase), count in sorted(battle.hits.items()):
        seconds = battle.longest[victim, kind, phase]
        tell(f"{victim:7} {kind.name:8} {phase:10} {count:2}  noticed within {seconds:6.1f} s")
    return battle


@pytest.mark.slow
def test_three_hits(lab_home: Home, decoys: tuple[GuestRecord, Path]) -> None:
    """One run: a stopped QEMU, a stopped worker, a killed lab."""
    hits: list[Hit] = [
        ("QEMU", signal.SIGSTOP, "timed", 0.3),
        ("worker", signal.SIGSTOP, "creating", 0.3),
        ("lab", signal.SIGKILL, "timed", 0.3),
    ]
    assert fight(lab_home, decoys, hits).hits.total() == 3


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("half", [0, 1])
def test_sixty_hits(lab_home: Home, decoys: tuple[GuestRecord, Path], half: int) -> None:
    """Forty-eight of the sixty: each victim, signal and phase."""
    hits = plan(VICTIMS, PHASES, 48, SEED)[half::2]
    assert fight(lab_home, decoys, hits).hits.total() == 24


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_servers_of_disks(lab_home: Home, decoys: tuple[GuestRecord, Path]) -> None:
    """The other twelve: nbdkit, behind modelled disks."""
    record, scenario = decoys
    served = scenario.with_name("served.yaml")
    served.write_text(SERVED)
    hits = plan(("nbdkit",), CELL_PHASES, 12, SEED)
    assert fight(lab_home, (record, served), hits).hits.total() == 12
