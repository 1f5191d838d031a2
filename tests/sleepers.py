"""A cluster host whose cells only sleep; all other parts are the real ones.

``python -m tests.sleepers ADDRESS NAME SLOTS SECONDS IMAGE`` joins, and ends with its input.
Further arguments are real disks to offer, and other versions of its programs. It records each
cell's start in the directory ``SLEEPERS``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from lab.capabilities.cluster import client as cluster
from lab.capabilities.cluster import logic as resources
from lab.capabilities.cluster.local import door_of
from lab.capabilities.cluster.model import HostFacts, Returned
from lab.capabilities.cluster.serve import serve_worker
from lab.capabilities.cluster.worker import ClusterHost, Wire
from lab.core.units import GIB
from lab.model.result.calibration import Calibration
from lab.model.result.document import Outcome, PhaseSeconds
from lab.store.runs import StoredOutcome

COPIED = "1966080 bytes (2.0 MB, 1.9 MiB) copied, 0.5 s, 3.9 MB/s\n"
"""dd's output for each workload of ``tests.fakes.SCENARIO``."""


def facts(name: str, slots: int, **different: str) -> HostFacts:
    """Return the facts of such a host."""
    return HostFacts(
        name=name,
        programs=cluster.programs() | different,
        environment={"lab": "0", "accelerator": "tcg", "host": {"name": name, "cpus": 1}},
        accelerator="tcg",
        guests=slots,
        images=(),
    )


class Sleeper(ClusterHost):
    """Takes a cell's time without doing work."""

    seconds = 0.0

    def cell(self, run: str, cell: str, *, shared: bool = False) -> Returned:
        if "SLEEPERS" in os.environ:
            mark = Path(os.environ["SLEEPERS"]) / f"{cell}.{self.facts.name}.{time.monotonic_ns()}"
            mark.touch()
        self._sayer(run)(f"sleeping over {cell}")
        time.sleep(self.seconds)
        outcome = StoredOutcome(outcome=Outcome.DONE, seconds=PhaseSeconds(total=self.seconds))
        files = {
            "outcome.json": outcome.model_dump_json().encode(),
            "raw/slept.txt": f"{self.seconds}\n".encode(),
            **{f"raw/{name}.1.stderr.txt": COPIED.encode() for name in ("write", "read")},
        }
        return Returned(cell=cell, host=self.facts.name, files=files, attempts=(), calibrations=())

    def end(self, run: str, *, kindly: bool) -> tuple[str, ...]:
        return (Calibration(disk={"model": "throttle"}).model_dump_json(),)


def main() -> None:
    address, name, slots, seconds, image = sys.argv[1:6]
    disks = [word for word in sys.argv[6:] if word.startswith("/")]
    different = dict(word.split("=") for word in sys.argv[6:] if word not in disks)
    Sleeper.seconds = float(seconds)
    offer = resources.offered(
        accelerator="tcg",
        guests=int(slots),
        virtual=int(slots),
        memory=101 * GIB,
        space=101 * GIB,
        images=[image],
        disks=disks,
        share=1,
    )

    def hosted(known: HostFacts, wire: Wire) -> ClusterHost:
        return Sleeper(known, wire)

    serve_worker(
        door_of(address, None),
        facts(name, int(slots), **different),
        offer,
        lambda text: print(text, flush=True),
        lifeline=True,
        hosted=hosted,
    )


if __name__ == "__main__":
    main()
