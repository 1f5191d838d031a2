"""Changes of a running array's shape that mdadm or md refuses.

Sources: mdadm 4.2 ``Grow.c`` (``Grow_reshape``, ``analyse_change``, ``reshape_array``,
``set_new_data_offset``); kernel ``raid5.c`` and ``raid10.c`` (``check_reshape``, ``takeover``),
``raid1.c: raid1_reshape``, ``raid0.c: raid0_takeover``. What mdadm 4.2 and Linux 6.1 said to
changes of all levels is in ``tests/golden/md``; mdadm 4.4 and Linux 6.12 (without ``linear``) said
the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from lab.core.units import KIB, format_size
from lab.md.facts.geometry import LAST_Q, PARITY_LAST, Geometry
from lab.md.facts.levels import Level, copies, far_copies, layout_number, near_copies

_OFFSET = 1 << 16
_DEFAULT_CHUNK = 64 * KIB
"""What a RAID 1 gets that becomes a RAID 5, if its size is a multiple of it."""
_LAST_PARITIES = range(6)
"""Layouts of RAID 5; RAID 6 has each of them too, and with its Q on the last disk."""


class Log(Enum):
    """What closes the write hole; md does not reshape such an array (``raid5.c: check_reshape``).

    A change of the level alone is none: the same stripes get another personality.
    """

    JOURNAL = "a write journal"
    PARTIAL_PARITY = "a partial parity log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What mdadm compares; sizes in bytes."""

    level: Level
    layout: int
    """The kernel's number."""
    members: int
    spares: int
    chunk: int
    component: int
    before: int
    """Bytes before the data of each member, at most (``super1.c: getinfo_super1``)."""
    after: int
    """Free bytes after them."""
    log: Log | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is given to ``mdadm --grow``."""

    level: int | None = None
    members: int | None = None
    layout: str | None = None
    chunk: int | None = None


class RefusedError(Exception):
    """mdadm or md refuses the change. ``key`` is a field of `Change`."""

    def __init__(self, *, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Restripe:
    """A change of stripes: before it md has this level, and after it the data disks."""

    level: Level
    parity: int
    before: tuple[int, int]
    """Data disks and layout."""
    after: tuple[int, int]


def shape_of(geometry: Geometry, *, before: int, after: int, log: Log | None = None) -> Shape:
    """Return the shape of an array."""
    return Shape(
        level=geometry.level,
        layout=geometry.layout,
        members=geometry.members,
        spares=geometry.spares,
        chunk=geometry.chunk,
        component=geometry.component_size,
        before=before,
        after=after,
        log=log,
    )


def changed(shape: Shape, change: Change) -> Shape:
    """Return the shape after a change; `RefusedError`: mdadm or md refuses it."""
    new = _level(shape, change)
    layout = _layout(shape, new, change)
    if change.level is not None and change.chunk is not None:
        raise RefusedError(
            key="chunk",
            message="mdadm changes the level and the chunk one after the other: write two faults",
        )
    members = change.members or shape.members
    if members - shape.members > shape.spares:
        need = members - shape.members
        raise RefusedError(
            key="members",
            message=f"{members} members need {need} {_spares(need)}, and the array has "
            f"{shape.spares}: set array.spares to {need}",
        )
    if _nothing(shape, change):
        return shape
    if shape.level is Level.LINEAR:
        raise RefusedError(key=_first(change), message="md does not reshape a linear array")
    chunk = _chunk(shape, new, change)
    if shape.level is Level.RAID1 or new is Level.RAID1:
        return _mirrors(shape, new, change)
    if shape.level is Level.RAID10:
        return _copies(shape, new, layout, chunk, change)
    if new is Level.RAID10:
        raise RefusedError(
            key="level",
            message="a RAID 0 becomes a RAID 10 with as many spares as members, and it has none",
        )
    return _stripes(shape, new, layout, chunk, change)


def _spares(count: int) -> str:
    return "spare" if count == 1 else "spares"


def _first(change: Change) -> str:
    """The first field that is given."""
    given = {
        "level": change.level,
        "members": change.members,
        "layout": change.layout,
        "chunk": change.chunk,
    }
    return next(key for key, value in given.items() if value is not None)


def _nothing(shape: Shape, change: Change) -> bool:
    """Whether mdadm says that no change is requested."""
    level, members = change.level, change.members
    return (
        (level is None or level == shape.level)
        and (members is None or members == shape.members)
        and (change.layout, change.chunk) == (None, None)
    )


def _level(shape: Shape, change: Change) -> Level:
    if change.level is None:
        return shape.level
    try:
        return Level(change.level)
    except ValueError:
        raise RefusedError(
            key="level", message=f"md has no level {change.level}: write 0, 1, 4, 5, 6 or 10"
        ) from None


def _layout(shape: Shape, new: Level, change: Change) -> int | None:
    """The kernel's number of the wanted layout; ``None``: mdadm chooses."""
    name = change.layout
    if name is None:
        kept = new is Level.RAID6 and shape.level is Level.RAID6 and shape.layout >= LAST_Q
        if kept and not _nothing(shape, change):
            raise RefusedError(
                key="layout",
                message="mdadm does not reshape a RAID 6 with this layout unless a layout is "
                "given: write layout: preserve, or layout: normalise",
            )
        return None
    if name in ("normalise", "normalize"):
        if shape.level is Level.RAID6 and change.level is None:
            return shape.layout - LAST_Q if shape.layout >= LAST_Q else None
        raise RefusedError(key="layout", message=f"{name} is for a RAID 6: write a layout's name")
    if name == "preserve":
        if shape.level is Level.RAID6 and change.level is None:
            return shape.layout
        if shape.level is Level.RAID5 and new is Level.RAID6:
            return _with_last_q(shape.layout)
        raise RefusedError(
            key="layout",
            message="preserve is for a RAID 6, or a RAID 5 that becomes one: write a layout's name",
        )
    if new not in (Level.RAID5, Level.RAID6, Level.RAID10):
        raise RefusedError(
            key="layout", message=f"{new.title} has no layout that mdadm can change: remove it"
        )
    try:
        return layout_number(new, name)
    except ValueError as error:
        raise RefusedError(key="layout", message=f"{error}: write one of that level") from None


def _with_last_q(layout: int) -> int:
    """RAID 6's layout with a RAID 5 layout and Q on the last disk. Parity on the last disk but one
    is a layout of both."""
    return layout if layout == PARITY_LAST else layout + LAST_Q


def _chunk(shape: Shape, new: Level, change: Change) -> int:
    chunk = change.chunk
    if chunk is None:
        return shape.chunk
    if new is Level.RAID1:
        raise RefusedError(key="chunk", message="RAID 1 has no chunk: remove it")
    if shape.component % chunk:
        raise RefusedError(
            key="chunk",
            message=f"{format_size(chunk)} does not divide the component's "
            f"{format_size(shape.component)}: write another chunk, or set array.component_size",
        )
    if chunk & (chunk - 1):
        near = 1 << chunk.bit_length() - 1
        raise RefusedError(
            key="chunk",
            message=f"{format_size(chunk)} is not a power of two: write {format_size(near)} or "
            f"{format_size(2 * near)}",
        )
    return chunk


def _mirrors(shape: Shape, new: Level, change: Change) -> Shape:
    """From RAID 1, or to it."""
    members = change.members or shape.members
    if new is Level.RAID1 and shape.level is Level.RAID1:
        if members < shape.members:
            raise RefusedError(
                key="members",
                message=f"md does not drop a member that works: make {shape.members - members} of "
                "them fail first",
            )
        return replace(shape, members=members, spares=shape.spares - (members - shape.members))
    if new is Level.RAID1:
        if shape.level is not Level.RAID5 or shape.members != 2:
            raise RefusedError(key="level", message="only a RAID 5 of two members becomes a RAID 1")
        if shape.log is Log.JOURNAL:
            raise RefusedError(
                key="level", message="a RAID 1 has no write journal: remove array.journal_disk"
            )
        if members != 2:
            raise RefusedError(
                key="members",
                message="a RAID 5 becomes a RAID 1 of as many members: remove raid_devices",
            )
        return replace(shape, level=new, layout=0, chunk=0, log=None)
    if new is Level.RAID0:
        if change.members is not None and members != shape.members:
            raise RefusedError(
                key="members",
                message="mdadm chooses the members when a RAID 1 becomes a RAID 0: remove "
                "raid_devices",
            )
        return replace(shape, level=new, layout=0, members=1, spares=0)
    if new is not Level.RAID5:
        raise RefusedError(key="level", message=f"a RAID 1 becomes RAID 0 or 5, not {new.title}")
    if shape.members != 2:
        raise RefusedError(key="level", message="only a RAID 1 of two members becomes a RAID 5")
    start = replace(shape, level=new, layout=2, chunk=_DEFAULT_CHUNK)
    layout = layout_number(new, change.layout) if change.layout else None
    return _stripes(start, new, layout, start.chunk, change)


def _copies(shape: Shape, new: Level, layout: int | None, chunk: int, change: Change) -> Shape:
    """From RAID 10."""
    near, far = near_copies(shape.layout), far_copies(shape.layout)
    members = change.members or shape.members
    if new is Level.RAID0:
        if far > 1:
            raise RefusedError(
                key="level", message="only a RAID 10 with near copies becomes a RAID 0"
            )
        if shape.members % near:
            raise RefusedError(
                key="level",
                message=f"a RAID 10 becomes a RAID 0 if its members are a multiple of {near}",
            )
        if change.members is not None and members != shape.members // near:
            raise RefusedError(
                key="members",
                message=f"the RAID 0 has {shape.members // near} members: remove raid_devices",
            )
        return replace(shape, level=new, layout=0, members=shape.members // near, spares=0)
    if new is not Level.RAID10:
        raise RefusedError(key="level", message=f"a RAID 10 becomes RAID 0 only, not {new.title}")
    if far > 1 and not shape.layout & _OFFSET:
        raise RefusedError(
            key=_first(change), message="md does not reshape a RAID 10 with a far layout"
        )
    wanted = shape.layout if layout is None else layout
    if far_copies(wanted) > 1 and not wanted & _OFFSET:
        raise RefusedError(
            key="layout", message="md does not reshape to a far layout: write n2 or o2"
        )
    if copies(wanted) != copies(shape.layout):
        raise RefusedError(
            key="layout",
            message=f"md does not change the number of copies, {copies(shape.layout)}: write "
            f"n{copies(shape.layout)} or o{copies(shape.layout)}",
        )
    if members < shape.members:
        raise RefusedError(
            key="members",
            message="fewer members would hold less, and mdadm refuses to make the array smaller",
        )
    need = max(shape.chunk * far, chunk * far_copies(wanted))
    _check_room(shape, need, grows=members > shape.members, change=change)
    return replace(
        shape,
        layout=wanted,
        members=members,
        spares=shape.spares - (members - shape.members),
        chunk=chunk,
    )


def _check_room(shape: Shape, need: int, *, grows: bool, change: Change) -> None:
    """The start of the members' data moves: forwards for more members, else to the larger side."""
    room = shape.before if grows else max(shape.before, shape.after)
    if room < need:
        raise RefusedError(
            key=_first(change),
            message=f"mdadm moves the start of the members' data by {format_size(need)}, and they "
            f"have {format_size(room)} for it: set array.data_offset or array.component_size",
        )


def _stripes(shape: Shape, new: Level, layout: int | None, chunk: int, change: Change) -> Shape:
    """From RAID 0, 4, 5 or 6 to one of them."""
    step = _restripe(shape, new, layout, change)
    data, after = step.before[0], step.after[0]
    need = max(data, after) + step.parity - shape.members
    if new > Level.RAID1 and shape.level > Level.RAID1 and need > shape.spares:
        raise RefusedError(
            key=_first(change),
            message=f"the change needs {need} {_spares(need)}, and the array has {shape.spares}: "
            f"set array.spares to {need}",
        )
    same = step.before == step.after and chunk == shape.chunk
    if after < 1:
        raise RefusedError(key=_first(change), message=f"{new.title} needs more members")
    _check_log(shape, new, same=same, change=change)
    if not same and not data == after == 1:
        if after < data:
            raise RefusedError(
                key="members" if change.members is not None else "level",
                message="fewer data disks would hold less, and mdadm refuses to make the array "
                "smaller",
            )
        if after == data:  # otherwise mdadm keeps the first stripes on a new disk
            _check_room(shape, max(chunk, shape.chunk), grows=False, change=change)
    final = after + new.parity
    return replace(
        shape,
        level=new,
        layout=_final_layout(new, step.after[1]),
        members=final,
        spares=max(shape.spares - max(final - shape.members, 0), 0),
        chunk=chunk,
        log=None if shape.log is Log.PARTIAL_PARITY and new is not Level.RAID5 else shape.log,
    )


def _check_log(shape: Shape, new: Level, *, same: bool, change: Change) -> None:
    """A RAID 5 that became a RAID 6 has no partial parity log any more when md reshapes it."""
    ends = shape.log is Log.PARTIAL_PARITY and new is Level.RAID6
    if shape.log is None or ends or (same and new is not Level.RAID0):
        return
    what = "array.journal_disk" if shape.log is Log.JOURNAL else "array.consistency_policy"
    raise RefusedError(
        key=_first(change),
        message=f"md does not reshape an array with {shape.log.value}: remove {what}",
    )


def _final_layout(new: Level, layout: int) -> int:
    if new in (Level.RAID0, Level.RAID4):
        return 0
    return layout - LAST_Q if new is Level.RAID5 and layout >= LAST_Q else layout


def _restripe(shape: Shape, new: Level, layout: int | None, change: Change) -> _Restripe:
    """What md reshapes, and at which level (``analyse_change``)."""
    old, own = shape.level, PARITY_LAST if shape.level is Level.RAID4 else shape.layout
    parity_change, start = 0, own
    data = shape.members - old.parity
    if old is Level.RAID0:
        level, start = (Level.RAID4 if new is Level.RAID0 else new), PARITY_LAST
        parity_change = new.parity
        if new is Level.RAID6:
            raise RefusedError(
                key="level", message="a RAID 0 does not become a RAID 6 at once: to 5 first"
            )
    elif new is Level.RAID6 and old is not Level.RAID6:
        if old is Level.RAID4:
            raise RefusedError(
                key="level", message="a RAID 4 does not become a RAID 6 at once: to 5 first"
            )
        if shape.members < 3:
            raise RefusedError(key="level", message="a RAID 5 becomes a RAID 6 from 3 members on")
        level, parity_change, start = new, 1, _with_last_q(own)
    elif old is Level.RAID6:
        if new in (Level.RAID0, Level.RAID4):
            raise RefusedError(
                key="level", message=f"a RAID 6 does not become {new.title} at once: to 5 first"
            )
        level, parity_change = old, -1 if new is Level.RAID5 else 0
    else:
        level, parity_change = old, -1 if new is Level.RAID0 else 0
        if old is Level.RAID4 and new is Level.RAID5:
            level = Level.RAID5
    if change.members is None or (old is Level.RAID0 and change.members == shape.members):
        after = data
        delta = parity_change
    else:
        delta = change.members - shape.members
        after = data + delta - parity_change
    end = _end_layout(shape, new, start, layout)
    return _Restripe(level=level, parity=level.parity, before=(data, start), after=(after, end))


def _end_layout(shape: Shape, new: Level, start: int, layout: int | None) -> int:
    if new in (Level.RAID0, Level.RAID4):
        return PARITY_LAST
    if shape.level is Level.RAID6 and new is Level.RAID5:
        wanted = start if layout is None else layout
        if wanted in _LAST_PARITIES:
            return _with_last_q(wanted)
        if wanted >= LAST_Q:
            return wanted
        raise RefusedError(
            key="layout" if layout is not None else "level",
            message="RAID 5 has no such layout: give a layout",
        )
    if shape.level is Level.RAID0 and layout is None:
        return 2
    if new is Level.RAID6 and shape.level is not Level.RAID6 and layout is None:
        return shape.layout
    return start if layout is None else layout
