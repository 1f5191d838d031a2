"""Makes the answer: what happened, what to do, which commands write what. Pure.

The commands are for a person. The lab never runs them on real disks.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

from lab.capabilities.rescue.logic.diagnosis import level_name, named
from lab.capabilities.rescue.model import (
    FORMAT,
    Diagnosis,
    Extent,
    Outcome,
    Part,
    Ranked,
    Report,
    Step,
    Weight,
)
from lab.core.units import MIB, format_size

_EDGE: Final = 256
"""MiB at each end of a disk that are saved first: superblocks, bitmaps, the data's beginning."""
_SMALL: Final = 4 * MIB
"""More bytes than superblocks, bitmaps and bad-block logs take: the attempt has changed data."""


def report(diagnosis: Diagnosis, ranking: Sequence[Ranked], *, attempted: bool = True) -> Report:
    """Return the answer in sentences with the users' names of the disks.

    ``attempted``: whether attempts were wanted; without them nothing is said about hope.
    """
    name = names(diagnosis)
    happened = tuple(named(finding.sentence, name) for finding in diagnosis.findings)
    best = ranking[0].outcome if ranking else None
    hopeless = _hopeless(diagnosis, best) if attempted else ""
    return Report(
        diagnosis=diagnosis,
        ranking=tuple(ranking),
        happened=happened,
        steps=tuple(_steps(diagnosis, best, name))
        if best and not hopeless
        else tuple(_first(diagnosis)),
        at_risk=tuple(_risks(best, name)) if best and not hopeless else (),
        hopeless=hopeless,
    )


def names(diagnosis: Diagnosis) -> Callable[[str], str]:
    """Return what turns ``a`` into the path that the user gave."""
    paths = {part.name: part.path for part in diagnosis.parts}
    return lambda name: paths.get(name, name)


def _hopeless(diagnosis: Diagnosis, best: Outcome | None) -> str:
    if best is not None and best.works:
        return ""
    firmware = next((part.foreign for part in diagnosis.parts if part.foreign), "")
    if firmware:
        return "The disks are of a firmware RAID, and no attempt is made with those."
    missing = [finding for finding in diagnosis.findings if finding.kind == "missing"]
    if missing and missing[0].weight is Weight.DANGER:
        return (
            "Nothing helps with these disks alone: too many members are missing. Find them first."
        )
    if best is None:
        return "There is no attempt to make: nothing on the disks says how the array was."
    return "No attempt gave a readable file system. Write nothing to the disks."


def _first(diagnosis: Diagnosis) -> list[Step]:
    """Return what comes before every command."""
    steps = [
        Step(
            text="Do not run mdadm --create, --grow, --add, --zero-superblock or fsck on the disks."
            " Do not format. Each of them can destroy what is still there."
        ),
        Step(
            text="If a disk has read errors, copy it with ddrescue to a new disk first, and go on"
            " with the copy and its map file.",
            command="ddrescue -d OLD-DISK NEW-DISK OLD-DISK.map",
            writes="the new disk",
        ),
    ]
    for part in diagnosis.parts:
        name, source = part.path.rsplit("/", 1)[-1], shlex.quote(_whole(part))
        size = (part.at + part.size) // MIB
        for word, skip in (("head", 0), ("tail", max(0, size - _EDGE))):
            target = f"{name}.{word}".replace(" ", "-")
            steps.append(
                Step(
                    text=f"Save the {'first' if word == 'head' else 'last'} {_EDGE} MiB of "
                    f"{part.path}, to a disk that is not one of these.",
                    command=f"dd if={source} of={shlex.quote(target)} bs=1M skip={skip} "
                    f"count={_EDGE + 1}",
                    writes=f"the file {target}",
                )
            )
    return steps


def _steps(diagnosis: Diagnosis, best: Outcome | None, name: Callable[[str], str]) -> list[Step]:
    assert best is not None
    attempt = best.attempt
    steps = _first(diagnosis)
    parts = {part.name: part for part in diagnosis.parts}
    steps.append(
        Step(
            text="The safest way ends here: copy the files out of the attempt, which writes nothing"
            " to the disks.",
            command="lab rescue --copy-to DIRECTORY "
            + " ".join(
                shlex.quote(path) for path in dict.fromkeys(_whole(parts[p]) for p in parts)
            ),
            writes="the directory",
        )
    )
    devices: dict[str, str] = {}
    for part in parts.values():
        devices[part.name] = shlex.quote(part.path)
    for key in attempt.parts:
        part = parts[key]
        if part.at and " at byte " in part.path:
            devices[key] = f"$part_{key}"
            disk = shlex.quote(_whole(part))
            steps.append(
                Step(
                    text=f"The partition table of {_whole(part)} is lost. Map its partition.",
                    command=f"part_{key}=$(losetup --find --show --offset {part.at} --sizelimit "
                    f"{part.size} {disk})",
                    writes="nothing",
                )
            )
    devices["backup"] = "BACKUP-FILE"
    total = sum(e.length for extents in best.written.values() for e in extents)
    if attempt.moves_data or total > _SMALL:
        for key in attempt.parts:
            steps.append(
                Step(
                    text="The next mdadm command changes data and cannot be undone. Run it on"
                    f" copies only: copy all of {parts[key].path} to a disk that is not smaller.",
                    command=f"ddrescue -d -f {devices[key]} COPY-{key} COPY-{key}.map",
                    writes=f"the disk COPY-{key}, all of it",
                )
            )
            devices[key] = f"COPY-{key}"
    for command in attempt.commands:
        measured = ", ".join(
            f"{name(key)}: {_extents(best.written.get(key, ()))}" for key in attempt.parts
        )
        what = attempt.writes or "nothing on purpose"
        steps.append(
            Step(
                text=f"{attempt.title[:1].upper()}{attempt.title[1:]}.".replace("{", "").replace(
                    "}", ""
                ),
                command=named(command, lambda key: devices.get(key, key)),
                writes=f"{what}. In the attempt: {measured}" if total else "nothing, as measured",
            )
        )
    steps.append(
        Step(
            text="Look at the file system without writing, and copy the files to other disks.",
            command=_mount(best),
            writes="nothing to the file system",
        )
    )
    steps.append(
        Step(
            text="Only when all files are copied and compared: start the array for writing, repair"
            " the file system, add the missing members. Until then, stop it again.",
            command="umount /mnt; mdadm --stop /dev/md127",
            writes="nothing",
        )
    )
    return steps


def _whole(part: Part) -> str:
    """Return the path of the disk of a part."""
    if " at byte " in part.path:
        return part.path.partition(" at byte ")[0]
    return part.path


def _mount(best: Outcome) -> str:
    if "luks" in best.layers:
        return (
            "cryptsetup open --readonly /dev/md127 rescued && mount -o ro,noload"
            " /dev/mapper/rescued /mnt"
        )
    if "lvm" in best.layers:
        return "vgchange -ay; lvs; mount -o ro,noload /dev/VOLUME-GROUP/VOLUME /mnt"
    option = {"xfs": "ro,norecovery", "btrfs": "ro,rescue=nologreplay"}.get(
        next((layer for layer in best.layers), ""), "ro,noload"
    )
    return f"mount -o {option} /dev/md127 /mnt"


def _extents(extents: Sequence[Extent]) -> str:
    if not extents:
        return "nothing"
    total = sum(extent.length for extent in extents)
    first = ", ".join(f"bytes {e.at} to {e.at + e.length - 1}" for e in extents[:3])
    more = f", and {len(extents) - 3} more ranges" if len(extents) > 3 else ""
    return f"{format_size(total)} ({first}{more})"


def _risks(best: Outcome, name: Callable[[str], str]) -> list[str]:
    found = []
    if best.attempt.uses_stale:
        which = ", ".join(name(part) for part in best.attempt.uses_stale)
        found.append(f"What was written after {which} failed may be lost or torn.")
    if best.attempt.fallback and best.attempt.why:
        found.append(f"{best.attempt.why[:1].upper()}{best.attempt.why[1:]}.")
    if best.fsck_errors:
        found.append("fsck finds errors: some files may be corrupt.")
    if best.unreadable:
        found.append(f"{best.unreadable} files or directories cannot be read in full.")
    if best.mismatches:
        found.append(
            f"{best.mismatches:.1%} of the sampled rows contradict themselves: their data or parity"
            " is wrong."
        )
    return found


# -- texts


def as_text(answer: Report) -> str:
    """Return the answer for a terminal."""
    name = names(answer.diagnosis)
    lines = ["What happened", *(f"  - {sentence}" for sentence in answer.happened), ""]
    if answer.ranking:
        lines.append("Attempts, in guests; the disks were only read")
        for number, ranked in enumerate(answer.ranking, 1):
            outcome = ranked.outcome
            lines.append(f"  {number}. {named(outcome.attempt.title, name)}")
            lines.append(f"     {named('; '.join(ranked.reasons), name)}")
        lines.append("")
    if answer.hopeless:
        lines += [answer.hopeless, ""]
    for risk in answer.at_risk:
        lines.append(f"At risk: {risk}")
    lines += ["", "What to do, in this order. The lab runs none of it."]
    for number, step in enumerate(answer.steps, 1):
        lines.append(f"  {number}. {step.text}")
        if step.command:
            lines.append(f"     # {step.command}")
            lines.append(f"     writes: {step.writes}")
    return "\n".join(lines) + "\n"


def as_mail(answer: Report) -> str:
    """Return a text for linux-raid: complete and short, without serial numbers."""
    short = {part.name: f"disk-{part.name}" for part in answer.diagnosis.parts}
    tried = ", and tried to start the array on overlays" if answer.ranking else ""
    lines = [f"lab rescue read these disks{tried}.", ""]
    for part in answer.diagnosis.parts:
        lines.append(f"{short[part.name]}: {format_size(part.size)}{_serial(part.path)}")
        for block in part.superblocks:
            role = f"role {block.role}" if block.is_member else "no role"
            lines.append(
                f"  {block.version} {level_name(block.level)} of {block.raid_disks}, {role}, events"
                f" {block.events}, data offset {block.data_offset // 512}s, chunk"
                f" {block.chunk // 1024}K, layout {block.layout}, checksum"
                f" {'right' if block.checksum_ok else 'WRONG'}"
            )
    lines.append("")
    lines += [
        f"- {named(f.sentence, lambda key: short.get(key, key))}" for f in answer.diagnosis.findings
    ]
    lines.append("")
    for number, ranked in enumerate(answer.ranking, 1):
        commands = "; ".join(ranked.outcome.attempt.commands)
        lines.append(f"{number}. {named(commands, lambda key: short.get(key, key))}")
        lines.append(f"   {'; '.join(ranked.reasons)}")
    if answer.hopeless:
        lines.append(answer.hopeless)
    return "\n".join(lines) + "\n"


def _serial(path: str) -> str:
    """Return the end of a serial number in a stable name, as ``(…1234)``."""
    name = path.rsplit("/", 1)[-1]
    return f" (…{name[-4:]})" if "by-id" in path else ""


def as_document(answer: Report) -> dict[str, Any]:
    """Return the answer as JSON's types, without contents of files."""
    document = _plain(dataclasses.asdict(answer))
    for ranked in document["ranking"]:
        ranked["outcome"].pop("hashes", None)
        ranked["outcome"]["works"] = False
    for ranked, given in zip(document["ranking"], answer.ranking, strict=True):
        ranked["outcome"]["works"] = given.outcome.works
    return {"format": FORMAT, **document}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    return value
