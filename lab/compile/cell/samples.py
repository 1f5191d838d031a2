"""Samples with a workload: shell lines that take them, their metrics, and values over time. Pure.

A process in the guest reads each file, or runs each command, when the workload begins, then every
so many seconds of the guest's clock, and when it has ended. Its lines are ``sample NAME SECONDS
VALUE``, with ``/proc/uptime``. They follow the counters after the workload.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Final

from lab.core.errors import ToolError
from lab.model.execution.procedure import here
from lab.model.plugin import Trace
from lab.model.result.measurement import Metric
from lab.model.scenario.document import Sample, Workload

_PROGRAM: Final = "/run/lab-sampler"
_LINES: Final = "/run/lab-samples"
KINDS: Final = ("mean", "max", "end")
"""Metrics of each sample: ``NAME_mean`` and so on."""


def begin(workload: Workload, device: str) -> str:
    """Return shell lines that begin to take samples; empty: the workload has none.

    ``device``: the array or disk; files with a relative path are those of its directory in
    ``/sys/block``.
    """
    if not workload.samples:
        return ""
    every = min(sample.every for sample in workload.samples.values())
    block = f'"/sys/block/$(basename "$(readlink -f {shlex.quote(device)})")"'
    program = [
        f"cd {block} 2>/dev/null || cd /",
        "one() {",
        "read -r t _ </proc/uptime",
        *(line for name, sample in workload.samples.items() for line in _lines(name, sample)),
        "}",
        "one",
        '[ "$1" != once ] || exit 0',
        f"while sleep {every:g}; do one; done",
    ]
    lines = [
        *here(f"cat >{_PROGRAM}", "\n".join(program)),
        f"sh {_PROGRAM} all >{_LINES} 2>/dev/null </dev/null &",
        f"echo $! >{_PROGRAM}.pid",
    ]
    return "\n".join(lines) + "\n"


def _lines(name: str, sample: Sample) -> Iterator[str]:
    if sample.file:
        yield f"v=; {{ read -r v _ <{shlex.quote(sample.file)}; }} 2>/dev/null || :"
    else:
        yield f"v=$(sh -c {shlex.quote(sample.command)} 2>/dev/null) || :"
        yield "v=${v%%[!0-9.eE+-]*}"
    yield f'echo "sample {name} $t $v"'


def end(workload: Workload) -> str:
    """Return shell lines that take the last sample, and print all."""
    if not workload.samples:
        return ""
    return (
        f"\nkill $(cat {_PROGRAM}.pid) 2>/dev/null || :\n"
        f"sh {_PROGRAM} once >>{_LINES}\ncat {_LINES}\n"
    )


def metrics_of_samples(workload: Workload) -> Iterator[Metric]:
    """Yield mean, maximum and last value of each sample."""
    for name, sample in workload.samples.items():
        for kind in KINDS:
            yield Metric(name=f"{name}_{kind}", unit=sample.unit, better="lower")


def traces(workload: Workload, after: str) -> Mapping[tuple[str, str], Trace]:
    """Return values over time by name and unit, in seconds since the first one.

    ``after``: the output with the counters after the workload. ``ToolError``: a sample has no
    number.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in workload.samples}
    for line in after.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == "sample" and words[1] in found:
            try:
                found[words[1]].append((float(words[2]), float(words[3])))
            except ValueError:
                continue
    for name, points in found.items():
        if not points:
            sample = workload.samples[name]
            raise ToolError(
                f"the sample '{name}' of '{workload.name}' has no number:"
                f" {sample.file or sample.command} is missing in the guest, or prints none"
            )
    first = min((points[0][0] for points in found.values()), default=0.0)
    return {
        (name, workload.samples[name].unit): tuple((at - first, v) for at, v in points)
        for name, points in found.items()
    }


def values_of_samples(workload: Workload, after: str) -> dict[str, float]:
    """Return the metrics' values; ``ToolError`` as in ``traces``."""
    found: dict[str, float] = {}
    for (name, _), trace in traces(workload, after).items():
        values = [value for _, value in trace]
        kinds = (fmean(values), max(values), values[-1])
        found |= {f"{name}_{kind}": v for kind, v in zip(KINDS, kinds, strict=True)}
    return found
