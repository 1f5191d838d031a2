"""Offers a modelled drive over NBD: this process becomes the disk server."""

from __future__ import annotations

import os
import shlex
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from lab.core.errors import HostError, InputError
from lab.core.units import GIB, KIB, MIB
from lab.core.wording import guess
from lab.core.yaml import read_file, validate
from lab.host.guest import servers
from lab.host.system import files, paths, process
from lab.model.execution.procedure import BuildPlugin
from lab.model.scenario.document import Disk
from lab.model.scenario.drive import HardDrive, SolidStateDrive, integers
from lab.model.scenario.profile import Profile
from lab.plugins import catalog
from lab.plugins.disks import hdd, ssd
from lab.plugins.disks._drives import SERVER_THREADS, drive_limits, serve

LOOPBACK: Final = "127.0.0.1"
PAGE: Final = 4 * KIB
MEMORY: Final = 2 * GIB
"""Most bytes of requests in flight, and of threads' stacks. A client that follows the protocol has
4 MiB in each request; nbdkit takes 64 MiB of any other, and keeps it for the next one."""
_STACK: Final = 256 * KIB
"""Of a thread; each connection has :data:`SERVER_THREADS`."""


@dataclass(frozen=True, slots=True)
class Served:
    """A disk server that is ready to start."""

    argv: tuple[str, ...]
    uri: str
    control: Path
    descriptor: int | None
    """The unnamed file of its data; ``None``: it has a name."""


def names() -> list[str]:
    """Return the presets' names and those of measured disks' profiles."""
    return [*hdd.PRESETS, *ssd.PRESETS, *catalog.profiles()]


def drive_of(name: str) -> HardDrive | SolidStateDrive:
    """Return the drive of a preset or a profile."""
    if name in hdd.PRESETS:
        return hdd.PRESETS[name]
    if name in ssd.PRESETS:
        return ssd.PRESETS[name]
    kept = catalog.profiles()
    if name not in kept:
        raise InputError(
            f"there is no preset and no profile '{name}': expected one of {', '.join(names())}"
            f"{guess(name, names())}"
        )
    profile = validate(Profile, read_file(kept[name]))
    values = getattr(profile, profile.kind).model_dump(exclude_none=True, exclude={"slower"})
    if profile.kind == "hdd":
        return replace(hdd.PRESETS[hdd.DEFAULT], certificate="", **values)
    return replace(ssd.PRESETS[ssd.DEFAULT], certificate="", **values)


def prepared(
    name: str, *, size: int, at: Path | None, port: int | None, file: Path | None
) -> Served:
    """Build the server and its file.

    ``at``: the path of its Unix socket; ``None``: in the lab's own directory. ``port``: of the
    loopback address, instead. ``file``: where the data are kept; ``None``: they end with the
    server.
    """
    drive = drive_of(name)
    if size < MIB or size % PAGE:
        raise InputError(
            f"--size: {size} bytes: expected at least 1MiB, and a multiple of 4KiB, such as 4TB"
        )
    disk = Disk(model="hdd", size=size)
    for problem in drive_limits(disk, drive):
        raise InputError(f"--size: {problem.message}")
    directory = paths.served()
    files.make_directory(directory, 0o700)
    place = (at or directory / f"{name}.nbd").absolute()
    control = place.with_suffix(".control")
    for path in (place, control):
        _check(path)
    (step,) = (s for s in serve(disk, str(place), drive) if isinstance(s, BuildPlugin))
    plugin = servers.build(step)
    data, descriptor = _data(file, size, directory)
    if port is None:
        where: tuple[str, ...] = ("--unix", str(place))
        uri = f"nbd+unix:///?socket={place}"
    else:
        where = ("--ipaddr", LOOPBACK, "--port", str(port))
        uri = f"nbd://{LOOPBACK}:{port}"
    argv = (
        *("prlimit", f"--stack={_STACK}", f"--data={MEMORY + 2 * drive.write_cache}", "--"),
        *("nbdkit", "--foreground", "--log=stderr", "--newstyle"),
        *("--threads", str(SERVER_THREADS), *where, str(plugin)),
        *(f"file={data}", f"control={control}", *integers(drive, name).words()),
    )
    return Served(argv, uri, control, descriptor)


def _check(path: Path) -> None:
    """Remove the socket of a server that has ended; ``InputError``: something else is there."""
    if len(os.fsencode(path)) > paths.SOCKET:
        raise InputError(
            f"the path '{path}' is too long for a socket: it has {len(os.fsencode(path))} bytes, "
            f"expected {paths.SOCKET} or less"
        )
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise InputError(f"'{path}' exists and is no socket: expected a new path")
    with closing(socket.socket(socket.AF_UNIX)) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise InputError(f"'{path}' exists: {error.strerror}: expected a new path") from error
    raise InputError(
        f"a server answers at '{path}' already: expected another path",
        hint="give one with --socket, or end that server",
    )


def _data(file: Path | None, size: int, directory: Path) -> tuple[str, int | None]:
    """Return the path of the data for the server, and the descriptor of an unnamed file."""
    try:
        if file is not None:
            with file.absolute().open("ab") as kept:
                if kept.tell() > size:
                    raise InputError(
                        f"'{file}' has {kept.tell()} bytes: expected a --size of at least so many"
                    )
                kept.truncate(size)
            return str(file.absolute()), None
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.truncate(descriptor, size)
        os.set_inheritable(descriptor, True)
    except OSError as error:
        raise HostError(
            f"a file of {size} bytes could not be made: {error.strerror}",
            hint="give a smaller --size, or a --file on another file system",
        ) from error
    return f"/proc/self/fd/{descriptor}", descriptor


def become(served: Served) -> NoReturn:
    """Become the server. It ends with SIGINT or SIGTERM, and writes its cache before."""
    process.replace_with(served.argv)


def tell(control: Path, words: list[str]) -> str:
    """Send a command to a server; return its answer. ``ToolError``: the server refused it."""
    line = " ".join(words)
    if line == "stats":
        return servers.ask_line(str(control), line)
    return servers.order(str(control), line)


def examples(served: Served) -> str:
    """Return commands that use the server."""
    control = shlex.quote(str(served.control))
    return f"""\
Any NBD client: {served.uri}
  qemu-io -f raw -c 'read 0 4k' '{served.uri}'
  qemu-system-x86_64 … -drive driver=raw,file.driver=nbd,{_drive(served.uri)}
Faults, meanwhile:
  lab disk tell {control} error read 1048576 4096     # reads there fail
  lab disk tell {control} stall 5                     # answers nothing for 5 s
  lab disk tell {control} lose                        # the write cache is lost
  lab disk tell {control} clear
Ctrl-C ends it."""


def _drive(uri: str) -> str:
    if "socket=" in uri:
        return f"file.path={uri.partition('socket=')[2]}"
    host, _, port = uri.removeprefix("nbd://").rpartition(":")
    return f"file.host={host},file.port={port}"
