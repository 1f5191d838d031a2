"""The power fails: QEMU is killed (SIGKILL), and the guest boots again from the same disks.

Data that QEMU has acknowledged for a throttled disk is in the host's page cache and survives. A
modelled disk's server survives QEMU, and loses its volatile cache with ``lose_cache``: then only
flushed data survives. An array that was written to is not clean: md resyncs all of it, or the
regions that its bitmap marks as dirty (``md.c: md_do_sync``). With a member missing too, parity
cannot be trusted, and md does not start the array without ``force`` (``raid5.c: raid5_run``,
"cannot start dirty degraded array"). A reshape that was running goes on from the place that the
superblocks have (``raid5.c: raid5_run``, ``reshape_position``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from typing_extensions import override

from lab.core.stable import Stable, named
from lab.core.units import KIB
from lab.md.steps.verify import dirty_bits_script
from lab.model.execution.procedure import PowerCycle, Step, words
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import (
    RESHAPED,
    assemble,
    bitmap_mounted,
    counted,
    disk,
    is_reshaping,
    members,
    number,
    pairs,
    reshaped,
    served,
    settings,
    unplugged,
)

_LOST: Final = re.compile(r" ok (\d+)$", re.MULTILINE)
"""The servers' replies: bytes in their caches."""


_RESHAPE_AT: Final = (
    'mdadm --examine {disk} | sed -n "s/^ *Reshape pos\'n : \\([0-9]*\\).*/reshape_at=\\1/p"'
)
"""KiB of the array that the member's superblock has as reshaped; nothing once that is complete."""


class PowerCutParameters(Stable):
    """Loss of caches, and how the array is started again."""

    ALWAYS: ClassVar[frozenset[str]] = named("lose_cache force")

    lose_cache: bool = False
    """Modelled disks lose their volatile cache."""
    force: bool = False
    """Assemble with ``--force`` if md does not start the array."""


class PowerCut(FaultKind):
    """SIGKILL of QEMU, then a boot."""

    parameters = PowerCutParameters
    metrics = (
        counted("dirty_bits"),
        counted("assembled", better="higher"),
        counted("forced"),
        counted("cache_lost_bytes", "B"),
        counted("reshaped_bytes", "B"),
        *RESHAPED,
    )
    cuts = True

    @override
    def problems(self, p: PowerCutParameters, scene: Scene) -> Iterable[Problem]:
        if scene.device and scene.array.kind != "md":
            yield Problem(
                key="fault",
                message=f"power_cut supports md arrays only, and array.kind is {scene.array.kind}:"
                " remove the array, or the fault",
            )
        plain = sorted({d.disk.model for d in scene.disks if not served(d)})
        if p.lose_cache and plain:
            yield Problem(
                key="lose_cache",
                message=f"disks of the model {plain[0]} have no volatile cache: set disks.model to"
                " hdd or ssd, or remove lose_cache",
            )

    @override
    def steps(self, p: PowerCutParameters, scene: Scene) -> tuple[Step, ...]:
        lose = tuple(d.control for d in scene.disks) if p.lose_cache else ()
        gone = unplugged(scene)
        return (
            PowerCycle(lose=lose, capture=f"{scene.tag}.power"),
            *scene.boot,
            *(d.ready for n, d in enumerate(scene.disks, 1) if n not in gone),
        )

    @override
    def script(self, p: PowerCutParameters, scene: Scene) -> str:
        if not scene.device:
            return scene.mount
        gone = unplugged(scene)
        command = assemble(scene, gone)
        first = next(disk(scene, n).path for n in members(scene) if n not in gone)
        bits = dirty_bits_script(scene.array, [first])
        stop = words("mdadm", "--stop", scene.device)
        force = command.replace("--assemble", "--assemble --force")
        lines = [f"{bitmap_mounted(scene)}{bits}".rstrip()] if bits else []
        if is_reshaping(scene):
            lines.append(_RESHAPE_AT.format(disk=first))
        lines += [f"if {command}; then", "  echo assembled=1", "else", "  echo assembled=0"]
        if p.force:
            lines += [f"  {stop} 2>&1 || true", f"  {force}", "  echo forced=1"]
        lines += ["fi", "udevadm settle --timeout=30"]
        return "\n".join(lines) + f"\n{settings(scene)}{scene.mount}"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        said = pairs(outputs.stdout)
        known = ("dirty_bits", "assembled")
        found = {k: number(outputs.stdout, k) for k in known if k in said}
        if "assembled" in found:
            found["forced"] = float("forced" in said)
        if "reshape_at" in said:
            found["reshaped_bytes"] = number(outputs.stdout, "reshape_at") * KIB
        found |= reshaped(outputs)
        answers = outputs.files.get("power.txt", "")
        found["cache_lost_bytes"] = sum(float(n) for n in _LOST.findall(answers))
        return found


FAULT: FaultKind = PowerCut()
