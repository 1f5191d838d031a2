"""Live guests: one directory each, a record in it, and the QEMU process that belongs to it.

A guest's directory is made before anything else of it and removed after everything else, so
whatever a dead lab leaves behind is found by its directory: ``gc`` needs no memory of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from lab.core.errors import GuestError, HostError, InputError, unwritable
from lab.host.system import clock, files, leftovers, paths
from lab.host.system.pids import started_ticks

RECORD = "guest.json"
PANIC = "Kernel panic - not syncing"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRecord:
    """What a later command must know of a guest."""

    id: str
    directory: str
    scenario: str
    image: str
    created: str
    """ISO 8601, UTC."""
    owner_pid: int
    """The worker that takes care of it; 0: nobody, it was left up on purpose."""
    owner_started: int
    """The worker's start time in clock ticks, ``proc(5)``: ids come again, this does not."""
    pid: int = 0
    """QEMU's process id; 0: not started yet."""
    port: int = 0
    """Port of 127.0.0.1 that leads to its SSH."""
    host_key: str = ""
    """Public line of its host key."""
    target: str = ""
    """The array's path in the guest."""
    cell: str = ""
    warm: str = ""
    """Name of the warm state that its root disk stands on."""
    unsealed: bool = False
    """It has virtual time, and is suspended while nobody uses it."""

    @property
    def path(self) -> Path:
        """The guest's directory."""
        return Path(self.directory)


def new_id() -> str:
    """A short name; its length is part of every socket's path."""
    return f"g{token_hex(3)}"


def directory_of(guest: str) -> Path:
    """Where a guest of that id has its directory, now or later."""
    return paths.guests() / guest


def create(
    *,
    guest: str,
    scenario: str,
    image: str,
    host_key: str,
    warm: str = "",
    unsealed: bool = False,
) -> GuestRecord:
    """Make the directory and the record of a guest that is about to be."""
    directory = directory_of(guest)
    # The record is in the directory before anybody can see it: gc must never take it for a wreck.
    fresh = directory.with_name(f".{guest}.{os.getpid()}")
    record = GuestRecord(
        id=guest,
        directory=str(directory),
        scenario=scenario,
        image=image,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        owner_pid=os.getpid(),
        owner_started=started_ticks(os.getpid()),
        host_key=host_key,
        warm=warm,
        unsealed=unsealed,
    )
    try:
        fresh.mkdir(parents=True, mode=0o700)
        (fresh / RECORD).write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
        files.move(fresh, directory)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable(directory, error, "made") from error
        raise
    return record


def write(record: GuestRecord) -> None:
    """Keep a record. Not synced: a power cut ends the guest, and `abandoned` names what is left."""
    files.write(record.path / RECORD, json.dumps(asdict(record), indent=1), durable=False)
    known_hosts = record.path / "known_hosts"
    if record.port:
        known_hosts.write_text(f"[127.0.0.1]:{record.port} {record.host_key}\n", encoding="ascii")


def own(record: GuestRecord, pid: int) -> GuestRecord:
    """Hand a guest to a worker, or with 0 to nobody."""
    changed = replace(record, owner_pid=pid, owner_started=started_ticks(pid) if pid else 0)
    write(changed)
    return changed


def change(record: GuestRecord, *, target: str, cell: str) -> GuestRecord:
    """The record with the array that the guest now holds."""
    return replace(record, target=target, cell=cell)


def read(directory: Path) -> GuestRecord | None:
    """The record in a guest's directory; ``None`` where there is none that can be read."""
    try:
        data = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        return GuestRecord(**{**data, "id": directory.name, "directory": str(directory)})
    except (OSError, ValueError, TypeError):
        return None


def every() -> Iterator[GuestRecord]:
    """Every guest with a readable record, oldest first."""
    records = [read(d) for d in _directories()]
    yield from sorted((r for r in records if r is not None), key=lambda r: r.created)


def _directories() -> list[Path]:
    try:
        return [d for d in paths.guests().iterdir() if d.is_dir()]
    except OSError:
        return []


KILLED = 20.0
"""Seconds that a killed process may take to end."""
SERVERS = (b"nbdkit",)
"""Programs that serve a guest's disks."""


def qemu_pids(directory: Path) -> list[int]:
    """The guest's QEMU."""
    return _pids(directory, (b"qemu-system",))


def server_pids(directory: Path) -> list[int]:
    """The servers of the guest's disks."""
    return _pids(directory, SERVERS)


def _pids(directory: Path, programs: tuple[bytes, ...]) -> list[int]:
    """Processes of this user that run such a program and name the guest's directory.

    The directory's name is random, so nothing else can have it by accident.
    """
    wanted = os.fsencode(directory) + b"/"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(p in words[0] for p in programs) and any(wanted in word for word in words[1:]):
            found.append(int(entry.name))
    return found


def is_alive(record: GuestRecord) -> bool:
    """Whether the guest's QEMU runs."""
    return bool(record.pid) and record.pid in qemu_pids(record.path)


def is_owned(record: GuestRecord) -> bool:
    """Whether a live worker takes care of it."""
    return bool(record.owner_pid) and started_ticks(record.owner_pid) == record.owner_started


def kill(directory: Path) -> None:
    """End the guest's QEMU as a power cut does: at once, and with no word to it; wait for that."""
    for pid in qemu_pids(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    clock.wait_until(
        lambda: None if qemu_pids(directory) else True,
        timeout=KILLED,
        reason=f"the killed QEMU of the guest in '{directory}' to end",
    )


def end_processes(directory: Path, *, grace: float = 3.0) -> None:
    """End the guest's QEMU, then its disks' servers, kindly and then not; return when all is gone.

    In this order: a guest whose disks go away first would write errors to its console.
    """
    for programs in ((b"qemu-system",), SERVERS):
        _end(directory, programs, grace)


def _end(directory: Path, programs: tuple[bytes, ...], grace: float) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        pids = _pids(directory, programs)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)
        if not pids:
            return
        # A stopped process takes no SIGTERM, but SIGKILL. QEMU may have memory to write out then.
        deadline = clock.now() + (grace if kind == signal.SIGTERM else KILLED)
        while _pids(directory, programs) and clock.now() < deadline:
            clock.pause(0.05)
    left = _pids(directory, programs)
    if left:
        name = "QEMU" if programs != SERVERS else "server"
        raise HostError(f"{name} process {left[0]} of the guest in '{directory}' would not end")


def remove(directory: Path) -> None:
    """End whatever of a guest still runs, and remove its directory, if it is there.

    libvirt's threads may still write to it, until their process has ended: a second try, a moment
    later, finds what came in between.
    """
    if directory.parent.resolve() != paths.guests().resolve() or directory.is_symlink():
        raise HostError(f"'{directory}' is no guest's directory, and is left alone")
    end_processes(directory)
    for pause in (0.2, 1.0, 0.0):
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            if not directory.exists():
                return
        except OSError as error:
            if not pause:
                raise HostError(
                    f"the guest's directory '{directory}' could not be removed: {error}",
                    hint="`lab gc` tries again",
                ) from error
        else:
            return
        clock.pause(pause)


def find(name: str | None) -> GuestRecord:
    """The guest of that id, or of that scenario, or the only one."""
    records = [r for r in every() if is_alive(r)]
    if name is not None:
        records = [r for r in records if name in (r.id, r.scenario)]
    if not records:
        what = f"no live guest '{name}'" if name else "no live guest"
        raise InputError(
            f"there is {what}", hint="`lab up scenario NAME` starts one; `lab ps` lists"
        )
    if len(records) > 1:
        ids = ", ".join(r.id for r in records)
        raise InputError(f"there are several live guests: say which of {ids}")
    return records[0]


def abandoned() -> list[Path]:
    """Directories of guests that nobody owns and nobody left up on purpose."""
    found = []
    for directory in _directories():
        if directory.name.startswith("."):
            maker = directory.suffix[1:]  # .GUEST.PID: a worker is about to make it a guest
            if not (maker.isdecimal() and started_ticks(int(maker))):
                found.append(directory)
            continue
        record = read(directory)
        if record is None or not (is_owned(record) if record.owner_pid else is_alive(record)):
            found.append(directory)
    return found


def collect_garbage() -> list[str]:
    """Remove every abandoned guest; the ids of those that were."""
    removed = []
    for directory in abandoned():
        remove(directory)
        removed.append(directory.name)
    return removed


def remove_home(directory: Path) -> None:
    """End the guests of hosts of a local cluster, and remove the directory of their homes."""
    for guest in directory.glob("*/state/guests/*"):
        end_processes(guest)
    shutil.rmtree(directory, ignore_errors=True)


def collect_homes() -> list[str]:
    """Remove what local clusters left whose process is gone; the names of their directories."""
    removed = []
    for directory in list(leftovers.abandoned(paths.clusters().glob(".l.*"))):
        remove_home(directory)
        removed.append(directory.name)
    return removed


def console_tail(directory: Path, lines: int = 15) -> str:
    """The last lines of a guest's console, or those of its panic, without control characters."""
    try:
        with (directory / "console.log").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    printable = "".join(c for c in text if c == "\n" or c.isprintable())
    found = [line for line in printable.splitlines() if line.strip()]
    panic = next((i for i, line in enumerate(found) if PANIC in line), None)
    if panic is not None:
        return "\n".join(found[max(0, panic - 3) : panic - 3 + lines])
    return "\n".join(found[-lines:])


def dead(record: GuestRecord, sentence: str) -> GuestError:
    """The sentence, and the last lines of the guest's console."""
    tail = console_tail(record.path)
    since = " since it was restored" if record.warm else ""
    where = f"the last lines of its console:\n{tail}" if tail else f"its console is empty{since}"
    return GuestError(sentence, hint=where)


def require_alive(record: GuestRecord) -> None:
    """Raise ``GuestError`` where the guest has panicked, or its QEMU is gone."""
    if PANIC in console_tail(record.path, lines=40):
        raise dead(record, f"the guest '{record.id}' panicked")
    if not qemu_pids(record.path):
        raise dead(record, f"the guest '{record.id}' ended by itself: its QEMU is gone")
