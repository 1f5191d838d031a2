"""Claims that held in the run before and are refuted now, and which version is to blame. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.model.image.axis import Axis
from lab.model.scenario.claim import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A claim's verdict in one run."""

    scenario: str
    claim: str
    image: str
    """The image's name: its other packages may have changed as well."""
    cells: str
    """Digest of the cells with their clock, without the rest of their guest."""
    kernel: str
    mdadm: str
    started: str
    """ISO 8601, UTC."""
    verdict: Verdict

    @property
    def subject(self) -> tuple[str, ...]:
        """What must be equal for two verdicts to be compared."""
        return (self.scenario, self.claim, self.image, self.cells)


def held_before(now: Judgement, earlier: Iterable[Judgement]) -> Judgement | None:
    """Return the last earlier verdict if it held and ``now`` is refuted; ``None``: no change.

    Undecided verdicts in between do not count.
    """
    if now.verdict is not Verdict.REFUTED:
        return None
    mine = [
        one
        for one in earlier
        if one.subject == now.subject
        and one.started < now.started
        and one.verdict in (Verdict.HOLDS, Verdict.REFUTED)
    ]
    last = max(mine, key=lambda one: one.started, default=None)
    return last if last is not None and last.verdict is Verdict.HOLDS else None


def axes_between(good: Judgement, bad: Judgement) -> list[tuple[Axis, str, str]]:
    """Return what differs, with the older and the newer version: the kernel first."""
    pairs = (
        (Axis.KERNEL, good.kernel, bad.kernel),
        (Axis.MDADM, good.mdadm, bad.mdadm),
    )
    return [pair for pair in pairs if pair[1] != pair[2]]
