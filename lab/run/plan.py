"""Steps and predictions of a run, without booting anything."""

from __future__ import annotations

from pathlib import Path

from lab.analysis.judge import JudgedCell, judge
from lab.compile.cell.metrics import metrics_of
from lab.compile.guest.steps import Site
from lab.compile.guest_plan import planned_guest
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.fields import fields_of
from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError, InputError
from lab.host.system import accelerator, keys, paths
from lab.host.system.accelerator import EMULATOR, Accelerator
from lab.model.execution.plan import Plan
from lab.model.result.document import Result, Run
from lab.model.scenario.claim import Verdict
from lab.model.scenario.guest import Guest
from lab.results.documents import predicted
from lab.results.schema import first_line
from lab.run.options import RunOptions
from lab.run.preparation import engines, systems
from lab.run.preparation.fitting import check_images
from lab.run.task import by_guest
from lab.store.runs import now


def plan_of(compiled: Compiled) -> Plan:
    """Return the procedures of every guest and cell, with a note for each missing file."""
    check_images(compiled, {})
    notes: list[str] = []
    planned = []
    directory = str(paths.guests() / "gplan")
    found = Accelerator(kind="tcg", reason="TCG")
    compiled, reasons = engines.by_scenario(compiled, RunOptions())
    known = {guest.system: systems.find(guest) for guest in by_guest(compiled.cells)}
    if None not in known.values():
        compiled, further = engines.by_image(compiled, {s: i for s, i in known.items() if i})
        reasons += further
    notes += reasons
    for guest, cells in by_guest(compiled.cells).items():
        site, found = _site(guest, directory, notes)
        planned.append(planned_guest(guest, cells, site))
    return Plan(
        scenario=compiled.name,
        accelerator=found.reason,
        notes=tuple(notes),
        guest_directory=directory,
        private_key=str(keys.lab_key_path()),
        guests=tuple(planned),
    )


def _site(guest: Guest, directory: str, notes: list[str]) -> tuple[Site, Accelerator]:
    image = systems.find(guest)
    try:
        emulator = accelerator.emulator()
        found = accelerator.find(image.kernel if image else None)
    except HostError as error:
        notes.append(error.message)
        emulator, found = EMULATOR, Accelerator(kind="tcg", reason="TCG, because there is no QEMU")
    if image is None:
        notes.append(f"the image '{guest.image}' is not built yet: lab image build {guest.image}")
        base = paths.images() / guest.image
        disk = base / "disk.qcow2"
        kernel: Path | None = base / "kernel"
        initrd: Path | None = base / "initrd"
    else:
        disk, kernel, initrd = image.disk, image.kernel, image.initrd
    return (
        Site(
            directory=directory,
            accelerator=found.kind,
            emulator=emulator,
            machine_type="pc",
            image_disk=str(disk),
            kernel=str(kernel) if kernel else None,
            initrd=str(initrd) if initrd else None,
            as_root=accelerator.is_root(),
        ),
        found,
    )


def prediction_of(compiled: Compiled) -> Result:
    """Return the result document with predictions and without measurements."""
    claims = compiled.scenario.claims
    cells = [
        JudgedCell(
            result=predicted(cell_id(cell), cell, systems.kernel_of(cell.guest)),
            fields=fields_of(cell, claims),
            published=True,
            units={key: metric.unit for key, metric in metrics_of(cell).items()},
        )
        for cell in compiled.cells
    ]
    unmeasured = {"verdict": Verdict.NOT_TESTED, "reason": "nothing was run"}
    return Result(
        run=Run(id="prediction", scenario=compiled.name, started=now()),
        environment={},
        cells=tuple(cell.result for cell in cells),
        claims=tuple(said.model_copy(update=unmeasured) for said in judge(claims, cells)),
    )


_NEW = """\
title: My own question

question: >-
  Does a larger chunk make sequential writes to a RAID 5 slower?

guest:
  image: debian-12
  cpus: 1
  memory: 512MiB

disks:
  count: 4
  size: 1GiB
  format: qcow2
  throttle:
    total_bytes_per_second: 10MiB

array:
  level: 5
  layout: left-symmetric
  component_size: 256MiB
  bitmap: none
  initial_sync: assume_clean

workloads:
  - name: write
    tool: dd
    if: /dev/urandom
    of: '{target}'
    bs: 768KiB
    count: 100
    oflag: direct
    iflag: fullblock

matrix:
  array.chunk: [64KiB, 256KiB, 512KiB]

claims:
  - id: mine-1
    says: A chunk of 512KiB writes no faster than one of 64KiB
    expect:
      kind: ratio
      of: {workload: write, where: {array.chunk: 512KiB}}
      to: {workload: write, where: {array.chunk: 64KiB}}
      at_most: 1.03
"""


def write_new(path: Path) -> None:
    """Write a scenario to start from; never overwrite an existing file."""
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(f"'{path}' should end in .yaml, so that it can be given to `lab up`")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(first_line(path) + _NEW)
    except FileExistsError:
        raise InputError(f"'{path}' already exists; not overwritten") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error
