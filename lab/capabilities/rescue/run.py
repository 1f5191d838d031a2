"""Carries out a rescue: opens inputs, reads them, tries attempts in guests, and judges them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lab.capabilities.rescue.logic import (
    arrangement,
    attempts,
    diagnosis,
    drills,
    examine,
    judge,
    parity,
    repair,
    superblocks,
)
from lab.capabilities.rescue.logic.drills import Drill
from lab.capabilities.rescue.maps import unread_of
from lab.capabilities.rescue.model import Attempt, Diagnosis, Extent, Outcome, Part, Report
from lab.core import qemu_img, regular
from lab.core.errors import GuestError, HostError, InputError, LimitError, TroubleError
from lab.core.qemu_img import QCOW2
from lab.core.units import GIB, MIB, format_size
from lab.host.guest import overlays
from lab.host.images import store
from lab.host.real_disks import inputs, refusals
from lab.host.real_disks.inputs import Input
from lab.host.system import files, leftovers, paths, process, unfinished
from lab.model.image.manifest import Image

IMAGE: Final = "rescue"
_COW: Final = 4 * GIB
"""Size of the sparse disk that takes the writes above the array: journals that are replayed."""
_MEMORY: Final = 768
_BATCH: Final = 8
"""Attempts in one guest; those that a crash leaves out are tried again, one in a guest."""
_SECONDS: Final = 3600.0
Say = Callable[[str], None]
MOST: Final = attempts.MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asks for."""

    backup: Path | None = None
    passphrase: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    copy_to: Path | None = None
    only: int = attempts.MOST
    sector: int = 512
    image: str = IMAGE
    """Guest image: its kernel and mdadm make the attempts."""
    maps: Mapping[str, Path] = field(default_factory=dict)


def image(name: str) -> Image:
    """Return the guest image; ``InputError``: it was not built yet."""
    found = store.find_newest(name)
    if found is None:
        raise InputError(
            f"the image '{name}' is not built yet", hint=f"build it: lab image build {name}"
        )
    return found


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Make a directory that `lab clean` removes if this process is killed."""
    files.make_directory(paths.sealed())
    place = unfinished.name(paths.sealed() / "rescue")
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        leftovers.discard(place)


@contextlib.contextmanager
def opened(given: Sequence[Path], work: Path) -> Iterator[list[Input]]:
    """Open all inputs for reading only; at the end, none may have changed."""
    found: list[Input] = []
    try:
        for path in given:
            found.append(inputs.open_input(path, work, leases_place()))
        yield found
        for disk in found:
            if sentence := disk.changed():
                raise TroubleError(
                    f"{sentence}: what was found may be wrong",
                    hint="stop what writes to it, and run the rescue again",
                )
    finally:
        for disk in found:
            disk.close()


def leases_place() -> Path:
    """Return the directory of leases that all users of this host share."""
    return refusals.LEASES


def read(disks: Sequence[Input], options: Options) -> Diagnosis:
    """Return the diagnosis from superblocks and signatures."""
    found: list[Part] = []
    for number, disk in enumerate(disks):
        holes = unread_of(options.maps.get(str(disk.path)) or _map_of(disk.path), disk.size)
        name = letters(number)
        found += diagnosis.parts_of(number, name, str(disk.path), disk.size, disk.read, holes)
    return diagnosis.diagnose(found)


def letters(number: int) -> str:
    """Return ``a`` to ``z``, then ``aa``, …"""
    text = ""
    while number >= 0:
        text = chr(97 + number % 26) + text
        number = number // 26 - 1
    return text


def _map_of(path: Path) -> Path | None:
    """Return ddrescue's map next to an image, under one of the usual names."""
    for name in (
        f"{path.name}.map",
        f"{path.name}.mapfile",
        f"{path.stem}.map",
        f"{path.name}.log",
    ):
        if (place := path.with_name(name)).is_file():
            return place
    return None


def readers(disks: Sequence[Input], parts: Sequence[Part]) -> dict[str, arrangement.Reader]:
    """Return a reader for each part by name."""

    def of(part: Part) -> arrangement.Reader:
        disk = disks[part.disk]

        def inner(offset: int, length: int) -> bytes:
            if not 0 <= offset < part.size:
                return b""
            return disk.read(part.at + offset, min(length, part.size - offset))

        return inner

    return {part.name: of(part) for part in parts}


def rescue(given: Sequence[Path], options: Options, say: Say) -> Report:
    """Diagnose, try and judge."""
    with workspace() as work, opened(given, work) as disks:
        say(f"reading {len(disks)} disks")
        found = read(disks, options)
        chosen = attempts.choose(found, backup=options.backup is not None)[: options.only]
        outcomes = tried(disks, found, chosen, options, work, say) if chosen else []
        ranking = judge.rank(outcomes)
        if not judge.is_sound(ranking) and options.only:
            say("searching the data for the array's arrangement")
            found = diagnosis.arranged(
                found, arrangement.search(found, readers(disks, found.parts))
            )
            created = attempts.created(found.arrangements)[: options.only]
            outcomes += tried(disks, found, created, options, work, say) if created else []
            ranking = judge.rank(outcomes)
        if options.copy_to is not None and ranking and ranking[0].outcome.mounted:
            say("copying the files out of the best attempt")
            _copied(disks, found, ranking[0].outcome.attempt, options, work)
        return repair.report(found, ranking, attempted=options.only > 0)


def tried(
    disks: Sequence[Input],
    found: Diagnosis,
    chosen: Sequence[Attempt],
    options: Options,
    work: Path,
    say: Say,
) -> list[Outcome]:
    """Return the outcome of each attempt."""
    guest = image(options.image)
    waiting = list(enumerate(chosen, 1))
    done: dict[int, Outcome] = {}
    alone = False
    while waiting:
        size = 1 if alone else _BATCH
        batch, waiting = waiting[:size], waiting[size:]
        say(f"trying {len(batch)} of {len(chosen)} ways in a guest")
        finished = _batch(guest, disks, found, batch, options, work)
        done |= finished
        left = [item for item in batch if item[0] not in finished]
        if left and len(batch) > 1:
            alone, waiting = True, [*left, *waiting]
        else:
            for number, attempt in left:
                done[number] = Outcome(attempt=attempt, ran=False)
    reads = readers(disks, found.parts)
    return [
        replace(
            outcome,
            mismatches=parity.mismatches(outcome.attempt, found, reads),
            expected_wrong=tuple(
                path
                for path, digest in options.hashes.items()
                if outcome.mounted and outcome.hashes.get(path) != digest
            ),
        )
        for _, outcome in sorted(done.items())
    ]


def _batch(
    guest: Image,
    disks: Sequence[Input],
    found: Diagnosis,
    batch: Sequence[tuple[int, Attempt]],
    options: Options,
    work: Path,
    copy: Path | None = None,
) -> dict[int, Outcome]:
    """Try some attempts in one guest; those that it did not finish are absent."""
    parts = {part.name: part for part in found.parts}
    place = unfinished.name(work / "guest")
    place.mkdir()
    try:
        drives = []
        for target, attempt in batch:
            for lun, name in enumerate(attempt.parts):
                path = place / f"{target}-{lun}.{QCOW2}"
                number = parts[name].disk
                size = (
                    -(-disks[number].size // 4096) * 4096
                    if options.sector == 4096
                    else disks[number].size
                )
                overlays.overlay(path, size)
                drives.append(
                    overlays.Drive(
                        target=target, lun=lun, path=path, base=number, sector=options.sector
                    )
                )
        more = {"cow": place / "cow"}
        _sparse(more["cow"], _COW)
        length = 0
        if options.backup is not None:
            length = options.backup.stat().st_size
            shutil.copyfile(options.backup, place / "backup")
            _sparse(place / "backup", -(-length // 4096) * 4096)
            more["backup"] = place / "backup"
        if copy is not None:
            more["out"] = copy
        secret = options.passphrase.encode()
        script = attempts.script(
            batch, parts, passphrase=len(secret), backup=length, copy=copy is not None
        )
        bases = [
            overlays.Base(
                descriptor=disk.descriptor,
                block_device=disk.device is not None,
            )
            for disk in disks
        ]
        secrets = {"passphrase": files.in_memory(secret)} if secret else {}
        try:
            told = overlays.run(
                guest,
                script,
                bases=bases,
                drives=drives,
                work=place,
                seconds=_SECONDS,
                memory=_MEMORY,
                more=more,
                descriptors=secrets,
            )
        except (GuestError, LimitError) as error:
            if len(batch) > 1:
                return {}
            (number, attempt) = batch[0]
            return {number: Outcome(attempt=attempt, ran=False, log=error.message)}
        finally:
            for descriptor in secrets.values():
                os.close(descriptor)
        return {
            target: replace(
                attempts.outcome(attempt, told[f"a{target}"].status, told[f"a{target}"].output),
                written=_written(attempt, target, parts, place),
            )
            for target, attempt in batch
            if f"a{target}" in told
        }
    finally:
        leftovers.discard(place)


def _sparse(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.truncate(size)


def _written(
    attempt: Attempt, target: int, parts: Mapping[str, Part], place: Path
) -> dict[str, tuple[Extent, ...]]:
    """Return which bytes of each part are in its overlay."""
    written = {}
    for lun, name in enumerate(attempt.parts):
        told = process.run(
            qemu_img.extents(place / f"{target}-{lun}.{QCOW2}", QCOW2), timeout=120
        ).stdout
        # An allocated cluster of zeros was written too: `data` is false, `present` true.
        found = [
            Extent(at=int(part["start"]) - parts[name].at, length=int(part["length"]))
            for part in json.loads(told)
            if part.get("present", part["data"]) and part["depth"] == 0
        ]
        written[name] = tuple(found)
    return written


def _copied(
    disks: Sequence[Input], found: Diagnosis, attempt: Attempt, options: Options, work: Path
) -> None:
    """Unpack the attempt's files into the user's directory."""
    assert options.copy_to is not None
    if options.copy_to.exists() and any(options.copy_to.iterdir()):
        raise InputError(f"--copy-to: '{options.copy_to}' is not empty")
    out = work / "out.tar"
    _sparse(out, sum(disk.size for disk in disks))
    _batch(image(options.image), disks, found, [(1, attempt)], options, work, copy=out)
    files.make_directory(options.copy_to)
    words = (*unable(), *UNTAR, "-f", str(out), "-C", str(options.copy_to))
    process.run(words, timeout=7200)


UNTAR: Final = ("tar", "-x", "--no-same-owner", "--no-same-permissions")
"""GNU tar as an ordinary user's program: it refuses names that leave the directory."""


def unable() -> tuple[str, ...]:
    """Return what makes a program of root's unable to make devices, such as this host's disks."""
    return ("setpriv", "--bounding-set=-mknod", "--") if os.geteuid() == 0 else ()


EXAMINED: Final = 4 * MIB
"""Most bytes of all outputs of ``mdadm --examine``; an array's 384 members (``md_p.h``) have about
1 MiB."""


def examined(directory: Path) -> Report:
    """Return the answer from outputs of ``mdadm --examine``; there are no attempts."""
    found: dict[str, superblocks.Superblock] = {}
    left = EXAMINED
    try:
        names = sorted(path for path in directory.iterdir() if path.is_file())
        for path in names:
            left -= path.stat().st_size
            if left < 0:
                raise InputError(
                    f"--examine: the files in '{directory}' have more than {format_size(EXAMINED)}",
                    hint="leave only outputs of mdadm --examine there, one of each member",
                )
            text = regular.read(path, EXAMINED).decode(errors="replace")
            for device, block in examine.parse(text).items():
                found[device if device not in found else f"{path.name}:{device}"] = block
    except OSError as error:
        raise InputError(f"--examine: '{directory}' cannot be read: {error.strerror}") from error
    if not found:
        raise InputError(
            f"--examine: no file in '{directory}' has the output of mdadm --examine",
            hint="for each member: mdadm --examine /dev/sdX1 > DIR/sdX1.txt",
        )
    parts = [
        Part(
            disk=number,
            name=letters(number),
            path=device,
            size=block.data_offset + max(block.data_size, block.size),
            superblocks=(block,),
        )
        for number, (device, block) in enumerate(sorted(found.items()))
    ]
    return repair.report(diagnosis.diagnose(parts), [], attempted=False)


def known_hashes(path: Path) -> dict[str, str]:
    """Return SHA-256 by path, from the output of sha256sum."""
    try:
        lines = regular.read(path, 64 * MIB).decode(errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"--hashes: '{path}' cannot be read: {error.strerror}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        digest, gap, name = line.partition("  ")
        if not gap or len(digest) != 64:
            raise InputError(f"{path}:{number}: expected 'SHA256  PATH', as sha256sum prints it")
        found[name.removeprefix("./")] = digest
    return found


# -- drills


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """A drill's images, and what is known of it."""

    drill: Drill
    seed: int
    images: tuple[Path, ...]
    backup: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Whether the first-ranked attempt brings back what can be brought back."""

    report: Report
    right: int
    wrong: tuple[str, ...]
    """Paths that it lacks or has with other contents."""
    hopeless: bool

    @property
    def passed(self) -> bool:
        if self.hopeless:
            return bool(self.report.hopeless)
        return not self.wrong and self.right > 0 and not self.report.hopeless


def practice(name: str, seed: int, place: Path, say: Say, guest: str = IMAGE) -> Practice:
    """Make a drill's images in a directory."""
    if name not in drills.DRILLS:
        raise InputError(f"there is no drill '{name}'", hint=f"drills: {', '.join(drills.DRILLS)}")
    drill = drills.DRILLS[name](seed)
    files.make_directory(place)
    with workspace() as work:
        more = {"files": work / "files.raw", "keep": work / "keep.raw"}
        files.write(more["files"], drills.archive(seed))
        _sparse(more["keep"], 32 << 20)
        drives = []
        for member in range(drill.members):
            path = work / f"member-{member}.raw"
            _sparse(path, drill.size)
            drives.append(overlays.Drive(target=1, lun=member, path=path, sector=drill.sector))
        library = f"cat >/tmp/lib <<'LIB'\n{drills.PRELUDE}LIB\n"
        quoted = drill.script.replace("'", "'\\''")
        # `disk` is a function of the outer shell; the script runs in it, as an item would.
        names = "; ".join(f"echo d{n}=$(disk 1 {n})" for n in range(drill.members))
        script = f"{library}({names}) >>/tmp/lib\nitem made 900 '{quoted}'"
        say(f"making the drill '{name}' with seed {seed}")
        told = overlays.run(image(guest), script, drives=drives, work=work, seconds=1200, more=more)
        if "made" not in told or told["made"].status:
            why = told["made"].output[-1500:] if "made" in told else "it did not end"
            raise HostError(f"the drill '{name}' could not be made: {why}")
        return _kept(drill, seed, work, place)


def _kept(drill: Drill, seed: int, work: Path, place: Path) -> Practice:
    """Change bytes as the accident would, and move the images to their place."""
    dice = random.Random(seed)  # noqa: S311
    holes: dict[int, list[tuple[int, int]]] = {}
    for change in drill.changes:
        path = work / f"member-{change.member}.raw"
        at = change.at if change.at >= 0 else drill.size + change.at
        with path.open("r+b") as file:
            file.seek(at)
            file.write(dice.randbytes(change.length) if change.random else bytes(change.length))
        if change.unread:
            holes.setdefault(change.member, []).append((at, change.length))
    images = []
    for number, member in enumerate(drills.order(drill, seed), 1):
        target = place / f"disk-{number}.raw"
        files.move(work / f"member-{member}.raw", target)
        images.append(target)
        if member in holes:
            rows, at = ["# Mapfile of a drill", "0x0 + 1"], 0
            for begin, length in sorted(holes[member]):
                rows += [f"{at:#x} {begin - at:#x} +", f"{begin:#x} {length:#x} -"]
                at = begin + length
            rows.append(f"{at:#x} {drill.size - at:#x} +")
            files.write(place / f"disk-{number}.raw.map", "\n".join(rows) + "\n")
    backup = None
    if drill.backup:
        backup = place / "backup-file"
        words = ("debugfs", "-R", f"dump /backup {backup}", str(work / "keep.raw"))
        process.run(words, timeout=60)
        if not backup.exists():
            raise HostError("the drill's backup file could not be read")
    sums = drills.expected_hashes(drill, seed)
    files.write(place / "SHA256SUMS", "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)))
    return Practice(drill=drill, seed=seed, images=tuple(images), backup=backup)


def graded(name: str, seed: int, place: Path, say: Say) -> Graded:
    """Make a drill, rescue it, and compare the first-ranked attempt's files with the known ones."""
    made = practice(name, seed, place, say)
    options = Options(
        backup=made.backup, passphrase=made.drill.passphrase, sector=made.drill.sector
    )
    found = rescue(made.images, options, say)
    expected = drills.expected_hashes(made.drill, seed)
    best = found.ranking[0].outcome if found.ranking else None
    have = best.hashes if best is not None else {}
    wrong = tuple(path for path, digest in expected.items() if have.get(path) != digest)
    return Graded(
        report=found,
        right=len(expected) - len(wrong),
        wrong=wrong,
        hopeless=not expected,
    )


def wipe(place: Path) -> None:
    """Remove a drill's images."""
    for path in place.glob("disk-*.raw*"):
        path.unlink()
