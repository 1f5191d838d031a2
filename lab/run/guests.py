"""Live guests: list them, log in, take them down."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lab.core.errors import HostError, InputError
from lab.core.units import GIB
from lab.host import images
from lab.host.guest import console, snapshots
from lab.host.guest import registry as guests
from lab.host.guest.fair_time import FairTime
from lab.host.guest.registry import GuestRecord
from lab.host.guest.ssh.shell import banner, entering
from lab.host.guest.virtual import sessions, suspend
from lab.host.system import accelerator, clock, keys, leftovers, network, process
from lab.store import judgements, reuse
from lab.store import runs as store

ANSWERS: Final = 3.0
"""Seconds for a guest's SSH server to answer, to count as up."""
BOOTS: Final = 240.0
"""Timeout in seconds for a guest that boots again to answer on SSH."""


_HINTS: Final = {
    "off": "{id} is off: `lab down {id}` removes it, `lab up scenario {scenario}` starts another",
    "no answer": "{id} does not answer on SSH: it boots, or hangs; `lab console {id}` shows more",
}


def live() -> list[dict[str, Any]]:
    """Return a row of facts for every guest that has a directory.

    The state of a guest that was left running: ``up`` if it answers on SSH, ``no answer`` (it
    boots, or hangs), ``suspended``, or ``off``. One in virtual time answers by its own clock.
    """
    rows = []
    for record in guests.every():
        alive = guests.is_alive(record)
        owned = guests.is_owned(record)
        state = "gone" if not alive else "in use" if owned else "up"
        if guests.is_off(record):
            state = "off"
        if alive and record.owner_pid and not owned:
            state = "abandoned"
        if state == "up" and record.unsealed and suspend.is_suspended(record.path):
            state = "suspended"
        elif state == "up" and not record.unsealed and not _answers(record):
            state = "no answer"
        rows.append(
            {
                "id": record.id,
                "state": state,
                "scenario": record.scenario,
                "image": record.image,
                "array": record.target,
                "port": record.port,
                "pid": record.pid,
                "created": record.created,
                "directory": record.directory,
                "hint": _HINTS.get(state, "").format(id=record.id, scenario=record.scenario),
            }
        )
    return rows


def _answers(record: GuestRecord) -> bool:
    return banner(record.port, ANSWERS, pid=record.pid)


def ssh(name: str | None, command: Sequence[str], *, user: str) -> int:
    """Run OpenSSH's client on this terminal; return its exit status.

    A guest in virtual time runs only while a client is connected; then it is suspended. For any
    other guest the client replaces this process.
    """
    record = guests.find(name, enterable=True)
    argv = ssh_argv(record, command, user=user)
    if not record.unsealed:
        _await_answer(record)
    if not record.unsealed or guests.is_owned(record):
        process.replace_with(argv, ssh_environment(record))
    return sessions.run(record, argv, ssh_environment(record))


def _await_answer(record: GuestRecord) -> None:
    """Wait until a guest answers on SSH, as after its reboot; ``GuestError``: it does not."""
    fair = FairTime(lambda: record.pid, lambda text: sys.stderr.write(f"{text}\n"))
    limit = clock.limit(BOOTS * accelerator.slowness("tcg"))
    countdown, told = clock.Countdown(limit, fair.now), False
    while not _answers(record):
        guests.find(record.id)  # says it if the guest is off
        if countdown.left() <= 0:
            raise guests.dead(
                record, f"the guest '{record.id}' did not answer on SSH within {limit:.0f} seconds"
            )
        if not told:
            sys.stderr.write(f"the guest '{record.id}' boots: waiting for its SSH server\n")
            sys.stderr.flush()
            told = True
        clock.pause(0.2)


_KEY: Final = "LAB_SSH_KEY"
_KNOWN_HOSTS: Final = "LAB_SSH_KNOWN_HOSTS"
_CONNECT: Final = "LAB_SSH_CONNECT"


def ssh_environment(record: GuestRecord) -> dict[str, str]:
    """Return the variables that :func:`ssh_argv` names."""
    return {
        _KEY: str(keys.lab_key_path()),
        _KNOWN_HOSTS: str(record.path / "known_hosts"),
        _CONNECT: shlex.join(entering(record.port, record.pid)),
        "SHELL": "/bin/sh",  # ssh runs its ProxyCommand with it
    }


def ssh_argv(record: GuestRecord, command: Sequence[str], *, user: str) -> list[str]:
    """Return OpenSSH's command line; it pins the guest's key and ignores the user's own files.

    Paths are in the environment (`ssh_environment`): as options they would be split at blanks, and
    ``%``, ``~`` and quotes in them would have a meaning (``ssh_config(5)``).
    """
    terminal = []
    if user == "root" and not command:
        # root's shell is chosen for a fast start of the lab's commands. Users get bash.
        terminal, command = ["-t"], ["command -v bash >/dev/null && exec bash -l || exec sh -l"]
    return [
        *("ssh", *terminal, *_options(record), "-p", str(record.port)),
        f"{user}@127.0.0.1",
        *command,
    ]


def _options(record: GuestRecord) -> list[str]:
    """Return the options that OpenSSH's programs share."""
    way = []
    if network.is_other(record.pid):
        way = ["-o", f'ProxyCommand=sh -c "${_CONNECT}"', "-o", "ProxyUseFdpass=yes"]
    return [
        *("-F", "none", "-o", f"IdentityFile=${{{_KEY}}}"),
        *("-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"),
        *("-o", f"UserKnownHostsFile=${{{_KNOWN_HOSTS}}}"),
        *("-o", "GlobalKnownHostsFile=none", "-o", "LogLevel=ERROR"),
        *way,
    ]


def attached(
    record: GuestRecord, argv: Sequence[str], watch: Callable[[], str] = lambda: ""
) -> int:
    """Run a program of OpenSSH on this terminal; return its exit status. A guest in virtual time
    runs meanwhile."""
    if record.unsealed:
        return sessions.run(record, argv, ssh_environment(record), watch)
    return process.attached(argv, ssh_environment(record), watch)


def copy(words: Sequence[str], *, user: str) -> int:
    """Copy files into a guest or out of it; the last word is the target, and a guest's path is
    ``GUEST:PATH``, or ``:PATH`` if one guest is up. Return scp's exit status.

    ``LimitError``: less than 1 GiB of the disk would stay free: a guest can send without end.
    """
    names = {word.partition(":")[0] for word in words if _is_remote(word)}
    if len(words) < 2 or len(names) != 1 or len({_is_remote(w) for w in words[:-1]}) != 1:
        raise InputError(
            "expected files, and a path in a guest as GUEST:PATH, on one side",
            hint="lab cp mine.sh :/srv/; lab cp g1a2b3c:/var/log/syslog .",
        )
    if _is_remote(words[0]) == _is_remote(words[-1]):
        raise InputError("one side is in the guest, the other one is not: leave out one GUEST:")
    record = guests.find(names.pop() or None, enterable=True)
    given = [f"{user}@127.0.0.1:{word.partition(':')[2]}" if _is_remote(word) else _local(word)
             for word in words]  # fmt: skip
    argv = ["scp", "-q", "-r", *_options(record), "-P", str(record.port), *given]
    if _is_remote(words[-1]):
        return attached(record, argv)
    target = Path(words[-1]).absolute()
    place = target if target.is_dir() else target.parent

    def watch() -> str:
        if place.is_dir() and shutil.disk_usage(place).free < GIB:
            return f"the copy was ended: 1 GiB of the disk of '{place}' stays free"
        return ""

    return attached(record, argv, watch)


def _is_remote(word: str) -> bool:
    """Return whether a word of ``lab cp`` is in a guest, as for scp: a colon before any slash."""
    name, colon, _ = word.partition(":")
    return bool(colon) and "/" not in name


def _local(word: str) -> str:
    """Return a path of the host in a form that scp reads neither as an option nor as a host."""
    return word if word.startswith(("/", "./", "../")) else f"./{word}"


def ssh_config(name: str | None) -> str:
    """Return a guest's part of a configuration of OpenSSH (``ssh_config(5)``)."""
    record = guests.find(name, enterable=True)
    lines = [
        "HostName 127.0.0.1",
        f"Port {record.port}",
        "User root",
        f"IdentityFile {_quoted(keys.lab_key_path())}",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {_quoted(record.path / 'known_hosts')}",
        "GlobalKnownHostsFile none",
        "StrictHostKeyChecking yes",
        "LogLevel ERROR",
    ]
    if network.is_other(record.pid):
        command = shlex.join(entering(record.port, record.pid)).replace("%", "%%")
        lines += [f"ProxyCommand {command}", "ProxyUseFdpass yes"]
    return f"Host {record.id}\n" + "".join(f"  {line}\n" for line in lines)


def _quoted(path: Path) -> str:
    text = str(path).replace("%", "%%").replace('"', '\\"')
    return f'"{text}"'


def console_text(name: str | None, *, follow: bool) -> Iterator[str]:
    """Return a guest's console log, with control characters escaped; ``follow``: as it grows."""
    return console.text(guests.find(name, or_off=True).path, follow=follow)


def take_down(names: Sequence[str]) -> list[str]:
    """Take down the named guests, or all that no worker uses; return their ids."""
    chosen: list[GuestRecord]
    if names:
        chosen = [guests.find(name, or_off=True) for name in names]
    else:
        chosen = [r for r in guests.every() if not guests.is_owned(r)]
    errors = []
    ended = []
    for record in chosen:
        try:
            guests.remove(record.path)
            ended.append(record.id)
        except (HostError, OSError) as error:
            errors.append(f"'{record.id}': {error}")
    if errors:
        raise HostError(f"not every guest could be ended: {'; '.join(errors)}")
    return ended


def sweep() -> list[str]:
    """Remove leftovers of dead labs and workers; return their names."""
    removed = guests.collect_garbage() + snapshots.collect_garbage() + guests.collect_homes()
    removed += leftovers.remove(leftovers.every())
    removed += store.collect_garbage() + reuse.collect_garbage()
    return removed + judgements.collect_garbage()


def collect(*, dry_run: bool) -> list[str]:
    """Remove abandoned guests and leftovers; return their names. ``dry_run``: only list them."""
    if dry_run:
        return sorted({d.name for d in (*guests.abandoned(), *leftovers.every())})
    removed = sweep()
    with contextlib.suppress(HostError):
        # Only leftovers of dead builds.
        removed += images.prune(keep=sys.maxsize, trees=False).names
    return removed
