"""The power fails: QEMU is killed (SIGKILL), and the guest boots again from the same disks.

What QEMU acknowledged of a throttled disk is in the host's page cache and survives. A modelled
disk's server survives QEMU, and loses its volatile cache where ``lose_cache`` says so: what the
guest has flushed must be there then, and nothing else. An array that was written to is not clean:
md resyncs all of it, or the regions that its bitmap has dirty (``md.c: md_do_sync``). With a member
missing as well, parity cannot be trusted, and md does not start it without ``force``
(``raid5.c: raid5_run``, "cannot start dirty degraded array").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from typing_extensions import override

from lab.core.base import Model
from lab.md.steps.verify import dirty_bits_script
from lab.model.execution.procedure import PowerCycle, Step, words
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults import (
    assemble,
    bitmap_mounted,
    counted,
    disk,
    members,
    number,
    pairs,
    served,
    settings,
    unplugged,
)

_LOST: Final = re.compile(r" ok (\d+)$", re.MULTILINE)
"""What the servers answered: the bytes that were in their caches."""


class PowerCutParameters(Model):
    """What is lost, and how the array is started again."""

    lose_cache: bool = False
    """Modelled disks lose what is in their volatile cache."""
    force: bool = False
    """Assemble with ``--force`` where md does not start the array."""


class PowerCut(FaultKind):
    """SIGKILL, and a cold boot."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return PowerCutParameters

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """What the bitmap had dirty, whether md started the array, and what the caches lost."""
        return (
            counted("dirty_bits"),
            counted("assembled", better="higher"),
            counted("forced"),
            counted("cache_lost_bytes", "B"),
        )

    @property
    @override
    def cuts(self) -> bool:
        """The guest ends, and a workload with it."""
        return True

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """Only modelled disks have a cache of their own."""
        p = checked(PowerCutParameters, parameters)
        if scene.device and scene.array.kind != "md":
            yield Problem(
                key="fault",
                message=f"it assembles md arrays only, and array.kind is {scene.array.kind}: remove"
                " the array, or the fault",
            )
        plain = sorted({d.disk.model for d in scene.disks if not served(d)})
        if p.lose_cache and plain:
            yield Problem(
                key="lose_cache",
                message=f"disks of the model {plain[0]} have no volatile cache, for QEMU hands"
                " what it acknowledges to the host's page cache: set disks.model to hdd or ssd",
            )

    @override
    def steps(self, parameters: Any, scene: Scene) -> tuple[Step, ...]:
        """QEMU is killed and started, and the guest boots to the end."""
        lose = (
            tuple(d.control for d in scene.disks)
            if checked(PowerCutParameters, parameters).lose_cache
            else ()
        )
        gone = unplugged(scene)
        return (
            PowerCycle(lose=lose, capture=f"{scene.tag}.power"),
            *scene.boot,
            *(d.ready for n, d in enumerate(scene.disks, 1) if n not in gone),
        )

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """The array is assembled; what was mounted is mounted again."""
        if not scene.device:
            return scene.mount
        p, gone = checked(PowerCutParameters, parameters), unplugged(scene)
        command = assemble(scene, gone)
        first = next(disk(scene, n).path for n in members(scene) if n not in gone)
        bits = dirty_bits_script(scene.array, [first])
        stop = words("mdadm", "--stop", scene.device)
        force = command.replace("--assemble", "--assemble --force")
        lines = [f"{bitmap_mounted(scene)}{bits}".rstrip()] if bits else []
        lines += [f"if {command}; then", "  echo assembled=1", "else", "  echo assembled=0"]
        if p.force:
            lines += [f"  {stop} 2>&1 || true", f"  {force}", "  echo forced=1"]
        lines += ["fi", "udevadm settle --timeout=30"]
        return "\n".join(lines) + f"\n{settings(scene)}{scene.mount}"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """Each only where there is one."""
        said = pairs(outputs.stdout)
        known = ("dirty_bits", "assembled")
        found = {k: number(outputs.stdout, k) for k in known if k in said}
        if "assembled" in found:
            found["forced"] = float("forced" in said)
        answers = outputs.files.get("power.txt", "")
        found["cache_lost_bytes"] = sum(float(n) for n in _LOST.findall(answers))
        return found


FAULT: FaultKind = PowerCut()
