"""Code for several workloads: paths of the target, JSON of the lab's own programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs._source import command

TARGET: Final = "{target}"
"""Placeholder of the target in a tool's parameters."""
LARGEST_SMALL_FILE: Final = 64 * 1024**2
"""Most bytes of a file in a tree: the guest program creates each file in memory."""

P = TypeVar("P", bound=BaseModel)


def aimed(path: str, advice: str) -> str:
    """Check that a path contains the target; else ``ValueError`` with the advice."""
    if TARGET not in path:
        raise ValueError(f"does not contain {TARGET}: {advice}")
    return path


def read_json(kind: type[P], tool: str, outputs: Outputs) -> P:
    """Parse the JSON that a guest program printed; ``ToolError``: it is something else."""
    try:
        return kind.model_validate_json(outputs.stdout)
    except ValidationError:
        said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
        raise ToolError(f"{tool} did not print its JSON, but {said!r}") from None


def small(size: int) -> int:
    """Check the size of a small file in bytes; ``ValueError``: it is too large."""
    if size > LARGEST_SMALL_FILE:
        raise ValueError("expected 64MiB or less: use dd or fio for large files")
    return size


def tree_command(directory: str, phases: Sequence[str], tree: Mapping[str, int]) -> str:
    """Return the command that runs these phases on a tree of files, ``guest_programs/tree.py``."""
    arguments = {
        "directory": directory,
        "phases": list(phases),
        "tree": dict(tree),
        "scratch": "/var/tmp",  # noqa: S108  in the guest, on its own disk
        "drop_caches": "/proc/sys/vm/drop_caches",
    }
    return command("tree", arguments) + "\n"
