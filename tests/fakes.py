"""Fakes of the outside world, and the smallest useful scenario."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lab.compile.guest.program import CUT
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import LabError
from lab.core.yaml import parse_override
from lab.host.guest.registry import GuestRecord
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BuildPlugin,
    DetachDisk,
    LimitDisk,
    Output,
    PassDisk,
    PowerCycle,
    Procedure,
    RestoreGuest,
    SaveGuest,
    SendDirectory,
    SpoilDisk,
    StartGuest,
    StartServer,
    UnplugDisk,
    WipeDisk,
)
from lab.model.result.document import Outcome
from lab.model.result.measurement import Check
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun

SCENARIO = """\
title: A small question
question: Does it answer?
disks:
  count: 4
  size: 1GiB
  throttle:
    total_bytes_per_second: 5MiB
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 256MiB
workloads:
  - name: write
    tool: dd
    of: '{target}'
    bs: 192KiB
    count: 10
    oflag: direct
  - name: read
    tool: dd
    if: '{target}'
    bs: 192KiB
    count: 10
    iflag: direct
"""


FAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fail": {"disk": 2},
    "grow": {"level": 6, "raid_devices": 4},
    "io_error": {"disk": 2},
    "power_cut": {},
    "pull": {"disk": 2},
    "re_add": {"disk": 2},
    "replace": {"disk": 2, "with": 6},
    "rot": {"disk": 2},
    "slow": {"disk": 2, "total_bytes_per_second": "1MiB"},
    "spare_group": {"disk": 1, "second": [4, 5, 6]},
    "sync_action": {"action": "check"},
}
"""Parameters of each fault that fit six disks."""

PLUGIN = ("-p", "lab.testing.plugin", "-p", "xdist", "-p", "no:cacheprovider")
"""Options of a pytest without automatic plug-ins (``PYTEST_DISABLE_PLUGIN_AUTOLOAD``)."""


def compiled_text(
    directory: Path,
    text: str = SCENARIO,
    *sets: str,
    trials: int | None = None,
    name: str = "q",
) -> Compiled:
    """Write a scenario's file and compile it with ``--set``."""
    path = directory / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return compile_scenario(path, overrides=[parse_override(s) for s in sets], trials=trials)


def with_matrix(matrix: str, text: str = SCENARIO) -> str:
    return f"{text}matrix:\n{matrix}"


class FakeBench:
    """A backend that records its calls; the test sets replies and failures."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.modes: dict[str, int] = {}
        self.answers: dict[str, Output | list[Output]] = {}
        """Output by a guest's script; of a list, the next one each time, then always the last."""
        self.failures: dict[tuple[str, ...], LabError] = {}
        """Error by log entry; it is raised when the entry is recorded."""
        self.clock = 0.0
        self.server_answer = "ok {}"
        self.begun = ("", "")

    def _told(self, *entry: str) -> None:
        self.log.append(entry)
        if entry in self.failures:
            raise self.failures[entry]

    def make_directory(self, path: str) -> None:
        self._told("mkdir", path)

    def write_file(self, path: str, content: str, mode: int) -> None:
        self.modes[path] = mode
        self._told("write", path)

    def remove(self, path: str) -> None:
        self._told("remove", path)

    def host_command(self, argv: tuple[str, ...]) -> None:
        self._told("host", *argv)

    def build_plugin(self, step: BuildPlugin) -> None:
        self._told("build", step.source, step.link)

    def start_server(self, step: StartServer) -> None:
        self._told("serve", step.socket)

    def stop_server(self, step: StartServer) -> None:
        self._told("stop", step.socket)

    def ask_server(self, step: AskServer) -> str:
        self._told("ask", step.socket, step.line)
        return self.server_answer

    def start_guest(self, step: StartGuest) -> None:
        self._told("start", step.name)

    def save_guest(self, step: SaveGuest) -> None:
        self._told("save", step.key)

    def restore_guest(self, step: RestoreGuest) -> None:
        self._told("restore", step.key)

    mdstat = ""

    def progress(self) -> str:
        return self.mdstat

    def pressure(self) -> Mapping[str, float]:
        return {"cpu": self.clock, "wait": self.clock / 10}

    def destroy_guest(self) -> None:
        self._told("destroy")

    def wait_for_ssh(self, timeout: float) -> None:
        self._told("ssh", f"{timeout:.0f}")

    def attach_disk(self, step: AttachDisk) -> None:
        self._told("attach", step.serial)

    def wipe_disk(self, step: WipeDisk) -> None:
        self._told("wipe", step.serial)

    def pass_disk(self, step: PassDisk) -> None:
        self._told("pass", step.device)

    def return_disk(self, step: PassDisk) -> None:
        self._told("return", step.device)

    def detach_disk(self, step: AttachDisk | DetachDisk | UnplugDisk) -> None:
        self._told("detach", step.serial)

    def limit_disk(self, step: LimitDisk) -> None:
        self._told("limit", step.serial, *(f"{k}={v}" for k, v in step.limits.items()))

    def spoil_disk(self, step: SpoilDisk) -> None:
        self._told("spoil", step.serial, str(step.offset), str(step.length))

    def power_cycle(self, step: PowerCycle) -> str:
        self._told("power cycle", *step.lose)
        return "".join(f"{socket} ok 512\n" for socket in step.lose)

    def send_directory(self, step: SendDirectory) -> None:
        self._told("send", step.source, step.target)

    def begin(self, name: str, script: str) -> None:
        self._told("begin", name)
        self.begun = (name, script)

    def end(self, name: str, timeout: float, *, cut: bool) -> Output:
        self._told("end", name, "cut" if cut else "whole")
        assert self.begun[0] == name
        answer = self.answers.get(self.begun[1], said())
        assert isinstance(answer, Output)
        return answer

    def guest(self, script: str, timeout: float) -> Output:
        if CUT in script:
            # The script has counters around a workload; the reply is the workload's own.
            head, _, rest = script.partition("\n(\nset -e\n")
            inner, _, tail = rest.partition("\n)\n")
            found = self.guest(inner, timeout)
            before = self.answers.get(head.partition("\n")[0], said("before\n"))
            assert isinstance(before, Output)
            after = "after\n" if "\n:\n" not in tail else ""
            return said(
                f"{before.stdout}{CUT}\n{found.stdout}\n{CUT}\n{after}",
                stderr=found.stderr,
                status=found.status,
                seconds=found.seconds,
            )
        self._told("guest", script)
        answer = self.answers.get(script, said())
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer

    def now(self) -> float:
        return self.clock

    def pause(self, seconds: float) -> None:
        self.clock += seconds


def said(stdout: str = "", *, stderr: str = "", status: int = 0, seconds: float = 1.0) -> Output:
    return Output(status=status, stdout=stdout, stderr=stderr, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Result of a command line."""

    status: int
    stdout: str
    stderr: str
    cpu: float = 0.0
    """CPU seconds, independent of other load."""

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


# Imports once, then forks for each command line, to save time. The commands are built once too.
# The objects are frozen, so that garbage collection does not copy their pages.
_SERVER = """
import contextlib, functools, gc, importlib, json, os, pkgutil, signal, sys, tempfile, traceback
import typer.main
import lab.cli.commands
for package in ("cli", "host.images", "matrix", "plugins", "report", "results", "run"):
    path = [os.path.join(lab.__path__[0], *package.split("."))]
    for module in pkgutil.walk_packages(path, f"lab.{package}."):
        if not module.name.startswith("lab.plugins.guest_programs."):
            importlib.import_module(module.name)
typer.main.get_command = functools.cache(typer.main.get_command)
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    lab.cli.commands.app(["scenario", "plan", "--help"], standalone_mode=False)
gc.collect()
gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                signal.alarm(120)
                for number, file in ((0, open(os.devnull)), (1, out), (2, err)):
                    os.dup2(file.fileno(), number)
                os.environ.clear()
                os.environ.update(job["env"])
                os.chdir(job["cwd"])
                sys.argv = ["lab", *job["args"]]
                exec(job["before"], {"__name__": "before"})
                lab.cli.main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, ended, usage = os.wait4(child, 0)
        status = os.waitstatus_to_exitcode(ended)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    print(json.dumps([status, *said, usage.ru_utime + usage.ru_stime]), flush=True)
"""


class LabServer:
    """Runs ``lab`` command lines, each in a forked process that has already imported it."""

    def __init__(self, *before: str) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, args: Sequence[str], *, env: Mapping[str, str], cwd: Path, before: str = ""
    ) -> Ended:
        """Run a command line; ``before``: Python that its process runs first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"args": list(args), "env": dict(env), "cwd": str(cwd), "before": before}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        status, stdout, stderr, cpu = json.loads(self._process.stdout.readline())
        return Ended(status=status, stdout=stdout, stderr=stderr, cpu=cpu)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


EMPTY_SVG = '<svg xmlns="http://www.w3.org/2000/svg"/>'
UNDRAWN = f"""
import sys, types
sys.modules["vl_convert"] = types.SimpleNamespace(
    vegalite_to_svg=lambda spec: {EMPTY_SVG!r}, javascript_bundle=lambda snippet: ""
)
"""
"""For `Cli.before`: charts are empty. Each process that draws starts V8, for 0.4 s of CPU time."""


@dataclass(slots=True, kw_only=True)
class Cli:
    """``lab`` with its own home and directory."""

    server: LabServer
    base: Path
    env: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """Python that each command's process runs first."""

    def __post_init__(self) -> None:
        self.env = clean_environment(self.base) | self.env

    @property
    def home(self) -> Path:
        return self.base / "h"

    def __call__(self, *args: str, before: str = "") -> Ended:
        before = before or self.before
        return self.server.run(args, env=self.env, cwd=self.base, before=before)

    def file(self, text: str, name: str = "question.yaml") -> str:
        (self.base / name).write_text(text, encoding="utf-8")
        return name

    def left(self) -> list[str]:
        """Return every file below the lab's home."""
        return sorted(str(p.relative_to(self.home)) for p in self.home.rglob("*") if p.is_file())


def clean_environment(base: Path) -> dict[str, str]:
    """Return an environment without the user's own settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(base),
        "LAB_HOME": str(base / "h"),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


FLOORS: Final = tuple(
    NoiseFloor(disks="throttle", metric=metric, deviation=0.0023, freedom=9, runs=2)
    for metric in ("throughput", "iops", "seconds")
)
"""Of throttled disks: nine values of ``raid5-parity-last``, run twice on two CPUs without KVM."""


def stored_run(parent: Path, *, finished: bool = True) -> RunStore:
    """Return the main scenario as a stored run: three cells, the last one lost."""
    compiled = compile_scenario(catalog.scenario_path("raid5-parity-last"))
    scenario = compiled.scenario
    store = RunStore(parent / "raid5-parity-last-20250610-120000")
    (store.directory / "cells").mkdir(parents=True)
    run = StoredRun(
        id=store.id,
        scenario=compiled.name,
        title=scenario.title,
        question=scenario.question,
        started="2025-06-10T12:00:00+00:00",
        finished="2025-06-10T12:02:00+00:00" if finished else None,
        environment={"accelerator": "tcg", "lab": "0.1.0"},
        cells=tuple(
            StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
            for c in compiled.cells
        ),
        claims=scenario.claims,
        noise=FLOORS,
    )
    store.save_run(run)
    for cell, megabytes in zip(compiled.cells, (10.4, 10.7, None), strict=True):
        attempt = store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
        (attempt / "raw").mkdir()
        for name, text in raw_of(cell, megabytes or 1).items():
            (attempt / "raw" / name).write_text(text, encoding="utf-8")
        outcome = StoredOutcome(outcome=Outcome.DONE, checks=(Check(name="array", passed=True),))
        if megabytes is None:
            outcome = StoredOutcome(
                outcome=Outcome.LOST, reason="the guest panicked\n  its console"
            )
        store.finish_cell(cell_id(cell), attempt, outcome)
    return store


def raw_of(cell: Cell, megabytes: float) -> dict[str, str]:
    """Return dd's output at that speed; every read is twice as fast."""
    found = {"environment.txt": "kernel=6.1.0-18-amd64\nmdadm=mdadm - v4.2\n"}
    for workload in cell.workloads:
        copied = workload.parameters["bs"] * workload.parameters["count"]
        seconds = copied / megabytes / 1e6 / (2 if workload.name == "read" else 1)
        line = f"{copied} bytes (105 MB, 100 MiB) copied, {seconds:.6f} s, {megabytes} MB/s\n"
        found[f"{workload.name}.1.stdout.txt"] = ""
        found[f"{workload.name}.1.stderr.txt"] = f"100+0 records in\n100+0 records out\n{line}"
    return found


def guest_record(directory: Path, name: str = "g") -> GuestRecord:
    """Return the record of a guest that no process has."""
    return GuestRecord(
        id=name,
        directory=str(directory),
        scenario="s",
        image="i",
        created="",
        owner_pid=0,
        owner_started=0,
    )


def programs(directory: Path, *names: str, find: Callable[[str], str | None]) -> str:
    """Return a PATH that contains only these programs."""
    directory.mkdir()
    for name in names:
        found = find(name)
        if found:
            (directory / name).symlink_to(found)
    return str(directory)


def git(place: Path, *words: str) -> str:
    """Run git in a repository; return what it prints."""
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def diff(before: str, after: str, path: str, place: Path) -> str:
    """Return a patch of one file of the source."""
    for side, text in (("a", before), ("b", after)):
        (place / side / path).parent.mkdir(parents=True, exist_ok=True)
        (place / side / path).write_text(text, encoding="utf-8")
    words = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, check=False).stdout
