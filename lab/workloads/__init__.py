"""Workloads: what is done to a target, and how its output is read. One file each.

How to add one
--------------
1. Write ``lab/workloads/NAME.py``. Scenarios then say ``tool: NAME``; nothing is registered.
2. Declare the tool's parameters as a ``lab.model.base.Model``, under the tool's own names (a
   field alias where the name is a word of Python's). Sizes are ``Size``, so that people write
   ``1MiB``. Refuse in a validator what the tool would refuse, in a sentence that says what to do.
3. Give the file a class that has what ``lab.model.plugin.WorkloadTool`` demands, and end it with
   ``WORKLOAD: WorkloadTool = YourClass()``, so that mypy checks it there:

   * ``script(parameters, target)`` returns shell lines for the guest's ``/bin/sh`` (dash), with
     every value quoted by ``lab.model.procedure.words``. On a file system ``target`` is a path
     that is not there yet: a file for some tools, a directory for others. Workloads that share a
     cell keep apart by ``{target}.NAME``.
   * ``parse(parameters, outputs)`` returns every metric in base units (bytes per second, seconds).
     Where it cannot read the output, or the tool did less than it was asked to, it raises
     ``ToolError`` with the text; it never returns 0. A metric is left out only where the tool says
     itself that it has none.
   * ``parameters`` come to each of them as ``Any``: ``checked`` makes them the tool's own again.
   * ``destroys(parameters)`` says whether the data on the target are gone afterwards.

4. Record real outputs: ``tests/golden/workloads/NAME/CASE/`` holds ``stdout`` and ``stderr`` as
   the tool printed them, and ``expected.json`` with ``parameters`` and either ``metrics`` or
   ``error`` (words of the message). ``tests/unit/test_workloads.py`` finds the case by itself;
   it wants at least one of each kind.

A variant of a tool (a block size, a queue depth) is a value in a scenario, never a new file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from lab import inguest
from lab.errors import ToolError
from lab.model.plugin import Outputs

TARGET: Final = "{target}"
"""What stands for the target in a tool's parameters."""
LARGEST_SMALL_FILE: Final = 64 * 1024**2
"""Bytes of a file in a tree: the program in the guest makes each in memory."""

P = TypeVar("P", bound=BaseModel)


def aimed(path: str, advice: str) -> str:
    """A path that names the target; ``ValueError`` says what to do where it does not."""
    if TARGET not in path:
        raise ValueError(f"names something else than the target: {advice}")
    return path


def read_json(kind: type[P], tool: str, outputs: Outputs) -> P:
    """What one of the lab's own programs printed; ``ToolError`` where that is something else."""
    try:
        return kind.model_validate_json(outputs.stdout)
    except ValidationError:
        said = (outputs.stderr.strip() or outputs.stdout.strip())[-300:]
        raise ToolError(f"{tool}'s output is not the JSON that it prints: {said!r}") from None


def small(size: int) -> int:
    """Bytes of a small file; ``ValueError``: it is a large one."""
    if size > LARGEST_SMALL_FILE:
        raise ValueError("the files are small, 64MiB at most: dd and fio write large ones")
    return size


def tree_command(directory: str, phases: Sequence[str], tree: Mapping[str, int]) -> str:
    """The command that does these phases to a tree of files, ``lab/inguest/tree.py``."""
    arguments = {
        "directory": directory,
        "phases": list(phases),
        "tree": dict(tree),
        "scratch": "/var/tmp",  # noqa: S108  in the guest, on its own disk
        "drop_caches": "/proc/sys/vm/drop_caches",
    }
    return inguest.command("tree", arguments) + "\n"
