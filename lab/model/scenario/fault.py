"""Faults: what happens to the guest or its disks at a point of a cell."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from lab.core.base import NAMED, Says, Seconds
from lab.core.stable import Stable, named

MOMENTS = ("before", "after", "during")
_OWN = ("name", "fault", *MOMENTS, "at", "check")


def _any_parameter(schema: dict[str, Any]) -> None:
    """JSON Schema of a fault as written: its parameters next to its name."""
    schema["properties"].pop("parameters", None)
    schema["additionalProperties"] = True


class Fault(Stable):
    """One fault with its parameters, its time, and a name for its results."""

    ALWAYS: ClassVar[frozenset[str]] = named("name fault before after during at check parameters")

    model_config = ConfigDict(json_schema_extra=_any_parameter)

    name: Annotated[str, NAMED] = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    fault: Annotated[str, Says("a kind of fault, such as power_cut")] = Field(
        pattern=r"^[a-z][a-z0-9_]*$"
    )
    """A fault, a file in ``lab/plugins/faults/``."""
    before: str | None = None
    """Workload that begins when md is idle after the fault."""
    after: str | None = None
    """Workload that has ended when the fault comes."""
    during: str | None = None
    """Workload that runs when the fault comes."""
    at: Seconds = Field(default=0.0, ge=0)
    """With ``during``: seconds from the workload's start to the fault."""
    check: bool = False
    """Make md compare all members afterwards (``sync_action``), and count mismatches."""
    parameters: dict[str, Any] = {}
    """Checked by the fault's own file."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: object) -> object:
        # Every key that not all faults have is a parameter of this one.
        if not isinstance(value, dict) or "parameters" in value:
            return value
        own = {k: v for k, v in value.items() if k in _OWN}
        return {**own, "parameters": {k: v for k, v in value.items() if k not in own}}

    @model_validator(mode="after")
    def _one_moment(self) -> Fault:
        given = [m for m in MOMENTS if getattr(self, m) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(
                f"expected one of before, after and during with a workload's name, found {found}"
            )
        if self.at and self.during is None:
            raise ValueError(
                "at needs during, from whose start it counts: add during, or remove at"
            )
        return self

    @property
    def moment(self) -> Literal["before", "after", "during"]:
        """Its time relative to its workload."""
        if self.during is not None:
            return "during"
        return "before" if self.before is not None else "after"

    @property
    def workload(self) -> str:
        """The workload that its time refers to."""
        return self.before or self.after or self.during or ""
