"""Homes with special characters: what can be quoted or encoded works, what cannot is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import paramiko
import pytest
from typer.testing import CliRunner

from drive import monitor, sealed
from lab.cli.commands import app
from lab.compile.guest.cloud_init import Identity
from lab.compile.guest.domain_xml import domain_xml
from lab.compile.guest.steps import Site, guest_procedure, machine_of
from lab.compile.image import build as image_build
from lab.core import qemu_img
from lab.core.errors import HostError, InputError
from lab.host.guest import registry
from lab.host.guest.libvirt.hypervisor import moved, try_open, uri_of
from lab.host.system import files, keys, paths
from lab.host.system.pids import used_paths
from lab.model.execution.procedure import HostCommand
from lab.model.scenario.guest import Guest
from lab.run import guests
from lab.store import bundles
from lab.store.runs import RunStore
from tests.fakes import stored_run

WORKS = (
    *(" ", "'", '"', "#", "%", "$", "\\", "é日", ":;&", "?*[b]", "+~^@!", "`|<>()", "%41%h"),
    *("${HOME}$(id)", "a  b", "&amp;", "-x"),
)
ALL = " '\"#%$\\é:;&?*+~`|<>()[b]{x}!@^%41${HOME}"
REFUSED = (",", "=", "\n", "\t", "\r", "\x01", "\x7f", "\udcff", "\u2028", "\x9b")


@pytest.fixture(params=[*WORKS, ALL])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose path has the characters at the beginning, in the middle, and at the end."""
    text = request.param
    place = tmp_path / f"{text}h{text}h{text}"
    place.mkdir()
    monkeypatch.setenv("LAB_HOME", str(place))
    return place


@pytest.fixture
def worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / ALL
    place.mkdir()
    monkeypatch.setenv("LAB_HOME", str(place))
    return place


@pytest.mark.parametrize("variable", ["LAB_HOME", "XDG_DATA_HOME", "HOME"])
@pytest.mark.parametrize("text", REFUSED)
def test_what_no_program_can_take_is_refused_before_anything_is_written(
    variable: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAB_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / f"a{text}b"
    monkeypatch.setenv(variable, str(place))
    with pytest.raises(InputError, match="the path of the lab's files cannot have") as error:
        paths.images()
    assert variable in error.value.message
    assert "LAB_HOME" in error.value.hint
    assert error.value.message.isprintable()
    if text == ",":
        assert isinstance(CliRunner().invoke(app, ["ps"]).exception, InputError)
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.host import doctor

    monkeypatch.setattr(doctor, "_libvirt", doctor._qemu)
    monkeypatch.setattr(doctor, "_accelerator", doctor._qemu)
    monkeypatch.setattr(doctor, "_archive", doctor._qemu)
    for name, good in (("a,b", False), ("x" * 100, False), (ALL[:8], True)):
        short = Path(tempfile.mkdtemp(dir="/tmp"))
        monkeypatch.setenv("LAB_HOME", str(short / name))
        home, *rest = doctor.findings()
        assert (home.name, home.good, bool(home.mend)) == ("home", good, not good)
        assert rest
        short.rmdir()


def test_a_long_home_is_refused_before_an_image_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_length(most: int) -> None:
        monkeypatch.setenv("LAB_HOME", "/" + "h" * (most - len("/state/guests") - 1))

    for virtual, tail in ((False, len("/g123456") + 35), (True, len("/g123456/monitor"))):
        with_length(107 - tail)
        paths.check_length(virtual=virtual)
        with_length(107 - tail + 1)
        with pytest.raises(HostError, match="too long for QEMU's sockets"):
            paths.check_length(virtual=virtual)


def test_a_relative_home_may_begin_with_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_HOME", "--help")
    assert paths.images() == tmp_path / "--help/data/images"


# -- who gets the path


def test_libvirts_uri(home: Path) -> None:
    parts = urlsplit(uri_of(home))
    assert (parts.scheme, parts.path, parts.fragment) == ("qemu", "/embed", "")
    assert parse_qs(parts.query, strict_parsing=True) == {"root": [str(home)]}


def test_libvirt_itself_opens_that_root_and_no_other(
    worst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(worst))
    opened = []
    remove = tempfile.TemporaryDirectory.cleanup

    def look(directory: tempfile.TemporaryDirectory[str]) -> None:
        opened.extend(os.listdir(directory.name))  # noqa: PTH208
        remove(directory)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "__exit__", lambda it, *_: look(it))
    assert try_open()
    assert {"run", "lib"} <= set(opened)
    assert [path.name for path in worst.parent.iterdir()] == [worst.name]


def domain(home: Path) -> str:
    site = Site(
        directory=str(home / "g1"),
        accelerator="tcg",
        emulator="qemu",
        machine_type="pc",
        image_disk=str(home / "disk.qcow2"),
        kernel=str(home / "kernel"),
        initrd=str(home / "initrd"),
        as_root=True,
    )
    return domain_xml(machine_of(Guest(image="debian-12"), site))


def test_the_domain_and_a_saved_one_in_another_directory(home: Path) -> None:
    xml = domain(home)
    found = ET.fromstring(xml)
    assert found.findtext("os/kernel") == str(home / "kernel")
    sources = [source.get("file") for source in found.iter("source") if source.get("file")]
    assert f"{home}/g1/root.qcow2" in sources
    for written in (xml, xml.replace("&quot;", "&#34;").replace("'", "&apos;")):
        again = ET.fromstring(moved(written, f"{home}/g1", f"{home}/g2"))
        assert f"{home}/g2/root.qcow2" in [s.get("file") for s in again.iter("source")]
        assert f"{home}/g1/" not in [
            s.get("file", "")[: len(f"{home}/g1/")] for s in again.iter("source")
        ]


def split(option: str) -> list[str]:
    """Return the parts of an option as QEMU does: a doubled comma is one (``get_opt_value``)."""
    return [part.replace("\0", ",") for part in option.replace(",,", "\0").split(",")]


@pytest.mark.parametrize("text", [*WORKS, ",", ",,", "=", ",size=1", ALL])
def test_qemus_options(text: str, tmp_path: Path) -> None:
    """Commas are doubled, although such a home is refused: no path becomes an option."""
    place = tmp_path / f"a{text}b"
    base = place.with_name("base")
    base.write_bytes(b"x")
    guest = sealed.Guest(
        kernel=place, initramfs=place, region=place, base=base, memory_file=place, saves=True
    )
    command = sealed.command(guest, region_size=1 << 20)
    command += monitor.Monitor.arguments(place) + monitor.Console.arguments(place)
    command += sealed.unsealed(str(place), str(place), 1, str(place))
    objects = [split(command[i + 1]) for i, word in enumerate(command) if word == "-object"]
    assert len(objects) == 5
    for words in objects:
        names = [word.partition("=")[0] for word in words]
        assert len(names) == len(set(names))
        assert set(names) <= {"memory-backend-file", "id", "mem-path", "size", "share", "readonly"}
        assert f"mem-path={place}" in words or f"mem-path={base}" in words
    sockets = [split(command[i + 1]) for i, w in enumerate(command) if w in ("-qmp", "-monitor")]
    assert sockets == [[f"unix:{place}", "server=on", "wait=off"]] * 3


def test_a_disk_over_the_image_and_the_seed_of_cloud_init(home: Path) -> None:
    """The commands of a guest's procedure, with the real programs."""
    place = home / "g1"
    image = home / "disk.qcow2"
    subprocess.run(qemu_img.create(qemu_img.QCOW2, image, 1 << 20), check=True, timeout=60)
    site = Site(
        directory=str(place), accelerator="tcg", emulator="qemu", machine_type="pc",
        image_disk=str(image), kernel=None, initrd=None, as_root=True,
    )  # fmt: skip
    identity = Identity(
        guest="g1", host_name="lab", host_key_private="k", host_key_public="k", authorized_key="k"
    )
    procedure = guest_procedure(Guest(image="debian-12"), site, identity)
    (place / "seed").mkdir(parents=True)
    for name in ("user-data", "meta-data"):
        (place / "seed" / name).write_text(name)
    commands = [step for step in procedure.steps if isinstance(step, HostCommand)]
    for step in commands:
        subprocess.run(step.argv, check=True, capture_output=True, timeout=60)
        assert [Path(made).is_file() for made in step.creates] == [True]
    told = subprocess.run(
        qemu_img.info(place / "root.qcow2", qemu_img.QCOW2),
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert json.loads(told.stdout)["full-backing-filename"] == str(image)
    assert sorted(path.name for path in home.parent.iterdir()) == [home.name]
    # The printed script does the same.
    shutil.rmtree(place)
    (place / "seed").mkdir(parents=True)
    script = "\n".join(line for step in commands for line in step.shell() if "xorriso" not in line)
    environment = {**os.environ, "DIRECTORY": str(place)}
    subprocess.run(["sh", "-euc", script], check=True, timeout=60, env=environment)
    assert (place / "root.qcow2").is_file()


class Server(paramiko.ServerInterface):
    """Accepts the lab's key, and answers a command."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        mine = key.get_base64() == keys.lab_key().public.split()[1]
        return paramiko.AUTH_SUCCESSFUL if mine else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def answer() -> None:
            channel.sendall(b"ran " + command)
            channel.send_exit_status(7)
            channel.close()

        threading.Thread(target=answer, daemon=True).start()
        return True


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """An SSH server; its port and public host key."""
    pair = keys.make()
    path = tmp_path / "host_key"
    path.write_text(pair.private)
    host_key = paramiko.Ed25519Key.from_private_key_file(str(path))
    path.unlink()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            transport = paramiko.Transport(connection)
            transport.add_server_key(host_key)
            transport.start_server(server=Server())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], pair.public


def test_ssh_reads_its_key_and_the_pinned_host_key(home: Path, sshd: tuple[int, str]) -> None:
    port, public = sshd
    keys.lab_key()
    record = registry.create(guest="g1", scenario="q", image="i", host_key=public)
    record = dataclasses.replace(record, port=port)
    registry.write(record)
    argv = guests.ssh_argv(record, ("echo", "x"), user="lab")
    environment = {**os.environ, **guests.ssh_environment(record)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (7, "ran echo x"), done.stderr


def test_the_shell_of_a_build(home: Path) -> None:
    """In the namespace the working directory has a plain path, for apt, dpkg and mmdebstrap."""
    work = home / "work"
    work.mkdir()
    inside = image_build.seen_at(work)
    hook = shlex.join(["sh", f"{inside}/hook"]) + f' "$1" {shlex.quote(str(inside))}'
    (work / "hook").write_text('echo "$1" > "$2/found"\n')
    words = ("sh", "-c", hook, "-", "ROOT")
    argv = image_build.namespaced(image_build.bound(words, work), root=os.geteuid() == 0)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
    assert (work / "found").read_text() == "ROOT\n"
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+~@-")
    assert set(str(inside)) <= plain
    assert sorted(path.name for path in home.parent.iterdir()) == [home.name]


def test_a_plain_home_is_seen_as_it_is(tmp_path: Path) -> None:
    assert image_build.seen_at(tmp_path) == tmp_path
    assert image_build.bound(("true",), tmp_path) == ("true",)


@pytest.mark.parametrize("form", ["mem-path={},share=on", '{{"filename":{}}}', "{}"])
def test_processes_that_use_a_file_are_found(home: Path, form: str) -> None:
    file = paths.sealed() / "base-1"
    files.make_directory(file.parent)
    text = json.dumps(str(file), ensure_ascii=False) if "filename" in form else str(file)
    program = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", program, form.format(text)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert used_paths(paths.sealed()) == {file}
        process.kill()


def test_the_qemu_of_a_guest_is_found(home: Path, tmp_path: Path) -> None:
    """Restored guests have the path in JSON only (``-blockdev``)."""
    record = registry.create(guest="g1", scenario="q", image="i", host_key="ssh-ed25519 AAAA")
    program = tmp_path / "qemu-system-x86_64"
    program.symlink_to(sys.executable)
    disk = json.dumps({"filename": str(record.path / "root.qcow2")}, ensure_ascii=False)
    words = [program, "-c", "import time; print('up', flush=True); time.sleep(60)", disk]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert registry.qemu_pids(record.path) == [process.pid]
        assert registry.qemu_pids(record.path.with_name("g2")) == []
        registry.remove(record.path)
        assert process.wait(30) == -signal.SIGTERM


def test_a_run_and_its_bundle(home: Path, tmp_path: Path) -> None:
    run: RunStore = stored_run(paths.runs())
    about = run.load_run()
    bundle = home / "run.lab.zip"
    bundles.write(run, about.cells, "{}", bundle)
    shutil.rmtree(run.directory)
    taken = bundles.take_in(bundle)
    assert taken.load_run().id == about.id
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.name]


def test_commands_print_it_as_it_is(worst: Path) -> None:
    """Brackets are no markup, and nothing is read as a pattern."""
    for words in (["ps"], ["image", "list"], ["results", "list"], ["gc"]):
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, (words, ended.output)
    assert [path.name for path in worst.parent.iterdir()] == [worst.name]
