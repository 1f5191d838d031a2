"""Runs the steps of a procedure. It has no code about workloads, disks or RAID.

``Undo`` removes what the steps created, in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lab.compile.guest.program import cut, how_far, timed_script
from lab.core.errors import GuestError, LabError, ToolError, TroubleError
from lab.model.execution.procedure import (
    AskServer,
    Backend,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    Output,
    PowerCycle,
    Procedure,
    Save,
    Step,
    Timed,
    Verify,
    WaitFor,
)
from lab.model.result.measurement import Check


class CheckFailedError(TroubleError):
    """A precondition was not met when verified."""

    def __init__(self, check: Check) -> None:
        super().__init__(f"the check '{check.name}' failed: {check.detail}")
        self.check = check


class Undo:
    """Actions that undo steps."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def add(self, action: Callable[..., object], *arguments: object) -> None:
        """Add an action; it must do nothing if there is nothing to undo."""
        self._steps.append(lambda: action(*arguments))

    def forget(self) -> None:
        """Drop all actions."""
        self._steps.clear()

    def unwind(self) -> list[LabError]:
        """Run all actions, even if some fail; return the errors.

        Exceptions other than ``LabError`` are raised at the end.
        """
        errors: list[LabError] = []
        mistakes: list[Exception] = []
        while self._steps:
            try:
                self._steps.pop()()
            except LabError as error:
                errors.append(error)
            except Exception as mistake:
                mistakes.append(mistake)
        if mistakes:
            raise mistakes[0]
        return errors


def run_step(step: Step, bench: Backend, undo: Undo, save: Save) -> tuple[Check, ...]:
    """Run one step, add its undo, return its checks.

    If a step can fail half-way, its undo is added before it runs.
    """
    match step:
        case AskServer():
            answer = bench.ask_server(step)
            if step.capture:
                save(f"{step.capture}.txt", f"{answer}\n")
            if answer.split(" ", 1)[0] != "ok":
                raise ToolError(f"'{step.label}' was refused by the server: {answer or 'no words'}")
        case PowerCycle():
            save(f"{step.capture}.txt", bench.power_cycle(step))
        case BeginWorkload():
            _begin(step, bench, save)
        case EndWorkload():
            _end(step, bench, save)
        case GuestCommand():
            if step.undo:
                undo.add(_undo_in_guest, bench, step)
            output = bench.guest(step.script, step.timeout)
            if step.capture:
                save(f"{step.capture}.txt", output.stdout)
            if output.status != 0:
                raise _failed(step.label, output)
        case Verify():
            return _verify(step, bench)
        case WaitFor():
            _wait_for(step, bench)
        case Timed():
            _timed(step, bench, save)
        case _:
            step.apply(bench, undo.add)
    return ()


def run_procedure(
    procedure: Procedure,
    bench: Backend,
    undo: Undo,
    save: Save,
    on_step: Callable[[Step], None],
    on_check: Callable[[Check], None],
) -> None:
    """Run every step in order until an error; the caller unwinds ``undo``."""
    for step in procedure.steps:
        on_step(step)
        try:
            checks = run_step(step, bench, undo, save)
        except CheckFailedError as failed:
            on_check(failed.check)
            raise
        except LabError as error:
            if error.late is not None:
                error.message = f"'{step.progress}' did not end within {error.late}{_far(bench)}"
            raise
        for check in checks:
            on_check(check)


def _far(bench: Backend) -> str:
    """Return how far md is, for a message; empty: the guest has no array, or does not say."""
    far = how_far(bench.progress())
    return f": {far}" if far else ""


def _undo_in_guest(bench: Backend, step: GuestCommand) -> None:
    try:
        output = bench.guest(step.undo, step.timeout)
    except LabError as error:
        if error.late is not None:
            error.message = f"undoing '{step.label}' did not end within {error.late}{_far(bench)}"
        raise
    if output.status != 0:
        raise _failed(f"undoing '{step.label}'", output)


def _failed(label: str, output: Output) -> ToolError:
    said = "\n".join((output.stderr or output.stdout).strip().splitlines()[-8:])
    return ToolError(
        f"'{label}' ended with status {output.status} in the guest: {said or 'it printed nothing'}"
    )


def read_pairs(text: str) -> dict[str, str]:
    """Parse ``key=value`` lines; skip others."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key and not any(c.isspace() for c in key):
            pairs[key] = value.strip()
    return pairs


def compare(name: str, found: Mapping[str, str], expect: Mapping[str, str]) -> Check:
    """Return one check over all keys; its detail names those that differ."""
    if expect and not any(key in found for key in expect):
        missing = f"{len(expect)} values" if len(expect) > 1 else f"'{next(iter(expect))}'"
        return Check(name=name, passed=False, detail=f"the guest did not report {missing} of it")
    wrong = [
        f"{key} is {found[key]!r}, not {value!r}" if key in found else f"{key} was not found"
        for key, value in expect.items()
        if found.get(key) != value
    ]
    if wrong:
        return Check(name=name, passed=False, detail="; ".join(wrong))
    return Check(name=name, passed=True, detail=", ".join(f"{k}={v}" for k, v in expect.items()))


def _verify(step: Verify, bench: Backend) -> tuple[Check, ...]:
    output = bench.guest(step.script, step.timeout)
    check = compare(step.name, read_pairs(output.stdout), step.expect)
    if not check.passed:
        said = output.stderr.strip().splitlines()[-3:]
        if said:
            check = check.model_copy(update={"detail": f"{check.detail} ({' / '.join(said)})"})
        raise CheckFailedError(check)
    return (check,)


def _wait_for(step: WaitFor, bench: Backend) -> None:
    deadline = bench.now() + step.timeout
    hits = 0
    while True:
        output = bench.guest(step.script, max(step.timeout, 30.0))
        check = compare(step.label, read_pairs(output.stdout), step.expect)
        hits = hits + 1 if check.passed else 0
        if hits >= step.hits:
            return
        if bench.now() >= deadline:
            raise GuestError(
                f"gave up after {step.timeout:.0f} seconds waiting for {step.label}:"
                f" {check.detail}{_far(bench)}"
            )
        bench.pause(step.interval)


def _timed(step: Timed, bench: Backend, save: Save) -> None:
    """Run a workload with the scripts before and after it as one command, to save round trips."""
    tag = f"{step.workload}.{step.trial}"
    began = bench.pressure()
    output = bench.guest(timed_script(step), step.timeout)
    ended = bench.pressure()
    waited = [f"{name}={ended[name] - began.get(name, 0.0):.6f}" for name in ended]
    save(f"{tag}.pressure.txt", "\n".join([*waited, f"seconds={output.seconds:.6f}"]) + "\n")
    before, stdout, after = cut(output.stdout)
    if step.before:
        save(f"{tag}.before.txt", before)
    save(f"{tag}.stdout.txt", stdout)
    save(f"{tag}.stderr.txt", output.stderr)
    if step.after:
        save(f"{tag}.after.txt", after)
    if output.status != 0:
        raise _failed(step.workload, replace(output, stdout=stdout))


def _begin(step: BeginWorkload, bench: Backend, save: Save) -> None:
    """Read counters, then start a workload."""
    tag = f"{step.workload}.{step.trial}"
    if step.before:
        output = bench.guest(step.before, step.before_timeout)
        save(f"{tag}.before.txt", output.stdout)
        if output.status != 0:
            raise _failed(f"before {step.workload}", output)
    bench.begin(tag, step.script)


def _end(step: EndWorkload, bench: Backend, save: Save) -> None:
    """Wait for a workload or its guest to end, then read counters."""
    tag = f"{step.workload}.{step.trial}"
    output = bench.end(tag, step.timeout, cut=step.cut)
    save(f"{tag}.stdout.txt", output.stdout)
    save(f"{tag}.stderr.txt", output.stderr)
    if step.cut:
        return
    if output.status != 0:
        raise _failed(step.workload, output)
    if step.after:
        after = bench.guest(step.after, 60.0)
        save(f"{tag}.after.txt", after.stdout)
        if after.status != 0:
            raise _failed(f"the counters after {step.workload}", after)
