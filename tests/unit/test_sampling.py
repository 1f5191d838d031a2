"""The sampler with made-up counters."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lab.host.guest.libvirt.drives import DiskCounters
from lab.host.guest.sampling import STALE, Sampler
from lab.host.system import load
from lab.model.execution.events import Event, Sample, StepStarted
from lab.run.options import RunOptions
from lab.run.scheduling.executor import Execution


def disk(read: int, written: int) -> DiskCounters:
    return DiskCounters(reads=1, writes=1, flushes=0, read_bytes=read, written_bytes=written)


class Told:
    """Emitted samples, and a QEMU with settable CPU time."""

    def __init__(self) -> None:
        self.cpu = 10.0
        self.pulses: list[Sample] = []
        self.take = Sampler(lambda: self.cpu, self.pulses.append).take


def test_a_pulse_is_the_difference_to_the_answer_before() -> None:
    told = Told()
    told.take(100.0, {"disk1": disk(1000, 0), "disk2": disk(0, 500)})
    assert told.pulses == []  # there is no earlier reading
    told.cpu = 10.7
    told.take(102.0, {"disk1": disk(3000, 40), "disk2": disk(0, 700)})
    assert told.pulses == [Sample(seconds=2.0, processor=0.7, read_bytes=2000, written_bytes=240)]
    told.take(104.5, {"disk1": disk(3000, 40), "disk2": disk(0, 700)})
    idle = Sample(seconds=2.5, processor=0.0, read_bytes=0, written_bytes=0)
    assert told.pulses[1:] == [idle]


def test_an_old_answer_says_nothing_of_now() -> None:
    told = Told()
    told.take(100.0, {"disk1": disk(0, 0)})
    told.take(100.1 + STALE, {"disk1": disk(9000, 0)})
    assert told.pulses == []
    told.take(102.0 + STALE, {"disk1": disk(9100, 0)})
    assert [p.read_bytes for p in told.pulses] == [100]


def test_a_qemu_that_was_started_anew_counts_from_zero() -> None:
    told = Told()
    told.take(100.0, {"disk1": disk(5000, 5000)})
    told.take(102.0, {"disk1": disk(100, 6000)})
    assert told.pulses == []
    told.cpu = 0.5
    told.take(103.0, {"disk1": disk(200, 6000)})  # its CPU time decreased
    assert told.pulses == []
    told.take(104.0, {"disk1": disk(300, 6000)})
    assert [p.read_bytes for p in told.pulses] == [100]


def test_a_disk_that_was_plugged_in_meanwhile_counts_later() -> None:
    told = Told()
    told.take(100.0, {"disk1": disk(0, 0)})
    told.take(102.0, {"disk1": disk(7, 0), "disk2": disk(10**9, 0)})
    told.take(104.0, {"disk2": disk(10**9 + 5, 0)})
    assert [p.read_bytes for p in told.pulses] == [7, 5]


def test_the_processor_time_of_a_process_is_what_it_used() -> None:
    before, begun = load.processor(os.getpid()), time.process_time()
    while time.process_time() - begun < 0.2:
        pass
    used = load.processor(os.getpid()) - before
    assert 0.15 <= used <= 1.0
    assert load.processor(2**22 + 1) == 0.0  # no process has this id


def test_a_pulse_is_watched_and_in_no_cells_log(tmp_path: Path) -> None:
    seen: list[tuple[str, Event | None]] = []
    run = Execution(
        store=cast("Any", SimpleNamespace(directory=tmp_path)),
        compiled=cast("Any", None),
        platforms={},
        watch=lambda guest, event: seen.append((guest, event)),
        say=print,
        options=RunOptions(),
    )
    run._running = {"g1": cast("Any", SimpleNamespace(id="c1", directory=tmp_path))}
    worker = cast("Any", SimpleNamespace(id="g1"))
    step = StepStarted(cell="c1", label="write")
    pulse = Sample(seconds=2, processor=1, read_bytes=3, written_bytes=4)
    for event in (pulse, step, pulse):
        run._handle(worker, event)
    assert seen == [("g1", pulse), ("g1", step), ("g1", pulse)]
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert '"kind":"step"' in line
