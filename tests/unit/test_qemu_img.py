"""A format in every command line of qemu-img: a guest writes what it would guess from."""

from __future__ import annotations

import ast
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lab.compile.guest.domain_xml import Machine, domain_xml
from lab.core import qemu_img
from lab.model.scenario.document import Disk, DiskFormat
from lab.plugins import catalog

ROOT = Path(__file__).parents[2]
PROGRAMS = ("qemu-img", "qemu-io", "qemu-nbd", "qemu-storage-daemon")
needs_qemu_img = pytest.mark.skipif(
    shutil.which("qemu-img") is None, reason="qemu-img is not installed"
)


def calls(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that name one of the programs as a word of a command line."""
    for node in ast.walk(tree):
        words: list[ast.expr] = []
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            words = node.elts
        elif isinstance(node, ast.Call):
            words = node.args
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            words = [node.value]
        for word in words:
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                first = (word.value.split() or [""])[0].rpartition("/")[2]
                if first in PROGRAMS:
                    yield word.lineno


def test_no_other_module_makes_a_command_line_of_qemu_img() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for directory in ("lab", "drive", "bench", "docs", "tools")
        for path in sorted((ROOT / directory).rglob("*.py"))
        for line in calls(ast.parse(path.read_text(encoding="utf-8")))
        if path != ROOT / "lab/core/qemu_img.py"
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        'run(["qemu-img", "convert"])',
        'run(("/usr/bin/qemu-img", "info"))',
        'tool = "qemu-nbd"',
        'run("qemu-img map x", shell=True)',
        '("sh", *("qemu-io", "-c"))',
    ],
)
def test_such_a_command_line_is_found(text: str) -> None:
    assert list(calls(ast.parse(text)))


def test_shell_scripts_give_a_format_too() -> None:
    lines = [
        line
        for directory in ("lab", "drive", "bench", "images", "tools")
        for path in (ROOT / directory).rglob("*.sh")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(qemu-img|qemu-io|qemu-nbd) ", line)
    ]
    assert lines
    assert all(re.search(r" (-f|--format=)", line) for line in lines)
    assert all(" -b " not in line or " -F " in line for line in lines)


def test_each_function_gives_the_format_and_that_of_a_base() -> None:
    commands = [
        qemu_img.create("raw", "/a.raw", 512),
        qemu_img.overlay("/a.qcow2", "/b.qcow2"),
        qemu_img.rebase("/b.qcow2", "/a.qcow2"),
        qemu_img.convert("/a.raw", "raw", "/b.qcow2", "qcow2"),
        qemu_img.extents("/a.raw", "raw"),
        qemu_img.info("/a.raw", "raw"),
        qemu_img.compare("/a.raw", "raw", 0, 0, 512),
    ]
    functions = [
        n
        for n in ast.parse(Path(qemu_img.__file__).read_text()).body
        if isinstance(n, ast.FunctionDef) and n.name not in ("format_of", "_named")
    ]
    assert len(commands) == len(functions)
    for command in commands:
        assert command[command.index("-f") + 1] in ("raw", "qcow2")
        assert ("-b" in command) == ("-F" in command)


ADDRESSES = ("nbd:127.0.0.1:10809", 'json:{"driver":"null-co"}', "ssh:x/y")


@pytest.mark.parametrize("name", ADDRESSES)
def test_no_function_gives_a_name_that_is_an_address(name: str) -> None:
    for command in (
        qemu_img.create("raw", name, 512),
        qemu_img.overlay(name, name),
        qemu_img.rebase(name, name),
        qemu_img.convert(name, "raw", name, "qcow2"),
        qemu_img.extents(name, "raw"),
        qemu_img.info(name, "raw"),
        qemu_img.compare(name, "raw", 0, 0, 512),
    ):
        assert f"./{name}" in command
        assert name not in command
    for path in ("disk.raw", "/a:b/disk", "a/b:c", "@DIRECTORY@/x"):
        assert qemu_img.info(path, "raw")[-1] == path


def test_a_disks_format_is_that_of_its_name_and_never_guessed(tmp_path: Path) -> None:
    assert [qemu_img.format_of(f"/d/x.{kind.value}") for kind in DiskFormat] == [*DiskFormat]
    with pytest.raises(ValueError, match="not the name of a disk"):
        qemu_img.format_of("/d/disk1")


def test_qemu_is_given_the_format_of_every_disk() -> None:
    machine = Machine(
        accelerator="tcg",
        emulator="/usr/bin/qemu-system-x86_64",
        machine_type="pc",
        cpus=1,
        memory=1 << 29,
        root_disk="/g/root.qcow2",
        seed="/g/seed.iso",
        console="/g/console.log",
        kernel=None,
        initrd=None,
        kernel_arguments=(),
    )
    disks = ET.fromstring(domain_xml(machine)).findall("devices/disk")
    for name in catalog.plugin_names("disks"):
        for kind in DiskFormat:
            disk = Disk(count=1, size=1 << 30, format=kind)
            xml = catalog.disk_model(name).xml(disk, serial="d1", path="/g/d1", index=1)
            disks.append(ET.fromstring(xml))
    assert len(disks) > 6
    for disk in disks:
        driver = disk.find("driver")
        assert driver is not None
        assert driver.get("type") in ("raw", "qcow2")


# --- the attack: a raw disk that begins with a header of qcow2, written by a guest ---------------


@contextmanager
def listener() -> Iterator[tuple[int, list[int]]]:
    """Yield a port of this host, and the connections to it."""
    found: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                found.append(1)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], found
        finally:
            over.set()
            thread.join()


def written_by_a_guest(path: Path, backing: str) -> Path:
    """Write a raw disk that begins with the header of a qcow2 file over ``backing``."""
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "8M"], check=True)
    data = bytearray(path.read_bytes())
    name = backing.encode()
    data[0x1000 : 0x1000 + len(name)] = name
    struct.pack_into(">QI", data, 8, 0x1000, len(name))
    path.write_bytes(bytes(data).ljust(8 << 20, b"\0"))
    return path


@needs_qemu_img
@pytest.mark.parametrize("call", ["extents", "convert", "info"])
def test_no_call_opens_what_a_guest_names(tmp_path: Path, call: str) -> None:
    with listener() as (port, found):
        disk = written_by_a_guest(tmp_path / "d1.raw", f"nbd://127.0.0.1:{port}/x")
        target = tmp_path / "copy.raw"
        kind = qemu_img.format_of(disk)
        command = {
            "extents": qemu_img.extents(disk, kind),
            "convert": qemu_img.convert(disk, kind, target, "raw"),
            "info": qemu_img.info(disk, kind),
        }[call]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert found == []
        if call == "convert":
            assert target.read_bytes() == disk.read_bytes()
        if call == "info":
            assert json.loads(done.stdout)["format"] == "raw"
        # The control: without the format the host connects to the address.
        guessing = [
            word for n, word in enumerate(command) if "-f" not in command[max(0, n - 1) : n + 1]
        ]
        if call == "info":
            guessing.append("--backing-chain")
        assert len(guessing) <= len(command)
        done = subprocess.run(guessing, capture_output=True, timeout=60)
        assert found, done.stderr
