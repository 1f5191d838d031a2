"""A bisection: which version of Linux or mdadm, which patch of a series, or which commit
changed a claim's verdict or a value. Data only."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.image.axis import Axis
from lab.model.image.package import Version
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue


class Side(StrEnum):
    """What a version's measurement says."""

    GOOD = "good"
    """As the good end."""
    BAD = "bad"
    """As the bad end."""
    SKIPPED = "skipped"
    """Neither: it could not be installed, did not boot, or stayed undecided."""


class Ending(StrEnum):
    """How a bisection ended."""

    FOUND = "found"
    """Two neighbouring versions of one branch, the last good and the first bad one."""
    BRANCH = "branch point"
    """The last good and the first bad version are of different branches."""
    SAME = "ends are equal"
    """Both ends give the same answer, so nothing changed between them."""
    OPEN = "an end is undecided"
    """An end could not be measured."""


class Subject(Model):
    """The value that is compared, if it is not the claim's verdict."""

    axes: dict[str, AxisValue]
    """Of the cell."""
    workload: str
    metric: str
    unit: str


class Series(Model):
    """The patch series that is bisected."""

    source: str
    """An mbox, a directory or a git range."""
    tree: str | None = None
    """Repository of a range."""
    target: str
    """md or mdadm."""
    sha256: tuple[str, ...]
    """Of each patch: a series that changes meanwhile cannot be resumed."""


class Tree(Model):
    """The git repository of Linux whose commits are bisected."""

    path: str


class Step(Model):
    """One version that was measured, or is being measured."""

    version: str
    """Its name."""
    image: str | None = None
    """The image that was made with the patches of a series, or the path of a commit's kernel."""
    side: Side | None = None
    """``None``: it is being measured."""
    verdict: Verdict | None = None
    values: tuple[float, ...] = ()
    """What the claim measured; with ``--metric`` the value of each trial."""
    reason: str = ""
    """Of a skipped version: why. Else the claim's reason."""
    run: str | None = None
    """Path of its run's directory."""
    took: float | None = None
    """Seconds."""


class Pair(Model):
    """The result: two versions between which the answer changes."""

    good: str
    bad: str
    between: tuple[str, ...] = ()
    """Versions between them that were skipped."""


class Bisection(Model):
    """``bisect.json``: the request, the versions, what was measured, and the result."""

    schema_: Literal["lab.bisect/1"] = Field(default="lab.bisect/1", alias="schema")
    id: str
    claim: str
    says: str
    scenario: str
    file: str
    """The scenario's file."""
    overrides: tuple[str, ...] = ()
    """As for ``--set``."""
    trials: str | None = None
    axis: Axis
    series: Series | None = None
    """With ``axis`` patch."""
    tree: Tree | None = None
    """With ``axis`` commit."""
    metric: str | None = None
    """``None``: the claim's verdict is compared."""
    started: str
    """ISO 8601, UTC."""
    finished: str | None = None
    versions: tuple[Version, ...]
    """From the good end to the bad one, oldest first."""
    unusable: dict[str, str] = {}
    """Versions between the ends that cannot be measured, and why: by the package's version."""
    subject: Subject | None = None
    steps: tuple[Step, ...] = ()
    """In the order in which they were measured."""
    ending: Ending | None = None
    """``None``: it is not finished."""
    pair: Pair | None = None
    branches: tuple[str, str] | None = None
    """With ``branch point``: the branches of both versions."""
    changelog: tuple[str, ...] = ()
    """Lines about md and block devices between both versions; all of them are in
    ``changelog.txt``. Of mdadm all lines. Of a repository id and title of each commit, if there
    are several."""
    commands: dict[str, str] = {}
    """Commands that measure either side again, by version."""

    def version(self, name: str) -> Version:
        """Return a version by its name."""
        return next(one for one in self.versions if one.name == name)

    def step(self, name: str) -> Step | None:
        """Return the measurement of a version; ``None``: there is none."""
        return next((one for one in self.steps if one.version == name), None)
