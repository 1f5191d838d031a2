"""Digest of a sealed guest's inputs. It is known before the guest runs.

The digest includes how a snapshot is made, not its bytes. Repeated snapshots had the same bytes
(``snapshot.round_clock``). ``Digest.snapshot`` records the bytes' own digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drive import region, sealed
from drive.drive import Kind, Parameters
from drive.native import command as native
from lab.compile.guest.program import programs
from lab.core.stable import Form, ordered, written
from lab.host.guest.virtual.snapshot import ROOT_SPACE
from lab.host.images.virtual_time import guest_of, native_guest_of
from lab.model.execution.job import SealedKit
from lab.model.execution.procedure import Procedure, Verify
from lab.model.scenario.guest import Engine

FORMS: Final = {
    region.Disk: Form(
        name="Disk",
        always=ordered("serial size model flags logical physical group op_size limits bad drive"),
    ),
    region.Limit: Form(name="Limit", always=("avg", "max", "seconds")),
    region.Bad: Form(name="Bad", always=("offset", "length", "flags", "argument")),
    Parameters: Form(
        name="Parameters",
        always=ordered(
            "kind seed overhead link_rate cache revolution seek_a seek_b seek_c seek_e",
            "seek_limit write_settle outer_rate inner_rate zones read_ahead queue_depth",
            "ageing read_latency write_latency flush_latency channels page gc_bytes",
            "gc_stall",
        ),
    ),
    Kind: Form(name="Kind"),
}
"""How disks are written in the digest, whatever their classes are called today."""
BOOTED = "boot"
"""Value of ``start`` for a guest without a snapshot."""


def joined(digests: Sequence[str]) -> str:
    """Return a cell's digest from those of its trials; for one trial, that trial's digest."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def inputs_of(
    kit: SealedKit, trial: Procedure, disks: Sequence[region.Disk], *, blocks: int, start: str
) -> str:
    """Return the digest of a trial's inputs: files, command line, programs, disks, expected
    results.

    ``start``: the snapshot's name, or :data:`BOOTED`.
    """
    found = programs(trial)
    if kit.engine is Engine.NATIVE:
        engine, setup = "native", native.SETUP
        line = " ".join(native.command(native_guest_of(kit, Path("REGION"))))
    else:
        engine, setup = "qemu", sealed.SETUP
        guest = guest_of(kit, Path("REGION"))
        line = " ".join(sealed.command(guest, region.size_for(disks, blocks))[1:])
    places = {"BASE": kit.base, "KERNEL": kit.kernel, "INITRAMFS": kit.initramfs}
    for name, path in places.items():
        line = line.replace(path, name)
    data = {
        "files": kit.digests,
        engine: line,
        "programs": found.boots,
        "caches lost": found.loses,
        "expected": [step.expect for step in trial.steps if isinstance(step, Verify)],
        "setup": setup,
        "disks": [written(disk, FORMS) for disk in disks],
        "blocks": blocks,
        "start": start,
    }
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def blocks_of(space: int) -> int:
    """Return the number of blocks of a region whose disks may occupy ``space`` bytes."""
    return -(-(space + ROOT_SPACE) // region.BLOCK)
