"""Directories of the lab's files, by the XDG base directory specification.

========  ==============================  ============================================
what      where                           may be removed by hand
========  ==============================  ============================================
images    ``$XDG_DATA_HOME/lab/images``   yes: build or import them again
packages  ``$XDG_DATA_HOME/lab/packages`` yes: ``lab kernel fetch``, if the archive has them still
runs      ``$XDG_DATA_HOME/lab/runs``     yes, with their results
nights    ``$XDG_DATA_HOME/lab/nights``   yes: records of matrix runs
bisects   ``$XDG_DATA_HOME/lab/bisects``  yes: records of ``lab bisect``
schema    ``$XDG_DATA_HOME/lab/schema``   yes: ``lab schema scenario --install`` makes it again
site      ``$XDG_DATA_HOME/lab/site``     yes: ``lab site`` makes it again
profiles  ``$XDG_DATA_HOME/lab/profiles`` yes: ``lab disk calibrate`` makes them again
keys      ``$XDG_DATA_HOME/lab/keys``     yes: made again; live guests become unreachable
tls       ``$XDG_DATA_HOME/lab/tls``      yes: made again; the other machines need a new copy
guests    ``$XDG_STATE_HOME/lab/guests``  no: use ``lab down`` and ``lab clean``
outposts  ``$XDG_STATE_HOME/lab/outposts`` no: use ``lab clean``
reuse     ``$XDG_STATE_HOME/lab/reuse``   yes: sealed cells that ran before run again
clusters  ``$XDG_STATE_HOME/lab/c``       no: use ``lab cluster down`` and ``lab clean``
served    ``$XDG_STATE_HOME/lab/served``  yes: sockets; not while ``lab disk serve`` runs
warm      ``$XDG_CACHE_HOME/lab/warm``    yes: snapshots; the next guest boots instead
host      ``$XDG_CACHE_HOME/lab/host``    yes: facts about this host, found again
plugins   ``$XDG_CACHE_HOME/lab/plugins`` yes: compiled again; not while guests run
kernels   ``$XDG_CACHE_HOME/lab/kernels`` yes: copied again; not while guests run
sealed    ``$XDG_CACHE_HOME/lab/sealed``  yes: made again; not while guests run
judged    ``$XDG_CACHE_HOME/lab/judged``  yes: runs are judged again
========  ==============================  ============================================

``LAB_HOME`` replaces them with one directory; tests and CI use that.
"""

from __future__ import annotations

import functools
import os
import shlex
import stat
from pathlib import Path
from typing import Final

from lab.core.errors import HostError, InputError

SOCKET: Final = 107
"""Longest path of a unix socket in bytes, ``unix(7)``."""
MONITOR: Final = "/lib/qemu/domain-1-lab/monitor.sock"
"""QEMU's socket below the directory of a guest in real time."""
_VIRTUAL: Final = "/monitor"
"""The same of a guest in virtual time."""
_REFUSED: Final = {
    ",": "QEMU takes it for the end of an option's value",
    "=": "QEMU takes it for the end of an option's name",
}
"""Printable characters that cannot be in the path of a home, and why. libvirt passes the path of
the home to QEMU as ``-qmp unix:PATH,server=on`` when it probes it; there they cannot be escaped."""


def _base(variable: str, default: str, sub: str) -> Path:
    home = os.environ.get("LAB_HOME")
    if home:
        place = _usable("LAB_HOME", Path(home).absolute())
        return _private(_private(place) / sub)
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):  # all or none can be used
        _usable(name, Path(os.environ.get(name, "")))
    xdg = os.environ.get(variable, "")
    # The specification says to ignore relative paths.
    place = Path(xdg) if xdg.startswith("/") else _usable("HOME", Path.home()) / default
    return _private(place / "lab")


_OVERFLOW: Final = 65534
"""Owner of files of users that a user namespace does not have, ``user_namespaces(7)``."""


def _private(place: Path) -> Path:
    """Return a directory of the lab's; ``InputError`` if another user can put files there, or
    another directory in its place.

    The lab runs programs that it keeps there, and links there lead elsewhere. A directory that is
    not there yet is made by this user.
    """
    owners = {0, os.geteuid()}
    if os.geteuid() == 0 and (behind := os.environ.get("SUDO_UID", "")).isdecimal():
        owners.add(int(behind))
    if _is_within():  # the process that made the namespace has seen the owner
        owners.add(_OVERFLOW)
    if not _is_of_a_job():
        _check_way(place, frozenset(owners))
    try:
        found = place.stat()
    except OSError:
        return place
    if found.st_uid not in owners:
        raise InputError(
            f"'{place}' belongs to the user with number {found.st_uid}, who could change the"
            " programs that the lab keeps there",
            hint=_OWN,
        )
    if found.st_mode & stat.S_IWOTH:
        raise InputError(
            f"all users of this host may write to '{place}', and could change the programs that"
            " the lab keeps there",
            hint=f"remove what is not yours, and then: chmod o-w {shlex.quote(str(place))}",
        )
    return place


_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman make in their containers."""


def _is_of_a_job() -> bool:
    """Return whether this machine is a CI job's alone: its directories are often anybody's.

    ``CI`` is set on a runner of one's own too, which may have other users.
    """
    alone = os.environ.get("RUNNER_ENVIRONMENT") == "github-hosted"
    alone = alone or "KUBERNETES_SERVICE_HOST" in os.environ
    return bool(os.environ.get("CI")) and (alone or any(map(os.path.exists, _CONTAINERS)))


_OWN: Final = "set LAB_HOME to a directory of your own, such as LAB_HOME=$HOME/lab"


@functools.cache
def _check_way(place: Path, owners: frozenset[int]) -> None:
    """``InputError`` if another user can replace a directory or a link on the way to a place.

    In a directory with the sticky bit, such as ``/tmp``, each user replaces its own entries only.
    """
    for way in dict.fromkeys((place, place.resolve())):
        for part in way.parents:
            try:
                found = part.lstat()
            except OSError:
                continue
            if found.st_uid not in owners:
                raise InputError(
                    f"'{part}' belongs to the user with number {found.st_uid}, who could replace"
                    f" '{place}' and the programs that the lab keeps there",
                    hint=_OWN,
                )
            open_ = found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
            if open_ and not stat.S_ISLNK(found.st_mode):
                raise InputError(
                    f"all users of this host may write to '{part}', and could replace '{place}'"
                    " and the programs that the lab keeps there",
                    hint=_OWN,
                )


@functools.cache
def _is_within() -> bool:
    """Return whether this process is in a user namespace that lacks users of the host."""
    try:
        words = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except OSError:
        return False
    return sum(map(int, words[2::3])) < (1 << 32) - 1


def _usable(variable: str, path: Path) -> Path:
    """Return the path; ``InputError`` if the programs that the lab starts cannot use it.

    All other characters are quoted or encoded where a program, a shell or a URI gets the path.
    """
    if why := wrong(str(path)):
        raise InputError(
            f"{variable} is {str(path)!r}, and the path of the lab's files cannot have {why}",
            hint="set LAB_HOME to another directory, such as LAB_HOME=$HOME/lab",
        )
    return path


def wrong(path: str) -> str:
    """Return what the path of a home cannot have, with the reason; empty: it can be used."""
    for character in path:
        if character in _REFUSED:
            return f"the character '{character}': {_REFUSED[character]}"
        if not character.isprintable() and character != " ":
            name = {"\n": "a newline", "\t": "a tab"}.get(character, f"the byte {character!r}")
            return f"{name}: XML and lines of text cannot hold it"
    return ""


def check_length(*, virtual: bool) -> None:
    """``HostError`` if sockets of guests would have too long paths."""
    tail = f"/g123456{_VIRTUAL if virtual else MONITOR}"
    most = SOCKET - len(tail)
    place = guests()
    if len(os.fsencode(place)) > most:
        raise HostError(
            f"the path '{place}' is too long for QEMU's sockets: it has {len(os.fsencode(place))}"
            f" bytes, at most {most} are possible",
            hint="set LAB_HOME to a directory with a shorter path",
        )


def places() -> tuple[Path, ...]:
    """Return all directories in which things are made; ``lab.host.system.unfinished`` has their
    names."""
    of_runs = (images(), packages(), runs(), nights(), bisects(), site(), profiles(), schema())
    private = (keys(), tls(), tls().parent, guests(), outposts(), reuse(), clusters(), served())
    cached = (warm(), host(), plugins(), sealed(), kernels(), judged())
    inside = (host() / "capabilities", host() / "calibration")
    kept = (*images().glob(".tree-*"), *(d for d in nights().glob("*") if d.is_dir()))
    return (*of_runs, *private, *cached, *inside, *kept)


def images() -> Path:
    return _base("XDG_DATA_HOME", ".local/share", "data") / "images"


def packages() -> Path:
    """Return the directory of fetched packages of Linux and mdadm."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "packages"


def runs() -> Path:
    return _base("XDG_DATA_HOME", ".local/share", "data") / "runs"


def nights() -> Path:
    """Return the directory of matrix runs' records."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "nights"


def bisects() -> Path:
    """Return the directory of bisections' records."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "bisects"


def site() -> Path:
    """Return the directory of all runs' reports."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "site"


def profiles() -> Path:
    """Return the directory of measured disks' profiles."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "profiles"


def schema() -> Path:
    """Return the directory of the JSON Schema that new scenarios name for editors."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "schema"


def keys() -> Path:
    return _base("XDG_DATA_HOME", ".local/share", "data") / "keys"


def tls() -> Path:
    """Return the directory of certificates for a cluster of several machines."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "tls"


def guests() -> Path:
    """Return the directory of running guests; each has a directory in it."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "guests"


def served() -> Path:
    """Return the directory of the sockets of ``lab disk serve``."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "served"


def warm() -> Path:
    """Return the directory of snapshots of guests in real time."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "warm"


def host() -> Path:
    """Return the directory of measured facts about this host."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "host"


def outposts() -> Path:
    """Return the directory of cluster workers' files; each has a directory in it."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "outposts"


def reuse() -> Path:
    """Return the directory of records of sealed cells that ran here, by digest of their inputs."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "reuse"


def clusters() -> Path:
    """Return the directory of clusters on this machine, with their hosts' homes.

    It is short, because paths of sockets must be short.
    """
    return _base("XDG_STATE_HOME", ".local/state", "state") / "c"


def plugins() -> Path:
    """Return the directory of compiled disk servers."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "plugins"


def sealed() -> Path:
    """Return the directory of virtual-time files: raw images, drivers, initramfs, snapshots."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "sealed"


def judged() -> Path:
    """Return the directory of results and explanations of stored runs, judged once."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "judged"


def kernels() -> Path:
    """Return the directory of copies of the user's kernels."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "kernels"
