"""md is told to compare all members (``check``), or to make them agree (``repair``).

``repair`` recomputes parity from the data, and of copies keeps the first (``md.rst``,
``sync_action``; ``raid5.c: handle_parity_checks5``): what was wrong in the data stays wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from typing_extensions import override

from lab.core.base import Model
from lab.model.plugin import FaultKind, Problem, Scene, checked
from lab.model.result.measurement import Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults import array_problems, counted, find, number


class SyncActionParameters(Model):
    """What md is to do."""

    action: Literal["check", "repair"]


class SyncAction(FaultKind):
    """What is written to ``sync_action``."""

    @property
    @override
    def parameters(self) -> type[Model]:
        """The kind's parameters."""
        return SyncActionParameters

    @property
    @override
    def metrics(self) -> Sequence[Metric]:
        """What md counted on its way."""
        return (counted("action_mismatch_cnt", "sectors"),)

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        """There is an array that can be compared."""
        yield from array_problems(scene)

    @override
    def script(self, parameters: Any, scene: Scene) -> str:
        """It is busy from this moment on."""
        action = checked(SyncActionParameters, parameters).action
        return f"{find(scene.device)}echo {action} > $md/sync_action\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        """``mismatch_cnt`` as the action left it, in sectors."""
        after = outputs.files.get("state.txt", "")
        return {"action_mismatch_cnt": number(after, "mismatch_cnt")}


FAULT: FaultKind = SyncAction()
