"""Faults: what happens to the guest or to its disks at a moment of a cell."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from lab.core.base import NAMED, Model, Says, Seconds

MOMENTS = ("before", "after", "during")
_OWN = ("name", "fault", *MOMENTS, "at", "check")


def _any_parameter(schema: dict[str, Any]) -> None:
    """JSON Schema of a fault as it is written: its parameters beside its name."""
    schema["properties"].pop("parameters", None)
    schema["additionalProperties"] = True


class Fault(Model):
    """One kind of fault with its own parameters, its moment, and a name for what came of it."""

    model_config = ConfigDict(json_schema_extra=_any_parameter)

    name: Annotated[str, NAMED] = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    fault: Annotated[str, Says("a kind of fault, such as power_cut")] = Field(
        pattern=r"^[a-z][a-z0-9_]*$"
    )
    """A kind of fault, a file in ``lab/plugins/faults/``."""
    before: str | None = None
    """Name of the workload that begins when md is done with the fault."""
    after: str | None = None
    """Name of the workload that has ended when the fault comes."""
    during: str | None = None
    """Name of the workload that runs when the fault comes."""
    at: Seconds = Field(default=0.0, ge=0)
    """With ``during``: seconds from the workload's start to the fault."""
    check: bool = False
    """Have md compare all members afterwards (``sync_action``), and count what does not agree."""
    parameters: dict[str, Any] = {}
    """Checked by the kind's own file."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: object) -> object:
        """Every key that is none of a fault's own is a parameter of its kind."""
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
                f"a fault has one moment, and {found} is given: write before, after or during"
                " with the name of a workload"
            )
        if self.at and self.during is None:
            raise ValueError("at counts from the start of a workload: write during, or remove it")
        return self

    @property
    def moment(self) -> Literal["before", "after", "during"]:
        """On which side of its workload it comes."""
        if self.during is not None:
            return "during"
        return "before" if self.before is not None else "after"

    @property
    def workload(self) -> str:
        """The workload that its moment names."""
        return self.before or self.after or self.during or ""
