"""SIGKILL at random moments: the lab, a worker, QEMU. Nothing is left and nothing is lost.

What is killed when comes from a seed. A kill waits for a phase of a cell to begin, and then for a
part of the time that this phase took in a reference run; several kills hit the same run, one after
the other, and each is checked before the next.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.host import guests, keys, warm
from lab.host.bench import LiveBench
from lab.host.guests import GuestRecord

from .conftest import LAB, Home, six_short_cells

pytestmark = pytest.mark.guest

SCENARIO = six_short_cells("its parts", blocks=10)
CELLS = 6
VICTIMS = ("lab", "worker", "QEMU")
PHASES = ("restoring", "plugging", "creating", "timed", "teardown", "between")
SEED = 20261120


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
    killed: Counter[tuple[str, str]] = field(default_factory=Counter)

    # -- the run

    def runs(self) -> set[Path]:
        found = self.home.path.glob("data/runs/*/run.json")
        return {p.parent for p in found if p.parent.name.startswith(self.scenario.stem)}

    def start(self) -> None:
        """Begin a run, or go on with the one that was killed."""
        words = ["run", "scenario", str(self.scenario), "--jobs", "2", "-v"]
        if self.run is not None:
            words += ["--resume", self.run.name]
        known = self.runs()
        self.log = self.scenario.with_suffix(".log")
        self.began = time.time()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*LAB, *words],
                env=self.home.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
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
            attempt = open_.get(record.id)
            had = [a for a, o in self.owners.items() if o == record.id and a != attempt]
            if attempt is not None:
                phase = phase_of(events_of(attempt), first=not had)
            else:
                phase = "between" if had else "restoring"
            found.append(Seen(record=record, phase=phase, attempt=attempt))
        for path in self.run.glob("cells/[!.]*/outcome.json"):
            stat = path.stat()
            now = (stat.st_ino, stat.st_mtime_ns)
            assert self.finished.setdefault(path, now) == now, f"'{path}' was written again"
        return found

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
            self.process.wait(timeout=300)
            assert self.ended()

    # -- kills

    def kill(self, victim: str, phase: str, part: float) -> None:
        """Kill something in a phase, and see that nothing is left and nothing is lost."""
        seen = self.wait_for(victim, phase)
        pause = part * self.spans[phase]
        time.sleep(pause)
        now = self.look()
        again = [s for s in now if seen and s.record.id == seen.record.id]
        seen = again[0] if again else None
        assert self.process is not None
        if victim == "lab":
            actual = seen.phase if seen else "between"
            self.process.kill()
            self.process.wait()
            self.tell(f"lab in {actual} ({phase} + {pause:.2f} s)")
            self.after_lab()
        elif seen is None or not guests.is_alive(seen.record) or not self.may_lose(seen):
            return self.kill(victim, phase, part / 2)
        else:
            actual = seen.phase
            inode = seen.attempt.stat().st_ino if seen.attempt else 0
            pid = seen.record.owner_pid if victim == "worker" else seen.record.pid
            os.kill(pid, signal.SIGKILL)
            self.tell(
                f"{victim} of {seen.record.id} in {actual} ({phase} + {pause:.2f} s) {seen.cell}"
            )
            self.after_guest(seen, inode)
        self.killed[victim, actual] += 1
        return None

    def wait_for(self, victim: str, phase: str) -> Seen | None:
        """A guest of the run that has just entered a phase."""
        deadline = time.monotonic() + 240
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
                alive = victim == "lab" or (seen.record.pid and self.may_lose(seen))
                if entered and seen.phase == phase and alive:
                    return seen
            before = {s.record.id: s.phase for s in now if victim == "lab" or s.record.pid}
            if self.ended():
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
        self.process = None
        self.clean()
        done = self.home.run("gc")
        assert done.returncode == 0, done.stderr
        assert self.home.left(self.spared) == []
        assert self.home.litter() == []
        self.look()

    def after_guest(self, seen: Seen, inode: int) -> None:
        """The cell that the guest had is lost and kept as evidence, or it had come to its end."""
        assert self.run is not None
        if not seen.attempt:
            return
        deadline = time.monotonic() + 90
        place = self.run / "cells" / seen.cell
        while True:
            outcome = seen.attempt / "outcome.json"
            if outcome.exists():
                told = json.loads(outcome.read_text())
                assert told["outcome"] == "lost", told
                assert told["reason"]
                return
            if place.exists() and place.stat().st_ino == inode:
                return
            assert self.process is not None
            assert self.process.poll() in (None, 0), self.log.read_text()
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


def plan(count: int, seed: int) -> list[tuple[str, str, float]]:
    """Victim, phase, and the part of it after which to kill; all pairs equally often."""
    chance = random.Random(seed)
    pairs = [(victim, phase) for victim in VICTIMS for phase in PHASES]
    chosen: list[tuple[str, str]] = []
    while len(chosen) < count:
        chance.shuffle(pairs)
        chosen += pairs
    return [(victim, phase, chance.random()) for victim, phase in chosen[:count]]


@pytest.fixture
def decoys(lab_home: Home, image: str, tmp_path: Path) -> Iterator[tuple[GuestRecord, Path]]:
    """A guest that stays up, a process and files that look like the lab's and are not its own."""
    scenario = tmp_path / "sixcells.yaml"
    scenario.write_text(SCENARIO)
    known = {r.id for r in guests.every()}
    done = lab_home.run("up", "scenario", str(scenario), "--no-run")
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


def fight(home: Home, decoys: tuple[GuestRecord, Path], count: int) -> Battle:
    record, scenario = decoys
    saved = {s.key: s.memory.stat().st_ino for s in warm.every()}
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
        for victim, phase, part in plan(count, SEED):
            battle.kill(victim, phase, part)
        battle.finish()
    finally:
        if battle.process is not None:
            battle.process.kill()
            battle.process.wait()
            home.wait_until_nothing_is_left(10)
            home.run("gc")
    stay = {s.key: s.memory.stat().st_ino for s in warm.every()}
    assert {key: stay.get(key) for key in saved} == saved, "a saved guest was thrown away"
    bench = LiveBench(record, keys.lab_key().private)
    bench.wait_for_ssh(60)
    assert "active raid5" in bench.guest("cat /proc/mdstat", 60).stdout
    bench.close()
    tell(f"{sum(battle.killed.values())} kills, {battle.whole} whole runs")
    for victim in VICTIMS:
        counts = {p: battle.killed[victim, p] for p in PHASES}
        tell(
            f"{victim:6} {sum(counts.values()):3}  "
            + "  ".join(f"{p} {n}" for p, n in counts.items())
        )
    return battle


def test_six_kills(lab_home: Home, decoys: tuple[GuestRecord, Path]) -> None:
    battle = fight(lab_home, decoys, 6)
    assert sum(battle.killed.values()) == 6


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_fifty_kills(lab_home: Home, decoys: tuple[GuestRecord, Path]) -> None:
    battle = fight(lab_home, decoys, 50)
    assert sum(battle.killed.values()) == 50
    for victim in VICTIMS:
        assert sum(n for (v, _), n in battle.killed.items() if v == victim) >= 16
    for phase in PHASES:
        assert sum(n for (_, p), n in battle.killed.items() if p == phase) >= 3
