"""Cells on a cluster: assignment to hosts, results, and refusals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from lab.capabilities.cluster import client as cluster
from lab.capabilities.cluster import files as cluster_files
from lab.capabilities.cluster import hosts as cluster_host
from lab.capabilities.cluster import local as cluster_local
from lab.capabilities.cluster import logic as resources
from lab.capabilities.cluster import run as app
from lab.capabilities.cluster import tls as cluster_tls
from lab.capabilities.cluster import worker as cluster_worker
from lab.capabilities.cluster import worker_process
from lab.capabilities.cluster.client import Link
from lab.capabilities.cluster.files import Shelf
from lab.capabilities.cluster.model import OUTCOME as CELL_DONE
from lab.capabilities.cluster.model import Assignment, Returned
from lab.capabilities.cluster.worker import Wire
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.compile.schedule import Need
from lab.core.errors import EXIT_TROUBLE, HostError, InputError, LabError, TroubleError
from lab.core.units import GIB
from lab.core.yaml import parse_override
from lab.host.guest import registry as guests
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.real_disks import profiles
from lab.host.system import paths
from lab.host.system.accelerator import Accelerator
from lab.md.theory.profile import fit
from lab.model.image.manifest import Image, ImageBoot, ImageFile, ImageManifest, ImageSource
from lab.model.result.document import Outcome, PhaseSeconds
from lab.model.scenario.document import Cell
from lab.plugins.disks.hdd import PRESETS
from lab.plugins.disks.ssd import PRESETS as SOLID
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import SCENARIO, compiled_text, with_matrix
from tests.integration.test_profile import samples_of
from tests.sleepers import facts

ROOT = Path(__file__).resolve().parents[4]
DISK = os.urandom(3 * cluster_files.CHUNK // 2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "h"))
    return tmp_path / "h"


# -- addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1", "tls://127.0.0.1:8786"),
        ("localhost:99", "tls://localhost:99"),
        ("tls://192.0.2.7:1", "tls://192.0.2.7:1"),
        ("[::1]:7", "tls://[::1]:7"),
    ],
)
def test_an_address_is_one_with_tls(text: str, address: str) -> None:
    assert cluster.address_of(text) == address


def test_an_address_is_told_from_a_word() -> None:
    for text in ("http://127.0.0.1", "127.0.0.1:port", "tls://"):
        with pytest.raises(InputError, match="is no address of a scheduler"):
            cluster.address_of(text)
    with pytest.raises(InputError, match="is an address without TLS") as refused:
        cluster.address_of("tcp://127.0.0.1:8786")
    assert refused.value.hint == "leave out 'tcp://': 127.0.0.1:8786"
    with pytest.raises(InputError, match="no cluster is up on this machine"):
        cluster_local.door_of("local", None)
    with pytest.raises(InputError, match=r"there is no '.*/data/tls', and a cluster needs"):
        cluster_local.door_of("127.0.0.1", None)


# -- resources


def cells_of(text: str, directory: Path) -> Compiled:
    return compiled_text(directory, text, name="question")


DEVICE = "/dev/disk/by-id/ata-A_S1"
REAL = f"""\
title: Real and virtual
question: Does it answer?
disks:
  - {{device: {DEVICE}, size: 1GiB, device_serial: S1}}
  - {{size: 1GiB, count: 2}}
array: {{level: 5, chunk: 64KiB, component_size: 256MiB}}
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 128KiB, count: 10, oflag: direct}}
trials: 1
matrix:
  array.chunk: [16KiB, 32KiB, 64KiB, 128KiB]
"""
CLAIM = """\
claims:
  - id: ONE
    says: It is not slower than nothing
    expect:
      kind: bound
      value: {workload: write, where: {array.chunk: 64KiB}}
      at_least: 1MB/s
"""
OFFER = resources.offered(
    accelerator="tcg",
    guests=6,
    virtual=2,
    memory=5 * GIB,
    space=9 * GIB,
    images=["debian-12-0123"],
    disks=[],
    share=2,
)


def test_a_host_offers_its_share_and_keeps_a_reserve() -> None:
    assert {
        "tcg": 6.0,
        "cpus": 6.0,
        "virtual": 2.0,
        "memory": 2.0 * GIB,
        "space": 4.0 * GIB,
        "image:debian-12-0123": 6.0,
    } == OFFER


def test_what_no_host_has_is_named_with_what_they_have() -> None:
    wants = {"kvm": 1.0, "cpus": 2.0, "memory": 3.0 * GIB, "space": 1.0, "image:debian-13-4": 1.0}
    said = resources.lacking(wants, {"a": OFFER})
    assert said == (
        "it needs KVM, 3GiB of memory, the image debian-13-4; "
        "a has not KVM, 2GiB of memory, not the image debian-13-4"
    )
    assert resources.lacking(wants, {}).endswith("there is no host")
    assert resources.lacking({"tcg": 1.0, "cpus": 6.0}, {"a": OFFER}) == ""
    # Two hosts with half of it each are not enough.
    halves = {"a": {"cpus": 1.0, "memory": 9.0}, "b": {"cpus": 9.0, "memory": 1.0}}
    assert resources.lacking({"cpus": 2.0, "memory": 2.0}, halves)


def test_a_real_disk_is_one_cells_and_goes_by_its_name(tmp_path: Path) -> None:
    cell = cells_of(REAL, tmp_path).base
    need = Need(memory=1, space=1, rate=0, cores=0)
    assert resources.wanted(cell, need, "tcg")[f"disk:{DEVICE}"] == 1.0
    offer = resources.offered(
        accelerator="tcg",
        guests=6,
        virtual=2,
        memory=5,
        space=5,
        images=[],
        disks=[DEVICE],
        share=1,
    )
    assert offer[f"disk:{DEVICE}"] == 1.0
    wants = {f"disk:{DEVICE}": 1.0}
    assert resources.lacking(wants, {"a": OFFER}) == (
        f"it needs the disk {DEVICE}; a has not the disk {DEVICE}"
    )
    assert resources.lacking(wants, {"a": OFFER, "b": offer}) == ""


def assigned(
    compiled: Compiled, tmp_path: Path, how: RunOptions, cells: Sequence[Cell] = ()
) -> Assignment:
    """Return the assignment of a run for hosts."""
    pytest.importorskip("distributed")
    hosts = {"tcp://127.0.0.1:1": facts("a", 1)}
    found = app.ClusterExecutor(
        link=cast("Link", None), hosts=hosts, options=how, watch=lambda *_: None, say=print
    )
    store = stored(compiled, tmp_path / "out")
    return Assignment.model_validate_json(
        found._assignment(store, compiled, {}, cells or compiled.cells, jobs=1).model_dump_json()
    )


def test_a_host_makes_the_same_cells_without_a_file_of_the_clients(tmp_path: Path) -> None:
    profile = fit(samples_of(PRESETS["hdd_5400_usb"], 1), PRESETS["hdd_7200"], SOLID["ssd_sata"])
    profiles.keep(tmp_path / "mine.yaml", profile)
    text = REAL.replace("- {size: 1GiB, count: 2}", "- {model: 'profile:mine.yaml', count: 2}")
    text = text.replace("trials: 1", "trials: 3")
    path = tmp_path / "question.yaml"
    path.write_text(text + CLAIM)
    sets = [parse_override(s) for s in ("workloads.write.count=5", "disks.1.size=2GiB")]
    compiled = compile_scenario(path, overrides=sets, trials=2)
    given = assigned(compiled, tmp_path, RunOptions(erase=("S1",)))
    (tmp_path / "mine.yaml").unlink()
    path.unlink()
    theirs = worker_process._compiled(given)
    assert [cell_id(c) for c in theirs.cells] == [cell_id(c) for c in compiled.cells]
    assert theirs.cells == compiled.cells
    assert theirs.cells[0].disks[1].model == "hdd"
    assert theirs.cells[0].trials == 2
    assert given.erase == ("S1",)
    assert given.offered == ()


def test_a_host_makes_the_seeds_of_a_round_of_trials(tmp_path: Path) -> None:
    path = tmp_path / "question.yaml"
    path.write_text(with_matrix("  array.chunk: [16KiB, 64KiB]\n"))
    sets = [parse_override(s) for s in ("guest.clock=virtual", "trials=auto")]
    compiled = compile_scenario(path, overrides=sets)
    first = assigned(compiled, tmp_path / "1", RunOptions())
    assert worker_process._compiled(first).cells == compiled.cells
    more = compiled.with_seeds((4, 5)).cells[1:]
    given = assigned(compiled, tmp_path / "2", RunOptions(), more)
    theirs = {cell_id(c): c for c in worker_process._compiled(given).cells}
    assert {cell_id(c): c for c in more}.items() <= theirs.items()
    assert {c.trials for c in theirs.values()} == {1}


class Unasked:
    """A wire with the assignment of one run."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = lambda run: assignment


def test_which_disks_cells_may_have_is_the_hosts_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = cells_of(REAL, tmp_path)
    lie = assigned(compiled, tmp_path, RunOptions(erase=("S1",))).model_copy(
        update={"offered": (DEVICE,), "images": {}}
    )
    begun: list[Assignment] = []
    monkeypatch.setattr(cluster_worker, "WorkerHandle", lambda given, wire: begun.append(given))
    other = f"{DEVICE}0"
    for disks in ((), (other,), (other, DEVICE)):
        host = facts("a", 1).model_copy(update={"disks": disks})
        cluster_worker.ClusterHost(host, cast("Wire", Unasked(lie)))._handle("run")
    allowed = [
        all(worker_process._offered(c, one.offered) for c in compiled.cells) for one in begun
    ]
    assert allowed == [False, False, True]
    assert worker_process._offered(cells_of(SCENARIO, tmp_path).base, ())


class Wires:
    """A wire with two runs; the images of `slow` are fetched until an event."""

    def assignment(self, run: str) -> SimpleNamespace:
        given = SimpleNamespace(run=run, programs={}, images={"i": run} if run == "slow" else {})
        given.model_copy = lambda update: given
        return given

    def say(self, run: str, event: object) -> None: ...


def test_fetching_an_image_holds_up_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def fetch(*_: object) -> None:
        began.set()
        assert go_on.wait(30)

    monkeypatch.setattr(cluster_worker.cluster_files, "fetch_image", fetch)
    monkeypatch.setattr(cluster_worker, "WorkerHandle", lambda given, wire: given.run)
    host = cluster_worker.ClusterHost(facts("a", 1), cast("Wire", Wires()))
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(host._handle, "slow")
        assert began.wait(30)
        second = pool.submit(host._handle, "slow")  # fetches nothing, and waits
        assert pool.submit(host._handle, "other").result(timeout=30) == "other"
        assert not first.done()
        assert not second.done()
        go_on.set()
        assert (first.result(30), second.result(30)) == ("slow", "slow")


def test_a_run_that_ends_while_its_image_is_fetched_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(
        cluster_worker.cluster_files, "fetch_image", lambda *_: began.set() or go_on.wait(30)
    )
    monkeypatch.setattr(cluster_worker, "WorkerHandle", lambda *_: pytest.fail("it was started"))
    host = cluster_worker.ClusterHost(facts("a", 1), cast("Wire", Wires()))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(host._handle, "slow")
        assert began.wait(30)
        assert host.end("slow", kindly=False) == ()
        go_on.set()
        with pytest.raises(cluster_worker.DroppedError):
            first.result(30)


def test_a_host_offers_no_disk_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this host has no such disk"):
        cluster_host.facts_of_host(None, [DEVICE])


# -- images and snapshots


def plant(content: bytes = DISK) -> Image:
    """Return an image as the importer makes one."""
    with image_workspace.workspace("mine") as work:
        made = work / "image"
        made.mkdir()
        (made / "disk.qcow2").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        manifest = ImageManifest(
            name="mine",
            digest=digest,
            built=datetime(2025, 6, 10, tzinfo=UTC),
            source=ImageSource.IMPORTED,
            boot=ImageBoot.DISK,
            files={"disk.qcow2": ImageFile(size=len(content), sha256=digest)},
        )
        return image_store.publish(made, manifest)


class Away:
    """A shelf in another home; transfers can be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, there: Path) -> None:
        self.shelf, self.there, self.patch = Shelf(), there, monkeypatch
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self.asked = 0

    def has(self, image: str, sums: Mapping[str, str]) -> bool:
        self.asked += 1
        with self.patch.context() as patch:
            patch.setenv("LAB_HOME", str(self.there))
            return self.shelf.has(image, sums)

    def read(self, image: str, file: str, offset: int) -> bytes:
        with self.patch.context() as patch:
            patch.setenv("LAB_HOME", str(self.there))
            return self.spoil(self.shelf.read(image, file, offset))


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch, tmp_path / "there")


@pytest.fixture
def planted(away: Away, monkeypatch: pytest.MonkeyPatch) -> Image:
    with monkeypatch.context() as patch:
        patch.setenv("LAB_HOME", str(away.there))
        return plant()


def test_an_image_is_fetched_once_and_whole(away: Away, planted: Image) -> None:
    said: list[str] = []
    here = cluster_files.fetch_image(away, planted.manifest, said.append)
    assert here.directory != planted.directory
    assert here.disk.read_bytes() == DISK
    assert len(said) == away.asked == 1
    cluster_files.fetch_image(away, planted.manifest, said.append)
    assert len(said) == away.asked == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["shorter", "nothing", "a bit"],
)
def test_what_came_otherwise_is_thrown_away(
    away: Away, planted: Image, spoil: Callable[[bytes], bytes]
) -> None:
    away.spoil = spoil
    with pytest.raises(HostError, match="did not come as the client has it"):
        cluster_files.fetch_image(away, planted.manifest, print)
    assert list(paths.images().iterdir()) == []


def test_an_image_that_nobody_has_is_said_to_be_missing(away: Away, planted: Image) -> None:
    other = planted.manifest.model_copy(update={"name": "other"})
    with pytest.raises(HostError, match="neither here nor on the scheduler's machine"):
        cluster_files.fetch_image(away, other, print)


def test_another_build_of_an_image_is_not_the_clients(away: Away, planted: Image) -> None:
    """A built image's name is its recipe's; the client's digests decide about its contents."""
    other = ImageFile(size=len(DISK), sha256="0" * 64)
    wanted = planted.manifest.model_copy(update={"files": {"disk.qcow2": other}})
    assert away.has(planted.directory.name, cluster_files.sums_of(planted.manifest))
    assert not away.has(planted.directory.name, cluster_files.sums_of(wanted))
    with pytest.raises(HostError, match="as the client has it, is neither here nor"):
        cluster_files.fetch_image(away, wanted, print)
    away.has = lambda image, sums: True  # type: ignore[method-assign] # a scheduler that lies
    with pytest.raises(HostError, match="did not come as the client has it"):
        cluster_files.fetch_image(away, wanted, print)
    assert list(paths.images().iterdir()) == []


@pytest.mark.parametrize("file", ["../../evil", "/tmp/evil", "", "manifest.json", "a\0b"])
def test_an_image_has_only_files_that_the_lab_names(
    away: Away, planted: Image, file: str, tmp_path: Path
) -> None:
    files = planted.manifest.files | {file: ImageFile(size=1, sha256="0" * 64)}
    wanted = planted.manifest.model_copy(update={"name": "new", "files": files})
    away.has = lambda image, sums: True  # type: ignore[method-assign] # a scheduler that lies
    with pytest.raises(HostError, match="other files of the image"):
        cluster_files.fetch_image(away, wanted, print)
    assert not list(tmp_path.rglob("evil"))


def test_a_shelf_gives_only_files_of_images(away: Away, planted: Image) -> None:
    name = planted.directory.name
    assert away.read(name, "disk.qcow2", 0) == DISK[: cluster_files.CHUNK]
    for file in ("manifest.json", "../../keys/id_ed25519", "/etc/passwd"):
        assert away.read(name, file, 0) == b""
    assert away.read("../keys", "id_ed25519", 0) == b""
    assert not away.has("../keys", {})


# -- runs


@contextmanager
def process(*words: str, env: dict[str, str] | None = None) -> Iterator[tuple[Any, str]]:
    """Yield a process of a cluster, and its first line; its lifeline is open in the block."""
    child = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | (env or {}),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait(timeout=60)
        child.stdout.close()


@contextmanager
def scheduler() -> Iterator[str]:
    with process("lab", "cluster", "scheduler", "--port", "0", "--lifeline") as (_, address):
        assert address.startswith("tls://127.0.0.1:"), address
        yield address


@contextmanager
def sleepers(
    address: str, count: int, slots: int, seconds: float, image: str, env: dict[str, str]
) -> Iterator[list[Any]]:
    """Yield hosts, all started at once."""
    words = [str(slots), str(seconds), image]
    found: list[Any] = []
    children = [
        process("tests.sleepers", address, f"host{n}", *words, env=env) for n in range(count)
    ]
    threads = [threading.Thread(target=lambda c=c: found.append(c.__enter__())) for c in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert all(line for _, line in found)
        yield [child for child, _ in found]
    finally:
        for child in children:
            child.__exit__(None, None, None)


def name_of(sleeper: Any) -> str:
    """Return the name of a host; hosts start in any order."""
    words = Path(f"/proc/{sleeper.pid}/cmdline").read_bytes().split(b"\0")
    return next(w.decode() for w in words if w.startswith(b"host"))


def stored(compiled: Compiled, out: Path) -> RunStore:
    store = RunStore.create(compiled.name, compiled.path.read_text(), out)
    run = StoredRun(
        id=store.id,
        scenario=compiled.name,
        title=compiled.scenario.title,
        question=compiled.scenario.question,
        started="2025-06-10T12:00:00+00:00",
        environment={},
        cells=tuple(StoredCell(id=cell_id(c), cell=c, published=False) for c in compiled.cells),
        claims=(),
    )
    store.save_run(run)
    return store


def place_of(image: Image) -> Platform:
    return Platform(
        accelerator=Accelerator(kind="tcg", reason="TCG, for a test"), image=image, emulator=""
    )


def run_all(
    address: str,
    compiled: Compiled,
    store: RunStore,
    image: Image,
    say: Callable[[str], None],
    tls: Path | None = None,
    erase: tuple[str, ...] = (),
) -> app.ClusterExecutor:
    """Run the remaining cells as `lab run scenario --cluster` does."""
    platforms = {compiled.base.guest.system: place_of(image)}
    left = [c for c in compiled.cells if not store.has_cell(cell_id(c))]
    how = RunOptions(jobs=None, erase=erase)
    with app.joined(
        cluster_local.door_of(address, tls), how, lambda guest, event: None, say
    ) as found:
        real = found.check_disks(left, how.erase)
        found.run(store, compiled, platforms, left, real=real)
        return found


def test_cells_with_a_real_disk_go_to_its_host_one_at_a_time(tmp_path: Path, image: Image) -> None:
    pytest.importorskip("distributed")
    compiled = cells_of(REAL, tmp_path)
    store = stored(compiled, tmp_path / "out")
    marks, seconds = tmp_path / "marks", 0.5
    marks.mkdir()
    words = ("2", str(seconds), image.directory.name)
    env = {"SLEEPERS": str(marks)}
    with scheduler() as address, process("tests.sleepers", address, "host1", *words, env=env):
        with pytest.raises(InputError, match=f"it needs the disk {DEVICE}; host1 has not"):
            run_all(address, compiled, store, image, print, erase=("S1",))
        with process("tests.sleepers", address, "host2", *words, DEVICE, env=env):
            with pytest.raises(InputError, match="may only be read") as refused:
                run_all(address, compiled, store, image, print)
            assert refused.value.hint.endswith("--erase S1")
            run_all(address, compiled, store, image, print, erase=("S1",))
    hosts = {store.load_attempt(store.cell_directory(cell_id(c))).host for c in compiled.cells}
    assert hosts == {"host2"}
    began = sorted(int(p.name.rpartition(".")[2]) / 1e9 for p in marks.iterdir())
    assert len(began) == len(compiled.cells) == 4
    assert min(b - a for a, b in pairwise(began)) >= seconds


NIGHT = """\
title: Two parts
scenarios: [first.yaml, second.yaml]
images: [mine]
"""
LAYOUTS = "  array.layout: [left-symmetric, left-asymmetric, parity-first, parity-last]\n"


def test_a_matrix_run_is_complete_though_a_host_of_its_cluster_is_killed(
    tmp_path: Path, home: Path
) -> None:
    pytest.importorskip("distributed")
    name = plant().directory.name
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    for part in ("first", "second"):
        text = with_matrix(f"{LAYOUTS}  array.chunk: [16KiB, 32KiB, 64KiB]\n")
        (tmp_path / f"{part}.yaml").write_text(text)
    (tmp_path / "short.yaml").write_text(NIGHT)
    words = ("run", "matrix", str(tmp_path / "short.yaml"), "--json", "--out", str(out))
    with (
        scheduler() as address,
        sleepers(address, 2, 2, 0.5, name, {"SLEEPERS": str(marks)}) as children,
    ):
        night = subprocess.Popen(
            [sys.executable, "-m", "lab", *words, "--cluster", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        while len(list(marks.iterdir())) < 6 and night.poll() is None:
            time.sleep(0.02)
        killed = name_of(children[0])
        children[0].send_signal(signal.SIGKILL)
        text, told = night.communicate(timeout=120)
    assert night.returncode == 0, told
    parts = json.loads(text)["parts"]
    assert [p["part"]["state"] for p in parts] == ["done", "done"]
    cells = [p for part in parts for p in Path(part["part"]["run"]).glob("cells/[!.]*")]
    outcomes = [json.loads((cell / "outcome.json").read_text()) for cell in cells]
    assert len({cell.name for cell in cells}) == len(cells) == 24
    assert {o["outcome"] for o in outcomes} == {"done"}
    hosts = Counter(o["host"] for o in outcomes)
    assert max(hosts.values()) >= 12  # in the second part one host was left
    # Cells in the killed host's slots, and results that it had not sent, are run a second time.
    begun = Counter(p.name.rsplit(".", 2)[0] for p in marks.iterdir())
    again = {name for name, times in begun.items() if times > 1}
    assert again
    assert sum(begun.values()) == 24 + len(again)
    assert again <= {p.name.rsplit(".", 2)[0] for p in marks.glob(f"*.{killed}.*")}


def test_a_matrix_run_without_a_host_does_not_begin(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("distributed")
    plant()
    (tmp_path / "first.yaml").write_text(SCENARIO)
    (tmp_path / "short.yaml").write_text(NIGHT.replace(", second.yaml", ""))
    words = ("run", "matrix", str(tmp_path / "short.yaml"), "--cluster")

    def ended(*more: str) -> subprocess.CompletedProcess[str]:
        lab = [sys.executable, "-m", "lab", *words, *more]
        return subprocess.run(lab, capture_output=True, text=True, cwd=ROOT, check=False)

    with scheduler() as address:
        refused = ended(address)
        assert refused.returncode == EXIT_TROUBLE
        assert f"no host has joined the cluster at {address}" in refused.stderr
        assert not list(paths.nights().glob("*"))
    assert ended("127.0.0.1:1", "--plan").returncode == 0  # a plan needs no host


def axis(count: int) -> str:
    """Return a matrix of so many cells, which differ in the block size."""
    return f"  workloads.write.count: {list(range(1, count + 1))}\n"


@pytest.fixture
def image(away: Away, planted: Image) -> Image:
    """An image that the hosts claim to have, and the scheduler's side has not."""
    return planted


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_every_cell_comes_back_once_though_hosts_die(
    tmp_path: Path, image: Image, kind: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped host keeps its connections; it is detected by missing heartbeats."""
    pytest.importorskip("distributed")
    monkeypatch.setenv("LAB_LIMITS", "0.2")
    compiled = cells_of(with_matrix(axis(60)), tmp_path)
    store = stored(compiled, tmp_path / "out")
    marks = tmp_path / "marks"
    marks.mkdir()
    name = image.directory.name
    with (
        scheduler() as address,
        sleepers(address, 3, 2, 0.3, name, {"SLEEPERS": str(marks)}) as children,
    ):
        killed: list[str] = []

        def kill() -> None:
            until = time.monotonic() + 60
            while len(list(marks.iterdir())) < 12 and time.monotonic() < until:
                time.sleep(0.02)
            killed.append(name_of(children[0]))
            children[0].send_signal(kind)

        killer = threading.Thread(target=kill)
        killer.start()
        said: list[str] = []
        began = time.monotonic()
        run_all(address, compiled, store, image, said.append)
        assert time.monotonic() - began < 120
        killer.join()
        children[0].kill()
    ids = [cell_id(c) for c in compiled.cells]
    assert {line.rpartition(" ")[2] for line in said if "sleeping over" in line} <= set(ids)
    heard = {line.partition(":")[0] for line in said if "sleeping over" in line}
    assert heard >= {"host0", "host1", "host2"} - {killed[0]}
    assert sorted(p.name for p in (store.directory / "cells").iterdir()) == sorted(ids)
    begun = Counter(p.name.rsplit(".", 2)[0] for p in marks.iterdir())
    assert set(begun) == set(ids)
    # Cells in the killed host's two slots, and results that it had not sent, are run again.
    again = {name for name, times in begun.items() if times > 1}
    assert again
    assert sum(begun.values()) == 60 + len(again)
    assert again <= {p.name.rsplit(".", 2)[0] for p in marks.glob(f"*.{killed[0]}.*")}
    hosts = Counter(store.load_attempt(store.cell_directory(i)).host for i in ids)
    assert len(hosts) >= 2
    run = store.load_run()
    assert set(run.environment["hosts"]) == set(hosts)
    assert run.environment["host"]["cpus"] == 1
    assert {c.host for c in run.calibrations} == {"host0", "host1", "host2"} - {killed[0]}


TWICE = """\
  array.layout: [left-symmetric, parity-last]
  disks.format: [qcow2, raw]
"""
"""A disk file's format is no input of a sealed cell, so two of the four cells are equal."""


@pytest.mark.parametrize(("clock", "computed"), [("virtual", 2), ("real", 8)])
def test_a_sealed_cell_is_run_once_for_all_who_want_it(
    tmp_path: Path, image: Image, clock: str, computed: int
) -> None:
    """Two clients at once, whose scenarios have other names and equal cells."""
    pytest.importorskip("distributed")
    marks = tmp_path / "marks"
    marks.mkdir()
    compiled = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(with_matrix(TWICE))
        overrides = [parse_override(f"guest.clock={clock}")]
        compiled.append(compile_scenario(path, overrides=overrides))
    stores = [stored(c, tmp_path / f"out-{c.name}") for c in compiled]
    host = (image.directory.name, {"SLEEPERS": str(marks)})
    with scheduler() as address, sleepers(address, 2, 4, 3.0, *host):
        clients = [
            threading.Thread(target=run_all, args=(address, c, s, image, lambda _text: None))
            for c, s in zip(compiled, stores, strict=True)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert len(list(marks.iterdir())) == computed
    for one, store in zip(compiled, stores, strict=True):
        for cell in one.cells:
            kept = store.load_cell(cell_id(cell))
            assert kept is not None
            assert kept.outcome.outcome is Outcome.DONE
            about = store.cell_directory(cell_id(cell)) / "cell.json"
            if clock == "virtual":
                assert json.loads(about.read_text())["axes"] == cell.axes


def test_the_inputs_of_a_sealed_cell_are_all_that_decides_its_results(
    tmp_path: Path, image: Image
) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(SCENARIO)

    def cell(*sets: str) -> Any:
        overrides = [parse_override(text) for text in ("guest.clock=virtual", *sets)]
        return compile_scenario(path, overrides=overrides).base

    given = assigned(compile_scenario(path), tmp_path, RunOptions())
    known = app.inputs_of(cell(), image, given)
    assert app.inputs_of(cell("disks.format=raw"), image, given) == known
    assert app.inputs_of(cell("title=Another"), image, given) == known
    other = image.model_copy(update={"digest": "0" * 64})
    found = [
        app.inputs_of(cell(text), image, given)
        for text in (
            "array.layout=parity-last",
            "disks.throttle.total_bytes_per_second=6MiB",
            "workloads.write.count=11",
            "guest.memory=640MiB",
            "trials=2",
            "seed=2",
        )
    ]
    found.append(app.inputs_of(cell(), other, given))
    found.append(app.inputs_of(cell(), image, given.model_copy(update={"programs": {"lab": "0"}})))
    found.append(app.inputs_of(cell(), image, given.model_copy(update={"cold": True})))
    assert len({known, *found}) == 1 + len(found)


@pytest.mark.parametrize("shared", [False, True])
def test_a_shared_cell_outlives_the_run_that_asked_first(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Its client gives up during the cell: dask reassigns the cell if another client waits."""
    distributed = pytest.importorskip("distributed")
    host = cluster_worker.ClusterHost(facts("host0", 1), cast("Wire", None))

    class Dropped:
        def ask(self, _cell: str) -> Any:
            host.end("run", kindly=False)
            raise cluster_worker.DroppedError("nobody waits for the run any more")

    handles = host._handle
    monkeypatch.setattr(host, "_handle", lambda _run, **_how: Dropped())
    expected = distributed.Reschedule if shared else cluster_worker.DroppedError
    with pytest.raises(expected):
        host.cell("run", "cell", shared=shared)
    # It comes again. The run was abandoned, and only a shared cell's assignment is requested.
    with pytest.raises(AttributeError if shared else cluster_worker.DroppedError):
        handles("run", shared=shared)


def test_a_run_goes_on_where_its_client_died(tmp_path: Path, image: Image) -> None:
    pytest.importorskip("distributed")
    compiled = cells_of(with_matrix(axis(30)), tmp_path)
    store = stored(compiled, tmp_path / "out")
    name = image.directory.name
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.integration.capabilities.cluster import test_cluster as t\n"
        "address, scenario, run, image = sys.argv[1:]\n"
        "compiled = t.compile_scenario(Path(scenario))\n"
        "found = t.image_store._read(Path(image))\n"
        "t.run_all(address, compiled, t.RunStore(Path(run)), found, print)\n"
    )
    with scheduler() as address, sleepers(address, 2, 2, 0.3, name, {}):
        words = [address, str(compiled.path), str(store.directory), str(image.directory)]
        client = subprocess.Popen([sys.executable, "-c", program, *words], cwd=ROOT)
        cells = store.directory / "cells"
        while not list(cells.glob("[!.]*/outcome.json")):
            assert client.poll() is None
            time.sleep(0.05)
        client.kill()
        client.wait()
        done = {p.parent.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*/outcome.json")}
        assert 0 < len(done) < 30
        run_all(address, compiled, store, image, print)
    now = {p.parent.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*/outcome.json")}
    assert len(now) == 30
    assert {name: now[name] for name in done} == done  # finished cells are not changed


def busy_share(count: int, slots: int, seconds: float, tmp_path: Path, image: Image) -> float:
    """Return the fraction of time in which the slots of 8 hosts had a cell.

    By the workers' own times, from the submission of the cells to the end of the last one.
    """
    axes = f"  workloads.write.count: {list(range(1, 41))}\n"
    axes += f"  workloads.read.count: {list(range(1, count // 40 + 1))}\n"
    compiled = cells_of(with_matrix(axes), tmp_path)
    assert len(compiled.cells) == count
    store = stored(compiled, tmp_path / "out")
    with (
        scheduler() as address,
        sleepers(address, 8, slots, seconds, image.directory.name, {}),
        app.joined(
            cluster_local.door_of(address, None),
            RunOptions(jobs=None),
            lambda guest, event: None,
            lambda text: None,
        ) as found,
    ):
        client = found.link._client
        client.get_task_stream(start=0)  # from here on the scheduler records it
        began: list[float] = []
        results = found.link.results

        def handed_out(*words: Any) -> Any:
            began.append(time.time())
            return results(*words)

        found.link.results = handed_out  # type: ignore[method-assign]
        platforms = {compiled.base.guest.system: place_of(image)}
        found.run(store, compiled, platforms, compiled.cells, real=False)
        stored_after = time.time() - began[0]
        stream = client.get_task_stream(start=began[0])
    assert sum(store.has_cell(cell_id(c)) for c in compiled.cells) == count
    computed = [s for t in stream for s in t["startstops"] if s["action"] == "compute"]
    assert len(computed) == count
    busy = sum(s["stop"] - s["start"] for s in computed)
    first = min(s["start"] for s in computed) - began[0]
    took = max(s["stop"] for s in computed) - began[0]
    print(f"the first began after {first:.2f} s, the last was stored after {stored_after:.1f} s")
    print(f"{count} cells in {took:.1f} s; {busy / (8 * slots * took):.1%} busy")
    return busy / (8 * slots * took)


@pytest.mark.slow
def test_hosts_are_kept_busy(tmp_path: Path, image: Image) -> None:
    """A small run, so start and end have a large weight."""
    pytest.importorskip("distributed")
    assert busy_share(160, 2, 1.0, tmp_path, image) > 0.8


@pytest.mark.slow
def test_ten_thousand_cells_keep_eight_hosts_busy(tmp_path: Path, image: Image) -> None:
    pytest.importorskip("distributed")
    assert busy_share(10_000, 2, 0.5, tmp_path, image) >= 0.95


# -- refusals


def refused(kind: type[LabError], address: str, image: Image, tmp_path: Path, text: str) -> str:
    compiled = cells_of(text, tmp_path)
    store = stored(compiled, tmp_path / "out")
    with pytest.raises(kind) as error:
        run_all(address, compiled, store, image, print)
    assert list((store.directory / "cells").iterdir()) == []
    return str(error.value)


def test_a_cluster_that_cannot_is_told_in_sentences(tmp_path: Path, image: Image) -> None:
    pytest.importorskip("distributed")
    name = image.directory.name
    with scheduler() as address:
        said = refused(HostError, address, image, tmp_path, SCENARIO)
        assert "no host has joined the cluster at" in said
        with process("tests.sleepers", address, "host1", "1", "0", name, "lab=0.0.9"):
            said = refused(InputError, address, image, tmp_path, SCENARIO)
            assert "the host 'host1' has lab 0.0.9 instead of" in said
        with process("tests.sleepers", address, "host2", "1", "0", "other-012345"):
            said = refused(InputError, address, image, tmp_path, SCENARIO)
            assert f"it needs the image {name}; host2 has not the image {name}" in said
        with process("tests.sleepers", address, "host3", "2", "0", name):
            big = SCENARIO + "guest: {memory: 200GiB, cpus: 4}\n"
            said = refused(InputError, address, image, tmp_path, big)
            assert "200.4GiB" in said or "of memory; host3 has" in said
            assert "4 CPUs for guests" in said
            twin = process("tests.sleepers", address, "host3", "2", "0", name)
            with twin as (child, line):
                assert line == ""
                assert child.wait(timeout=30) != 0
    said = refused(HostError, address, image, tmp_path, SCENARIO)
    assert f"no scheduler answers at {address}" in said


def test_only_those_with_a_certificate_of_the_cluster_come_in(
    tmp_path: Path, image: Image, home: Path
) -> None:
    pytest.importorskip("distributed")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    cluster_tls.make(theirs)
    compiled = cells_of(with_matrix(axis(3)), tmp_path)
    store = stored(compiled, tmp_path / "out")
    name = image.directory.name
    words = ("lab", "cluster", "scheduler", "--port", "0", "--lifeline", "--tls", str(ours))
    with process(*words) as (_, address):
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(InputError, match=r"there is no '.*/data/tls', and a cluster needs"):
            run_all(address, compiled, store, image, print)
        with pytest.raises(HostError, match="what answers there is not of the same cluster"):
            run_all(address, compiled, store, image, print, theirs)
        began = time.monotonic()
        other = subprocess.run(
            [sys.executable, "-m", "lab", "cluster", "worker", address, "--tls", str(theirs)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert other.returncode == EXIT_TROUBLE
        assert f"'{theirs}': what answers there is not of the same cluster" in other.stderr
        assert time.monotonic() - began < 20
        shutil.copytree(ours, paths.tls())  # keeps the modes, as `scp -rp` does
        with process("tests.sleepers", address, "host1", "1", "0", name) as (_, joined):
            assert joined.startswith("tls://127.0.0.1:")
            run_all(address, compiled, store, image, print)
    assert all(store.has_cell(cell_id(c)) for c in compiled.cells)


def test_a_cluster_here_leaves_nothing_however_it_ends(home: Path) -> None:
    pytest.importorskip("distributed")
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        # Without a lifeline, as users start it.
        child = subprocess.Popen(
            [sys.executable, "-m", "lab", "cluster", "local", "2"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "A cluster of 2 workers is up at tls://127.0.0.1:" in line, child.communicate()
        (record,) = cluster_local.alive()
        assert record["hosts"] == 2
        for text in ("local", record["address"].removeprefix("tls://")):
            door = cluster_local.door_of(text, None)
            assert door.address == record["address"]
            assert door.tls == home / "state" / "c" / f".l.{child.pid}" / "tls"
        mine = [p for p in processes(str(home)) if p != child.pid]
        assert len(mine) >= 2
        os.kill(child.pid, end)
        child.communicate(timeout=60)
        until = time.monotonic() + 60
        while processes(str(home)) and time.monotonic() < until:
            time.sleep(0.1)
        assert processes(str(home)) == []
        left = [p.name for p in (home / "state" / "c").iterdir()]
        assert left == ([f".l.{child.pid}"] if end == signal.SIGKILL else [])
        assert cluster_local.alive() == []
        assert guests.collect_homes() == left
        assert list((home / "state" / "c").iterdir()) == []


def processes(home: str) -> list[int]:
    """Return processes of the lab with this home, or one below it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"lab" in words and b"cluster" in words and f"LAB_HOME={home}".encode() in environment:
            found.append(int(entry.name))
    return found


def test_a_client_without_dask_is_told_which_extra_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"dask\.distributed is not installed") as missing:
        cluster.load()
    assert "raid-lab[cluster]" in missing.value.hint


def test_a_run_without_hosts_ends(
    tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last host is killed, and no other joins."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(app, "LONELY", 1.0)
    monkeypatch.setattr(app, "LOOKING", 0.2)
    compiled = cells_of(with_matrix(axis(10)), tmp_path)
    store = stored(compiled, tmp_path / "out")
    name = image.directory.name
    with scheduler() as address, sleepers(address, 1, 1, 60, name, {}) as (child,):
        threading.Timer(1.5, child.kill).start()
        with pytest.raises(TroubleError, match="no host is left in the cluster"):
            run_all(address, compiled, store, image, print)


def test_nothing_of_dask_is_loaded_unless_asked_for() -> None:
    """One process runs all of these, one after the other; the last is one that needs it."""
    pytest.importorskip("distributed")
    commands = (
        *(["--help"], ["run", "scenario", "--help"], ["run", "scenario", "no-such-scenario"]),
        *(["scenario", "list"], ["ps"]),
        ["cluster", "scheduler", "--port", "0", "--lifeline"],
    )
    program = (
        "import json, sys\n"
        "import lab.run.execute, lab.capabilities.matrix.run\n"
        "from lab.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['lab', *words]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit:\n"
        "        pass\n"
        "    print('loaded:', 'dask' in sys.modules, file=sys.stderr, flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = [line for line in ended.stderr.splitlines() if line.startswith("loaded: ")]
    assert said == ["loaded: False"] * (len(commands) - 1) + ["loaded: True"], ended


HOSTILE = [
    *("../../../evil", "/evil", "raw/../../evil", "..", ".", "", "raw/", "raw//evil", "./evil"),
    *("a\0evil", "\ud800evil", "raw/" + "e" * 300),
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_path_of_a_host_does_not_lead_out_of_the_cell(tmp_path: Path, name: str) -> None:
    compiled = cells_of(SCENARIO, tmp_path)
    store = stored(compiled, tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HostError, match="would lie outside of it"):
        store.take_in(cell_id(compiled.cells[0]), {"raw/good.txt": b"x", name: b"x"})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_host_cannot_send_a_link_or_a_file_twice(tmp_path: Path) -> None:
    compiled = cells_of(SCENARIO, tmp_path)
    store = stored(compiled, tmp_path / "out")
    cell = cell_id(compiled.cells[0])
    for files in ({"raw": b"x", "raw/a": b"y"}, {"raw/a": b"y", "raw": b"x"}):
        with pytest.raises(HostError, match="cannot be written"):
            store.take_in(cell, files)
    # On the host's side no link is followed either: its target does not belong to the cell.
    made = tmp_path / "made"
    made.mkdir()
    (made / "outcome.json").write_text("{}")
    (made / "secret").symlink_to("/etc/passwd")
    (made / "elsewhere").symlink_to("/etc")
    assert set(cluster_worker._files(made)) == {"outcome.json"}


class Sends:
    """A link over which one cell comes back, as a host sends it."""

    address = "tls://127.0.0.1:1"

    def __init__(self, back: Returned) -> None:
        self.back = back

    def results(self, run: str, cells: object, inputs: object) -> Iterator[Returned]:
        yield self.back

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"a": dict.fromkeys(("tcg", "cpus", "memory", "space"), 1e15)}


OUTCOME = StoredOutcome(outcome=Outcome.DONE, seconds=PhaseSeconds(total=1.0)).model_dump_json()


@pytest.mark.parametrize(
    ("files", "attempts", "known", "said"),
    [
        ({"../../evil": b""}, (), (), "would lie outside of it"),
        ({}, ({"../../evil": b""},), (), "would lie outside of it"),
        ({CELL_DONE: b"not JSON"}, (), (), "in a form that nobody can read"),
        ({}, (), ("not JSON",), "'a' sent calibrations in a form that nobody can read"),
    ],
)
def test_what_a_host_sends_is_checked(
    tmp_path: Path,
    image: Image,
    files: dict[str, bytes],
    attempts: tuple[dict[str, bytes], ...],
    known: tuple[str, ...],
    said: str,
) -> None:
    pytest.importorskip("distributed")
    compiled = cells_of(SCENARIO, tmp_path)
    store = stored(compiled, tmp_path / "out")
    back = Returned(
        cell=cell_id(compiled.base),
        host="a",
        files={CELL_DONE: OUTCOME.encode()} | files,
        attempts=attempts,
        calibrations=known,
    )
    found = app.ClusterExecutor(
        link=cast("Link", Sends(back)),
        hosts={"tls://127.0.0.1:2": facts("a", 1)},
        options=RunOptions(),
        watch=lambda *_: None,
        say=print,
    )
    platforms = {compiled.base.guest.system: place_of(image)}
    with pytest.raises(HostError, match=said):
        found.run(store, compiled, platforms, [compiled.base], real=False)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("key", ["run", "scenario"])
@pytest.mark.parametrize("name", ["../../evil", "/evil", "", "..", "a/b"])
def test_a_client_names_no_path_on_a_host(tmp_path: Path, key: str, name: str) -> None:
    given = assigned(cells_of(SCENARIO, tmp_path), tmp_path, RunOptions()).model_dump(mode="json")
    with pytest.raises(ValidationError, match="is not a"):
        Assignment.model_validate_json(json.dumps(given | {key: name}))
