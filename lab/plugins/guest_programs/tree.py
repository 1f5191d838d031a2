"""Makes, reads, unpacks and removes a tree of many small files, and times each phase.

The tree is a function of its arguments: names, sizes and contents come from the seed, by
``getrandbits`` alone, which gives the same bits in every Python. So a later call knows what an
earlier one wrote. Every phase begins with nothing in the page cache, and ends when everything is
on the disks. What is made in advance (contents, checksums, the tarball) is not in its time.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any

POOL = 1 << 20
"""Bytes of random data of which each file's content is a piece."""


class Tree:
    """What the files are called, how large they are, and what is in them."""

    def __init__(
        self, *, seed: int, files: int, min_size: int, max_size: int, files_per_directory: int
    ) -> None:
        """As many files as asked for, of sizes spread evenly from the smallest to the largest."""
        dice = random.Random(seed)
        self.pool = dice.getrandbits(8 * (POOL + max_size)).to_bytes(POOL + max_size, "little")
        spread = max_size - min_size + 1
        self.pieces: dict[str, tuple[int, int]] = {}
        for index in range(files):
            directory = index // files_per_directory
            name = f"{directory // 100:03d}/{directory % 100:02d}/{index:07d}"
            size = min_size + dice.getrandbits(64) % spread
            self.pieces[name] = (dice.getrandbits(20), size)
        self.bytes = sum(size for _, size in self.pieces.values())

    def content(self, name: str) -> memoryview:
        """The bytes of one file."""
        start, size = self.pieces[name]
        return memoryview(self.pool)[start : start + size]

    def directories(self) -> list[str]:
        """Every directory below the top, parents first."""
        found: dict[str, None] = {}
        for name in self.pieces:
            above, _, _ = name.rpartition("/")
            found[above.partition("/")[0]] = found[above] = None
        return list(found)


def write(top: str, tree: Tree) -> None:
    """Make the directories and the files, in order."""
    os.mkdir(top)
    for directory in tree.directories():
        os.mkdir(f"{top}/{directory}")
    for name in tree.pieces:
        descriptor = os.open(f"{top}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        content = tree.content(name)
        while content:
            content = content[os.write(descriptor, content) :]
        os.close(descriptor)


def read(top: str) -> dict[str, int]:
    """Every file from its first to its last byte, as the directories list them: name to CRC."""
    found = {}
    for directory, _, names in os.walk(top):
        for name in names:
            path = f"{directory}/{name}"
            with open(path, "rb", buffering=0) as file:
                found[path[len(top) + 1 :]] = zlib.crc32(file.read())
    return found


def tarball(path: str, tree: Tree) -> None:
    """The same tree in one file."""
    with tarfile.open(path, "w") as archive:
        for directory in tree.directories():
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in tree.pieces:
            content = tree.content(name)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def listing(top: str) -> dict[str, int]:
    """How many files there are, their bytes, and the bytes that their blocks take."""
    files = size = allocated = 0
    for directory, _, names in os.walk(top):
        for name in names:
            facts = os.lstat(f"{directory}/{name}")
            files += 1
            size += facts.st_size
            allocated += facts.st_blocks * 512
    return {"files": files, "bytes": size, "allocated": allocated}


def remove(path: str) -> None:
    """As people remove a tree."""
    subprocess.run(["rm", "-rf", "--", path], check=True)


def used(path: str) -> int:
    """Bytes in use on the file system, as df counts them."""
    facts = os.statvfs(path)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


class Timer:
    """Runs a phase between two quiet moments and keeps what it took."""

    def __init__(self, where: str, drop_caches: str) -> None:
        """``where`` is on the file system, ``drop_caches`` the kernel's file of that name."""
        self.where, self.drop_caches = where, drop_caches
        self.phases: dict[str, dict[str, Any]] = {}
        self.now = "preparing"

    def run(self, phase: str, action: Callable[..., Any], *arguments: Any) -> Any:
        """Nothing cached, then the phase, then everything on the disks."""
        self.now = phase
        os.sync()
        with open(self.drop_caches, "w") as file:
            file.write("3\n")
        before = used(self.where)
        began = time.monotonic()
        answer = action(*arguments)
        os.sync()
        seconds = round(time.monotonic() - began, 6)
        self.phases[phase] = {
            "seconds": seconds,
            "used_before": before,
            "used_after": used(self.where),
        }
        return answer


def main(given: dict[str, Any]) -> str | int:
    """Do the phases that were asked for; what was found, as one JSON object."""
    where, phases = given["directory"], given["phases"]
    made, unpacked = f"{where}/tree", f"{where}/unpacked"
    try:
        os.makedirs(where, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return f"'{where}' is no directory: files need a file system, which 'filesystem' makes"
    tree = Tree(**given["tree"])
    timer = Timer(os.path.dirname(where), given["drop_caches"])
    try:
        if "write" in phases:
            remove(made)
            timer.run("write", write, made, tree)
            timer.phases["write"].update(listing(made))
        if "read" in phases:
            if not os.path.isdir(made):
                return f"there is no '{made}' to read: a workload before this one writes it"
            expected = {name: zlib.crc32(tree.content(name)) for name in tree.pieces}
            found = timer.run("read", read, made)
            wrong = sorted(n for n in {*expected, *found} if found.get(n) != expected.get(n))
            timer.phases["read"].update(files=len(found), wrong=len(wrong), first_wrong=wrong[:5])
        if "unpack" in phases:
            remove(unpacked)
            with tempfile.TemporaryDirectory(dir=given["scratch"]) as scratch:
                source = f"{scratch}/tree.tar"
                tarball(source, tree)
                os.mkdir(unpacked)
                argv = ["tar", "-x", "-f", source, "-C", unpacked]
                timer.run("unpack", lambda: subprocess.run(argv, check=True))
            timer.phases["unpack"].update(listing(unpacked))
        if "remove" in phases:
            there = listing(where)
            if not there["files"]:
                return f"there is nothing in '{where}' to remove: a workload before writes it"
            timer.run("remove", remove, where)
            timer.phases["remove"].update(files=there["files"], bytes=there["bytes"])
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{timer.now}: {error}"
    print(json.dumps({"files": len(tree.pieces), "bytes": tree.bytes, "phases": timer.phases}))
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
