"""Upper limits of bitmap writes: whether a run can show the cost of a bitmap at all.

A bit that is already set costs nothing. A small component has few bits (1 GiB has 16 of 64 MiB).
Once they are set, the bitmap is not written again during the workload, so the run shows nothing
about the bitmap.

Source: ``md-bitmap.c: md_bitmap_daemon_work``. A bit is set again only after two scans of the
daemon found its region idle.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from lab.md.facts.geometry import Geometry
from lab.md.facts.segments import segment_geometry
from lab.md.facts.sizes import bitmap_covers, geometry_of, without_disks_aside
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.cell import Setting, UnknownError, Work, follow, setting_of
from lab.md.theory.load_prediction import LoadPrediction
from lab.md.theory.paths import SequentialLoad
from lab.model.scenario.document import SERVED, Array, Cell


def bitmap_updates(cell: Cell, work: Work | None, seconds: float) -> float | None:
    """Return the most bits that a workload of ``seconds`` can set; ``None``: no known bitmap.

    ``work``: the workload, if theory covers it; otherwise the limit follows from the number of bits
    and ``time_base``. ``None`` for modelled drives too: each bitmap write has a flush, which costs
    them far more than an operation.
    """
    array = cell.array
    if array is None or array.bitmap not in ("internal", "external"):
        return None
    if any(disk.model in SERVED for _, disk in cell.each_disk):
        return None
    shape = _shape(array, [disk.size for _, disk in cell.each_disk])
    base = float(array.sysfs.get("bitmap/time_base", Bitmap(chunk=1).time_base))
    covered = bitmap_covers(shape.level, shape.layout, shape.members, shape.component_size)
    bits = -(-covered // shape.bitmap_chunk) * (array.segments or 1)
    most = bits * (1 + seconds // base)
    if work is None:
        return most
    try:
        setting = setting_of(cell, work)
        if setting.bitmap is None:  # an external bitmap is written as often
            marks = Bitmap(chunk=shape.bitmap_chunk, time_base=base)
            setting = replace(setting, bitmap=marks)
        return min(most, _expected(setting, work))
    except UnknownError:
        return most


def _shape(array: Array, sizes: list[int]) -> Geometry:
    if array.kind == "segments":
        return segment_geometry(array, sizes)
    return geometry_of(array, without_disks_aside(array, sizes))


def _expected(setting: Setting, work: Work) -> float:
    """Return the bits that the simulated workload sets."""
    if isinstance(work, SequentialLoad):
        return _entered(setting, work.offset, work.total, work.block)
    found = follow(setting, work)
    if isinstance(found, LoadPrediction):
        return ceil(found.sets * found.flushes * found.writes_per_flush)
    return _entered(setting, work.offset, round(found.throughput * found.seconds), work.block)


def _entered(setting: Setting, offset: int, total: int, block: int) -> float:
    """Return the number of regions of a sequential load, or of requests if these are fewer."""
    bitmap, geometry = setting.bitmap, setting.geometry
    assert bitmap is not None, "bitmap_updates sets one"
    region = bitmap.chunk
    if geometry.has_parity:
        region = max(bitmap.chunk, geometry.chunk) * geometry.data_members
    last = (offset + total - 1) // region
    return float(min(last - offset // region + 1, -(-total // block)))
