"""Reads the output of ``mdadm --examine``: a diagnosis needs no more. Pure.

Source: ``super0.c: examine_super0`` and ``super1.c: examine_super1`` of mdadm.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from lab.capabilities.rescue.logic import superblocks as sb
from lab.capabilities.rescue.logic.superblocks import SECTOR, Reshape, Superblock

_LEVELS: Final = {"linear": -1, "raid0": 0, "raid1": 1, "raid4": 4, "raid5": 5, "raid6": 6}
_LEVELS_ALL: Final = {**_LEVELS, "raid10": 10, "-unknown-": -99}
_LAYOUTS: Final = {
    "left-asymmetric": 0,
    "right-asymmetric": 1,
    "left-symmetric": 2,
    "right-symmetric": 3,
    "parity-first": 4,
    "parity-last": 5,
    "ddf-zero-restart": 8,
    "ddf-N-restart": 9,
    "ddf-N-continue": 10,
    "left-asymmetric-6": 16,
    "right-asymmetric-6": 17,
    "left-symmetric-6": 18,
    "right-symmetric-6": 19,
    "parity-first-6": 20,
}
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_ROLE: Final = re.compile(r"(Active|Replacement) device (\d+)")
_THIS: Final = re.compile(r"^this +(\d+) +\d+ +\d+ +(-?\d+) +(.*)$", re.MULTILINE)
_SLOT: Final = re.compile(r"^ *(\d+) +\1 +\d+ +\d+ +(\d+) +active sync", re.MULTILINE)


def parse(text: str) -> dict[str, Superblock]:
    """Return the superblock by device name, of an output for one or several devices."""
    found = {}
    parts = re.split(r"^(/\S+):\s*$", text, flags=re.MULTILINE)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if block := _block(body):
            found[name] = block
    return found


def _block(body: str) -> Superblock | None:
    pairs = (line.partition(" : ") for line in body.splitlines() if " : " in line)
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    if "a92b4efc" not in facts.get("Magic", "") or "Version" not in facts:
        return None
    old = not facts["Version"].startswith("1.")
    version = "0.90" if old else facts["Version"][:3]
    level = _LEVELS_ALL.get(facts.get("Raid Level", ""), -99)
    used = _first(facts.get("Used Dev Size", ""))
    size = used * 1024 if old else (used or _first(facts.get("Avail Dev Size", ""))) * SECTOR
    features = _hex(facts.get("Feature Map", "0"))
    role, number = _role(facts, body, old=old)
    checksum = facts.get("Checksum", "")
    state = facts.get("State", "")
    at = 0 if old else _first(facts.get("Super Offset", "")) * SECTOR
    return Superblock(
        version=version,
        at=at,
        stored_at=at,
        checksum_ok=checksum.endswith("- correct"),
        array_uuid=facts.get("UUID" if old else "Array UUID", "").split(" ")[0].replace(":", ""),
        name=facts.get("Name", "").partition("  (local")[0],
        created=_time(facts.get("Creation Time", "")),
        updated=_time(facts.get("Update Time", "")),
        level=level,
        layout=_layout(facts.get("Layout", ""), level),
        chunk=_chunk(facts.get("Chunk Size", "")),
        raid_disks=_first(facts.get("Raid Devices", "")),
        size=size,
        data_offset=_first(facts.get("Data Offset", "")) * SECTOR,
        data_size=_first(facts.get("Avail Dev Size", "")) * SECTOR,
        device_uuid=facts.get("Device UUID", "").replace(":", ""),
        device_number=number,
        role=role,
        roles=_roles(facts.get("Array State", ""), body, old=old),
        events=_events(facts.get("Events", "0")),
        clean=state.startswith("clean"),
        features=features,
        recovery=_first(facts["Recovery Offset"]) * SECTOR if "Recovery Offset" in facts else None,
        reshape=_reshape(facts, level),
        feature_journal=bool(features & sb.FEATURE_JOURNAL),
    )


def _first(text: str) -> int:
    found = re.match(r"-?\d{1,18}", text)
    return int(found[0]) if found else 0


def _hex(text: str) -> int:
    found = re.match(r"0x[0-9a-f]{1,8}", text)
    return int(found[0], 16) if found else 0


def _time(text: str) -> int:
    """Return seconds since 1970; the host's zone is unknown, so times are taken as UTC."""
    try:
        moment = datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return int(moment.timestamp())


def _events(text: str) -> int:
    """Return the count; old versions of mdadm print 0.90's as ``high.low``."""
    high, dot, low = text.partition(".")
    return (_first(high) << 32) + _first(low) if dot else _first(high)


def _chunk(text: str) -> int:
    found = re.match(r"(\d{1,12})([KMG]?)", text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def _layout(text: str, level: int) -> int:
    if level != 10:
        return _LAYOUTS.get(text, 0)
    words: dict[str, str] = dict(re.findall(r"(near|far|offset)=(\d{1,3})", text))
    near, far = int(words.get("near", 1)), int(words.get("far", words.get("offset", 1)))
    return near | far << 8 | (1 << 16 if "offset" in words else 0)


def _role(facts: dict[str, str], body: str, *, old: bool) -> tuple[int, int]:
    if old:
        this = _THIS.search(body)
        if this is None:
            return sb.SPARE, 0
        active = "active sync" in this[3]
        return (int(this[2]) if active else sb.SPARE), int(this[1])
    text = facts.get("Device Role", "")
    if found := _ROLE.match(text):
        return min(int(found[2]), sb.FAULTY), 0
    return {"Journal": sb.JOURNAL, "Faulty": sb.FAULTY}.get(text.strip().capitalize(), sb.SPARE), 0


def _roles(state: str, body: str, *, old: bool) -> tuple[int, ...]:
    if old:
        return tuple(int(slot) for _, slot in _SLOT.findall(body))
    letters = state.partition(" ")[0]
    return tuple(slot for slot, letter in enumerate(letters) if letter in "AR")


def _reshape(facts: dict[str, str], level: int) -> Reshape | None:
    position = facts.get("Reshape pos'n", "")
    if not position:
        return None
    delta = _first(facts.get("Delta Devices", "0"))
    new = _LEVELS_ALL.get(facts.get("New Level", ""), level)
    moved = 0
    if "New Offset" in facts:
        moved = _first(facts["New Offset"]) - _first(facts.get("Data Offset", ""))
    return Reshape(
        position=_first(position) * 1024,
        new_level=new,
        delta_disks=delta,
        new_layout=_layout(facts.get("New Layout", facts.get("Layout", "")), new),
        new_chunk=_chunk(facts.get("New Chunksize", facts.get("Chunk Size", ""))),
        backwards=delta < 0,
        new_offset=moved * SECTOR,
    )
