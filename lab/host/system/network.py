"""A network namespace for each guest's worker and QEMU, so that other users do not reach the guest.

QEMU 7.2 forwards a TCP port of 127.0.0.1 to the guest's SSH. Without a namespace every user of the
host can connect to it, and sshd refuses all connections after its ``MaxStartups``.

Root makes a network namespace; another user makes it in a user namespace (``user_namespaces(7)``).
As a script, this file enters the namespaces of a process, connects to a port of 127.0.0.1 there,
and passes the connection on its standard output (``SCM_RIGHTS``), as OpenSSH's ``ProxyUseFdpass``
expects. It imports nothing of the lab.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
"""``clone(2)``."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
"""``netdevice(7)``."""
_CAPABILITY_VERSION_3 = 0x20080522
"""``capget(2)``."""
CONNECTING = 5.0
"""Timeout in seconds for connecting to a port of 127.0.0.1."""
TRY = "try"
"""Argument of the script that only makes the namespace, and reports errors by its exit status."""


def leave() -> bool:
    """Move this process into a new network namespace; false: this host does not allow it.

    The process must have one thread. It gets no capability by it.
    """
    # AppArmor may allow the namespace and nothing in it, so a child tries the whole first.
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            _unshare()
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        return False
    _unshare()
    return True


def is_other(pid: int) -> bool:
    """Return whether a process is in another network namespace than this one."""
    try:
        theirs, own = Path(f"/proc/{pid}/ns/net").stat(), Path("/proc/self/ns/net").stat()
    except OSError:  # it has ended, or belongs to another user
        return False
    return (theirs.st_dev, theirs.st_ino) != (own.st_dev, own.st_ino)


def _unshare() -> None:
    user, group, root = os.geteuid(), os.getegid(), os.geteuid() == 0
    _call("unshare", _NEWNET if root else _NEWNET | _NEWUSER)
    if not root:
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(f"{line}\n", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH22x", b"lo", 0)
        found = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked)
        flags = struct.unpack_from("16xH", found)[0] | _IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags))
    if not root:
        _drop_capabilities()


def _drop_capabilities() -> None:
    """Drop the capabilities of a new user namespace: they override modes of the user's files."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, none)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def _enter(pid: int) -> None:
    """Enter the user and network namespaces of a process, where they are others."""
    spaces = [(f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}") for name in ("user", "net")]
    opened = [
        os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        for theirs, own in spaces
        if Path(theirs).readlink() != Path(own).readlink()
    ]
    for one in opened:
        _call("setns", one, 0)


def main(argv: list[str]) -> int:
    """Connect to ``PID PORT``, and pass the connection on standard output; return exit status."""
    try:
        if argv == [TRY]:
            _unshare()
            return 0
        pid, port = map(int, argv)
        _enter(pid)
        with (
            socket.create_connection(("127.0.0.1", port), CONNECTING) as connection,
            socket.socket(fileno=os.dup(1)) as out,
        ):
            connection.setblocking(True)  # the flag is of the file, not of this process
            socket.send_fds(out, [b"\0"], [connection.fileno()])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
