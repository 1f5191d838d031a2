"""Running guests: a directory and a record for each, and its QEMU process.

A guest's directory is created first and removed last. So all leftovers of a killed lab can be
found from the directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from lab.core.errors import GuestError, HostError, InputError, cause_of_panic, unwritable
from lab.host.system import clock, files, paths, unfinished
from lab.host.system.pids import forms, is_ours, send, started_ticks

RECORD = "guest.json"
PANIC = "Kernel panic - not syncing"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRecord:
    """Facts about a guest for later commands."""

    id: str
    directory: str
    scenario: str
    image: str
    created: str
    """ISO 8601, UTC."""
    owner_pid: int
    """Process id of the worker that owns it; 0: none, because it was left running on purpose."""
    owner_started: int
    """The worker's start time in clock ticks, ``proc(5)``: process ids are reused."""
    pid: int = 0
    """QEMU's process id; 0: not started."""
    port: int = 0
    """Port of 127.0.0.1 that is forwarded to its SSH."""
    host_key: str = ""
    """Public line of its host key."""
    target: str = ""
    """The array's path in the guest."""
    cell: str = ""
    warm: str = ""
    """Key of the snapshot below its root disk."""
    unsealed: bool = False
    """It has virtual time with network and SSH, and is suspended while no session is open."""

    @property
    def path(self) -> Path:
        return Path(self.directory)


def new_id() -> str:
    """Return a random id. It is short because it is part of every socket's path."""
    return f"g{token_hex(3)}"


def directory_of(guest: str) -> Path:
    """Return the directory of a guest; it may not exist."""
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
    """Create the directory and the record of a new guest."""
    directory = directory_of(guest)
    # Write the record before the rename: garbage collection must never see a directory without one.
    fresh = unfinished.name(directory)
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
    """Write the record without syncing: after a power cut the guest is gone anyway."""
    files.write(record.path / RECORD, json.dumps(asdict(record), indent=1), durable=False)
    known_hosts = record.path / "known_hosts"
    if record.port:
        known_hosts.write_text(f"[127.0.0.1]:{record.port} {record.host_key}\n", encoding="ascii")


def own(record: GuestRecord, pid: int) -> GuestRecord:
    """Assign a guest to a worker; ``pid`` 0: to no worker."""
    changed = replace(record, owner_pid=pid, owner_started=started_ticks(pid) if pid else 0)
    write(changed)
    return changed


def change(record: GuestRecord, *, target: str, cell: str) -> GuestRecord:
    """Return the record with the guest's new array."""
    return replace(record, target=target, cell=cell)


def read(directory: Path) -> GuestRecord | None:
    """Return the record in a guest's directory; ``None``: there is no readable one."""
    try:
        data = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        return GuestRecord(**{**data, "id": directory.name, "directory": str(directory)})
    except (OSError, ValueError, TypeError):
        return None


def every() -> Iterator[GuestRecord]:
    """Yield every guest with a readable record, oldest first."""
    records = [read(d) for d in _directories()]
    yield from sorted((r for r in records if r is not None), key=lambda r: r.created)


def _directories() -> list[Path]:
    try:
        return [d for d in paths.guests().iterdir() if d.is_dir()]
    except OSError:
        return []


KILLED = 20.0
"""Timeout in seconds for a killed process to end."""
SERVERS = (b"nbdkit",)
"""Programs that serve a guest's disks."""


def qemu_pids(directory: Path) -> list[int]:
    return _pids(directory, (b"qemu-system",))


def server_pids(directory: Path) -> list[int]:
    return _pids(directory, SERVERS)


def _pids(directory: Path, programs: tuple[bytes, ...]) -> list[int]:
    """Return this user's processes that run such a program and have the directory's name as
    argument.

    The name is random, so no other process has it by accident. Other users' processes may have it
    on purpose.
    """
    wanted = [os.fsencode(form) for form in forms(f"{directory}/")]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        named = any(p in words[0] for p in programs) and any(
            form in word for word in words[1:] for form in wanted
        )
        if named and is_ours(int(entry.name)):
            found.append(int(entry.name))
    return found


def is_alive(record: GuestRecord) -> bool:
    """Return whether the guest's QEMU runs."""
    return bool(record.pid) and record.pid in qemu_pids(record.path)


def is_owned(record: GuestRecord) -> bool:
    """Return whether the guest's worker is alive."""
    return bool(record.owner_pid) and started_ticks(record.owner_pid) == record.owner_started


def kill(directory: Path) -> None:
    """Kill the guest's QEMU with SIGKILL, and wait for its end."""
    for pid in qemu_pids(directory):
        send(pid, signal.SIGKILL)
    clock.wait_until(
        lambda: None if qemu_pids(directory) else True,
        timeout=KILLED,
        reason=f"the killed QEMU of the guest in '{directory}' to end",
    )


def end_processes(directory: Path, *, grace: float = 3.0) -> None:
    """End the guest's QEMU, then its disk servers: SIGTERM, and SIGKILL after ``grace`` seconds.

    In the other order the guest would write disk errors to its console.
    """
    for programs in ((b"qemu-system",), SERVERS):
        _end(directory, programs, grace)


def _end(directory: Path, programs: tuple[bytes, ...], grace: float) -> None:
    ended: dict[int, int] = {}
    for kind in (signal.SIGTERM, signal.SIGKILL):
        pids = _pids(directory, programs)
        if not pids and not any(started_ticks(p) == t for p, t in ended.items()):
            return
        ended |= {pid: ticks for pid in pids if (ticks := started_ticks(pid))}
        for pid in pids:
            send(pid, kind)
        # A stopped process reacts only to SIGKILL. QEMU may still have to write out memory.
        # A process that ends has no command line any more, but still its files.
        deadline = clock.now() + (grace if kind == signal.SIGTERM else KILLED)
        while clock.now() < deadline and (
            _pids(directory, programs) or any(started_ticks(p) == t for p, t in ended.items())
        ):
            clock.pause(0.05)
    left = _pids(directory, programs)
    if left:
        name = "QEMU" if programs != SERVERS else "server"
        raise HostError(
            f"the {name} process {left[0]} of the guest in '{directory}' did not end after SIGKILL",
            hint=f"end it by hand (kill -9 {left[0]}), then: lab clean",
        )


def remove(directory: Path) -> None:
    """End a guest's processes, and remove its directory if it exists.

    libvirt's threads may write to it until their process ends, so removal is tried three times.
    """
    if directory.parent.resolve() != paths.guests().resolve() or directory.is_symlink():
        raise HostError(f"'{directory}' is not a guest's directory and was not removed")
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
                    hint="run `lab clean` to try again",
                ) from error
        else:
            return
        clock.pause(pause)


def is_off(record: GuestRecord) -> bool:
    """Return whether a guest that was left up has ended: it was powered off, or QEMU was killed."""
    return bool(record.pid) and not record.owner_pid and not is_alive(record)


def find(name: str | None, *, or_off: bool = False, enterable: bool = False) -> GuestRecord:
    """Return the running guest with that id or scenario; without a name, the only one.

    ``or_off``: a guest that is off is found too. Otherwise the error says that it is off.
    ``enterable``: guests without SSH, as sealed ones, are not found; without a name, neither are
    those that a worker uses.
    """
    asked = [r for r in every() if name is None or name in (r.id, r.scenario)]
    records = [r for r in asked if is_alive(r) or (or_off and is_off(r))]
    if enterable:
        closed = [r for r in records if not r.port and is_owned(r)]
        records = [r for r in records if name is not None or not is_owned(r)]
        if closed and name is not None:
            raise InputError(
                f"the guest '{closed[0].id}' cannot be entered: it runs sealed, in virtual time",
                hint=f"a guest with SSH: lab up scenario {closed[0].scenario} --clock virtual",
            )
    if not records and (off := [r for r in asked if is_off(r)]):
        one = off[-1]
        ended = "rebooted or powered off" if one.unsealed else "powered off"
        raise InputError(
            f"the guest '{one.id}' is off: it was {ended}, or its QEMU was killed"
            + (". A guest in virtual time cannot boot a second time" if one.unsealed else ""),
            hint=f"remove it: lab down {one.id}; start another one: lab up scenario {one.scenario}",
        )
    if not records:
        what = f"no live guest '{name}'" if name else "no live guest"
        running = ", ".join(sorted(r.id for r in every() if is_alive(r)))
        hint = f"running: {running}" if running else "start one: lab up scenario NAME"
        raise InputError(f"there is {what}", hint=hint)
    if len(records) > 1:
        ids = ", ".join(r.id for r in records)
        raise InputError(f"several guests match: give one of these ids: {ids}")
    return records[0]


def abandoned() -> list[Path]:
    """Return directories of guests whose owner died; those left running on purpose are not
    included."""
    found = []
    for directory in _directories():
        if directory.name.startswith("."):
            if not unfinished.is_under_way(directory.name):
                found.append(directory)
            continue
        record = read(directory)
        if record is None or not (is_owned(record) if record.owner_pid else is_alive(record)):
            found.append(directory)
    return found


def collect_garbage() -> list[str]:
    """Remove every abandoned guest; return their ids."""
    removed = []
    for directory in abandoned():
        remove(directory)
        removed.append(directory.name)
    return removed


def remove_home(directory: Path) -> None:
    """End the guests of a local cluster's hosts, and remove the directory of their homes."""
    for guest in directory.glob("*/state/guests/*"):
        end_processes(guest)
    shutil.rmtree(directory, ignore_errors=True)


def collect_homes() -> list[str]:
    """Remove the homes of local clusters whose process has ended; return their names."""
    removed = []
    for directory in list(paths.clusters().glob(".l.*")):
        pid = directory.name.rpartition(".")[2]
        if pid.isdecimal() and started_ticks(int(pid)):
            continue
        remove_home(directory)
        removed.append(directory.name)
    return removed


def console_tail(directory: Path, lines: int = 15) -> str:
    """Return the console's last lines, or those around a panic, without control characters."""
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
        first = max(0, panic - 3)
        return "\n".join(found[first : first + lines])
    return "\n".join(found[-lines:])


def dead(record: GuestRecord, sentence: str) -> GuestError:
    """Return a ``GuestError`` with the sentence and the last lines of the guest's console."""
    tail = console_tail(record.path)
    since = " since it was restored" if record.warm else ""
    where = f"the last lines of its console:\n{tail}" if tail else f"its console is empty{since}"
    return GuestError(sentence, hint=where)


def require_alive(record: GuestRecord) -> None:
    """Raise ``GuestError`` if the guest has panicked or its QEMU has ended."""
    if PANIC in (log := console_tail(record.path, lines=40)):
        raise dead(record, f"the guest '{record.id}' panicked: {cause_of_panic(log)}")
    if not qemu_pids(record.path):
        raise dead(record, f"the guest '{record.id}' ended unexpectedly: its QEMU is gone")
