"""md compares all members (``check``), or makes them agree (``repair``).

``repair`` recomputes parity from the data, and keeps the first of several copies (``md.rst``,
``sync_action``; ``raid5.c: handle_parity_checks5``): wrong data stays wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from typing_extensions import override

from lab.core.stable import Stable, named
from lab.model.plugin import FaultKind, Problem, Scene
from lab.model.scenario.outputs import Outputs
from lab.plugins.faults._shared import array_problems, counted, find, mismatches, number


class SyncActionParameters(Stable):
    """The action."""

    ALWAYS: ClassVar[frozenset[str]] = named("action")

    action: Literal["check", "repair"]


class SyncAction(FaultKind):
    """A write to ``sync_action``."""

    parameters = SyncActionParameters
    metrics = (counted("action_mismatch_cnt", "sectors"),)

    @override
    def problems(self, parameters: Any, scene: Scene) -> Iterable[Problem]:
        yield from array_problems(scene)

    @override
    def script(self, p: SyncActionParameters, scene: Scene) -> str:
        action = p.action
        return f"{find(scene.device)}echo {action} > $md/sync_action\n"

    @override
    def parse(self, parameters: Any, outputs: Outputs) -> dict[str, float]:
        after = outputs.files.get("state.txt", "")
        found = mismatches(after, number(after, "mismatch_cnt"))
        return {f"action_{name}": count for name, count in found.items()}


FAULT: FaultKind = SyncAction()
