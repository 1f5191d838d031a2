"""A fake engine for a pytest within a test: it records the requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.compile.scenario.compiler import Compiled
from lab.core.errors import GuestError, HostError
from lab.model.execution.procedure import Output
from lab.results.documents import result_of
from lab.run import execute, guest_pool
from lab.run.execute import Done
from lab.testing import pool
from tests.fakes import guest_record
from tests.runs import theory_run

IN_A_CONFTEST = "from tests import still\nstill.install(setattr)\n"


MDSTAT = "Personalities : [raid5]\nmd127 : active raid5 vdb[0] vdc[1]\n"


def install(put: Callable[[Any, str, Any], None]) -> None:
    """Replace the engine with this one."""
    put(execute, "run_scenario", run_scenario)
    put(pool, "GuestPool", GuestPool)


def tell(*words: object) -> None:
    with Path(os.environ["COUNT"]).open("a") as file:
        print(*words, file=file)


def run_scenario(compiled: Compiled, **_how: object) -> Done:
    """Return a stored run with a lost cell; raise an error for a scenario called ``trouble``."""
    tell("run", compiled.name)
    time.sleep(0.2)
    if compiled.name == "trouble":
        raise HostError("there is no QEMU", hint="install it")
    parent = Path(os.environ["COUNT"]).parent / f"runs-{time.monotonic_ns()}"
    store = theory_run(parent, compiled.path.read_text(), lost=0)
    result = result_of(store)
    store.save_result(result)
    return Done(store=store, result=result, kept=None)


class GuestConnection:
    """A guest that dies on command."""

    def __init__(self, name: str) -> None:
        self.name, self.dead = name, False
        self.record = guest_record(Path("/nowhere"), name)

    def run(self, script: str, timeout: float) -> Output:
        if self.dead or script == "die":
            self.dead = True
            raise GuestError(f"the guest '{self.name}' panicked", hint="its last words")
        if script == "cat /proc/mdstat":
            return Output(status=0, stdout=MDSTAT, stderr="", seconds=0.0)
        if script == "sleep 60":
            raise GuestError(f"a command in the guest did not end within {timeout:g} s: sleep 60")
        status = int(script.removeprefix("exit ")) if script.startswith("exit ") else 0
        return Output(status=status, stdout=script, stderr="", seconds=0.0)

    def alive(self) -> bool:
        return not self.dead

    def console(self, lines: int) -> str:
        return "Kernel panic - not syncing: planted" if self.dead else ""

    def close(self) -> None: ...


class GuestPool:
    def __init__(self, **_where: object) -> None:
        self.number = 0

    def acquire(self, compiled: Compiled, *, fresh: bool) -> guest_pool.PooledGuest:
        self.number += 1
        tell("lend", compiled.base.guest.image, len(compiled.base.each_disk), fresh)
        visit: Any = GuestConnection(f"g{self.number}")
        nobody: Any = None
        return guest_pool.PooledGuest(worker=nobody, cell=compiled.base, visit=visit, traces="")

    def release(self, loan: guest_pool.PooledGuest) -> None:
        tell("back", loan.visit.record.id)

    def close(self) -> None:
        tell("close")
