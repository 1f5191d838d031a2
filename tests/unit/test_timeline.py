"""The timeline of a run with eight faults, against what the lab, md and the kernel counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.analysis.timeline import timeline
from lab.model.result.timeline import DiskSpan, DiskState, Timeline
from lab.report.charts.render import svg
from lab.report.charts.timeline import WIDTH, timelines
from lab.report.content.fault_rows import fault_rows
from lab.report.content.page_data import Page, PageCell
from lab.results.report import page_of
from lab.store.runs import RunStore
from tests.kept import unpacked


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return unpacked("faults", tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def page(store: RunStore) -> Page:
    return page_of(store)


@pytest.fixture(scope="module")
def cell(page: Page) -> PageCell:
    return page.cells[0]


@pytest.fixture(scope="module")
def found(cell: PageCell) -> Timeline:
    assert cell.timeline is not None
    return cell.timeline


@pytest.fixture(scope="module")
def raw(store: RunStore) -> dict[str, str]:
    return store.raw(store.cell_directory(store.load_run().cells[0].id))


def at(found: Timeline, when: float) -> dict[str, DiskState]:
    return {s.disk: s.state for s in found.spans if s.begin <= when < s.end}


def values(cell: PageCell, fault: str) -> dict[str, float]:
    return {m.metric: m.median for m in cell.result.measurements if m.workload == fault}


def test_members_in_sync_and_faulty_after_each_fault_are_those_that_md_counted(
    cell: PageCell, found: Timeline
) -> None:
    for fault in found.faults:
        states = list(at(found, fault.idle + 0.01).values())
        counted = values(cell, fault.name)
        assert states.count(DiskState.IN_SYNC) == counted["in_sync"], fault.name
        assert states.count(DiskState.FAULTY) == counted["faulty"], fault.name
    assert len({values(cell, f.name)["in_sync"] for f in found.faults}) > 1


def test_a_fault_is_idle_after_its_seconds(cell: PageCell, found: Timeline) -> None:
    for fault in found.faults:
        seconds = values(cell, fault.name)["seconds"]
        clock = 2.1 if fault.fault == "power_cut" else 0.15  # the boot; stopping the array first
        assert 0 <= fault.idle - fault.at - seconds + 0.02 < clock, fault.name


def test_resyncs_and_recoveries_last_as_long_as_measured(cell: PageCell, found: Timeline) -> None:
    for fault in found.faults:
        own = [
            w.end - w.begin
            for w in found.works
            if w.action != "check" and fault.at <= w.begin <= fault.idle
        ]
        counted = values(cell, fault.name)
        assert len(own) == counted["synced"], fault.name
        assert sum(own) == pytest.approx(counted.get("sync_seconds", 0.0), abs=1e-5)


def test_times_of_checks_by_the_shell_and_by_the_kernel_agree(
    cell: PageCell, found: Timeline, raw: dict[str, str]
) -> None:
    lines = re.findall(r"^\[ *([\d.]+)\] md: (?:\S+: )?data-check", raw["end.txt"], re.MULTILINE)
    kernel = [float(t) + found.boots[-1] for t in lines]
    shown = [t for w in found.works if w.action == "check" for t in (w.begin, w.end)]
    assert len(kernel) >= 6
    assert shown[-len(kernel) :] == pytest.approx(kernel, abs=1e-6)
    without = {name: text for name, text in raw.items() if name != "end.txt"}
    made = next(c.detail for c in cell.result.checks if c.name == "array")
    shell = timeline(cell.cell, without, made)
    assert shell is not None
    clock = [t for w in shell.works if w.action == "check" for t in (w.begin, w.end)]
    assert len(clock) == 2 * sum(fault.check for fault in cell.cell.faults) == len(shown)
    assert clock == pytest.approx(shown, abs=0.25)  # the shell reads md's state every 0.1 s


def test_the_clock_goes_on_after_a_power_cut(
    cell: PageCell, found: Timeline, raw: dict[str, str]
) -> None:
    times = [fault.at for fault in found.faults]
    assert times == sorted(times)
    cut = float(raw["cut.1.at.txt"].split()[0])
    assert found.boots == (0.0, cut)
    assert times[0] == cut
    # The CPU's counters at the start of the workload that it cut, in 1/100 s, tell the least.
    cpu = sum(map(int, raw["scattered.1.before.txt"].splitlines()[0].split()[1:9])) / 100
    assert cpu + cell.cell.faults[0].at <= cut <= cpu + cell.cell.faults[0].at + 2
    assert set(at(found, cut + 0.1).values()) == {DiskState.OFF}
    assert [s.begin for s in found.spans if s.state is DiskState.OFF] == [cut] * 5
    other = timeline(cell.cell, raw | {"cut.1.at.txt": "20.5 1.0"}, "")
    assert other is not None  # a later cut moves all that follows
    assert other.faults[3].at - found.faults[3].at == pytest.approx(20.5 - cut)


def test_a_spare_is_rebuilt_while_md_recovers_and_the_replaced_disk_then_fails(
    found: Timeline,
) -> None:
    [recovery, _] = [w for w in found.works if w.action == "recovery"]
    [rebuilt] = [s for s in of(found, "disk5") if s.state is DiskState.REBUILDING]
    assert (rebuilt.begin, rebuilt.end) == (recovery.begin, recovery.end)
    [faulty] = [s for s in of(found, "disk1") if s.state is DiskState.FAULTY]
    assert faulty.begin == recovery.end
    for disk in found.disks:
        own = of(found, disk)
        assert own[0].begin == found.begin
        assert own[-1].end == found.end
        assert all(one.end == other.begin for one, other in pairwise(own))


def of(found: Timeline, disk: str) -> list[DiskSpan]:
    return [s for s in found.spans if s.disk == disk]


def test_each_fault_has_what_was_found_and_the_verdict_of_its_claims(
    page: Page, cell: PageCell
) -> None:
    rows = {row.at.name: row for row in fault_rows(page, cell)}
    assert rows["replaced"].what == "replace disk 1 with 5"
    assert rows["data_rot"].found == ("1 lost", "check 8")
    assert rows["cut"].found == ("intact", "check 0")
    assert rows["cut"].claims == "✓ 4 hold"
    assert rows["parity_repair"].claims == "✓ holds"


def test_marks_stand_where_their_times_are(page: Page, found: Timeline) -> None:
    [(_, chart)] = timelines(page)
    drawn = svg(chart)
    assert "Timeline" in page_text_of(page)
    [rebuilt] = [s for s in of(found, "disk5") if s.state is DiskState.REBUILDING]
    [box] = [p for name, p in boxes(drawn) if name.startswith("disk5: rebuilding")]
    scale = WIDTH / (found.end - found.begin)
    assert box[0] == pytest.approx((rebuilt.begin - found.begin) * scale, abs=0.1)
    assert box[1] - box[0] == pytest.approx((rebuilt.end - rebuilt.begin) * scale, abs=0.1)


def boxes(drawn: str) -> Iterator[tuple[str, tuple[float, float]]]:
    for element in ElementTree.fromstring(drawn).iter():
        path = re.match(
            r"M([-\d.]+),[-\d.]+L([-\d.]+),|M([-\d.]+),[-\d.]+h([-\d.]+)", element.get("d", "")
        )
        if path and (name := element.get("aria-label")):
            left = float(path[1] or path[3])
            yield name, (left, float(path[2]) if path[2] else left + float(path[4]))


def page_text_of(page: Page) -> str:
    from lab.report.html.page import run_page

    return run_page(page)


def test_a_run_without_faults_has_no_timeline(tmp_path: Path) -> None:
    page = page_of(unpacked("raid5-parity-last", tmp_path))
    assert timelines(page) == ()
    assert 'id="timeline"' not in page_text_of(page)
