"""How often a workload can make md write the bitmap: what a run can show of a bitmap at all.

A bit that is set costs nothing. A scenario that is scaled down keeps the bitmap's chunk and loses
its bits: components of 1 GiB have 16 of 64 MiB, and once these are set the bitmap is not written
again while the workload goes on. Such a run says nothing of a bitmap, whatever it measures.

Sources as in ``bitmap``: a bit is set once, and again only after two looks of the daemon at a
region that was left alone (``md-bitmap.c: md_bitmap_daemon_work``).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from lab.md.facts.geometry import Geometry
from lab.md.facts.segments import segment_geometry
from lab.md.facts.sizes import bitmap_covers, geometry_of, without_bitmap_disk
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.cell import Setting, UnknownError, Work, follow, setting_of
from lab.md.theory.load import LoadPrediction
from lab.md.theory.paths import SequentialLoad
from lab.model.scenario.document import SERVED, Array, Cell


def bitmap_updates(cell: Cell, work: Work | None, seconds: float) -> float | None:
    """The most bits that a workload of so many seconds can set; ``None``: no bitmap that is known.

    ``work``: the workload, where theory knows it. Otherwise nothing is taken for granted but how
    many bits there are, and how soon one can be set again. ``None`` for modelled drives too: a
    flush goes with each write of the bitmap, which costs them far more than an operation, so that
    a count of operations says nothing of what the bitmap costs.
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
        if setting.bitmap is None:  # a file elsewhere is set as often as one on the members
            marks = Bitmap(chunk=shape.bitmap_chunk, time_base=base)
            setting = replace(setting, bitmap=marks)
        return min(most, _expected(setting, work))
    except UnknownError:
        return most


def _shape(array: Array, sizes: list[int]) -> Geometry:
    if array.kind == "segments":
        return segment_geometry(array, sizes)
    return geometry_of(array, without_bitmap_disk(array, sizes))


def _expected(setting: Setting, work: Work) -> float:
    """Bits that theory's own account of the workload sets; of a stream, with each request one."""
    if isinstance(work, SequentialLoad):
        return _entered(setting, work.offset, work.total, work.block)
    found = follow(setting, work)
    if isinstance(found, LoadPrediction):
        return ceil(found.sets * found.flushes * found.writes_per_flush)
    return _entered(setting, work.offset, round(found.throughput * found.seconds), work.block)


def _entered(setting: Setting, offset: int, total: int, block: int) -> float:
    """Regions that a stream comes into, or requests, where these are fewer."""
    bitmap, geometry = setting.bitmap, setting.geometry
    assert bitmap is not None, "the caller has seen to it"
    region = bitmap.chunk
    if geometry.has_parity:
        region = max(bitmap.chunk, geometry.chunk) * geometry.data_members
    last = (offset + total - 1) // region
    return float(min(last - offset // region + 1, -(-total // block)))
