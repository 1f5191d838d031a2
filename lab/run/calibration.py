"""Calibration: measures bare disks in a guest, to check their speed before judging results.

Each disk configuration of a run is calibrated once per host, image and QEMU, by a cell with the
scenario's disks and no array. If a disk's speed differs, claims about cells with it are
inconclusive. Modelled drives are not calibrated: their values are judged in virtual time only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.analysis import measure
from lab.analysis.predict import predictions
from lab.compile.guest.virtual_time import is_sealed
from lab.core.errors import ToolError
from lab.model.plugin import Probe
from lab.model.result.calibration import Calibration, CalibrationPoint, kind_of
from lab.model.result.measurement import Prediction
from lab.model.scenario.document import Cell, Disk
from lab.model.scenario.guest import System
from lab.plugins import catalog
from lab.run.preparation.platforms import Platform
from lab.store import calibrations
from lab.store.runs import now


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A disk configuration that is not calibrated on this host yet."""

    key: str
    disk: Disk
    probes: tuple[Probe, ...]
    cell: Cell
    """The cell that measures it: bare disks, with workloads on the first one."""

    @property
    def id(self) -> str:
        """Name of its directory in the run."""
        return f"calibration-{self.key}"

    def expected(self) -> tuple[Prediction, ...]:
        """Predicted values of each probe."""
        single = self.disk.model_copy(update={"count": 1})
        alone = predictions(self.cell.model_copy(update={"disks": (single,)}))
        probed = {(p.workload.name, p.metric) for p in self.probes}
        return tuple(p for p in alone if (p.workload, p.metric) in probed)


def wanted(
    cells: Sequence[Cell], platforms: Mapping[System, Platform]
) -> tuple[list[Wanted], list[Calibration]]:
    """Return disk configurations to calibrate, in order, and known calibrations."""
    missing: dict[str, Wanted] = {}
    known: dict[str, Calibration] = {}

    for cell in cells:
        if is_sealed(cell):  # the disks of a sealed guest are exact by construction
            continue
        place = platforms[cell.guest.system]
        for disk in cell.disks if cell.workloads else ():  # nothing to judge
            probes = catalog.disk_model(disk.model).probes(disk)
            if not probes or not disk.count:
                continue
            wish = _wish(disk, probes, cell, place)
            if (before := calibrations.find(wish.key)) is not None:
                known[wish.key] = before
            else:
                missing[wish.key] = wish
    return list(missing.values()), list(known.values())


def _wish(disk: Disk, probes: tuple[Probe, ...], cell: Cell, place: Platform) -> Wanted:
    """Return a calibration to make; its key covers all facts that change the disk's speed."""
    key = calibrations.key_of(
        {
            "disk": kind_of(disk),
            "probes": [repr(p) for p in probes],
            "image": place.image.digest,
            "accelerator": place.accelerator.kind,
            "cpus": cell.guest.cpus,
        }
    )
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
    return Wanted(key=key, disk=disk, probes=probes, cell=bare)


def standing(
    before: Sequence[Calibration], missing: Sequence[Wanted], known: Sequence[Calibration]
) -> tuple[Calibration, ...]:
    """Return a run's calibrations at its start or resumption, without those to be repeated."""
    anew = [kind_of(w.disk) for w in missing] + [c.disk for c in known]
    return (*(c for c in before if c.disk not in anew), *known)


def conclude(wish: Wanted, raw: Mapping[str, str], problem: str = "") -> Calibration:
    """Return the calibration; store it for other runs if it is reliable."""
    found = calibrate(wish, raw, problem)
    if not found.problem:
        calibrations.keep(wish.key, found)
    return found


def calibrate(wish: Wanted, raw: Mapping[str, str], problem: str = "") -> Calibration:
    """Return a calibration from the raw output of its cell."""
    nothing = Calibration(disk=kind_of(wish.disk), problem=problem, measured_at=now())
    if problem:
        return nothing
    try:
        found = {(m.workload, m.metric): m for m in measure.measurements(wish.cell, raw)}
    except ToolError as error:
        return nothing.model_copy(update={"problem": error.message})
    expected = {(p.workload, p.metric): p.value for p in wish.expected()}
    points = []
    for probe in wish.probes:
        name = probe.workload.name
        at = (name, probe.metric)
        if at not in found or at not in expected:
            return nothing.model_copy(
                update={"problem": f"nothing is known to hold {name} against"}
            )
        points.append(
            CalibrationPoint(
                name=name,
                metric=probe.metric,
                unit=found[at].unit,
                measured=found[at].median,
                expected=expected[at],
                tolerance=probe.tolerance,
            )
        )
    return nothing.model_copy(update={"points": tuple(points)})
