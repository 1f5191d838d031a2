"""What a native guest's kernel cannot ask of the host once its root has broken into it."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from drive.native.command import Guest
from lab.host.guest.virtual import sealed as backend
from lab.host.guest.virtual.system_calls import REFUSED, native_filter
from lab.model.scenario.guest import Engine

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers are of x86-64")
TRIES = """\
import ctypes, errno, json, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
program = open(sys.argv[1], "rb").read()
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
if program:
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, program))) == 0
said = {}
for name, number in json.loads(sys.argv[2]).items():
    if os.fork() == 0:  # some would change this process
        ctypes.set_errno(0)
        bad = ctypes.c_long(-1)
        libc.syscall(number, bad, bad, bad, bad, bad)
        os._exit(ctypes.get_errno())
    said[name] = os.waitstatus_to_exitcode(os.wait()[1])
def mapped(flags, file=-1):
    try:
        mmap.mmap(file, 4096, flags=flags)
        return "mapped"
    except OSError as error:
        return errno.errorcode[error.errno]
with open(sys.argv[3], "w+b") as file:
    file.truncate(4096)
    maps = [
        mapped(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        mapped(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
        mapped(mmap.MAP_SHARED, file.fileno()),
    ]
print(json.dumps({"said": said, "maps": maps}))
"""
HARMLESS = {
    name: number
    for name, number in REFUSED.items()
    if name in ("memfd_create", "socket", "shmget", "splice", "process_vm_readv")
}
"""Those whose control harms nobody: with arguments of all ones the host's kernel refuses them."""


def tried(tmp_path: Path, program: bytes, calls: dict[str, int]) -> dict[str, dict[str, int]]:
    (tmp_path / "program").write_bytes(program)
    words = [str(tmp_path / "program"), json.dumps(calls), str(tmp_path / "file")]
    done = subprocess.run(
        [sys.executable, "-c", TRIES, *words], capture_output=True, text=True, check=True
    )
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_what_linux_never_calls_is_refused(tmp_path: Path) -> None:
    found = tried(tmp_path, native_filter(), REFUSED)
    assert set(found["said"].values()) == {1}  # EPERM
    assert found["maps"] == ["EPERM", "mapped", "mapped"]


def test_the_control_reaches_the_host(tmp_path: Path) -> None:
    found = tried(tmp_path, b"", HARMLESS)
    assert 1 not in found["said"].values()
    assert found["maps"] == ["mapped", "mapped", "mapped"]


def test_a_call_of_another_kind_of_program_ends_it(tmp_path: Path) -> None:
    found = tried(tmp_path, native_filter(), {"getpid of x32": 0x40000000 | 39})
    assert found["said"] == {"getpid of x32": -31}  # SIGSYS


def test_a_file_in_memory_has_the_program_and_no_more() -> None:
    program = native_filter()
    assert len(program) % 512 == 0
    assert len(program) // 8 <= 4096  # BPF_MAXINSNS
    assert struct.unpack("<HBBI", program[-8:]) == (0x06, 0, 0, 0x7FFF0000)


def test_a_native_guest_starts_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = {name: tmp_path / name for name in ("kernel", "initramfs", "region", "base")}
    monkeypatch.setattr(backend, "native_guest_of", lambda *_: Guest(**own))
    found: list[tuple[str, ...]] = []

    def started(_self: object, command: list[str], calls: int) -> None:
        assert os.read(calls, 1 << 20) == native_filter()
        found.append((command[command.index("--seccomp") + 1], str(calls)))
        assert "/linux" in command[command.index("--seccomp") :]

    monkeypatch.setattr(backend.SealedBackend, "_started", started)
    guest = backend.SealedBackend.__new__(backend.SealedBackend)
    guest._kit = SimpleNamespace(engine=Engine.NATIVE)  # type: ignore[assignment]
    guest._start_native(SimpleNamespace(region=None))  # type: ignore[arg-type]
    ((given, opened),) = found
    assert given == opened


def test_the_numbers_are_those_of_the_kernel() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no headers of the kernel here")
    lines = header.read_text(encoding="ascii").splitlines()
    known = {w[1].removeprefix("__NR_"): int(w[2]) for w in map(str.split, lines) if len(w) == 3}
    assert {name: known.get(name, number) for name, number in REFUSED.items()} == REFUSED
