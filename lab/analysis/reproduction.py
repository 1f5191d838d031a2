"""Finds the first difference between two runs of a sealed cell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lab.core.printable import printable
from lab.model.execution.procedure import (
    AskServer,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    PowerCycle,
    Procedure,
    SealDisks,
    Step,
    Timed,
)
from lab.model.image.manifest import NAME
from lab.model.result.document import Digest, Outcome
from lab.model.result.reproduction import FirstDifference, OtherInput
from lab.model.result.stored import StoredOutcome

AROUND: Final = 24
"""Displayed bytes before and after the first difference."""


def first_difference(
    procedure: Procedure | None,
    stored: tuple[StoredOutcome, Mapping[str, str]],
    here: tuple[StoredOutcome, Mapping[str, str]],
) -> FirstDifference | None:
    """Return the first difference in outcome, raw output or digest; ``None``: there is none.

    A run is given as its outcome and its raw output. Raw output is compared in the order of the
    steps.
    """
    (old, before), (new, after) = stored, here
    for step, name, seed in _ordered(procedure, before, after):
        if (was := before.get(name)) != (now := after.get(name)):
            return _of_file(procedure, step, name, seed, was, now)
    if old.outcome is not new.outcome or (old.outcome is not Outcome.DONE and not _same(old, new)):
        return FirstDifference(
            label="the outcome",
            stored=f"{old.outcome.value} {old.reason}".strip(),
            here=f"{new.outcome.value} {new.reason}".strip(),
        )
    return _of_digests(old.digest, new.digest)


def _same(old: StoredOutcome, new: StoredOutcome) -> bool:
    return old.reason == new.reason


def _of_digests(old: Digest | None, new: Digest | None) -> FirstDifference | None:
    if old is None or new is None or old.results == new.results:
        return None
    pairs = zip(old.seeds, new.seeds, strict=False)
    seed = next((a.seed for a, b in pairs if a.results != b.results), None)
    return FirstDifference(
        label="kernel messages, counters, or contents of the disks",
        seed=seed,
        stored=old.results,
        here=new.results,
    )


def _ordered(
    procedure: Procedure | None, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[int | None, str, int | None]]:
    """Yield each raw output with its step and the trial's seed: in the order of steps, others
    last."""
    left = sorted({*before, *after})
    seed = None
    for number, step in enumerate(procedure.steps if procedure else ()):
        if isinstance(step, SealDisks):
            seed = step.seed
        for name in [n for n in left if _is_of(step, n)]:
            left.remove(name)
            yield number, name, seed
    yield from ((None, name, None) for name in left)


def _is_of(step: Step, name: str) -> bool:
    match step:
        case GuestCommand() | AskServer() | PowerCycle():
            return bool(step.capture) and name == f"{step.capture}.txt"
        case Timed() | EndWorkload():
            return name.startswith(f"{step.workload}.{step.trial}.")
        case BeginWorkload():
            return name == f"{step.workload}.{step.trial}.before.txt"
        case _:
            return False


def _of_file(
    procedure: Procedure | None,
    step: int | None,
    name: str,
    seed: int | None,
    was: str | None,
    now: str | None,
) -> FirstDifference:
    label = "raw output of no step"
    if procedure is not None and step is not None:
        label = procedure.steps[step].progress
    at = None
    if was is not None and now is not None:
        old, new = was.encode(), now.encode()
        at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
        at = min(len(old), len(new)) if at is None else at
    return FirstDifference(
        step=None if step is None else step + 1,
        label=label,
        seed=seed,
        file=f"raw/{name}",
        byte=at,
        stored=_shown(was, at),
        here=_shown(now, at),
    )


def _shown(text: str | None, at: int | None) -> str:
    """Return the text around a byte; line feeds as ``\\n``."""
    if text is None:
        return "(no such file)"
    data = text.encode()
    begin = max(0, (at or 0) - AROUND)
    part = data[begin : (at or 0) + AROUND].decode(errors="replace")
    shown = printable(part.replace("\n", "\\n"))
    return f"{'…' if begin else ''}{shown}{'…' if (at or 0) + AROUND < len(data) else ''}"


PROGRAMS: Final = "programs"
"""Name of the input that is left if no file differs: commands, disks and expected results."""


def image_advice(name: str) -> str:
    """Return how to get an image with the same bytes; the commands work as they are."""
    name = name if re.fullmatch(NAME, name) else "IMAGE"
    return (
        f"`lab image export {name} {name}.tar` where the run was made, and here"
        f" `lab image import {name}.tar`"
    )


def other_programs(stored: Digest | None, here: Digest | None) -> OtherInput:
    """Return the input that differs if no file of the guest does."""
    return OtherInput(
        what=PROGRAMS,
        stored=stored.inputs if stored else "",
        here=here.inputs if here else "",
        advice="this lab makes other commands or disks of the scenario: use the run's version",
    )


def other_inputs(stored: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[OtherInput]:
    """Yield the inputs that differ between two runs' environments, with advice."""
    advice = {
        "image": image_advice(str((stored.get("image") or {}).get("name"))),
        "kernel": "the image has it: use the run's image",
        "driver": "use the run's version of the lab: it builds the driver and `init`",
        "initramfs": "use the run's version of the lab: it builds the driver and `init`",
        "qemu": f"install the run's QEMU: {stored.get('qemu', 'version unknown')}",
        "firmware": "install the packages with QEMU's firmware (seabios) in the run's version",
    }
    old, new = stored.get("sealed") or {}, here.get("sealed") or {}
    for what, text in advice.items():
        was, now = old.get(what), new.get(what)
        if what == "image" and was is None:
            was, now = ((one.get("image") or {}).get("digest") for one in (stored, here))
        if was is not None and was != now:
            yield OtherInput(what=what, stored=str(was), here=str(now), advice=text)
    if stored.get("lab") != here.get("lab"):
        yield OtherInput(
            what="lab",
            stored=str(stored.get("lab")),
            here=str(here.get("lab")),
            advice="use the run's version of the lab if the cells' programs differ",
        )
