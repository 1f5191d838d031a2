"""Runs foreign code (a patch series' makefiles, a package's scripts) in a sandbox of namespaces.

The code sees a tree of its own, made by bubblewrap: programs of ``tree``, read-only, and the
directories that it is given. It has no network, an empty environment, no capability of this host,
and limits. What it leaves in an output directory is untrusted: `take` reads it.

=============  ===========================================================================
user           root inside, a user namespace also for root
programs       ``usr`` and its links of ``tree``, read-only; of ``etc`` what they need
``/proc``      processes of the sandbox only; settings and files of the kernel are masked
network        none, no loopback of the host
environment    ``PATH``, ``HOME``, ``LC_ALL`` and what is given
=============  ===========================================================================
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import stat
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.core.errors import HostError, InputError, ToolError
from lab.core.printable import printable
from lab.core.units import GIB, MIB, format_size
from lab.host.images import userns
from lab.host.system import leftovers, pids, process

COMPILING: Final = 7200.0
"""Timeout in seconds of foreign code; a whole kernel takes minutes."""
MEMORY: Final = 4 * GIB
"""Bytes of memory that all its processes may have, or half of the host's if that is more; the
host's shared memory (memfd, tmpfs, shm) may not grow by more either."""
PROCESSES: Final = 2048
"""Most processes; ``make -j`` on 256 CPUs has about a thousand."""
FILE: Final = 4 * GIB
"""Most bytes of a file that it writes."""
FREE: Final = 512 * MIB
"""Bytes of disk space that it must leave."""
LOG: Final = 64 * MIB
"""Most bytes that it may print."""
ENTRIES: Final = 4096
"""Most files in a directory that it leaves."""
OPEN: Final = 4096
"""Most files that one of its processes may have open."""
STOPPED: Final = "the code in the sandbox"
"""How the message of a limit begins."""
_TEMPORARY: Final = 512 * MIB
"""Size of ``/tmp``, which is memory."""
_SHARED: Final = 16 * MIB
"""Size of ``/dev/shm``."""
_PROGRAMS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS: Final = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES: Final = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID"),
    *("CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SYS_CHROOT"),
)
"""Capabilities in its own namespace for unpacking packages, not for mounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What foreign code sees. Keys are paths inside."""

    tree: Path = Path("/")
    """Root file system with its programs."""
    read: Mapping[str, Path] = field(default_factory=dict)
    write: Mapping[str, Path] = field(default_factory=dict)
    over: Mapping[str, Path] = field(default_factory=dict)
    """Directories that it may change in an overlay only; the changes are thrown away."""
    root: str = ""
    """A directory inside that gets ``/proc`` and ``/dev``, for ``chroot``."""
    packages: bool = False
    """Whether it may have files of other users, as dpkg needs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    file: int = FILE
    """Most bytes of a file that it writes."""


def run(
    box: Box, argv: Sequence[str], *, work: Path, log: Path, seconds: float = COMPILING
) -> None:
    """Run foreign code to its end.

    ``work``: an empty place for overlays. ``HostError``: this host has no user namespaces.
    ``ToolError``: it failed, or went over a limit.
    """
    check()
    words = _command(box, tuple(argv), work)
    watch = _Watch(log=log, disk=work)
    try:
        process.run(words, timeout=seconds, log=log, cwd=work, watch=watch)
    except ToolError as error:
        if says := watch.of_log():  # it hit the limit of a file before the next look
            raise ToolError(says) from error
        lines = process.tail(log).splitlines() or [""]
        if lines[-1].startswith(_SETUP):
            raise HostError(f"the sandbox could not be made: {printable(lines[-1])}") from error
        raise
    else:
        if says := watch.of_log():  # it ended before the next look
            raise ToolError(says)
    finally:
        for place in work.glob("overlay-*"):
            leftovers.discard(place)


_SETUP: Final = ("bwrap: ", "mount: ", "unshare: ", "userns: ", "prlimit: ", "setpriv: ")
"""How lines of the programs begin that make the sandbox."""


def check() -> None:
    """``HostError`` if this host cannot run a sandbox, with the command that fixes it."""
    if shutil.which("bwrap", path=_PATH) is None:
        raise HostError(
            "foreign code is built in a sandbox, and the program 'bwrap' is not installed",
            hint="apt install bubblewrap",
        )
    words = ("bwrap", *_UNSHARED, "--unshare-user", "--ro-bind", "/", "/", "true")
    try:
        process.run(words, timeout=20)
    except (ToolError, HostError) as error:
        raise HostError(
            "foreign code is built in a sandbox, and user namespaces are not allowed here:"
            f" {error.message}",
            hint="in a container: give it CAP_SYS_ADMIN; else as root: sysctl"
            " user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1"
            " kernel.apparmor_restrict_unprivileged_userns=0 (those of them that exist)",
        ) from error


_UNSHARED: Final = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--chdir", "/"),
)


def _command(box: Box, argv: tuple[str, ...], work: Path) -> tuple[str, ...]:
    """Return the command that runs ``argv`` in the sandbox; make the directories of overlays."""
    # bwrap's own environment is empty too: its process is the sandbox's first.
    words = ["env", "-i", f"PATH={_PATH}", "setpriv", "--pdeathsig", "KILL", *_namespace(box)]
    mounts = []
    for number, (inside, lower) in enumerate(sorted(box.over.items())):
        place = work / f"overlay-{number}"
        for name in ("upper", "work", "merged"):
            (place / name).mkdir(parents=True)
        (place / "lower").symlink_to(lower)
        # Names relative to the place: a path may have the comma that separates mount's options.
        options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
        mounts.append(f"(cd {place.name}; mount -t overlay overlay -o {options} merged)\n")
        box = dataclasses.replace(box, write={**box.write, inside: place / "merged"})
    if box.packages:  # bwrap does it only in a user namespace that it makes itself
        mounts.append(_NO_NAMESPACES)
    words += ["sh", "-euc", f'{"".join(mounts)}exec "$@"', "-", "prlimit"]
    words += [f"--nproc={PROCESSES}", f"--fsize={box.file}", f"--nofile={OPEN}", "--core=0", "--"]
    return (*words, *_bwrap(box), "--", *argv)


_NO_NAMESPACES: Final = (
    "echo 0 >/proc/sys/user/max_user_namespaces"
    " || { echo 'userns: further user namespaces cannot be forbidden' >&2; exit 1; }\n"
)
"""Shell line that forbids user namespaces below its own: root of one could mount file systems."""


def _namespace(box: Box) -> tuple[str, ...]:
    """Return the command that makes the outer user namespace, with a mount namespace."""
    if not box.packages:
        return ("unshare", "--user", "--map-root-user", "--mount")
    if os.geteuid() == 0:
        return (sys.executable, "-I", "-S", str(userns.__file__))
    return ("unshare", "--user", "--map-root-user", "--map-auto", "--mount")


def _bwrap(box: Box) -> list[str]:
    words = ["bwrap", *_UNSHARED, "--clearenv", "--cap-drop", "ALL"]
    if box.packages:
        words += [word for cap in _PACKAGES for word in ("--cap-add", cap)]
    else:
        words += ["--unshare-user", "--disable-userns", "--uid", "0", "--gid", "0"]
    inside = {"PATH": _PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LC_ALL": "C.UTF-8"}  # noqa: S108
    for name, value in {**inside, **box.environment}.items():
        words += ["--setenv", name, value]
    for name in _PROGRAMS:
        entry = box.tree / name
        if entry.is_symlink():
            words += ["--symlink", str(entry.readlink()), f"/{name}"]
        elif entry.is_dir():
            words += ["--ro-bind", str(entry), f"/{name}"]
    for name in _SETTINGS:
        words += ["--ro-bind-try", str(box.tree / "etc" / name), f"/etc/{name}"]
    words += ["--size", str(_TEMPORARY), "--tmpfs", "/tmp"]  # noqa: S108
    binds = {place: ("--ro-bind", path) for place, path in box.read.items()}
    binds |= {place: ("--bind", path) for place, path in box.write.items()}
    for place, (kind, path) in sorted(binds.items()):  # a directory before what is in it
        words += [kind, str(path), place]
    for root in dict.fromkeys(("", box.root)):
        words += ["--proc", f"{root}/proc", *masked(f"{root}/proc"), "--dev", f"{root}/dev"]
        words += [
            "--size",
            str(_SHARED),
            "--tmpfs",
            f"{root}/dev/shm",  # noqa: S108
            "--remount-ro",
            f"{root}/dev",
        ]
    return [*words, "--remount-ro", "/"]


def masked(proc: str) -> list[str]:
    """Return bubblewrap's words that mask what is not of a process: root may change settings."""
    words: list[str] = []
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        place = f"{proc}/{entry.name}"
        if entry.is_dir():
            words += ["--size", "4096", "--tmpfs", place, "--remount-ro", place]
        elif entry.name not in _HARMLESS:
            words += ["--ro-bind", "/dev/null", place]
    return words


_HARMLESS: Final = ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")


class _Watch:
    """Says why a sandbox must end: memory, processes, disk space, or output."""

    def __init__(self, *, log: Path, disk: Path) -> None:
        self._log, self._disk = log, disk
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._memory = max(MEMORY, total // 2)
        self._shared = _shared_memory()

    def __call__(self, pid: int) -> str:
        found = pids.family(pid)
        memory, most = sum(found.values()), format_size(self._memory)
        if memory > self._memory:
            return f"{STOPPED} had {format_size(memory)} of memory, at most {most}"
        shared = _shared_memory() - self._shared  # no process has a file of a tmpfs
        if shared > self._memory:
            grew = f"grew by {format_size(shared)}, at most {most}"
            return f"{STOPPED} ran while this host's shared memory {grew}"
        if len(found) > PROCESSES:
            return f"{STOPPED} had {len(found)} processes, at most {PROCESSES}"
        if shutil.disk_usage(self._disk).free < FREE:
            return f"{STOPPED} left less than {format_size(FREE)} of disk space"
        return self.of_log()

    def of_log(self) -> str:
        """Return that it printed too much; empty: it did not."""
        if self._log.stat().st_size > LOG:
            return f"{STOPPED} printed more than {format_size(LOG)}"
        return ""


def _shared_memory() -> int:
    """Return the bytes of shared memory and of all tmpfs on this host."""
    found = re.search(r"^Shmem: +(\d+) kB$", Path("/proc/meminfo").read_text("ascii"), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


# -- what it leaves


def take(directory: Path, names: Collection[str], *, most: int) -> dict[str, bytes]:
    """Return the regular files with these names that foreign code has left in a directory.

    ``InputError``: an entry is no regular file, or has another name, there are more than
    :data:`ENTRIES`, or they have more than ``most`` bytes together; links are not followed.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = os.open(directory, flags | os.O_DIRECTORY)
    try:
        left = sorted(one.name for one in _entries(opened))
        if strange := [name for name in left if name not in names]:
            raise InputError(f"it made a file '{ascii(strange[0])[1:-1]}', which is not expected")
        found = dict[str, bytes]()
        for name in left:
            found[name] = _taken(opened, name, most)
            most -= len(found[name])
        return found
    finally:
        os.close(opened)


def names(directory: Path, *, directories: bool = False) -> list[str]:
    """Return the names in a directory; ``directories``: of directories in it, not of links.

    ``InputError``: there are more than :data:`ENTRIES`.
    """
    return sorted(
        one.name
        for one in _entries(directory)
        if not directories or one.is_dir(follow_symlinks=False)
    )


def _entries(directory: Path | int) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        found = list(itertools.islice(entries, ENTRIES + 1))
    if len(found) > ENTRIES:
        raise InputError(f"it made more than {ENTRIES} files in a directory")
    return found


def _taken(directory: int, name: str, most: int) -> bytes:
    kind = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(kind.st_mode):
        raise InputError(f"it made '{name}', which is not a regular file")
    if kind.st_size > most:
        raise InputError(
            f"it made '{name}' with {format_size(kind.st_size)}, at most {format_size(most)} are"
            " left for it"
        )
    try:
        file = os.open(
            name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory
        )
    except OSError as error:
        raise InputError(f"it made '{name}', which cannot be read: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        return stream.read(most)
