"""Finds order, chunk, layout and offset of an array without superblocks, from the data. Pure.

Structures of file systems know their own address: backup superblocks of ext4, headers of XFS's
groups, blocks and inodes, btrfs's tree blocks, the label of LVM. Each that is seen on a disk says
which array byte is at that place. A shape that puts most of them at the right byte, with
members assigned to slots so that the sum is largest, is the array's. Orders are not tried.

Parity tells the level: the XOR of all members of RAID 4 or 5 is zero in every row.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Final

from lab.capabilities.rescue.logic import ext4
from lab.capabilities.rescue.logic.parity import compare, geometry_of
from lab.capabilities.rescue.model import Arrangement, Diagnosis, Part, Shape
from lab.core.units import KIB, MIB
from lab.md.facts.geometry import Geometry, Location

Reader = Callable[[int, int], bytes]
_SCANNED: Final = 512 * MIB
"""Bytes of each member that are searched, from its start."""
_STEP: Final = 4 * MIB
_OVERLAP: Final = 20 * KIB
_MOST: Final = 160
"""Structures of a member that are compared."""
_KNOWN: Final = 4096
"""Most file systems, and most chunks of one: bytes may name any number."""
_IN_PIECE: Final = 512
"""Most structures of a piece that are kept."""
_SYSTEMS: Final = 16
"""Most ext4 file systems whose inodes are looked for: those with the most superblocks."""
_SUPERBLOCKS: Final = 16
"""Most superblocks of ext4 in a piece whose checksums are computed."""
_CHUNKS: Final = tuple(4 * KIB << n for n in range(13))
_BEST: Final = 8
_TIES: Final = 6
_CLOSE: Final = 0.04
"""Arrangements whose score is this much less than the best one's are tried too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A structure at a place of a member, and the bytes of its file system that may hold it."""

    at: int
    system: frozenset[int]
    kind: str


def search(diagnosis: Diagnosis, reads: Mapping[str, Reader]) -> tuple[Arrangement, ...]:
    """Return arrangements, best first."""
    parts = [part for part in diagnosis.parts if part.size >= MIB]
    if not 2 <= len(parts) <= 16:
        return ()
    mine = {part.name: reads[part.name] for part in parts}
    scanned = scan(mine, {part.name: part.size for part in parts})
    seen = {name: _thinned(found) for name, found in scanned.items()}
    hints = [array.shape for array in diagnosis.arrays]
    return tuple(arrange(parts, seen, reads, hints))


def _thinned(seen: list[Seen]) -> list[Seen]:
    """Return a part of the structures, spread over the member; the rare kinds stay."""
    rare = [one for one in seen if one.kind in ("primary", "lvm")]
    others = [one for one in seen if one.kind not in ("primary", "lvm")]
    step = max(1, -(-len(others) // _MOST))
    return rare[:40] + others[::step]


# -- structures that know their address


def scan(reads: Mapping[str, Reader], sizes: Mapping[str, int]) -> dict[str, list[Seen]]:
    """Return the structures of each member."""
    fs = _Systems()
    found: dict[str, list[Seen]] = {name: [] for name in reads}
    for _, _, raw in _pieces(reads, sizes):
        fs.learn(raw)
    fs.choose()
    for name, at, raw in _pieces(reads, sizes):
        found[name] += islice(fs.structures(name, at, raw), _IN_PIECE)
    for name, one in fs.resolved():
        found[name].append(one)
    return found


def _pieces(
    reads: Mapping[str, Reader], sizes: Mapping[str, int]
) -> Iterator[tuple[str, int, bytes]]:
    """Yield the bytes of each member that are not all zero, with a part of what follows them."""
    for name, read in reads.items():
        end = min(sizes[name], _SCANNED)
        for at in range(0, end, _STEP):
            raw = read(at, min(_STEP + _OVERLAP, end - at))
            if any(raw):
                yield name, at, raw


class _Systems:
    """Facts of the file systems whose superblocks were seen."""

    def __init__(self) -> None:
        self.xfs: dict[bytes, tuple[int, int, int, int, int]] = {}
        self.btrfs: dict[bytes, dict[int, list[tuple[int, int]]]] = {}
        self.ext4: dict[bytes, tuple[ext4.System, ext4.Sightings]] = {}
        self._seen: Counter[bytes] = Counter()

    def choose(self) -> None:
        """Forget the ext4 file systems of which the fewest superblocks were seen."""
        best = {uuid for uuid, _ in self._seen.most_common(_SYSTEMS)}
        self.ext4 = {uuid: found for uuid, found in self.ext4.items() if uuid in best}

    def learn(self, raw: bytes) -> None:
        for block in islice(ext4.superblocks(raw, _STEP), _SUPERBLOCKS):
            known = block.uuid in self.ext4 or len(self.ext4) < _KNOWN
            if block.system is not None and known:
                self._seen[block.uuid] += 1
                system, _ = self.ext4.setdefault(block.uuid, (block.system, ext4.Sightings()))
                for group, table in block.system.tables.items():
                    system.tables.setdefault(group, table)
        for at in _all(raw, b"XFSB", 0, 512):
            head = raw[at : at + 256]
            if len(head) < 256:
                continue
            (block,) = struct.unpack_from(">I", head, 4)
            (ag,) = struct.unpack_from(">I", head, 84)
            inode, per = struct.unpack_from(">HH", head, 104)
            if 512 <= block <= 65536 and ag and 256 <= inode <= 2048 and per:
                if len(self.xfs) == _KNOWN:
                    break
                self.xfs[head[32:48]] = (block, ag, inode, head[124], head[123])
        for at in _all(raw, b"_BHRfS_M", 64, 4096):
            head = raw[at : at + 4096]
            if len(head) == 4096 and len(self.btrfs) < _KNOWN:
                chunks = self.btrfs.setdefault(head[32:48], {})
                length = min(struct.unpack_from("<I", head, 160)[0], 2048)
                _chunks(head[811 : 811 + length], chunks)
        for at in range(0, len(raw) - 16384, 4096):
            mapping = self.btrfs.get(raw[at + 32 : at + 48])
            tree, level = struct.unpack_from("<Q", raw, at + 88)[0], raw[at + 100]
            if mapping is not None and tree == 3 and level == 0:
                _leaf(raw[at : at + 16384], mapping)

    def resolved(self) -> Iterator[tuple[str, Seen]]:
        """Yield the structures of ext4 that need all members to be understood."""
        for system, sightings in self.ext4.values():
            for name, at, place, kind in ext4.resolve(system, sightings):
                yield name, Seen(at=at, system=frozenset({place}), kind=kind)

    def structures(self, name: str, base: int, raw: bytes) -> Iterator[Seen]:
        """Yield the structures in some bytes of a member, the rare kinds first."""
        for at in _all(raw[:_STEP], b"LABELONE", 0, 512):
            if raw[at + 24 : at + 32] == b"LVM2 001":
                (sector,) = struct.unpack_from("<Q", raw, at + 8)
                if sector < 4:
                    yield Seen(at=base + at, system=frozenset({sector * 512}), kind="lvm")
        for block in islice(ext4.superblocks(raw, _STEP), _SUPERBLOCKS):
            kind = "backup" if block.group else "primary"
            yield Seen(at=base + block.at, system=frozenset({block.place}), kind=kind)
        for system, sightings in self.ext4.values():
            ext4.look(name, base, raw, _STEP, system, sightings)
        yield from self._xfs(base, raw)
        yield from self._btrfs(base, raw)

    def _xfs(self, base: int, raw: bytes) -> Iterator[Seen]:
        if not self.xfs:
            return
        for at in _all(raw[:_STEP], b"XFSB", 0, 512):
            known, following = self.xfs.get(raw[at + 32 : at + 48]), raw[at + 512 : at + 524]
            if known is not None and following[:4] == b"XAGF":
                number = struct.unpack_from(">I", following, 8)[0]
                kind = "primary" if number == 0 else "header"
                place = number * known[1] * known[0]
                yield Seen(at=base + at, system=frozenset({place}), kind=kind)
        for magic in (b"XDB3", b"XDD3", b"XDF3", b"BMA3"):
            where = 24 if magic == b"BMA3" else 8
            for at in _all(raw[:_STEP], magic, 0, 512):
                number = struct.unpack_from(">Q", raw.ljust(at + 64, b"\0"), at + where)[0]
                if raw[at + where + 16 : at + where + 32] in self.xfs and number < 1 << 50:
                    place = _xfs_daddr(number)
                    yield Seen(at=base + at, system=frozenset({place}), kind="block")
        for at in _all(raw[:_STEP], b"IN", 0, 256):
            known = self.xfs.get(raw[at + 160 : at + 176])
            if known is None or raw[at + 4 : at + 5] != b"\x03" or at % known[2]:
                continue
            block, ag, inode, ag_log, per_log = known
            number = struct.unpack_from(">Q", raw, at + 152)[0]
            group = number >> ag_log + per_log
            inside = number >> per_log & (1 << ag_log) - 1
            index = number & (1 << per_log) - 1
            place = (group * ag + inside) * block + index * inode
            yield Seen(at=base + at, system=frozenset({place}), kind="inode")

    def _btrfs(self, base: int, raw: bytes) -> Iterator[Seen]:
        if not self.btrfs:
            return
        for at in range(0, min(len(raw) - 72, _STEP), 4096):
            chunks = self.btrfs.get(raw[at + 32 : at + 48])
            if chunks is None:
                continue
            (logical,) = struct.unpack_from("<Q", raw, at + 48)
            if raw[at + 64 : at + 72] == b"_BHRfS_M":
                kind = "primary" if logical == 64 * KIB else "header"
                yield Seen(at=base + at, system=frozenset({logical}), kind=kind)
            elif places := _physical(logical, chunks):
                yield Seen(at=base + at, system=frozenset(places), kind="tree")


def _xfs_daddr(sector: int) -> int:
    return sector * 512


def _all(raw: bytes, magic: bytes, inside: int, align: int) -> Iterator[int]:
    """Yield offsets that are multiples of ``align`` and have the magic ``inside`` bytes later."""
    at = raw.find(magic)
    while at >= 0:
        if at >= inside and (at - inside) % align == 0:
            yield at - inside
        at = raw.find(magic, at + 1)


def _chunks(raw: bytes, chunks: dict[int, list[tuple[int, int]]]) -> None:
    """Read btrfs's array of (key, chunk) into logical → (length, physical) for each stripe."""
    at = 0
    while at + 17 + 80 <= len(raw):
        (logical,) = struct.unpack_from("<Q", raw, at + 9)
        at += 17 + _chunk(raw, at + 17, logical, chunks)


def _chunk(raw: bytes, at: int, logical: int, chunks: dict[int, list[tuple[int, int]]]) -> int:
    (length,) = struct.unpack_from("<Q", raw, at)
    stripes: int = min(struct.unpack_from("<H", raw, at + 44)[0], 16)
    found = []
    for number in range(stripes):
        where = at + 48 + 32 * number
        if where + 32 <= len(raw):
            found.append((length, struct.unpack_from("<Q", raw, where + 8)[0]))
    if len(chunks) < _KNOWN or logical in chunks:
        chunks[logical] = found
    return 48 + 32 * max(1, stripes)


def _leaf(raw: bytes, chunks: dict[int, list[tuple[int, int]]]) -> None:
    """Read the chunk items of a leaf of btrfs's chunk tree."""
    (count,) = struct.unpack_from("<I", raw, 96)
    for number in range(min(count, 200)):
        item = 101 + 25 * number
        kind = raw[item + 8]
        (logical,) = struct.unpack_from("<Q", raw, item + 9)
        offset, size = struct.unpack_from("<II", raw, item + 17)
        if kind == 228 and size >= 80 and 101 + offset + size <= len(raw):
            _chunk(raw, 101 + offset, logical, chunks)


def _physical(logical: int, chunks: Mapping[int, list[tuple[int, int]]]) -> list[int]:
    for begin, stripes in chunks.items():
        for length, _ in stripes:
            if begin <= logical < begin + length:
                return [place + logical - begin for _, place in stripes]
    return []


# -- shapes


def arrange(
    parts: Sequence[Part],
    seen: Mapping[str, Sequence[Seen]],
    reads: Mapping[str, Reader],
    hints: Sequence[Shape],
) -> list[Arrangement]:
    """Return the arrangements in which most structures are at the right byte of the array."""
    found: list[Arrangement] = []
    size = min(part.size for part in parts)
    counts = dict.fromkeys([len(parts), *(hint.disks for hint in hints)])
    for begin, base in _starts(parts, seen):
        for disks in counts:
            if not len(parts) <= disks + 2 or disks < 2 or disks > len(parts) + 2:
                continue
            for shape in _shapes(disks, begin, size):
                found += _assign(shape, size, base, parts, seen)
    found.sort(key=lambda one: (-one.score, _oddity(one.shape)))
    if not found:
        return []
    near = [one for one in found if one.score >= 0.8 * found[0].score][: 4 * _BEST]
    checked = [_checked(one, size, reads) for one in near]
    checked.sort(key=lambda one: (-one.score, _oddity(one.shape)))
    best = checked[0].score
    return [one for one in checked if one.score >= best - _CLOSE][:_BEST]


def _oddity(shape: Shape) -> tuple[int, int, int]:
    """Order equal scores: mdadm's defaults first."""
    usual = {5: 2, 6: 2, 10: 0x102}.get(shape.level, 0)
    return (
        shape.layout != usual,
        shape.level == 4,
        -shape.chunk if shape.chunk <= 512 * KIB else 0,
    )


def _starts(parts: Sequence[Part], seen: Mapping[str, Sequence[Seen]]) -> list[tuple[int, int]]:
    """Return (data offset, begin of the file system in the array) that fit a primary structure."""
    found: dict[tuple[int, int], int] = {}
    for part in parts:
        lvm = [one.at - min(one.system) for one in seen[part.name] if one.kind == "lvm"]
        for one in seen[part.name]:
            if one.kind != "primary":
                continue
            for inside in _insides(min(one.system), len(parts)):
                begin = one.at - inside
                if begin >= 0 and begin % 4096 == 0:
                    found[begin, 0] = found.get((begin, 0), 0) + 1
        for begin in lvm:
            if begin >= 0:  # mdadm's data offset; the first extent of LVM is at 1 MiB
                found[begin, MIB] = found.get((begin, MIB), 0) + 1
    # mdadm's own offsets are whole MiB, or 0 in the versions at the end.
    return sorted(found, key=lambda key: (key[0] % MIB != 0, -found[key], key[0]))[:6]


def _insides(place: int, disks: int) -> set[int]:
    """Return the offsets on a member at which an array byte can be, for all chunks."""
    found = {place}
    for chunk in _CHUNKS:
        for data in range(1, disks + 1):
            found.add(place // chunk // data * chunk + place % chunk)
    return found


def _shapes(disks: int, begin: int, size: int) -> Iterator[Shape]:
    version = "1.2" if begin >= 8192 else "1.0"
    kinds: list[tuple[int, int]] = [(0, 0)]
    if disks >= 3:
        kinds += [(5, layout) for layout in (2, 0, 3, 1, 4, 5)]
    if disks >= 4:
        kinds += [(6, layout) for layout in (2, 0, 3, 1)]
    kinds += [(10, layout) for layout in (0x102, 0x201, 0x10201) if disks >= 2]
    for level, layout in kinds:
        for chunk in _CHUNKS:
            if chunk * 4 <= size:
                yield Shape(
                    level=level,
                    disks=disks,
                    chunk=chunk,
                    layout=layout,
                    version=version,
                    data_offset=begin,
                    size=0,
                )
    yield Shape(level=1, disks=disks, chunk=0, layout=0, version=version, data_offset=begin, size=0)


def _assign(
    shape: Shape, size: int, base: int, parts: Sequence[Part], seen: Mapping[str, Sequence[Seen]]
) -> list[Arrangement]:
    """Return the assignments of members to slots with the largest sum of right minus wrong.

    Members without structures are exchanged among their slots, up to :data:`_TIES` ways.
    """
    geometry = geometry_of(shape, size - shape.data_offset)
    if geometry is None or geometry.component_size <= 0:
        return []
    table = {
        part.name: [
            _fit(geometry, role, shape.data_offset, base, seen[part.name])
            for role in range(shape.disks)
        ]
        for part in parts
    }
    names = [part.name for part in parts] + [""] * max(0, shape.disks - len(parts))
    table[""] = [frozenset()] * shape.disks
    order = _best_order(names, table, shape.disks)
    right = {one for role, name in enumerate(order) if name for one in table[name][role]}
    total = {(one.kind, one.system) for part in parts for one in seen[part.name]}
    if len(right) < 2:
        return []
    silent = [role for role, name in enumerate(order) if name and not any(map(any, table[name]))]
    found = []
    for moved in islice(permutations(silent), _TIES):
        slots = list(order)
        for role, source in zip(silent, moved, strict=True):
            slots[role] = order[source]
        found.append(
            Arrangement(
                shape=shape,
                slots=tuple(slots),
                evidence=f"{len(right)} of {len(total)} structures of the file system are at their"
                " place",
                score=len(right) / len(total),
            )
        )
    return found


Identity = tuple[str, frozenset[int]]


def _fit(
    geometry: Geometry, role: int, begin: int, base: int, seen: Sequence[Seen]
) -> frozenset[Identity]:
    """Return the structures that are at their place if the member is in this slot.

    Others count for nothing: a journal and parity hold copies at other places.
    """
    right = set()
    for one in seen:
        inside = one.at - begin
        if not 0 <= inside < geometry.component_size:
            continue
        virtual = geometry.array_offset(Location(member=role, offset=inside))
        if virtual is not None and virtual - (0 if one.kind == "lvm" else base) in one.system:
            right.add((one.kind, one.system))
    return frozenset(right)


def _best_order(
    names: Sequence[str], table: Mapping[str, Sequence[frozenset[Identity]]], disks: int
) -> list[str]:
    """Return the names by slot, by exact assignment over sets of slots."""
    weight = [[len(right) for right in table[name]] for name in names]
    best: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {0: (0, ())}
    for index in range(len(names)):
        following: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
        for filled, (total, chosen) in best.items():
            spare = len(names) - index - 1 >= disks - filled.bit_count()
            if spare and (filled not in following or following[filled][0] < total):
                following[filled] = (total, chosen)
            for role in range(disks):
                if filled >> role & 1:
                    continue
                key, sum_ = filled | 1 << role, total + weight[index][role]
                if key not in following or following[key][0] < sum_:
                    following[key] = (sum_, (*chosen, (role, index)))
        best = following
    _, chosen = best.get((1 << disks) - 1, (0, ()))
    order = [""] * disks
    for role, index in chosen:
        order[role] = names[index]
    return order


def _checked(one: Arrangement, size: int, reads: Mapping[str, Reader]) -> Arrangement:
    """Return the arrangement with its score lowered by contradictions of parity and copies."""
    geometry = geometry_of(one.shape, size - one.shape.data_offset)
    placed = {role: (name, one.shape.data_offset) for role, name in enumerate(one.slots) if name}
    share = compare(geometry, placed, reads) if geometry is not None else None
    if share is None:
        return replace(one, score=one.score - (0.02 if one.shape.level else 0.01))
    return replace(
        one,
        score=one.score - 0.5 * share,
        evidence=f"{one.evidence}; {1 - share:.0%} of the sampled rows have right parity or copies",
    )
