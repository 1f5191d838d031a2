"""Sizes of an array and its metadata, as mdadm computes them: exact, in bytes.

Sources: mdadm ``super1.c`` (``choose_bm_space``, ``validate_geometry1``,
``add_internal_bitmap1``, ``calc_bitmap_size``), ``Create.c``; kernel ``raid10.c: calc_sectors``.
mdadm computes in sectors and KiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from lab.core.units import KIB, MIB, is_digits
from lab.md.facts.geometry import PAGE, Geometry
from lab.md.facts.levels import NAMES, Level, copies, far_copies, layout_number, near_copies
from lab.model.plugin import MemoryUse
from lab.model.scenario.document import Array

DEFAULT_CHUNK: Final = 512 * KIB
DEFAULT_BITMAP_CHUNK: Final = 64 * MIB
SMALLEST_CHUNK: Final = 4 * KIB
"""A page; also for bitmap chunks."""
SUPERBLOCK_END: Final = {"1.1": 4 * KIB, "1.2": 8 * KIB}
"""First byte after the superblock's 4 KiB; metadata 1.0 is at the member's end."""
LOCKLESS_BITMAP: Final = 128 * KIB
"""A lockless bitmap's fixed area, ``md-llbitmap.c``."""
PPL: Final = 1024 * KIB
"""mdadm's ``MULTIPLE_PPL_AREA_SIZE_SUPER1``."""

T = TypeVar("T")

_SECTOR: Final = 512
_BITMAP_SUPERBLOCK: Final = 256


def geometry_of(array: Array, sizes: Sequence[int]) -> Geometry:
    """Return the geometry of a valid array on disks of these sizes (bytes, in order).

    ``ValueError`` or ``LookupError``: ``rules`` refuses the array. RAID 0 of unequal disks has
    zones; only the bytes that all its members have are counted.
    """
    level = NAMES[array.level]
    layout = layout_number(level, array.layout)
    members = member_count(array, len(sizes))
    used = present(array, sizes)
    chunk = (array.chunk or DEFAULT_CHUNK) if level.striped else 0
    offset = data_offset_of(array, used[0], chunk)
    component = array.component_size or min(room_on(array, size, offset, chunk) for size in used)
    component = round_component(level, layout, members, chunk, component)
    if array.component_size is None and level is Level.RAID1:
        component -= component % (64 * KIB)
    bitmap_chunk = 0
    if array.bitmap in ("internal", "external") and level.redundant:
        covered = bitmap_covers(level, layout, members, component)
        bitmap_chunk = array.bitmap_chunk or (
            external_bitmap_chunk(covered)
            if array.bitmap == "external"
            else max(DEFAULT_BITMAP_CHUNK, smallest_bitmap_chunk(component, covered))
        )
    mostly = array.write_mostly if level is Level.RAID1 else ()
    return Geometry(
        level=level,
        layout=layout,
        members=members,
        component_size=component,
        chunk=chunk,
        failed=frozenset() if array.missing is None else frozenset({array.missing - 1}),
        write_mostly=frozenset(number - 1 for number in mostly),
        spares=array.spares,
        data_offset=offset,
        bitmap_chunk=bitmap_chunk,
    )


_STRIPE_HEAD: Final = 256
_STRIPE_DEVICE: Final = 400
"""``raid5.h: struct stripe_head`` without its ``r5dev``, and one of these, rounded."""
STRIPES: Final = 256
"""``raid5.c: NR_STRIPES``."""


def array_memory(array: Array, shape: Geometry, arrays: int = 1) -> Iterator[MemoryUse]:
    """Yield the memory of an array, or of several like it: stripe cache and bitmap.

    The cache has a page for each member and stripe (``raid5.c: grow_one_stripe``), and an internal
    or external bitmap a counter of two bytes for each bit (``md-bitmap.c``).
    """
    given = array.sysfs.get("stripe_cache_size", "")
    stripes = int(given) if is_digits(given) else STRIPES
    if shape.has_parity:
        each = _STRIPE_HEAD + shape.members * (PAGE + _STRIPE_DEVICE)
        several = f"{arrays} times " if arrays > 1 else ""
        yield MemoryUse(
            key="array.sysfs.stripe_cache_size" if given else "guest.memory",
            size=arrays * stripes * each,
            what=f"{several}{stripes} stripes of {shape.members} members",
        )
    if shape.bitmap_chunk:
        covered = bitmap_covers(shape.level, shape.layout, shape.members, shape.component_size)
        bits = covered // shape.bitmap_chunk + 1
        size = arrays * (2 * bits + bits // 8)
        yield MemoryUse(key="array.bitmap_chunk", size=size, what=f"a bitmap of {bits} bits")


def named_sizes(shape: Geometry) -> dict[str, int]:
    """``members``, ``data_disks``, ``chunk`` and ``stripe``, as far as the array has them.

    A stripe is md's ``queue/optimal_io_size``: a row of chunks without parity, and with near copies
    each chunk once. If a row has no whole number of near copies, it is as many chunks as members
    (``raid10.c: raid10_set_io_opt``, since 6.9 ``raid10_nr_stripes``; ``raid0.c``, ``raid5.c``).
    """
    found = {"members": shape.members}
    data = shape.data_members
    if shape.level is Level.RAID1:
        data = 1
    elif shape.level is Level.RAID10 and data % shape.near == 0:
        data //= shape.near
    if shape.level is not Level.LINEAR:
        found["data_disks"] = data
    if shape.has_chunks:
        found |= {"chunk": shape.chunk, "stripe": data * shape.chunk}
    return found


def disks_aside(array: Array) -> dict[int, str]:
    """Return the disks, from 1, that are never members, and what each is for."""
    own = {array.bitmap_disk: "the bitmap's file", array.journal_disk: "the write journal"}
    return {number: use for number, use in own.items() if number is not None}


def without_disks_aside(array: Array, disks: Sequence[T]) -> Sequence[T]:
    """Return the disks that may be members: all except those of bitmap and journal."""
    aside = disks_aside(array)
    return [disk for number, disk in enumerate(disks, 1) if number not in aside]


def member_count(array: Array, disks: int) -> int:
    """Return the number of active members; the default is all disks that are not spares."""
    return array.members if array.members is not None else disks - array.spares


def present(array: Array, disks: Sequence[T]) -> Sequence[T]:
    """Return the disks of members and spares that are not missing."""
    used = disks[: member_count(array, len(disks)) + array.spares]
    if array.missing is None:
        return used
    return [*used[: array.missing - 1], *used[array.missing :]]


def bitmap_room(size: int) -> int:
    """Return the bytes that mdadm reserves for an internal bitmap on a member of ``size`` bytes."""
    sectors = size // _SECTOR
    if sectors < 64 * 2:
        return 0
    if sectors - 64 * 2 >= 200 * 1024 * 1024 * 2:
        return 128 * KIB
    return 64 * KIB if sectors - 4 * 2 > 8 * 1024 * 1024 * 2 else 4 * KIB


def data_offset_of(array: Array, size: int, chunk: int) -> int:
    """Return the data offset of every member; mdadm's default depends on the first member's
    size."""
    if array.data_offset is not None:
        return array.data_offset
    if array.metadata == "1.0":
        return 0
    sectors = size // _SECTOR
    reserved = PPL if array.consistency_policy == "ppl" else bitmap_room(size)
    # Space for a reshape: an eighth of a GiB, or less on a small member (about 0.1 %), but at
    # least two chunks.
    headroom = 128 * MIB // _SECTOR
    while headroom << 10 > sectors and (chunk == 0 or headroom // 2 >= chunk // KIB * 2 * 2):
        headroom >>= 1
    offset = 12 * KIB + reserved + headroom * _SECTOR
    return -(-offset // MIB) * MIB


def room_on(array: Array, size: int, offset: int, chunk: int) -> int:
    """Return the largest component on a member of ``size`` bytes; 0 or less: too small for md."""
    sectors = size // _SECTOR
    if array.metadata == "1.0":
        reserved = PPL if array.consistency_policy == "ppl" else bitmap_room(size)
        room = (sectors - sectors % 8) * _SECTOR - 8 * KIB - 4 * KIB - reserved
    else:
        room = sectors * _SECTOR - offset
    room -= room % KIB
    return room - room % chunk if chunk else room


def round_component(level: Level, layout: int, members: int, chunk: int, component: int) -> int:
    """Return the component size that the kernel reports for a requested one."""
    if not chunk:
        return component
    chunks = component // chunk
    if level is Level.RAID10:
        per_array = chunks // far_copies(layout) * members // near_copies(layout)
        chunks = -(-per_array * copies(layout) // members)
    return chunks * chunk


def bitmap_covers(level: Level, layout: int, members: int, component: int) -> int:
    """Return the bytes that a bitmap covers: a component's, for RAID 10 the array's."""
    if level is not Level.RAID10:
        return component
    return component // KIB * members // copies(layout) * KIB


def smallest_bitmap_chunk(component: int, covered: int) -> int:
    """Return the smallest chunk of an internal bitmap that fits into the reserved bytes."""
    most = (bitmap_room(component) - _BITMAP_SUPERBLOCK) * 8
    chunk = SMALLEST_CHUNK
    bits = covered // chunk + 1
    while bits > most:
        chunk *= 2
        bits = (bits + 1) // 2
    return chunk


def external_bitmap_chunk(covered: int) -> int:
    """Return mdadm's chunk of a bitmap in a file: at most 2^20 bits (``bitmap.c:
    CreateBitmap``)."""
    chunk = SMALLEST_CHUNK
    while -(-covered // chunk) > 1 << 20:
        chunk *= 2
    return chunk


def bitmap_bytes(covered: int, chunk: int) -> int:
    """Return the bytes of an internal bitmap on a member: its superblock and a bit for each
    chunk."""
    bits = -(-covered // chunk)
    return -(-(_BITMAP_SUPERBLOCK + (bits + 7) // 8) // (4 * KIB)) * 4 * KIB
