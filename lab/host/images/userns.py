"""Runs a program as root of a new user namespace with the ids 0 to 65535, for root itself.

``newuidmap`` gives root none of them without an entry in ``/etc/subuid``. It is run as a script
and imports nothing of the lab.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
"""``clone(2)``."""


def main(argv: list[str]) -> None:
    """Run the program; a child that stays outside writes the maps."""
    me = os.getpid()
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ready, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{me}/{name}").write_text("0 0 65536\n", encoding="ascii")
        os._exit(0)
    os.close(ready)
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWUSER | _NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    os.close(go)
    if os.waitpid(child, 0)[1]:
        sys.exit("userns: the ids cannot be mapped")
    os.setgroups([])
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
