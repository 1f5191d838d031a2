"""Tests once per host boot whether KVM runs guests, by running guest code.

``/dev/kvm`` may exist, open and create a machine, and still fail: under some outer hypervisors the
guest's first instruction, or its first mode switch, never completes. So two guests run with a time
limit, on the CPU model of real guests. One runs 16 bytes of real-mode code that print a letter. The
other boots the kernel of an image, if there is one, and must print its version. Linux prints that
only after it has switched to long mode and handled its first page faults.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.core.errors import HostError, LabError
from lab.host.system import files, paths, process
from lab.host.system.makers import boot_id

EMULATOR: Final = "qemu-system-x86_64"
DEVICE: Final = Path("/dev/kvm")
SECONDS: Final = 10.0
_LETTER: Final = "K"
CPU: Final = {"kvm": "host", "tcg": "qemu64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The accelerator of guests, and the reason for it."""

    kind: str
    """``kvm`` or ``tcg``."""
    reason: str
    """``TCG, because …``; for KVM, the tests that passed."""


def emulator() -> str:
    """Return the path of QEMU; ``HostError``: it is not installed."""
    found = shutil.which(EMULATOR)
    if found is None:
        raise HostError(
            f"QEMU is not installed: there is no '{EMULATOR}' on PATH",
            hint="install it: make setup, or: sudo apt-get install qemu-system-x86",
        )
    return found


def is_root() -> bool:
    return os.geteuid() == 0


def cpus() -> int:
    """Return the number of CPUs that the lab may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Return the CPU's name (``/proc/cpuinfo``)."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def qemu_identity() -> str:
    """Return QEMU's path, size and time; an update changes it."""
    path = Path(emulator()).resolve()
    stat = path.stat()
    return f"{path} {stat.st_size} {stat.st_mtime_ns}"


REFERENCE_BOOT: Final = {"kvm": 8.0, "tcg": 25.0}
"""Seconds of a cold boot on the reference host, for which the timeouts were chosen."""


def remember_boot(kind: str, seconds: float) -> None:
    """Store the duration of a boot, as a measure of this host's speed."""
    memory = paths.host() / f"boot-{kind}.json"
    files.make_directory(memory.parent)
    files.write(memory, json.dumps({"seconds": seconds}))


def slowness(kind: str) -> float:
    """Return the duration of a boot here relative to the reference host's; at least 1."""
    try:
        text = (paths.host() / f"boot-{kind}.json").read_text(encoding="utf-8")
        return max(1.0, float(json.loads(text)["seconds"]) / REFERENCE_BOOT[kind])
    except (OSError, ValueError, TypeError, KeyError):
        return 1.0


def qemu_version() -> str:
    """Return QEMU's version, such as ``7.2.22``."""
    words = process.run([emulator(), "--version"], timeout=20).stdout.split()
    return words[3] if len(words) > 3 else "unknown"


def rom() -> bytes:
    """Return a 64 KiB BIOS whose reset vector prints one letter and ends QEMU.

    Port 0xe9 is QEMU's debug console, port 0xf4 its ``isa-debug-exit``.
    """
    image = bytearray(b"\xf4" * 65536)  # hlt
    code = bytes([0xB0, ord(_LETTER), 0xE6, 0xE9, 0xB0, 0x2A, 0xE6, 0xF4, 0xF4])
    image[: len(code)] = code
    image[0xFFF0:0xFFF5] = bytes([0xEA, 0x00, 0x00, 0x00, 0xF0])  # jmp f000:0000
    return bytes(image)


def try_code(kind: str) -> str | None:
    """Run the 16 bytes under an accelerator; return the failure, or ``None``."""
    with TemporaryDirectory(prefix="lab-probe-") as directory:
        bios = Path(directory) / "rom"
        bios.write_bytes(rom())
        argv = [
            *(emulator(), "-machine", "pc", "-accel", kind, "-cpu", CPU[kind], "-m", "16"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-bios", str(bios), "-debugcon", "stdio"),
            *("-device", "isa-debug-exit,iobase=0xf4"),
        ]
        return _said(argv, _LETTER, "16 bytes of guest code")


def try_kernel(kind: str, kernel: Path) -> str | None:
    """Boot a kernel without a root file system until it prints its version; return the failure, or
    ``None``."""
    argv = [
        *(emulator(), "-machine", "pc", "-accel", kind, "-cpu", CPU[kind], "-m", "256"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(kernel)),
        *("-append", "console=ttyS0 earlyprintk=serial panic=-1"),
    ]
    return _said(argv, "Linux version", "a Linux kernel")


def _said(argv: list[str], expected: str, what: str) -> str | None:
    with TemporaryDirectory(prefix="lab-probe-") as directory:
        log = Path(directory) / "log"
        try:
            # timeout(1) ends QEMU by SIGTERM and keeps what it printed.
            done = process.run(
                ["timeout", "--kill-after=2", str(SECONDS), *argv],
                timeout=SECONDS + 10,
                check=False,
                log=log,
                cwd=Path("/"),  # QEMU takes firmware of its working directory before its own
            )
        except LabError as error:
            return error.message
        text = log.read_text(encoding="utf-8", errors="replace")
    if expected in text:
        return None
    errors = [line for line in text.splitlines() if "error" in line.lower()]
    if errors:
        return f"{what} could not be started: {errors[0].split(': ', 1)[-1].strip()}"
    if done.status in (124, 137):
        return f"{what} printed nothing for {SECONDS:.0f} seconds"
    return f"{what} did not start: QEMU ended with status {done.status}"


def find(kernel: Path | None = None, *, fresh: bool = False) -> Accelerator:
    """Return the accelerator for guests; cached per host boot, QEMU version and kernel."""
    if not DEVICE.exists():
        return Accelerator(kind="tcg", reason=f"TCG, because there is no {DEVICE}")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return Accelerator(
            kind="tcg",
            reason="TCG, because this user may not open /dev/kvm"
            " (fix: sudo usermod -aG kvm $USER, then log in again)",
        )
    key = f"{boot_id()} {qemu_version()} {kernel or '-'}"
    memory = paths.host() / "accelerator.json"
    known: dict[str, dict[str, str]] = {}
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if not isinstance(known, dict):
            raise TypeError
        if key in known and not fresh:
            return Accelerator(**known[key])
    except (OSError, ValueError, TypeError):
        known = {}
    found = _probe(kernel)
    known = {k: v for k, v in known.items() if k.startswith(boot_id())} | {key: asdict(found)}
    files.make_directory(memory.parent)
    files.write(memory, json.dumps(known, indent=1))
    return found


def _probe(kernel: Path | None) -> Accelerator:
    wrong = try_code("kvm")
    if wrong is None and kernel is not None:
        wrong = try_kernel("kvm", kernel)
    if wrong is not None:
        return Accelerator(kind="tcg", reason=f"TCG, because under KVM {wrong}")
    proven = "guest code and a Linux kernel ran" if kernel else "guest code ran"
    return Accelerator(kind="kvm", reason=f"KVM: {proven} under it")
