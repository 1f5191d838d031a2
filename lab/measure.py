"""From raw output to measurements: pure, so that a stored run can be measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab import catalog
from lab.errors import ToolError
from lab.model.measurement import UNCONTENDED, Check, Measurement
from lab.model.plugin import Outputs
from lab.model.result import MemberCounters
from lab.model.scenario import Cell

SECTOR = 512
"""``/proc/diskstats`` counts in these, whatever the device's blocks are."""


def measurements(cell: Cell, raw: Mapping[str, str]) -> tuple[Measurement, ...]:
    """Every metric of every workload, a value per trial; ``ToolError`` names what is unreadable."""
    found: list[Measurement] = []
    for workload in cell.workloads:
        tool = catalog.workload(workload.tool)
        parameters = tool.parameters.model_validate(workload.parameters)
        values: dict[str, list[float]] = {m.name: [] for m in tool.metrics}
        for trial in range(1, cell.trials + 1):
            tag = f"{workload.name}.{trial}."
            own = {k.removeprefix(tag): v for k, v in raw.items() if k.startswith(tag)}
            outputs = Outputs(
                stdout=own.pop("stdout.txt", ""), stderr=own.pop("stderr.txt", ""), files=own
            )
            for name, value in tool.parse(parameters, outputs).items():
                values[name].append(value)
        found += [
            Measurement(
                workload=workload.name, metric=m.name, unit=m.unit, values=tuple(values[m.name])
            )
            for m in tool.metrics
            if values[m.name]
        ]
    return tuple(found)


def counters(cell: Cell, raw: Mapping[str, str]) -> tuple[MemberCounters, ...]:
    """What each disk did during each trial of each workload."""
    found: list[MemberCounters] = []
    for workload in cell.workloads:
        for trial in range(1, cell.trials + 1):
            tag = f"{workload.name}.{trial}"
            before, after = raw.get(f"{tag}.before.txt"), raw.get(f"{tag}.after.txt")
            if before is None or after is None:
                continue
            serials = [serial for serial, _ in cell.each_disk]
            old, new = _disks(before, serials), _disks(after, serials)
            for serial in serials:
                delta = [n - o for n, o in zip(new[serial], old[serial], strict=True)]
                found.append(
                    MemberCounters(
                        workload=workload.name,
                        trial=trial,
                        serial=serial,
                        reads=delta[0],
                        read_bytes=delta[2] * SECTOR,
                        writes=delta[4],
                        written_bytes=delta[6] * SECTOR,
                        flushes=delta[15] if len(delta) > 15 else 0,
                    )
                )
    return tuple(found)


def _disks(text: str, serials: Sequence[str]) -> dict[str, list[int]]:
    """Serial to the counters of its device; fields as in the kernel's ``iostats.rst``."""
    devices: dict[str, str] = {}
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "disk":
            devices[words[2]] = words[1]
        elif len(words) >= 14 and words[2] in devices and all(w.isdecimal() for w in words[3:]):
            found[devices[words[2]]] = [int(w) for w in words[3:]]
    missing = sorted(set(serials) - set(found))
    if missing:
        raise ToolError(f"/proc/diskstats has no line for {', '.join(missing)}: {text[:200]}")
    return found


WAITING = 0.3
"""Part of a timed step for which a guest's QEMU may have stood ready without a processor.

A throttled guest has time to lose: below this, figures were within 3.5 % of theory; at a half they
were up to 12 % short."""


def contention(cell: Cell, raw: Mapping[str, str]) -> tuple[Check, ...]:
    """Whether each timed step had the host it needed; nothing where that was not recorded."""
    worst, where = 0.0, ""
    seen = False
    for workload in cell.workloads:
        for trial in range(1, cell.trials + 1):
            text = raw.get(f"{workload.name}.{trial}.pressure.txt")
            if text is None:
                continue
            pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
            try:
                share = float(pairs["wait"]) / max(float(pairs["seconds"]), 1e-9)
            except (KeyError, ValueError):
                continue
            seen = True
            if share >= worst:
                worst, where = share, f"{workload.name}, trial {trial}"
    if not seen:
        return ()
    detail = f"the guest waited for a processor for {worst:.1%} of {where}"
    return (Check(name=UNCONTENDED, passed=worst <= WAITING, detail=detail),)


def environment(raw: Mapping[str, str]) -> dict[str, str]:
    """What the guest said of itself."""
    pairs = (line.partition("=") for line in raw.get("environment.txt", "").splitlines())
    return {key: value.strip() for key, equals, value in pairs if equals}
