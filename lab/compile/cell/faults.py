"""Faults as steps: the fault, the wait for md, the state afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lab.compile.cell.fault_times import begun, in_order
from lab.compile.guest.disks import standing
from lab.compile.guest.steps import BOOT_TIMEOUT, SETTLED
from lab.compile.guest.virtual_time import is_sealed
from lab.core.wording import guess
from lab.model.execution.procedure import EndWorkload, GuestCommand, Step, Timed, WaitForSsh
from lab.model.plugin import MOUNT, Keeper, Problem, Scene, Standing
from lab.model.scenario.document import Array, Cell
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.faults import _pools
from lab.plugins.faults._shared import BEGAN, check, glance, mark, settle, state

FILE: Final = f"{MOUNT}/data"
"""The workloads' target on a file system."""
SIDE_BY_SIDE: Final = 2.0
"""Factor on the boot timeout, because other guests may run."""
BOOT: Final = (
    WaitForSsh(timeout=BOOT_TIMEOUT["tcg"] * SIDE_BY_SIDE),
    GuestCommand(
        label="the boot to its end", script=SETTLED, timeout=BOOT_TIMEOUT["tcg"] * SIDE_BY_SIDE
    ),
)


def scene_of(
    cell: Cell,
    fault: Fault,
    disks: tuple[Standing, ...],
    *,
    device: str,
    trial: int,
    mount: str,
) -> Scene:
    """Return the context of a fault.

    ``disks``: `standing`; ``device``: path of the array; ``mount``: command to mount.
    """
    order = in_order(cell)
    return Scene(
        fault=fault,
        tag=f"{fault.name}.{trial}",
        array=cell.array or Array(),
        device=device,
        disks=disks,
        earlier=tuple(order[: order.index(fault)]),
        boot=() if is_sealed(cell) else BOOT,
        mount=mount,
    )


def fault_problems(cell: Cell) -> Iterator[tuple[int, Problem]]:
    """Yield problems of a cell's faults, each with the fault's index."""
    if not cell.faults:
        return
    names = [w.name for w in cell.workloads]
    known = ", ".join(names) or "there are none"
    for index, fault in enumerate(cell.faults):
        if fault.workload not in names:
            message = f"there is no workload '{fault.workload}' ({known})"
            message += guess(fault.workload, names)
            yield index, Problem(key=fault.moment, message=message)
            return
        if fault.name in [*names, *(f.name for f in cell.faults[:index])]:
            message = f"'{fault.name}' is already the name of a workload or fault: write another"
            yield index, Problem(key="name", message=message)
    if cell.trials > 1 and not is_sealed(cell):  # in a sealed guest each trial has its own array
        message = (
            f"a cell with faults has one trial, and trials is {cell.trials}: set it to 1, because a"
            " second trial would start on the faulty array"
        )
        yield 0, Problem(key="name", message=message)
    array = catalog.array_kind(cell.array.kind).target(cell.array) if cell.array else ""
    disks = standing(cell, "/guest")
    for fault in in_order(cell):
        index = cell.faults.index(fault)
        kind = catalog.fault_kind(fault.fault)
        mount = "mounted" if cell.filesystem else ""
        scene = scene_of(cell, fault, disks, device=array, trial=1, mount=mount)
        cuts = [e for e in scene.earlier if catalog.fault_kind(e.fault).cuts]
        if fault.during and fault.during in [e.during for e in cuts]:
            message = f"'{fault.during}' has ended by then, because '{cuts[-1].name}' ends it"
            yield index, Problem(key="during", message=message)
        if fault.check and not array:
            yield index, Problem(key="check", message="there is no array to check: remove it")
        if fault.check and _pools.is_pool(scene):
            message = "a check is one of md, and array.kind is zfs: remove it"
            yield index, Problem(key="check", message=message)
        parameters = kind.parameters.model_validate(fault.parameters)
        for problem in kind.problems(parameters, scene):
            yield index, problem
            return
        if any(d.device for d in cell.disks) and kind.steps(parameters, scene):
            message = (
                f"{fault.fault} needs QEMU's disks, and this cell has a real one: write another"
                " fault, or virtual disks"
            )
            yield index, Problem(key="fault", message=message)


def fault_steps(
    cell: Cell, scene: Scene, trial: int, counters: str
) -> tuple[list[Step], list[Step]]:
    """Return steps of the fault until md is idle, and steps after its workload has ended."""
    fault = scene.fault
    kind = catalog.fault_kind(fault.fault)
    parameters = kind.parameters.model_validate(fault.parameters)
    marked = f"echo '{mark(scene.tag)}' > /dev/kmsg\n"
    label = f"{fault.name}: {fault.fault}"
    # The guest's clock begins anew after a power cut, so its last time is stored.
    steps: list[Step] = [
        GuestCommand(label=label, script=f"{marked}cat /proc/uptime\n", capture=f"{scene.tag}.at")
        if kind.cuts
        else GuestCommand(label=label, script=marked),
        *kind.steps(parameters, scene),
    ]
    if kind.cuts and fault.during:
        steps.append(EndWorkload(workload=fault.during, trial=trial, timeout=60.0, cut=True))
    steps.append(
        Timed(
            workload=fault.name,
            trial=trial,
            before=counters,
            script=(marked if kind.cuts else "")  # a power cut empties the kernel log
            + BEGAN
            + kind.script(parameters, scene)
            + _settled(scene, cell.timeout, waits=kind.waits(parameters)),
            after=counters,
            timeout=cell.timeout,
        )
    )
    return steps, list(_afterwards(cell, scene))


def _settled(scene: Scene, limit: float, *, waits: bool) -> str:
    """Return shell lines that wait until the array is idle, or only print md's state."""
    if _pools.is_pool(scene):
        return _pools.settle(scene.array.name, limit)
    if not scene.device:
        return ""
    return settle(scene.device, limit) if waits else glance(scene.device)


def _afterwards(cell: Cell, scene: Scene) -> Iterator[Step]:
    """Verify acknowledged writes, then collect md's state, the kernel log and the check.

    Reading the writes also finds unreadable sectors.
    """
    fault = scene.fault
    for workload in begun(cell, fault):
        tool = catalog.workload(workload.tool)
        if isinstance(tool, Keeper):
            parameters = catalog.parameters_of(workload)
            yield GuestCommand(
                label=f"what {workload.name} wrote",
                script=tool.read_back(parameters, target_in(cell, scene)),
                timeout=cell.timeout,
                capture=f"{scene.tag}.{workload.name}.kept",
                waits=True,
            )
    yield GuestCommand(
        label=f"the state after {fault.name}",
        script=_pools.pool_state(scene)
        if _pools.is_pool(scene)
        else state(scene.device or "/dev/null", scene.tag),
        capture=f"{scene.tag}.state",
    )
    if fault.check:
        yield GuestCommand(
            label=f"check after {fault.name}",
            script=check(scene.device, cell.timeout),
            timeout=cell.timeout,
            capture=f"{scene.tag}.check",
            waits=True,
        )


def target_in(cell: Cell, scene: Scene) -> str:
    """Return the workloads' target."""
    if cell.filesystem is not None:
        return FILE
    return scene.device or scene.disks[0].path
