"""Calibration: disks are measured bare in a guest before results on them are believed.

Each disk configuration of a run is calibrated once per host, image and QEMU, by a cell with the
scenario's disks and no array. If a disk is off, claims about cells that use it are inconclusive.

A modelled disk is compared with what its drive would do for this guest. So the guest overhead per
request is measured first, once, on a disk of the same server that takes no time. Under a hard disk,
or a solid-state one at a slow time scale, a guest idles between requests and then takes longer:
that overhead is measured on a disk that takes a known time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.analysis import measure
from lab.analysis.predict import predictions, promises
from lab.compile.guest.virtual_time import is_sealed
from lab.core.errors import ToolError
from lab.host.guest import servers
from lab.md.theory.drive import NO_TIME
from lab.model.execution.procedure import BuildPlugin
from lab.model.plugin import Probe
from lab.model.result.calibration import Calibration, CalibrationPoint, GuestTimes, kind_of
from lab.model.result.measurement import IOPS, Prediction
from lab.model.scenario.document import Cell, Disk
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.plugins import catalog
from lab.plugins.disks._shared import PACE, guest_probes, paced_probes
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
    """The cell that measures it: bare disks, workloads on the first of them."""
    own: bool = False
    """The disk takes no time, or a known one: guest overhead is measured."""
    first: str = ""
    """Key of the guest overhead, which must be known before; empty: no drive is modelled."""
    pace: float = 0.0
    """Seconds that the disk takes for each command, if guest overhead is measured."""

    @property
    def id(self) -> str:
        """Name of its directory in the run."""
        return f"calibration-{self.key}"

    def times(self) -> GuestTimes | None:
        """The guest overhead, if known."""
        before = calibrations.find(self.first) if self.first else None
        return before.guest if before else None

    def expected(self, guest: GuestTimes = NO_TIME) -> tuple[Prediction, ...]:
        """Predicted values of each probe."""
        if self.own:
            return ()
        single = self.disk.model_copy(update={"count": 1})
        alone = predictions(self.cell.model_copy(update={"disks": (single,)}))
        theory = {(p.workload.name, p.metric) for p in self.probes if not p.figure}
        found = [p for p in alone if (p.workload, p.metric) in theory]
        return (*found, *promises(self.disk, self.probes, guest))


def wanted(
    cells: Sequence[Cell], platforms: Mapping[tuple[str, str | None], Platform]
) -> tuple[list[Wanted], list[Calibration]]:
    """Disk configurations of the cells: those to calibrate, in order, and known calibrations."""
    missing: dict[str, Wanted] = {}
    known: dict[str, Calibration] = {}

    def want(wish: Wanted) -> None:
        if wish.key in missing or wish.key in known:
            return
        if (before := calibrations.find(wish.key)) is not None:
            known[wish.key] = before
        else:
            missing[wish.key] = wish

    for cell in cells:
        if is_sealed(cell):  # its disks keep exact time by construction
            continue
        place = platforms[cell.guest.system]
        for disk in cell.disks if cell.workloads else ():  # without, nothing is to be believed
            model = catalog.disk_model(disk.model)
            probes = model.probes(disk)
            if not probes or not disk.count:
                continue
            first = ""
            if (costless := model.costless(disk)) is not None:
                guest = _wish(costless, guest_probes(), cell, place, own=True)
                want(guest)
                first = guest.key
            if _rests(model.drive(disk)) and (paced := model.costless(disk, PACE)):
                guest = _wish(paced, paced_probes(), cell, place, own=True, first=first, pace=PACE)
                want(guest)
                first = guest.key
            want(_wish(disk, probes, cell, place, first=first))
    return list(missing.values()), list(known.values())


def _rests(drive: HardDrive | SolidStateDrive | None) -> bool:
    """Whether a guest idles between requests, as with a paced disk.

    It does under a hard disk, and under a solid-state one at a slow time scale.
    """
    if isinstance(drive, SolidStateDrive):
        return drive.overhead + drive.read_latency >= PACE / 2
    return drive is not None


def _wish(
    disk: Disk,
    probes: tuple[Probe, ...],
    cell: Cell,
    place: Platform,
    *,
    own: bool = False,
    first: str = "",
    pace: float = 0.0,
) -> Wanted:
    """Return a calibration to make; its key covers all that makes the disk faster or slower."""
    steps = catalog.disk_model(disk.model).create(disk, "/disk1.raw")
    key = calibrations.key_of(
        {
            "disk": kind_of(disk),
            "probes": [repr(p) for p in probes],
            "image": place.image.digest,
            "accelerator": place.accelerator.kind,
            "cpus": cell.guest.cpus,
            "servers": [servers.identity(s) for s in steps if isinstance(s, BuildPlugin)],
            "first": first,
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
    return Wanted(key=key, disk=disk, probes=probes, cell=bare, own=own, first=first, pace=pace)


def standing(
    before: Sequence[Calibration], missing: Sequence[Wanted], known: Sequence[Calibration]
) -> tuple[Calibration, ...]:
    """Calibrations of a run as it begins or goes on, without those that are made anew."""
    anew = [kind_of(w.disk) for w in missing] + [c.disk for c in known]
    return (*(c for c in before if c.disk not in anew), *known)


def conclude(wish: Wanted, raw: Mapping[str, str], problem: str = "") -> Calibration:
    """Return the calibration; it is kept for other runs if it can be relied on."""
    guest = wish.times()
    if wish.first and guest is None:
        problem = problem or "the guest overhead, which is part of it, could not be measured"
    found = calibrate(wish, raw, problem, guest)
    if not found.problem:
        calibrations.keep(wish.key, found)
    return found


def calibrate(
    wish: Wanted, raw: Mapping[str, str], problem: str = "", guest: GuestTimes | None = None
) -> Calibration:
    """Return a calibration from the raw output of its cell; ``guest``: the guest overhead."""
    nothing = Calibration(disk=kind_of(wish.disk), problem=problem, measured_at=now())
    if problem:
        return nothing
    try:
        found = {(m.workload, m.metric): m for m in measure.measurements(wish.cell, raw)}
    except ToolError as error:
        return nothing.model_copy(update={"problem": error.message})
    if wish.own:
        rates = {p.workload.name: found[p.workload.name, IOPS.name].median for p in wish.probes}
        return nothing.model_copy(update={"guest": _guest_times(rates, wish.pace, guest)})
    promised = {(p.workload, p.metric): p.value for p in wish.expected()}
    expected = {(p.workload, p.metric): p.value for p in wish.expected(guest or NO_TIME)}
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
                model=promised[at] if guest else None,
                guest=getattr(guest, probe.guest) if guest and probe.guest else None,
                tolerance=probe.tolerance,
            )
        )
    return nothing.model_copy(update={"points": tuple(points), "guest": guest})


def _guest_times(rates: Mapping[str, float], pace: float, before: GuestTimes | None) -> GuestTimes:
    """Guest overhead in seconds per request, from rates per second; the disk's time is subtracted.

    A write and its flush are two commands. Values that were not measured are those of ``before``.
    """
    commands = {"flush": 2}
    times = {
        name: max(0.0, 1 / rate - commands.get(name, 1) * pace) for name, rate in rates.items()
    }
    return GuestTimes.model_validate({**(before.model_dump() if before else {}), **times})
