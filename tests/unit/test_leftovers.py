"""What a killed process was making is found, counted and removed.

Each maker runs in a forked process that stops where it would rename what it has made into its
place, or where it would remove what it has set aside. Then it is killed.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from lab.compile.image.series import BuildTree, Target
from lab.host.guest import servers, snapshots
from lab.host.guest.libvirt import capabilities
from lab.host.guest.virtual import snapshot as sealed_snapshot
from lab.host.images import buildtree, linux, native, virtual_time
from lab.host.images import series as image_series
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.system import files, keys, leftovers, made, once, paths, process, unfinished
from lab.host.system.pids import started_ticks
from lab.model.execution.job import SealedKit
from lab.model.execution.procedure import BuildPlugin
from lab.run import guests
from tests.unit.test_image_store import plant

SIZE = 64 << 10
DATA = b"x" * SIZE
LAB = Path(files.__file__).parents[2]
pytestmark = pytest.mark.usefixtures("lab_home")


def written(*words: Any, **_: Any) -> SimpleNamespace:
    """Stands in for a program: it writes its last argument, or what a build tree consists of."""
    argv = [str(word) for word in words[0]]
    if "tree" in argv:
        work = Path(argv[-1])
        (work / "root").mkdir()
        (work / "root/gcc").write_bytes(DATA)
        (work / "source.tar").write_bytes(DATA)
    else:
        Path(argv[argv.index("-o") + 1 if "-o" in argv else -1]).write_bytes(DATA)
    return SimpleNamespace(stdout="", status=0)


def image() -> Any:
    parts = {name: SimpleNamespace(sha256="d" * 64) for name in ("disk.qcow2", "kernel")}
    manifest = SimpleNamespace(files=parts, kernel_version="6.1", source=None)
    place = paths.images() / "mine"
    return SimpleNamespace(
        name="mine", digest="d" * 64, disk=Path("disk"), directory=place, manifest=manifest,
        kernel=place / "kernel",
    )  # fmt: skip


def fill(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(DATA)


def a_file() -> None:
    fill(paths.kernels())
    files.write(paths.kernels() / "k", DATA)


def base() -> None:
    virtual_time.base_of(image(), lambda *_: None)


def driver() -> None:
    virtual_time._build = lambda _, work: fill(work, *virtual_time.DRIVER)  # type: ignore[assignment]
    virtual_time._driver(image(), lambda *_: None)


def boot_files() -> None:
    place = paths.sealed() / "driver"
    fill(place, *virtual_time.DRIVER)
    virtual_time._driver = lambda *_: place  # type: ignore[assignment]
    virtual_time.ext4_modules = lambda *_: {}  # type: ignore[assignment]
    virtual_time._boot_files(image(), Path("base"), lambda *_: None)


def native_files() -> None:
    native._built = lambda *_: dict.fromkeys((native.KERNEL, "init", "engines.so"), DATA)  # type: ignore[assignment]
    native.place_of = lambda _: paths.sealed() / "native-c0ffee"
    native._boot_files(plan(), image(), lambda *_: None)


def sealed() -> None:
    def save(_kit: object, _size: int, work: Path, _: Path) -> dict[str, str]:
        fill(work, *(sealed_snapshot.STATE, sealed_snapshot.MEMORY, sealed_snapshot.REGION))
        return {}

    sealed_snapshot._make = save
    sealed_snapshot.name_of = lambda *_: "snapshot-c0ffee"
    kit = cast(SealedKit, None)
    sealed_snapshot.prepare(kit, 1, directory=Path(), say=lambda _: None)


def warm() -> None:
    with snapshots.making("0123456789abcdef") as place:
        fill(place, "memory.save")
        made.replace(place, paths.warm() / "0123456789abcdef")


def plugin() -> None:
    servers._digest = lambda _: "0123"
    step = BuildPlugin(source="drive/x.c", headers=(), flags=(), libraries=(), link="l")
    servers.build(step)


def probe() -> None:
    cache = Path(os.environ["LAB_HOME"]) / "root/cache/qemu/capabilities"
    fill(cache, "probe.xml")
    capabilities.keep(Path(os.environ["LAB_HOME"]) / "root")


def plan() -> BuildTree:
    asked = SimpleNamespace(target=Target.MD, version="6.1", key="md-6.1")
    asked.command = lambda work: ("tree", str(work))
    return cast(BuildTree, asked)


def tree() -> None:
    image_workspace.check_space = lambda *_: None
    with buildtree.held(plan(), "mine", lambda *_: None):
        pass


def unpatched() -> None:
    place = paths.images() / f"{image_workspace.TREE}md-6.1"
    fill(place, "source.tar")
    image_series.begin = lambda _, tree: fill(tree, "md.c")
    buildtree.compiled = lambda *_: {"raid1.ko": DATA}  # type: ignore[assignment]
    with image_workspace.workspace("mine") as work:
        buildtree.unpatched(buildtree.KeptTree(plan=plan(), directory=place), work)


def kernel() -> None:
    def script(*_words: object, **_names: object) -> dict[str, bytes]:
        return {"bzImage": DATA, "lab_disk.ko": DATA}

    buildtree.run_script = script
    with image_workspace.workspace("linux") as work:
        linux._compiled(cast(Any, None), work, None)


def workspace() -> None:
    with image_workspace.workspace("mine") as work:
        fill(work, "disk.qcow2")
        signal.pause()


def packages() -> None:
    with image_workspace.workspace("packages", paths.packages()) as work:
        fill(work, "linux.deb")
        signal.pause()


def checkout() -> None:
    source = paths.images() / f"{image_workspace.TREE}linux" / "source-1"
    source.parent.mkdir(parents=True)
    with made.making(source) as part:
        fill(part, "Makefile")
        files.move(part, source)


def removed_image() -> None:
    place = plant(content=DATA).directory
    stop_removals()
    image_store._remove_directory(place)


def dropped() -> None:
    fill(paths.warm() / "k1", "memory.save")
    stop_removals()
    made.drop(paths.warm() / "k1", lambda: True)


def replaced() -> None:
    fill(paths.warm() / "k1", "memory.save")
    part = unfinished.name(paths.warm() / "k1")
    fill(part, "memory.save")
    stop_removals()
    made.replace(part, paths.warm() / "k1")


MAKERS: dict[str, tuple[Callable[[], object], bool]] = {
    "a file": (a_file, True),
    "the lab's key": (keys.lab_key, False),
    "an image as a raw file": (base, True),
    "a driver": (driver, True),
    "boot files": (boot_files, True),
    "boot files of native guests": (native_files, True),
    "a sealed snapshot": (sealed, True),
    "a snapshot": (warm, True),
    "a disk server": (plugin, True),
    "libvirt's probe": (probe, True),
    "an image": (workspace, True),
    "fetched packages": (packages, True),
    "a build tree": (tree, True),
    "a source without a series": (unpatched, True),
    "a checkout": (checkout, True),
    "a kernel with its driver": (kernel, True),
    "what several processes need": (lambda: once.once(paths.runs(), "n", DATA.decode), True),
    "a removed image": (removed_image, True),
    "a removed snapshot": (dropped, True),
    "a replaced snapshot": (replaced, True),
}
"""Each maker, and whether it has written :data:`SIZE` bytes when it is killed."""


def stop(*_: object, **__: object) -> NoReturn:
    while True:
        signal.pause()


def stop_removals() -> None:
    renaming.clear()
    shutil.rmtree = stop  # type: ignore[assignment]


renaming: list[object] = []


@contextmanager
def stopped(make: Callable[[], object]) -> Iterator[int]:
    """Yield the process that makes something and stops in the middle."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            rename, pause = Path.rename, signal.pause
            renaming.append(rename)

            def here(*given: Any, **_: Any) -> Any:
                if not renaming and given:
                    return rename(*given)
                os.write(told, b"1")
                while True:
                    pause()

            Path.rename = here  # type: ignore[method-assign]
            os.link = here
            signal.pause = here
            process.run = written  # type: ignore[assignment]
            make()
        except BaseException as error:
            os.write(told, f"ended: {error!r}".encode())
        finally:
            os._exit(1)
    os.close(told)
    try:
        answered, _, _ = select.select([ready], [], [], 60)
        assert answered, "it did not come to its end"
        assert (said := os.read(ready, 9999)) == b"1", said
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", MAKERS)
def test_what_a_killed_maker_leaves_is_counted_and_removed(name: str) -> None:
    removed_if_killed(*MAKERS[name])


def removed_if_killed(make: Callable[[], object], large: bool) -> None:
    with stopped(make):
        assert leftovers.every() == []  # it lives
    there = leftovers.every()
    assert there
    assert sum(files.disk_usage(path) for path in there) >= (SIZE if large else 0)
    for path in there:
        leftovers.discard(path)
    assert leftovers.every() == []
    assert not [path for path in there if os.path.lexists(path)]


def test_gc_removes_them_too() -> None:
    with stopped(MAKERS["an image as a raw file"][0]):
        assert guests.sweep() == []
    left = [path.name for path in leftovers.every()]
    assert left
    assert guests.collect(dry_run=True) == left
    assert guests.sweep() == left


def test_every_maker_is_in_the_table() -> None:
    """A module that makes things under such names is one of those whose makers are killed here."""
    known = {
        *("host/guest/libvirt/capabilities", "host/guest/registry"),
        *("host/guest/servers", "host/guest/snapshots", "host/guest/virtual/snapshot"),
        *("host/guest/ssh/shell", "host/guest/virtual/stopping"),
        *("host/images/build", "host/images/buildtree", "host/images/download"),
        *("host/images/linux", "host/images/native", "host/images/packages", "host/images/store"),
        *("host/images/virtual_time", "host/images/workspace", "host/system/files"),
        "host/real_disks/timing",
        *("host/system/load", "host/system/made", "host/system/once", "host/system/untrusted"),
        *("run/preparation/patched", "store/bundles", "store/runs"),
    }
    makes = re.compile(
        r"\b(?:unfinished\.name|made\.(?:once|held|making|replace)|image_workspace\.workspace)\("
    )
    sources = {
        str(path.relative_to(LAB).with_suffix("")): path.read_text("utf-8")
        for path in LAB.rglob("*.py")
    }
    core = {name for name in sources if not name.startswith("capabilities/")}
    users = {name for name in core if makes.search(sources[name])}
    assert users | {"host/system/made"} == known
    own = re.compile(r"f\"[^\"\n]*[.-]\{os\.getpid\(\)\}")
    named = {name for name, text in sources.items() if own.search(text)}
    short = {"local", "serve", "worker", "worker_process"}  # sockets are in them
    assert named <= {f"capabilities/cluster/{name}" for name in short}


DEAD = "4194305"  # above the kernel's largest process id
OWN = "PID"
"""Stands for this process in names, so that each process of pytest-xdist collects the same."""


def of_this_process(name: str) -> str:
    ticks = str(started_ticks(os.getpid()))
    return name.replace(OWN, str(os.getpid())).replace("TICKS", ticks)


@pytest.mark.parametrize(
    "name",
    [
        f".k.{DEAD}",
        f".k.{OWN}.7.0123456789abcdef.part",
        f".k.{DEAD}.7.0123456789abcdef.part",
        f".dask.{DEAD}",
    ],
)
def test_names_of_dead_processes(name: str) -> None:
    assert unfinished.is_abandoned(of_this_process(name))


@pytest.mark.parametrize(
    "name",
    [
        f".k.{OWN}",
        ".lock-tree-md-6.1.0-56",
        ".tree-mdadm-4.2-5",
        ".k.lock",
        ".k.asked",
        f".l.{DEAD}",  # the guests of a cluster's host are ended first
        "k.1",
        ".maker",
    ],
)
def test_names_of_others(name: str) -> None:
    assert not unfinished.is_abandoned(of_this_process(name))


@pytest.mark.parametrize("name", ["k", "k" * 255, "é" * 127, ".k", "a b\"'#%$,\\"])
def test_a_name_fits_and_is_known(tmp_path: Path, name: str) -> None:
    part = unfinished.name(tmp_path / name)
    part.write_bytes(b"")
    assert part != unfinished.name(tmp_path / name)
    assert unfinished.is_made(part.name)
    assert not unfinished.is_abandoned(part.name)


def test_directories_nested_deeper_than_python_recurses_go(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    nested = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    process.run([sys.executable, "-c", nested], cwd=deep)
    try:
        with pytest.raises((RecursionError, OSError)):  # the control
            shutil.rmtree(deep)
        leftovers.discard(deep)
        assert not deep.exists()
    finally:
        subprocess.run(["rm", "-rf", "--", deep], check=True)  # pytest could not remove it
