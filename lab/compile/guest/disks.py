"""A cell's disks as steps: new files, or the previous cell's disks, wiped.

In an emulated guest, unplugging five disks costs 1.2 s of CPU time, plugging five in 1.3 s, wiping
them 0.2 s (measured, TCG, one virtual CPU). A wiped disk is checked twice: its file on the host,
and both its ends in the guest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from lab.compile.guest.real_disks import EDGE, blank_step, erasable, pass_step
from lab.compile.guest.suite_steps import searches_disks
from lab.compile.guest.virtual_time import is_sealed, seal
from lab.model.execution.procedure import (
    AttachDisk,
    DetachDisk,
    HostCommand,
    Step,
    Verify,
    WipeDisk,
)
from lab.model.plugin import Standing
from lab.model.scenario.document import SERVED, CacheMode, Cell, Disk, Sectors
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.plugins.disks._drives import control_path, guest_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """Data disks plugged into a guest."""

    disks: tuple[tuple[int, str, Disk], ...] = ()
    """Slot from 1, serial and configuration of each."""
    written: frozenset[str] = frozenset()
    """Serials of disks that may have been written to."""


NO_DISKS: Final = Plugged()
SPARE: Final = 8
"""Most spare disks in a cell's snapshot. Each costs 0.03 s per restore, and 0.45 s of emulated CPU
time if it has to be plugged in for a later cell."""


def disk_files(plugged: Plugged, guest_directory: str) -> tuple[HostCommand, ...]:
    """Return the steps that make the files of disks that a restored guest has."""
    directory = PurePosixPath(guest_directory) / "disks"
    return tuple(
        command.model_copy(update={"lasting": True})
        for _, serial, disk in plugged.disks
        for command in catalog.disk_model(disk.model).create(
            disk, str(directory / f"{serial}.{disk.format.value}")
        )
        if isinstance(command, HostCommand)  # a plain disk has no other steps
    )


def disk_steps(
    cell: Cell,
    guest_directory: str,
    plugged: Plugged | None,
    erase: Sequence[str] = (),
    *,
    keep_spare: bool = False,
    seed: int = 1,
) -> tuple[Step, ...]:
    """Replace the plugged disks with the cell's, all blank, and verify them.

    ``plugged`` is ``None``: the guest has none, and the cell's are unplugged at its end. Otherwise
    they stay for the next cell; with ``keep_spare`` other cells' disks stay too, blank. ``erase``:
    serials of real disks that may be written to; other real disks keep their data. Real disks never
    stay. ``seed``: seed of the trial, in virtual time.
    """
    if is_sealed(cell):
        return (seal(cell, seed), _read_back("disks", cell.each_disk, blank=True))
    directory = PurePosixPath(guest_directory) / "disks"
    real = [(s, d) for s, d in cell.each_disk if d.device is not None]
    own = [guest_path(disk, serial) for serial, disk in real if erasable(disk, erase)]
    kept = [serial for serial, disk in real if not erasable(disk, erase)]
    spare = spares(cell, plugged or NO_DISKS) if keep_spare else NO_DISKS
    return (
        *_changes(cell, directory, plugged, spare, erase),
        *([blank_step(own)] if own else []),
        _read_back("disks", cell.each_disk, blank=True, but=kept, wiped=spare),
    )


def _changes(
    cell: Cell,
    directory: PurePosixPath,
    plugged: Plugged | None,
    spare: Plugged,
    erase: Sequence[str],
) -> Iterator[Step]:
    def of(disks: Sequence[tuple[int, str, Disk]]) -> dict[str, tuple[Disk, str, str]]:
        found = {}
        for index, serial, disk in disks:
            path = str(directory / f"{serial}.{disk.format.value}")
            xml = catalog.disk_model(disk.model).xml(disk, serial=serial, path=path, index=index)
            found[serial] = (disk, path, xml)
        return found

    there = of(plugged.disks if plugged else ())
    staying = of(spare.disks)
    wanted = of(_slots(cell))
    fitting = {s for s in there.keys() & wanted.keys() if _alike(there[s], wanted[s])}
    if cell.faults:  # a fault may change its disks, so they are removed with the cell
        fitting = set()
    for serial, (_, path, xml) in there.items():
        if serial not in fitting and serial not in staying:
            yield DetachDisk(serial=serial, xml=xml, path=path)
    for serial, (disk, path, _) in staying.items():
        if serial in spare.written:
            yield WipeDisk(serial=serial, path=path, size=disk.size)
    for serial, (disk, path, xml) in wanted.items():
        if disk.device is not None:
            yield pass_step(disk, serial, xml, erase)
            continue
        if serial in fitting:
            if plugged and serial in plugged.written:
                yield WipeDisk(serial=serial, path=path, size=disk.size)
            continue
        model = catalog.disk_model(disk.model)
        lasting = plugged is not None and model.plain and not cell.faults
        for step in model.create(disk, path):
            if isinstance(step, HostCommand):
                yield step.model_copy(update={"lasting": lasting})
            else:
                yield step
        yield AttachDisk(
            serial=serial, xml=xml, xml_path=str(directory / f"{serial}.xml"), lasting=lasting
        )


def _alike(there: tuple[Disk, str, str], wanted: tuple[Disk, str, str]) -> bool:
    """Return whether a disk can be reused; size and preallocation are not in libvirt's XML."""
    return there == wanted


def lasting(cell: Cell) -> Plugged:
    """Return the cell's own disks that it leaves plugged in."""
    if cell.faults or is_sealed(cell):
        return NO_DISKS
    files = (slot for slot in _slots(cell) if slot[2].device is None)
    disks = tuple(s for s in files if catalog.disk_model(s[2].model).plain)
    return Plugged(disks=disks, written=frozenset(serial for _, serial, _ in disks))


def spares(cell: Cell, plugged: Plugged) -> Plugged:
    """Return other cells' disks that may stay plugged in during a cell that does not use them.

    None with faults, suites and commands, which may search for disks. None of a throttle group
    either: its limits are those of the disk that was plugged in last.
    """
    if cell.faults or searches_disks(cell.workloads):
        return NO_DISKS
    slots, serials = {s[0] for s in _slots(cell)}, {s[1] for s in _slots(cell)}
    disks = tuple(
        (index, serial, disk)
        for index, serial, disk in plugged.disks
        if index not in slots and serial not in serials and disk.throttle.group is None
    )
    return Plugged(disks=disks, written=plugged.written & {serial for _, serial, _ in disks})


def left_by(cell: Cell, plugged: Plugged) -> Plugged:
    """Return the disks in a guest after a cell: the cell's own and the spare, blank ones."""
    own = lasting(cell)
    return Plugged(disks=own.disks + spares(cell, plugged).disks, written=own.written)


def widest(cells: Iterable[Cell]) -> dict[tuple[Guest, Plugged], Cell]:
    """Return for each guest and set of disks the cell whose disks its snapshot has.

    That cell has all disks of the set and the most others, up to ``SPARE``. If no other cell has
    them all, it is one with exactly that set.
    """
    sorts: dict[tuple[Guest, Plugged], Cell] = {}
    for cell in cells:
        sorts.setdefault((cell.guest, lasting(cell)), cell)
    found = {}
    for (guest, own), cell in sorts.items():
        room = range(1, SPARE + 1) if own.disks else range(0)
        wider = [
            (len(plugged.disks), candidate)
            for (other, plugged), candidate in sorts.items()
            if other == guest
            and len(plugged.disks) - len(own.disks) in room
            and set(own.disks) <= set(plugged.disks)
        ]
        found[guest, own] = max(wider, key=lambda w: w[0])[1] if wider else cell
    return found


def _slots(cell: Cell) -> list[tuple[int, str, Disk]]:
    """Return each disk's slot, its serial, and its configuration with count 1."""
    return [
        (index, serial, disk if disk.count == 1 else disk.model_copy(update={"count": 1}))
        for index, (serial, disk) in enumerate(cell.each_disk, 1)
    ]


def standing(cell: Cell, guest_directory: str) -> tuple[Standing, ...]:
    """Return each of a cell's disks for faults, in order."""
    directory = PurePosixPath(guest_directory) / "disks"
    found = []
    for index, serial, disk in _slots(cell):
        path = str(directory / f"{serial}.{disk.format.value}")
        found.append(
            Standing(
                serial=serial,
                disk=disk,
                path=guest_path(disk, serial),
                xml=""
                if is_sealed(cell)
                else catalog.disk_model(disk.model).xml(
                    disk, serial=serial, path=path, index=index
                ),
                xml_path=str(directory / f"{serial}.xml"),
                control=control_path(path) if disk.model in SERVED else "",
                ready=_read_back(f"{serial} again", ((serial, disk),), blank=False),
            )
        )
    return tuple(found)


def _read_back(
    name: str,
    disks: Sequence[tuple[str, Disk]],
    *,
    blank: bool,
    but: Sequence[str] = (),
    wiped: Plugged = NO_DISKS,
) -> Verify:
    """Verify that every disk exists by its serial, with its size and scheduler.

    With ``blank`` also that the disks are blank, except those in ``but``: real disks that are only
    read. Cached pages of disks in ``wiped`` are dropped.

    Under emulation each process costs 0.01 s or more, so the shell uses builtins if possible.
    """
    paths = [guest_path(disk, serial) for serial, disk in disks]
    emptied = [guest_path(disk, serial) for serial, disk in disks if blank and serial not in but]
    wanted = " ".join(f"{serial}:{disk.scheduler}" for serial, disk in disks)
    lines = [
        "udevadm settle --timeout=30",
        f"for path in {' '.join(paths)}; do",
        '  tries=0; until [ -b "$path" ] || [ $tries -ge 100 ]',
        "  do sleep 0.1; tries=$((tries + 1)); done",
        "done",
        f"set -- {wanted}",
        f"for device in $(readlink -f {' '.join(paths)}); do",
        "  queue=/sys/block/${device##*/}/queue serial=${1%:*}",
        '  echo "${1##*:}" > "$queue/scheduler" || true',
        '  read -r sectors < "$queue/../size"; echo "$serial.bytes=$((sectors * 512))"',
        '  read -r schedulers < "$queue/scheduler"',
        '  chosen=${schedulers#*\\[}; echo "$serial.scheduler=${chosen%%\\]*}"',
        "  shift",
        "done",
        *_leftovers(emptied, [guest_path(d, s) for _, s, d in wiped.disks if s in wiped.written]),
    ]
    expect = {"leftovers": "0"} if emptied else {}
    for serial, disk in disks:
        expect[f"{serial}.bytes"] = str(disk.size)
        expect[f"{serial}.scheduler"] = disk.scheduler
        if disk.sectors is not Sectors.NATIVE_512:
            device = f"$(basename $(readlink -f {guest_path(disk, serial)}))"
            sizes = {"logical": disk.sectors.logical, "physical": disk.sectors.physical}
            for name, size in sizes.items():
                file = f"/sys/block/{device}/queue/{name}_block_size"
                lines.append(f'echo "{serial}.{name}_block_size=$(cat {file})"')
                expect[f"{serial}.{name}_block_size"] = str(size)
    for (serial, disk), path in zip(disks, paths, strict=True):
        rotational = catalog.disk_model(disk.model).rotational(disk)
        if rotational is None:
            continue
        # virtio-blk reports every disk as rotational, and md reads rotational disks differently.
        lines += [
            f"device=$(readlink -f {path}); queue=/sys/block/${{device##*/}}/queue",
            f'echo {int(rotational)} > "$queue/rotational"; read -r found < "$queue/rotational"',
            f'echo "{serial}.rotational=$found"',
            f'read -r found < "$queue/write_cache"; echo "{serial}.write_cache=$found"',
        ]
        expect[f"{serial}.rotational"] = str(int(rotational))
        expect[f"{serial}.write_cache"] = _WRITE_CACHE[disk.cache]
    return Verify(name=name, script="\n".join(lines), expect=expect, timeout=60.0)


_WRITE_CACHE: Final = {
    CacheMode.NONE: "write back",
    CacheMode.WRITEBACK: "write back",
    CacheMode.UNSAFE: "write back",
    CacheMode.WRITETHROUGH: "write through",
    CacheMode.DIRECTSYNC: "write through",
}
"""Cache type that the guest's kernel sees; it sends flushes to those that write back."""


def report_steps(cell: Cell, guest_directory: str) -> Iterator[Step]:
    """Yield the steps that store the disk models' counters after the workloads."""
    directory = PurePosixPath(guest_directory) / "disks"
    for serial, disk in cell.each_disk:
        path = str(directory / f"{serial}.{disk.format.value}")
        yield from catalog.disk_model(disk.model).report(disk, path)


def _leftovers(disks: Sequence[str], wiped: Sequence[str]) -> list[str]:
    """Return lines that count nonzero bytes at both ends of all disks, without the page cache.

    Each disk gets only two requests of 256 KiB, which low limits let pass too. Pages that the guest
    cached during an earlier use are dropped (``BLKFLSBUF``).
    """
    if not disks:
        return []
    return [
        f"blockdev --flushbufs {' '.join([*disks, *wiped])}",
        "ends() {",
        f"  for disk in $(readlink -f {' '.join(disks)}); do",
        '    read -r sectors < "/sys/class/block/${disk##*/}/size"',
        f"    for skip in 0 $((sectors * 512 - {EDGE})); do",
        f'      dd if="$disk" bs={EDGE} count=1 skip=$skip iflag=direct,skip_bytes 2>/dev/null ||',
        '        echo "$disk cannot be read"',
        "    done",
        "  done",
        "}",
        "echo \"leftovers=$(ends | tr -d '\\0' | wc -c)\"",
    ]
