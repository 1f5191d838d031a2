"""What differs between versions of what a guest runs. Command lines need it without pydantic."""

from __future__ import annotations

from enum import StrEnum


class Axis(StrEnum):
    """What differs between the versions."""

    KERNEL = "kernel"
    MDADM = "mdadm"
    PATCH = "patch"
    """How many patches of a series are applied."""
    COMMIT = "commit"
    """A commit of a git repository of Linux."""

    @property
    def key(self) -> str:
        """The scenario's field that selects a version."""
        return {
            Axis.KERNEL: "guest.kernel",
            Axis.COMMIT: "guest.kernel",
            Axis.MDADM: "guest.mdadm",
            Axis.PATCH: "guest.image",
        }[self]

    @property
    def built(self) -> bool:
        """Whether an image or a kernel is built for each version, instead of fetched."""
        return self in (Axis.PATCH, Axis.COMMIT)
