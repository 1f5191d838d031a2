"""Runs the steps of a procedure; it knows nothing of workloads, disks or RAID.

What a step makes is removed when its ``Undo`` unwinds, last made first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from lab.compile.guest.program import cut, timed_script
from lab.core.errors import GuestError, LabError, ToolError, TroubleError
from lab.model.execution.ports import Bench, Output, Save
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BeginWorkload,
    BuildPlugin,
    DetachDisk,
    EndWorkload,
    GuestCommand,
    HostCommand,
    LimitDisk,
    MakeDirectory,
    PassDisk,
    Pause,
    PowerCycle,
    Procedure,
    RestoreGuest,
    SaveGuest,
    SealDisks,
    SendDirectory,
    SpoilDisk,
    StartGuest,
    StartServer,
    Step,
    Timed,
    UnplugDisk,
    Verify,
    WaitFor,
    WaitForSsh,
    WipeDisk,
    WriteFile,
)
from lab.model.result.measurement import Check


class CheckFailedError(TroubleError):
    """A precondition was not met when verified."""

    def __init__(self, check: Check) -> None:
        super().__init__(f"the check '{check.name}' failed: {check.detail}")
        self.check = check


class Undo:
    """Actions that undo what was made."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def add(self, action: Callable[..., object], *arguments: object) -> None:
        """Add an action, which must be harmless if there is nothing to undo."""
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


def label_of(step: Step) -> str:
    """Label of a step, for progress."""
    match step:
        case HostCommand() | GuestCommand() | WaitFor() | StartServer() | AskServer():
            return step.label
        case MakeDirectory() | WriteFile():
            return f"writing {step.path}"
        case StartGuest():
            return "starting the guest"
        case RestoreGuest():
            return "restoring the guest"
        case SaveGuest():
            return "making a snapshot"
        case WaitForSsh():
            return "booting"
        case BuildPlugin():
            return f"compiling {step.source}"
        case AttachDisk():
            return f"plugging in {step.serial}"
        case PassDisk():
            return f"passing {step.device}"
        case WipeDisk():
            return f"wiping {step.serial}"
        case DetachDisk() | UnplugDisk():
            return f"unplugging {step.serial}"
        case LimitDisk():
            return f"limiting {step.serial}"
        case SpoilDisk():
            return f"spoiling {step.serial}"
        case SealDisks():
            return "running the sealed guest"
        case PowerCycle():
            return "cutting the power"
        case Pause():
            return f"{step.seconds:g} seconds into it"
        case SendDirectory():
            return f"copying {step.workload} into the guest"
        case Verify():
            return f"checking {step.name}"
        case Timed() | BeginWorkload() | EndWorkload():
            return step.workload
        case _:
            assert_never(step)


def run_step(step: Step, bench: Bench, undo: Undo, save: Save) -> tuple[Check, ...]:
    """Run one step, add its undo, return its checks.

    The undo of a step that can stop half-way is added before the step runs.
    """
    match step:
        case MakeDirectory():
            undo.add(bench.remove, step.path)
            bench.make_directory(step.path)
        case WriteFile():
            undo.add(bench.remove, step.path)
            bench.write_file(step.path, step.content, step.mode)
        case HostCommand():
            for path in () if step.lasting else step.creates:
                undo.add(bench.remove, path)
            bench.host_command(step.argv)
        case StartGuest():
            bench.write_file(step.xml_path, step.xml, 0o644)
            undo.add(bench.destroy_guest)
            bench.start_guest(step)
        case SaveGuest():
            bench.save_guest(step)
        case RestoreGuest():
            undo.add(bench.destroy_guest)
            bench.restore_guest(step)
        case WaitForSsh():
            bench.wait_for_ssh(step.timeout)
        case BuildPlugin():
            undo.add(bench.remove, step.link)
            bench.build_plugin(step)
        case StartServer():
            undo.add(bench.stop_server, step)
            bench.start_server(step)
        case AskServer():
            answer = bench.ask_server(step)
            if step.capture:
                save(f"{step.capture}.txt", f"{answer}\n")
            if answer.startswith("error"):
                raise ToolError(f"'{step.label}' was refused by the server: {answer}")
        case AttachDisk():
            bench.write_file(step.xml_path, step.xml, 0o644)
            if not step.lasting:
                undo.add(bench.remove, step.xml_path)
            bench.attach_disk(step)
            if not step.lasting:
                undo.add(bench.detach_disk, step)
        case PassDisk():
            undo.add(bench.return_disk, step)
            bench.pass_disk(step)
        case WipeDisk():
            bench.wipe_disk(step)
        case DetachDisk():
            bench.detach_disk(step)
            bench.remove(step.path)
        case UnplugDisk():
            bench.detach_disk(step)
        case LimitDisk():
            bench.limit_disk(step)
        case SpoilDisk():
            bench.spoil_disk(step)
        case SealDisks():
            bench.seal_disks(step)
        case PowerCycle():
            save(f"{step.capture}.txt", bench.power_cycle(step))
        case Pause():
            bench.pause(step.seconds)
        case SendDirectory():
            bench.send_directory(step)
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
            assert_never(step)
    return ()


def run_procedure(
    procedure: Procedure,
    bench: Bench,
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
        for check in checks:
            on_check(check)


def _undo_in_guest(bench: Bench, step: GuestCommand) -> None:
    output = bench.guest(step.undo, step.timeout)
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
    wrong = [
        f"{key} is {found[key]!r}, not {value!r}" if key in found else f"{key} was not found"
        for key, value in expect.items()
        if found.get(key) != value
    ]
    if wrong:
        return Check(name=name, passed=False, detail="; ".join(wrong))
    return Check(name=name, passed=True, detail=", ".join(f"{k}={v}" for k, v in expect.items()))


def _verify(step: Verify, bench: Bench) -> tuple[Check, ...]:
    output = bench.guest(step.script, step.timeout)
    check = compare(step.name, read_pairs(output.stdout), step.expect)
    if not check.passed:
        said = output.stderr.strip().splitlines()[-3:]
        if said:
            check = check.model_copy(update={"detail": f"{check.detail} ({' / '.join(said)})"})
        raise CheckFailedError(check)
    return (check,)


def _wait_for(step: WaitFor, bench: Bench) -> None:
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
                f"gave up after {step.timeout:.0f} seconds waiting for {step.label}: {check.detail}"
            )
        bench.pause(step.interval)


def _timed(step: Timed, bench: Bench, save: Save) -> None:
    """Run a workload and what is read before and after it, as one command: round trips are slow."""
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


def _begin(step: BeginWorkload, bench: Bench, save: Save) -> None:
    """Read counters and start a workload."""
    tag = f"{step.workload}.{step.trial}"
    if step.before:
        output = bench.guest(step.before, 120.0)
        save(f"{tag}.before.txt", output.stdout)
        if output.status != 0:
            raise _failed(f"before {step.workload}", output)
    bench.begin(tag, step.script)


def _end(step: EndWorkload, bench: Bench, save: Save) -> None:
    """Wait for a workload or its guest to end, and read counters."""
    tag = f"{step.workload}.{step.trial}"
    output = bench.end(tag, step.timeout, cut=step.cut)
    save(f"{tag}.stdout.txt", output.stdout)
    save(f"{tag}.stderr.txt", output.stderr)
    if step.cut:
        return
    if output.status != 0:
        raise _failed(step.workload, output)
    if step.after:
        save(f"{tag}.after.txt", bench.guest(step.after, 60.0).stdout)
