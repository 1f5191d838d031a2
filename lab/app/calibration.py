"""Disks are measured bare, in a guest, before what is built of them is believed.

Each kind of disk that a run uses is calibrated once for a host, an image and a QEMU: a cell of its
own with the scenario's disks and no array. It takes its turn among the run's cells. What is off
marks the cells that use such disks, and claims about them are inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab import catalog, measure
from lab.app.place import Place
from lab.errors import ToolError
from lab.host import calibrations
from lab.model.calibration import CALIBRATED, Calibration, CalibrationPoint
from lab.model.measurement import Check, Prediction
from lab.model.plugin import Probe
from lab.model.scenario import Cell, Disk
from lab.predict import predictions, promises
from lab.store import now


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A kind of disk that nobody has calibrated here yet."""

    key: str
    disk: Disk
    probes: tuple[Probe, ...]
    cell: Cell
    """The scenario's disks of that kind, bare; the workloads go to the first of them."""

    @property
    def id(self) -> str:
        """Name of its directory in the run."""
        return f"calibration-{self.key}"

    @property
    def expected(self) -> tuple[Prediction, ...]:
        """What the model promises of each probe, where it is known."""
        single = self.disk.model_copy(update={"count": 1})
        alone = predictions(self.cell.model_copy(update={"disks": (single,)}))
        theory = {(p.workload.name, p.metric) for p in self.probes if not p.figure}
        found = [p for p in alone if (p.workload, p.metric) in theory]
        return (*found, *promises(self.disk, self.probes))


def kind_of(disk: Disk) -> dict[str, Any]:
    """What a disk is, as in a scenario, whatever its number and serial."""
    return disk.model_dump(mode="json", exclude={"count", "serial"}, exclude_none=True)


def wanted(
    cells: Sequence[Cell], places: Mapping[str, Place]
) -> tuple[list[Wanted], list[Calibration]]:
    """The kinds of disk that the cells use: those to be measured, and those that were before."""
    missing: dict[str, Wanted] = {}
    known: dict[str, Calibration] = {}
    for cell in cells:
        place = places[cell.guest.image]
        for disk in cell.disks if cell.workloads else ():  # without, nothing is to be believed
            probes = catalog.disk_model(disk.model).probes(disk)
            if not probes or not disk.count:
                continue
            key = calibrations.key_of(
                {
                    "disk": kind_of(disk),
                    "probes": [repr(p) for p in probes],
                    "image": place.image.digest,
                    "accelerator": place.accelerator.kind,
                    "cpus": cell.guest.cpus,
                }
            )
            if key in missing or key in known:
                continue
            if (before := calibrations.find(key)) is not None:
                known[key] = before
                continue
            bare = cell.model_copy(
                update={
                    "axes": {},
                    "disks": (disk,),
                    "array": None,
                    "filesystem": None,
                    "workloads": tuple(p.workload for p in probes),
                    "faults": (),
                    "trials": 1,
                }
            )
            missing[key] = Wanted(key=key, disk=disk, probes=probes, cell=bare)
    return list(missing.values()), list(known.values())


def standing(
    before: Sequence[Calibration], missing: Sequence[Wanted], known: Sequence[Calibration]
) -> tuple[Calibration, ...]:
    """What a run knows of its disks as it begins, or goes on: all but what is measured anew."""
    anew = [kind_of(w.disk) for w in missing] + [c.disk for c in known]
    return (*(c for c in before if c.disk not in anew), *known)


def calibrate(wish: Wanted, raw: Mapping[str, str], problem: str = "") -> Calibration:
    """What the bare disk did, from the raw output of its cell."""
    disk = kind_of(wish.disk)
    if problem:
        return Calibration(disk=disk, problem=problem, measured_at=now())
    try:
        found = {(m.workload, m.metric): m for m in measure.measurements(wish.cell, raw)}
    except ToolError as error:
        return Calibration(disk=disk, problem=error.message, measured_at=now())
    expected = {(p.workload, p.metric): p.value for p in wish.expected}
    points = []
    for probe in wish.probes:
        at = (probe.workload.name, probe.metric)
        if at not in found or at not in expected:
            return Calibration(
                disk=disk,
                problem=f"nothing is known to hold {probe.workload.name} against",
                measured_at=now(),
            )
        points.append(
            CalibrationPoint(
                name=probe.workload.name,
                metric=probe.metric,
                unit=found[at].unit,
                measured=found[at].median,
                expected=expected[at],
                tolerance=probe.tolerance,
            )
        )
    return Calibration(disk=disk, points=tuple(points), measured_at=now())


def check_of(cell: Cell, known: Sequence[Calibration]) -> tuple[Check, ...]:
    """Whether a cell's disks are as they should be; nothing where nobody looked."""
    kinds = [kind_of(d) for d in cell.disks if d.count]
    found = [c for c in known if c.disk in kinds]
    if not found:
        return ()
    worst = next((c for c in found if not c.passed), found[0])
    return (Check(name=CALIBRATED, passed=worst.passed, detail=worst.detail),)
