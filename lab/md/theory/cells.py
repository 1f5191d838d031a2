"""Predictions and explanations of a cell's workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.md.theory.anatomy import anatomy
from lab.md.theory.bucket import Direction
from lab.md.theory.cell import Drives, Found, UnknownError, Work, follow, setting_of
from lab.md.theory.explain import because, lifts
from lab.md.theory.load_prediction import LoadPrediction
from lab.md.theory.paths import SequentialLoad
from lab.model.result.explanation import Explanation, MemberBytes
from lab.model.result.measurement import (
    DISK_READ_BYTES,
    DISK_WRITTEN_BYTES,
    IOPS,
    LATENCY,
    SECONDS,
    THROUGHPUT,
    Metric,
    Prediction,
)
from lab.model.scenario.document import Cell


def predict(
    cell: Cell,
    works: Mapping[str, Work],
    busy: Mapping[str, float] | None = None,
    drives: Drives | None = None,
    kernel: str | None = None,
) -> list[Prediction]:
    """Return predictions of every metric of each workload in ``works``, by name.

    ``busy``: CPU use of a sealed guest in each workload, as a fraction, if known. ``drives``: the
    cell's modelled drives by serial. ``kernel``: the version of the guest's kernel, if known.
    """
    predictions = []
    for workload in cell.workloads:
        work = works.get(workload.name)
        if work is None:
            continue
        try:
            share = (busy or {}).get(workload.name, 0.0)
            setting = replace(setting_of(cell, work, drives, kernel), busy=share)
            found = follow(setting, work)
        except UnknownError:
            continue
        reason = " ".join(because(setting, work, found))
        for metric, value in (*metrics_of(work, found), *_counted(work, found)):
            predictions.append(
                Prediction(
                    workload=workload.name,
                    metric=metric.name,
                    value=value,
                    reason=reason,
                    doubt=found.doubt,
                )
            )
    return predictions


def metrics_of(work: Work, found: Found) -> list[tuple[Metric, float]]:
    """Return a prediction as metrics and values."""
    values = [(THROUGHPUT, found.throughput)]
    if isinstance(found, LoadPrediction):
        values += [(IOPS, found.iops), (LATENCY, found.latency)]
    else:
        values.append((IOPS, found.throughput / work.block))
    if isinstance(work, SequentialLoad) or work.seconds is None:
        values.append((SECONDS, found.seconds))
    return values


def _counted(work: Work, found: Found) -> list[tuple[Metric, float]]:
    """Return bytes of all members; empty for a workload that is limited by time."""
    if not isinstance(work, SequentialLoad) and work.seconds is not None:
        return []
    return [
        (DISK_READ_BYTES, sum(load.read_bytes for load in found.members)),
        (DISK_WRITTEN_BYTES, sum(load.written_bytes for load in found.members)),
    ]


def _writes(work: Work) -> bool:
    if isinstance(work, SequentialLoad):
        return work.direction is Direction.WRITE
    return work.read_share < 1


def explain(
    cell: Cell,
    name: str,
    work: Work,
    drives: Drives | None = None,
    busy: float = 0.0,
    kernel: str | None = None,
) -> Explanation:
    """Return one workload's prediction, its reasons, possible improvements, and bytes per member.

    ``busy``: CPU use of a sealed guest in it, as a fraction. ``kernel``: its kernel's version.
    """
    try:
        setting = replace(setting_of(cell, work, drives, kernel), busy=busy)
        found = follow(setting, work)
    except UnknownError as unknown:
        return Explanation(workload=name, sentences=(f"No prediction: {unknown}.",))
    sentences = (*because(setting, work, found), *lifts(setting, work, found))
    members = tuple(
        MemberBytes(serial=s, read_bytes=load.read_bytes, written_bytes=load.written_bytes)
        for s, load in zip(setting.serials, found.members, strict=True)
    )
    return Explanation(
        workload=name,
        expected={metric.name: value for metric, value in metrics_of(work, found)},
        sentences=sentences,
        anatomy=anatomy(setting.geometry, setting.rules, work.block) if _writes(work) else None,
        members=members,
    )
