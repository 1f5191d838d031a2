"""Writes blocks one after the other, each made durable and then told; or looks for them again.

``{"mode": "write", …}`` prints a line with the number of each block that the disks have
acknowledged, as it happens, and at the end a line of JSON. ``{"mode": "read", …}`` prints which
blocks are as they would have been written, as one JSON object.

Block ``n`` goes to a place of its own among ``places``, by a step that has no factor in common with
their number: every place once before any comes again. Its content follows from seed and number.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import sys
import time
from typing import Any


def content(seed: int, number: int, size: int) -> bytes:
    """What block ``number`` holds: no two blocks of a seed are alike, nor two pages of one."""
    pages = -(-size // 512)
    made = b"".join(
        hashlib.blake2b(b"%d %d %d" % (seed, number, page), digest_size=64).digest() * 8
        for page in range(pages)
    )
    return made[:size]


def place(seed: int, number: int, places: int) -> int:
    """Where block ``number`` goes."""
    step = max(1, int(places * 0.6180339887))
    while math.gcd(step, places) != 1:
        step += 1
    return (seed + number * step) % places


def write(given: dict[str, Any]) -> None:
    """Every block, past the page cache, then the flush that it waits for, if any, then a line."""
    flags = os.O_RDWR | os.O_DIRECT | os.O_CREAT
    descriptor = os.open(given["path"], flags, 0o644)
    size = given["bs"]
    page = mmap.mmap(-1, size)  # O_DIRECT wants memory at a page's beginning
    began = time.monotonic()
    for number in range(given["count"]):
        page[:] = content(given["seed"], number, size)
        where = given["offset"] + place(given["seed"], number, given["places"]) * size
        if os.pwrite(descriptor, page, where) != size:
            raise OSError(f"block {number} was written in part")
        if given["flush"]:
            os.fsync(descriptor)
        os.write(1, b"%d\n" % number)
    seconds = round(time.monotonic() - began, 6)
    print(json.dumps({"written": given["count"], "seconds": seconds}))


def read(given: dict[str, Any]) -> None:
    """Every block, past the page cache, against what it should hold."""
    descriptor = os.open(given["path"], os.O_RDONLY | os.O_DIRECT)
    size = given["bs"]
    page = mmap.mmap(-1, size)
    runs: list[list[int]] = []
    errors = 0
    for number in range(given["count"]):
        where = given["offset"] + place(given["seed"], number, given["places"]) * size
        try:
            got = os.preadv(descriptor, [page], where)
        except OSError:
            errors += 1
            continue
        if got == size and page[:] == content(given["seed"], number, size):
            if runs and runs[-1][1] == number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
    print(json.dumps({"intact": runs, "looked_at": given["count"], "errors": errors}))


def main(given: dict[str, Any]) -> str | int:
    """Write, or read."""
    try:
        {"write": write, "read": read}[given["mode"]](given)
    except OSError as error:
        return f"{given['path']}: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
